"""The reviewer's checklist: what is asked of a causal claim, and what this run answers or leaves open.

The questions are those of Canby et al. 2024 (completeness and selectivity), Makelov et al. 2023 (subspace patches that
wake a dormant path), Zhang and Nanda 2023 (metrics of patching), and of reviews since.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from probekit.causal.data import CausalData, CausalLayer, ChecklistItem, Effect, PatchGrid
from probekit.causal.results.view import (
    COVARIANCE,
    RANDOM,
    SHUFFLED,
    curve_effects,
    direction_name,
    directions_of,
    dose,
    is_used,
    methods_of,
    placebo_counts,
    role_of,
    selected_place,
    selected_scale,
)
from probekit.evaluation.results.wording import position_name
from probekit.text import counted, listed, printable

LEAST_PLACEBOS = 20  # random directions; fewer cannot give p < 0.05
LEAST_SCALES = 3  # of a dose-response
AT_END = ("resid_post", "mlp_out")  # points of the last block from which the final norm leads to the logits
Answer = tuple[bool, str]


def reviewer_checklist(data: CausalData) -> list[ChecklistItem]:
    """The questions of a reviewer with what these results say to each; `data.checklist` is not read."""
    asked = (_QUESTIONS if data.effects else {}) | (_OF_PATCHING if data.grids else {})
    answers = {question: answer(data) for question, answer in asked.items()}
    return [ChecklistItem(question, text, answered) for question, (answered, text) in answers.items()]


def base_warning(data: CausalData, split: str = "test") -> str:
    """What is wrong with the behaviour without edits; "" if the model prefers its own answers."""
    ends = (data.meta.get("base", {}).get(split) or {}).get("interval")
    if ends is None or ends[0] > 0:
        return ""
    if "behaviour" in data.meta:
        against = "moves against" if ends[1] < 0 else "does not follow"
        return f"Without edits the model's {data.meta['behaviour']} {against} the label: shares of it mean nothing"
    if ends[1] < 0:
        return (
            "Without edits the model prefers the other class's answers (interval below 0): give the answers in the "
            "order of the classes"
        )
    return "Without edits the model does not prefer its own answers (interval includes 0): shares of it mean nothing"


def base_text(data: CausalData, split: str = "test") -> str:
    """The behaviour without edits: "logit difference 3.10 [2.90, 3.31]", and how often it is right."""
    base = data.meta.get("base", {}).get(split)
    if not base:
        return ""
    ends = base.get("interval")
    within = "" if ends is None else f" [{ends[0]:.2f}, {ends[1]:.2f}]"
    preferred = base.get("preferred")
    share = "" if preferred is None else f"; the model prefers the text's own answer in {preferred:.0%} of rows"
    kind = data.meta.get("behaviour")
    if kind is not None:
        ends_in = "" if preferred is None else f", on the label's side in {preferred:.0%} of rows"
        return f"{kind} {base['logit_difference']:.2f}{within} beyond the middle to the counterpart's{ends_in}"
    return f"logit difference {base['logit_difference']:.2f}{within}{share}"


def _token(data: CausalData) -> Answer:
    meta = data.meta
    if "position" not in meta or "answer_token" not in meta:
        return False, "not recorded"
    where = "every token of the text" if meta.get("at") == "all" else f"the {position_name(meta['position'])}"
    return True, f"the model answers after the {printable(meta['answer_token'])}; edits act at {where}"


def _rows(data: CausalData) -> Answer:
    n: dict[str, int] = data.meta.get("n", {})
    effects = (
        f"effects are measured on {counted(n['test'], 'test row')}" if "test" in n else "effects have no test rows"
    )
    if not n.get("validation"):
        return False, f"{effects}; without validation rows, layer and scale were not chosen on rows of their own"
    fitted = f"directions are fitted on {counted(n['train'], 'train row')}, " if "train" in n else ""
    left_out = [f"{count:,} {split}" for split, count in data.meta.get("left_out", {}).items()]
    effects += f"; left out, as no text of another class has another answer: {listed(left_out)}" if left_out else ""
    return "test" in n, f"{fitted}layer and scale are chosen on {n['validation']:,} validation rows, {effects}"


def _base(data: CausalData) -> Answer:
    text = base_text(data)
    if not text:
        return False, "not measured"
    if data.meta["base"]["test"].get("interval") is None:
        return False, f"{text}: no interval; take more rows (--rows)"
    if warning := base_warning(data):
        return False, f"{text}; {warning}"
    return True, text


def _ceiling(data: CausalData) -> Answer:
    method = "interchange"
    found = {name: _at_selected(data, method, name) for name in ("full vector", "das")}
    texts = [f"{direction_name(name)} {effect.effect:.2f}" for name, effect in found.items() if effect is not None]
    own = _at_selected(data, method)
    if own is not None and texts:
        texts.insert(0, f"{direction_name(own.direction)} {own.effect:.2f}")
    return found["full vector"] is not None, f"at {own.place}: {', '.join(texts)}" if own and texts else (
        ", ".join(texts) or "not measured; add interchange to --method"
    )


def _placebos(data: CausalData) -> Answer:
    counts = placebo_counts(data.effects)
    if not counts:
        return False, "none"
    names = {RANDOM: "random", COVARIANCE: "drawn from the covariance"}
    texts = [f"{counts[kind]} {names[kind]}" if kind in names else printable(kind) for kind in counts]
    enough = all(counts.get(kind, 0) >= LEAST_PLACEBOS for kind in (RANDOM, COVARIANCE)) and SHUFFLED in counts
    few = "" if enough else f"; expected {LEAST_PLACEBOS} random, {LEAST_PLACEBOS} of the covariance, shuffled labels"
    return enough, f"same edit, same norm, along {listed(texts)}{few}{_largest_placebos(data)}{_choices(data)}"


def _choices(data: CausalData) -> str:
    """The best of several directions is compared with placebos that are not chosen among several."""
    names = dict.fromkeys(e.direction for e in data.effects if e.method == "interchange")
    among = [direction_name(name) for name in names if role_of(name) == "direction"]
    if len(among) < 2 or not data.meta.get("selected"):
        return ""
    return (
        f"; the direction of interchange was chosen at each place on validation among {len(among)} ({listed(among)}), "
        "while each placebo is one direction"
    )


def _largest_placebos(data: CausalData) -> str:
    """The largest effect of each kind where the headline was chosen: kinds differ, and the band has all of them."""
    method = methods_of(data)[0]
    place = selected_place(data, method)
    kinds = dict.fromkeys(e.direction for e in data.effects if e.method == method and role_of(e.direction) == "placebo")
    own = [e for e in data.effects if e.method == method and e.place == place and e.split == "test"]
    own = [e for e in own if e.scale == selected_scale(data, method)]
    largest = {kind: max((abs(e.effect) for e in own if e.direction == kind), default=None) for kind in kinds}
    texts = [f"{printable(kind)} {value:.2f}" for kind, value in largest.items() if value is not None]
    return f"; largest effect of {method} at {place}: {listed(texts)}" if texts else ""


def _needed_and_enough(data: CausalData) -> Answer:
    methods = methods_of(data)
    said = [_with_p(effect) for method in methods if (effect := _at_selected(data, method))]
    sufficient, necessary = "interchange" in methods or "steer" in methods, "erase" in methods
    lacks = ["erase: is it needed"] * (not necessary) + ["interchange or steer: is it enough"] * (not sufficient)
    missing = f"; not asked: {', '.join(lacks)} (--method)" if lacks else ""
    return sufficient and necessary, f"{', '.join(said) or 'not measured'}{missing}"


def _with_p(effect: Effect) -> str:
    p = "no corrected p" if effect.p_adjusted is None else f"corrected p = {effect.p_adjusted:.2g}"
    return f"{effect.method} {effect.effect:z.2f} ({p})"


def _before_the_answer(data: CausalData) -> Answer:
    """What the last block adds goes through the final norm to the logits: an edit there changes the answer itself."""
    used = [layer for layer in data.layers if is_used(layer)]
    if not used:
        return True, "used nowhere"
    early = [layer.place for layer in used if not _is_end(data, layer)]
    if not early:
        return False, f"used at {used[-1].place} alone, where the edit acts on the answer's own logits"
    end = "" if len(early) == len(used) else f"; at {used[-1].place} the edit acts on the answer's own logits"
    return True, f"used first at {early[0]}{end}"


def _is_end(data: CausalData, layer: CausalLayer) -> bool:
    """Whether only the final norm and the unembedding follow."""
    return layer.point in AT_END and layer.layer == data.meta.get("n_layers", 0) - 1


def _dose(data: CausalData) -> Answer:
    place = selected_place(data, "steer")
    effects = {e.scale: e.effect for e in dose(data, place) if e.scale} if place else {}
    if not effects:
        return False, "not measured; add steer to --method"
    if len(effects) < LEAST_SCALES or not min(effects) < 0 < max(effects):
        return False, f"{counted(len(effects), 'scale')}; give {LEAST_SCALES} or more, of both signs (--scale)"
    rising = sorted(effects.items() | {(0.0, 0.0)})
    grows = all(low[1] < high[1] for low, high in pairwise(rising))
    values = ", ".join(f"{effect:z.2f} at {scale:+g}" for scale, effect in rising if scale)
    verdict = "yes, at every step" if grows else "not at every step"
    return True, f"{verdict}; steering at {place}: {values} standard deviations along the direction"


def _corrected(data: CausalData) -> Answer:
    own = _own_effects(data)
    if not own or any(effect.p_adjusted is None for effect in own):
        return False, "p-values are not corrected"
    return True, "p-values against each placebo's largest effect over layers and scales (Westfall and Young)"


def _intervals(data: CausalData) -> Answer:
    own = _own_effects(data)
    if not own or any(effect.interval is None for effect in own):
        return False, "not all effects have one"
    by = str(data.meta.get("resampled_by", "row"))
    return True, f"95%, resampled by {by}"


def _collateral(data: CausalData) -> Answer:
    measured = {method: layer.collateral.get(method) for method, layer in _selected_layers(data).items()}
    found = {method: value for method, value in measured.items() if value is not None}
    if not found:
        return False, "not measured: the loss on other text with the edit minus without"
    text = ", ".join(f"{method} {value:+.3f}" for method, value in found.items())
    on = f" on {printable(data.meta['neutral'])}" if data.meta.get("neutral") else ""
    lacking = [method for method in methods_of(data) if method not in found]
    missing = f"; not measured for {listed(lacking)}" if lacking else ""
    return not lacking, f"loss {text} nats a token{on}{missing}"


def _completeness(data: CausalData) -> Answer:
    found = {method: each for method, each in _selected_layers(data).items() if each.completeness.get(method)}
    if not found:
        return False, "not measured; fresh probes after the edit say what is left and what else was lost"
    texts = [_complete_text(method, layer) for method, layer in found.items()]
    is_selective = all(method in layer.selectivity for method, layer in found.items())
    lacking = "" if is_selective else "; selectivity needs another label set, and the task has none"
    return is_selective, "; ".join(texts) + lacking


def _complete_text(method: str, layer: CausalLayer) -> str:
    here, *later = layer.completeness[method]
    text = f"{method} at {layer.place}: completeness {here:z.2f}"
    text += f", at the worst later layer {min(later):z.2f}" if later else ""
    return text + (f", selectivity {layer.selectivity[method]:z.2f}" if method in layer.selectivity else "")


def _selected_layers(data: CausalData) -> dict[str, CausalLayer]:
    """Method -> the layer that validation chose for it."""
    layers = {layer.place: layer for layer in data.layers}
    chosen = {method: selected_place(data, method) for method in methods_of(data)}
    return {method: layers[place] for method, place in chosen.items() if place in layers}


def _angles(data: CausalData) -> Answer:
    layer = _selected_layers(data).get("interchange")
    if layer is None or "das" not in layer.angles:
        return False, "not measured: the angle between the probe's direction and the learned one (DAS)"
    effects = {name: _at_selected(data, "interchange", name) for name in ("probe", "das")}
    texts = [f"{direction_name(name)} {effect.effect:z.2f}" for name, effect in effects.items() if effect]
    least = layer.angles.get("random 5%")
    note = "" if least is None else f" (5% of random directions are closer than {least:.0f})"
    angle = f"{layer.angles['das']:.0f} degrees between probe and DAS{note}"
    search = _search_text(data.meta.get("das", {}).get(layer.place) or {})
    return len(texts) == len(effects), f"interchange at {layer.place}: {', '.join(texts)}; {angle}{search}"


def _search_text(search: dict[str, Any]) -> str:
    """How far DAS can be trusted: what it recovers on the control task, and whether its restarts agree."""
    control, cosines = search.get("control_recovery"), search.get("cosines")
    text = "" if control is None else f"; DAS on the control task (arbitrary tokens as answers) recovers {control:.2f}"
    return text + (f"; smallest cosine between its restarts {min(map(abs, cosines)):.2f}" if cosines else "")


def _off_manifold(data: CausalData) -> Answer:
    sizes = {method: effect.size for method in methods_of(data) if (effect := _at_selected(data, method))}
    text = ", ".join(f"{method} {size:.0%}" for method, size in sizes.items())
    has_real = any(effect.direction == "full vector" for effect in data.effects)
    real = (
        "the full-vector swap uses activations of real texts" if has_real else "no edit uses activations of real texts"
    )
    caveat = "an edited activation may be one that no text gives"
    return has_real, f"{caveat}; {real}; median size of the edit, of the activation's norm: {text or 'not measured'}"


def _grid_pairs(data: CausalData) -> Answer:
    counts: dict[str, int] = data.meta.get("patched", {})
    left = {
        "unequal": "whose counterpart has another length",
        "same": "whose counterpart has the same text or answer",
        "more": "beyond these, at random",
    }
    out = [f"{counts[name]:,} {why}" for name, why in left.items() if counts.get(name)]
    rest = f"; test rows left out: {listed(out)}" if out else ""
    n = counts.get("pairs", data.grids[0].n)
    return n is not None, f"{n:,}{rest}" if n is not None else "not recorded"


def _grid_baseline(data: CausalData) -> Answer:
    without = [grid.point for grid in data.grids if grid.within_placebo is None]
    if without:
        return False, f"no placebos for {listed(without)}"
    return bool(data.grids), "cells inside the band of patches from unrelated pairs are grey"


def _grid_ends(data: CausalData) -> Answer:
    """Recovery is a share of the difference between clean and corrupted runs."""
    known = {grid.logit_differences for grid in data.grids}
    if None in known:
        return False, "not recorded"
    ends = [ends for ends in known if ends is not None]
    texts = [
        f"logit difference {clean:z.2f} in clean texts, {corrupted:z.2f} in corrupted ones" for clean, corrupted in ends
    ]
    return all(clean > 0 > corrupted for clean, corrupted in ends), "; ".join(texts)


def _grid_exact(data: CausalData) -> Answer:
    fast = [grid for grid in data.grids if is_approximate(grid)]
    known = [f"{grid.point} {grid.correlation:.2f}" for grid in data.grids if grid.correlation is not None]
    note = f"; correlation of attribution patching with exact patching: {listed(known)}" if known else ""
    if not fast:
        return True, f"yes: every cell is a run of the model{note}"
    text = f"no: {listed([grid.point for grid in fast])} by attribution patching, one backward pass{note}"
    return all(grid.correlation is not None for grid in fast), text


def is_approximate(grid: PatchGrid) -> bool:
    """Whether the recovery of a grid is that of attribution patching."""
    return grid.n is not None and grid.n_exact is not None and grid.n_exact < grid.n


def _at_selected(data: CausalData, method: str, direction: str | None = None) -> Effect | None:
    """The effect at the place that validation chose."""
    return curve_effects(data, method, direction).get(selected_place(data, method) or "")


def _own_effects(data: CausalData) -> list[Effect]:
    own = {method: directions_of(data, method) for method in methods_of(data)}
    return [e for e in data.effects if e.split == "test" and e.direction == own[e.method].get(e.place)]


_QUESTIONS: dict[str, Callable[[CausalData], Answer]] = {
    "Which token?": _token,
    "Which rows?": _rows,
    "Does the unedited model do the task?": _base,
    "What is the most a patch can do here?": _ceiling,
    "What do placebos do?": _placebos,
    "Is it needed, and is it enough?": _needed_and_enough,
    "Is it the concept, or already the answer?": _before_the_answer,
    "Does the effect grow with the dose?": _dose,
    "Are many layers and scales corrected for?": _corrected,
    "How uncertain are the effects?": _intervals,
    "What else does the edit harm?": _collateral,
    "Is the edit complete and selective?": _completeness,
    "Is the probe's direction the one that acts?": _angles,
    "Could the edit leave what the model knows?": _off_manifold,
}
_OF_PATCHING: dict[str, Callable[[CausalData], Answer]] = {
    "Do the unpatched texts get their own answers?": _grid_ends,
    "Which pairs are patched?": _grid_pairs,
    "What do patches from unrelated pairs do?": _grid_baseline,
    "Is patching exact?": _grid_exact,
}


def answered(items: list[ChecklistItem]) -> str:
    """How many questions are answered: "11 of 13"."""
    return f"{sum(item.is_answered for item in items)} of {len(items)}"
