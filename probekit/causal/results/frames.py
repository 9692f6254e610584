"""Causal results as tidy pandas tables."""

from typing import TYPE_CHECKING, Any

from probekit.causal.data import CausalData, CausalLayer, Effect, PatchGrid
from probekit.causal.results.view import role_of
from probekit.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

FRAMES = ("effects", "layers", "patching")
EFFECTS = ("method", "direction", "role", "point", "layer", "place", "scale", "split", "n", "effect", "low", "high")
EFFECTS += ("placebo_low", "placebo_high", "p_value", "p_adjusted", "logit_difference", "flip_rate", "probability")
EFFECTS += ("kl", "size")
LAYERS = ("point", "layer", "place", "quadrant", "method", "metric", "name", "value", "low", "high")
PATCHING = ("point", "layer", "by", "column", "token", "recovery", "low", "high", "attribution", "within_placebo")
_NO_ENDS = (None, None)


def causal_frame(data: CausalData, of: str = "effects") -> "pd.DataFrame":
    """One of the tables of `FRAMES`.

    Raises:
        UsageError: there is no such table.
    """
    import pandas as pd

    if of not in FRAMES:
        raise UsageError(f"of= is one of effects, layers, patching; got {of!a:.60}")
    if of == "effects":
        return _typed(pd.DataFrame([_effect_row(effect) for effect in data.effects], columns=list(EFFECTS)))
    if of == "layers":
        rows = [row for layer in data.layers for row in _layer_rows(layer)]
        return _typed(pd.DataFrame(rows, columns=list(LAYERS)))
    rows = [row for grid in data.grids for row in _grid_rows(grid)]
    return pd.DataFrame(rows, columns=list(PATCHING)).astype({"within_placebo": "boolean"})


def _typed(frame: "pd.DataFrame") -> "pd.DataFrame":
    texts = ("method", "direction", "role", "point", "place", "split", "quadrant", "metric", "name")
    numbers = [name for name in frame.columns if name not in (*texts, "layer", "n")]
    return frame.astype({"layer": "Int64", **dict.fromkeys(numbers, "float64")})


def _effect_row(effect: Effect) -> tuple[Any, ...]:
    values = vars(effect) | {"place": effect.place, "role": role_of(effect.direction)}
    values |= dict(zip(("low", "high"), effect.interval or _NO_ENDS, strict=True))
    values |= dict(zip(("placebo_low", "placebo_high"), effect.placebo_band or _NO_ENDS, strict=True))
    return tuple(values[name] for name in EFFECTS)


def _layer_rows(layer: CausalLayer) -> list[tuple[Any, ...]]:
    """The score, then whether a thing is read and used (1 or 0), then what was measured by method."""
    place = (layer.point, layer.layer, layer.place, layer.quadrant)
    rows: list[tuple[Any, ...]] = [(*place, None, "score", None, layer.score, *(layer.interval or _NO_ENDS))]
    rows.append((*place, None, "is_read", None, float(layer.is_read), *_NO_ENDS))
    rows += [(*place, method, "is_used", None, float(used), *_NO_ENDS) for method, used in layer.is_used.items()]
    rows += [(*place, method, "direction", name, 1.0, *_NO_ENDS) for method, name in layer.directions.items()]
    rows += [(*place, None, "used_by", name, 1.0, *_NO_ENDS) for name in layer.used_by]
    for metric in ("collateral", "selectivity", "reliability"):
        rows += [(*place, method, metric, None, value, *_NO_ENDS) for method, value in getattr(layer, metric).items()]
    for method, values in layer.completeness.items():
        later = (f"{k} places later" if k else "here" for k in range(len(values)))
        rows += [
            (*place, method, "completeness", name, value, *_NO_ENDS) for name, value in zip(later, values, strict=True)
        ]
    rows += [(*place, None, "angle", name, value, *_NO_ENDS) for name, value in layer.angles.items()]
    return rows


def _grid_rows(grid: PatchGrid) -> list[tuple[Any, ...]]:
    attribution, within = grid.attribution, grid.within_placebo
    return [
        (
            *(grid.point, layer, grid.by, j, column, float(grid.recovery[i, j])),
            *(float(end) for end in grid.interval[i, j]),
            None if attribution is None else float(attribution[i, j]),
            None if within is None else bool(within[i, j]),
        )
        for i, layer in enumerate(grid.layers)
        for j, column in enumerate(grid.columns)
    ]
