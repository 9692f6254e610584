"""Train a probe at every place of a curve: fitted on train, chosen on validation, tested once, and checked.

The checks are the audit of the data, control tasks, baselines, code lengths, and the comparison of the places.
"""

from dataclasses import replace
from typing import Any

from probekit.activations.activations import Activations
from probekit.evaluation.compare.baselines import Baseline, LabelledInputs, embedding_baseline, model_free_baselines
from probekit.evaluation.compare.controls import draw_controls
from probekit.evaluation.compare.layers import compare_layers
from probekit.evaluation.compare.lead import lead, optimism
from probekit.evaluation.curve import FittedPlace, fit_curve, ticker
from probekit.evaluation.fits.choose import layers_by_round
from probekit.evaluation.plan import CurvePlan, numbers_only, plan_curve
from probekit.evaluation.request import Request, check_request, random_init_activations
from probekit.evaluation.results.data import LayerResult
from probekit.evaluation.results.provenance import origin_of, random_origin
from probekit.evaluation.results.results import ProbeResults
from probekit.evaluation.rows import audited_protocol, types_read
from probekit.evaluation.scores.metrics import Predictions, check_metric
from probekit.evaluation.scores.score import score, score_intervals
from probekit.options import ProbeArguments
from probekit.options.option import keywords


@keywords(ProbeArguments)
def train_probes(acts: Activations, options: ProbeArguments) -> ProbeResults:
    """Train and test a probe at every layer of one point.

    C and the best layer are chosen on the headline of validation (`metric`, or accuracy; AUROC where a class has more
    than 80% of the training labels; R2 for numbers). Ties go to the smaller C and the earlier layer. Test decides
    nothing. With nested folds both are chosen anew inside each fold, and the number to quote is that of the procedure
    (`results.estimate`). One layer's activations are in memory at a time.

    In a task without validation rows, a tenth of the training rows chooses, as after `load_task`, with a warning.

    Args:
        acts: from `extract` or `load_activations`.
        options: as keyword arguments.

    Raises:
        UsageError: an unknown probe, point, label or metric, a layer that is not there, a C that is not positive and
            finite, a probe of classes for labels that are numbers; `drop_leaks` with folds.
        DataError: NaN or infinity in the activations; labels out of range; a class missing from a split or a fold, or
            once the leaks are left out.
    """
    request = check_request(acts, options, carve=options.folds is None)
    metric = None if options.metric is None else check_metric(options.metric, request.n_classes)
    noise = None
    if options.random_init is not None:
        noise = random_init_activations(options.random_init, acts.task, request, options.position)
    audit, protocol = audited_protocol(request, options)
    controls = draw_controls(request, protocol, options)
    plan = plan_curve(request, protocol, options.seed, metric, controls, options.codelength)
    done = ticker(options.progress, len(request.places) * (1 if noise is None else 2))
    fitted = fit_curve(request.acts, request.places, plan, done)
    layers, chance = _compared(fitted, plan, None if options.folds else options.seed)
    baselines = _baselines(request, plan, fitted) if options.baselines else []
    meta = origin_of(request, plan, audit, options.seed, options.drop_leaks)
    meta |= {"control": controls.record, **chance, "random_init": random_origin(options.random_init)}
    random = [] if noise is None else fit_curve(noise, request.places, numbers_only(plan), done)
    results = ProbeResults(layers, [baseline.result for baseline in baselines], meta, _without_probes(random))
    quoted, meta["procedure"] = _quoted(results, fitted, plan)
    # the embedding is no baseline of itself
    others = [(baseline.result.name, baseline.test) for baseline in baselines if baseline.test is not quoted]
    others += _random_baseline(random, plan)
    meta["lead"] = lead(quoted, others, plan.headline, plan.bootstrap)
    meta["optimism"] = optimism(layers, results.best, plan.headline, results.estimate[0])
    return results


def _compared(fitted: list[FittedPlace], plan: CurvePlan, seed: int | None) -> tuple[list[LayerResult], dict[str, Any]]:
    """The results with bands, best set and p-values, and the record of the permutation test."""
    found = compare_layers([place.fit.test for place in fitted], plan.headline, plan.bootstrap, seed)
    layers = [
        replace(place.result, band=band, in_best_set=tied, p_value=p)
        for place, band, tied, p in zip(fitted, found.bands, found.in_best_set, found.p_values, strict=True)
    ]
    return layers, found.chance


def _baselines(request: Request, plan: CurvePlan, fitted: list[FittedPlace]) -> list[Baseline]:
    task = request.acts.task
    inputs = None if task.info.get("no_texts") or task.text_of is not None else task.inputs
    examples = LabelledInputs(inputs, types_read(request.acts), request.labels, request.n_classes)
    baselines = model_free_baselines(examples, plan.grid.protocol, plan.headline, plan.bootstrap)
    embedding = embedding_baseline(fitted[0].result, fitted[0].fit.test) if len(fitted) > 1 else None
    return baselines if embedding is None else [*baselines, embedding]


def _quoted(
    results: ProbeResults, fitted: list[FittedPlace], plan: CurvePlan
) -> tuple[Predictions, dict[str, Any] | None]:
    """The test predictions that are quoted; with folds, also the record of how well the procedure does."""
    protocol = plan.grid.protocol
    if protocol.folds is None:
        return fitted[results.layers.index(results.best)].fit.test, None
    quoted, chosen = layers_by_round([place.fit for place in fitted], protocol.rounds)
    intervals = {name: list(ends) for name, ends in score_intervals(plan.bootstrap, quoted).items()}
    layers = [fitted[i].result.place for i in chosen]
    return quoted, {"metrics": score(quoted), "intervals": intervals, "layers": layers}


def _random_baseline(random: list[FittedPlace], plan: CurvePlan) -> list[tuple[str, Predictions]]:
    """The test predictions from random weights, if there are any, at the layer that validation chooses among theirs."""
    if not random:
        return []
    results = ProbeResults([place.result for place in random], [], {"headline": plan.headline})
    return [("random init", _quoted(results, random, plan)[0])]


def _without_probes(fitted: list[FittedPlace]) -> list[LayerResult]:
    return [replace(place.result, probe=None) for place in fitted]
