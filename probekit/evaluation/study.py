"""What the curves of one label set share, whatever the point: audit, rows, control tasks, baselines and provenance."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from probekit.activations.activations import Activations
from probekit.evaluation.compare.baselines import Baseline, LabelledInputs, model_free_baselines
from probekit.evaluation.compare.controls import draw_controls
from probekit.evaluation.curve import FittedPlace, fit_places
from probekit.evaluation.plan import CurvePlan, numbers_only, plan_curve
from probekit.evaluation.request import Request
from probekit.evaluation.results.provenance import origin_of, random_origin
from probekit.evaluation.rows import Comparisons, audited_protocol, types_read
from probekit.evaluation.scores.bootstrap import Bootstrap
from probekit.evaluation.scores.metrics import check_metric
from probekit.options import CurvesArguments
from probekit.points import Place

Fitted = dict[Place, FittedPlace]


@dataclass(frozen=True, eq=False)
class Study:
    """One label set.

    Attributes:
        requests: one for each point.
        plan: the fits and scores of every place.
        baselines: those without a model; empty if none were requested.
        origin: the `meta` of the results, but for the point and what depends on the curve.
    """

    requests: list[Request]
    plan: CurvePlan
    baselines: list[Baseline]
    origin: dict[str, Any]


def studies_of(requests: Sequence[list[Request]], options: CurvesArguments) -> list[Study]:
    """A study for each label set; texts are compared once for all of them, and they share their resamples.

    Raises:
        DataError: a split or fold without all classes.
    """
    texts, studies = Comparisons(), []
    for own in requests:
        study = _study(own, options, texts)
        known = [each.plan.bootstrap for each in studies]
        studies.append(replace(study, plan=replace(study.plan, bootstrap=_same(study.plan.bootstrap, known))))
    return studies


def fit_studies(studies: Sequence[Study], places: Sequence[Place], done: Callable[[], None]) -> list[Fitted]:
    """The fits of every study at every place."""
    sources = [study.requests[0].features for study in studies]
    fitted = fit_places(sources, [study.plan for study in studies], places, done)
    return [dict(zip(places, each, strict=True)) for each in fitted]


def fit_random_init(
    noise: Activations, studies: Sequence[Study], places: Sequence[Place], done: Callable[[], None]
) -> list[Fitted]:
    """The same on the activations of random weights, without control tasks and code."""
    fitted = fit_places([noise] * len(studies), [numbers_only(study.plan) for study in studies], places, done)
    return [dict(zip(places, each, strict=True)) for each in fitted]


def _study(requests: list[Request], options: CurvesArguments, texts: Comparisons) -> Study:
    first = requests[0]
    metric = None if options.metric is None else check_metric(options.metric, first.n_classes)
    audit, protocol = audited_protocol(first, options, texts)
    controls = draw_controls(first, protocol, options)
    plan = plan_curve(first, protocol, options.seed, metric, controls, options.codelength, options.intervals)
    baselines = _baselines(first, plan) if options.baselines else []
    origin = origin_of(first, plan, audit, options.seed, options.drop_leaks, texts.fingerprint(first.acts))
    origin |= {"control": controls.record, "random_init": random_origin(options.random_init)}
    return Study(requests, plan, baselines, origin)


def _baselines(request: Request, plan: CurvePlan) -> list[Baseline]:
    task = request.acts.task
    inputs = task.inputs if task.has_texts and task.text_of is None else None
    examples = LabelledInputs(inputs, types_read(request.acts), request.labels, request.n_classes)
    return model_free_baselines(examples, plan.grid.protocol, plan.headline, plan.bootstrap)


def _same(bootstrap: Bootstrap | None, known: Sequence[Bootstrap | None]) -> Bootstrap | None:
    """A known bootstrap that draws the same rows, which may have its weights at hand, or else this one."""
    if bootstrap is None:
        return None
    return next((each for each in known if each is not None and each.draws_as(bootstrap)), bootstrap)
