"""Run a model with edits: hooks that edit, for as long as a context holds; and what a store keeps of edits.

Edits at one point are done in the order given, those of different points in the order of the forward. Contexts nest:
the edits of the outer one come first. A store keeps enough to tell edits from others, not to repeat them.

Axes: B batch, L position, R positions that the last block computes, N rows of an edit's tensors.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from probekit.errors import UsageError
from probekit.hooks import HookedModule, HookPoint
from probekit.interventions.edits import Edit, Edits, apply_edit, check_width, edit_rows, is_identity
from probekit.interventions.where import TextTokens, check_positions, tokens_at
from probekit.points import PAIR_POINTS, Place
from probekit.text import kind_of

_NAMES = {
    "Replace": "replace",
    "Add": "add",
    "ProjectOut": "project_out",
    "Affine": "affine",
    "Swap": "swap",
    "Through": "through",
}
Placed = tuple[Tensor | None, Tensor | None]  # which tokens an edit is done at, and the row of each token: [B, L]


def check_edits(model: HookedModule, edits: Edits) -> list[tuple[str, Edit]]:
    """Full name of a point and edit, one pair for each, in the order given.

    A short name without a layer means every layer that has the point.

    Raises:
        UsageError: something else, an unknown point, or one that has no row for each token.
    """
    if not hasattr(edits, "items"):
        raise UsageError(f'edits are a dictionary such as {{("resid_pre", 5): add(direction)}}; got {kind_of(edits)}')
    pairs = []
    for spec, some in edits.items():
        for edit in [some] if isinstance(some, Edit) or not isinstance(some, list | tuple) else some:
            if not isinstance(edit, Edit):
                raise UsageError(
                    f"expected an edit at {spec}, got {kind_of(edit)}; make one with add, replace, project_out, "
                    "affine, swap or through of probekit.interventions"
                )
            edit.check()
            pairs += [(_editable(model, name), edit) for name in model.resolve(spec)]
    return pairs


def _editable(model: HookedModule, name: str) -> str:
    axes = model.points[name].axes
    if axes.split()[:2] == ["B", "L"]:
        return name
    short = Place.of(name)[0]
    instead = "edit q, k, v or z" if short in PAIR_POINTS or "attn_" in short else "edit the encoder's output"
    raise UsageError(
        f"an edit changes one row for each token, and {name} has the axes {axes}; {instead}, or write a hook "
        "(model.hooks)"
    )


@contextmanager
def editing(
    model: HookedModule, edits: Edits, at_BL: Tensor | None = None, rows_BL: Tensor | None = None
) -> Iterator[None]:
    """Within the context, forwards over tokens [B, L] run with the edits; see `apply_edit`.

    Edits at one point are done in the order given. Within `model.reading`, points of the last block may have the read
    positions alone.

    Raises:
        UsageError: an edit with positions of its own.
    """

    def placed(edit: Edit) -> Placed:
        if edit.positions is not None:
            raise UsageError(
                "positions of an edit are for model.edited and extract; give the tokens as edited, or at_BL"
            )
        return at_BL, rows_BL

    with editing_at(model, edits, placed):
        yield


@contextmanager
def editing_texts(
    model: HookedModule, edits: Edits, positions: Any, texts: Callable[[], TextTokens | None]
) -> Iterator[None]:
    """Within the context, forwards run with the edits at these positions of their texts.

    Args:
        model: the model.
        edits: the edits.
        positions: see `check_positions`.
        texts: gives the texts of the forward that runs; None if their tokens are unknown.
    """
    given = check_positions(positions)

    def placed(edit: Edit) -> Placed:
        checked = given if edit.positions is None else check_positions(edit.positions)
        n_rows = edit_rows(edit)
        if n_rows is None and isinstance(checked, str) and checked == "all":
            return None, None
        if (here := texts()) is None:
            raise UsageError(
                "an edit at some positions, or with a row for each text, needs one text in each row, and a mask "
                "[B, L] or none; to extract statistics under it, give ExtractOptions(edits=...)"
            )
        if n_rows not in (None, here.n_rows):
            raise UsageError(f"an edit has tensors for {n_rows} texts, got {here.n_rows}; give one row for each text")
        return tokens_at(checked, here), None if n_rows is None else here.row_B[:, None]

    with editing_at(model, edits, placed):
        yield


@contextmanager
def editing_at(model: HookedModule, edits: Edits, placed: Callable[[Edit], Placed]) -> Iterator[None]:
    """Within the context, forwards run with each edit at the tokens, and with the rows, that `placed` gives for it."""

    def hook_of(edit: Edit) -> Any:
        def hook(x: Tensor, point: HookPoint) -> Tensor:
            at_BL, rows_BL = placed(edit)
            check_width(edit, point.name, x[0, 0].numel())
            return apply_edit(edit, x, _as_read(model, at_BL, x), _as_read(model, rows_BL, x))

        return hook

    # a hooked point may take other kernels, which round differently: at scale 0 there is no hook
    pairs = [(name, edit) for name, edit in check_edits(model, edits) if not is_identity(edit)]
    with model.hooks([([name], hook_of(edit)) for name, edit in pairs]):
        yield


def _as_read(model: HookedModule, of_tokens: Tensor | None, x: Tensor) -> Tensor | None:
    """What belongs to tokens [B, L], for the positions that x has: all, or those of `reading`."""
    if of_tokens is None or (of_tokens.shape[1] in (1, x.shape[1]) and len(of_tokens) in (1, len(x))):
        return of_tokens
    read_BR: Tensor | None = getattr(model, "_read", None)
    if read_BR is None or tuple(x.shape[:2]) != tuple(read_BR.shape):
        raise UsageError(
            f"edits for tokens {list(of_tokens.shape)} met activations {list(x.shape)}; give matching ones"
        )
    return of_tokens.expand(len(x), -1).gather(1, read_BR.to(of_tokens.device))


def record_of_edits(model: HookedModule, edits: Edits) -> dict[str, list[dict[str, Any]]]:
    """Place -> its edits in order, JSON-able: kind, scale, and shape and sha256 of each tensor."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name, edit in check_edits(model, edits):
        found.setdefault(str(Place.of(name)), []).append(_record(edit))
    return found


def _record(edit: Edit) -> dict[str, Any]:
    values = {field.name: getattr(edit, field.name) for field in fields(edit)}
    if edit.positions is not None:
        values["positions"] = _plain(check_positions(edit.positions))
    if "function" in values:
        values["function"] = {"sha256": values["function"].fingerprint()}
    tensors = {name: x for name, x in values.items() if isinstance(x, Tensor)}
    plain = {name: x for name, x in values.items() if name not in tensors and x is not None}
    kind = _NAMES.get(type(edit).__name__, type(edit).__name__)
    return {"kind": kind, **plain, **{name: _digest(x) for name, x in tensors.items()}}


def _plain(positions: Any) -> Any:
    """Checked positions, a slice as text."""
    if not isinstance(positions, slice):
        return positions
    parts = [positions.start, positions.stop, *([] if positions.step is None else [positions.step])]
    return ":".join("" if part is None else str(part) for part in parts)


def _digest(x: Tensor) -> dict[str, Any]:
    """Shape and hex sha256 of a tensor's values, as float64 (or as bools), wherever and in whatever type they are."""
    host = x.detach().cpu()
    host = host if host.dtype == torch.bool else host.to(torch.float64)
    return {"shape": list(x.shape), "sha256": hashlib.sha256(host.contiguous().numpy().tobytes()).hexdigest()}


def one_place_in_words(some: list[dict[str, Any]]) -> str:
    """The edits of one place, so that others look different: "add scale 2 direction cba5d3"."""
    return " then ".join(
        " ".join([one["kind"], *(f"{name} {_value(x)}" for name, x in one.items() if name != "kind")]) for one in some
    )


def _value(x: Any) -> str:
    return x["sha256"][:6] if isinstance(x, dict) else f"{x:g}" if isinstance(x, float) else str(x)


def edits_in_words(record: dict[str, list[dict[str, Any]]], positions: str) -> str:
    """A store's edits in a few words: "project_out at resid_pre.5, all tokens"."""
    each = [f"{' then '.join(map(_with_positions, some))} at {place}" for place, some in record.items()]
    if all("positions" in one for some in record.values() for one in some):
        return ", ".join(each)
    return f"{', '.join(each)}, {'all tokens' if positions == 'all' else 'the read tokens'}"


def _with_positions(one: dict[str, Any]) -> str:
    """The kind of an edit, and its own positions: "add (positions 4)"."""
    if "positions" not in one:
        return one["kind"]
    own = one["positions"]
    return f"{one['kind']} (positions {'of each text' if isinstance(own, dict) else own})"
