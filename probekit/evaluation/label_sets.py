"""What the curves of one label set share, whatever point and probe: audit, rows, control tasks, baselines."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from probekit.errors import DataError, UsageError
from probekit.evaluation.compare.baselines import Baseline, LabelledInputs, model_free_baselines
from probekit.evaluation.compare.black_boxes import BoxFit, black_box_fits
from probekit.evaluation.compare.controls import ControlTasks, draw_controls, record_of_controls
from probekit.evaluation.compare.lengths import length_features
from probekit.evaluation.fits.protocol import Protocol
from probekit.evaluation.plan import CurvePlan, plan_curve
from probekit.evaluation.quick import left_out, reads_texts, searches_near_duplicates
from probekit.evaluation.request import Request
from probekit.evaluation.results.data import NUISANCE
from probekit.evaluation.results.provenance import origin_of, random_origin
from probekit.evaluation.rows import Comparisons, audited_protocol, types_read
from probekit.evaluation.scores.bootstrap import Bootstrap
from probekit.evaluation.scores.metrics import check_metric
from probekit.evaluation.surface.columns import Nuisance, nuisance_columns
from probekit.machine.threads import one_thread
from probekit.options import CurvesArguments
from probekit.tasks.chats.messages import compared_inputs
from probekit.tasks.quality.audit import Audit

Made = TypeVar("Made")


@dataclass(frozen=True, eq=False)
class SharedParts:
    """What the probes of one label set have in common.

    Attributes:
        audit: of the task's rows and labels.
        protocol: the rows that are fitted, choose and test.
        controls: control tasks.
        baselines: those without a model; empty if none were requested.
        bootstrap: resamples of the test rows; None for no intervals.
        nuisance: the columns that are regressed out of a second curve; None if none were named.
        boxes: the black boxes among the baselines.
    """

    audit: Audit
    protocol: Protocol
    controls: ControlTasks
    baselines: list[Baseline]
    bootstrap: Bootstrap | None
    nuisance: Nuisance | None
    boxes: list[BoxFit]


@dataclass(frozen=True, eq=False)
class LabelSetPlan:
    """One label set and one probe for it.

    Attributes:
        requests: one for each point.
        plan: the fits and scores of every place.
        baselines: those without a model; empty if none were requested.
        origin: the `meta` of the results, but for the point and what depends on the curve.
        nuisance: the columns that are regressed out of a second curve; None if none were named.
        boxes: the black boxes among the baselines.
    """

    requests: list[Request]
    plan: CurvePlan
    baselines: list[Baseline]
    origin: dict[str, Any]
    nuisance: Nuisance | None = None
    boxes: Sequence[BoxFit] = ()


def plan_label_sets(
    requests: Sequence[list[Request]], options: CurvesArguments, begin: Callable[[str], None]
) -> list[LabelSetPlan]:
    """A plan for each label set and probe; texts are compared once for all of them, and they share their resamples.

    The probes of a label set share all but their fits.

    `begin` is called with the name of each part.

    Raises:
        DataError: a split or fold without all classes.
    """
    texts, shared = Comparisons(near=searches_near_duplicates(options)), dict[tuple[str, str], SharedParts]()

    def planned(*own: Request) -> LabelSetPlan:
        first = own[0]
        if first.rows_key not in shared:
            known = [each.bootstrap for each in shared.values()]
            shared[first.rows_key] = _shared_parts(first, options, texts, begin, known)
        return _planned(list(own), options, texts, shared[first.rows_key])

    return of_each_group(requests, planned)


def of_each_group(requests: Sequence[Sequence[Request]], make: Callable[..., Made]) -> list[Made]:
    """What `make` gives for each set of requests of the same rows.

    Groups whose rows turn out not to be enough are left out, and their `left_out` says why.

    Raises:
        DataError: all rows, or every group, are not enough.
    """
    found, failed = [], dict[tuple[str, str], DataError]()
    for own in requests:
        request = own[0]
        if request.rows_key in failed:
            continue
        try:
            found.append(make(*own))
        except DataError as error:
            if request.group is None:
                raise
            request.group.left_out[request.group.value] = str(error)
            failed[request.rows_key] = error
    if failed and not found:
        (label, value), error = next(iter(failed.items()))
        raise DataError(f"no value has a curve of {label!a:.40} (--within): {value!a:.40}: {error}")
    return found


def _shared_parts(
    request: Request,
    options: CurvesArguments,
    texts: Comparisons,
    begin: Callable[[str], None],
    known: Sequence[Bootstrap | None],
) -> SharedParts:
    """What the probes of a label set share; `known` are the resamples of other label sets."""
    begin("comparing texts")
    audit, protocol = audited_protocol(request, options, texts)
    if options.ensemble and not protocol.chooses:
        raise UsageError(
            "an ensemble (--ensemble) is chosen on validation rows, and the task has none; carve them "
            "(task.with_validation), or leave it out"
        )
    begin("drawing control tasks")
    controls = draw_controls(request, protocol, options)
    plan = plan_curve(request, protocol, options.seed, _metric(request, options), intervals=options.intervals)
    plan = replace(plan, bootstrap=_same(plan.bootstrap, known))
    begin("fitting baselines")
    nuisance = None
    if options.nuisance:
        nuisance = nuisance_columns(request.acts, options.nuisance, request.label, protocol)
    baselines = _baselines(request, plan, options, texts, nuisance)
    boxes = black_box_fits(options.black_boxes or [], request, plan)
    baselines += [box.baseline for box in boxes]
    return SharedParts(audit, protocol, controls, baselines, plan.bootstrap, nuisance, boxes)


def _metric(request: Request, options: CurvesArguments) -> str | None:
    return None if options.metric is None else check_metric(options.metric, request.n_classes)


def _planned(requests: list[Request], options: CurvesArguments, texts: Comparisons, parts: SharedParts) -> LabelSetPlan:
    first, controls = requests[0], parts.controls
    code, metric = bool(options.codelength), _metric(first, options)
    plan = plan_curve(first, parts.protocol, options.seed, metric, controls, code, options.intervals)
    plan = replace(plan, bootstrap=parts.bootstrap)
    origin = origin_of(first, plan, parts.audit, options.seed, options.drop_leaks, texts.fingerprint(first.acts))
    control = record_of_controls(controls, parts.protocol, plan.headline, first.n_classes)
    origin |= {"control": control, "random_init": random_origin(options.random_init)}
    origin["left_out"] = left_out(first, options)
    return LabelSetPlan(requests, plan, parts.baselines, origin, parts.nuisance, parts.boxes)


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
