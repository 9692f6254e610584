"""Carry out an import from vLLM: read every file once for its checksum, then write the store in blocks of rows.

Axes: N examples, T tokens of one of them, S layers, D width of the model, R rows that are kept.
"""

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.digest import FORMAT_VERSION
from probekit.activations.imports.array_files import FileArray, scan
from probekit.activations.imports.vllm.plan import RequestsPlan
from probekit.activations.imports.vllm.requests import STATES, VllmRequest, read_states
from probekit.activations.plan.reading.read_positions import ReadTokens
from probekit.activations.store.begin import NewStore, begin_store
from probekit.activations.store.reader import Store
from probekit.activations.store.writer import StoreWriter
from probekit.errors import DataError
from probekit.files.remote.path import AnyPath
from probekit.files.run import folder_name
from probekit.machine.devices import DTYPES
from probekit.machine.progress import progress_bar
from probekit.machine.versions import versions_of
from probekit.options.check import check_any_path
from probekit.points import Place


def run_requests(
    plan: RequestsPlan,
    out: str | AnyPath | None = None,
    progress: bool | None = None,
    on_begin: Callable[[AnyPath], object] | None = None,
) -> Store:
    """Carry out a plan; arguments and errors as in `run_import`."""
    files = {request.file: request for request in plan.requests}
    total = sum(request.file.stat().st_size for request in files.values()) + int(plan.n_bytes.sum())
    with progress_bar("import", "B", total, progress) as bar:
        identity = _identity(plan, _checksum(list(files.values()), bar.advance))
        path = _default_path(plan, identity) if out is None else check_any_path("out", out)
        if on_begin:
            on_begin(path)
        return _write(plan, identity, path, bar.advance)


def _checksum(requests: list[VllmRequest], advance: Callable[[int], object]) -> str:
    """A checksum of the names and contents of all files; every value is checked on the way."""
    digest = hashlib.sha256()
    for request in requests:

        def check(array: FileArray, values: Tensor, request: VllmRequest = request) -> None:
            if array.key == STATES and not all(bool(end.isfinite()) for end in values.aminmax()):
                raise DataError(f"{request.states.where} holds NaN or infinity; run vLLM again on this text")

        found = scan(request.file, request.arrays, check, advance)
        digest.update(f"{request.file.name!a} {found}\n".encode())
    return digest.hexdigest()


def _identity(plan: RequestsPlan, checksum: str) -> dict[str, Any]:
    """Everything that decides the bits of the result, JSON-able."""
    reading = plan.reading
    return {
        "version": FORMAT_VERSION,
        "kind": "import",
        "files": "vllm",
        "source_fingerprint": checksum,
        "requests": len({request.file for request in plan.requests}),
        "stack_axis": plan.stack_axis,
        "task_fingerprint": plan.task.fingerprint(),
        "tokenizer_fingerprint": getattr(plan.model.tokenizer, "fingerprint", None),
        "bos": plan.bos,
        "model_name": plan.model.name,
        "task_name": plan.task.name,
        "n_layers": plan.model.n_layers,
        "rows": len(plan.task),
        "points": _points(plan),
        "places": [list(place) for place in plan.places],
        "widths": [plan.width] * len(plan.places),
        "position": _plain(list(map(str, reading.reading.positions))),
        "dtype": plan.dtype,
        "shards": len(plan.shards),
    }


def _points(plan: RequestsPlan) -> list[str]:
    """Short names, the one that is probed by default first; the last output ends the curve of the inputs."""
    return ["resid_pre"] if any(point == "resid_pre" for point, _ in plan.places) else ["resid_post"]


def _plain(names: list[str]) -> Any:
    return names[0] if len(names) == 1 else names


def _default_path(plan: RequestsPlan, identity: dict[str, Any]) -> Path:
    return Path("runs", folder_name([plan.model.name, plan.task.name, "vllm", "import"], identity))


def _write(plan: RequestsPlan, identity: dict[str, Any], path: AnyPath, advance: Callable[[int], object]) -> Store:
    reading = plan.reading
    new = NewStore(
        identity, plan.model.name, plan.task, reading.layout, reading.reading.positions, None, _meta(plan, identity)
    )
    writer = StoreWriter(path, begin_store(path, new))
    if writer.is_complete:
        store = Store(path)
        writer.mark_newest()
        return store
    n_bytes = plan.n_bytes
    with writer:
        for number, rows in enumerate(plan.shards):
            if not writer.has(number, rows):
                writer.write(number, rows, _shard(plan, rows))
            advance(int(n_bytes[rows].sum()))
    writer.finish(_meta(plan, identity))
    return Store(path)


def _shard(plan: RequestsPlan, rows: np.ndarray) -> dict[Place, Tensor]:
    """The rows of some examples at each place, [R, D]."""
    parts = [_rows_of(plan, int(row)) for row in rows]
    joined = torch.cat(parts, 1).to(DTYPES[plan.dtype])
    if not joined.isfinite().all():
        raise DataError(
            f"values of {str(plan.source)!a} are larger than {plan.dtype} holds; choose a wider type (--store-dtype)"
        )
    return {place: x.contiguous() for place, x in zip(plan.places, joined, strict=True)}


def _rows_of(plan: RequestsPlan, row: int) -> Tensor:
    """The rows of one example at all layers of its file, [S, R, D]."""
    x_STD = read_states(plan.requests[row], plan.stack_axis)
    kept = [_read(x_STD, one, row, plan) for one in plan.reading.reading.reads]
    return torch.cat(kept, 1)


def _read(x_STD: Tensor, read: ReadTokens, row: int, plan: RequestsPlan) -> Tensor:
    """The tokens of one position, or their mean."""
    layout = plan.reading.layout
    if read.index is None:
        own = x_STD[:, layout.n_bos : x_STD.shape[1] - layout.n_end]
    else:
        where, _ = read.of_rows(np.array([row]))
        own = x_STD[:, torch.from_numpy(read.index[where])]
    if not read.is_mean:
        return own
    return own.to(torch.promote_types(own.dtype, torch.float32)).mean(1, keepdim=True)


def _meta(plan: RequestsPlan, identity: dict[str, Any]) -> dict[str, Any]:
    """Provenance of the values: most of the store's manifest."""
    return {
        **identity,
        "model": plan.model.name,
        "task": plan.task.name,
        "task_info": plan.task.info,
        "target": plan.task.target,
        "seed": plan.task.info.get("seed"),
        "source": str(plan.source),
        "versions": versions_of("torch", "numpy", "safetensors", "tokenizers"),
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
