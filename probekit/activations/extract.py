"""Run a model over a task and keep what passes the points: in memory, or in a store on disk.

Only the wanted points are hooked, so attention stays on its fused kernel; the forward has no head and stops after the
last wanted layer; each point is pooled where it arises, so that N x D leaves the device and never N x L x D.

Axes: B rows of a batch, L query position, D width of a place, N examples.
"""

import platform
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import probekit
from probekit.activations.batching import pad_right
from probekit.activations.planning import ExtractionPlan, plan
from probekit.activations.sequences import OnLong, Position
from probekit.activations.sets import DTYPES, ActivationSet, Place, place_name
from probekit.activations.store import Store, StoreWriter
from probekit.errors import DataError, UsageError
from probekit.hooks import HookPoint
from probekit.models.base import LanguageModel
from probekit.tasks.base import Task


def extract(
    model: LanguageModel,
    task: Task,
    points: str | Iterable[str] = "resid_pre",
    layers: str | int | Iterable[int] = "all",
    position: Position = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "float32",
    batch_tokens: int = 4096,
    out: str | Path | None = None,
    bos: bool = False,
    on_long: OnLong = "cut",
    progress: bool | None = None,
) -> ActivationSet | Store:
    """Activations of `model` on `task`: place (point, layer) -> [N, D], in the task's order.

    Args:
        model: what `load_model` returned.
        task: what `load_task` returned.
        points: short names, such as "resid_pre" or ["resid_pre", "attn_out"]; heads are kept as [N, H * K].
        layers: "all", 3, [0, 4], "0,4,8" or "2-6". For resid_pre and resid_mid, "all" adds the output of the last
            block, ("resid_post", n_layers - 1), as the last place of the curve.
        position: the token that is read: "last", "first", "mean", an index for all texts (negative: from the end), or
            one for each [N]; None is the task's own. A BOS is not counted.
        device: where the model runs; "auto" is where it is. It is put back afterwards.
        dtype: the type that is kept: float32, float16 or bfloat16. The model computes in its own.
        batch_tokens: tokens computed at once, padding included.
        out: None keeps the tensors in memory, on the device; a path makes a store there, or goes on with one that an
            earlier run with the same arguments left unfinished.
        bos: put the model's BOS before each text.
        on_long: texts longer than the context are "cut" at the right and counted (`meta["cut"]`), or are an "error".
        progress: a bar on stderr; None shows it on a terminal only.

    Raises:
        UsageError: an unknown point, type, device or position; a layer out of range; a point without a fixed width;
            a store of a model that is hooked, for it could not say so.
        DataError: inputs that the model cannot read; NaN or infinity in the activations, or a value too large for
            `dtype`; the message names the first such example of the task, and its first place.
        StorageError: the disk refused, or what stands at `out` is damaged.
        ResumeMismatch: a store with other settings stands at `out`.
    """
    return run_plan(
        plan(model, task, points, layers, position, device, dtype, batch_tokens, bos, on_long), out, progress
    )


def run_plan(
    plan: ExtractionPlan, out: str | Path | None = None, progress: bool | None = None
) -> ActivationSet | Store:
    """Carry out a plan, as `extract` does; `out`, `progress` and errors as there."""
    return _to_memory(plan, progress) if out is None else _to_store(plan, Path(out), progress)


def _to_memory(plan: ExtractionPlan, progress: bool | None) -> ActivationSet:
    tensors = {
        place: torch.empty(plan.texts, width, dtype=DTYPES[plan.dtype], device=plan.device)
        for place, width in zip(plan.places, plan.widths, strict=True)
    }
    with _on_device(plan), _bar(plan, progress) as advance:
        for rows in plan.batches:
            index = torch.from_numpy(rows).to(plan.device)
            for place, kept in run_batch(plan, rows).items():
                tensors[place][index] = kept
            advance(len(rows))
    return ActivationSet(tensors, plan.task, describe_run(plan))


def _to_store(plan: ExtractionPlan, path: Path, progress: bool | None) -> Store:
    _refuse_hooks(plan)
    writer = StoreWriter(path, plan.identity, plan.model.name, plan.task)
    if writer.is_complete:
        store = Store(path)
        writer.mark_newest()
        return store
    with _on_device(plan), _bar(plan, progress) as advance:
        for number, batches in enumerate(plan.shards):
            rows = np.concatenate(batches)
            if writer.has(number, rows):
                advance(len(rows))
            else:
                writer.write(number, rows, _shard(plan, batches, advance))
    writer.finish(describe_run(plan))
    return Store(path)


def _refuse_hooks(plan: ExtractionPlan) -> None:
    hooked = [name for name, point in plan.model.points.items() if point.hooked]
    if hooked:
        more = f" and {len(hooked) - 1} more" if len(hooked) > 1 else ""
        raise UsageError(
            f"the model is hooked at {hooked[0]}{more}, and a store cannot record hooks; "
            "keep the activations in memory (out=None), or extract outside the hooks"
        )


def _shard(plan: ExtractionPlan, batches: list[np.ndarray], advance: Callable[[int], object]) -> dict[Place, Tensor]:
    parts = []
    for rows in batches:
        parts.append({place: x.cpu() for place, x in run_batch(plan, rows).items()})
        advance(len(rows))
    return {place: torch.cat([part[place] for part in parts]) for place in plan.places}


@torch.inference_mode()
def run_batch(plan: ExtractionPlan, rows: np.ndarray) -> dict[Place, Tensor]:
    """Every place of the plan for these rows: [B, D], of the type that is kept.

    Raises:
        DataError: NaN, infinity, or a value that the kept type cannot hold.
    """
    pooled = _pooled(plan, rows)
    kept = {place: x.to(DTYPES[plan.dtype]) for place, x in pooled.items()}
    if not torch.stack([x.isfinite().all() for x in kept.values()]).all():
        raise _not_finite(plan, rows, pooled)
    return kept


def _pooled(plan: ExtractionPlan, rows: np.ndarray) -> dict[Place, Tensor]:
    """Every place of the plan for these rows: [B, D], of the type in which they were computed."""
    pool = _pool(plan, rows)
    pooled: dict[str, Tensor] = {}

    def keep(x: Tensor, hook: HookPoint) -> None:
        pooled[hook.name] = pool(x)

    tokens = pad_right(plan.sequences.tokens, rows).to(plan.device)
    hooks = [(plan.names, keep)]
    plan.model.run_with_hooks(tokens, fwd_hooks=hooks, stop_at_layer=plan.stop_at_layer, return_logits=False)
    assert pooled.keys() == set(plan.names), f"silent: {set(plan.names) - pooled.keys()}"
    return {place: pooled[name] for place, name in zip(plan.places, plan.names, strict=True)}


def _pool(plan: ExtractionPlan, rows: np.ndarray) -> Callable[[Tensor], Tensor]:
    """What takes [B, L, ...] to [B, D] for these rows."""
    if plan.reads is not None:
        batch = torch.arange(len(rows), device=plan.device)
        index = torch.from_numpy(plan.reads[rows]).to(plan.device)
        return lambda x: x[batch, index].flatten(1)
    lengths = torch.from_numpy(plan.sequences.lengths[rows]).to(plan.device)
    place = torch.arange(int(lengths.max()), device=plan.device)
    skipped_BL1 = ((place < plan.sequences.n_bos) | (place >= lengths[:, None]))[..., None]
    count_B1 = (lengths - plan.sequences.n_bos)[:, None]

    def mean(x: Tensor) -> Tensor:
        x = x.flatten(2).to(torch.promote_types(x.dtype, torch.float32))
        return x.masked_fill(skipped_BL1, 0).sum(1) / count_B1

    return mean


def _not_finite(plan: ExtractionPlan, rows: np.ndarray, pooled: dict[Place, Tensor]) -> DataError:
    """The error for the first row of the task that cannot be kept, where some of `rows` cannot.

    Batches are cut by length, so rows that come sooner may be in batches that did not run yet: those run now, in the
    order of the task, until one is bad.
    """
    first = _first_bad(plan, rows, pooled)
    assert first is not None, "all finite"
    batches = plan.batches
    start = next((i for i, batch in enumerate(batches) if np.array_equal(batch, rows)), 0)
    later = np.sort(np.concatenate(batches[start:]))
    sooner = later[later < first]
    size = max(1, plan.batch_tokens // int(plan.sequences.lengths.max()))
    for i in range(0, len(sooner), size):
        some = sooner[i : i + size]
        found = _pooled(plan, some)
        bad = _first_bad(plan, some, found)
        if bad is not None:
            return _why(plan, bad, {place: x[int((some == bad).argmax())] for place, x in found.items()})
    return _why(plan, first, {place: x[int((rows == first).argmax())] for place, x in pooled.items()})


def _first_bad(plan: ExtractionPlan, rows: np.ndarray, pooled: dict[Place, Tensor]) -> int | None:
    """The first of these rows, in the order of the task, with a value that cannot be kept."""
    bad = torch.stack([~x.to(DTYPES[plan.dtype]).isfinite().all(1) for x in pooled.values()]).any(0).cpu().numpy()
    return int(rows[bad].min()) if bad.any() else None


def _why(plan: ExtractionPlan, row: int, values: dict[Place, Tensor]) -> DataError:
    """What is wrong with a row, at the first place where something is; `values` are [D]."""
    dtype = DTYPES[plan.dtype]
    place, x = next((place, x) for place, x in values.items() if not x.to(dtype).isfinite().all())
    name, example = place_name(place), plan.task.ids[row]
    if x.isfinite().all():
        return DataError(
            f"{name} of example {example!a} is {x.abs().max():.3g}, more than {plan.dtype} holds "
            f"({torch.finfo(dtype).max:.3g}); keep float32 or bfloat16"
        )
    what = "NaN" if x.isnan().any() else "infinity"
    return DataError(
        f"{what} in the activations at {name}, first in example {example!a}; "
        "check the model's weights, or compute in float32"
    )


@contextmanager
def _on_device(plan: ExtractionPlan) -> Iterator[None]:
    """The model on the plan's device, and back where it was afterwards."""
    home = plan.model.device
    plan.model.to(plan.device)
    try:
        yield
    finally:
        plan.model.to(home)


@contextmanager
def _bar(plan: ExtractionPlan, progress: bool | None) -> Iterator[Callable[[int], object]]:
    from tqdm import tqdm

    disable = None if progress is None else not progress
    with tqdm(total=plan.texts, desc="extract", unit=" texts", disable=disable, dynamic_ncols=True) as bar:
        yield bar.update


def describe_run(plan: ExtractionPlan) -> dict[str, Any]:
    """Where the values come from: the `meta` of a set, and most of a store's manifest."""
    packages = ("torch", "numpy", "safetensors", "tokenizers")
    return {
        **plan.identity,
        "model": plan.model.name,
        "task": plan.task.name,
        "task_info": plan.task.info,
        "target": plan.task.target,
        "position": plan.position_name if isinstance(plan.position, np.ndarray) else plan.position,
        "position_fingerprint": plan.identity["position"] if isinstance(plan.position, np.ndarray) else None,
        "n_layers": plan.model.n_layers,
        "seed": plan.task.info.get("seed"),
        "tokens": plan.tokens,
        "padded_tokens": plan.padded_tokens,
        "cut": plan.cut,
        "dropped_blanks": plan.dropped_blanks,
        "skipped_rows": plan.skipped_rows,
        "versions": {
            "probekit": probekit.__version__,
            "python": platform.python_version(),
            **{name: version(name) for name in packages},
        },
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
