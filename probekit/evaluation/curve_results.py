"""The results of one point from its fits: layers compared with one another, with chance and with baselines."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from probekit.evaluation.compare.baselines import Baseline, embedding_baseline
from probekit.evaluation.compare.layers import compare_layers
from probekit.evaluation.compare.lead import lead, optimism
from probekit.evaluation.compare.sequence import against_pooled, pooled_results
from probekit.evaluation.curve import Fitted, FittedPlace
from probekit.evaluation.fits.choose import layers_by_round
from probekit.evaluation.fits.spread import training_spread
from probekit.evaluation.label_sets import LabelSetPlan
from probekit.evaluation.plan import CurvePlan
from probekit.evaluation.quick import NO_P_VALUES
from probekit.evaluation.request import Request
from probekit.evaluation.results.data import EMBEDDING, LayerResult, ProbeData
from probekit.evaluation.results.results import ProbeResults
from probekit.evaluation.results.spread import TrainingSpread
from probekit.evaluation.scored_rows import rates_of, scored_rows
from probekit.evaluation.scores.metrics import Predictions
from probekit.evaluation.scores.score import score, score_intervals
from probekit.evaluation.set_fits import SetFits
from probekit.evaluation.surface.nuisance import nuisance_record
from probekit.machine.threads import one_thread
from probekit.options import CurvesArguments
from probekit.points import Place


@one_thread()
def curve_results(label_set: LabelSetPlan, request: Request, fits: SetFits, options: CurvesArguments) -> ProbeResults:
    """The results of one point: its layers compared with one another, with chance and with the baselines."""
    plan, fitted = label_set.plan, [fits.own[place] for place in request.places]
    layers, chance = _compared(fitted, plan, None if options.folds or options.quick else options.seed)
    baselines = [*label_set.baselines, *([] if options.baselines is False else _embedding(fitted))]
    meta = {**label_set.origin, "point": request.point, **chance}
    meta["test_groups"] = None if plan.bootstrap is None else plan.bootstrap.n_groups
    if options.quick and options.intervals and not options.folds:
        meta["no_p_values"] = NO_P_VALUES
    noisy = [fits.random[place] for place in request.places if place in fits.random]
    left = [fits.residual[place] for place in request.places if place in fits.residual]
    if left:
        meta["nuisance"] = nuisance_record(label_set, fitted, left)
    scored = scored_rows(request.acts, plan, fitted)
    layers = [replace(layer, rates=rates_of(scored, layer.place)) for layer in layers]
    results = ProbeResults(
        layers=layers,
        baselines=[baseline.result for baseline in baselines],
        meta=meta,
        random_init=_numbers(noisy),
        pooled=pooled_results(fits.pooled, request.places),
        rows=scored,
        spread=_spread(layers, request, plan, options),
        residual=_numbers(left),
    )
    quoted, meta["procedure"] = _quoted(results, fitted, plan)
    meta |= {"lead": None, "optimism": None}
    if quoted is not None:
        others = [*_rivals(results, baselines), *_random_baseline(noisy, plan)]
        meta["lead"] = lead(quoted, others, plan.headline, plan.bootstrap)
        if fits.pooled:
            meta["pooled"] = against_pooled(quoted, _chosen(fits.pooled, request.places, plan), plan)
        meta["optimism"] = optimism(results.layers, results.best, plan.headline, results.estimate[0])
    return results


def _numbers(places: Sequence[FittedPlace]) -> list[LayerResult]:
    """The results without the fitted probes."""
    return [replace(place.result, probe=None) for place in places]


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
