"""Many fits that share their features; each names its label column and row weighting by number.

Axes: N rows, T targets.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

LARGEST, SMALLEST = 1e100, 1e-150  # features in size: float64 holds their squares, and sums and products of these


@dataclass(frozen=True, eq=False)
class Labels:
    """One column of labels.

    Attributes:
        values: int64 [N] of 0..n_classes-1; float64 [N] or [N, T] for a regression.
        n_classes: 0 for a regression.
    """

    values: np.ndarray
    n_classes: int = 2

    def of(self, rows: np.ndarray | None) -> np.ndarray:
        """The labels of some rows; None is all."""
        return self.values if rows is None else self.values[rows]


class Problem(NamedTuple):
    """One fit of a `ProblemSet`.

    Attributes:
        label: index into the set's `labels`.
        weighting: index into the set's `weightings`.
        C: inverse strength of the regularisation; None for the probe's own, or for a probe that has none.
    """

    label: int
    weighting: int
    C: float | None


@dataclass(frozen=True, eq=False)
class ProblemSet:
    """Fits that share features X [N, D]; work that depends only on labels or on rows is done once.

    Attributes:
        labels: the label columns.
        weightings: float64 [N], not negative, each; 0 leaves a row out. None gives every row the weight 1.
        problems: the fits.
        kept: where a solver keeps what the next set on the same features needs, too; None to keep nothing.
    """

    labels: tuple[Labels, ...]
    weightings: tuple[np.ndarray | None, ...]
    problems: tuple[Problem, ...]
    kept: dict[Any, Any] | None = None


def every_problem(
    labels: Iterable[Labels],
    strengths: Iterable[float | None] = (1.0,),
    weightings: Iterable[np.ndarray | None] = (None,),
) -> ProblemSet:
    """Every combination: label column by label column, in each weighting by weighting, in each every C."""
    labels, strengths, weightings = tuple(labels), tuple(strengths), tuple(weightings)
    problems = tuple(
        Problem(label, weighting, C)
        for label in range(len(labels))
        for weighting in range(len(weightings))
        for C in strengths
    )
    return ProblemSet(labels, weightings, problems)


def concatenated(sets: Iterable[ProblemSet]) -> ProblemSet:
    """The problems of several sets over the same rows, one set after another; equal weightings become one."""
    labels: list[Labels] = []
    weightings: dict[bytes | None, np.ndarray | None] = {}
    problems: list[Problem] = []
    for each in sets:
        keys = [None if weights is None else weights.tobytes() for weights in each.weightings]
        weightings |= {
            key: weights for key, weights in zip(keys, each.weightings, strict=True) if key not in weightings
        }
        numbers = list(weightings)
        where = [numbers.index(key) for key in keys]
        problems.extend(Problem(len(labels) + p.label, where[p.weighting], p.C) for p in each.problems)
        labels.extend(each.labels)
    return ProblemSet(tuple(labels), tuple(weightings.values()), tuple(problems))


def subset(problems: ProblemSet, which: Sequence[int]) -> ProblemSet:
    """Some of the problems, by number, with the label columns and weightings that they use and no others."""
    chosen = [problems.problems[i] for i in which]
    labels = _numbered(p.label for p in chosen)
    weightings = _numbered(p.weighting for p in chosen)
    return ProblemSet(
        tuple(problems.labels[i] for i in labels),
        tuple(problems.weightings[i] for i in weightings),
        tuple(Problem(labels[p.label], weightings[p.weighting], p.C) for p in chosen),
        problems.kept,
    )


def on_rows(problems: ProblemSet, rows: np.ndarray) -> ProblemSet:
    """The same problems over some of the rows."""
    labels = tuple(Labels(each.of(rows), each.n_classes) for each in problems.labels)
    weightings = tuple(None if weights is None else weights[rows] for weights in problems.weightings)
    return ProblemSet(labels, weightings, problems.problems)


def by_weighting(problems: ProblemSet) -> dict[int, list[int]]:
    """Number of a weighting -> the numbers of its problems."""
    return _grouped(problem.weighting for problem in problems.problems)


def by_rising_C(problems: ProblemSet) -> list[list[int]]:
    """The numbers of the problems of each label column, by rising C: a path along which each starts at the last."""
    groups = _grouped(problem.label for problem in problems.problems)
    return [sorted(which, key=lambda p: problems.problems[p].C or 0.0) for which in groups.values()]


def _grouped(keys: Iterable[int]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for i, key in enumerate(keys):
        groups.setdefault(key, []).append(i)
    return groups


def _numbered(numbers: Iterable[int]) -> dict[int, int]:
    """Each number -> its place among the distinct ones, in the order of their first use."""
    return {number: i for i, number in enumerate(dict.fromkeys(numbers))}
