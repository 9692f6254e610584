"""The same fits and scores at every place, for one label set or several; several places at once.

Axes: N examples, D width.
"""

import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from probekit.activations.activations import Activations
from probekit.evaluation.compare.codelength import layer_codelength
from probekit.evaluation.compare.controls import compare_with_controls
from probekit.evaluation.fits.choose import ChosenFit, certified, choose_fit, control_fits, control_fits_at
from probekit.evaluation.fits.layer import LayerFits, WantedFits, fit_layers
from probekit.evaluation.fits.predict import ByMask, Features, at_mask, predict
from probekit.evaluation.fits.sequences import tokens_of_texts
from probekit.evaluation.fits.stream import OnPass, features_to_fit
from probekit.evaluation.plan import CurvePlan
from probekit.evaluation.results.data import LayerResult
from probekit.evaluation.scores.alarms import Rises, rises_of
from probekit.evaluation.scores.metrics import Predictions, metrics_of
from probekit.evaluation.scores.regression import r2_of_outputs
from probekit.evaluation.scores.score import score, score_intervals
from probekit.evaluation.surface.residual import Residualised
from probekit.machine.devices import free_bytes
from probekit.machine.threads import in_threads
from probekit.points import Place
from probekit.probes.running import running_scores
from probekit.probes.sequence.ragged import take_texts
from probekit.probes.stream import COPIES, Stream


@dataclass(frozen=True, eq=False)
class FittedPlace:
    """One place: its result, and the target's chosen fit, whose test predictions are compared between places.

    Attributes:
        result: the numbers.
        fit: the chosen fit.
        width: D of the place.
        validation: the saved probe's predictions for the validation rows; None with folds and without such rows.
        rises: of the running scores of the validation rows and then the test rows; None unless the probe is one of two
            classes over a sequence, and validation rows chose.
    """

    result: LayerResult
    fit: ChosenFit
    width: int
    validation: Predictions | None = None
    rises: Rises | None = None


Fitted = dict[Place, FittedPlace]


def fit_places(
    sources: Sequence[Activations],
    plans: Sequence[CurvePlan],
    places: Sequence[Place],
    done: Callable[[], None],
    on_pass: OnPass | None = None,
) -> list[Fitted]:
    """Fit and score every place for every plan; calls `done` after each place.

    As many places are fitted at once as torch has threads, one in each; small fits gain nothing from threads inside.
    One at a time: on a GPU, and for probes that cannot be fitted in several threads. So many places are in memory, and
    never more than half of the free memory holds (`places_at_once`). A place that memory cannot hold is read from the
    store in every pass.

    Args:
        sources: where each plan's features are read; a place of one source is read once for all its plans.
        plans: one for each label set.
        places: without duplicates.
        done: for progress; called from this thread.
        on_pass: called with a place and a number as each pass over rows on disk begins.

    Returns:
        For each plan, its places in this order.
    """
    features = _Features(sources, plans, places[0], on_pass)

    def fitted(place: Place) -> dict[int, FittedPlace]:
        found: dict[int, FittedPlace] = {}
        for source in {id(source): source for source in sources}.values():
            own = [number for number, each in enumerate(sources) if each is source]
            fits = fit_layers(features.of(source, place), [wanted_fits(plans[number]) for number in own])
            found |= {number: scored_place(place, each, plans[number]) for number, each in zip(own, fits, strict=True)}
        return found

    found = in_threads(fitted, places, features.at_once(plans), done)
    return [{place: each[number] for place, each in zip(places, found, strict=True)} for number in range(len(plans))]


class _Features:
    """Features, read by one thread at a time; those of the first place beforehand, since they say how many fit."""

    def __init__(
        self, sources: Sequence[Activations], plans: Sequence[CurvePlan], place: Place, on_pass: OnPass | None
    ):
        self._streams, self._on_pass = all(plan.probe.streams for plan in plans), on_pass
        self._sparse = all(plan.probe.reads_sparse for plan in plans)
        self._lock, self._first = Lock(), (id(sources[0]), place)
        self._known = {self._first: self._read(sources[0], place)}

    def at_once(self, plans: Sequence[CurvePlan]) -> int:
        """How many places may be fitted at once."""
        return places_at_once(self._known[self._first], plans)

    def of(self, source: Activations, place: Place) -> Features | ByMask:
        """The features of a place."""
        with self._lock:
            known = self._known.pop((id(source), place), None)
            return self._read(source, place) if known is None else known

    def _read(self, source: Activations, place: Place) -> Features | ByMask:
        """The features of a place: one row for each example or, where several are kept, the tokens of each text."""
        if isinstance(source, Residualised):
            return source.features(place)
        if source.layout.is_ragged:
            return tokens_of_texts(source, place)
        return features_to_fit(source, place, self._streams, self._on_pass, self._sparse)


def places_at_once(X: Features | ByMask, plans: Sequence[CurvePlan]) -> int:
    """How many places like X [N, D] may be fitted at once; one of those that are streamed, in all threads."""
    if isinstance(X, Stream) or X.device.type != "cpu" or not all(plan.probe.fits_in_threads for plan in plans):
        return 1
    free = free_bytes(X.device)
    return sys.maxsize if free is None else int(free / 2 / (COPIES * X.nbytes + 1))


def wanted_fits(plan: CurvePlan) -> WantedFits:
    """The fits that one solve gives: of the target, and of control tasks that need all or cost next to nothing."""
    every = list(plan.grid.index)
    together = _choose_own_C(plan) or plan.probe.shares_decomposition
    return WantedFits(plan.probe, plan.grid, every if together else [key for key in every if key[0] == 0])


def _choose_own_C(plan: CurvePlan) -> bool:
    """Whether control tasks choose among all strengths; of one strength it makes no difference."""
    return plan.control_C == "own" or len(plan.grid.strengths) == 1


def announcer(on_part: Callable[[str], None] | None) -> Callable[[str], None]:
    """`on_part`, or a function that does nothing."""
    return (lambda _: None) if on_part is None else on_part


def ticker(progress: Callable[[int, int], None] | None, total: int) -> Callable[[], None]:
    """A function that counts its calls for `progress`."""
    done = itertools.count(1)
    return lambda: None if progress is None else progress(next(done), total)


def scored_place(place: Place, fits: LayerFits, plan: CurvePlan) -> FittedPlace:
    """The chosen fit of a place, its scores and its checks."""
    fit = choose_fit(fits, plan.headline)
    controls = control_fits(fits, plan.headline) if _choose_own_C(plan) else control_fits_at(fits, fit.picks)
    rows: Any = fits.rows  # no probe over a sequence has a code length
    code, coding = (None, []) if plan.code is None else layer_codelength(plan.code, plan.probe, rows)
    if plan.label_names:
        fit.probe.label_names_ = plan.label_names
    certificates = {"probe": (fit.converged, fit.gap)}
    if controls:
        certificates["control"] = _worst([(each.converged, each.gap) for each in controls])
    if coding:
        certificates["code"] = certified(coding)
    converged, gap = _worst(list(certificates.values()))
    metrics, validation = _metrics(fits, fit, plan.headline)
    control, selectivity = compare_with_controls(fit.test, [each.test for each in controls], plan.headline)
    result = LayerResult(
        point=place[0],
        layer=place[1],
        C=fit.C,
        converged=converged,
        metrics=metrics,
        intervals=score_intervals(plan.bootstrap, fit.test),
        tried=fit.tried,
        probe=fit.probe,
        gap=gap,
        late=[name for name, (is_converged, _) in certificates.items() if not is_converged],
        control=control,
        selectivity=selectivity if plan.selectivity else None,
        codelength=code,
        outputs=_by_output(fit.test),
        loss=fit.loss,
    )
    return FittedPlace(result, fit, fits.X.shape[1], validation, _rises(fits, fit, validation))


def _rises(fits: LayerFits, fit: ChosenFit, validation: Predictions | None) -> Rises | None:
    """The rises of the running scores of the rows that chose and of those that test."""
    if validation is None or not fit.probe.of_sequences or fits.grid.n_classes != 2:
        return None
    protocol, X = fits.grid.protocol, at_mask(fits.X, fits.grid.protocol.final)
    rows = np.concatenate([protocol.rows["validation"], protocol.test])
    return rises_of(running_scores(fit.probe, take_texts(X, rows)))


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


def _metrics(fits: LayerFits, fit: ChosenFit, headline: str) -> tuple[dict[str, dict[str, float]], Predictions | None]:
    """The metrics of each split, and the predictions for the validation rows."""
    grid, test = fits.grid, score(fit.test)
    if grid.protocol.folds is not None:
        return {"validation": {headline: dict(fit.tried)[fit.C]}, "test": test}, None
    labels = grid.label_sets[0]
    others = {
        split: predict(fit.probe, at_mask(fits.X, grid.protocol.final), rows, labels, grid.n_classes)
        for split, rows in grid.protocol.rows.items()
        if split != "test"
    }
    metrics = {split: metrics_of(predictions) for split, predictions in others.items()}
    return {**metrics, "test": test}, others.get("validation")
