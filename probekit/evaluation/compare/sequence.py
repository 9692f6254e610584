"""A probe over a sequence against the probes of one row for each text: the mean of its tokens, and its last token.

All are fitted, chosen and tested on the same rows, and their scores are compared within the same resamples.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from probekit.activations.activations import Activations
from probekit.evaluation.compare.lead import lead
from probekit.evaluation.curve import Fitted, fit_places
from probekit.evaluation.fits.fit_grid import fit_grid
from probekit.evaluation.fits.sequences import PooledTokens
from probekit.evaluation.plan import CurvePlan
from probekit.evaluation.request import probe_strengths
from probekit.evaluation.results.data import LayerResult, ProbeData
from probekit.evaluation.scores.metrics import Predictions
from probekit.options import CurvesArguments
from probekit.points import Place
from probekit.probes import AggregateProbe, find_probe

POOLED = ("mean", "last")  # the rows to compare with


def fit_pooled(
    sources: Sequence[Activations],
    plans: Sequence[CurvePlan],
    places: Sequence[Place],
    options: CurvesArguments,
    done: Callable[[], None],
) -> list[dict[str, Fitted]]:
    """For each plan of a probe over a sequence, the probes of one row for each text: by kind of row, then by place.

    The probe is the token probe that is aggregated; for attention it is the logistic one.
    """
    views = {(id(source), how): PooledTokens(source, how) for source in sources for how in POOLED}
    own = [(number, how) for number in range(len(plans)) for how in POOLED]
    rows = [views[id(sources[number]), how] for number, how in own]
    fitted = iter(fit_places(rows, [_row_plan(plans[number], options) for number, _ in own], places, done))
    return [{how: next(fitted) for how in POOLED} for _ in plans]


def _row_plan(plan: CurvePlan, options: CurvesArguments) -> CurvePlan:
    of_tokens = plan.probe.probe if isinstance(plan.probe, AggregateProbe) else "logistic"
    grid = plan.grid
    probe = find_probe(of_tokens, grid.n_classes)
    C = options.C if probe.has_C else None
    rows = fit_grid(grid.protocol, grid.label_sets[:1], grid.n_classes, probe_strengths(probe, C))
    return replace(plan, probe=probe, grid=rows, code=None)


def pooled_results(pooled: dict[str, Fitted], places: Sequence[Place]) -> dict[str, list[LayerResult]]:
    """The numbers of the probes of one row for each text."""
    return {how: [replace(fitted[place].result, probe=None) for place in places] for how, fitted in pooled.items()}


def against_pooled(
    quoted: Predictions, pooled: Mapping[str, tuple[ProbeData, Predictions | None]], plan: CurvePlan
) -> dict[str, Any]:
    """By kind of row: the place that validation chooses, its score on test, and how far the quoted score is over it."""
    found = {}
    for how, (results, test) in pooled.items():
        ahead = None if test is None else lead(quoted, [(how, test)], plan.headline, plan.bootstrap)
        if ahead is not None:
            place = None if results.selected is None or results.procedure else results.selected.place
            value = results.estimate[0]
            found[how] = {"place": place, "value": value, "over": ahead["over"], "interval": ahead["interval"]}
    return found
