"""Edits: changes of the activations at a point while the model runs.

    x + scale * (changed(x) - x)

where `changed` is one of five functions of a token's activations x: `Replace` by a value, `Add` a direction,
`ProjectOut` a subspace, an `Affine` map (LEACE, Belrose et al. 2023), or `Swap` the coordinates in a subspace for those
of another run (interchange, Geiger et al. 2021). At scale 0 the run is the unedited one, bit for bit.

Every tensor of an edit belongs to all rows, or has a leading axis with one entry for each row: so one forward runs many
scales, directions or values. What a row is (a text, or one edited run of a text) is up to whoever runs the edit.

Axes: B batch, L position, D width of the point (all heads side by side), R rows, k dimensions of a subspace, T tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from probekit.errors import UsageError
from probekit.hooks import HookedModule, HookPoint
from probekit.points import PointSpec

Edits = Mapping[PointSpec, "Edit | Sequence[Edit]"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Edit:
    """One change.

    Attributes:
        scale: how much of it is done, or [R].
    """

    scale: float | Tensor = 1.0

    def changed(self, x_TD: Tensor, rows_T: Tensor | None) -> Tensor:
        """The activations at scale 1.

        Args:
            x_TD: the activations of the edited tokens.
            rows_T: the row of each token; None if no tensor of the edit has rows.
        """
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Replace(Edit):
    """x becomes `value` [D] or [R, D], or only its components that are true in `part`, bool [D] or [R, D]."""

    value: Tensor
    part: Tensor | None = None

    def changed(self, x_TD: Tensor, rows_T: Tensor | None) -> Tensor:
        value_TD = _at_rows(self.value, 1, rows_T).to(x_TD).expand_as(x_TD)
        if self.part is None:
            return value_TD
        return torch.where(_at_rows(self.part, 1, rows_T).to(x_TD.device), value_TD, x_TD)


@dataclass(frozen=True, eq=False)
class Add(Edit):
    """x + direction, [D] or [R, D]."""

    direction: Tensor

    def changed(self, x_TD: Tensor, rows_T: Tensor | None) -> Tensor:
        return x_TD + _at_rows(self.direction, 1, rows_T).to(x_TD)


@dataclass(frozen=True, eq=False)
class ProjectOut(Edit):
    """x - Q Q'(x - mean) for an orthonormal basis Q, [D, k] or [R, D, k]; mean [D] or [R, D], by default 0."""

    basis: Tensor
    mean: Tensor | None = None

    def changed(self, x_TD: Tensor, rows_T: Tensor | None) -> Tensor:
        centred_TD = x_TD if self.mean is None else x_TD - _at_rows(self.mean, 1, rows_T).to(x_TD)
        return x_TD - _onto(centred_TD, _at_rows(self.basis, 2, rows_T).to(x_TD))


@dataclass(frozen=True, eq=False)
class Affine(Edit):
    """P x + b, with P [D, D] and b [D]."""

    matrix: Tensor
    bias: Tensor

    def changed(self, x_TD: Tensor, rows_T: Tensor | None) -> Tensor:
        return x_TD @ self.matrix.to(x_TD).T + self.bias.to(x_TD)


@dataclass(frozen=True, eq=False)
class Swap(Edit):
    """x with the coordinates [k] or [R, k] in an orthonormal basis Q, [D, k] or [R, D, k]: x + Q (c - Q'x)."""

    basis: Tensor
    coordinates: Tensor

    def changed(self, x_TD: Tensor, rows_T: Tensor | None) -> Tensor:
        basis = _at_rows(self.basis, 2, rows_T).to(x_TD)
        c_Tk = _at_rows(self.coordinates, 1, rows_T).to(x_TD)
        return x_TD + _combined(c_Tk - _coordinates(x_TD, basis), basis)


def _at_rows(x: Tensor, n_axes: int, rows_T: Tensor | None) -> Tensor:
    """A tensor of an edit for each token, [T, ...], if it has rows; otherwise unchanged."""
    if x.dim() == n_axes:
        return x
    if rows_T is None:
        raise UsageError(f"an edit with a tensor {list(x.shape)} has rows; it needs the row of each token")
    return x[rows_T.to(x.device)]


def _coordinates(x_TD: Tensor, basis: Tensor) -> Tensor:
    return x_TD @ basis if basis.dim() == 2 else torch.einsum("td,tdk->tk", x_TD, basis)


def _combined(c_Tk: Tensor, basis: Tensor) -> Tensor:
    return c_Tk @ basis.T if basis.dim() == 2 else torch.einsum("tk,tdk->td", c_Tk, basis)


def _onto(x_TD: Tensor, basis: Tensor) -> Tensor:
    return _combined(_coordinates(x_TD, basis), basis)


def apply_edit(edit: Edit, x: Tensor, at_BL: Tensor | None = None, rows_BL: Tensor | None = None) -> Tensor:
    """The activations x [B, L, ...] after the edit, computed in float32 at least.

    Args:
        edit: the edit.
        x: activations; the axes after L are taken as one, of width D.
        at_BL: bool, the tokens that are edited; None edits all.
        rows_BL: int64, the row of each token, for edits with rows.
    """
    flat = x.flatten(2) if x.dim() > 3 else x
    wide = torch.promote_types(x.dtype, torch.float32)
    at = torch.ones(flat.shape[:2], dtype=torch.bool, device=x.device) if at_BL is None else at_BL.to(x.device)
    rows_T = None if rows_BL is None else rows_BL.to(x.device).expand(flat.shape[:2])[at]
    old_TD = flat[at].to(wide)
    new = flat.clone()
    new[at] = _scaled(edit, old_TD, edit.changed(old_TD, rows_T), rows_T).to(x.dtype)
    return new.view(x.shape)


def _scaled(edit: Edit, old_TD: Tensor, new_TD: Tensor, rows_T: Tensor | None) -> Tensor:
    """`old + scale * (new - old)`, and exactly the old at scale 0 and the new at scale 1."""
    scale = torch.as_tensor(edit.scale, device=old_TD.device, dtype=old_TD.dtype)
    scale = scale if scale.dim() == 0 else _at_rows(scale, 0, rows_T)[:, None]
    between = old_TD + scale * (new_TD - old_TD)
    return torch.where(scale == 0, old_TD, torch.where(scale == 1, new_TD, between))


@contextmanager
def editing(
    model: HookedModule, edits: Edits, at_BL: Tensor | None = None, rows_BL: Tensor | None = None
) -> Iterator[None]:
    """Within the context, forwards over tokens [B, L] run with the edits; see `apply_edit`.

    Edits at one point are done in the order given.
    """

    def hook_of(edit: Edit) -> Any:
        def hook(x: Tensor, _: HookPoint) -> Tensor:
            return apply_edit(edit, x, at_BL, rows_BL)

        return hook

    each = [(point, one) for point, some in edits.items() for one in ([some] if isinstance(some, Edit) else some)]
    with model.hooks([([point], hook_of(edit)) for point, edit in each]):
        yield
