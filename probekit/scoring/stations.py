"""The probes of a monitor by the place that they read, and one matrix product for all of a place.

Axes: B batch, L position, T tokens, D features, R rows of weights.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.errors import UsageError
from probekit.machine.devices import has_float64
from probekit.models.base import LanguageModel
from probekit.points import place_name
from probekit.scoring.running import TokenRule
from probekit.scoring.watched import WatchedProbe


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
    place = place_name(watched.place)
    (name, *more) = model.resolve(watched.place)
    axes = model.points[name].axes.split()
    if more or axes[:2] != ["B", "L"]:
        raise UsageError(f"a monitor reads one place with a row for each token, such as resid_pre.5; got {place}")
    if model.stack and name.startswith(model.stack):
        raise UsageError(f"{place} is of the encoder, which reads the source once; watch a place of the decoder")
    width = math.prod(model.size_of(axis, watched.place[0]) or 0 for axis in axes[2:])
    if width != watched.probe.n_features_in_:
        raise UsageError(
            f"the probe takes {watched.probe.n_features_in_:,} features, and {place} of {model.name} has {width:,}; "
            "give the model and the place that it was trained on"
        )
    return name
