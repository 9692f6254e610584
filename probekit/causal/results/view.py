"""What tables and pictures read from causal results: the effects of the curve, and those of its comparisons."""

from collections.abc import Iterable, Sequence

import numpy as np

from probekit.causal.data import CausalData, CausalLayer, Effect
from probekit.text import printable

FULL = "full vector"
CEILINGS = (FULL, "das")  # what a direction is compared with from above
CONTROL = "full vector, own class"  # what a swap does that brings nothing of another class
RANDOM, COVARIANCE, SHUFFLED, OTHER = "random", "covariance", "shuffled labels", "label "
OWN = ("probe", "leace", "mean-difference", "lda")  # where none was chosen, the first of these is the curve's
_OWN_ORDER = {name: i for i, name in enumerate(OWN)}


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


def directions_of(data: CausalData, method: str) -> dict[str, str]:
    """Place -> the direction whose effect is the curve of a method there; empty without one that is no placebo."""
    chosen = {layer.place: layer.directions[method] for layer in data.layers if method in layer.directions}
    there: dict[str, list[str]] = {}
    for effect in data.effects:
        if effect.method == method and role_of(effect.direction) == "direction":
            there.setdefault(effect.place, []).append(effect.direction)
    usual = {place: min(names, key=lambda name: _OWN_ORDER.get(name, len(OWN))) for place, names in there.items()}
    return usual | {place: name for place, name in chosen.items() if name in there.get(place, ())}


def directions_text(data: CausalData, method: str) -> str:
    """The direction of a method's curve, or all there are where places have different ones: "probe or lda"."""
    return " or ".join(direction_name(name) for name in dict.fromkeys(directions_of(data, method).values()))


def selected_scale(data: CausalData, method: str) -> float | None:
    """The scale that validation chose, or the largest there is; None for a method without scales."""
    chosen = (data.meta.get("selected", {}).get(method) or {}).get("scale")
    scales = [effect.scale for effect in data.effects if effect.method == method and effect.scale is not None]
    return chosen if chosen in scales else max(scales, default=None)


def curve_effects(
    data: CausalData, method: str, direction: str | None = None, split: str = "test"
) -> dict[str, Effect]:
    """Place -> effect of one method at the selected scale, along a direction, by default the one chosen there."""
    own = directions_of(data, method) if direction is None else {}
    scale = selected_scale(data, method)
    found = {
        effect.place: effect
        for effect in data.effects
        if (effect.method, effect.split, effect.scale) == (method, split, scale)
        and effect.direction == own.get(effect.place, direction)
        and np.isfinite(effect.effect)  # a share of nothing is no effect
    }
    return {place: found[place] for place in dict.fromkeys(e.place for e in data.effects) if place in found}


def probe_effects(data: CausalData) -> dict[str, Effect]:
    """Place -> interchange along the probe's own direction; empty if the curve is of that direction anyway."""
    is_curve = set(directions_of(data, "interchange").values()) <= {"probe"}
    return {} if is_curve else curve_effects(data, "interchange", "probe")


def dose(data: CausalData, place: str, split: str = "test") -> list[Effect]:
    """Steering at one place along the method's own direction, by increasing scale."""
    direction = directions_of(data, "steer").get(place)
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


def is_absent(interval: Sequence[float] | None, baseline: float) -> bool:
    """Whether a label that is not read may be said not to be there, rather than that too little is known.

    Args:
        interval: of the score.
        baseline: what a guess scores; 1 is perfect.
    """
    return interval is not None and interval[1] < (baseline + 1) / 2  # a choice: half of the way to a perfect score


def effect_shows_use(effect: Effect) -> bool:
    """Whether an effect shows that the model uses what the edit changes."""
    return not doubt_of_effect(effect)


def doubt_of_effect(effect: Effect) -> str:
    """`doubt_of_use` of an effect's numbers."""
    low = None if effect.interval is None else effect.interval[0]
    placebo = largest_placebo(effect)
    return doubt_of_use(effect.effect, low, effect.flip_rate, placebo, effect.full_vector, effect.p_adjusted)


def doubt_of_use(
    effect: float,
    low: float | None,
    flip_rate: float,
    placebo: float | None,
    full_vector: bool | None,
    p_adjusted: float | None,
) -> str:
    """Why an edit does not show that the model uses what it changes; "" if it does. Nothing else decides that.

    Args:
        effect: as a share: 1 is the full exchange.
        low: lower end of its interval; None where there is none.
        flip_rate: share of the rows whose preferred answer changes.
        placebo: size of the largest effect of a placebo at that place; None without placebos.
        full_vector: whether the full vector's interchange matters there (`Effect.full_vector`); None if unknown. An
            edit along one direction makes an activation that no text may have. Where exchanging all of a real text's
            changes nothing, the effect is that activation's doing (Makelov et al. 2023).
        p_adjusted: against the placebos, corrected over layers and scales; None if unknown.
    """
    if low is None:
        return "it has no interval"
    if placebo is None:
        return "there are no placebos"
    if not is_large(effect, flip_rate):
        return f"it is below {LEAST_EFFECT:g}, and fewer than {LEAST_FLIPS:.0%} of answers flip"
    if not low > max(0.0, placebo):
        return "its interval is not above the largest placebo"
    if full_vector is False:
        return "the full vector's exchange, which real texts have, shows no use there"
    if p_adjusted is not None and p_adjusted > LEVEL:
        return f"its corrected p is {p_adjusted:.2g}"
    return ""


def is_large(effect: float, flip_rate: float) -> bool:
    """Whether an effect is large enough to matter, in logits or in answers."""
    return effect >= LEAST_EFFECT or flip_rate >= LEAST_FLIPS


def largest_placebo(effect: Effect) -> float | None:
    """The size of the largest effect of a placebo at the same place and scale; None without placebos."""
    return None if effect.placebo_band is None else max(map(abs, effect.placebo_band))


# Choices. In the worlds whose truth is known, variables that the model does not use reach 0.09 and flip no answer.
LEAST_EFFECT = 0.1  # of the full exchange
LEAST_FLIPS = 0.1  # of the rows
# Cramer's V of the label and that of the answers. A mean difference holds the other label's times V, which may be ten
# times as long: then V = 0.01 is a tenth of it. In `ballots`, V = 0.03 by chance gives the colour an effect of 0.52.
LEAST_ASSOCIATION = 0.01
LEVEL = 0.05  # of corrected p-values


def finite(values: Sequence[float]) -> list[float]:
    """The values without nan and infinity."""
    return [value for value in values if np.isfinite(value)]
