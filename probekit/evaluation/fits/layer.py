"""One layer: its activations, checked, and every probe that is fitted to them.

Axes: N examples, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from probekit.activations.activations import Activations
from probekit.devices import where_float64
from probekit.errors import DataError
from probekit.evaluation.fits.fit_grid import FitGrid
from probekit.evaluation.fits.predict import take_rows
from probekit.points import Place, place_name
from probekit.probes.base import check_size
from probekit.probes.problem import ProblemSet, concatenated


@dataclass(frozen=True, eq=False)
class LayerFits:
    """The fitted probes of one layer.

    Attributes:
        X: the features [N, D].
        grid: the problems that were fitted.
        probes: one for each problem of the grid.
        code_probes: one for each problem of the online code; empty without a code.
    """

    X: Tensor
    grid: FitGrid
    probes: Sequence[Any]
    code_probes: Sequence[Any]


def features_of(acts: Activations, place: Place) -> Tensor:
    """The activations of a place, [N, D], in float32 or more.

    Raises:
        DataError: NaN or infinity, with the first row and its example; float64 that cannot be squared.
    """
    X = where_float64(acts[place])
    bad = ~torch.isfinite(X).all(dim=1)
    if bad.any():
        row = int(bad.nonzero()[0])
        what = "NaN" if bool(X[row].isnan().any()) else "infinity"
        raise DataError(
            f"activations of {place_name(place)} hold {what}, first in row {row} (example {acts.ids[row]!a}; "
            f"{int(bad.sum())} rows in all); extract again, in float32 if they were kept in less"
        )
    if X.dtype == torch.float64:  # every number of another type can be squared in float64
        low, high = torch.aminmax(X)
        check_size(max(float(high), -float(low)))
    return X.to(torch.promote_types(X.dtype, torch.float32))


@dataclass(frozen=True, eq=False)
class WantedFits:
    """The fits of one label set at a layer.

    Attributes:
        probe: unfitted; copied for each fit.
        grid: what is fitted.
        code: problems of the online code, over the same rows as the grid's; None for no code.
    """

    probe: Any
    grid: FitGrid
    code: ProblemSet | None = None

    @property
    def problems(self) -> ProblemSet:
        """Those of the grid, then those of the code."""
        return self.grid.problems if self.code is None else concatenated([self.grid.problems, self.code])


def fit_layers(X: Tensor, wanted: Sequence[WantedFits]) -> list[LayerFits]:
    """The fits of each label set on features X [N, D].

    Probes that share a decomposition of the same rows are solved together, whatever their labels.
    """
    found: dict[int, LayerFits] = {}
    for numbers in _solved_together(wanted):
        first = wanted[numbers[0]]
        problems = [wanted[number].problems for number in numbers]
        rows = take_rows(X, first.grid.protocol.fitted)
        probes = first.probe.fit_many(rows, problems[0] if len(problems) == 1 else concatenated(problems))
        start = 0
        for number, each in zip(numbers, problems, strict=True):
            grid, end = wanted[number].grid, start + len(each.problems)
            own = start + len(grid.problems.problems)
            found[number] = LayerFits(X, grid, probes[start:own], probes[own:end])
            start = end
    return [found[number] for number in range(len(wanted))]


def _solved_together(wanted: Sequence[WantedFits]) -> list[list[int]]:
    """The numbers of the label sets, in groups that one solver call fits."""
    groups: dict[Any, list[int]] = {}
    for number, each in enumerate(wanted):
        rows = each.grid.protocol.fitted
        key = (type(each.probe), repr(each.probe), rows.tobytes()) if each.probe.shares_decomposition else number
        groups.setdefault(key, []).append(number)
    return list(groups.values())
