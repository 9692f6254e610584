"""The same fits and scores at every place, for one label set or several; one place's activations in memory at a time.

Axes: N examples.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from probekit.activations.activations import Activations
from probekit.evaluation.compare.codelength import layer_codelength
from probekit.evaluation.compare.controls import compare_with_controls
from probekit.evaluation.fits.choose import ChosenFit, certified, choose_fits
from probekit.evaluation.fits.layer import LayerFits, WantedFits, features_of, fit_layers
from probekit.evaluation.fits.predict import predict
from probekit.evaluation.plan import CurvePlan
from probekit.evaluation.results.data import LayerResult
from probekit.evaluation.scores.metrics import Predictions, measure
from probekit.evaluation.scores.regression import r2_of_outputs
from probekit.evaluation.scores.score import score, score_intervals
from probekit.points import Place


@dataclass(frozen=True, eq=False)
class FittedPlace:
    """One place: its result, and the target's chosen fit, whose test predictions are compared between places.

    Attributes:
        result: the numbers.
        fit: the chosen fit.
        width: D of the place.
    """

    result: LayerResult
    fit: ChosenFit
    width: int


Fitted = dict[Place, FittedPlace]


def fit_places(
    sources: Sequence[Activations], plans: Sequence[CurvePlan], places: Sequence[Place], done: Callable[[], None]
) -> list[Fitted]:
    """Fit and score every place for every plan; calls `done` after each place.

    Args:
        sources: where each plan's features are read; a place of one source is read once for all its plans.
        plans: one for each label set.
        places: without duplicates.
        done: for progress.

    Returns:
        For each plan, its places in this order.
    """
    fitted: list[Fitted] = [{} for _ in plans]
    for place in places:
        for source in {id(source): source for source in sources}.values():
            own = [number for number, each in enumerate(sources) if each is source]
            fits = fit_layers(features_of(source, place), [_wanted(plans[number]) for number in own])
            for number, each in zip(own, fits, strict=True):
                fitted[number][place] = _scored(place, each, plans[number])
        done()
    return fitted


def _wanted(plan: CurvePlan) -> WantedFits:
    return WantedFits(plan.probe, plan.grid, None if plan.code is None else plan.code.problems())


def ticker(progress: Callable[[int, int], None] | None, total: int) -> Callable[[], None]:
    """A function that counts its calls for `progress`."""
    done = itertools.count(1)
    return lambda: None if progress is None else progress(next(done), total)


def _scored(place: Place, fits: LayerFits, plan: CurvePlan) -> FittedPlace:
    fit, *controls = choose_fits(fits, plan.headline)
    if plan.label_names:
        fit.probe.label_names_ = plan.label_names
    certificates = {"probe": (fit.converged, fit.gap)}
    if controls:
        certificates["control"] = _worst([(each.converged, each.gap) for each in controls])
    if fits.code_probes:
        certificates["code"] = certified(fits.code_probes)
    converged, gap = _worst(list(certificates.values()))
    control, selectivity = compare_with_controls(fit.test, [each.test for each in controls], plan.headline)
    result = LayerResult(
        point=place[0],
        layer=place[1],
        C=fit.C,
        converged=converged,
        metrics=_metrics(fits, fit, plan.headline),
        intervals=score_intervals(plan.bootstrap, fit.test),
        tried=fit.tried,
        probe=fit.probe,
        gap=gap,
        late=[name for name, (is_converged, _) in certificates.items() if not is_converged],
        control=control,
        selectivity=selectivity if plan.selectivity else None,
        codelength=None if plan.code is None else layer_codelength(plan.code, fits),
        outputs=_by_output(fit.test),
    )
    return FittedPlace(result, fit, fits.X.shape[1])


def _by_output(test: Predictions) -> list[float | None]:
    """R2 of each output of a regression of several numbers."""
    if test.truth.ndim == 1:
        return []
    values = r2_of_outputs(test, np.ones((len(test.truth), 1)))[0]
    return [float(value) if np.isfinite(value) else None for value in values]


def _worst(certificates: Sequence[tuple[bool, float | None]]) -> tuple[bool, float | None]:
    """Whether all converged, and the largest gap; None where one has none."""
    gaps = [gap for _, gap in certificates if gap is not None]
    return all(converged for converged, _ in certificates), max(gaps) if len(gaps) == len(certificates) else None


def _metrics(fits: LayerFits, fit: ChosenFit, headline: str) -> dict[str, dict[str, float]]:
    grid, test = fits.grid, score(fit.test)
    if grid.protocol.folds is not None:
        return {"validation": {headline: dict(fit.tried)[fit.C]}, "test": test}
    labels, metrics = grid.label_sets[0], {}
    for split in (split for split in grid.protocol.rows if split != "test"):
        metrics[split] = measure(predict(fit.probe, fits.X, grid.protocol.rows[split], labels, grid.n_classes))
    return {**metrics, "test": test}
