"""The files of vLLM's requests: their tokens, and the axes of their states, found from shapes.

Axes: T tokens of a request, S layers, D width of the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from probekit.activations.imports.array_files import FileArray, arrays_in, file_state, find_array_files, read_rows
from probekit.errors import DataError, UsageError
from probekit.text import counted, listed

STATES, TOKENS = "hidden_states", "token_ids"
NO_CACHE = "run vLLM again with enable_prefix_caching=False"


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


def read_requests(source: Path) -> list[VllmRequest]:
    """Every request in a folder, in natural order of the names; headers and tokens are read.

    Raises:
        DataError: a file without states or tokens, or one that cannot be read; nothing to import.
    """
    files, _ = find_array_files(source, None)
    return [_request(file) for file in files if file.suffix == ".safetensors"]


def _request(file: Path) -> VllmRequest:
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


def find_stack_axis(requests: Sequence[VllmRequest], n_layers: int, width: int, given: int | None) -> int | None:
    """The axis of the layers in all files; None where there is one layer and no axis for it.

    The shape of each file allows one order of the axes, or both where it has as many tokens as layers. One order must
    be left for all of them.

    Args:
        requests: the files.
        n_layers: S.
        width: D.
        given: the axis that the user names.

    Raises:
        UsageError: every file allows both orders, and none was named; or the one that was named does not fit.
        DataError: a shape that fits neither order, files of different orders, or states of a part of the tokens.
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


def read_states(request: VllmRequest, axis: int | None) -> Tensor:
    """The states of one request, [S, T, D].

    Raises:
        DataError: the file cannot be read, or was written since it was looked at.
    """
    x = read_rows(request.states, 0, 0, request.states.shape[0])
    if file_state(request.file) != request.state:
        raise DataError(f"{str(request.file)!a} was written while it was imported; run the same command again")
    return x.unsqueeze(0) if axis is None else x.movedim(axis, 0)
