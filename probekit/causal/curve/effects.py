"""What edits at one place do to the behaviour, row by row and as shares.

Axes: N rows of a split, V edited runs, L position.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probekit.causal.behaviour.measure import measure
from probekit.causal.branches.run import Branches, run_branches
from probekit.causal.curve.arms import Arm, batches, joined_edits
from probekit.causal.curve.sides import Side, answer_differences
from probekit.causal.curve.statistics import ratio_interval
from probekit.causal.data import Effect
from probekit.errors import DataError
from probekit.interventions import Edit, apply_edit
from probekit.models.base import LanguageModel
from probekit.points import Place, place_name

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
    branches = Branches(layer, text_V, side.at_NL[text_V], {place_name(place): edit})
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
            f"{run.arm.method} along {run.arm.direction!a}{scale} at {place_name(place)} gives logits that are not "
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
