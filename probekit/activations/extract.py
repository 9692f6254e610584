"""Run a model over a task and keep what passes the points: in memory, or in a store on disk.

Only the wanted points are hooked, so attention stays on its fused kernel; the forward has no head and stops after the
last wanted layer; each point is pooled where it arises, so that only the rows that were asked for leave the device.

Axes: N examples, R rows of a place, D their width.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.activations import ActivationSet
from probekit.activations.plan.plan import ExtractionPlan, plan_extraction
from probekit.activations.run.device_copy import Shard, on_host
from probekit.activations.run.forward import Advance, alone, compute_shard, running, shard_rows
from probekit.activations.store.reader import Store, StoreWriter
from probekit.activations.sums.statistics import Statistics, Tally, check_countable, statistics_bytes
from probekit.devices import DTYPES, free_bytes
from probekit.errors import UsageError
from probekit.models.base import LanguageModel
from probekit.options import ExtractArguments, ExtractOptions
from probekit.options.option import keywords
from probekit.points import Place
from probekit.tasks.base import SPLITS, Task
from probekit.versions import versions_of


@keywords(ExtractArguments)
def extract(model: LanguageModel, task: Task, options: ExtractArguments) -> ActivationSet | Store:
    """Activations of `model` on `task`: place (point, layer) -> [N, D], in the task's order.

    Each row is what its text gives when it runs by itself, regardless of batching: no text can see padding.

    Hooks that you attached run too. They see blocks of several texts that share prefixes (`plan.packing`), not one text
    per row: a hook that treats every token alike is right; one that picks rows or positions (`x[:, -1]`) is not.

    Args:
        model: a model from `load_model`.
        task: a task from `load_task`.
        options: one entry for each field.

    Raises:
        UsageError: an unknown point, type, device or position; a layer out of range; a point without a fixed width;
            stats without out, with several positions or with attention; out with a model that has hooks attached, which
            a store cannot record; more than fits in memory.
        DataError: inputs that the model cannot take; NaN or infinity in the activations, or a value too large for
            `dtype`; the message names the first such example of the task, and its first place.
        StorageError: the disk refused, or the files at `out` are damaged.
        ResumeMismatch: the store at `out` has other settings.
    """
    return run_plan(plan_extraction(model, task, options), options.out, options.progress, options.stats)


def run_plan(
    plan: ExtractionPlan, out: str | Path | None = None, progress: bool | None = None, stats: bool = False
) -> ActivationSet | Store:
    """Carry out a plan, as `extract` does; `out`, `progress`, `stats` and errors as there."""
    if out is not None:
        return _to_store(plan, Path(out), progress, stats)
    if stats:
        raise UsageError("stats stand beside a store: name one (out=PATH), or call extract_statistics")
    return _to_memory(plan, progress)


def extract_statistics(
    model: LanguageModel,
    task: Task,
    options: ExtractOptions | None = None,
    *,
    out: str | Path | None = None,
    progress: bool | None = None,
) -> Statistics:
    """Count, sum, Gram matrix and class sums of every place and split, without keeping activations.

    Bit for bit equal to `extract(..., out=PATH, stats=True).statistics`.

    Args:
        model: a model from `load_model`.
        task: a task from `load_task`; all of its label sets are counted.
        options: as for `extract`, without attention, and with one position or "all"; with "all" each token is a row
            with the label of its text. `dtype` is the type that values are rounded to before they are summed. None
            takes the defaults.
        out: None keeps the sums in memory; a path writes them there, or resumes an interrupted run. If a store with the
            same options is there, its shards are read and not computed again.
        progress: show a progress bar on stderr; None shows it on a terminal only.

    Raises:
        As `extract`, and
        UsageError: several positions, or attention; more than fits in memory.
        DataError: labels out of range.
    """
    return run_statistics(plan_extraction(model, task, options or ExtractOptions()), out, progress)


def run_statistics(plan: ExtractionPlan, out: str | Path | None = None, progress: bool | None = None) -> Statistics:
    """Carry out a plan, as `extract_statistics` does; `out`, `progress` and errors as there."""
    _refuse_large_sums(plan)
    if out is not None:
        _refuse_hooks(plan)
    writer = None if out is None else _writer(plan, Path(out))
    tally = Tally(plan, None if out is None else Path(out))
    if not tally.is_complete:
        with running(plan), progress_bar(plan, progress) as advance:
            for _ in _missing(plan, writer, advance, tally, keep=False):
                pass
    return tally.finish(describe_run(plan))


def _to_memory(plan: ExtractionPlan, progress: bool | None) -> ActivationSet:
    _refuse_too_much(plan)
    if _hooked(plan):
        plan = alone(plan)
    layout = plan.layout
    tensors = {
        place: torch.empty(int(layout.counts(place).sum()), width, dtype=DTYPES[plan.dtype], device=plan.device)
        for place, width in zip(plan.places, plan.widths, strict=True)
    }
    with running(plan), progress_bar(plan, progress) as advance:
        for number in range(len(plan.shards)):
            rows = shard_rows(plan, number)
            for place, kept in compute_shard(plan, number, advance).items():
                tensors[place][torch.from_numpy(layout.index(place, rows)).to(plan.device)] = kept
    return ActivationSet(tensors, plan.task, describe_run(plan), layout)


def _to_store(plan: ExtractionPlan, path: Path, progress: bool | None, stats: bool) -> Store:
    _refuse_hooks(plan)
    if stats:
        _refuse_large_sums(plan)
    writer = _writer(plan, path)
    tally = Tally(plan, path) if stats else None
    if writer.is_complete and (tally is None or tally.is_complete):
        store = Store(path)
        writer.mark_newest()
        return store
    with writer, running(plan), progress_bar(plan, progress) as advance:
        for number, rows, tensors in on_host(_missing(plan, writer, advance, tally)):
            writer.write(number, rows, tensors)
    if tally is not None:
        tally.finish(describe_run(plan))
    writer.finish(describe_run(plan))
    return Store(path)


def _writer(plan: ExtractionPlan, path: Path) -> StoreWriter:
    return StoreWriter(
        path,
        plan.identity,
        plan.model.name,
        plan.task,
        layout=plan.layout,
        positions=plan.reading.positions,
        source=plan.model.source,
        meta=describe_run(plan),
    )


def _missing(
    plan: ExtractionPlan, writer: StoreWriter | None, advance: Advance, tally: Tally | None, keep: bool = True
) -> Iterator[Shard]:
    """The shards that do not stand on disk, computed; every shard is counted on the way.

    What stands there is read where it is to be counted. Without `keep`, what is counted already is not computed.
    """
    for number in range(len(plan.shards)):
        rows = shard_rows(plan, number)
        wanted = tally is not None and tally.wants(number)
        standing = writer is not None and (keep or wanted) and writer.has(number, rows)
        values: dict[Place, Tensor] = {}
        if not standing and (keep or wanted):
            values = compute_shard(plan, number, advance)
        else:
            values = writer.read(number) if writer is not None and wanted else {}
            advance(rows, 0)
        if tally is not None:
            tally.add(number, rows, values)
        if not standing and keep:
            yield number, rows, values


def _refuse_too_much(plan: ExtractionPlan) -> None:
    """Before anything is computed, and with the arithmetic."""
    free = free_bytes(plan.device)
    if free is not None and plan.bytes > free:
        places = f"{len(plan.places)} places x {'/'.join(str(width) for width in dict.fromkeys(plan.widths))}"
        raise UsageError(
            f"{plan.bytes / 1e9:,.1f} GB of activations ({plan.texts:,} texts x {places}, {plan.dtype}) do not fit the "
            f"{free / 1e9:,.1f} GB that are free on {plan.device}; write them to a store (out=PATH), or keep fewer "
            "layers or a smaller type"
        )


def _refuse_large_sums(plan: ExtractionPlan) -> None:
    """Before anything is written; beside the sums, the file of one place stands in memory twice."""
    check_countable(plan)
    device = plan.device if plan.device.type == "cuda" else torch.device("cpu")
    free, need = free_bytes(device), statistics_bytes(plan.task, plan.widths)
    files = 0 if device.type == "cuda" else 2 * statistics_bytes(plan.task, [max(plan.widths)])
    if free is not None and need + files > free:
        splits = int(sum((plan.task.splits == split).any() for split in SPLITS))
        widths = "/".join(str(width) for width in dict.fromkeys(plan.widths))
        raise UsageError(
            f"{need / 1e9:,.1f} GB of statistics ({len(plan.places)} places x {splits} splits x {widths} squared, "
            f"float64) and {files / 1e9:,.1f} GB to write them do not fit the {free / 1e9:,.1f} GB that are free on "
            f"{device}; take fewer layers or narrower points"
        )


def _hooked(plan: ExtractionPlan) -> list[str]:
    """The points at which somebody listens already."""
    return [name for name, point in plan.model.points.items() if point.hooked]


def _refuse_hooks(plan: ExtractionPlan) -> None:
    if hooked := _hooked(plan):
        more = f" and {len(hooked) - 1} more" if len(hooked) > 1 else ""
        raise UsageError(
            f"the model is hooked at {hooked[0]}{more}, and a store cannot record hooks; "
            "keep the activations in memory (out=None), or extract outside the hooks"
        )


@contextmanager
def progress_bar(plan: ExtractionPlan, progress: bool | None) -> Iterator[Advance]:
    """A bar on stderr: texts and time left, tokens a second, bytes so far; called with rows and bytes."""
    from tqdm import tqdm

    disable = None if progress is None else not progress
    with tqdm(total=plan.texts, desc="extract", unit=" texts", disable=disable, dynamic_ncols=True) as bar:
        lengths, start = plan.sequences.lengths, time.monotonic()
        tokens = n_bytes = 0

        def advance(rows: np.ndarray, computed_bytes: int) -> None:
            nonlocal tokens, n_bytes
            if computed_bytes:
                tokens, n_bytes = tokens + int(lengths[rows].sum()), n_bytes + computed_bytes
                rate = tokens / (time.monotonic() - start)
                bar.set_postfix_str(f"{rate:,.0f} tokens/s, {n_bytes / 1e6:,.0f} MB", refresh=False)
            bar.update(len(rows))

        yield advance


def describe_run(plan: ExtractionPlan) -> dict[str, Any]:
    """Where the values come from: the `meta` of a set, and most of a store's manifest."""
    packages = ("torch", "numpy", "safetensors", "tokenizers")
    return {
        **plan.identity,
        "model": plan.model.name,
        "task": plan.task.name,
        "task_info": plan.task.info,
        "target": plan.task.target,
        "position": plan.reading.kept,
        "position_fingerprint": plan.position,
        "n_layers": plan.model.n_layers_of(plan.points[0]) or plan.model.n_layers,
        "output": plan.model.output_of(plan.points[0]),
        "seed": plan.task.info.get("seed"),
        "tokens": plan.tokens,
        "nodes": plan.nodes,
        "cut": plan.cut,
        "dropped_blanks": plan.dropped_blanks,
        "skipped_rows": plan.skipped_rows,
        "versions": versions_of(*packages),
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
