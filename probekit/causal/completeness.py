"""What can still be read after an edit: probes trained anew, on rows that the edit was not fitted to.

Completeness, selectivity and reliability follow Canby et al. 2024 (arXiv 2408.15510). An edit is complete where fresh
probes of the edited label are at chance, and selective where those of other labels read what they read before. At later
layers completeness also falls where the model computes the label again from what was not edited.

Axes: P places, N rows.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from probekit.activations import Activations, ActivationSet
from probekit.errors import DataError, UsageError
from probekit.evaluation import LayerResult, train_probes
from probekit.points import Place, place_name
from probekit.tasks import Task
from probekit.text import listed

UNKNOWN = (-math.inf, math.inf)  # the interval of a score that has none


@dataclass(frozen=True)
class FreshScores:
    """Scores of fresh probes of one label set: [P] each.

    Attributes:
        metric: balanced accuracy, or R2 of numbers.
        chance: 1 / C, or 0.
        before: without the edit.
        after: with it.
        before_intervals: (low, high), 95%.
        after_intervals: (low, high), 95%.
    """

    metric: str
    chance: float
    before: list[float]
    after: list[float]
    before_intervals: list[tuple[float, float]]
    after_intervals: list[tuple[float, float]]

    @property
    def kept(self) -> list[float]:
        """The score above chance with the edit, as a share of that without it; not clipped.

        It is nan where nothing could be read before: the interval includes chance.
        """
        of_places = zip(self.before, self.after, self.before_intervals, strict=True)
        return [
            (after - self.chance) / (before - self.chance) if low > self.chance else math.nan
            for before, after, (low, _) in of_places
        ]


@dataclass(frozen=True)
class FreshProbes:
    """What fresh probes read with and without an edit; the first place is the edited one.

    Attributes:
        label: the edited label set.
        places: in the order of the curve, [P].
        n: rows, all of which are tested on once.
        scores: label set -> its scores.
        left_out: label set -> why it has none.
    """

    label: str
    places: list[Place]
    n: int
    scores: dict[str, FreshScores]
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def completeness(self) -> list[float]:
        """1 - what is still read of the label, as a share of what was: [P]; nan where nothing was."""
        return [1 - kept for kept in self.scores[self.label].kept]

    @property
    def selectivity(self) -> list[float]:
        """What is still read of the other label sets, as a share of what was: [P], their mean; nan without any.

        A label that goes along with the edited one loses what they share, by right.
        """
        others = [scores.kept for name, scores in self.scores.items() if name != self.label]
        return [_mean(at_place) for at_place in zip(*others, strict=True)] or [math.nan] * len(self.places)

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


def fresh_probes(
    before: Activations,
    after: Activations,
    label: str | None = None,
    *,
    others: Iterable[str] | None = None,
    fitted: str = "train",
    probe: Any = "ridge",
    folds: int = 3,
    seed: int = 0,
) -> FreshProbes:
    """Train probes anew on the activations with and without an edit, on the same rows and folds.

    Args:
        before: activations without the edit, one row for each label.
        after: those with the edit: its places, the edited one first, and its rows, which may be some of those of
            `before`.
        label: the edited label set; None is the task's target.
        others: label sets that the edit should leave; None is all others.
        fitted: the split whose rows the edit was fitted to; they are left out.
        probe: of `train_probes`. A linear one finds nothing where the least-squares optimum finds nothing; "mlp" may.
        folds: nested folds over the rows; C is chosen within each.
        seed: of the folds.

    Raises:
        UsageError: a place or row of `after` that `before` lacks, or an unknown label set or probe.
        DataError: too few rows of a class for the folds.
    """
    _check_same(before, after)
    label = after.task.label_set(label)
    rows = np.flatnonzero(after.task.splits != fitted)
    if not len(rows):
        raise DataError(
            f"fresh probes need rows that the edit was not fitted to, and all are of {fitted!a}; add others"
        )
    number = {name: i for i, name in enumerate(before.ids)}
    there = np.array([number[after.ids[i]] for i in rows])
    task, places = after.task.subset(rows), list(after)
    both = [_rows(before, task, places, there), _rows(after, task, places, rows)]
    options = {"probe": probe, "folds": folds, "seed": seed}
    scores, left_out = {label: _scores(both, label, options)}, {}
    for name in [each for each in task.labels if each != label] if others is None else others:
        try:
            scores[name] = _scores(both, task.label_set(name), options)
        except DataError as error:  # a label set with a rare class costs only its own share
            left_out[name] = str(error)
    return FreshProbes(label, places, len(rows), scores, left_out)


def _mean(shares: Iterable[float]) -> float:
    """The mean of those that are numbers."""
    known = [share for share in shares if not math.isnan(share)]
    return sum(known) / len(known) if known else math.nan


def _check_same(before: Activations, after: Activations) -> None:
    if missing := [place_name(place) for place in after if place not in before]:
        raise UsageError(f"no activations of {listed(missing)} without the edit; extract the same places twice")
    known = set(before.ids)
    if foreign := [name for name in after.ids if name not in known]:
        raise UsageError(f"example {foreign[0]!a} has activations with the edit only; extract the same task twice")


def _rows(acts: Activations, task: Task, places: Sequence[Place], rows: np.ndarray) -> ActivationSet:
    index = torch.from_numpy(rows)
    tensors = {place: acts[place] for place in places}
    return ActivationSet({place: x[index.to(x.device)] for place, x in tensors.items()}, task)


def _scores(both: Sequence[ActivationSet], label: str, options: dict[str, Any]) -> FreshScores:
    C = both[0].task.n_classes(label)
    metric = "balanced_accuracy" if C else "r2"
    before, after = (_tested(acts, label, metric, options) for acts in both)
    values, intervals = [], []
    for results in (before, after):
        values.append([result.metrics["test"][metric] for result in results])
        intervals.append([result.intervals.get(metric, UNKNOWN) for result in results])
    return FreshScores(metric, 1 / C if C else 0.0, *values, *intervals)


def _tested(acts: ActivationSet, label: str, metric: str, options: dict[str, Any]) -> list[LayerResult]:
    """The result of each place, in order."""
    curves = train_probes(acts, labels=[label], points="all", metric=metric, quick=True, baselines=False, **options)
    found = {(result.point, result.layer): result for curve in curves.values() for result in curve.layers}
    return [found[place] for place in acts]
