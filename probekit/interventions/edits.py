"""Edits: what an edit does to the activations of one token.

    x + scale * (changed(x) - x)

where `changed` is a function of a token's activations x: `Replace` by a value, `Add` a direction, `ProjectOut` a
subspace, an `Affine` map (LEACE, Belrose et al. 2023), `Swap` the coordinates in a subspace for those of another run
(interchange, Geiger et al. 2021), or `Through` a function, such as an autoencoder that is spliced in. At scale 0 the
run is the unedited one, bit for bit.

Every tensor of an edit belongs to all rows, or has a leading axis with one entry for each row (an affine map's has
none): so one forward runs many scales, directions or values. What a row is (a text, or one edited run of a text) is up
to whoever runs the edit.

Axes: B batch, L position, D width of the point (all heads side by side), R rows, k dimensions of a subspace, T tokens.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar, SupportsFloat

import torch
from torch import Tensor

from probekit.errors import UsageError
from probekit.interventions.where import check_positions
from probekit.text import kind_of

_ONE = {"R": "one number of rows", "D": "one width", "k": "one number of dimensions"}

Edits = Mapping[Any, "Edit | Sequence[Edit]"]
"""Point -> edits. Keys are `PointSpec`, but typed as such a dict of (text, number) would not do: keys are invariant."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Edit(ABC):
    """One change.

    Attributes:
        scale: how much of it is done, or [R].
        positions: the tokens that it is done at, as for `model.edited`; None: those that are given for all edits.
    """

    axes: ClassVar[Mapping[str, str]] = MappingProxyType({})  # of its tensors, without that of the rows
    scale: float | Tensor = 1.0
    positions: Any = None

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Check what may have been made without the functions of `make`, or changed since: tensors are the caller's.

        Raises:
            UsageError: what should be a tensor is none, shapes that do not go together, a scale that is not finite, or
                no positions.
        """
        optional = {field.name for field in fields(self) if field.default is None}
        for name in self.axes:
            value = getattr(self, name)
            if not (isinstance(value, Tensor) or (value is None and name in optional)):
                raise UsageError(
                    f"the {name} of an edit is a tensor, got {kind_of(value)}; the functions add, replace, "
                    "project_out, affine and swap take arrays and lists too"
                )
        sizes: dict[str, tuple[str, int]] = {}  # axis -> the first tensor with it, and its size there
        for name, x, axes in _tensors_of(self):
            with_rows = ["R", *axes]
            shapes = [axes] if axes and isinstance(self, Affine) else [axes, with_rows]
            if x.dim() not in map(len, shapes):
                wanted = " or ".join(f"[{', '.join(shape)}]" for shape in shapes)
                raise UsageError(f"the {name} of an edit has the shape {wanted}; got {list(x.shape)}")
            for axis, size in zip(axes if x.dim() == len(axes) else with_rows, x.shape, strict=True):
                first, known = sizes.setdefault(axis, (name, size))
                if size != known:
                    raise UsageError(f"the tensors of an edit have {_ONE[axis]}; got {first} {known}, {name} {size}")
        scale = self.scale
        if not (isinstance(scale, Tensor | SupportsFloat) and bool(torch.as_tensor(scale).isfinite().all())):
            is_tensor = isinstance(scale, Tensor)
            shown = f"a tensor {list(scale.shape)} with NaN or infinity" if is_tensor else f"{scale!a:.60}"
            raise UsageError(f"the scale of an edit is a finite number or one for each row; got {shown}")
        if self.positions is not None:
            check_positions(self.positions)

    @abstractmethod
    def changed(self, x_TD: Tensor, rows_T: Tensor | None) -> Tensor:
        """The activations at scale 1.

        Args:
            x_TD: the activations of the edited tokens.
            rows_T: the row of each token; None if no tensor of the edit has rows.
        """

    def difference(self, x_TD: Tensor, changed_TD: Tensor, rows_T: Tensor | None) -> Tensor:
        """What scale 1 adds to the activations."""
        return changed_TD - x_TD


@dataclass(frozen=True, eq=False)
class Replace(Edit):
    """x becomes `value` [D] or [R, D], or only its components that are true in `part`, bool [D] or [R, D]."""

    axes: ClassVar[Mapping[str, str]] = MappingProxyType({"value": "D", "part": "D"})
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

    axes: ClassVar[Mapping[str, str]] = MappingProxyType({"direction": "D"})
    direction: Tensor

    def changed(self, x_TD: Tensor, rows_T: Tensor | None) -> Tensor:
        return x_TD + _at_rows(self.direction, 1, rows_T).to(x_TD)

    def difference(self, x_TD: Tensor, changed_TD: Tensor, rows_T: Tensor | None) -> Tensor:
        return _at_rows(self.direction, 1, rows_T).to(x_TD)  # exact, where (x + d) - x is not


@dataclass(frozen=True, eq=False)
class ProjectOut(Edit):
    """x - Q Q'(x - mean) for an orthonormal basis Q, [D, k] or [R, D, k]; mean [D] or [R, D], by default 0."""

    axes: ClassVar[Mapping[str, str]] = MappingProxyType({"basis": "D k", "mean": "D"})
    basis: Tensor
    mean: Tensor | None = None

    def changed(self, x_TD: Tensor, rows_T: Tensor | None) -> Tensor:
        centred_TD = x_TD if self.mean is None else x_TD - _at_rows(self.mean, 1, rows_T).to(x_TD)
        return x_TD + _change_of_coordinates(centred_TD, self.basis, torch.zeros(()), rows_T)


@dataclass(frozen=True, eq=False)
class Affine(Edit):
    """P x + b, with P [D, D] and b [D]; of its tensors, only the scale may have rows."""

    axes: ClassVar[Mapping[str, str]] = MappingProxyType({"matrix": "D D", "bias": "D"})
    matrix: Tensor
    bias: Tensor

    def changed(self, x_TD: Tensor, rows_T: Tensor | None) -> Tensor:
        return x_TD @ self.matrix.to(x_TD).T + self.bias.to(x_TD)


@dataclass(frozen=True, eq=False)
class Swap(Edit):
    """x with the coordinates [k] or [R, k] in an orthonormal basis Q, [D, k] or [R, D, k]: x + Q (c - Q'x)."""

    axes: ClassVar[Mapping[str, str]] = MappingProxyType({"basis": "D k", "coordinates": "k"})
    basis: Tensor
    coordinates: Tensor

    def changed(self, x_TD: Tensor, rows_T: Tensor | None) -> Tensor:
        return x_TD + _change_of_coordinates(x_TD, self.basis, _at_rows(self.coordinates, 1, rows_T), rows_T)


@dataclass(frozen=True, eq=False)
class Through(Edit):
    """function(x), of activations [T, D]; `function.fingerprint()` tells it from others."""

    function: Any

    def changed(self, x_TD: Tensor, rows_T: Tensor | None) -> Tensor:
        return self.function(x_TD).to(x_TD)


def _at_rows(x: Tensor, n_axes: int, rows_T: Tensor | None) -> Tensor:
    """A tensor of an edit for each token, [T, ...], if it has rows; otherwise unchanged."""
    if x.dim() == n_axes:
        return x
    if rows_T is None:
        raise UsageError(f"an edit with a tensor {list(x.shape)} has rows; it needs the row of each token")
    return x[rows_T.to(x.device)]


def _change_of_coordinates(x_TD: Tensor, basis: Tensor, c: Tensor, rows_T: Tensor | None) -> Tensor:
    """Q (c - Q'x): what gives each token's x the coordinates c, one number, [k] or [T, k], in its basis Q."""
    c = c.to(x_TD)
    if basis.dim() == 2:
        basis = basis.to(x_TD)
        return (c - x_TD @ basis) @ basis.T
    change_TD = torch.zeros_like(x_TD)
    for j, c_T in enumerate(c.expand(*x_TD.shape[:-1], basis.shape[-1]).unbind(-1)):
        # one column of the bases at a time: all of them for each token take k times the memory of the activations
        q_TD = _at_rows(basis[..., j], 1, rows_T).to(x_TD)
        change_TD = change_TD + (c_T - (x_TD * q_TD).sum(-1))[:, None] * q_TD
    return change_TD


def _tensors_of(edit: Edit) -> Iterator[tuple[str, Tensor, list[str]]]:
    """Name, value and axes (without that of the rows) of each tensor of an edit."""
    for name, axes in {"scale": "", **edit.axes}.items():
        if isinstance(value := getattr(edit, name), Tensor):
            yield name, value, axes.split()


def edit_rows(edit: Edit) -> int | None:
    """For how many rows an edit has tensors; None if all its tensors belong to every row."""
    return next((len(x) for _, x, axes in _tensors_of(edit) if x.dim() > len(axes)), None)


def check_width(edit: Edit, point: str, width: int) -> None:
    """Raise a UsageError unless the edit is for activations of this width."""
    for name, x, axes in _tensors_of(edit):
        for axis, size in zip(reversed(axes), reversed(x.shape), strict=False):
            if axis == "D" and size != width:
                raise UsageError(
                    f"{point} has width {width}; got an edit whose {name} is {list(x.shape)}, for width {size}"
                )


def is_identity(edit: Edit) -> bool:
    """True for an edit whose scale is 0 in every row, and no parameter to be learned."""
    if isinstance(edit.scale, Tensor):
        return not edit.scale.requires_grad and not bool(edit.scale.any())
    return edit.scale == 0


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
    rows = None if rows_BL is None else rows_BL.to(x.device).expand(flat.shape[:2])
    if at_BL is None:  # a third of the time of a mask that is true everywhere
        old_TD, rows_T = flat.flatten(0, 1).to(wide), None if rows is None else rows.flatten()
        return _scaled(edit, old_TD, rows_T).to(x.dtype).reshape(x.shape)
    at = at_BL.to(x.device)
    old_TD, rows_T = flat[at].to(wide), None if rows is None else rows[at]
    new = flat.clone()
    new[at] = _scaled(edit, old_TD, rows_T).to(x.dtype)
    return new.reshape(x.shape)


def _scaled(edit: Edit, old_TD: Tensor, rows_T: Tensor | None) -> Tensor:
    """`old + scale * (new - old)`, and exactly the old at scale 0 and the new at scale 1."""
    new_TD, scale = edit.changed(old_TD, rows_T), edit.scale
    if not isinstance(scale, Tensor):
        if scale in (0, 1):
            return new_TD if scale else old_TD
        return old_TD + scale * edit.difference(old_TD, new_TD, rows_T)
    scale = scale.to(old_TD)
    scale = scale if scale.dim() == 0 else _at_rows(scale, 0, rows_T)[:, None]
    between = old_TD + scale * edit.difference(old_TD, new_TD, rows_T)
    if scale.requires_grad:  # a learned scale needs its gradient at 0 and 1 as well
        return between
    return torch.where(scale == 0, old_TD, torch.where(scale == 1, new_TD, between))
