"""What can still be read after an edit: probes trained anew, on rows that the edit was not fitted to.

Completeness, selectivity and reliability follow Canby et al. 2024 (arXiv 2408.15510). An edit is complete where fresh
probes of the edited label are at chance, and selective where those of other labels read what they read before. At later
layers completeness also falls where the model computes the label again from what was not edited.

Axes: P places, N rows.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import torch

from probekit.activations import Activations, ActivationSet
from probekit.causal.erasure.erase import one_row_each
from probekit.errors import DataError, UsageError
from probekit.evaluation.results.curves import ProbeCurves
from probekit.evaluation.train_probes import train_curves
from probekit.options import CurvesArguments
from probekit.points import Place
from probekit.text import listed

UNKNOWN = (-math.inf, math.inf)  # the interval of a score that has none


@dataclass(frozen=True)
class FreshScores:
    """Test scores of fresh probes of one label set.

    Attributes:
        metric: balanced accuracy, or R2 of numbers.
        chance: 1 / C, or 0.
        values: place -> score.
        intervals: place -> (low, high), 95%.
        probes: place -> the fitted probe.
    """

    metric: str
    chance: float
    values: dict[Place, float]
    intervals: dict[Place, tuple[float, float]]
    probes: dict[Place, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class FreshReading:
    """What fresh probes read of every label set.

    Attributes:
        ids: of the test rows.
        scores: label set -> its scores.
        left_out: label set -> why it has none.
    """

    ids: list[str]
    scores: dict[str, FreshScores]
    left_out: dict[str, str]


@dataclass(frozen=True)
class FreshProbes:
    """What fresh probes read with and without an edit.

    Attributes:
        label: the edited label set.
        places: the edited one first, [P].
        before: without the edit.
        after: with it.
    """

    label: str
    places: list[Place]
    before: FreshReading
    after: FreshReading

    def kept(self, label: str) -> list[float]:
        """The score above chance with the edit, as a share of that without it: [P]; not clipped.

        It is nan where nothing could be read before: the interval includes chance.
        """
        before, after = self.before.scores[label], self.after.scores[label]
        return [
            (after.values[place] - after.chance) / (before.values[place] - before.chance)
            if before.intervals[place][0] > before.chance
            else math.nan
            for place in self.places
        ]

    @property
    def completeness(self) -> list[float]:
        """1 - what is still read of the label, as a share of what was: [P]; nan where nothing was."""
        return [1 - kept for kept in self.kept(self.label)]

    @property
    def completeness_intervals(self) -> list[tuple[float, float]]:
        """The 95% intervals of `completeness`, [P], from those of the scores with the edit.

        The scores without it are taken as known: far above chance they hardly vary in comparison.
        """
        before, after = self.before.scores[self.label], self.after.scores[self.label]
        ends = []
        for place, share in zip(self.places, self.completeness, strict=True):
            low, high = after.intervals[place]
            whole = math.nan if math.isnan(share) else before.values[place] - before.chance
            ends.append((1 - (high - after.chance) / whole, 1 - (low - after.chance) / whole))
        return ends

    @property
    def selectivity(self) -> list[float]:
        """What is still read of the other label sets, as a share of what was: [P], their mean; nan without any.

        A label that goes along with the edited one loses what they share, by right.
        """
        others = [self.kept(name) for name in self.before.scores if name in self.after.scores and name != self.label]
        return [mean_of_known(kept[i] for kept in others) for i in range(len(self.places))]

    @property
    def reliability(self) -> list[float]:
        """The harmonic mean of completeness and selectivity, each limited to 0..1: [P]."""
        return [harmonic_mean(*both) for both in zip(self.completeness, self.selectivity, strict=True)]


def harmonic_mean(completeness: float, selectivity: float) -> float:
    """Reliability (Canby et al. 2024); each share is limited to 0..1, and nan gives nan."""
    if math.isnan(completeness) or math.isnan(selectivity):
        return math.nan
    one, other = (min(max(share, 0.0), 1.0) for share in (completeness, selectivity))
    return 2 * one * other / (one + other) if one + other else 0.0


def mean_of_known(shares: Iterable[float]) -> float:
    """The mean of the shares that are not nan; nan if all are."""
    known = [share for share in shares if not math.isnan(share)]
    return sum(known) / len(known) if known else math.nan


def fresh_probes(
    before: Activations | FreshReading,
    after: Activations,
    label: str | None = None,
    *,
    probe: Any = "ridge",
    seed: int = 0,
) -> FreshProbes:
    """Train probes anew on the activations with and without an edit that was fitted to rows of train.

    Args:
        before: activations without the edit; or, for several edits, what `read_afresh` made of them once.
        after: activations with the edit: the edited place first, then later ones. Rows of train are not needed.
        label: the edited label set; None is the task's target.
        probe: as in `read_afresh`.
        seed: as in `read_afresh`.

    Raises:
        UsageError: a place or row of `after` that `before` lacks, an unknown label set or probe.
        DataError: as from `read_afresh`; a class of the label that a split lacks.
    """
    label, places = after.task.label_set(label), list(after)
    known = _places_of(before)
    if missing := [str(place) for place in places if place not in known]:
        raise UsageError(f"no activations of {listed(missing)} without the edit; extract the same places twice")
    read_after = read_afresh(after, probe=probe, seed=seed)
    read_before = before if isinstance(before, FreshReading) else read_afresh(before, places, probe=probe, seed=seed)
    for reading in (read_before, read_after):
        if label not in reading.scores:
            raise DataError(reading.left_out[label])
    if read_before.ids != read_after.ids:
        raise UsageError("the test rows with the edit are others than without it; extract the same task twice")
    return FreshProbes(label, places, read_before, read_after)


def read_afresh(
    acts: Activations, places: Sequence[Place] | None = None, *, probe: Any = "ridge", seed: int = 0
) -> FreshReading:
    """Train probes of every label set on the rows of validation, a fifth of which choose C, and score them on test.

    Args:
        acts: one row for each label.
        places: None is all.
        probe: of `train_probes`; a name must be one of classes and of numbers if there are labels of both kinds. A
            linear probe finds nothing where the least-squares optimum finds nothing; "mlp" may.
        seed: of the rows that choose C.

    Raises:
        UsageError: an unknown place or probe; several tokens of each text.
        DataError: no rows of validation or test.
    """
    rows = np.flatnonzero(acts.task.splits != "train")
    task = acts.task.subset(rows)
    if missing := [split for split in ("validation", "test") if not (task.splits == split).any()]:
        raise DataError(
            f"fresh probes are trained on validation and scored on test, and {missing[0]} has no rows; carve some from "
            "train before the edit is fitted: task.with_validation()"
        )
    task = replace(task, splits=np.where(task.splits == "test", "test", "train")).with_validation(seed=seed)
    index = torch.from_numpy(rows)
    own = ActivationSet({place: one_row_each(acts, place, index) for place in (places or acts)}, task)
    scores, left_out = _scores(own, {"probe": probe, "seed": seed})
    return FreshReading([task.ids[i] for i in np.flatnonzero(task.splits == "test")], scores, left_out)


def _places_of(before: Activations | FreshReading) -> Iterable[Place]:
    if isinstance(before, FreshReading):
        return {place for scores in before.scores.values() for place in scores.values}
    return before


def _scores(acts: ActivationSet, options: dict[str, Any]) -> tuple[dict[str, FreshScores], dict[str, str]]:
    """The scores of every label set, or why it has none."""
    left_out, labels = {}, {"balanced_accuracy": [], "r2": []}
    for name in acts.task.labels:
        try:
            acts.task.check(name)
            labels["balanced_accuracy" if acts.task.n_classes(name) else "r2"].append(name)
        except DataError as error:  # a label set with a rare class costs only its own share
            left_out[name] = str(error)
    scores = {}
    for metric, names in labels.items():
        scores |= _of_labels(acts, names, metric, options) if names else {}
    return {name: scores[name] for name in acts.task.labels if name in scores}, left_out


def _of_labels(acts: ActivationSet, names: list[str], metric: str, options: dict[str, Any]) -> dict[str, FreshScores]:
    how = CurvesArguments(
        labels=names, points="all", metric=metric, quick=True, baselines=False, progress=False, **options
    )
    curves = cast(ProbeCurves, train_curves(acts, how))
    scores = {}
    for name in names:
        C = acts.task.n_classes(name)
        results = [layer for (label, _), curve in curves.items() if label == name for layer in curve.layers]
        values = {Place(each.point, each.layer): each.metrics["test"][metric] for each in results}
        intervals = {Place(each.point, each.layer): each.intervals.get(metric, UNKNOWN) for each in results}
        probes = {Place(each.point, each.layer): each.probe for each in results}
        scores[name] = FreshScores(metric, 1 / C if C else 0.0, values, intervals, probes)
    return scores
