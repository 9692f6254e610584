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
from probekit.causal.curve.grids import find_grids, patch_file
from probekit.causal.curve.parts import begin_places, read_place
from probekit.causal.curve.places import PlaceRecord, count_runs, measure_place
from probekit.causal.curve.prepared import NEUTRAL, AnsweredRows, PreparedQuestion, answer_question, prepare_edits
from probekit.causal.curve.question import CHOICES, CausalQuestion, answers_where_read, causal_question
from probekit.causal.curve.statistics import adjusted_p_values, cramers_v, p_value, ratio_interval
from probekit.causal.data import CausalData, CausalLayer, Effect, Quadrant
from probekit.causal.results.checklist import reviewer_checklist
from probekit.causal.results.results import CausalResults
from probekit.causal.results.view import FULL, effect_shows_use, is_absent, is_placebo
from probekit.evaluation.results.data import LayerResult, ProbeData
from probekit.evaluation.results.verdict import chance_of
from probekit.machine.progress import shown_parts
from probekit.machine.versions import versions_of
from probekit.models.base import LanguageModel
from probekit.options import CausalArguments
from probekit.options.option import keywords
from probekit.points import Place
from probekit.selections import PER_EXAMPLE, Selection

Selected = dict[str, dict[str, Any]]
ENOUGH = 0.5  # of the effect at the output: a choice; what is less may be an edit that harms any answer


def with_placebos(records: Sequence[PlaceRecord]) -> list[Effect]:
    """The test effects with all that they are compared with, and p-values; the others unchanged.

    A p-value is corrected over the places and scales of its own direction. Those of the curve, whose direction may
    differ by place, are corrected over those of the curve.
    """
    effects = [effect for record in records for effect in record.effects]
    chosen = {(e.method, e.place, e.direction) for record in records for e in record.chosen.values()}
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
            if (method, effect.place, effect.direction) in chosen:
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
    """Place -> `Effect.full_vector` on test, as its full vector has it."""
    own = [effect for effect in effects if (effect.direction, effect.split) == (FULL, "test")]
    return {effect.place: effect.full_vector for effect in own if effect.full_vector is not None}


def select(records: Sequence[PlaceRecord], n_layers: int) -> Selected:
    """For each method the direction, place and scale with the largest effect on validation; ties go to the first.

    The output of the last block is passed over if a place before it has an effect half as large: there an edit acts on
    the answer's own logits, so that its effect says nothing of what the model computes from the label.

    Args:
        records: in the order of the curve.
        n_layers: of the model.
    """
    selected: Selected = {}
    for method in CHOICES:
        own = [record.chosen[method] for record in records if method in record.chosen]
        if not own:
            continue
        before = [e for e in own if (e.point, e.layer) != ("resid_post", n_layers - 1)]
        first = _largest(own)
        acts = any(e.effect >= ENOUGH * first.effect for e in before)
        best = _largest(before) if acts else first
        passed_over = None if first.place == best.place else first.place
        selected[method] = {
            "place": best.place,
            "scale": best.scale,
            "direction": best.direction,
            "passed_over": passed_over,
        }
    return selected


def _largest(effects: Sequence[Effect]) -> Effect:
    return max(effects, key=lambda effect: effect.effect)


def curve_of(
    question: CausalQuestion,
    records: Sequence[PlaceRecord],
    effects: Sequence[Effect],
    selected: Selected,
    baseline: float,
) -> list[CausalLayer]:
    """What can be read and what is used at each place.

    Args:
        question: with the probes' results. Unless its label decides the answers, the search for the best direction and
            the full vector do not count: they hold what decides them, which is not the label.
        records: of its layers; none if nothing was edited.
        effects: with p-values.
        selected: on validation.
        baseline: score above which a layer counts as read.
    """
    headline, is_of_answers = question.results.headline, question.label == question.answers_label
    tested = {(e.method, e.direction, e.scale, e.place): e for e in effects if e.split == "test"}
    curve, output = [], Place("resid_post", question.model.n_layers - 1)
    for layer, at in _measured(question, records):
        score, interval = layer.metrics["test"][headline], layer.band or layer.intervals.get(headline)
        is_read = (score if interval is None else interval[0]) > baseline
        directions: dict[str, str] = {method: effect.direction for method, effect in at.chosen.items()}
        own = {m: tested[m, directions[m], chosen["scale"], layer.place] for m, chosen in selected.items()}
        used_by = [effect.direction for effect in list(own.values())[:1] if effect_shows_use(effect)]
        learned = tested.get(("interchange", "das", None, layer.place))
        used_by += ["das"] if is_of_answers and learned is not None and effect_shows_use(learned) else []
        full = tested.get(("interchange", FULL, None, layer.place))
        # At the output of the last block the full vector is the answer itself.
        may_count = is_of_answers and is_absent(interval, baseline) and Place(layer.point, layer.layer) != output
        if may_count and not (is_read or used_by) and full is not None and effect_shows_use(full):
            used_by = [FULL]
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
                directions=directions,
                used_by=used_by,
            )
        )
    return curve


def _measured(question: CausalQuestion, records: Sequence[PlaceRecord]) -> list[tuple[LayerResult, PlaceRecord]]:
    """The places that were edited."""
    return list(zip(question.layers, records, strict=True)) if records else []


def _after(at: PlaceRecord, name: str) -> dict[str, Any]:
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
    if options.patches_pairs_alone:
        return patch_file(model, acts.meta.get("bos"), options)
    begin = options.on_part or (lambda name: None)
    begin("preparing texts")
    answered = answer_question(causal_question(model, acts, results, options))
    data = _data(answered, _records(answered, options, begin))
    if "patch" in options.method_names:
        grids, counts = find_grids(answered.question, answered.rows["test"], begin, options.on_progress)
        data = replace(data, grids=grids, meta={**data.meta, "patched": counts})
    return CausalResults(replace(data, checklist=reviewer_checklist(data)))


def _records(answered: PreparedQuestion, options: CausalArguments, begin: Callable[[str], None]) -> list[PlaceRecord]:
    """What was measured at each place, now or before; nothing if patching alone is asked for."""
    question = answered.question
    if not question.edit_methods:
        return []
    run = None if options.keep is None else begin_places(options.keep, question)
    found = {layer.place: None if run is None else read_place(run, layer.place) for layer in question.layers}
    missing = [layer for layer in question.layers if found[layer.place] is None]
    begin("preparing edits")
    prepared = prepare_edits(answered) if missing else answered
    begin("running edits")
    tick = _ticker(options.on_progress, len(missing) * count_runs(prepared, prepared.sizes))
    for layer in missing:
        found[layer.place] = record = measure_place(prepared, layer, tick)
        if run is not None:
            run.write(layer.place, record.as_dict())
    return [record for record in found.values() if record is not None]


def _ticker(progress: Callable[[int, int], None] | None, total: int) -> Callable[[int], None]:
    done = 0

    def tick(runs: int) -> None:
        nonlocal done
        done += runs
        if progress is not None:
            progress(done, total)

    return tick


def _data(answered: PreparedQuestion, records: list[PlaceRecord]) -> CausalData:
    question = answered.question
    effects = with_placebos(records)
    selected, baseline = select(records, question.model.cfg.n_layers), baseline_of(question.results)
    layers = curve_of(question, records, effects, selected, baseline["value"])
    meta = {**_meta(answered), "selected": selected, "baseline": baseline}
    measured = _measured(question, records)
    meta["das"] = {layer.place: at.search for layer, at in measured if at.search}
    meta["no_direction"] = [layer.place for layer, at in measured if not at.has_direction]
    return CausalData(layers, effects, [], [], meta)


def _meta(answered: PreparedQuestion) -> dict[str, Any]:
    question, splits = answered.question, answered.rows
    meta, options, model = question.results.meta, question.options, question.model
    names = model.tokenizer.tokens(question.answer_C.tolist()) if model.tokenizer else list(options.answers or ())
    methods = question.edit_methods
    return {
        **{name: meta[name] for name in ("model", "task", "label", "point", "n_layers", "headline", "probe")},
        "position": meta["position"],
        "answer_token": _answer_token(question),
        "at": options.at,
        **({} if question.behaviour is None else {"behaviour": question.behaviour.name}),
        "answers_label": question.answers_label,
        "association": _association(question),
        "answers": dict(zip(question.classes, [str(name) for name in names], strict=True)),
        "methods": [*(methods or options.method_names)],
        "scales": list(options.scale_values) if "steer" in methods else [],
        "n": {"train": len(question.train), **answered.sizes},
        "left_out": {split: rows.left_out for split, rows in splits.items() if rows.left_out},
        "no_share": _no_share(answered),
        "base": {split: _base(question, rows) for split, rows in splits.items()},
        "resampled_by": "row" if question.rows.groups is None else "group",
        "test_groups": splits["test"].bootstrap.n_groups,
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


def _no_share(answered: PreparedQuestion) -> dict[str, Any]:
    """Method -> the gap that its effects would be shares of, where that does not differ from 0 on a split."""
    found = {}
    for split, rows in answered.rows.items():
        gaps = {method: rows.gaps[method] for method in answered.question.edit_methods}
        unclear = {method: gap for method, gap in gaps.items() if not gap.is_clear}
        found |= {
            method: {"split": split, "gap": gap.mean, "interval": gap.interval} for method, gap in unclear.items()
        }
    return found


def _answer_token(question: CausalQuestion) -> str:
    """The token after which the model answers, in words."""
    at = question.options.answer_at
    if at is None:
        if answers_where_read(question.model, question.options):
            return "token that the probes read"
        return "[MASK]" if question.model.fills_masks else "last token"
    return (PER_EXAMPLE if isinstance(at, tuple) else Selection.of(at)).in_words


@torch.no_grad()
def _base(question: CausalQuestion, rows: AnsweredRows) -> dict[str, Any]:
    """The behaviour without edits."""
    hidden = rows.trunk.hidden_ND
    found = measure(question.model, hidden, hidden, rows.behaviour.own_N, rows.behaviour.other_N)
    ends = ratio_interval(rows.difference, np.ones(len(rows.index)), rows.bootstrap)
    return {
        "logit_difference": float(rows.difference.mean()),
        "interval": None if ends is None else list(ends),
        "probability": None if rows.numbers is not None else float(found.probability.mean()),
        "preferred": float((rows.difference > 0).mean()),
    }
