"""Arms: one edit, of one direction at one scale, on every row of a split.

Axes: N rows of a split, D width of the place, k dimensions of a subspace, V edited runs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from probekit.causal.curve.candidates import Candidate, PlaceDirections
from probekit.causal.curve.sides import Side
from probekit.causal.data import Method
from probekit.causal.erasure.erase import Eraser
from probekit.causal.interchange.interchange import interchange_edit
from probekit.causal.results.view import CONTROL
from probekit.interventions import Add, Affine, Edit, ProjectOut


@dataclass(frozen=True, eq=False)
class Arm:
    """One edit of all rows.

    Attributes:
        method: which kind.
        direction: as `Effect.direction`.
        scale: of steering; else None.
        is_placebo: whether its direction knows nothing of the label.
        edit: its tensors are of all rows, or of each of the N.
    """

    method: Method
    direction: str
    scale: float | None
    is_placebo: bool
    edit: Edit


def interchange_arms(place: PlaceDirections, side: Side, with_placebos: bool) -> Iterator[Arm]:
    """The coordinates of the counterpart; all of its activations, the ceiling of any direction; and a control.

    The control takes all activations of a text of the own class. What it does, a swap does without the label.
    """
    other_ND = side.x_ND[torch.from_numpy(side.counterpart)]
    for one in [*_some(place, with_placebos), *([] if place.learned is None else [place.learned])]:
        basis = one.basis_Dk.to(side.x_ND)
        yield Arm("interchange", one.name, None, one.is_placebo, interchange_edit(other_ND, _each(basis, side)))
    yield Arm("interchange", "full vector", None, False, interchange_edit(other_ND))
    yield Arm("interchange", CONTROL, None, False, interchange_edit(side.x_ND[torch.from_numpy(side.same)]))


def erase_arms(
    place: PlaceDirections, erasers: dict[str, Eraser], label: str, side: Side, with_placebos: bool
) -> Iterator[Arm]:
    """LEACE of the label, of other label sets as placebos, and the directions projected out."""
    mean_D = place.moments.mean.to(side.x_ND)
    yield Arm("erase", "leace", None, False, _affine(erasers[label], side))
    for one in _some(place, with_placebos):
        if one.label:
            edit: Edit = _affine(erasers[one.label], side)
        else:
            edit = ProjectOut(_each(one.basis_Dk.to(side.x_ND), side), mean_D.expand_as(side.x_ND))
        yield Arm("erase", one.name, None, one.is_placebo, edit)


def steer_arms(place: PlaceDirections, scales: Sequence[float], side: Side, with_placebos: bool) -> Iterator[Arm]:
    """The step to the other class times each scale; a placebo's step has the length of the mean difference's."""
    covariance = place.moments.covariance
    own_N = _deviations(place.mean_difference.steps(side.labels, side.other), covariance)
    for one in _some(place, with_placebos):
        unit_ND = one.steps(side.labels, side.other)
        std_N = own_N if one.is_placebo else _deviations(unit_ND, covariance)
        step_ND = (unit_ND * std_N[:, None]).to(side.x_ND)
        for scale in scales:
            yield Arm("steer", one.name, scale, one.is_placebo, Add(step_ND * scale))


def batches(arms: Sequence[Arm], n_rows: int, most: int) -> Iterator[list[Arm]]:
    """Arms whose edits can be joined, as many as give `most` edited runs, at least one."""
    kinds: dict[Any, list[Arm]] = {}
    for arm in arms:
        shapes = tuple(None if x is None else tuple(x.shape) for x in _tensors(arm.edit).values())
        kinds.setdefault((type(arm.edit), shapes), []).append(arm)
    for (kind, _), some in kinds.items():
        step = 1 if kind is Affine else max(1, most // n_rows)
        for start in range(0, len(some), step):
            yield some[start : start + step]


def joined_edits(edits: Sequence[Edit]) -> Edit:
    """One edit with the rows of the first edit, then those of the second, and so on."""
    first = edits[0]
    if len(edits) == 1:
        return first
    every = [_tensors(edit) for edit in edits]
    tensors = {name: torch.cat([each[name] for each in every]) for name, x in every[0].items() if x is not None}
    return replace(first, **tensors)


def _tensors(edit: Edit) -> dict[str, Any]:
    return {field.name: getattr(edit, field.name) for field in fields(edit) if field.name != "scale"}


def _some(place: PlaceDirections, with_placebos: bool) -> list[Candidate]:
    return [one for one in place.candidates if with_placebos or not one.is_placebo]


def _each(x: Tensor, side: Side) -> Tensor:
    """The same tensor for each row; an expanded view."""
    return x.expand(len(side.x_ND), *x.shape)


def _affine(eraser: Eraser, side: Side) -> Affine:
    edit = eraser.edit
    return Affine(edit.matrix.to(side.x_ND), edit.bias.to(side.x_ND))


def _deviations(unit_ND: Tensor, covariance: Tensor) -> Tensor:
    """The standard deviation of the activations along each row's vector, float64 [N]."""
    return torch.einsum("nd,de,ne->n", unit_ND, covariance, unit_ND).clamp(min=0).sqrt()
