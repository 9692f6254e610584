"""Curves as data: results with a name and a colour, and what a picture reads from results."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from probekit.charts.palette import NAME_LENGTH, PALETTE, short
from probekit.evaluation.results.coordinates import within_text
from probekit.evaluation.results.data import LayerResult, ProbeData, is_output
from probekit.evaluation.results.wording import latents_read, metric_name, point_name, position_name, quick_text
from probekit.points import base_name
from probekit.text import printable

METRICS = {"r2": "R²"}
BAND, POINTWISE, INTERVAL = "95% simultaneous band", "95% pointwise interval", "95% interval"
MOST_BANDS = 2  # curves whose bands a reader can distinguish
CURVE_NAME = 56  # letters of a name that was given


@dataclass(frozen=True)
class Curve:
    """Results on axes.

    Attributes:
        results: of one curve.
        name: in the legend.
        color: "#RRGGBB", of everything that belongs to it.
        rank: 0 for the first on these axes.
        is_alone: whether it is the only one there.
        has_band: whether its band is drawn; of three curves or more only the best has one, as theirs mix to mud.
    """

    results: ProbeData
    name: str
    color: str
    rank: int = 0
    is_alone: bool = True
    has_band: bool = True

    @property
    def quoted(self) -> float:
        """The score to quote; the highest where nothing was selected."""
        quoted = self.results.quoted
        return max(self.values) if quoted is None else quoted.value

    @property
    def xs(self) -> list[int]:
        """The layer of each place; the output has the number of layers."""
        return [x_of(self.results, layer) for layer in self.results.layers]

    @property
    def values(self) -> list[float]:
        """The headline on test of each place."""
        return [test_value(self.results, layer) for layer in self.results.layers]


def x_of(results: ProbeData, layer: LayerResult) -> int:
    """Where a place is on the layer axis; an embedding is before layer 0, a final norm after the last layer."""
    if layer.layer is not None and not is_output(results, layer):
        return layer.layer
    return -1 if base_name(layer.point).endswith("embed") else int(results.meta["n_layers"])


def test_value(results: ProbeData, layer: LayerResult) -> float:
    """The headline on test."""
    return layer.metrics["test"][results.headline]


def validation_values(results: ProbeData) -> list[float]:
    """The headline on validation of each place; none where nothing was selected on validation."""
    values = [layer.metrics.get("validation", {}).get(results.headline) for layer in results.layers]
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else []


def chosen(results: ProbeData) -> LayerResult | None:
    """The place selected on validation; None for nested folds, and where nothing was selected."""
    return results.best if results.procedure is None and validation_values(results) else None


def bands(results: ProbeData) -> tuple[list[tuple[float, float]], str]:
    """(low, high) of each layer, and their name; without an interval, both ends are the value."""
    several = len(results.layers) > 1
    if several and all(layer.band is not None for layer in results.layers):
        return [layer.band for layer in results.layers if layer.band], BAND
    ends = [interval_of(results, layer) for layer in results.layers]
    return ends, POINTWISE if several else INTERVAL


def has_intervals(results: ProbeData) -> bool:
    """Whether any score on test has an interval."""
    return any(results.headline in layer.intervals for layer in results.layers)


def interval_of(results: ProbeData, layer: LayerResult) -> tuple[float, float]:
    """(low, high) of the headline on test; both are the value where there is no interval."""
    value = test_value(results, layer)
    return layer.intervals.get(results.headline, (value, value))


def tick_of(results: ProbeData, layer: LayerResult) -> str:
    """The name of a place under the axis."""
    if is_output(results, layer):
        return "out"
    return printable(layer.point) if layer.layer is None else str(layer.layer)


def ticks_of(several: Sequence[ProbeData]) -> dict[float, str]:
    """The places of curves on the layer axis; a layer's number comes before the output of a curve that ends there."""
    names: dict[float, str] = {}
    for results in several:
        for layer in results.layers:
            x, name = float(x_of(results, layer)), tick_of(results, layer)
            names[x] = name if name.isdigit() else names.get(x, name)
    return names


def place_text(results: ProbeData, layer: LayerResult) -> str:
    """The name of a place, as the table has it."""
    return f"{printable(layer.place)}{' (output)' if is_output(results, layer) else ''}"


def metric_of(results: ProbeData) -> str:
    """The name of the headline for a reader."""
    return METRICS.get(results.headline, metric_name(results.headline))


def facts(results: ProbeData) -> dict[str, str]:
    """What a curve is of, by the name of the fact."""
    meta, layers = results.meta, results.layers
    names = {key: short(meta[key]) for key in ("label", "model", "task")}
    point = point_name(meta) if len(layers) > 1 or latents_read(meta) else place_text(results, layers[0])
    names |= {"point": point, "position": position_name(meta["position"]), "probe": f"{printable(meta['probe'])} probe"}
    names |= {"within": short(within_text(meta))}
    n, folds = f"{meta['n']['test']:,}", meta.get("folds")
    names["examples"] = f"{folds} nested folds of {n} examples" if folds else f"{n} test examples"
    return names | {"quick": quick_text(meta)}


def shared_facts(several: Sequence[ProbeData]) -> dict[str, str]:
    """The facts that all results have in common."""
    first, *others = [facts(results) for results in several]
    return {key: value for key, value in first.items() if all(other[key] == value for other in others)}


def own_names(several: Sequence[ProbeData]) -> list[str]:
    """A name for each: the facts in which they differ, or their number; no name is given twice."""
    shared = shared_facts(several)
    names: list[str] = []
    for i, results in enumerate(several):
        own = [value for key, value in facts(results).items() if key not in shared and value]
        name = short(", ".join(own), 2 * NAME_LENGTH) if own else f"curve {i + 1}"
        names.append(f"{name} ({i + 1})" if name in names else name)
    return names


def named_curves(
    several: Sequence[ProbeData], names: Sequence[str | None] = (), colors: Sequence[str | None] = ()
) -> list[Curve]:
    """The curves with a name and a colour for each: those given, else what they differ in, and the next that is free.

    Of three curves or more only the best has its band.
    """
    own = own_names(several) if len(several) > 1 else [""]
    names, colors = names or [None] * len(several), colors or [None] * len(several)
    free = [color for color in PALETTE if color not in colors] or list(PALETTE)
    curves = []
    for rank, (results, name) in enumerate(zip(several, names, strict=True)):
        color = colors[rank]
        if color is None:
            color = free.pop(0)
            free.append(color)  # after the last the first comes again
        text = own[rank] if name is None else short(name, CURVE_NAME)
        curves.append(Curve(results, text, color, rank, len(several) == 1))
    if len(curves) <= MOST_BANDS:
        return curves
    best = max(curves, key=lambda curve: curve.quoted)
    return [replace(curve, has_band=curve is best) for curve in curves]
