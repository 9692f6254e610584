"""From the effects at each place to the curve: bands, p-values, the choice on validation, and the quadrants."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from probekit.causal.curve.arms import CHOICES
from probekit.causal.curve.places import PlaceFound
from probekit.causal.curve.statistics import adjusted_p_values, p_value
from probekit.causal.data import CausalLayer, Effect, Quadrant
from probekit.causal.results.view import CONTROL, effect_shows_use, is_large, is_placebo
from probekit.evaluation.results.data import LayerResult, ProbeData

Selected = dict[str, dict[str, Any]]
Directions = dict[str, dict[str, str]]
ENOUGH = 0.5  # of the effect at the output: a choice; what is less may be an edit that harms any answer
CHANCE = {"auroc": 0.5}  # of metrics whose baseline does not depend on the classes


def with_placebos(effects: Sequence[Effect], directions: Directions) -> list[Effect]:
    """The test effects with all that they are compared with, and p-values; the others unchanged.

    A p-value is corrected over the places and scales of its own direction. Those of the curve, whose direction may
    differ by place, are corrected over those of the curve.

    Args:
        effects: of all places.
        directions: method -> place -> direction of the curve.
    """
    done = list(effects)
    tested = [i for i, effect in enumerate(effects) if effect.split == "test"]
    for method in CHOICES:
        cells: dict[tuple[str, float | None], list[float]] = {}
        own: dict[str, list[int]] = {}
        curve: list[int] = []
        for i in (i for i in tested if effects[i].method == method and np.isfinite(effects[i].effect)):
            effect = effects[i]
            if is_placebo(effect.direction):
                cells.setdefault((effect.place, effect.scale), []).append(effect.effect)
                continue
            own.setdefault(effect.direction, []).append(i)
            if directions.get(method, {}).get(effect.place) == effect.direction:
                curve.append(i)
        if not cells:
            continue
        for each in filter(None, (*own.values(), curve)):  # the curve's last: they replace those of one direction
            placebos = np.array([cells[effects[i].place, effects[i].scale] for i in each])
            adjusted = adjusted_p_values([effects[i].effect for i in each], placebos)
            for i, others, p in zip(each, placebos, adjusted, strict=True):
                done[i] = replace(effects[i], p_value=p_value(effects[i].effect, others), p_adjusted=float(p))
    bands, full = _bands(effects), _full_vectors(effects)
    return [
        replace(e, placebo_band=bands.get((e.method, e.place, e.scale)), full_vector=full.get(e.place))
        if e.split == "test"
        else e
        for e in done
    ]


def _bands(effects: Sequence[Effect]) -> dict[tuple[str, str, float | None], tuple[float, float]]:
    """(Method, place, scale) -> the lowest and the highest effect of the placebos on test."""
    bands: dict[tuple[str, str, float | None], tuple[float, float]] = {}
    for effect in effects:
        if effect.split == "test" and is_placebo(effect.direction) and np.isfinite(effect.effect):
            low, high = bands.get(key := (effect.method, effect.place, effect.scale), (np.inf, -np.inf))
            bands[key] = min(low, effect.effect), max(high, effect.effect)
    return bands


def _full_vectors(effects: Sequence[Effect]) -> dict[str, bool]:
    """Place -> `Effect.full_vector` on test.

    Any large swap may harm an answer, whatever it brings. So the swap of all activations must do more with a
    counterpart's than with those of a text of the own class.
    """
    tested = {(e.direction, e.place): e for e in effects if (e.method, e.split) == ("interchange", "test")}
    control = {place: e.effect for (name, place), e in tested.items() if name == CONTROL}
    return {
        place: is_large(e.effect, e.flip_rate) and e.interval[0] > max(0.0, control[place])
        for (name, place), e in tested.items()
        if name == "full vector" and e.interval is not None and place in control
    }


def chosen_directions(effects: Sequence[Effect]) -> Directions:
    """Method -> place -> the direction with the largest effect on validation there; ties go to the first."""
    chosen: Directions = {}
    for method, directions in CHOICES.items():
        own = _on_validation(effects, method, directions)
        places = dict.fromkeys(e.place for e in own)
        best = {place: _largest([e for e in own if e.place == place]).direction for place in places}
        chosen |= {method: best} if best else {}
    return chosen


def _on_validation(effects: Sequence[Effect], method: str, directions: Sequence[str]) -> list[Effect]:
    """The effects along the directions among which validation chooses; none that is a share of nothing."""
    own = [e for e in effects if e.method == method and e.split == "validation" and e.direction in directions]
    return [e for e in own if np.isfinite(e.effect)]


def select(effects: Sequence[Effect], n_layers: int) -> Selected:
    """For each method the direction, place and scale with the largest effect on validation; ties go to the first.

    The output of the last block is passed over if a place before it has an effect half as large: there an edit acts on
    the answer's own logits, so that its effect says nothing of what the model computes from the label.

    Args:
        effects: in the order of the curve.
        n_layers: of the model.
    """
    chosen: Selected = {}
    for method, directions in CHOICES.items():
        own = _on_validation(effects, method, directions)
        if not own:
            continue
        before = [e for e in own if (e.point, e.layer) != ("resid_post", n_layers - 1)]
        first = _largest(own)
        acts = any(e.effect >= ENOUGH * first.effect for e in before)
        best = _largest(before) if acts else first
        passed_over = None if first.place == best.place else first.place
        chosen[method] = {
            "place": best.place,
            "scale": best.scale,
            "direction": best.direction,
            "passed_over": passed_over,
        }
    return chosen


def _largest(effects: Sequence[Effect]) -> Effect:
    return max(effects, key=lambda effect: effect.effect)


def curve_of(
    layers: Sequence[LayerResult],
    found: Sequence[PlaceFound],
    effects: Sequence[Effect],
    selected: Selected,
    directions: Directions,
    baseline: float,
    headline: str,
    is_of_answers: bool,
) -> list[CausalLayer]:
    """What can be read and what is used at each place.

    Args:
        layers: the probes' results.
        found: at the same places.
        effects: with p-values.
        selected: on validation.
        directions: method -> place -> direction of the curve.
        baseline: score above which a layer counts as read.
        headline: metric of the scores.
        is_of_answers: whether the label decides the answers. If not, the search for the best direction finds what
            decides them, which is not the label, and has no say.
    """
    tested = {(e.method, e.direction, e.scale, e.place): e for e in effects if e.split == "test"}
    curve = []
    for layer, at in zip(layers, found, strict=True):
        score, interval = layer.metrics["test"][headline], layer.intervals.get(headline)
        is_read = (score if interval is None else interval[0]) > baseline
        here = {method: by_place[layer.place] for method, by_place in directions.items()}
        own = {m: tested[m, here[m], chosen["scale"], layer.place] for m, chosen in selected.items()}
        used_by = [effect.direction for effect in list(own.values())[:1] if effect_shows_use(effect)]
        learned = tested.get(("interchange", "das", None, layer.place))
        used_by += ["das"] if is_of_answers and learned is not None and effect_shows_use(learned) else []
        curve.append(
            CausalLayer(
                point=layer.point,
                layer=layer.layer,
                score=score,
                interval=interval,
                is_read=is_read,
                is_used={method: effect_shows_use(effect) for method, effect in own.items()},
                quadrant=_quadrant(is_read, bool(used_by)),
                collateral=_after(at, "collateral"),
                completeness=_after(at, "completeness"),
                selectivity=_after(at, "selectivity"),
                reliability=_after(at, "reliability"),
                completeness_interval=_after(at, "completeness_interval"),
                angles=at.angles,
                directions=here,
                used_by=used_by,
            )
        )
    return curve


def _after(at: PlaceFound, name: str) -> dict[str, Any]:
    return {method: found[name] for method, found in at.after.items() if name in found}


def _quadrant(is_read: bool, is_used: bool) -> Quadrant:
    if is_read:
        return "read and used" if is_used else "read, not shown to be used"
    return "used, not read" if is_used else "neither"


def baseline_of(results: ProbeData) -> Mapping[str, Any]:
    """What a score is compared with: the majority class, or chance for metrics that do not depend on the classes."""
    headline = results.headline
    majority = next((one for one in results.baselines if one.name == "majority"), None)
    known = None if majority is None else majority.metrics.get("test", {}).get(headline)
    if known is not None:
        return {"name": "majority", "value": known}
    if not results.meta["n_classes"]:
        return {"name": "mean", "value": 0.0}  # R2 of the mean
    counts = results.meta["counts"]["test"]
    chance = max(counts.values()) / sum(counts.values()) if headline == "accuracy" else 1 / results.meta["n_classes"]
    return {"name": "chance", "value": CHANCE.get(headline, chance)}
