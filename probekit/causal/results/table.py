"""Causal results as rows of the one table (`probekit.results.table`)."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from probekit.causal.data import CausalData, CausalLayer, Effect, PatchGrid
from probekit.causal.results.view import role_of
from probekit.points import Place, depth_of
from probekit.results.table import TableRow, ends_of

_MEASURES = ("logit_difference", "flip_rate", "probability", "kl", "size")


def causal_rows(data: CausalData) -> list[TableRow]:
    """A row per number of every effect, layer and patched cell; the `name` is the method.

    The kind of an effect is what its direction is for: "direction", "ceiling", "control" or "placebo". Rows of a layer
    ("layer") say what was measured there by method: whether it is read and used (1 or 0), completeness, angles and
    more; the draw of a placebo is in `note`. Rows of a patched cell ("patching") name the position or head in `at`.
    """
    meta = data.meta
    names = ("model", "task", "label", "probe", "position")
    about: dict[str, Any] = {name: str(meta[name]) for name in names if meta.get(name) is not None}
    rows: list[dict[str, Any]] = []
    drawn = Counter[tuple[Any, ...]]()
    for effect in data.effects:
        key = (effect.method, effect.direction, effect.place, effect.scale, effect.split)
        drawn[key] += 1
        rows += _effect_rows(effect, drawn[key])
    rows += [row for layer in data.layers for row in _layer_rows(layer)]
    rows += [row for grid in data.grids for row in _grid_rows(grid)]
    n_layers = meta.get("n_layers")
    for row in rows:
        if n_layers is not None:
            row["depth"] = depth_of(Place(row["point"], row["layer"]), n_layers)
    return [{**about, **row} for row in rows]


def _effect_rows(effect: Effect, draw: int) -> Iterator[dict[str, Any]]:
    where: dict[str, Any] = {"kind": role_of(effect.direction), "name": effect.method, "direction": effect.direction}
    where |= {"note": f"draw {draw}"} if where["kind"] == "placebo" else {}
    where |= {"point": effect.point, "layer": effect.layer, "place": effect.place, "scale": effect.scale}
    where |= {"split": effect.split, "n": effect.n}
    tested = {"p_value": effect.p_value, "p_corrected": effect.p_adjusted}
    tested |= ends_of(effect.interval) | ends_of(effect.placebo_band, "band_low", "band_high")
    yield {**where, "metric": "effect", "value": effect.effect, **tested}
    for name in _MEASURES:
        if (value := getattr(effect, name)) is not None:
            yield {**where, "metric": name, "value": value}


def _layer_rows(layer: CausalLayer) -> list[dict[str, Any]]:
    """The score, then whether a thing is read and used (1 or 0), then what was measured by method."""
    where = {"kind": "layer", "point": layer.point, "layer": layer.layer, "place": layer.place, "split": "test"}
    score = {"metric": "score", "value": layer.score, **ends_of(layer.interval), "note": layer.quadrant}
    rows: list[dict[str, Any]] = [score, {"metric": "is_read", "value": float(layer.is_read)}]
    rows += [{"name": name, "metric": "is_used", "value": float(used)} for name, used in layer.is_used.items()]
    for metric, named in (("direction", layer.directions.items()), ("used_by", ((None, one) for one in layer.used_by))):
        rows += [{"name": name, "direction": direction, "metric": metric, "value": 1.0} for name, direction in named]
    for metric in ("collateral", "selectivity", "reliability"):
        rows += [{"name": name, "metric": metric, "value": value} for name, value in getattr(layer, metric).items()]
    for name, values in layer.completeness.items():
        ends = layer.completeness_interval.get(name)
        for later, value in enumerate(values):
            own = {"note": f"{later} places later"} if later else {"note": "here", **ends_of(ends)}
            rows.append({"name": name, "metric": "completeness", "value": value, **own})
    rows += [{"direction": name, "metric": "angle", "value": value} for name, value in layer.angles.items()]
    return [{**where, **row} for row in rows]


def _grid_rows(grid: PatchGrid) -> Iterator[dict[str, Any]]:
    for i, layer in enumerate(grid.layers):
        for j, token in enumerate(grid.columns):
            where = {"kind": "patching", "name": "patch", "by": grid.by, "at": str(j), "token": token}
            where |= {"point": grid.point, "layer": layer, "place": str(Place(grid.point, layer)), "n": grid.n}
            where |= {"split": "test"}
            low, high = grid.interval[i, j].tolist()
            yield {**where, "metric": "recovery", "value": float(grid.recovery[i, j]), "low": low, "high": high}
            for name in ("attribution", "within_placebo"):
                if (values := getattr(grid, name)) is not None:
                    yield {**where, "metric": name, "value": float(values[i, j])}
