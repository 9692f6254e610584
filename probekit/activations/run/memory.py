"""Refuse, before anything is computed, what would not fit in memory."""

import torch

from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.plan.summary import as_dict
from probekit.activations.sums.statistics import statistics_bytes, used_splits
from probekit.devices import free_bytes
from probekit.errors import UsageError
from probekit.tasks.base import Task


def refuse_large_activations(plan: ExtractionPlan) -> None:
    """Raise UsageError, with the arithmetic, if the activations do not fit in the memory of the plan's device."""
    free, n_bytes = free_bytes(plan.device), as_dict(plan)["bytes"]
    if free is not None and n_bytes > free:
        raise UsageError(
            f"{n_bytes / 1e9:,.1f} GB of activations ({len(plan.task):,} texts x {len(plan.places)} places x "
            f"{_distinct(plan.widths)}, {plan.dtype}) do not fit the {free / 1e9:,.1f} GB that are free on "
            f"{plan.device}; write them to a store (out=PATH), or keep fewer layers or a smaller type"
        )


def refuse_large_sums(task: Task, widths: list[int], device: torch.device) -> None:
    """Raise UsageError, with the arithmetic, if the sums do not fit in memory.

    Writing holds the file of one place in host memory twice.
    """
    device = device if device.type == "cuda" else torch.device("cpu")
    free, need = free_bytes(device), statistics_bytes(task, widths)
    files = 0 if device.type == "cuda" else 2 * statistics_bytes(task, [max(widths)])
    if free is not None and need + files > free:
        raise UsageError(
            f"{need / 1e9:,.1f} GB of statistics ({len(widths)} places x {len(used_splits(task))} splits x "
            f"{_distinct(widths)} squared, float64) and {files / 1e9:,.1f} GB to write them do not fit the "
            f"{free / 1e9:,.1f} GB that are free on {device}; take fewer layers or narrower points"
        )


def _distinct(widths: list[int]) -> str:
    return "/".join(map(str, dict.fromkeys(widths)))
