"""Measure one place of the curve: its problem is fitted to train rows, and edited on validation and test rows.

Axes: N rows of a split, V edited runs.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.causal.behaviour.measure import measure
from probekit.causal.branches.run import Branches, run_branches
from probekit.causal.curve.after_edits import after_edits
from probekit.causal.curve.edits import NamedEdit, batches, choose_edits, edits_of, joined_edits
from probekit.causal.curve.prepared import AnsweredRows, PreparedQuestion, answer_differences
from probekit.causal.curve.problem import PlaceDirections, fit_problem
from probekit.causal.curve.statistics import ratio_interval
from probekit.causal.data import Effect, Method
from probekit.causal.directions.placebos import angle, haar_angle
from probekit.causal.results.view import CONTROL, FULL, is_large
from probekit.errors import DataError
from probekit.evaluation.results.data import LayerResult
from probekit.interventions import Edit, apply_edit
from probekit.models.base import LanguageModel
from probekit.points import Place

MOST_RUNS = 4096  # edited runs at once
HAAR = 0.05  # share of random directions that are nearer to the probe's than the angle that is reported


@dataclass(frozen=True)
class PlaceRecord:
    """What was measured at one place, JSON-able.

    Attributes:
        effects: of every edit, without what compares places: bands and p-values.
        chosen: method -> the largest effect on validation; its direction and scale are those of the method here.
        angles: of other directions to the probe's, in degrees.
        search: how the search for the best direction went; empty without one.
        after: method -> what can be read after its chosen edit, and the loss elsewhere (`after_edits`).
        has_direction: whether the class means of the train rows differ; if not, no edit of the label changes anything.
    """

    effects: list[Effect]
    chosen: dict[Method, Effect]
    angles: dict[str, float]
    search: dict[str, Any]
    after: dict[str, dict[str, Any]]
    has_direction: bool

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; an effect that is a share of nothing is None."""
        body = asdict(self)
        for entry in body["effects"]:
            entry["effect"] = entry["effect"] if math.isfinite(entry["effect"]) else None
        return body


def measure_place(prepared: PreparedQuestion, layer: LayerResult, done: Callable[[int], None]) -> PlaceRecord:
    """Fit, edit, choose, and read what the chosen edits leave; `done` is called with numbers of edited runs."""
    question, problem = prepared.question, fit_problem(prepared, layer)
    effects = []
    for split, rows in prepared.rows.items():
        edits = list(edits_of(problem, split, question.options))
        answers = run_edits(question.model, problem.place, rows, problem.rows[split].x_ND, edits, done)
        own = [effect_of(each, rows, problem.place) for each in answers]
        effects += with_full_vector(own, answers, rows)
    chosen = choose_edits(effects)
    return PlaceRecord(
        effects=effects,
        chosen=chosen,
        angles=_angles(problem.directions),
        search=problem.search,
        after=after_edits(prepared, problem, chosen),
        has_direction=problem.directions.mean_difference.basis_Dk.shape[1] > 0,
    )


def count_runs(prepared: PreparedQuestion, sizes: Mapping[str, int]) -> int:
    """How many edited runs a place takes; `sizes` are the rows of each split."""
    options = prepared.question.options
    n_placebos = 0
    if options.placebos:
        n_placebos = 2 * options.placebos + 1 + len(prepared.placebo_labels)
    total = 0
    for split, rows in sizes.items():
        edits = 3 + (n_placebos if split == "test" else 0)
        each = {"interchange": edits + 2, "erase": edits + 1, "steer": edits * len(options.scale_values)}
        total += rows * sum(each[method] for method in prepared.question.edit_methods)
    return total


@dataclass(frozen=True, eq=False)
class EditedAnswers:
    """What the model answers with an edit.

    Attributes:
        of: the edit.
        difference: logit difference of each row, float64 [N].
        size: of the edit at the token that is read, relative to the activation's, float64 [N].
        kl: from the unedited distribution, float64 [N]; None for placebos.
        probability: of the own answer, float64 [N]; None for placebos, and where labels are numbers.
    """

    of: NamedEdit
    difference: np.ndarray
    size: np.ndarray
    kl: np.ndarray | None = None
    probability: np.ndarray | None = None


@torch.no_grad()
def run_edits(
    model: LanguageModel,
    place: Place,
    rows: AnsweredRows,
    x_ND: Tensor,
    edits: Sequence[NamedEdit],
    done: Callable[[int], None],
) -> list[EditedAnswers]:
    """Run every edit on every row; `done` is called with the number of edited runs as they are made.

    Args:
        model: that is edited.
        place: of the edits.
        rows: as the unedited model answers them.
        x_ND: their activations at the place.
        edits: of all rows.
        done: see above.
    """
    found: dict[NamedEdit, EditedAnswers] = {}
    for some in batches(edits, len(rows.index), MOST_RUNS):
        found |= {answers.of: answers for answers in _run(model, place, rows, x_ND, some)}
        done(len(some) * len(rows.index))
    return [found[one] for one in edits]


def _run(
    model: LanguageModel, place: Place, rows: AnsweredRows, x_ND: Tensor, edits: list[NamedEdit]
) -> list[EditedAnswers]:
    n, layer, edit = len(rows.index), place[1], joined_edits([one.edit for one in edits])
    assert layer is not None
    text_V = torch.arange(n).repeat(len(edits))
    branches = Branches(layer, text_V, rows.at_NL[text_V], {str(place): edit})
    hidden_VD = run_branches(model, rows.trunk, branches)
    own_V, other_V = rows.behaviour.own_N[text_V], rows.behaviour.other_N[text_V]
    columns = [_sizes(edit, x_ND[text_V])]
    if edits[0].is_placebo:  # most runs are placebos'; the logits of two tokens are a small part of the head's work
        columns.insert(0, answer_differences(model, rows.behaviour, rows.numbers, hidden_VD, text_V))
    else:
        found = measure(model, hidden_VD, rows.trunk.hidden_ND[text_V], own_V, other_V)
        columns = [found.logit_difference, *columns, found.kl, found.probability]
    if rows.numbers is not None:  # which have no answer of their own, so that none has a probability
        columns[0] = answer_differences(model, rows.behaviour, rows.numbers, hidden_VD, text_V)
        columns = columns[:3]
    split = [x.double().cpu().view(len(edits), n).numpy() for x in columns]
    return [EditedAnswers(one, *(x[i] for x in split)) for i, one in enumerate(edits)]


def _sizes(edit: Edit, x_VD: Tensor) -> Tensor:
    """Length of each row's change, as a share of the length of its activation: [V]."""
    rows_V1 = torch.arange(len(x_VD))[:, None]
    changed_VD = apply_edit(edit, x_VD[:, None], rows_BL=rows_V1)[:, 0]
    return (changed_VD - x_VD).norm(dim=1) / x_VD.norm(dim=1).clamp(min=torch.finfo(x_VD.dtype).tiny)


def effect_of(answers: EditedAnswers, rows: AnsweredRows, place: Place) -> Effect:
    """The means over the rows, with the interval of the headline unless it is a placebo's; a share of nothing is nan.

    Raises:
        DataError: logits that are not finite after the edit.
    """
    if not np.isfinite(answers.difference).all():
        scale = "" if answers.of.scale is None else f" at scale {answers.of.scale:g}"
        raise DataError(
            f"{answers.of.method} along {answers.of.direction!a}{scale} at {place} gives logits that are not "
            "finite; take smaller scales (--scale), or load the model in float32"
        )
    part_N = rows.difference - answers.difference
    whole_N = rows.whole(answers.of.method)
    effect, ends = float("nan"), None
    if whole_N is not None:
        effect = float(part_N.mean() / whole_N.mean())
        ends = None if answers.of.is_placebo else ratio_interval(part_N, whole_N, rows.bootstrap)
    return Effect(
        method=answers.of.method,
        direction=answers.of.direction,
        point=place[0],
        layer=place[1],
        scale=answers.of.scale,
        split=rows.split,
        n=len(rows.index),
        effect=effect,
        interval=ends,
        logit_difference=float(answers.difference.mean()),
        flip_rate=float(((answers.difference > 0) != (rows.difference > 0)).mean()),
        probability=None if answers.probability is None else float(answers.probability.mean()),
        kl=None if answers.kl is None else float(answers.kl.mean()),
        size=float(np.median(answers.size)),
    )


def with_full_vector(effects: list[Effect], answers: Sequence[EditedAnswers], rows: AnsweredRows) -> list[Effect]:
    """The effects of some rows; that of the full vector says whether it shows use (`Effect.full_vector`).

    Any large swap may harm an answer, whatever it brings. So the swap of all activations must do more with a
    counterpart's than with those of a text of the own class, on the same rows, and enough more to matter.
    """
    made = {
        e.direction: (e, each.difference) for e, each in zip(effects, answers, strict=True) if e.method == "interchange"
    }
    whole_N = rows.whole("interchange")
    if whole_N is None or not {FULL, CONTROL} <= made.keys():
        return effects
    (full, swapped_N), (control, same_N) = made[FULL], made[CONTROL]
    more = ratio_interval(same_N - swapped_N, whole_N, rows.bootstrap)
    is_clear = more is not None and more[0] > 0 and full.interval is not None and full.interval[0] > 0
    shows = is_clear and is_large(full.effect - control.effect, full.flip_rate - control.flip_rate)
    return [replace(each, full_vector=shows) if each is full else each for each in effects]


def _angles(directions: PlaceDirections) -> dict[str, float]:
    """Between lines; of more than two classes the subspaces have several angles, and none is reported."""
    own = directions.probe.basis_Dk
    if own.shape[1] != 1:
        return {}
    learned = [] if directions.learned is None else [directions.learned]
    others = [one for one in [*directions.fitted[1:], *learned] if not one.is_placebo and one.basis_Dk.shape[1] == 1]
    found = {one.name: float(angle(own[:, 0], one.basis_Dk[:, 0])) for one in others}
    return {**found, f"random {HAAR:.0%}": float(haar_angle(len(own), HAAR))}
