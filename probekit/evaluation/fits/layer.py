"""One layer: its activations, checked, and every probe that is fitted to them.

Axes: N examples, D width.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.activations import Activations
from probekit.errors import DataError
from probekit.evaluation.fits.fit_grid import FitGrid, Key, problems_at
from probekit.evaluation.fits.predict import ByMask, Features, take_rows
from probekit.machine.devices import where_float64
from probekit.points import Place
from probekit.probes.base import check_size
from probekit.probes.problem import concatenated


@dataclass(frozen=True, eq=False)
class LayerFits:
    """The fitted probes of one label set at one layer.

    Attributes:
        X: the features [N, D], a stream of them, or the tokens of N texts.
        rows: those that the protocol fits, [n, D].
        probe: unfitted; copied for each fit.
        grid: the problems, of which some or all were fitted.
        probes: those that were fitted, by their key in the grid.
        kept: what the solver keeps for more fits of the same rows.
    """

    X: Features | ByMask
    rows: Features
    probe: Any
    grid: FitGrid
    probes: dict[Key, Any]
    kept: dict[Any, Any] = field(default_factory=dict)

    def by_features(self, keys: Sequence[Key]) -> list[tuple[Any, list[Key]]]:
        """The features that these fits read, and the fits; one pair unless the features depend on the mask."""
        if not isinstance(self.X, ByMask):
            return [(self.X, list(keys))]
        masks = dict.fromkeys(mask for _, mask, _ in keys)
        return [(self.X.of(mask), [key for key in keys if key[1] == mask]) for mask in masks]


def features_of(acts: Activations, place: Place) -> Tensor:
    """The activations of a place, [N, D], in float32 or more.

    Raises:
        DataError: NaN or infinity, with the first row and its example; float64 that cannot be squared.
    """
    return checked_features(acts[place], place, acts.ids.__getitem__)


def checked_features(X: Tensor, place: Place, id_of: Callable[[int], str], rows: np.ndarray | None = None) -> Tensor:
    """Rows [N, D] of a place, in float32 or more.

    Args:
        X: the rows.
        place: where they were read.
        id_of: the id of the example to which a row of the place belongs.
        rows: their numbers in the place, [N]; None where they are all of it.

    Raises:
        DataError: as `features_of`.
    """
    X = where_float64(X)
    low, high = map(float, torch.aminmax(X)) if X.numel() else (0.0, 0.0)  # NaN if any is; makes no copy, as isfinite
    if not (math.isfinite(low) and math.isfinite(high)):
        bad = ~torch.isfinite(X).all(dim=1)
        row = int(bad.nonzero()[0])
        what = "NaN" if bool(X[row].isnan().any()) else "infinity"
        number, where = (row, "all") if rows is None else (int(rows[row]), "its shard")
        raise DataError(
            f"activations of {place} hold {what}, first in row {number} (example {id_of(number)!a}; "
            f"{int(bad.sum())} rows in {where}); extract again, in float32 if they were kept in less"
        )
    if X.dtype == torch.float64:  # every number of another type can be squared in float64
        check_size(max(high, -low))
    return X.to(torch.promote_types(X.dtype, torch.float32))


@dataclass(frozen=True, eq=False)
class WantedFits:
    """The fits of one label set at a layer.

    Attributes:
        probe: unfitted; copied for each fit.
        grid: the problems.
        keys: which of them are fitted.
    """

    probe: Any
    grid: FitGrid
    keys: Sequence[Key]


def fit_layers(X: Features | ByMask, wanted: Sequence[WantedFits]) -> list[LayerFits]:
    """The fits of each label set on features X [N, D].

    Probes that share a decomposition of the same rows are solved together, whatever their labels.
    """
    if isinstance(X, ByMask):
        return [fit_more(LayerFits(X, X.final, each.probe, each.grid, {}), each.keys) for each in wanted]
    found: dict[int, LayerFits] = {}
    rows_of: dict[bytes, Features] = {}
    kept_of: dict[Any, dict[Any, Any]] = {}  # all label sets of the same rows share what their solver keeps
    for numbers in _solved_together(wanted):
        first, fitted = wanted[numbers[0]], wanted[numbers[0]].grid.protocol.fitted
        rows = rows_of.get(fitted.tobytes())
        if rows is None:
            rows = rows_of[fitted.tobytes()] = take_rows(X, fitted)
        sets = [problems_at(wanted[number].grid, wanted[number].keys) for number in numbers]
        kept = kept_of.setdefault(_probe_and_rows(first), {})
        problems = replace(sets[0] if len(sets) == 1 else concatenated(sets), kept=kept)
        probes = iter(first.probe.fit_many(rows, problems))
        for number in numbers:
            each = wanted[number]
            own = {key: next(probes) for key in each.keys}
            found[number] = LayerFits(X, rows, each.probe, each.grid, own, kept)
    return [found[number] for number in range(len(wanted))]


def fit_more(fits: LayerFits, keys: Sequence[Key]) -> LayerFits:
    """The fits with those of other keys, unless all of them are there."""
    missing = [key for key in keys if key not in fits.probes]
    if not missing:
        return fits
    found, fitted = dict(fits.probes), fits.grid.protocol.fitted
    for X, own in fits.by_features(missing):
        rows, problems = fits.rows, replace(problems_at(fits.grid, own), kept=fits.kept)
        if isinstance(fits.X, ByMask):
            rows, problems = take_rows(X, fitted), replace(problems, kept=None)
        found |= zip(own, fits.probe.fit_many(rows, problems), strict=True)
    return replace(fits, probes=found)


def _solved_together(wanted: Sequence[WantedFits]) -> list[list[int]]:
    """The numbers of the label sets, in groups that one solver call fits."""
    groups: dict[Any, list[int]] = {}
    for number, each in enumerate(wanted):
        key = _probe_and_rows(each) if each.probe.shares_decomposition else number
        groups.setdefault(key, []).append(number)
    return list(groups.values())


def _probe_and_rows(each: WantedFits) -> tuple[type, str, bytes]:
    """What fits must have in common to share work that depends on the rows alone."""
    return type(each.probe), repr(each.probe), each.grid.protocol.fitted.tobytes()
