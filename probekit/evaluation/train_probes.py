"""Train a probe at every place of a curve: fitted on train, chosen on validation, tested once, and checked.

The checks are the audit of the data, control tasks, baselines, code lengths, and the comparison of the places. Of
several curves, a place is read once for all label sets, and what belongs to a label set alone (audit, control tasks,
model-free baselines) is made once for all points.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from probekit.activations.activations import Activations
from probekit.activations.labelled import label, with_task
from probekit.evaluation.by_head.train import train_by_head
from probekit.evaluation.by_position.results import PositionResults
from probekit.evaluation.by_position.train import train_by_position
from probekit.evaluation.compare.baselines import Baseline, embedding_baseline
from probekit.evaluation.compare.layers import compare_layers
from probekit.evaluation.compare.lead import lead, optimism
from probekit.evaluation.compare.sequence import against_pooled, fit_pooled, pooled_results
from probekit.evaluation.curve import Fitted, FittedPlace, announcer, fit_places, ticker
from probekit.evaluation.fits.choose import layers_by_round
from probekit.evaluation.fits.spread import training_spread
from probekit.evaluation.label_sets import LabelSetPlan, plan_label_sets
from probekit.evaluation.plan import CurvePlan, numbers_only
from probekit.evaluation.quick import NO_P_VALUES
from probekit.evaluation.reading import of_rows
from probekit.evaluation.request import Request, check_requests, random_init_activations
from probekit.evaluation.results.curves import ProbeCurves
from probekit.evaluation.results.data import EMBEDDING, LayerResult, ProbeData
from probekit.evaluation.results.results import ProbeResults
from probekit.evaluation.results.spread import TrainingSpread
from probekit.evaluation.results.transfer_results import TransferResults
from probekit.evaluation.scored_rows import rates_of, scored_rows
from probekit.evaluation.scores.metrics import Predictions
from probekit.evaluation.scores.score import score, score_intervals
from probekit.evaluation.surface.nuisance import fit_residual, nuisance_record
from probekit.evaluation.surface.shift import train_by_shift
from probekit.options import CurvesArguments
from probekit.options.option import keywords_of_three
from probekit.options.probe import BY_HEAD
from probekit.options.probe_forms import OneCurveArguments, OnePositionArguments
from probekit.points import Place
from probekit.threads import one_thread


@keywords_of_three(
    (OnePositionArguments, PositionResults), (OneCurveArguments, ProbeResults), (CurvesArguments, ProbeCurves)
)
def train_probes(
    acts: Activations, options: CurvesArguments
) -> ProbeResults | ProbeCurves | PositionResults | TransferResults:
    """Train and test a probe at every layer of one point, or of several points, label sets and kinds of probe.

    C and the best layer are chosen on the headline of validation (`metric`, or accuracy; AUROC where a class has more
    than 80% of the training labels; R2 for numbers). Ties go to the smaller C and the earlier layer. Test decides
    nothing. With nested folds both are chosen anew inside each fold, and the number to quote is that of the procedure
    (`results.estimate`). As many layers are fitted at once, and are in memory, as torch has threads, unless memory
    is short; on a GPU one. The numbers do not depend on the threads.

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
    if options.joined is not None:
        acts, options = _labelled(acts, options)
    if options.by is not None:
        return (train_by_head if options.by == BY_HEAD else train_by_position)(acts, options)
    if options.shift_column is not None:
        return train_by_shift(acts, options)
    requests = check_requests(acts, options)
    places = list(dict.fromkeys(place for request in requests[0] for place in request.places))
    noise = options.random_init
    if noise is not None:
        noise = random_init_activations(noise, acts.task, requests[0][0], places, options)
    begin = announcer(options.on_part)
    sets = plan_label_sets(requests, options, begin)
    begin("fitting probes")
    parts = 1 + (noise is not None) + options.of_sequences + bool(options.nuisance)
    done = ticker(options.progress, len(places) * parts)
    plans, random = [each.plan for each in sets], [{}] * len(sets)
    fitted = fit_places([each.requests[0].features for each in sets], plans, places, done)
    pooled: list[dict[str, Fitted]] = [{}] * len(sets)
    if options.of_sequences:
        pooled = fit_pooled([each.requests[0].features for each in sets], plans, places, options, done)
    if noise is not None:
        noisy = [of_rows(noise, each.requests[0].rows) for each in sets]
        random = fit_places(noisy, [numbers_only(plan) for plan in plans], places, done)
    without: list[Fitted] = [{}] * len(sets)
    if options.nuisance:
        without = fit_residual(sets, places, done)
    begin("comparing layers")
    found = list(zip(fitted, random, pooled, without, strict=True))
    curves = [_curve(sets[i], sets[i].requests[point], found[i], options) for i, point in _in_order(sets)]
    return ProbeCurves(curves) if options.several else curves[0]


def _in_order(sets: Sequence[LabelSetPlan]) -> list[tuple[int, int]]:
    """The numbers of label set and point of each curve: label by label, in it point by point, then probe by probe."""
    labels = [each.requests[0].label for each in sets]
    every = [(number, point) for number, each in enumerate(sets) for point in range(len(each.requests))]
    return sorted(every, key=lambda pair: (labels.index(labels[pair[0]]), pair[1], pair[0]))


def _logged(acts: Activations, options: CurvesArguments, tracker: str) -> Any:
    """Train, and log the results; that the tracker is there is checked first."""
    from probekit.logging_to.check import check_tracker
    from probekit.logging_to.trackers import log_results

    check_tracker(tracker)
    results = train_probes(acts, **{**vars(options), "log_to": None})
    log_results(results, tracker)
    return results


def _labelled(acts: Activations, options: CurvesArguments) -> tuple[Activations, CurvesArguments]:
    """The activations with the labels that the options hold, those of random weights too; and the other options."""
    made, noise = label(acts, options.joined), options.random_init
    if noise is not None and noise.task.fingerprint() == acts.task.fingerprint():
        noise = with_task(noise, made.task)
    return made, replace(options, labels=None, random_init=noise)


@one_thread()
def _curve(
    label_set: LabelSetPlan,
    request: Request,
    found: tuple[Fitted, Fitted, dict[str, Fitted], Fitted],
    options: CurvesArguments,
) -> ProbeResults:
    """The results of one point: its layers compared with one another, with chance and with the baselines.

    `found` are the fits, those of random weights, those of one row for each text, and those without nuisances.
    """
    places, noise, pooled, without = found
    plan, fitted = label_set.plan, [places[place] for place in request.places]
    layers, chance = _compared(fitted, plan, None if options.folds or options.quick else options.seed)
    baselines = [*label_set.baselines, *([] if options.baselines is False else _embedding(fitted))]
    meta = {**label_set.origin, "point": request.point, **chance}
    if options.quick and options.intervals and not options.folds:
        meta["no_p_values"] = NO_P_VALUES
    noisy = [noise[place] for place in request.places if place in noise]
    random = [replace(place.result, probe=None) for place in noisy]
    rows = pooled_results(pooled, request.places)
    scored = scored_rows(request.acts, plan, fitted)
    layers = [replace(layer, rates=rates_of(scored, layer.place)) for layer in layers]
    spread = _spread(layers, request, plan, options)
    left = [without[place] for place in request.places if place in without]
    if left:
        meta["nuisance"] = nuisance_record(label_set, fitted, left)
    residual = [replace(place.result, probe=None) for place in left]
    scores = [baseline.result for baseline in baselines]
    results = ProbeResults(layers, scores, meta, random, rows, scored, spread, residual)
    quoted, meta["procedure"] = _quoted(results, fitted, plan)
    meta |= {"lead": None, "optimism": None}
    if quoted is not None:
        others = [*_rivals(results, baselines), *_random_baseline(noisy, plan)]
        meta["lead"] = lead(quoted, others, plan.headline, plan.bootstrap)
        if pooled:
            meta["pooled"] = against_pooled(quoted, _chosen(pooled, request.places, plan), plan)
        meta["optimism"] = optimism(results.layers, results.best, plan.headline, results.estimate[0])
    return results


def _spread(
    layers: list[LayerResult], request: Request, plan: CurvePlan, options: CurvesArguments
) -> TrainingSpread | None:
    """The spread of the selected place's training activations, if one was selected."""
    best = ProbeData(layers, [], {"headline": plan.headline}).selected
    if best is None:
        return None
    return training_spread(request.features, (best.point, best.layer), plan.grid.protocol, options.seed)


def _embedding(fitted: list[FittedPlace]) -> list[Baseline]:
    """The first place as a baseline of the others, if it is the embedding."""
    found = embedding_baseline(fitted[0].result, fitted[0].fit.test) if len(fitted) > 1 else None
    return [] if found is None else [found]


def _compared(fitted: list[FittedPlace], plan: CurvePlan, seed: int | None) -> tuple[list[LayerResult], dict[str, Any]]:
    """The results with bands, best set and p-values, and the record of the permutation test."""
    found = compare_layers([place.fit.test for place in fitted], plan.headline, plan.bootstrap, seed)
    layers = [
        replace(place.result, band=band, in_best_set=tied, p_value=p)
        for place, band, tied, p in zip(fitted, found.bands, found.in_best_set, found.p_values, strict=True)
    ]
    return layers, found.chance


def _quoted(
    results: ProbeResults, fitted: list[FittedPlace], plan: CurvePlan
) -> tuple[Predictions | None, dict[str, Any] | None]:
    """The test predictions that are quoted, if any are; with folds, also the record of how well the procedure does."""
    protocol = plan.grid.protocol
    if protocol.folds is None:
        selected = results.selected
        chosen = [each for each in fitted if selected is not None and each.result.place == selected.place]
        return chosen[0].fit.test if chosen else None, None
    quoted, chosen = layers_by_round([place.fit for place in fitted], protocol.rounds)
    intervals = {name: list(ends) for name, ends in score_intervals(plan.bootstrap, quoted).items()}
    layers = [fitted[i].result.place for i in chosen]
    return quoted, {"metrics": score(quoted), "intervals": intervals, "layers": layers}


def _chosen(
    pooled: dict[str, Fitted], places: Sequence[Place], plan: CurvePlan
) -> dict[str, tuple[ProbeResults, Predictions | None]]:
    """The curve of each kind of row, and its test predictions that would be quoted."""
    found = {}
    for how, fitted in pooled.items():
        own = [fitted[place] for place in places]
        results = ProbeResults([each.result for each in own], [], {"headline": plan.headline})
        test, results.meta["procedure"] = _quoted(results, own, plan)
        found[how] = results, test
    return found


def _random_baseline(random: list[FittedPlace], plan: CurvePlan) -> list[tuple[str, Predictions]]:
    """The test predictions from random weights, if there are any, at the layer that validation chooses among theirs."""
    if not random:
        return []
    results = ProbeResults([place.result for place in random], [], {"headline": plan.headline})
    quoted = _quoted(results, random, plan)[0]
    return [] if quoted is None else [("random init", quoted)]


def _rivals(results: ProbeResults, baselines: list[Baseline]) -> list[tuple[str, Predictions]]:
    """Name and test predictions of each baseline; where the embedding itself is quoted, it is no rival."""
    is_quoted = results.procedure is None and results.selected is results.layers[0]
    return [
        (baseline.result.name, baseline.test)
        for baseline in baselines
        if not (is_quoted and baseline.result.name == EMBEDDING)
    ]
