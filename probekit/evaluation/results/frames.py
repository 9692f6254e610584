"""Results as tidy pandas tables."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from probekit.evaluation.results.data import (
    EMBEDDING,
    BaselineResult,
    LayerResult,
    ProbeData,
    TransferCell,
    TransferData,
)

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("kind", "name", "point", "layer", "place", "C", "converged", "split", "metric", "value", "low", "high")
COLUMNS += ("band_low", "band_high", "selected", "in_best_set", "at_edge")
TRANSFER_COLUMNS = ("train_task", "test_task", "point", "layer", "place", "chosen", "C", "converged", "metric")
TRANSFER_COLUMNS += ("value", "low", "high")
_NO_ENDS = (None, None)
_NO_MARKS = (None, None, None)


def probe_frame(data: ProbeData) -> "pd.DataFrame":
    """One row per probe, baseline, control task or random-weights probe, split and metric; then rows of the curve.

    The rows of the curve have the kinds "procedure" (the scores of nested folds), "lead" (the quoted score minus the
    best baseline's, whose name they have), "lead over pooled" (of a probe over a sequence: minus that of the mean or
    the last token), "change without nuisance" (of each place, after the columns were regressed out) and "curve" (the
    p-value of the best of all layers).
    """
    return _typed(_probe_rows(data), COLUMNS)


def curves_frame(curves: Sequence[ProbeData]) -> "pd.DataFrame":
    """The rows of all curves, with the label set first; rows that several points share are listed once.

    Where several probes have the same label set and point, the probe is next; it is empty for the baselines, which the
    probes share.
    """
    if len({(curve.meta["label"], curve.meta["point"]) for curve in curves}) == len(curves):
        rows = [(curve.meta["label"], *row) for curve in curves for row in _probe_rows(curve)]
        return _typed(list(dict.fromkeys(rows)), ("label", *COLUMNS))
    rows = [
        (curve.meta["label"], None if row[0] == "baseline" and row[1] != EMBEDDING else curve.meta["probe"], *row)
        for curve in curves
        for row in _probe_rows(curve)
    ]
    return _typed(list(dict.fromkeys(rows)), ("label", "probe", *COLUMNS))


def _probe_rows(data: ProbeData) -> list[tuple[Any, ...]]:
    probe = data.meta["probe"]
    rows = [row for layer in data.layers for row in _metric_rows(data, "probe", probe, layer)]
    rows += [row for layer in data.layers for row in _extra_rows(data, layer)]
    rows += [row for baseline in data.baselines for row in _metric_rows(data, "baseline", baseline.name, baseline)]
    rows += [row for layer in data.random_init for row in _metric_rows(data, "random-init", probe, layer)]
    rows += [row for layer in data.residual for row in _metric_rows(data, "residual", probe, layer)]
    rows += _change_rows(data)
    for how, layers in data.pooled.items():
        rows += [row for layer in layers for row in _metric_rows(data, "pooled", f"{how} token", layer)]
    return rows + _curve_rows(data)


def _typed(rows: Sequence[tuple[Any, ...]], columns: Sequence[str]) -> "pd.DataFrame":
    import pandas as pd

    numbers = ("C", "value", "low", "high", "band_low", "band_high")
    flags = ("converged", "selected", "in_best_set", "at_edge")
    kinds = {"layer": "Int64"} | dict.fromkeys(numbers, "float64") | dict.fromkeys(flags, "boolean")
    return pd.DataFrame(rows, columns=list(columns)).astype(kinds)


def transfer_frame(data: TransferData) -> "pd.DataFrame":
    """One row per train task, test task, layer and metric."""
    import pandas as pd

    rows = [
        (*_pair(cell), metric, value, *cell.intervals.get(metric, _NO_ENDS))
        for cell in data.cells
        for metric, value in cell.metrics.items()
    ]
    types = {"layer": "Int64", "C": "float64", "low": "float64", "high": "float64"}
    return pd.DataFrame(rows, columns=list(TRANSFER_COLUMNS)).astype(types)


def _metric_rows(data: ProbeData, kind: str, name: str, result: LayerResult | BaselineResult) -> list[tuple[Any, ...]]:
    is_layer = isinstance(result, LayerResult)
    place = (result.point, result.layer, result.place) if is_layer else (None, None, None)
    marks = _marks(data, result) if is_layer and kind == "probe" else _NO_MARKS
    rows = []
    for split, values in result.metrics.items():
        for metric, value in values.items():
            interval = result.intervals.get(metric, _NO_ENDS) if split == "test" else _NO_ENDS
            band = result.band if is_layer and split == "test" and metric == data.headline else None
            ends = (*interval, *(band or _NO_ENDS))
            rows.append((kind, name, *place, result.C, result.converged, split, metric, value, *ends, *marks))
    return rows


def _marks(data: ProbeData, layer: LayerResult) -> tuple[bool | None, ...]:
    """Whether the layer was selected, is statistically tied with the best, and has the largest C of the grid."""
    is_quoted = data.quoted is not None and layer is data.quoted.layer
    return is_quoted, layer.in_best_set, layer.is_at_edge


def _extra_rows(data: ProbeData, layer: LayerResult) -> list[tuple[Any, ...]]:
    """Selectivity, codelength, p-value, R2 of each output and control task of a layer, as rows of the test split."""
    code = layer.codelength or {}
    extras = {
        "selectivity": layer.selectivity,
        "codelength_bits": code.get("bits"),
        "uniform_bits": code.get("uniform_bits"),
        "prior_bits": code.get("prior_bits"),
        "compression": code.get("compression"),
        "gain": code.get("gain"),
        "p_value": layer.p_value,
    }
    extras |= {f"r2_output_{k}": value for k, value in enumerate(layer.outputs)}
    rows = [("probe", data.meta["probe"], name, value, _marks(data, layer)) for name, value in extras.items()]
    rows.append(("control", "control", data.headline, layer.control, _NO_MARKS))
    place = (layer.point, layer.layer, layer.place, layer.C, layer.converged, "test")
    ends = (*_NO_ENDS, *_NO_ENDS)
    found: list[tuple[Any, ...]] = [
        (kind, by, *place, name, value, *ends, *marks) for kind, by, name, value, marks in rows if value is not None
    ]
    rates = layer.rates or {}
    for name, shown in (("tpr", "tpr_at_fpr_0.01"), ("test_fpr", "fpr_at_fpr_0.01")):  # the threshold is validation's
        if name in rates:
            within = (rates[f"{name}_low"], rates[f"{name}_high"], *_NO_ENDS)
            found.append(("probe", data.meta["probe"], *place, shown, rates[name], *within, *_marks(data, layer)))
    return found


def _change_rows(data: ProbeData) -> list[tuple[Any, ...]]:
    """How far each place changes without the nuisances."""
    changes = {each["place"]: each for each in (data.meta.get("nuisance") or {"changes": []})["changes"]}
    kind, rest, rows = ("change without nuisance", data.meta["probe"]), (*_NO_ENDS, *_NO_MARKS), []
    for layer in (layer for layer in data.residual if layer.place in changes):
        place, each = (layer.point, layer.layer, layer.place, layer.C, layer.converged), changes[layer.place]
        ends = each["interval"] or _NO_ENDS
        rows.append((*kind, *place, "test", data.headline, each["change"], *ends, *rest))
    return rows


def _curve_rows(data: ProbeData) -> list[tuple[Any, ...]]:
    """The scores of the complete procedure, the lead over the best baseline, and the p-value of the best layer."""
    procedure, lead = data.procedure or {"metrics": {}, "intervals": {}}, data.meta.get("lead")
    probe, p_max = data.meta["probe"], data.meta.get("p_max")
    found: list[tuple[str, str, str, float, Sequence[float] | None]] = [
        ("procedure", probe, metric, value, procedure["intervals"].get(metric))
        for metric, value in procedure["metrics"].items()
    ]
    found += [] if lead is None else [("lead", lead["baseline"], data.headline, lead["over"], lead["interval"])]
    found += [
        ("lead over pooled", f"{how} token", data.headline, each["over"], each["interval"])
        for how, each in (data.meta.get("pooled") or {}).items()
    ]
    found += [] if p_max is None else [("curve", probe, "p_value", p_max, None)]
    place = (data.meta["point"], None, None, None, None, "test")
    return [
        (kind, name, *place, metric, value, *(ends or _NO_ENDS), *_NO_ENDS, *_NO_MARKS)
        for kind, name, metric, value, ends in found
    ]


def _pair(cell: TransferCell) -> tuple[Any, ...]:
    return cell.train_task, cell.test_task, cell.point, cell.layer, cell.place, cell.chosen, cell.C, cell.converged
