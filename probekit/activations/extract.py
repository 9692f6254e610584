"""Run a model over a task and keep what passes the points: in memory, or in a store on disk.

Only the wanted points are hooked, so attention stays on its fused kernel; the forward has no head and stops after the
last wanted layer; each point is pooled where it arises, so that only the rows that were asked for leave the device.

Axes: N examples, R rows of a place, D their width.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.activations import DTYPES, ActivationSet
from probekit.activations.plan.plan import ExtractionPlan, plan_extraction
from probekit.activations.plan.read_positions import Position
from probekit.activations.plan.token_ids import OnLong
from probekit.activations.run.device_copy import Shard, on_host
from probekit.activations.run.forward import Advance, alone, compute_shard, running, shard_rows
from probekit.activations.store.reader import Store, StoreWriter
from probekit.activations.sums.statistics import Statistics, Tally, check_countable, statistics_bytes
from probekit.errors import UsageError
from probekit.models.base import LanguageModel
from probekit.points import Place
from probekit.tasks.base import SPLITS, Task
from probekit.versions import versions_of


def extract(
    model: LanguageModel,
    task: Task,
    points: str | Iterable[str] = "resid_pre",
    layers: str | int | Iterable[int] = "all",
    position: Position = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "float32",
    batch_tokens: int | None = None,
    out: str | Path | None = None,
    bos: bool | None = None,
    on_long: OnLong = "cut",
    progress: bool | None = None,
    block_nodes: int | None = None,
    share: bool = True,
    stats: bool = False,
) -> ActivationSet | Store:
    """Activations of `model` on `task`: place (point, layer) -> [N, D], in the task's order.

    Each row is what the text alone would give, whatever runs beside it: no batch holds padding that a text could see.

    Hooks of the caller run too. They see blocks of several texts that share prefixes (`batching.Batch`), not a text a
    row: one that does the same at every token is right, one that picks rows or positions (`x[:, -1]`) is not.

    Args:
        model: what `load_model` returned.
        task: what `load_task` returned.
        points: short names, such as "resid_pre" or ["resid_pre", "attn_out"]; heads are kept as [N, H * K].
        layers: "all", 3, [0, 4], "0,4,8" or "2-6". For resid_pre and resid_mid, "all" adds the output of the last
            block, ("resid_post", n_layers - 1), as the last place of the curve.
        position: the token that is read: "last", "first", "mean", an index for all texts (negative: from the end), an
            int array with one for each [N], or "all" of them; a list of several (without "all", one array at most);
            None is the task's own. A BOS is not counted. Attention is kept whole: every pair of tokens, BOS included.
        device: where the model runs; "auto" is where it is. It is put back afterwards.
        dtype: the type that is kept: float32, float16 or bfloat16. The model computes in its own.
        batch_tokens: nodes computed at once; None is 2,048 on a CPU, 16,384 elsewhere.
        out: None keeps the tensors in memory, on the device; a path makes a store there, or goes on with one that an
            earlier run with the same arguments left unfinished.
        bos: put each text into its context: the model's BOS before it, BERT's [CLS] before and [SEP] behind it, or
            behind it the </s> of Marian's encoder. None: no BOS; the others yes, for their models know no text without.
        on_long: texts longer than the context are "cut" at the right and counted (`meta["cut"]`), or are an "error".
        progress: a bar on stderr; None shows it on a terminal only.
        block_nodes: nodes of a block, within which prefixes are shared; None is what costs least for these texts.
        share: whether a prefix that texts have in common is computed once.
        stats: write the sums that ridge, LDA and mean differences need beside the activations, as `Store.statistics`;
            into a store that is complete, too. Without activations, `extract_statistics` gives the same.

    Raises:
        UsageError: an unknown point, type, device or position; a layer out of range; a point without a fixed width;
            stats without out, of several positions or of attention; a store of a model that is hooked, for it could
            not say so; more than fits the memory.
        DataError: inputs that the model cannot read; NaN or infinity in the activations, or a value too large for
            `dtype`; the message names the first such example of the task, and its first place.
        StorageError: the disk refused, or what stands at `out` is damaged.
        ResumeMismatch: a store with other settings stands at `out`.
    """
    return run_plan(
        plan_extraction(
            model, task, points, layers, position, device, dtype, batch_tokens, bos, on_long, block_nodes, share
        ),
        out,
        progress,
        stats,
    )


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
    points: str | Iterable[str] = "resid_pre",
    layers: str | int | Iterable[int] = "all",
    position: Position = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "float32",
    batch_tokens: int | None = None,
    out: str | Path | None = None,
    bos: bool | None = None,
    on_long: OnLong = "cut",
    progress: bool | None = None,
    block_nodes: int | None = None,
    share: bool = True,
) -> Statistics:
    """Count, sum, Gram matrix and class sums of every place and split, and no activations.

    Bit for bit what `extract(..., out=PATH, stats=True).statistics` are.

    Args:
        model: as for `extract`, as are all others but these.
        task: every label set of it is counted.
        points: as for `extract`; not attention.
        layers: as for `extract`.
        position: one, or "all", where each token is a row with the label of its text.
        device: as for `extract`; sums are kept there if it is a GPU, in float64.
        dtype: the type that values are rounded to before they are counted, as they would be kept.
        batch_tokens: as for `extract`.
        out: None keeps them in memory; a path writes them there, and goes on with what an interrupted run left. A store
            of the same arguments may stand there: what it holds is read and not computed.
        bos: as for `extract`.
        on_long: as for `extract`.
        progress: as for `extract`.
        block_nodes: as for `extract`.
        share: as for `extract`.

    Raises:
        As `extract`, and
        UsageError: several positions, or attention; more than fits the memory.
        DataError: labels out of range.
    """
    return run_statistics(
        plan_extraction(
            model, task, points, layers, position, device, dtype, batch_tokens, bos, on_long, block_nodes, share
        ),
        out,
        progress,
    )


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


def free_bytes(device: torch.device) -> int | None:
    """Memory of a device that is free now; None where nobody says."""
    if device.type == "cuda":  # what torch holds and nobody uses is free, too
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held
    if device.type == "cpu" and (info := Path("/proc/meminfo")).exists():
        kilobytes = next(line.split()[1] for line in info.read_text().splitlines() if line.startswith("MemAvailable"))
        return 1024 * int(kilobytes)
    return None


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
