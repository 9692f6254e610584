"""Train a probe at every place of a curve: fitted on train, chosen on validation, tested once, and checked.

The checks are the audit of the data, control tasks, baselines, code lengths, and the comparison of the places. Of
several curves, a place is read once for all label sets, and what belongs to a label set alone (audit, control tasks,
model-free baselines) is made once for all points.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from probekit.activations.activations import Activations
from probekit.activations.labelled import label, with_label_columns, with_task
from probekit.errors import StorageError
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
from probekit.evaluation.set_fits import FITTING, fit_sets
from probekit.evaluation.surface.shift import train_by_shift
from probekit.machine.devices import at_most
from probekit.machine.progress import shown_parts
from probekit.options import CurvesArguments
from probekit.options.option import keywords_of_three
from probekit.options.probe import BY_HEAD, OneCurveArguments, OnePositionArguments


@keywords_of_three(
    (OnePositionArguments, PositionResults), (OneCurveArguments, ProbeResults), (CurvesArguments, ProbeCurves)
)
def train_probes(
    acts: Activations, options: CurvesArguments
) -> ProbeResults | ProbeCurves | PositionResults | TransferResults:
    """Train and test a probe at every layer of one point, or of several points, label sets and kinds of probe.

    C and the best layer are chosen on the headline of validation (`metric`, or accuracy; AUROC where a class has
    more than 80% of the training labels; R2 for numbers). Ties go to the lower log loss (of numbers, squared
    error), then to the smaller C, then to the earlier layer. Test decides nothing. With nested folds both are
    chosen anew inside each fold, and the number to quote is that of the procedure (`results.estimate`). As many
    layers are fitted at once, and are in memory, as torch has threads, unless memory is short; on a GPU one. The
    numbers do not depend on the threads. A place of a store that does not fit in memory with its fits is read from
    disk in every pass (see `memory`): the numbers are the same within the certificates.

    A task without validation rows is fitted on all of train if there is one C, and then no layer is selected. If there
    are several, a tenth of the training rows chooses, as after `load_task`, with a warning.

    Args:
        acts: from `extract` or `load_activations`.
        options: as keyword arguments. Where `labels` holds labels by id rather than names, they are joined first, as
            `label(acts, labels)` does it.

    Returns:
        `ProbeResults`, the curve of one point and label set; with `points`, `probes` or several `labels`,
        `ProbeCurves`; with `by`, `PositionResults`, or `HeadResults` with by="head"; with `shift_column`,
        `TransferResults`.

    Raises:
        UsageError: an unknown probe, point, label or metric, a layer that is not there, a C that is not positive and
            finite, a probe of classes for labels that are numbers; `drop_leaks` with folds.
        DataError: NaN or infinity in the activations; labels out of range; a class missing from a split or a fold, or
            once the leaks are left out.
    """
    if options.log_to is not None:
        return _logged(acts, options, options.log_to)
    acts, options = _labelled(acts, options)
    if options.engine is not None:
        from probekit.engines.ray_probes import check_engine

        check_engine(acts, options)
    with shown_parts(options) as options, at_most(cast("int | None", options.memory)):
        if options.by is not None:
            return (train_by_head if options.by == BY_HEAD else train_by_position)(acts, options)
        if options.shift_column is not None:
            return train_by_shift(acts, options)
        requests = check_requests(acts, options)
        begin = announcer(options.on_part)
        sets = plan_label_sets(requests, options, begin)
        begin(FITTING)
        fits = fit_sets(acts, sets, options)
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


def _logged(acts: Activations, options: CurvesArguments, tracker: str) -> Any:
    """Train, and log the results; that the tracker is there is checked first. A run that it refuses is a warning."""
    from probekit.logging_to.check import check_tracker
    from probekit.logging_to.trackers import log_results

    check_tracker(tracker, options)
    results = train_probes(acts, **{**vars(options), "log_to": None})
    try:
        log_results(results, tracker)
    except StorageError as error:  # hours of fits are not lost to a tracker
        warnings.warn(str(error), stacklevel=3)
    return results


def _labelled(acts: Activations, options: CurvesArguments) -> tuple[Activations, CurvesArguments]:
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
