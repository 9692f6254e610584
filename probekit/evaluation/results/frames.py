"""Results as tidy pandas tables."""

from typing import TYPE_CHECKING, Any

from probekit.evaluation.results.data import BaselineResult, LayerResult, ProbeData, TransferCell, TransferData

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("kind", "name", "point", "layer", "place", "C", "converged", "split", "metric", "value", "low", "high")
COLUMNS += ("band_low", "band_high")
TRANSFER_COLUMNS = ("train_task", "test_task", "point", "layer", "place", "chosen", "C", "converged", "metric")
TRANSFER_COLUMNS += ("value", "low", "high")
_NO_ENDS = (None, None)


def probe_frame(data: ProbeData) -> "pd.DataFrame":
    """One row per probe, baseline, control task or random-weights probe, split and metric."""
    import pandas as pd

    probe = data.meta["probe"]
    rows = [row for layer in data.layers for row in _metric_rows(data, "probe", probe, layer)]
    rows += [row for layer in data.layers for row in _extra_rows(data, layer)]
    rows += [row for baseline in data.baselines for row in _metric_rows(data, "baseline", baseline.name, baseline)]
    rows += [row for layer in data.random_init for row in _metric_rows(data, "random-init", probe, layer)]
    numbers = ("C", "value", "low", "high", "band_low", "band_high")
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"layer": "Int64"} | dict.fromkeys(numbers, "float64"))


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
    rows = []
    for split, values in result.metrics.items():
        for metric, value in values.items():
            interval = result.intervals.get(metric, _NO_ENDS) if split == "test" else _NO_ENDS
            band = result.band if is_layer and split == "test" and metric == data.headline else None
            ends = (*interval, *(band or _NO_ENDS))
            rows.append((kind, name, *place, result.C, result.converged, split, metric, value, *ends))
    return rows


def _extra_rows(data: ProbeData, layer: LayerResult) -> list[tuple[Any, ...]]:
    """Selectivity, codelength, p-value, R2 of each output and control task of a layer, as rows of the test split."""
    code = layer.codelength or {}
    extras = {
        "selectivity": layer.selectivity,
        "codelength_bits": code.get("bits"),
        "compression": code.get("compression"),
        "gain": code.get("gain"),
        "p_value": layer.p_value,
    }
    extras |= {f"r2_output_{k}": value for k, value in enumerate(layer.outputs)}
    rows = [("probe", data.meta["probe"], name, value) for name, value in extras.items()]
    rows.append(("control", "control", data.headline, layer.control))
    place = (layer.point, layer.layer, layer.place, layer.C, layer.converged, "test")
    ends = (*_NO_ENDS, *_NO_ENDS)
    return [(kind, by, *place, name, value, *ends) for kind, by, name, value in rows if value is not None]


def _pair(cell: TransferCell) -> tuple[Any, ...]:
    return cell.train_task, cell.test_task, cell.point, cell.layer, cell.place, cell.chosen, cell.C, cell.converged
