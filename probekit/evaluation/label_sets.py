"""What the curves of one label set share, whatever the point: audit, rows, control tasks, baselines and provenance."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from probekit.evaluation.compare.baselines import Baseline, LabelledInputs, model_free_baselines
from probekit.evaluation.compare.controls import draw_controls
from probekit.evaluation.compare.lengths import length_features
from probekit.evaluation.plan import CurvePlan, plan_curve
from probekit.evaluation.quick import left_out, reads_texts, searches_near_duplicates
from probekit.evaluation.request import Request
from probekit.evaluation.results.data import NUISANCE
from probekit.evaluation.results.provenance import origin_of, random_origin
from probekit.evaluation.rows import Comparisons, audited_protocol, types_read
from probekit.evaluation.scores.bootstrap import Bootstrap
from probekit.evaluation.scores.metrics import check_metric
from probekit.evaluation.surface.columns import Nuisance, nuisance_columns
from probekit.options import CurvesArguments
from probekit.tasks.chats.contents import compared_inputs
from probekit.threads import one_thread


@dataclass(frozen=True, eq=False)
class LabelSetPlan:
    """One label set.

    Attributes:
        requests: one for each point.
        plan: the fits and scores of every place.
        baselines: those without a model; empty if none were requested.
        origin: the `meta` of the results, but for the point and what depends on the curve.
        nuisance: the columns that are regressed out of a second curve; None if none were named.
    """

    requests: list[Request]
    plan: CurvePlan
    baselines: list[Baseline]
    origin: dict[str, Any]
    nuisance: Nuisance | None = None


def plan_label_sets(
    requests: Sequence[list[Request]], options: CurvesArguments, begin: Callable[[str], None]
) -> list[LabelSetPlan]:
    """A plan for each label set; texts are compared once for all of them, and they share their resamples.

    `begin` is called with the name of each part.

    Raises:
        DataError: a split or fold without all classes.
    """
    texts, sets = Comparisons(near=searches_near_duplicates(options)), []
    for own in requests:
        made = _planned(own, options, texts, begin)
        known = [each.plan.bootstrap for each in sets]
        sets.append(replace(made, plan=replace(made.plan, bootstrap=_same(made.plan.bootstrap, known))))
    return sets


def _planned(
    requests: list[Request], options: CurvesArguments, texts: Comparisons, begin: Callable[[str], None]
) -> LabelSetPlan:
    first = requests[0]
    metric = None if options.metric is None else check_metric(options.metric, first.n_classes)
    begin("comparing texts")
    audit, protocol = audited_protocol(first, options, texts)
    begin("drawing control tasks")
    controls = draw_controls(first, protocol, options)
    plan = plan_curve(first, protocol, options.seed, metric, controls, bool(options.codelength), options.intervals)
    begin("fitting baselines")
    nuisance = None
    if options.nuisance:
        nuisance = nuisance_columns(first.acts, options.nuisance, first.label, protocol.train)
    baselines = _baselines(first, plan, options, texts, nuisance)
    origin = origin_of(first, plan, audit, options.seed, options.drop_leaks, texts.fingerprint(first.acts))
    origin |= {"control": controls.record, "random_init": random_origin(options.random_init)}
    origin["left_out"] = left_out(first, options)
    return LabelSetPlan(requests, plan, baselines, origin, nuisance)


@one_thread()
def _baselines(
    request: Request, plan: CurvePlan, options: CurvesArguments, texts: Comparisons, nuisance: Nuisance | None
) -> list[Baseline]:
    if options.baselines is False and nuisance is None:
        return []
    task, words = request.acts.task, types_read(request.acts)
    inputs = compared_inputs(task) if options.baselines and reads_texts(task) else None
    counts = bigrams = lengths = None
    if words is None and inputs is not None:
        counts, bigrams = texts.words(task), texts.bigrams(task)
        lengths = length_features(inputs, request.acts.layout.own_lengths)
    examples = LabelledInputs(inputs, counts, words, request.labels, request.n_classes, bigrams, lengths)
    if nuisance is not None:
        examples = replace(examples, nuisance=nuisance.features)
    found = model_free_baselines(examples, plan.grid.protocol, plan.headline, plan.bootstrap)
    return [each for each in found if options.baselines is not False or each.result.name == NUISANCE]


def _same(bootstrap: Bootstrap | None, known: Sequence[Bootstrap | None]) -> Bootstrap | None:
    """A known bootstrap that draws the same rows, which may have its weights at hand, or else this one."""
    if bootstrap is None:
        return None
    return next((each for each in known if each is not None and each.draws_as(bootstrap)), bootstrap)
