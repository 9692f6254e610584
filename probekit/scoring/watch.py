"""Make the probes of a monitor from what was given: results, results of a place, fitted probes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from probekit.errors import ResumeMismatch, UsageError, nearest
from probekit.evaluation.results.data import ProbeData
from probekit.evaluation.results.results import PlaceResults
from probekit.models.base import LanguageModel
from probekit.options import MonitorOptions
from probekit.options.check import is_whole
from probekit.points import place_name, split_point
from probekit.probes import Probe
from probekit.scoring.calibrate import calibrated, calibration_of
from probekit.scoring.probe import model_differences, result_at
from probekit.scoring.running import token_rule
from probekit.scoring.threshold import choose_threshold
from probekit.scoring.watched import WatchedProbe
from probekit.text import kind_of, listed, printable


def watched_probes(model: LanguageModel, given: Any, options: MonitorOptions) -> list[WatchedProbe]:
    """The probes with their places, thresholds and calibrations.

    Raises:
        As `Monitor`.
    """
    if not isinstance(given, Mapping):
        if isinstance(options.threshold, Mapping):
            raise UsageError("threshold is a dictionary, and there is one probe; give a number")
        return [_watched(model, None, given, options)]
    if not given:
        raise UsageError("expected one probe or more to watch with, got none")
    if options.place is not None:
        raise UsageError("several probes have their own places; give (probe, place) for each, and leave place= out")
    names = [str(name) for name in given]
    for name in options.threshold if isinstance(options.threshold, Mapping) else ():
        if name not in names:
            hint = ascii(nearest(str(name), names))[1:-1]
            raise UsageError(f"a threshold for {str(name)!a:.60}, which is the name of no probe; {hint}")
    return [_watched(model, str(name), one, options) for name, one in given.items()]


def probabilities_of(watched: WatchedProbe, scores: Sequence[float]) -> np.ndarray:
    """The calibrated probability of the class that is watched, for each score; nan without a calibration."""
    if watched.calibration is None:
        return np.full(len(scores), np.nan)
    towards_second = watched.sign * np.array(scores)
    return calibrated(watched.calibration, towards_second)[:, 1 if watched.sign > 0 else 0]


def _watched(model: LanguageModel, name: str | None, given: Any, options: MonitorOptions) -> WatchedProbe:
    place, results = options.place, None
    if isinstance(given, tuple) and len(given) == 2:
        given, place = given
    if isinstance(given, PlaceResults):
        given, place = given.curve, given.place
    if isinstance(given, ProbeData):
        results = given
        _check_model(model, results, options)
        if (results.meta.get("reading") or {}).get("places"):
            raise UsageError("a monitor reads one place, and this probe was trained on several side by side")
        at = place if place is None or is_whole(place) else place_name(split_point(place))
        given = results.best if at is None else result_at(results, at)
    if isinstance(given, Probe) and place is None:
        raise UsageError('a fitted probe needs its place, such as place="resid_pre.5"; results know theirs')
    if not isinstance(given, Probe):
        place, given = getattr(given, "place", None), getattr(given, "probe", given)
    if not isinstance(given, Probe) or place is None:
        raise UsageError(
            f"expected results of train_probes or a fitted probe, got {kind_of(given)}; train one, or load it with "
            "ProbeResults.load or load_probe"
        )
    check_is_fitted(given)
    at = split_point(place)
    name = place_name(at) if name is None else name
    rows, own = (None, place_name(at)) if results is None else (results.rows, place_name(at))
    rule = token_rule(given, options.target)
    calibration = calibration_of(rows, own, given.log_odds) if rule.sign else None
    edited = None if results is None or options.any_model else results.meta.get("activations", {}).get("edited")
    threshold = _threshold(name, own, results, options)
    return WatchedProbe(name, given, at, rule, threshold, calibration, rule.sign or 1, edited)


def _threshold(name: str, place: str, results: ProbeData | None, options: MonitorOptions) -> float | None:
    if options.fpr is not None:
        if results is None:
            raise UsageError(f"fpr= needs the results of train_probes, and {printable(name)} is a fitted probe alone")
        return choose_threshold(results.rows, place, options.fpr).value
    if isinstance(options.threshold, Mapping):
        return options.threshold.get(name)
    return options.threshold


def _check_model(model: LanguageModel, results: ProbeData, options: MonitorOptions) -> None:
    if options.any_model:
        return
    different, _ = model_differences(results.meta.get("activations", {}), model, with_texts=False)
    if different:
        raise ResumeMismatch(
            f"{printable(model.name)} is not the model that the probe was trained on: different {listed(different)}; "
            "give that model, or watch this one all the same (any_model=True)"
        )
