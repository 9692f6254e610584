"""Every fit of one layer, as problems that share its features: label sets x masks x strengths of regularisation.

What a round needs of them is looked up again by (label set, mask, strength). The problems know nothing of the layer, so
that one list serves all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probekit.evaluation.fits.protocol import Protocol
from probekit.probes.problem import Labels, Problem, ProblemSet

Key = tuple[int, int, int]
"""Which label set, which mask, which strength."""


@dataclass(frozen=True, eq=False)
class Columns:
    """The problems of a layer.

    Attributes:
        protocol: whose masks they are fitted on.
        label_sets: int64 [N] or float64 [N] each; the target first, then the control tasks.
        n_classes: of all of them; 0 for a regression.
        grid: strengths to choose from, rising; [None] for a probe without one.
        problems: in the order in which they are fitted, over the protocol's `used` rows alone.
        where: the number of each.
    """

    protocol: Protocol
    label_sets: list[np.ndarray]
    n_classes: int
    grid: list[float | None]
    problems: ProblemSet
    where: dict[Key, int]

    def alone(self) -> "Columns":
        """The target's columns without the control tasks'."""
        return columns_of(self.protocol, self.label_sets[:1], self.n_classes, self.grid)


def columns_of(
    protocol: Protocol, label_sets: Sequence[np.ndarray], n_classes: int, grid: Sequence[float | None]
) -> Columns:
    """The problems of all label sets; only the target's are fitted for the probe that is kept."""
    problems, where, used = [], {}, protocol.used
    masks = tuple(None if mask[used].all() else mask[used] for mask in protocol.masks)
    asked = {mask for mask, _ in protocol.choosers} | {each.mask for each in protocol.rounds}
    for number in range(len(label_sets)):
        for mask in sorted(asked | {protocol.final} if number == 0 else asked):
            for i, C in enumerate(grid):
                where[number, mask, i] = len(problems)
                problems.append(Problem(number, mask, C))
    labels = tuple(Labels(given[used], n_classes) for given in label_sets)
    every = ProblemSet(labels, masks, tuple(problems))
    return Columns(protocol, list(label_sets), n_classes, list(grid), every, where)


def with_every_class(protocol: Protocol, draws: np.ndarray, n_classes: int) -> list[np.ndarray]:
    """Those of the control tasks [draws, N] that can be fitted: each training part has all classes (or two values)."""

    def whole(labels: np.ndarray) -> bool:
        there = set(np.unique(labels).tolist())
        return len(there) >= 2 if n_classes == 0 else there == set(range(n_classes))

    return [labels for labels in draws if all(whole(labels[mask > 0]) for mask in protocol.masks)]
