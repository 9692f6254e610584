"""One layer: its activations, checked, and every probe that is fitted to them.

Axes: N examples, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.activations import Activations
from probekit.errors import DataError
from probekit.evaluation.fits.fit_grid import FitGrid
from probekit.points import Place, place_name
from probekit.probes.base import check_size
from probekit.probes.problem import ProblemSet, joined


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
    X = acts[place]
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


def fit_layer(X: Tensor, probe: Any, grid: FitGrid, code: ProblemSet | None = None) -> LayerFits:
    """Fit a copy of the probe to each problem of the grid, and of the code, in one go.

    Args:
        X: features [N, D].
        probe: unfitted.
        grid: what is fitted.
        code: problems of the online code, over the same rows as the grid's.
    """
    problems = grid.problems if code is None else joined([grid.problems, code])
    probes = probe.fit_many(_rows_of(X, grid.protocol.fitted), problems)
    own = len(grid.problems.problems)
    return LayerFits(X, grid, probes[:own], probes[own:])


def _rows_of(X: Tensor, rows: np.ndarray) -> Tensor:
    """X [N, D] at rising rows, without a copy where the rows are contiguous."""
    if len(rows) == rows[-1] - rows[0] + 1:
        return X[int(rows[0]) : int(rows[-1]) + 1]
    return X[torch.from_numpy(rows).to(X.device)]
