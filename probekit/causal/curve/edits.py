"""The edits of a place: each is of one direction at one scale, and of every row of a split.

Axes: N rows of a split, D width of the place, k dimensions of a subspace, V edited runs.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from probekit.causal.curve.problem import EditDirection, PlaceProblem, PlaceRows
from probekit.causal.curve.question import CHOICES
from probekit.causal.data import Effect, Method
from probekit.causal.erasure.erase import Eraser
from probekit.causal.interchange.interchange import interchange_edit
from probekit.causal.results.view import CONTROL, FULL
from probekit.interventions import Add, Affine, Edit, ProjectOut
from probekit.options import CausalOptions


@dataclass(frozen=True, eq=False)
class NamedEdit:
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


def edits_of(problem: PlaceProblem, split: str, options: CausalOptions) -> Iterator[NamedEdit]:
    """All edits of the rows of a split; along placebos on test rows alone, for validation only chooses."""
    rows, with_placebos = problem.rows[split], split == "test"
    if "interchange" in options.method_names:
        yield from interchange_edits(problem, rows, with_placebos)
    if "erase" in options.method_names:
        yield from erase_edits(problem, rows, with_placebos)
    if "steer" in options.method_names:
        yield from steer_edits(problem, rows, options.scale_values, with_placebos)


def choose_edits(effects: Sequence[Effect]) -> dict[Method, Effect]:
    """For each method the direction and scale with the largest effect on validation at a place; ties go to the first.

    A method whose effects are shares of nothing has none.
    """
    chosen: dict[Method, Effect] = {}
    for method, directions in CHOICES.items():
        own = [e for e in effects if (e.method, e.split) == (method, "validation") and e.direction in directions]
        if own := [e for e in own if math.isfinite(e.effect)]:
            chosen[method] = max(own, key=lambda effect: effect.effect)
    return chosen


def chosen_edit(problem: PlaceProblem, rows: PlaceRows, chosen: Effect) -> Edit:
    """The edit of some rows with the method, direction and scale that were chosen."""
    if chosen.method == "erase":  # of any rows
        return problem.erasers[problem.label].edit
    if chosen.method == "interchange":
        edits = interchange_edits(problem, rows, with_placebos=False)
    else:
        edits = steer_edits(problem, rows, [chosen.scale or 0.0], with_placebos=False)
    return next(one.edit for one in edits if one.direction == chosen.direction)


def interchange_edits(problem: PlaceProblem, rows: PlaceRows, with_placebos: bool) -> Iterator[NamedEdit]:
    """The coordinates of the counterpart; all of its activations, the ceiling of any direction; and a control.

    The control takes all activations of a text of the own class. What it does, a swap does without the label.
    """
    other_ND, learned = rows.x_ND[torch.from_numpy(rows.counterpart)], problem.directions.learned
    for one in [*_some(problem, with_placebos), *([] if learned is None else [learned])]:
        basis = one.basis_Dk.to(rows.x_ND)
        yield NamedEdit("interchange", one.name, None, one.is_placebo, interchange_edit(other_ND, _each(basis, rows)))
    yield NamedEdit("interchange", FULL, None, False, interchange_edit(other_ND))
    yield NamedEdit("interchange", CONTROL, None, False, interchange_edit(rows.x_ND[torch.from_numpy(rows.same)]))


def erase_edits(problem: PlaceProblem, rows: PlaceRows, with_placebos: bool) -> Iterator[NamedEdit]:
    """LEACE of the label, of other label sets as placebos, and the directions projected out."""
    mean_D = problem.directions.moments.mean.to(rows.x_ND)
    yield NamedEdit("erase", "leace", None, False, _affine(problem.erasers[problem.label], rows))
    for one in _some(problem, with_placebos):
        if one.label:
            edit: Edit = _affine(problem.erasers[one.label], rows)
        else:
            edit = ProjectOut(_each(one.basis_Dk.to(rows.x_ND), rows), mean_D.expand_as(rows.x_ND))
        yield NamedEdit("erase", one.name, None, one.is_placebo, edit)


def steer_edits(
    problem: PlaceProblem, rows: PlaceRows, scales: Sequence[float], with_placebos: bool
) -> Iterator[NamedEdit]:
    """The step to the other class times each scale; a placebo's step has the length of the mean difference's."""
    covariance = problem.directions.moments.covariance
    own_N = _deviations(problem.directions.mean_difference.steps(rows.labels, rows.other), covariance)
    for one in _some(problem, with_placebos):
        unit_ND = one.steps(rows.labels, rows.other)
        std_N = own_N if one.is_placebo else _deviations(unit_ND, covariance)
        step_ND = (unit_ND * std_N[:, None]).to(rows.x_ND)
        for scale in scales:
            yield NamedEdit("steer", one.name, scale, one.is_placebo, Add(step_ND * scale))


def batches(edits: Sequence[NamedEdit], n_rows: int, most: int) -> Iterator[list[NamedEdit]]:
    """Edits that can be joined, placebos apart, as many as give `most` edited runs, at least one."""
    kinds: dict[Any, list[NamedEdit]] = {}
    for one in edits:
        shapes = tuple(None if x is None else tuple(x.shape) for x in _tensors(one.edit).values())
        kinds.setdefault((type(one.edit), one.is_placebo, shapes), []).append(one)
    for (kind, _, _), some in kinds.items():
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


def _some(problem: PlaceProblem, with_placebos: bool) -> list[EditDirection]:
    return [one for one in problem.directions.fitted if with_placebos or not one.is_placebo]


def _each(x: Tensor, rows: PlaceRows) -> Tensor:
    """The same tensor for each row; an expanded view."""
    return x.expand(len(rows.x_ND), *x.shape)


def _affine(eraser: Eraser, rows: PlaceRows) -> Affine:
    edit = eraser.edit
    return Affine(edit.matrix.to(rows.x_ND), edit.bias.to(rows.x_ND))


def _deviations(unit_ND: Tensor, covariance: Tensor) -> Tensor:
    """The standard deviation of the activations along each row's vector, float64 [N]."""
    return torch.einsum("nd,de,ne->n", unit_ND, covariance, unit_ND).clamp(min=0).sqrt()
