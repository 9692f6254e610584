"""The probes of a monitor by the place that they read, and one matrix product for all of a place.

They are made from results, results of a place, or fitted probes.

Axes: B batch, L position, T tokens, D features, R rows of weights.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.errors import ResumeMismatch, UsageError, nearest
from probekit.evaluation.results.data import ProbeData
from probekit.evaluation.results.results import PlaceResults
from probekit.machine.devices import has_float64
from probekit.models.base import LanguageModel
from probekit.options import MonitorOptions
from probekit.options.check import is_whole
from probekit.points import Place
from probekit.probes import Probe
from probekit.probes.running import TokenRule, token_rule
from probekit.probes.scikit_learn import check_is_fitted
from probekit.scoring.calibrate import calibrated, calibration_of
from probekit.scoring.encoded import applied_to_model
from probekit.scoring.probe import is_each_token, model_differences, result_at
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
        at = place if place is None or is_whole(place) else str(Place.of(place))
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
    rows, own = (None, str(Place.of(place))) if results is None else (results.rows, str(Place.of(place)))
    name = own if name is None else name
    given, read = (given, own) if results is None else applied_to_model(results, own, given, options.sae)
    at = Place.of(read)
    rule = token_rule(given, options.target)
    calibration = calibration_of(rows, own, given.log_odds) if rule.sign else None
    edited = None if results is None or options.any_model else results.meta.get("activations", {}).get("edited")
    threshold = _threshold(name, own, given, results, options)
    return WatchedProbe(name, given, at, rule, threshold, calibration, rule.sign or 1, edited)


def _threshold(name: str, place: str, probe: Probe, results: ProbeData | None, options: MonitorOptions) -> float | None:
    if options.fpr is not None:
        if results is None:
            raise UsageError(f"fpr= needs the results of train_probes, and {printable(name)} is a fitted probe alone")
        each_token = is_each_token(results.meta, probe)
        return choose_threshold(results.rows, place, options.fpr, None, each_token, options.fpr_of).value
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


@dataclass(frozen=True, eq=False)
class Station:
    """The probes of one place.

    Attributes:
        probes: that read it.
        rules: of each.
        weights: of all rules that have any, one below the other, float64 [R, D], on the model's device.
        shift: float64 [R].
    """

    probes: list[WatchedProbe]
    rules: list[TokenRule]
    weights: Tensor
    shift: Tensor


def read_tokens(station: Station, x_T: Tensor) -> list[np.ndarray]:
    """For each rule the scores [T] of tokens, or the products [T, R] where the rule folds them."""
    flat_TD = x_T.flatten(1)
    flat_TD = flat_TD.double() if has_float64(flat_TD.device) else flat_TD.float().cpu().double()
    weights, shift = station.weights.to(flat_TD.device), station.shift.to(flat_TD.device)
    products_TR = torch.addmm(shift, flat_TD, weights.T).numpy(force=True)
    found, start = [], 0
    for rule in station.rules:
        if rule.decide is not None:
            found.append(rule.output(rule.decide(flat_TD.numpy(force=True))))
            continue
        end = start + len(rule.weights)  # pyright: ignore[reportArgumentType]
        own_TR = products_TR[:, start:end]
        found.append(own_TR if rule.fold else rule.output(own_TR))
        start = end
    return found


def stations_of(model: LanguageModel, probes: list[WatchedProbe]) -> dict[str, Station]:
    """The probes by the full name of their point."""
    by_point: dict[str, list[WatchedProbe]] = {}
    for watched in probes:
        by_point.setdefault(_point_of(model, watched), []).append(watched)
    device = model.device if has_float64(model.device) else torch.device("cpu")
    return {name: _station(own, device) for name, own in by_point.items()}


def _station(probes: list[WatchedProbe], device: torch.device) -> Station:
    rules = [watched.rule for watched in probes]
    affine: list[Any] = [(rule.weights, rule.shift) for rule in rules if rule.weights is not None]
    D = probes[0].probe.n_features_in_
    weights = np.concatenate([np.zeros((0, D)), *(each for each, _ in affine)])
    shift = np.concatenate([np.zeros(0), *(each for _, each in affine)])
    return Station(probes, rules, torch.from_numpy(weights).to(device), torch.from_numpy(shift).to(device))


def _point_of(model: LanguageModel, watched: WatchedProbe) -> str:
    """The full name of the point, which has a row for each token, as wide as the probe expects."""
    place = str(watched.place)
    (name, *more) = model.resolve(watched.place)
    axes = model.points[name].axes.split()
    if more or axes[:2] != ["B", "L"]:
        raise UsageError(f"a monitor reads one place with a row for each token, such as resid_pre.5; got {place}")
    if model.stack and name.startswith(model.stack):
        raise UsageError(f"{place} is of the encoder, which reads the source once; watch a place of the decoder")
    width = math.prod(model.size_of(axis, *watched.place) or 0 for axis in axes[2:])
    if width != watched.probe.n_features_in_:
        raise UsageError(
            f"the probe takes {watched.probe.n_features_in_:,} features, and {place} of {model.name} has {width:,}; "
            "give the model and the place that it was trained on"
        )
    return name
