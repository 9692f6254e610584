"""The causal curve: what happens to the model's behaviour when what a probe reads is changed, layer by layer.

Directions are fitted to train rows, layer and scale chosen on validation rows, effects reported on test rows, each
compared with the same edit along directions that know nothing of the label. Then come bands, p-values and quadrants.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from probekit.activations.activations import Activations
from probekit.causal.behaviour.measure import measure
from probekit.causal.curve.aftermath import NEUTRAL
from probekit.causal.curve.arms import CHOICES
from probekit.causal.curve.grids import find_grids, patch_file
from probekit.causal.curve.parts import begin_places, read_place
from probekit.causal.curve.places import PlaceFound, Shared, count_runs, measure_place, prepare
from probekit.causal.curve.question import CausalQuestion, ask
from probekit.causal.curve.sides import Side, find_side
from probekit.causal.curve.statistics import adjusted_p_values, cramers_v, p_value, ratio_interval
from probekit.causal.data import CausalData, CausalLayer, Effect, Quadrant
from probekit.causal.results.checklist import reviewer_checklist
from probekit.causal.results.results import CausalResults
from probekit.causal.results.view import CONTROL, effect_shows_use, is_large, is_placebo
from probekit.evaluation.results.data import LayerResult, ProbeData
from probekit.evaluation.results.verdict import chance_of
from probekit.machine.progress import shown_parts
from probekit.machine.versions import versions_of
from probekit.models.base import LanguageModel
from probekit.options import CausalArguments
from probekit.options.option import keywords
from probekit.selections import PER_EXAMPLE, Selection

Selected = dict[str, dict[str, Any]]
Directions = dict[str, dict[str, str]]
ENOUGH = 0.5  # of the effect at the output: a choice; what is less may be an edit that harms any answer


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
    headline, known = results.headline, chance_of(results)
    if not results.meta["n_classes"]:
        return {"name": "mean", "value": 0.0}  # R2 of the mean
    if known is not None:
        is_fitted = any(one.name == "majority" for one in results.baselines)
        return {"name": "majority" if is_fitted else "chance", "value": known}
    counts = results.meta["counts"]["test"]
    chance = max(counts.values()) / sum(counts.values()) if headline == "accuracy" else 1 / results.meta["n_classes"]
    return {"name": "chance", "value": chance}


@keywords(CausalArguments)
def causal_curve(
    model: LanguageModel, acts: Activations, results: ProbeData | None, options: CausalArguments
) -> CausalResults:
    """Edit what the probes read, and measure the model's behaviour.

    For each row the behaviour is the logit difference between the answer of its own class and that of its
    counterpart's: a text of another class in the same split, of the same length if there is one.

    Args:
        model: the model of the activations.
        acts: the activations that the probes were trained on.
        results: from `train_probes`, of one point and label set; None if a file of pairs is patched and nothing else.
        options: as keyword arguments.

    Raises:
        UsageError: no answers, or answers that are no single token; results of numbers, of folds or of probes without
            a direction; a model without next tokens; other activations or another model.
        DataError: too few rows or classes.
    """
    with shown_parts(options) as shown:
        return _causal_curve(model, acts, results, shown)


def _causal_curve(
    model: LanguageModel, acts: Activations, results: ProbeData | None, options: CausalArguments
) -> CausalResults:
    if options.of_pairs_alone:
        return patch_file(model, acts.meta.get("bos"), options)
    begin = options.on_part or (lambda name: None)
    begin("preparing texts")
    question = ask(model, acts, results, options)
    sides = {split: find_side(question, split) for split in ("validation", "test")}
    found = _places(question, sides, options, begin)
    data = _data(question, sides, found)
    if "patch" in options.method_names:
        grids, counts = find_grids(question, sides["test"], begin, options.on_progress)
        data = replace(data, grids=grids, meta={**data.meta, "patched": counts})
    return CausalResults(replace(data, checklist=reviewer_checklist(data)))


def _places(
    question: CausalQuestion, sides: Mapping[str, Side], options: CausalArguments, begin: Callable[[str], None]
) -> list[PlaceFound]:
    """What was measured at each place, now or before; nothing if patching alone is asked for."""
    if not set(options.method_names) & set(CHOICES):
        return []
    run = None if options.keep is None else begin_places(options.keep, question)
    found = {layer.place: None if run is None else read_place(run, layer.place) for layer in question.layers}
    missing = [layer for layer in question.layers if found[layer.place] is None]
    begin("preparing edits")
    known = prepare(question) if missing else Shared()
    begin("running edits")
    tick = _ticker(options.on_progress, len(missing) * count_runs(question, _sizes(sides)))
    for layer in missing:
        found[layer.place] = at = measure_place(question, sides, known, layer, tick)
        if run is not None:
            run.write(layer.place, at.as_dict())
    return [at for at in found.values() if at is not None]


def _ticker(progress: Callable[[int, int], None] | None, total: int) -> Callable[[int], None]:
    done = 0

    def tick(runs: int) -> None:
        nonlocal done
        done += runs
        if progress is not None:
            progress(done, total)

    return tick


def _sizes(sides: Mapping[str, Side]) -> dict[str, int]:
    return {split: len(side.index) for split, side in sides.items()}


def _data(question: CausalQuestion, sides: Mapping[str, Side], found: list[PlaceFound]) -> CausalData:
    effects = [effect for at in found for effect in at.effects]
    directions = chosen_directions(effects)
    effects = with_placebos(effects, directions)
    selected, baseline = select(effects, question.model.cfg.n_layers), baseline_of(question.results)
    headline, is_of_answers = question.results.headline, question.label == question.answers_label
    measured = question.layers if found else []
    layers = curve_of(measured, found, effects, selected, directions, baseline["value"], headline, is_of_answers)
    meta = {**_meta(question, sides), "selected": selected, "baseline": baseline}
    meta["das"] = {layer.place: at.search for layer, at in zip(measured, found, strict=True) if at.search}
    meta["no_direction"] = [layer.place for layer, at in zip(measured, found, strict=True) if not at.has_direction]
    return CausalData(layers, effects, [], [], meta)


def _meta(question: CausalQuestion, sides: Mapping[str, Side]) -> dict[str, Any]:
    meta, options, model = question.results.meta, question.options, question.model
    names = model.tokenizer.tokens(question.answer_C.tolist()) if model.tokenizer else list(options.answers or ())
    methods = [name for name in options.method_names if name in CHOICES]
    return {
        **{name: meta[name] for name in ("model", "task", "label", "point", "n_layers", "headline", "probe")},
        "position": meta["position"],
        "answer_token": _answer_token(question),
        "at": options.at,
        **({} if question.behaviour is None else {"behaviour": question.behaviour.name}),
        "answers_label": question.answers_label,
        "association": _association(question),
        "answers": dict(zip(question.classes, [str(name) for name in names], strict=True)),
        "methods": methods if methods else list(options.method_names),
        "scales": list(options.scale_values) if "steer" in methods else [],
        "n": {"train": len(question.train), **_sizes(sides)},
        "left_out": {split: side.left_out for split, side in sides.items() if side.left_out},
        "no_share": _no_share(sides, methods),
        "base": {split: _base(question, side) for split, side in sides.items()},
        "resampled_by": "row" if question.rows.groups is None else "group",
        "test_groups": sides["test"].bootstrap.n_groups,
        "placebos": options.placebos,
        "neutral": f"{NEUTRAL} train texts of the task" if options.neutral is None else str(options.neutral),
        "seed": options.seed,
        "activations": meta["activations"],
        "versions": versions_of("torch", "numpy", "scipy"),
    }


def _association(question: CausalQuestion) -> float | None:
    """How far the label and that of the answers are associated in the train rows; None where they are one."""
    if question.answers_label == question.label:
        return None
    labels = question.acts.task.labels
    own, other = (np.asarray(labels[name])[question.train] for name in (question.label, question.answers_label))
    return cramers_v(own, other)


def _no_share(sides: Mapping[str, Side], methods: list[str]) -> dict[str, Any]:
    """Method -> the gap that its effects would be shares of, where that does not differ from 0 on a split."""
    found = {}
    for side in sides.values():
        gaps = {method: side.gaps[method] for method in CHOICES if method in methods}
        unclear = {method: gap for method, gap in gaps.items() if not gap.is_clear}
        found |= {
            method: {"split": side.split, "gap": gap.mean, "interval": gap.interval} for method, gap in unclear.items()
        }
    return found


def _answer_token(question: CausalQuestion) -> str:
    """The token after which the model answers, in words."""
    at = question.options.answer_at
    if at is None:
        return "last token" if question.model.causal else "[MASK]"
    return (PER_EXAMPLE if isinstance(at, tuple) else Selection.of(at)).in_words


@torch.no_grad()
def _base(question: CausalQuestion, side: Side) -> dict[str, Any]:
    """The behaviour without edits."""
    hidden = side.trunk.hidden_ND
    found = measure(question.model, hidden, hidden, side.own_N, side.other_N)
    ends = ratio_interval(side.difference, np.ones(len(side.index)), side.bootstrap)
    return {
        "logit_difference": float(side.difference.mean()),
        "interval": None if ends is None else list(ends),
        "probability": None if side.numbers is not None else float(found.probability.mean()),
        "preferred": float((side.difference > 0).mean()),
    }
