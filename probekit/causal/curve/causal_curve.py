"""The causal curve: what happens to the model's behaviour when what a probe reads is changed, layer by layer.

Directions are fitted to train rows, layer and scale chosen on validation rows, effects reported on test rows, each
compared with the same edit along directions that know nothing of the label.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from probekit.activations.activations import Activations
from probekit.causal.behaviour.measure import measure
from probekit.causal.curve.aftermath import NEUTRAL
from probekit.causal.curve.arms import CHOICES
from probekit.causal.curve.compare import baseline_of, chosen_directions, curve_of, select, with_placebos
from probekit.causal.curve.grids import find_grids, patch_file
from probekit.causal.curve.parts import Parts
from probekit.causal.curve.places import PlaceFound, Shared, count_runs, measure_place, prepare
from probekit.causal.curve.question import CausalQuestion, ask
from probekit.causal.curve.sides import Side, find_side
from probekit.causal.curve.statistics import cramers_v, ratio_interval
from probekit.causal.data import CausalData
from probekit.causal.results.checklist import reviewer_checklist
from probekit.causal.results.results import CausalResults
from probekit.evaluation.results.data import ProbeData
from probekit.machine.progress import shown_parts
from probekit.machine.versions import versions_of
from probekit.models.base import LanguageModel
from probekit.options import CausalArguments
from probekit.options.option import keywords
from probekit.selections import PER_EXAMPLE, in_words


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
    parts = Parts(options.keep, question)
    found = {layer.place: parts.read(layer.place) for layer in question.layers}
    missing = [layer for layer in question.layers if found[layer.place] is None]
    begin("preparing edits")
    known = prepare(question) if missing else Shared()
    begin("running edits")
    tick = _ticker(options.on_progress, len(missing) * count_runs(question, _sizes(sides)))
    for layer in missing:
        found[layer.place] = at = measure_place(question, sides, known, layer, tick)
        parts.write(layer.place, at)
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
    return in_words(PER_EXAMPLE if isinstance(at, tuple) else str(at))


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
