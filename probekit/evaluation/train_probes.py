"""Train a probe at every place of a curve: fitted on train, chosen on validation, tested once, and checked.

The checks are the audit of the data, control tasks, baselines, code lengths, and the comparison of the places. Of
several curves, a place is read once for all label sets, and what belongs to a label set alone (audit, control tasks,
model-free baselines) is made once for all points.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from probekit.activations.activations import Activations
from probekit.activations.labelled import label, with_label_columns, with_task
from probekit.evaluation.by_head.train import train_by_head
from probekit.evaluation.by_position.results import PositionResults
from probekit.evaluation.by_position.train import train_by_position
from probekit.evaluation.curve import announcer
from probekit.evaluation.curve_results import curve_results
from probekit.evaluation.label_sets import LabelSetPlan, plan_label_sets
from probekit.evaluation.reading import checked_activations
from probekit.evaluation.request import check_requests
from probekit.evaluation.results.curves import ProbeCurves
from probekit.evaluation.results.results import ProbeResults
from probekit.evaluation.results.transfer_results import TransferResults
from probekit.evaluation.set_fits import FITTING, FitPlaces, fit_sets
from probekit.evaluation.surface.shift import train_by_shift
from probekit.machine.devices import at_most
from probekit.machine.progress import shown_parts
from probekit.options import CurvesArguments
from probekit.options.probe import BY_HEAD


def train_curves(
    acts: Activations, options: CurvesArguments, fit_elsewhere: FitPlaces | None = None
) -> ProbeResults | ProbeCurves | PositionResults | TransferResults:
    """`train_probes`, with its options as an object, and no tracker; a cluster fits the places if one is given."""
    acts, options = with_labels(acts, options)
    with shown_parts(options) as options, at_most(cast("int | None", options.memory)):
        if options.by is not None:
            return (train_by_head if options.by == BY_HEAD else train_by_position)(acts, options)
        if options.shift_column is not None:
            return train_by_shift(acts, options)
        requests = check_requests(acts, options)
        begin = announcer(options.on_part)
        sets = plan_label_sets(requests, options, begin)
        begin(FITTING)
        fits = fit_sets(acts, sets, options, fit_elsewhere)
        begin("comparing layers")
        curves = [
            curve_results(sets[number], sets[number].requests[point], fits[number], options)
            for number, point in _in_order(sets)
        ]
    return ProbeCurves(curves) if options.several else curves[0]


def _in_order(sets: Sequence[LabelSetPlan]) -> list[tuple[int, int]]:
    """The numbers of label set and point of each curve: label by label, in it point by point, then probe by probe."""
    labels = [each.requests[0].label for each in sets]
    every = [(number, point) for number, each in enumerate(sets) for point in range(len(each.requests))]
    return sorted(every, key=lambda pair: (labels.index(labels[pair[0]]), pair[1], pair[0]))


def with_labels(acts: Activations, options: CurvesArguments) -> tuple[Activations, CurvesArguments]:
    """The activations with the labels that the options hold or name, those of random weights too; and the options."""
    if options.joined is not None:
        made = label(acts, options.joined)
        options = replace(options, labels=None)
    else:
        made = with_label_columns(
            checked_activations(acts),
            options.label,
            *(options.labels if isinstance(options.labels, list | tuple) else ()),
        )
    noise = options.random_init
    if made is acts or noise is None:
        return made, options
    if noise.task.fingerprint() == acts.task.fingerprint():
        noise = with_task(noise, made.task)
    return made, replace(options, random_init=noise)
