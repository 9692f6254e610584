"""Hidden states that vLLM extracted, a safetensors file for each request, as the source of an import.

Each file holds `token_ids` [T] and `hidden_states`. Layer id i is the input of block i, and the number of blocks the
output of the last one before the final norm. The files do not say which layers they hold, nor which text a request was
of: layers are an option, in ascending order, as vLLM's models collect them in the loop over their blocks; texts are
found by their tokens.
https://docs.vllm.ai/en/latest/features/speculative_decoding/extract_hidden_states/

Axes: N examples, T tokens of one of them, S layers, D width of the model, R rows that are kept.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.imports.array_files import (
    FileArray,
    arrays_in,
    check_unchanged,
    file_state,
    find_array_files,
    read_rows,
    scan,
)
from probekit.activations.imports.plan import STORED_AS, ImportPlan
from probekit.activations.imports.verify import plan_check
from probekit.activations.layout import row_bytes
from probekit.activations.plan.build import SHARD_BYTES, plan_extraction
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.plan.reading.read_positions import ReadTokens
from probekit.errors import DataError, UsageError
from probekit.machine.dtypes import dtype_name
from probekit.models.base import LanguageModel
from probekit.models.load import check_model_name, outline
from probekit.options import ExtractOptions, ImportOptions
from probekit.options.check import check_path, is_whole
from probekit.points import Place
from probekit.tasks.base import Task
from probekit.tasks.load import load_task
from probekit.text import counted, listed

STATES, TOKENS = "hidden_states", "token_ids"
NO_CACHE = "run vLLM again with enable_prefix_caching=False"
OF_ARRAYS = ("labels", "point", "n_layers")  # options that say what a file of vLLM says
_OF_TASK = ("text_column", "label_column", "group_column", "columns", "header", "regression", "max_classes", "seed")
_AXES = {None: "[tokens, width]", 0: "[layers, tokens, width]", 1: "[tokens, layers, width]"}


@dataclass(frozen=True, eq=False)
class VllmRequest:
    """One file.

    Attributes:
        file: where it is.
        arrays: all arrays in it, in file order.
        states: its hidden states, as the header describes them.
        tokens: its token ids, int64 [T].
        state: a value that changes when the file is written again.
    """

    file: Path
    arrays: list[FileArray]
    states: FileArray
    tokens: np.ndarray
    state: tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class VllmFiles:
    """The requests of vLLM as the source of an import.

    Attributes:
        requests: the file of each example, [N]; equal texts may share one.
        stack_axis: the axis of the layers; None where there is none.
        reading: how `extract` would read the same texts: tokens, positions and rows.
        places: of the layers in the files, in their order, which is ascending.
        width: D.
        bos: whether vLLM put a BOS before the texts, which their tokens show.
    """

    requests: list[VllmRequest] = field(repr=False)
    stack_axis: int | None
    reading: ExtractionPlan = field(repr=False)
    places: list[Place]
    width: int
    bos: bool
    format = "vllm"

    @property
    def files(self) -> list[VllmRequest]:
        """Each file once."""
        return list({request.file: request for request in self.requests}.values())

    @property
    def n_bytes(self) -> int:
        """Bytes that are read to check the files."""
        return sum(request.file.stat().st_size for request in self.files)

    def checked(self, advance: Callable[[int], object]) -> dict[str, Any]:
        """A checksum of all files and how they are read, after every value was checked; errors as in `Source`."""
        digest = hashlib.sha256()
        for request in self.files:

            def check(array: FileArray, values: Tensor, request: VllmRequest = request) -> None:
                if array.key == STATES and not all(bool(end.isfinite()) for end in values.aminmax()):
                    raise DataError(f"{request.states.where} holds NaN or infinity; run vLLM again on this text")

            found = scan(request.file, request.arrays, check, advance)
            digest.update(f"{request.file.name!a} {found}\n".encode())
        return {
            "files": "vllm",
            "source_fingerprint": digest.hexdigest(),
            "requests": len(self.files),
            "stack_axis": self.stack_axis,
            "tokenizer_fingerprint": getattr(self.reading.model.tokenizer, "fingerprint", None),
            "bos": self.bos,
        }

    def rows(self, shard: np.ndarray) -> dict[Place, Tensor]:
        """The rows of these examples at each place, [R, D]; errors as in `Source`."""
        parts = []
        for row in shard.tolist():
            x_STD = _read_states(self.requests[row], self.stack_axis)
            parts += [self._kept(x_STD, read, row) for read in self.reading.reading.reads]
        return dict(zip(self.places, torch.cat(parts, 1), strict=True))

    def type_of(self, place: Place) -> str:
        """The coarsest type of the files."""
        order = ("bfloat16", "float16", "float32", "float64")
        return min((request.states.type_name for request in self.files), key=order.index)

    def _kept(self, x_STD: Tensor, read: ReadTokens, row: int) -> Tensor:
        """The tokens of one position, or their mean."""
        layout = self.reading.layout
        if read.index is None:
            own = x_STD[:, layout.n_bos : x_STD.shape[1] - layout.n_end]
        else:
            where, _ = read.of_rows(np.array([row]))
            own = x_STD[:, torch.from_numpy(read.index[where])]
        if not read.is_mean:
            return own
        return own.to(torch.promote_types(own.dtype, torch.float32)).mean(1, keepdim=True)

    def as_dict(self) -> dict[str, Any]:
        """How the files are read, JSON-able."""
        about = {"format": "vllm", "width": self.width, "positions": self.reading.reading.positions, "bos": self.bos}
        return {**about, "stack_axis": self.stack_axis, "files": len(self.files)}

    def lines(self, left_aside: list[str], in_full: bool) -> Iterator[tuple[str, str]]:
        """How many files there are, how they are read, and how many are ignored."""
        bos = " after a BOS" if self.bos else ""
        yield "files", f"{len(self.files):,}, {_AXES[self.stack_axis]}; their tokens are those of the texts{bos}"
        if left_aside:
            yield "ignored", f"{counted(len(left_aside), 'file')} of no text: {listed(left_aside, most=4)}"


def plan_requests(source: str | Path, options: ImportOptions) -> ImportPlan:
    """The plan of `import_activations(source, format="vllm", ...)`; states are not read.

    Raises:
        UsageError: model or dataset is missing; an option that has no use; axes that no shape shows.
        DataError: a file that cannot be used, states of a part of the tokens, or a text without a file.
    """
    source, ids = check_path("source", source).expanduser(), _layer_ids(options)
    check_model_name(str(options.model))
    files, _ = find_array_files(source, None)
    requests = [_request(file) for file in files if file.suffix == ".safetensors"]
    task = load_task(str(options.dataset), **{name: getattr(options, name) for name in _OF_TASK})
    model = outline(str(options.model), tokenizer=True)
    places = _places(range(model.n_layers + 1) if ids is None else ids, model.n_layers, options)
    width = model.cfg.d_model
    axis = _stack_axis(requests, len(places), width, options.stack_axis)
    reading, bos = _reading(model, task, options, requests)
    found, left_aside = _match(reading, requests)
    types = {STORED_AS.get(one.states.type_name, "") for one in found}
    if "" in types:
        raise DataError(f"{found[0].states.where} is {found[0].states.type_name}, expected numbers in floating point")
    dtype = dtype_name(options.dtype) if options.dtype is not None else types.pop() if len(types) == 1 else "float32"
    n_bytes = row_bytes(reading.layout, places, [width] * len(places), dtype)
    number = (np.cumsum(n_bytes) - n_bytes) // SHARD_BYTES
    return ImportPlan(
        path=source,
        source=VllmFiles(found, axis, reading, places, width, bos),
        task=reading.task,
        model=model.name,
        # the one that is probed by default; the last output ends the curve of the inputs
        points=["resid_pre"] if any(point == "resid_pre" for point, _ in places) else ["resid_post"],
        places=places,
        widths=[width] * len(places),
        n_layers=model.n_layers,
        positions=reading.reading.positions,
        layout=reading.layout,
        dtype=dtype,
        shards=np.split(np.arange(len(number)), np.flatnonzero(np.diff(number)) + 1),
        left_aside=left_aside,
        check=plan_check(options, reading.task, model, bos),
    )


def _layer_ids(options: ImportOptions) -> list[int] | None:
    """The layers in the files, None for all, checked with the other options before anything is loaded."""
    for name in OF_ARRAYS:
        if getattr(options, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} is for arrays; leave it out with --format vllm")
    for name, what in (("model", "the model that vLLM ran"), ("dataset", "the texts that it was given")):
        if getattr(options, name) is None:
            raise UsageError(f"--format vllm needs --{name}, {what}")
    if options.layers is None:
        return None
    ids = list(options.layers)
    if not ids or not all(map(is_whole, ids)) or ids != sorted(set(ids)):
        raise UsageError(
            f"--layers must be ascending numbers, each once; got {listed(ids, most=8) or 'none'}: vLLM's models write "
            "the layers of eagle_aux_hidden_state_layer_ids in ascending order, whatever the order in that list"
        )
    return ids


def _places(ids: Sequence[int], n_layers: int, options: ImportOptions) -> list[Place]:
    """Layer id i is the input of block i; the number of blocks is the output of the last one."""
    if wrong := [i for i in ids if not 0 <= i <= n_layers]:
        raise UsageError(
            f"--layers {wrong[0]} is out of range: {options.model!a:.60} has {counted(n_layers, 'block')}, and vLLM "
            f"counts their inputs as 0..{n_layers - 1} and the last output as {n_layers}"
        )
    return [Place("resid_pre", i) if i < n_layers else Place("resid_post", n_layers - 1) for i in ids]


def _reading(
    model: LanguageModel, task: Task, options: ImportOptions, requests: list[VllmRequest]
) -> tuple[ExtractionPlan, bool]:
    """How the texts are read, with a BOS if most of the requests begin with one and their texts do not."""
    how = ExtractOptions(points="resid_pre", layers=[0], position=options.position, on_long="error", device="cpu")
    plain = plan_extraction(model, task, replace(how, bos=False))
    bos_id = None if model.tokenizer is None else model.tokenizer.bos_token_id
    if bos_id is None:
        return plain, False
    known = {_key(one.tokens) for one in requests}
    without = _n_found(plain, known)
    if without == len(plain.task):
        return plain, False
    with_bos = plan_extraction(model, task, replace(how, bos=True))
    return (with_bos, True) if _n_found(with_bos, known) > without else (plain, False)


def _key(tokens: np.ndarray) -> bytes:
    return np.ascontiguousarray(tokens, dtype=np.int64).tobytes()


def _n_found(plan: ExtractionPlan, known: set[bytes]) -> int:
    return sum(_key(plan.sequences[i]) in known for i in range(len(plan.task)))


def _match(plan: ExtractionPlan, requests: list[VllmRequest]) -> tuple[list[VllmRequest], list[str]]:
    """The request of each example, by its tokens, and the names of files that are of no example.

    Equal texts take the files with their tokens in turn; the last of these serves those that are left.
    """
    by_tokens: dict[bytes, list[VllmRequest]] = defaultdict(list)
    for request in requests:
        by_tokens[_key(request.tokens)].append(request)
    keys = [_key(plan.sequences[i]) for i in range(len(plan.task))]
    wanted = set(keys)
    if missing := [i for i, key in enumerate(keys) if key not in by_tokens]:
        first = plan.sequences[missing[0]].tolist()
        names = listed([ascii(str(plan.task.ids[i]))[:60] for i in missing], most=4)
        said = f"{len(first):,} tokens, {listed(first, most=6)}"
        other = next((one for one in requests if _key(one.tokens) not in wanted), None)
        if other is None:
            said += "; run vLLM on it too"
        else:
            said += (
                f"; {other.file.name!a}, which is of no text, has {len(other.tokens):,}, "
                f"{listed(other.tokens.tolist(), most=6)}: give vLLM the same texts, without a chat template"
            )
        raise DataError(
            f"no file has the tokens of {counted(len(missing), 'text')} of {len(keys):,}: {names}; the first has {said}"
        )
    found, taken = [], defaultdict(int)
    for key in keys:
        files = by_tokens[key]
        found.append(files[min(taken[key], len(files) - 1)])
        taken[key] += 1
    return found, [one.file.name for one in requests if _key(one.tokens) not in wanted]


def _request(file: Path) -> VllmRequest:
    """One file; its header and its tokens are read."""
    state, found = file_state(file), arrays_in(file)
    arrays = {array.key: array for array in found}
    if STATES not in arrays or TOKENS not in arrays:
        held = listed([ascii(name) for name in arrays]) or "nothing"
        raise DataError(f"{str(file)!a} holds {held}, expected {STATES} and {TOKENS} as vLLM writes them")
    tokens = arrays[TOKENS]
    if len(tokens.shape) != 1 or tokens.dtype not in ("<i8", "<i4") or not tokens.shape[0]:
        raise DataError(
            f"{tokens.where} has the shape {list(tokens.shape)} of {tokens.type_name}, expected token ids [T]"
        )
    ids = read_rows(tokens, 0, 0, tokens.shape[0]).numpy().astype(np.int64)
    return VllmRequest(file, found, arrays[STATES], ids, state)


def _stack_axis(requests: Sequence[VllmRequest], n_layers: int, width: int, given: int | None) -> int | None:
    """The axis of the layers in all files; None where there is one layer and no axis for it.

    The shape of each file allows one order of the axes, or both where it has as many tokens as layers. One order must
    be left for all of them, or be `given`.
    """
    if not requests:
        raise DataError("there is no file of a request; give the folder that vLLM wrote (shared_storage_path)")
    allowed: dict[int | None, VllmRequest] = {}
    common: set[int | None] = {None, 0, 1}
    for request in requests:
        orders = _orders(request, n_layers, width)
        if not orders & common:
            other = next(one for axis, one in allowed.items() if axis not in orders)
            raise DataError(
                f"{request.states.where} has the shape {list(request.states.shape)} and {other.states.where} "
                f"{list(other.states.shape)}: their axes are in different orders; import them one by one"
            )
        allowed |= dict.fromkeys(orders, request)
        common &= orders
    if given is not None and given not in common:
        raise UsageError(f"--stack-axis {given} does not fit {requests[0].states.where}; leave it out")
    if given is None and len(common) > 1:
        raise UsageError(
            f"every file has {counted(n_layers, 'token')} and as many layers, so its shape does not show which axis is "
            "which; say it with --stack-axis, 1 for [tokens, layers, width] or 0 for [layers, tokens, width]"
        )
    return given if given is not None else common.pop()


def _orders(request: VllmRequest, n_layers: int, width: int) -> set[int | None]:
    """The axes of the layers that the shape of one file allows."""
    shape, T = request.states.shape, len(request.tokens)
    if n_layers > 1 and list(shape) == [T, n_layers * width]:
        raise DataError(
            f"{request.states.where} has the shape {list(shape)}, {n_layers:,} layers in one row; write it as [tokens, "
            "layers, width], as vLLM's own connector does"
        )
    if not shape or shape[-1] != width:
        raise DataError(
            f"{request.states.where} has the shape {list(shape)}, and the model is {width} wide; name its own model"
        )
    if len(shape) == 2 and n_layers == 1 and shape[0] == T:
        return {None}
    orders: set[int | None] = {
        axis for axis in (0, 1) if len(shape) == 3 and shape[axis] == n_layers and shape[1 - axis] == T
    }
    if orders:
        return orders
    where = f"{request.states.where} has the shape {list(shape)}"
    if len(shape) == 3 and n_layers in shape[:2]:
        n_states = shape[0] if shape[1] == n_layers else shape[1]
        if n_states < T:
            raise DataError(
                f"{where}, states of {n_states:,} of its {T:,} tokens: vLLM took the others from its prefix cache; "
                f"{NO_CACHE}, and with enable_chunked_prefill=False"
            )
        raise DataError(f"{where}, states of more than its {T:,} tokens; run vLLM again with max_tokens=1")
    raise DataError(
        f"{where}, expected {T:,} tokens and {counted(n_layers, 'layer')} in either order; name the layers of "
        "eagle_aux_hidden_state_layer_ids with --layers, ascending"
    )


def _read_states(request: VllmRequest, axis: int | None) -> Tensor:
    """The states of one request, [S, T, D]."""
    x = read_rows(request.states, 0, 0, request.states.shape[0])
    check_unchanged({request.file: request.state})
    return x.unsqueeze(0) if axis is None else x.movedim(axis, 0)
