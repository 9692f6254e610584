"""Compute activations into memory, and refuse before anything is computed what would not fit.

Axes: R rows of a place, D their width.
"""

from contextlib import closing

import torch
from torch import Tensor

from probekit.activations.layout import Layout, row_bytes
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.run.loop import hooked_points, run_shards, unpacked
from probekit.activations.sums.statistics import statistics_bytes, used_splits
from probekit.activations.sums.tally import check_countable
from probekit.errors import UsageError
from probekit.machine.devices import DTYPES, free_bytes
from probekit.points import Place
from probekit.text import counted


def compute_in_memory(plan: ExtractionPlan, progress: bool | None) -> tuple[ExtractionPlan, dict[Place, Tensor]]:
    """Every place, [R, D] in the order of the task, on the plan's device; and the plan that ran.

    With hooks on the model, that is the plan without blocks, see `unpacked`.

    Raises:
        UsageError: the activations do not fit in memory.
        DataError: NaN, infinity, or a value that the kept type cannot hold.
    """
    _refuse_large(plan.layout, plan.places, plan.widths, plan.dtype, plan.device)
    if hooked_points(plan.model):
        plan = unpacked(plan)
    layout, dtype = plan.layout, DTYPES[plan.dtype]
    tensors = {
        place: torch.empty(int(layout.counts(place).sum()), width, dtype=dtype, device=plan.device)
        for place, width in zip(plan.places, plan.widths, strict=True)
    }
    with closing(run_shards(plan, progress)) as shards:
        for _, rows, values in shards:
            for place, x in values.items():
                tensors[place][torch.from_numpy(layout.index(place, rows)).to(plan.device)] = x
    return plan, tensors


def _refuse_large(layout: Layout, places: list[Place], widths: list[int], dtype: str, device: torch.device) -> None:
    """Raise UsageError, with the arithmetic, if the activations do not fit in the memory of the device."""
    free = free_bytes(device)
    n_bytes = int(row_bytes(layout, places, widths, dtype).sum())
    if free is not None and n_bytes > free:
        raise UsageError(
            f"{n_bytes / 1e9:,.1f} GB of activations ({counted(len(layout.lengths), 'text')} x "
            f"{counted(len(places), 'place')} x "
            f"{_distinct(widths)}, {dtype}) do not fit the {free / 1e9:,.1f} GB that are free on {device}; write them "
            "to a store (out=PATH), or keep fewer layers or a smaller type"
        )


def check_sums(plan: ExtractionPlan) -> None:
    """Check, before anything is written, that statistics can be made of a plan and fit in memory.

    Raises:
        UsageError: several positions, attention, or a regression; more than fits, with the arithmetic.
        DataError: labels out of range.
    """
    check_countable(plan)
    device = plan.device if plan.device.type == "cuda" else torch.device("cpu")
    free, need = free_bytes(device), statistics_bytes(plan.task, plan.widths)
    if free is not None and need > free:
        raise UsageError(
            f"{need / 1e9:,.1f} GB of statistics ({len(plan.widths)} places x {len(used_splits(plan.task))} splits x "
            f"{_distinct(plan.widths)} squared, float64) do not fit the {free / 1e9:,.1f} GB that are free on {device};"
            " take fewer layers or narrower points"
        )


def _distinct(widths: list[int]) -> str:
    return "/".join(map(str, dict.fromkeys(widths)))
