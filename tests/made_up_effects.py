"""Causal results made up for tables and pictures: a curve with all four quadrants, placebos, ceilings and patching."""

from dataclasses import replace
from typing import Any

import numpy as np

from probekit.causal.data import CausalData, CausalLayer, Effect, PatchGrid, Quadrant
from probekit.causal.results.checklist import reviewer_checklist
from probekit.causal.results.view import is_placebo

HOSTILE: dict[str, Any] = {
    "model": "$x_1$ 100% " + "m" * 60,
    "task": "a<b>&\x1b[31m_t" + "t" * 80,
    "label": r"\frac{$" + "l" * 50,
}
SCORES = [0.52, 0.74, 0.95, 0.99, 0.98, 0.55, 0.51]
EFFECTS = [0.01, 0.02, 0.05, 0.62, 0.84, 0.41, 0.03]
SCALES = [-4.0, -2.0, 0.0, 2.0, 4.0]


def effect(method: Any, direction: str, i: int, value: float, n_layers: int = 6, **changes: Any) -> Effect:
    point, layer = ("resid_post", n_layers - 1) if i == n_layers else ("resid_pre", i)
    is_own = not is_placebo(direction)
    fields: dict[str, Any] = {
        "method": method,
        "direction": direction,
        "point": point,
        "layer": layer,
        "scale": None,
        "split": "test",
        "n": 400,
        "effect": value,
        "interval": (value - 0.05, value + 0.06) if is_own else None,
        "logit_difference": 3.0 - 3.0 * value,
        "flip_rate": min(1.0, max(0.0, value)),
        "probability": 0.6,
        "kl": 0.2,
        "size": 0.31,
        "placebo_band": (-0.06, 0.07) if is_own else None,
        "p_value": 1 / 43 if is_own and value > 0.07 else 0.4 if is_own else None,
        "p_adjusted": 1 / 43 if is_own and value > 0.09 else 0.6 if is_own else None,
    }
    return Effect(**fields | changes)


def placebos(method: Any, i: int, n_layers: int, rng: np.random.Generator, **changes: Any) -> list[Effect]:
    names = ["random"] * 20 + ["covariance"] * 20 + ["shuffled labels", "label attractor"]
    return [effect(method, name, i, float(rng.normal() / 40), n_layers, **changes) for name in names]


def made_up(
    methods: tuple[str, ...] = ("interchange", "erase", "steer"),
    scores: list[float] = SCORES,
    values: list[float] = EFFECTS,
    grids: bool = True,
    **meta: Any,
) -> CausalData:
    """One layer more than the model has blocks: the last is the output."""
    rng, n_layers = np.random.default_rng(0), len(scores) - 1
    effects: list[Effect] = []
    for i, value in enumerate(values):
        for method in methods:
            for scale in SCALES if method == "steer" else [None]:
                share = value if scale is None else value * scale / 4
                own = "leace" if method == "erase" else "probe"
                effects.append(effect(method, own, i, share, n_layers, scale=scale))
                effects += placebos(method, i, n_layers, rng, scale=scale)
        if "interchange" in methods:
            effects.append(effect("interchange", "das", i, min(1.0, value + 0.1), n_layers))
            effects.append(effect("interchange", "full vector", i, 0.4 + 0.1 * i, n_layers))
    layers = [_layer(i, score, values[i], n_layers, methods) for i, score in enumerate(scores)]
    about = _meta(methods, n_layers) | meta
    data = CausalData(layers if methods else [], effects, made_up_grids() if grids else [], [], about)
    return CausalData(data.layers, data.effects, data.grids, reviewer_checklist(data), data.meta)


def _layer(i: int, score: float, value: float, n_layers: int, methods: tuple[str, ...]) -> CausalLayer:
    point, layer = ("resid_post", n_layers - 1) if i == n_layers else ("resid_pre", i)
    is_read, is_used = score > 0.6, value > 0.09
    names: dict[tuple[bool, bool], Quadrant] = {
        (True, True): "read and used",
        (True, False): "read, not shown to be used",
        (False, True): "used, not read",
        (False, False): "neither",
    }
    return CausalLayer(
        point,
        layer,
        score,
        (score - 0.02, min(1.0, score + 0.02)),
        is_read,
        dict.fromkeys(methods, is_used),
        names[is_read, is_used],
        collateral=dict.fromkeys(methods, 0.012),
        completeness={"erase": [1.0, 0.8, 0.7]},
        selectivity={"erase": 0.9},
        reliability={"erase": 0.95},
        angles={"das": 48.0, "random 5%": 82.0},
    )


def _meta(methods: tuple[str, ...], n_layers: int) -> dict[str, Any]:
    base = {"logit_difference": 3.0, "interval": [2.8, 3.2], "probability": 0.7, "preferred": 0.98}
    chosen = {"place": "resid_pre.4" if n_layers > 4 else "resid_pre.0", "scale": None}
    return {
        "model": "agreement-gpt2",
        "task": "agreement",
        "label": "number",
        "headline": "accuracy",
        "n_layers": n_layers,
        "point": "resid_pre",
        "seed": 0,
        "answers": {"singular": " is", "plural": " are"},
        "position": "last",
        "answer_token": "last token",
        "at": "read",
        "methods": list(methods),
        "n": {"train": 800, "validation": 200, "test": 400},
        "base": {"validation": base, "test": base},
        "selected": {method: chosen | ({"scale": 4.0} if method == "steer" else {}) for method in methods},
        "baseline": {"name": "majority", "value": 0.5},
        "resampled_by": "group",
        "neutral": "other texts of the task",
        "patched": {"pairs": 48},
    }


def made_up_grids(n_layers: int = 6, tokens: str = "The keys to the cabinet") -> list[PatchGrid]:
    """A subject whose information moves to the last token, at resid_pre; two heads that move it, at z."""
    columns = tokens.split()
    L, T, H = n_layers, len(columns), 4
    rng = np.random.default_rng(1)
    residual = rng.normal(size=(L, T)) / 50
    residual[: L // 2, 1], residual[L // 2 :, -1] = 1.0, 1.04
    heads = rng.normal(size=(L, H)) / 50
    heads[L // 2 - 1, 2], heads[L // 2, 0] = 0.7, -0.3
    grids = []
    panels: tuple[Any, ...] = (("resid_pre", "position", columns, residual), ("z", "head", list("0123"), heads))
    for point, by, names, values in panels:
        ends = np.stack([values - 0.05, values + 0.05], -1)
        cells = values, ends, values * 0.9, np.abs(values) < 0.06
        grids.append(PatchGrid(point, list(range(L)), names, by, *cells, (3.1, -2.9), 48, 48, 0.93))
    return grids


def made_up_of_another_direction() -> CausalData:
    """Interchange along the difference of the means, 0.1 above that along the probe's own direction."""
    data = made_up(("interchange",))
    layers = [replace(layer, directions={"interchange": "mean-difference"}) for layer in data.layers]
    chosen = [
        replace(each, direction="mean-difference", effect=each.effect + 0.1)
        for each in data.effects
        if each.direction == "probe"
    ]
    return replace(data, layers=layers, effects=[*data.effects, *chosen])
