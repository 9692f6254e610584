"""What tables and pictures read from causal results: the effects of the curve, and those of its comparisons."""

from collections.abc import Iterable, Sequence

import numpy as np

from probekit.causal.data import CausalData, CausalLayer, Effect
from probekit.text import printable

CEILINGS = ("full vector", "das")  # what a direction is compared with from above
CONTROL = "full vector, own class"  # what a swap does that brings nothing of another class
RANDOM, COVARIANCE, SHUFFLED, OTHER = "random", "covariance", "shuffled labels", "label "
OWN = ("probe", "leace", "mean-difference", "lda")  # of several directions, the first is the curve's


def is_placebo(direction: str) -> bool:
    """Whether a direction is one that should do nothing."""
    return direction in (RANDOM, COVARIANCE, SHUFFLED) or direction.startswith(OTHER)


def role_of(direction: str) -> str:
    """What a direction is for: "direction", "ceiling", "control" or "placebo"."""
    if direction == CONTROL:
        return "control"
    return "placebo" if is_placebo(direction) else "ceiling" if direction in CEILINGS else "direction"


def methods_of(data: CausalData) -> list[str]:
    """The methods that have effects; the first is the headline."""
    found = list(dict.fromkeys(effect.method for effect in data.effects))
    order = [str(name) for name in data.meta.get("methods", [])]
    return sorted(found, key=lambda name: order.index(name) if name in order else len(order))


def own_direction(data: CausalData, method: str) -> str | None:
    """The direction whose effect is the curve of a method; None if there are placebos and ceilings only."""
    named = data.meta.get("directions", {}).get(method)
    there = list(dict.fromkeys(effect.direction for effect in data.effects if effect.method == method))
    known = [name for name in (named, *OWN, *there) if name in there and role_of(str(name)) == "direction"]
    return known[0] if known else None


def selected_scale(data: CausalData, method: str) -> float | None:
    """The scale that validation chose, or the largest there is; None for a method without scales."""
    chosen = (data.meta.get("selected", {}).get(method) or {}).get("scale")
    scales = [effect.scale for effect in data.effects if effect.method == method and effect.scale is not None]
    return chosen if chosen in scales else max(scales, default=None)


def curve_effects(
    data: CausalData, method: str, direction: str | None = None, split: str = "test"
) -> dict[str, Effect]:
    """Place -> effect of one method at the selected scale, along a direction, by default the method's own."""
    direction = own_direction(data, method) if direction is None else direction
    scale = selected_scale(data, method)
    return {
        effect.place: effect
        for effect in data.effects
        if (effect.method, effect.direction, effect.split, effect.scale) == (method, direction, split, scale)
    }


def probe_effects(data: CausalData) -> dict[str, Effect]:
    """Place -> interchange along the probe's own direction; empty if the curve is of that direction anyway."""
    is_curve = own_direction(data, "interchange") in (None, "probe")
    return {} if is_curve else curve_effects(data, "interchange", "probe")


def dose(data: CausalData, place: str, split: str = "test") -> list[Effect]:
    """Steering at one place along the method's own direction, by increasing scale."""
    direction = own_direction(data, "steer")
    found = [
        effect
        for effect in data.effects
        if (effect.method, effect.direction, effect.split, effect.place) == ("steer", direction, split, place)
    ]
    return sorted(found, key=lambda effect: effect.scale or 0.0)


def selected_place(data: CausalData, method: str) -> str | None:
    """The place that validation chose, or None."""
    chosen = data.meta.get("selected", {}).get(method) or {}
    return chosen.get("place")


def placebo_counts(effects: Iterable[Effect]) -> dict[str, int]:
    """Kind of placebo -> the number of them at each place, method and scale."""
    cells: dict[str, dict[tuple[object, ...], int]] = {}
    for effect in effects:
        if is_placebo(effect.direction):
            cell = (effect.method, effect.place, effect.scale, effect.split)
            count = cells.setdefault(effect.direction, {})
            count[cell] = count.get(cell, 0) + 1
    return {kind: max(count.values()) for kind, count in cells.items()}


def direction_name(direction: str) -> str:
    """A direction as a reader knows it."""
    return {"das": "DAS", "leace": "LEACE"}.get(direction, printable(direction))


def is_used(layer: CausalLayer) -> bool:
    """Whether the quadrant of a layer is one of the used."""
    return layer.quadrant in ("read and used", "used, not read")


def is_outside(effect: Effect) -> bool:
    """Whether an effect is larger than the placebos', corrected, and its interval excludes 0."""
    ends = effect.interval
    if ends is None or ends[0] <= 0 <= ends[1]:
        return False
    if effect.p_adjusted is not None:
        return effect.p_adjusted <= LEVEL
    band = effect.placebo_band
    return band is not None and not band[0] <= effect.effect <= band[1]


LEVEL = 0.05  # of p-values


def finite(values: Sequence[float]) -> list[float]:
    """The values without nan and infinity."""
    return [value for value in values if np.isfinite(value)]
