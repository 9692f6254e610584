"""Probes of other features of the same rows, with which a curve is compared.

A probe over a sequence is compared with probes of one row for each text: the mean of its tokens, and its last token. A
probe of latents is compared with one of the activations that the latents are of. All are fitted, chosen and tested on
the same rows, and their scores are compared within the same resamples.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from probekit.activations.activations import Activations
from probekit.activations.latents import before_encoding
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
from probekit.probes import AggregateProbe, KSparseProbe, find_probe

POOLED = ("mean", "last")  # the rows to compare with
ACTIVATIONS = "activations"  # those that latents are of


def other_features(sources: Sequence[Activations], options: CurvesArguments) -> list[dict[str, Activations]]:
    """For each source, the features that its probes are compared with, by name; all have the same names.

    They are "mean" and "last" for a probe over a sequence, and "activations" for a probe of latents.
    """
    if options.of_sequences:
        return [{how: PooledTokens(source, how) for how in POOLED} for source in sources]
    unencoded = [before_encoding(source) for source in sources]
    return [{} if one is None or options.baselines is False else {ACTIVATIONS: one} for one in unencoded]


def fit_pooled(
    others: Sequence[dict[str, Activations]],
    plans: Sequence[CurvePlan],
    places: Sequence[Place],
    options: CurvesArguments,
    done: Callable[[], None],
) -> list[dict[str, Fitted]]:
    """For each plan, the probes of each of the other features, by name and then by place.

    The probe is the token probe that is aggregated, or the probe of the latents; for attention and k-sparse it is the
    logistic one.
    """
    own = [(number, how) for number, features in enumerate(others) for how in features]
    if not own:
        return [{} for _ in plans]
    rows = [others[number][how] for number, how in own]
    fitted = iter(fit_places(rows, [_row_plan(plans[number], options) for number, _ in own], places, done))
    return [{how: next(fitted) for how in features} for features in others]


def _row_plan(plan: CurvePlan, options: CurvesArguments) -> CurvePlan:
    grid, probe = plan.grid, plan.probe
    if isinstance(probe, AggregateProbe):
        given: Any = probe.probe
    else:
        given = "logistic" if probe.of_sequences or isinstance(probe, KSparseProbe) else probe
    of_rows = find_probe(given, grid.n_classes)
    C = options.C if of_rows.has_C else None
    rows = fit_grid(grid.protocol, grid.label_sets[:1], grid.n_classes, probe_strengths(of_rows, C))
    return replace(plan, probe=of_rows, grid=rows, code=None)


def pooled_results(pooled: dict[str, Fitted], places: Sequence[Place]) -> dict[str, list[LayerResult]]:
    """The numbers of the probes of other features."""
    return {how: [replace(fitted[place].result, probe=None) for place in places] for how, fitted in pooled.items()}


def against_pooled(
    quoted: Predictions, pooled: Mapping[str, tuple[ProbeData, Predictions | None]], plan: CurvePlan
) -> dict[str, Any]:
    """By name: the place that validation chooses, its score on test, and how far the quoted score is over it."""
    found = {}
    for how, (results, test) in pooled.items():
        ahead = None if test is None else lead(quoted, [(how, test)], plan.headline, plan.bootstrap)
        if ahead is not None:
            place = None if results.selected is None or results.procedure else results.selected.place
            value = results.estimate[0]
            found[how] = {"place": place, "value": value, "over": ahead["over"], "interval": ahead["interval"]}
    return found
