"""Run the model again with an edit, and probe what can be read at this place and at every later one."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from probekit.activations import Activations, ActivationSet
from probekit.activations.extract import extract_task
from probekit.causal.erasure.completeness import FreshProbes, FreshReading, fresh_probes
from probekit.causal.erasure.erase import one_row_each
from probekit.errors import UsageError
from probekit.interventions import Edit
from probekit.models.base import LanguageModel
from probekit.options import ExtractArguments
from probekit.points import Place, PointSpec
from probekit.selections import PER_EXAMPLE
from probekit.tasks import Task


def read_after_edit(
    model: LanguageModel,
    acts: Activations,
    place: PointSpec,
    edit: Edit,
    label: str | None = None,
    *,
    before: FreshReading | None = None,
    at: Literal["read", "all"] = "read",
    **how: Any,
) -> FreshProbes:
    """Fresh probes at the edited place and at every later one of its curve, with the edit and without.

    Args:
        model: that `acts` are from.
        acts: activations without the edit, one row for each text; those of train, to which the edit was fitted, are
            not run.
        place: where the edit acts, such as "resid_pre.5".
        edit: `fit_eraser(acts, place).edit`, or any other.
        label: the edited label set; None is the task's target.
        before: `read_afresh(acts)`, for several edits.
        at: the tokens that are edited: the one that is read, or all of the text.
        how: `probe` and `seed` of `read_afresh`.

    Raises:
        UnknownPoint: no such place.
        UsageError: several tokens of each text; an edit that does not fit the place; another model; as from
            `fresh_probes`.
        DataError: as from `fresh_probes`.
    """
    known = acts.meta.get("model_fingerprint")
    if known is not None and known != model.fingerprint():
        raise UsageError(f"the activations are of other weights than those of {model.name}; load the model they are of")
    edited = acts.point_of(place)
    one_row_each(acts, edited, torch.arange(0))
    curve = acts.curve(edited[0])
    later = curve[curve.index(edited) :]
    if acts.meta.get("position") == "mean" and at == "read":
        raise UsageError(f"{edited} is the mean over all tokens, so no one token is read; give at='all'")
    if acts.task.text_of is not None:
        raise UsageError("each token is an example here, and an edit needs texts; choose one token: acts.at(position)")
    after = extract_edited(model, acts, acts.task.subset(acts.task.splits != "train"), later, {edited: edit}, at)
    return fresh_probes(acts if before is None else before, after, label, **how)


def extract_edited(
    model: LanguageModel,
    acts: Activations,
    task: Task,
    places: Sequence[Place],
    edits: Mapping[Any, Any],
    at: Any,
) -> ActivationSet:
    """Extract some places of some rows of `acts` again, in the same way but under edits."""
    position, own = acts.meta.get("position", task.position), acts.layout.token_index
    if position == PER_EXAMPLE:  # of an array that `extract` was given, or of the task
        row_of = {name: row for row, name in enumerate(acts.task.ids)}
        position = task.position if own is None else own[[row_of[name] for name in task.ids]]
    how = ExtractArguments(
        points=list(dict.fromkeys(point for point, _ in places)),
        layers=sorted({layer for _, layer in places if layer is not None}),
        position=position,
        bos=acts.meta.get("bos"),
        on_long=acts.meta.get("on_long", "cut"),
        edits=edits,
        edit_positions=at,
        out=None,
        progress=False,
    )
    again = extract_task(model, task, how)
    return ActivationSet({place: again[place] for place in places}, task)
