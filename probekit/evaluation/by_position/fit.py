"""The fits of every position, or head, at every layer; the rows of a layer are read once for all of them.

Axes: R rows of a point's tensor, n texts of one position, D width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probekit.activations.activations import Activations, selected_from
from probekit.activations.store.reader import Store
from probekit.errors import UsageError
from probekit.evaluation.by_position.columns import Column
from probekit.evaluation.curve import FittedPlace, places_at_once, scored_place, wanted_fits
from probekit.evaluation.fits.layer import checked_features, fit_layers
from probekit.evaluation.plan import CurvePlan
from probekit.evaluation.scores.bootstrap import MOST_KEPT
from probekit.machine.devices import free_bytes
from probekit.machine.threads import in_threads
from probekit.points import Place

MOST_SHARE = 0.5  # of the free memory, for the rows of one layer


@dataclass(frozen=True, eq=False)
class PlannedColumn:
    """One position and its fits, which are the same at every layer.

    Attributes:
        column: the texts and rows.
        ids: names of the texts.
        plan: the fits and scores, over the rows of the column.
    """

    column: Column
    ids: list[str]
    plan: CurvePlan


def fit_columns(
    acts: Activations, planned: Sequence[PlannedColumn], places: Sequence[Place], done: Callable[[], None]
) -> list[list[FittedPlace]]:
    """The fits of every position at every place: [positions][places].

    Rows of a place are read in one pass, or in as many as memory needs. Positions are fitted at once, one in each
    thread, where the probe allows it.

    Args:
        acts: all rows.
        planned: the positions.
        places: of the curve.
        done: for progress; called after each position of each place.
    """
    found: list[list[FittedPlace]] = [[] for _ in planned]
    every = {id(one.plan): one.plan.bootstrap for one in planned}  # heads share one plan
    bootstraps = [each for each in every.values() if each is not None]
    too_many = sum(each.n_units * each.resamples for each in bootstraps) > MOST_KEPT
    for place in places:
        for numbers in _passes(acts, place, planned):
            fitted = _fit_pass(acts, place, [planned[number] for number in numbers], done)
            for number, each in zip(numbers, fitted, strict=True):
                found[number].append(each)
        for each in bootstraps:  # thousands of cells would hold gigabytes
            each.forget(counts=too_many)
    return found


def _fit_pass(
    acts: Activations, place: Place, planned: Sequence[PlannedColumn], done: Callable[[], None]
) -> list[FittedPlace]:
    """The fits of some positions at one place, whose rows are read together."""
    rows = np.unique(np.concatenate([one.column.rows for one in planned]))  # heads share theirs
    values = _read(acts, place, rows)

    def features(one: PlannedColumn) -> Tensor:
        own = values[torch.from_numpy(np.searchsorted(rows, one.column.rows)).to(values.device)]
        return own if one.column.head is None else head_of(own, *one.column.head)

    def fitted(one: PlannedColumn) -> FittedPlace:
        (fits,) = fit_layers(checked_features(features(one), place, one.ids.__getitem__), [wanted_fits(one.plan)])
        return scored_place(place, fits, one.plan)

    largest = max(planned, key=lambda one: len(one.ids))
    return in_threads(fitted, planned, places_at_once(features(largest).float(), [largest.plan]), done)


def head_of(rows: Tensor, head: int, n_heads: int) -> Tensor:
    """One head's part of rows [n, H * K]: [n, K]. Raises a UsageError if the rows cannot be divided."""
    if rows.shape[1] % n_heads:
        raise UsageError(f"rows of {rows.shape[1]} numbers are not those of {n_heads} heads; extract them again")
    return rows.unflatten(1, (n_heads, -1))[:, head]


def _passes(acts: Activations, place: Place, planned: Sequence[PlannedColumn]) -> list[list[int]]:
    """Numbers of the positions that are read together: all, or as many as `MOST_SHARE` of the free memory holds."""
    acts, _ = selected_from(acts, planned[0].column.rows)
    free = free_bytes(torch.device("cpu"))
    most = None if free is None or not isinstance(acts, Store) else free * MOST_SHARE
    width = acts.meta["widths"][list(acts).index(place)] if isinstance(acts, Store) else 0
    if planned[0].column.head is not None:  # all heads are in the same rows
        return [[*range(len(planned))]]
    passes: list[list[int]] = []
    held = 0.0
    for number, one in enumerate(planned):
        size = len(one.ids) * width * 4
        if not passes or (most is not None and held + size > most):
            passes.append([])
            held = 0.0
        passes[-1].append(number)
        held += size
    return passes


def _read(acts: Activations, place: Place, rows: np.ndarray) -> Tensor:
    """These rows of a place, [len(rows), D]; `rows` rise. Of a store, only they are held, shard by shard."""
    acts, rows = selected_from(acts, rows)
    if not isinstance(acts, Store):
        whole = acts._rows(place)
        return whole[torch.from_numpy(rows).to(whole.device)]
    values: Tensor | None = None
    for examples, shard in acts.shards(place):
        own = acts.layout.index(place, examples)
        at = np.minimum(np.searchsorted(rows, own), len(rows) - 1)
        wanted = np.flatnonzero(rows[at] == own)
        if values is None:
            values = shard.new_empty((len(rows), shard.shape[1]))
        values[torch.from_numpy(at[wanted])] = shard[torch.from_numpy(wanted)]
    assert values is not None  # a complete store has a shard
    return values
