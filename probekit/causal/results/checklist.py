"""The reviewer's checklist: what is asked of a causal claim, and what this run answers or leaves open.

The questions are those of Canby et al. 2024 (completeness and selectivity), Makelov et al. 2023 (subspace patches that
wake a dormant path), Zhang and Nanda 2023 (metrics of patching), and of reviews since.
"""

from collections.abc import Callable
from typing import Any

from probekit.causal.data import CausalData, ChecklistItem, Effect, PatchGrid
from probekit.causal.results.view import (
    COVARIANCE,
    OTHER,
    RANDOM,
    SHUFFLED,
    curve_effects,
    direction_name,
    methods_of,
    own_direction,
    placebo_counts,
    role_of,
    selected_place,
    selected_scale,
)
from probekit.evaluation.results.wording import position_name
from probekit.text import counted, listed, printable

LEAST_PLACEBOS = 20  # random directions; fewer cannot give p < 0.05
LEAST_SCALES = 3  # of a dose-response
Answer = tuple[bool, str]


def reviewer_checklist(data: CausalData) -> list[ChecklistItem]:
    """The questions of a reviewer with what these results say to each; `data.checklist` is not read."""
    asked = (_QUESTIONS if data.effects else {}) | (_OF_PATCHING if data.grids else {})
    answers = {question: answer(data) for question, answer in asked.items()}
    return [ChecklistItem(question, text, answered) for question, (answered, text) in answers.items()]


def base_is_at_chance(data: CausalData, split: str = "test") -> bool:
    """Whether the unedited model does not prefer its own answers: no share of such a behaviour means anything."""
    ends = (data.meta.get("base", {}).get(split) or {}).get("interval")
    return ends is not None and ends[0] <= 0


def base_text(data: CausalData, split: str = "test") -> str:
    """The behaviour without edits: "logit difference 3.10 [2.90, 3.31], own answer preferred in 98% of rows"."""
    base = data.meta.get("base", {}).get(split)
    if not base:
        return ""
    ends = base.get("interval")
    within = "" if ends is None else f" [{ends[0]:.2f}, {ends[1]:.2f}]"
    preferred = base.get("preferred")
    share = "" if preferred is None else f", own answer preferred in {preferred:.0%} of rows"
    return f"logit difference {base['logit_difference']:.2f}{within}{share}"


def _token(data: CausalData) -> Answer:
    if "position" not in data.meta:
        return False, "not recorded"
    where = {"read": "that token", "all": "every token of the text"}.get(str(data.meta.get("at", "read")), "that token")
    return True, f"the answer is read at the {position_name(data.meta['position'])}; edits act at {where}"


def _rows(data: CausalData) -> Answer:
    n: dict[str, int] = data.meta.get("n", {})
    effects = (
        f"effects are measured on {counted(n['test'], 'test row')}" if "test" in n else "effects have no test rows"
    )
    if not n.get("validation"):
        return False, f"{effects}; without validation rows, layer and scale were not chosen on rows of their own"
    fitted = f"directions are fitted on {counted(n['train'], 'train row')}, " if "train" in n else ""
    return "test" in n, f"{fitted}layer and scale are chosen on {n['validation']:,} validation rows, {effects}"


def _base(data: CausalData) -> Answer:
    text = base_text(data)
    if not text:
        return False, "not measured"
    if base_is_at_chance(data):
        return False, f"{text}: at chance, so shares of it mean nothing; use a task that the model does"
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
    names = {RANDOM: "random", COVARIANCE: "drawn from the covariance", SHUFFLED: "of shuffled labels"}
    texts = [f"{counts[kind]} {name}" for kind, name in names.items() if kind in counts]
    texts += [f"of {printable(kind)}" for kind in counts if kind.startswith(OTHER)]
    enough = all(counts.get(kind, 0) >= LEAST_PLACEBOS for kind in (RANDOM, COVARIANCE)) and SHUFFLED in counts
    if not texts:
        return False, "none"
    few = "" if enough else f"; expected {LEAST_PLACEBOS} random, {LEAST_PLACEBOS} of the covariance, shuffled labels"
    return enough, f"directions {listed(texts)}; same edit, same norm{few}{_largest_placebos(data)}"


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


def _both_ways(data: CausalData) -> Answer:
    methods = methods_of(data)
    scales = {effect.scale for effect in data.effects if effect.method == "steer" and effect.scale}
    signs = min(scales, default=0) < 0 < max(scales, default=0)
    said = [f"{method} {effect.effect:.2f}" for method in methods if (effect := _at_selected(data, method))]
    sufficient, necessary = "interchange" in methods or "steer" in methods, "erase" in methods
    lacks = ["erase: is it needed"] * (not necessary) + ["interchange or steer: is it enough"] * (not sufficient)
    one_sign = "" if "steer" not in methods or signs else "; steering has one sign only"
    missing = f"; not asked: {', '.join(lacks)} (--method)" if lacks else ""
    return sufficient and necessary and not one_sign, f"{', '.join(said) or 'not measured'}{one_sign}{missing}"


def _before_the_answer(data: CausalData) -> Answer:
    """At the end of the model, the edited token's activation is the answer's logits in other coordinates."""
    used = [layer.place for layer in data.layers if layer.quadrant in ("read and used", "used, not read")]
    if not used:
        return True, "used nowhere"
    end = data.layers[-1].place if len(data.layers) > 1 else None
    early = [place for place in used if place != end]
    caveat = "; at the last place the edit acts on the answer's own logits" if end in used else ""
    return bool(early), (f"used from {early[0]} on{caveat}" if early else f"used at {used[0]} alone{caveat}")


def _dose(data: CausalData) -> Answer:
    scales = sorted({e.scale for e in data.effects if e.method == "steer" and e.scale is not None})
    if not scales:
        return False, "not measured; add steer to --method"
    if len(scales) < LEAST_SCALES:
        return False, f"{counted(len(scales), 'scale')}; give {LEAST_SCALES} or more, of both signs (--scale)"
    ends = f"{scales[0]:g} to {scales[-1]:g} standard deviations"
    return True, f"{len(scales)} scales from {ends} along the direction; see the picture"


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
    chosen = {method: selected_place(data, method) for method in methods_of(data)}
    found = {
        method: layer.collateral[method]
        for layer in data.layers
        for method, place in chosen.items()
        if method in layer.collateral and place in (layer.place, None)
    }
    if not found:
        return False, "not measured: the loss on other text with the edit minus without"
    text = ", ".join(f"{method} {value:+.3f}" for method, value in found.items())
    neutral = data.meta.get("neutral")
    return True, f"{text} nats a token{f' on {printable(neutral)}' if neutral else ''}"


def _completeness(data: CausalData) -> Answer:
    place = selected_place(data, "erase")
    found = [each for each in data.layers if each.completeness.get("erase") and place in (each.place, None)]
    if not found:
        return False, "not measured; fresh probes after erasure say what is left and what else was lost"
    layer = found[-1]
    values, selectivity = layer.completeness["erase"], layer.selectivity.get("erase")
    text = f"erasure at {layer.place}: completeness {values[0]:.2f}"
    text += f", {min(values[1:]):.2f} at the layer after where most is read again" if len(values) > 1 else ""
    return True, text + ("" if selectivity is None else f", selectivity {selectivity:.2f}")


def _angles(data: CausalData) -> Answer:
    place = selected_place(data, "interchange")
    found = [each for each in data.layers if "das" in each.angles and place in (each.place, None)]
    if not found:
        return False, "not measured: the angle between the probe's direction and the learned one (das)"
    angles = found[-1].angles
    least = angles.get("random 5%")
    beside = "" if least is None else f"; 5% of random directions are closer than {least:.0f}"
    search = _search_text(data.meta.get("das", {}).get(found[-1].place) or {})
    return True, f"{angles['das']:.0f} degrees between probe and DAS at {found[-1].place}{beside}{search}"


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


def _grid_baseline(data: CausalData) -> Answer:
    without = [grid.point for grid in data.grids if grid.within_placebo is None]
    if without:
        return False, f"no placebos for {listed(without)}"
    return bool(data.grids), "cells inside the band of patches from unrelated pairs are grey"


def _grid_exact(data: CausalData) -> Answer:
    fast = [grid for grid in data.grids if is_approximate(grid)]
    known = [f"{grid.point} {grid.correlation:.2f}" for grid in data.grids if grid.correlation is not None]
    beside = f"; correlation of attribution patching with exact patching: {listed(known)}" if known else ""
    if not fast:
        return True, f"yes: every cell is a run of the model{beside}"
    text = f"no: {listed([grid.point for grid in fast])} by attribution patching, one backward pass{beside}"
    return all(grid.correlation is not None for grid in fast), text


def is_approximate(grid: PatchGrid) -> bool:
    """Whether the recovery of a grid is that of attribution patching."""
    return grid.n is not None and grid.n_exact is not None and grid.n_exact < grid.n


def _at_selected(data: CausalData, method: str, direction: str | None = None) -> Effect | None:
    """The effect at the place that validation chose."""
    return curve_effects(data, method, direction).get(selected_place(data, method) or "")


def _own_effects(data: CausalData) -> list[Effect]:
    own = {method: own_direction(data, method) for method in methods_of(data)}
    own_test = [e for e in data.effects if e.split == "test" and e.direction == own[e.method]]
    return [e for e in own_test if role_of(e.direction) == "direction"]


_QUESTIONS: dict[str, Callable[[CausalData], Answer]] = {
    "Which token?": _token,
    "Which rows?": _rows,
    "Does the unedited model do the task?": _base,
    "What is the most a patch can do here?": _ceiling,
    "What do placebos do?": _placebos,
    "Is it needed, and is it enough?": _both_ways,
    "Is it the concept, or already the answer?": _before_the_answer,
    "Does the effect grow with the dose?": _dose,
    "Are many layers and scales corrected for?": _corrected,
    "How uncertain are the effects?": _intervals,
    "What else does the edit harm?": _collateral,
    "Is erasure complete and selective?": _completeness,
    "Is the probe's direction the one that acts?": _angles,
    "Could the edit leave what the model knows?": _off_manifold,
}
_OF_PATCHING: dict[str, Callable[[CausalData], Answer]] = {
    "What do patches from unrelated pairs do?": _grid_baseline,
    "Is patching exact?": _grid_exact,
}


def answered(items: list[ChecklistItem]) -> str:
    """How many questions are answered: "11 of 13"."""
    return f"{sum(item.is_answered for item in items)} of {len(items)}"
