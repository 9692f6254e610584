"""What a store keeps of edits: enough to tell one from another, not to repeat them."""

import hashlib
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from probekit.hooks import HookedModule
from probekit.interventions.attach import check_edits
from probekit.interventions.edits import Edit, Edits
from probekit.interventions.where import check_positions
from probekit.points import Place

_NAMES = {"Replace": "replace", "Add": "add", "ProjectOut": "project_out", "Affine": "affine", "Swap": "swap"}


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
