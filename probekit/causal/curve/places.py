"""All edits at one place of the curve: directions fitted to train rows, effects on validation and test rows.

Axes: N rows of a split, D width of the place, V edited runs, L position.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.causal.behaviour.measure import measure
from probekit.causal.branches.run import Branches, run_branches
from probekit.causal.curve.aftermath import Aftermath, after_edits, prepare_aftermath
from probekit.causal.curve.arms import CHOICES, Arm, batches, erase_arms, interchange_arms, joined_edits, steer_arms
from probekit.causal.curve.candidates import Candidate, PlaceDirections, fit_place, other_label_sets
from probekit.causal.curve.ceiling import SearchTexts, learn_direction, search_texts
from probekit.causal.curve.question import CausalQuestion
from probekit.causal.curve.sides import Side, answer_differences
from probekit.causal.curve.statistics import ratio_interval
from probekit.causal.data import Effect
from probekit.causal.directions.placebos import angle, haar_angle
from probekit.causal.erasure.erase import Eraser, fit_leace, tol_of_few_rows
from probekit.errors import DataError
from probekit.evaluation.results.data import LayerResult
from probekit.interventions import Edit, apply_edit
from probekit.models.base import LanguageModel
from probekit.points import Place

MOST_RUNS = 4096  # edited runs at once


@dataclass(frozen=True, eq=False)
class ArmRun:
    """One arm's answers.

    Attributes:
        arm: the edit.
        difference: logit difference of each row, float64 [N].
        size: of the edit at the token that is read, relative to the activation's, float64 [N].
        kl: from the unedited distribution, float64 [N]; None for placebos.
        probability: of the own answer, float64 [N]; None for placebos, and where labels are numbers.
    """

    arm: Arm
    difference: np.ndarray
    size: np.ndarray
    kl: np.ndarray | None = None
    probability: np.ndarray | None = None


@torch.no_grad()
def run_arms(
    model: LanguageModel, place: Place, side: Side, arms: Sequence[Arm], done: Callable[[int], None]
) -> list[ArmRun]:
    """Run every arm on every row; `done` is called with the number of edited runs as they are made."""
    found: dict[int, ArmRun] = {}
    number = {id(arm): i for i, arm in enumerate(arms)}
    for some in batches(arms, len(side.index), MOST_RUNS):
        edit = joined_edits([arm.edit for arm in some])
        for arm, run in zip(some, _run(model, place, side, edit, some), strict=True):
            found[number[id(arm)]] = run
        done(len(some) * len(side.index))
    return [found[i] for i in range(len(arms))]


def _run(model: LanguageModel, place: Place, side: Side, edit: Edit, arms: list[Arm]) -> list[ArmRun]:
    n, layer = len(side.index), place[1]
    assert layer is not None
    text_V = torch.arange(n).repeat(len(arms))
    branches = Branches(layer, text_V, side.at_NL[text_V], {str(place): edit})
    hidden_VD = run_branches(model, side.trunk, branches)
    own_V, other_V = side.own_N[text_V], side.other_N[text_V]
    columns = [_sizes(edit, side.x_ND[text_V])]
    if arms[0].is_placebo:  # most runs are placebos'; the logits of two tokens are a small part of the head's work
        columns.insert(0, answer_differences(model, side.own_N, side.other_N, side.numbers, hidden_VD, text_V))
    else:
        found = measure(model, hidden_VD, side.trunk.hidden_ND[text_V], own_V, other_V)
        columns = [found.logit_difference, *columns, found.kl, found.probability]
    if side.numbers is not None:  # which have no answer of their own, so that none has a probability
        columns[0] = answer_differences(model, side.own_N, side.other_N, side.numbers, hidden_VD, text_V)
        columns = columns[:3]
    split = [x.double().cpu().view(len(arms), n).numpy() for x in columns]
    return [ArmRun(arm, *(x[i] for x in split)) for i, arm in enumerate(arms)]


def _sizes(edit: Edit, x_VD: Tensor) -> Tensor:
    """Length of each row's change, as a share of the length of its activation: [V]."""
    rows_V1 = torch.arange(len(x_VD))[:, None]
    changed_VD = apply_edit(edit, x_VD[:, None], rows_BL=rows_V1)[:, 0]
    return (changed_VD - x_VD).norm(dim=1) / x_VD.norm(dim=1).clamp(min=torch.finfo(x_VD.dtype).tiny)


def effect_of(run: ArmRun, side: Side, place: Place) -> Effect:
    """The means over the rows, with the interval of the headline unless it is a placebo's; a share of nothing is nan.

    Raises:
        DataError: logits that are not finite after the edit.
    """
    if not np.isfinite(run.difference).all():
        scale = "" if run.arm.scale is None else f" at scale {run.arm.scale:g}"
        raise DataError(
            f"{run.arm.method} along {run.arm.direction!a}{scale} at {place} gives logits that are not "
            "finite; take smaller scales (--scale), or load the model in float32"
        )
    part_N = side.difference - run.difference
    whole_N = side.whole(run.arm.method)
    effect, ends = float("nan"), None
    if whole_N is not None:
        effect = float(part_N.mean() / whole_N.mean())
        ends = None if run.arm.is_placebo else ratio_interval(part_N, whole_N, side.bootstrap)
    return Effect(
        method=run.arm.method,
        direction=run.arm.direction,
        point=place[0],
        layer=place[1],
        scale=run.arm.scale,
        split=side.split,
        n=len(side.index),
        effect=effect,
        interval=ends,
        logit_difference=float(run.difference.mean()),
        flip_rate=float(((run.difference > 0) != (side.difference > 0)).mean()),
        probability=None if run.probability is None else float(run.probability.mean()),
        kl=None if run.kl is None else float(run.kl.mean()),
        size=float(np.median(run.size)),
    )


HAAR = 0.05  # share of random directions that are nearer to the probe's than the angle that is reported


@dataclass(frozen=True)
class PlaceFound:
    """What was measured at one place, JSON-able.

    Attributes:
        effects: of every arm, without what compares places: bands and p-values.
        angles: of other directions to the probe's, in degrees.
        search: how the search for the best direction went; empty without one.
        after: method -> what can be read after its edit, and the loss elsewhere (`after_edits`).
        has_direction: whether the class means of the train rows differ; if not, no edit of the label changes anything.
    """

    effects: list[Effect]
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


@dataclass(frozen=True, eq=False)
class Shared:
    """What every place needs; None for what was not asked for.

    Attributes:
        texts: of the search for the best direction.
        aftermath: what is known before any edit.
    """

    texts: SearchTexts | None = None
    aftermath: Aftermath | None = None


def prepare(question: CausalQuestion) -> Shared:
    """Run the model on the texts that every place needs."""
    methods = question.options.method_names
    searches = question.options.das and "interchange" in methods and question.behaviour is None
    try:
        texts = search_texts(question) if searches else None
    except DataError:  # too few of the rows that were drawn for it have a counterpart: the rest needs no search
        texts = None
    return Shared(texts, prepare_aftermath(question) if set(methods) & set(CHOICES) else None)


def measure_place(
    question: CausalQuestion,
    sides: Mapping[str, Side],
    known: Shared,
    layer: LayerResult,
    done: Callable[[int], None],
) -> PlaceFound:
    """Fit the directions of a place to train rows, edit, and measure; `known` is the same for every place."""
    place, options = Place(layer.point, layer.layer), question.options
    every_ND = question.acts[place]
    train = question.acts.task.subset(question.train)
    x_ND = every_ND[torch.from_numpy(question.train)]
    fitted = fit_place(
        x_ND, train, question.label, placebo_labels(question), layer.probe, options.placebos, options.seed
    )
    search: dict[str, Any] = {}
    if known.texts is not None:
        own = search_at(question, known.texts, place)
        if own is not None:
            fitted, search = replace(fitted, learned=own[0]), dict(own[1])
    erasers = _erasers(question, fitted) if "erase" in options.method_names else {}
    effects = []
    for side in sides.values():
        here = replace(side, x_ND=_on(question, every_ND[torch.from_numpy(side.index)]))
        arms = list(_arms(question, fitted, erasers, here))
        runs = run_arms(question.model, place, here, arms, done)
        effects += [effect_of(run, here, place) for run in runs]
    after = {}
    if known.aftermath is not None:
        test = sides["test"]
        test = replace(test, x_ND=_on(question, every_ND[torch.from_numpy(test.index)]))
        after = after_edits(question, known.aftermath, test, fitted, erasers.get(question.label), effects)
    return PlaceFound(effects, _angles(fitted), search, after, fitted.mean_difference.basis_Dk.shape[1] > 0)


def search_at(
    question: CausalQuestion, texts: SearchTexts, place: Place, steps: int | None = None
) -> tuple[Candidate, Mapping[str, Any]] | None:
    """`learn_direction` with the activations of its texts."""
    x_ND = question.acts[place][torch.from_numpy(texts.index)]
    return learn_direction(question, texts, place, _on(question, x_ND), steps)


def placebo_labels(question: CausalQuestion) -> list[str]:
    """The label sets whose directions are placebos: all but that of the probes and that of the answers."""
    others = other_label_sets(question.acts.task.subset(question.train), question.label)
    return [name for name in others if name != question.answers_label]


def count_runs(question: CausalQuestion, sides: Mapping[str, int]) -> int:
    """How many edited runs a place takes; `sides` are the rows of each split."""
    options = question.options
    n_placebos = 0
    if options.placebos:
        n_placebos = 2 * options.placebos + 1 + len(placebo_labels(question))
    total = 0
    for split, rows in sides.items():
        arms = 3 + (n_placebos if split == "test" else 0)
        each = {"interchange": arms + 2, "erase": arms + 1, "steer": arms * len(options.scale_values)}
        total += rows * sum(n for method, n in each.items() if method in options.method_names)
    return total


def _arms(question: CausalQuestion, fitted: PlaceDirections, erasers: dict[str, Eraser], side: Side) -> Iterator[Arm]:
    """Placebos on test rows alone: validation only chooses."""
    options, with_placebos = question.options, side.split == "test"
    if "interchange" in options.method_names:
        yield from interchange_arms(fitted, side, with_placebos)
    if "erase" in options.method_names:
        yield from erase_arms(fitted, erasers, question.label, side, with_placebos)
    if "steer" in options.method_names:
        yield from steer_arms(fitted, options.scale_values, side, with_placebos)


def _erasers(question: CausalQuestion, fitted: PlaceDirections) -> dict[str, Eraser]:
    names = [question.label, *(fitted.other_labels if question.options.placebos else [])]
    tol = tol_of_few_rows(fitted.moments)
    return {name: fit_leace(fitted.moments, name, tol) for name in names}


def _on(question: CausalQuestion, x_ND: Tensor) -> Tensor:
    """Activations on the model's device, in float32 at least."""
    return x_ND.to(question.model.device, torch.promote_types(x_ND.dtype, torch.float32))


def _angles(fitted: PlaceDirections) -> dict[str, float]:
    """Between lines; of more than two classes the subspaces have several angles, and none is reported."""
    own = fitted.probe.basis_Dk
    if own.shape[1] != 1:
        return {}
    learned = [] if fitted.learned is None else [fitted.learned]
    others = [one for one in [*fitted.candidates[1:], *learned] if not one.is_placebo and one.basis_Dk.shape[1] == 1]
    found = {one.name: float(angle(own[:, 0], one.basis_Dk[:, 0])) for one in others}
    return {**found, f"random {HAAR:.0%}": float(haar_angle(len(own), HAAR))}
