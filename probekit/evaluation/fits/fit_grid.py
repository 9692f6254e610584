"""Every fit of one layer, as problems that share its features: label sets x masks x strengths of regularisation.

The problems do not depend on the layer, so one grid serves all layers.

Axes: N examples.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probekit.evaluation.fits.protocol import Protocol
from probekit.probes.problem import Labels, Problem, ProblemSet, subset

Key = tuple[int, int, int]
"""Numbers of a label set, a mask and a strength."""


@dataclass(frozen=True, eq=False)
class FitGrid:
    """The problems of a layer.

    Attributes:
        protocol: whose masks are fitted.
        label_sets: int64 [N] or float64 [N] each; the target first, then the control tasks.
        n_classes: of every label set; 0 for a regression.
        strengths: values of C to choose from, rising; [None] for a probe without C.
        problems: over the protocol's `fitted` rows.
        index: (label set, mask, strength) -> number of the problem.
    """

    protocol: Protocol
    label_sets: list[np.ndarray]
    n_classes: int
    strengths: list[float | None]
    problems: ProblemSet
    index: dict[Key, int]


def fit_grid(
    protocol: Protocol, label_sets: Sequence[np.ndarray], n_classes: int, strengths: Sequence[float | None]
) -> FitGrid:
    """The problems of all label sets; the final mask is fitted for the target alone."""
    problems, index, rows = [], {}, protocol.fitted
    weightings = tuple(None if mask[rows].all() else mask[rows] for mask in protocol.masks)
    tested = {mask for mask, _ in protocol.choosers} | {each.mask for each in protocol.rounds}
    for number in range(len(label_sets)):
        for mask in sorted(tested | {protocol.final} if number == 0 else tested):
            for i, C in enumerate(strengths):
                index[number, mask, i] = len(problems)
                problems.append(Problem(number, mask, C))
    labels = tuple(Labels(given[rows], n_classes) for given in label_sets)
    problem_set = ProblemSet(labels, weightings, tuple(problems))
    return FitGrid(protocol, list(label_sets), n_classes, list(strengths), problem_set, index)


def target_only(grid: FitGrid) -> FitGrid:
    """The grid without the control tasks."""
    return fit_grid(grid.protocol, grid.label_sets[:1], grid.n_classes, grid.strengths)


def problems_at(grid: FitGrid, keys: Sequence[Key]) -> ProblemSet:
    """Some of the problems of a grid, in the order of the keys."""
    return subset(grid.problems, [grid.index[key] for key in keys])
