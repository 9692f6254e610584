"""Worlds whose truth is known: activations with planted classes, the true score of every probe fitted to them.

The noise of a place is normal with unit variance in each direction, and shares its groups' half of it where there are
groups. So the scores of a linear probe are normal in each class, and its accuracy, AUROC, F1, R2, rates and calibration
follow from its weights. Of five classes they are counted on `FRESH` other rows.

Axes: N rows, D width, L places.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from scipy.special import expit, logit, ndtr
from scipy.stats import norm

from probekit.activations.activations import ActivationSet
from probekit.points import Place
from probekit.tasks.base import Task

D, TRAIN, VALIDATION = 6, 400, 300
ALIKE = 0.7  # correlation of the noise of a place with that of the place before
FRESH = 100_000
USUAL = (0.8, 1.6, 2.0, 2.0, 2.0, 1.8)  # class means apart, in standard deviations: accuracy 0.66 to 0.84
STRENGTHS = {"usual": USUAL, "easy": (0.8, 2.5, 4.0, 6.0, 9.0, 9.0), "none": (0.0,) * len(USUAL)}
SCALE_OF_NUMBERS = 0.5  # of the strengths for a regression: R2 of 0.14 to 0.5


@dataclass(frozen=True)
class World:
    """What the data of a simulated run are like.

    Attributes:
        n: test rows; with folds, all rows.
        share: of the second of two classes; 0.5 is drawn, others are held exactly.
        classes: 0 for numbers.
        groups: of the test rows; None where each row is its own.
        named: whether the task says which rows share a group.
        mixed: whether the rows of a group have labels of their own.
        uneven: whether groups have geometric sizes.
        folds: of nested cross-validation.
        strengths: a key of `STRENGTHS`.
    """

    n: int = 200
    share: float = 0.5
    classes: int = 2
    groups: int | None = None
    named: bool = True
    mixed: bool = False
    uneven: bool = False
    folds: int | None = None
    strengths: str = "usual"

    def __str__(self) -> str:
        kind = "numbers" if not self.classes else f"{self.classes} classes"
        parts = [f"n = {self.n:,}", kind if self.share == 0.5 else f"{kind}, {self.share:.0%} positive"]
        if self.groups is not None:
            sizes = " of geometric sizes" if self.uneven else ""
            parts.append(f"{self.groups} groups{sizes}{', labels mixed' if self.mixed else ''}")
        parts += [] if self.named else ["groups not named"]
        parts += [] if self.folds is None else [f"{self.folds} nested folds"]
        return ", ".join([*parts, *(["easy signal"] if self.strengths == "easy" else [])])


def draw(world: World, seed: int) -> ActivationSet:
    """Activations of train, validation and test rows."""
    rng = np.random.default_rng([seed, world.n, int(100 * world.share), world.classes, world.groups or 0])
    sizes = {"train": world.n} if world.folds else {"train": TRAIN, "validation": VALIDATION, "test": world.n}
    members = [_groups(rng, world, n) for n in sizes.values()]
    offsets = np.cumsum([0, *(int(each.max()) + 1 for each in members)])
    group = np.concatenate([each + start for each, start in zip(members, offsets[:-1], strict=True)])
    labels = np.concatenate([_labels(rng, world, each) for each in members])
    n, error, tensors = len(group), _noise(rng, world, group), {}
    for i, strength in enumerate(STRENGTHS[world.strengths]):
        x = error + means(world, strength, labels)
        tensors[Place("resid_pre", i)] = torch.from_numpy(x.astype(np.float32))
        error = ALIKE * error + np.sqrt(1 - ALIKE**2) * _noise(rng, world, group)
    task = Task(
        name="simulated",
        inputs=[f"text {i}" for i in range(n)],
        labels={"kind": labels},
        label_names={"kind": [f"class {k}" for k in range(world.classes)]} if world.classes else {},
        splits=np.repeat([*sizes], [*sizes.values()]),
        target="kind",
        groups=group if world.groups is not None and world.named else None,
    )
    acts = ActivationSet(tensors, task)
    acts.meta.update({"model": "none", "task": "simulated", "n_layers": len(tensors) + 1})
    return acts


def _groups(rng: np.random.Generator, world: World, n: int) -> np.ndarray:
    if world.groups is None:
        return np.arange(n)
    mean = world.n / world.groups
    if world.uneven:
        cuts = np.sort(rng.choice(np.arange(1, n), max(1, round(n / mean)) - 1, replace=False))
        return np.searchsorted(cuts, np.arange(n), side="right")
    return np.minimum((np.arange(n) / mean).astype(int), round(n / mean) - 1)


def _labels(rng: np.random.Generator, world: World, group: np.ndarray) -> np.ndarray:
    """Every class occurs; one label a group, unless they are mixed."""
    n = len(group)
    units = n if world.mixed else int(group.max()) + 1
    if not world.classes:
        drawn = rng.normal(size=units)
    elif world.share != 0.5:
        exact = world.share * units
        drawn = rng.permutation(np.arange(units) < max(1, int(exact + rng.random()))).astype(int)
    else:
        drawn = rng.integers(world.classes, size=units)
        while len(np.unique(drawn)) < world.classes:
            drawn = rng.integers(world.classes, size=units)
    return drawn if world.mixed else drawn[group]


def _noise(rng: np.random.Generator, world: World, group: np.ndarray) -> np.ndarray:
    own = rng.normal(size=(len(group), D))
    return own if world.groups is None else np.sqrt(0.5) * (own + rng.normal(size=(int(group.max()) + 1, D))[group])


def means(world: World, strength: float, labels: np.ndarray) -> np.ndarray:
    """The mean activation of rows with these labels: [N, D]."""
    found = np.zeros((len(labels), D))
    if world.classes > 2:
        found[np.arange(len(labels)), labels] = strength
    else:
        found[:, 0] = strength * (SCALE_OF_NUMBERS * labels if not world.classes else labels - 0.5)
    return found


@dataclass(frozen=True)
class Normal:
    """The scores of a probe of two classes: normal with one standard deviation.

    Attributes:
        low: mean score of the first class.
        high: of the second.
        spread: standard deviation of both.
        share: of the second class.
    """

    low: float
    high: float
    spread: float
    share: float

    def rates(self, threshold: float = 0.0) -> tuple[float, float]:
        """True- and false-positive rate at a threshold."""
        return tuple(float(ndtr((mean - threshold) / self.spread)) for mean in (self.high, self.low))  # type: ignore

    def log_odds(self, scores: np.ndarray) -> np.ndarray:
        """The true log odds of the second class, given the score."""
        slope = (self.high - self.low) / self.spread**2
        return logit(self.share) + slope * (scores - (self.low + self.high) / 2)

    def some_scores(self, n: int = 4000) -> tuple[np.ndarray, np.ndarray]:
        """Scores at equally spaced quantiles of both classes, and their weights."""
        quantiles = norm.ppf((np.arange(n) + 0.5) / n) * self.spread
        scores = np.concatenate([self.low + quantiles, self.high + quantiles])
        return scores, np.repeat([(1 - self.share) / n, self.share / n], n)


def normal_scores(world: World, layer: int, probe: Any) -> Normal:
    """What the scores of a linear probe of two classes at a place are."""
    w, b = np.ravel(probe.coef_).astype(float), float(np.ravel(probe.intercept_)[0])
    strength = STRENGTHS[world.strengths][layer]
    low, high = (means(world, strength, np.array([k]))[0] @ w + b for k in (0, 1))
    return Normal(float(low), float(high), max(float(np.linalg.norm(w)), 1e-12), world.share)


def truth(world: World, layer: int, probe: Any) -> dict[str, float]:
    """The true score of a fitted probe by each metric that is known."""
    w = np.asarray(probe.coef_, dtype=float)
    if not world.classes:
        w, b, k = w.ravel(), float(np.ravel(probe.intercept_)[0]), SCALE_OF_NUMBERS * STRENGTHS[world.strengths][layer]
        return {"r2": float(1 - (1 - k * w[0]) ** 2 - b**2 - w @ w)}
    if world.classes > 2:
        labels, noise = _fresh(world.classes)
        x = noise + means(world, STRENGTHS[world.strengths][layer], labels)
        return {"accuracy": float(((x @ w.T + probe.intercept_).argmax(axis=1) == labels).mean())}
    scores, share = normal_scores(world, layer, probe), world.share
    found, wrong = scores.rates()
    return {
        "accuracy": share * found + (1 - share) * (1 - wrong),
        "auroc": float(ndtr((scores.high - scores.low) / (np.sqrt(2) * scores.spread))),
        "f1": 2 * share * found / (share + share * found + (1 - share) * wrong),
    }


def guess(world: World, metric: str) -> float:
    """The true score of the majority class, or of the mean."""
    if metric == "accuracy":
        return max(world.share, 1 - world.share) if world.classes == 2 else 1 / world.classes
    return {"auroc": 0.5, "r2": 0.0}[metric]


@cache
def _fresh(classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(classes, size=FRESH), rng.normal(size=(FRESH, D))


def calibration_error(scores: Normal, said: Any) -> float:
    """The mean distance of the probabilities that `said` gives for scores from the true ones."""
    values, weights = scores.some_scores()
    return float(weights @ np.abs(said(values) - expit(scores.log_odds(values))))
