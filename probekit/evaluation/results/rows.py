"""Results of probes as rows of the one table (`probekit.results.table`)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from probekit.evaluation.results.data import (
    EMBEDDING,
    ENSEMBLE,
    BaselineResult,
    LayerResult,
    ProbeData,
    TransferCell,
    TransferData,
)
from probekit.evaluation.results.verdict import chance_of
from probekit.evaluation.results.wording import features_name
from probekit.evaluation.scores.roc import ROC_RATES, least_negatives
from probekit.points import Place, depth_of
from probekit.results.table import TableRow, ends_of

_BITS = ("uniform_bits", "prior_bits", "compression", "gain")
_RATES = {"tpr": "tpr_at_fpr_0.01", "test_fpr": "fpr_at_fpr_0.01"}  # of the threshold that validation chose


def curves_rows(curves: Sequence[ProbeData]) -> list[TableRow]:
    """The rows of all curves; those that several share, such as a baseline's, are there once."""
    return list({tuple(row.items()): row for curve in curves for row in curve_rows(curve)}.values())


def curve_rows(data: ProbeData) -> list[TableRow]:
    """One row per probe, baseline, control task or random-weights probe, split and metric; then rows of the curve.

    The rows of the curve have the kinds "procedure" (the scores of nested folds), "lead" (the quoted score minus the
    best baseline's, whose name they have), "lead over black box" (minus that of each one), "lead over pooled" (minus
    that of other features of the same rows: the mean or the last token, or the activations that latents are of),
    "change without nuisance" (of each place, after the columns were regressed out) and "curve" (the p-value of the best
    of all layers, which pays for the choice; it has no value).
    """
    rows = [row for layer in data.layers for row in (*_scores(data, "probe", layer), *_of_layer(data, layer))]
    for baseline in data.baselines:
        reads = baseline.name in (EMBEDDING, ENSEMBLE)  # the others know nothing of activations, so probes share them
        kind = ENSEMBLE if baseline.name == ENSEMBLE else "baseline"
        rows += [row if reads else {**row, "probe": None} for row in _scores(data, kind, baseline)]
    for kind, layers in (("random-init", data.random_init), ("residual", data.residual)):
        rows += [row for layer in layers for row in _scores(data, kind, layer)]
    for how, layers in data.pooled.items():
        rows += [{**row, "name": features_name(how)} for layer in layers for row in _scores(data, "pooled", layer)]
    about = about_curve(data.meta)
    return [{**about, **row} for row in (*rows, *_changes(data), *_of_curve(data))]


def about_curve(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The cells that all rows of a curve or a grid share."""
    names = {name: str(meta[name]) for name in ("model", "task", "label", "probe")}
    within = meta.get("within")
    at = {} if within is None else {"by": f"within {within['column']}", "at": within["value"]}
    return {**names, "name": names["probe"], "position": str(meta["position"]), **at}


def grid_cells(meta: Mapping[str, Any], by: str, at: str = "") -> dict[str, Any]:
    """The cells of a row of a grid that say which; where all rows have one value of a column, it is named too."""
    if (within := meta.get("within")) is None:
        return {"by": by, "at": at or None}
    return {"by": f"{by} within {within['column']}", "at": ", ".join(filter(None, (at, within["value"])))}


def place_cells(result: LayerResult | TransferCell, n_layers: int | None) -> dict[str, Any]:
    """The cells of a place: `n_layers` is of the model; without it there is no depth."""
    depth = None if n_layers is None else depth_of(Place(result.point, result.layer), n_layers)
    return {"point": result.point, "layer": result.layer, "depth": depth, "place": result.place}


def score_rows(result: LayerResult | BaselineResult, n: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """A row for each metric of each split; `n` is how many rows a split has, of "test" at least."""
    for split, values in result.metrics.items():
        for metric, value in values.items():
            row = {"split": split, "n": n.get(split, n["test"]), "metric": metric, "value": value}
            row |= {"C": result.C, "converged": result.converged}
            yield row | (ends_of(result.intervals.get(metric)) if split == "test" else {})


def _scores(data: ProbeData, kind: str, result: LayerResult | BaselineResult) -> list[dict[str, Any]]:
    is_layer = isinstance(result, LayerResult)
    cells = {"kind": kind} | (_where(data, result) if is_layer else {"name": result.name})
    marks = _marks(data, result) if is_layer and kind == "probe" else {}
    rows = [cells | row | marks for row in score_rows(result, data.meta["n"])]
    if kind == "probe" and is_layer and data.meta["n_classes"] == 2:
        rows += [cells | _too_few(data, name, why) | marks for name, why in few_negatives(data).items()]
    for row in rows:
        if row["split"] == "test" and row["metric"] == data.headline and is_layer:
            row |= ends_of(result.band, "band_low", "band_high")
            if kind == "probe":
                row |= {"chance": chance_of(data), "p_value": result.p_value}
    return rows


def _too_few(data: ProbeData, metric: str, why: str) -> dict[str, Any]:
    """The cells of a rate that the test rows are too few for."""
    return {"split": "test", "n": data.meta["n"]["test"], "metric": metric, "value": None, "note": why}


def few_negatives(data: ProbeData) -> dict[str, str]:
    """The rates of the ROC curve that the test rows of two classes are too few for, and why."""
    counts = data.meta.get("counts", {}).get("test", {})
    negatives = next(iter(counts.values()), 0) if len(counts) == 2 else 0
    why = "needs {:,} test rows of the first class, of which there are {:,}"
    least = {name: least_negatives(name) for name in ROC_RATES}
    return {name: why.format(n, negatives) for name, n in least.items() if 0 < negatives < n}


def _where(data: ProbeData, layer: LayerResult) -> dict[str, Any]:
    return {**place_cells(layer, data.meta["n_layers"]), "C": layer.C, "converged": layer.converged}


def _marks(data: ProbeData, layer: LayerResult) -> dict[str, Any]:
    """Whether the layer was selected, is statistically tied with the best, and has the largest C of the grid."""
    is_quoted = data.quoted is not None and layer is data.quoted.layer
    return {"selected": is_quoted, "in_best_set": layer.in_best_set, "at_edge": layer.is_at_edge}


def _of_layer(data: ProbeData, layer: LayerResult) -> list[dict[str, Any]]:
    """Selectivity, R2 of each output, control task and rates of a layer on test; its codelength, of training labels."""
    code = layer.codelength or {}
    n = data.meta["n"]
    found: dict[str, Any] = {"selectivity": layer.selectivity}
    found |= {f"r2_output_{k}": value for k, value in enumerate(layer.outputs)}
    where = {**_where(data, layer), "split": "test", "n": n["test"]}
    marks = {"kind": "probe", **_marks(data, layer)}
    rows = [{**where, **marks, "metric": name, "value": value} for name, value in found.items() if value is not None]
    coded = {"codelength_bits": code.get("bits"), **{name: code.get(name) for name in _BITS}}
    sent = {**where, **marks, "split": "train", "n": n.get("train")}  # of the labels of these rows
    rows += [{**sent, "metric": name, "value": value} for name, value in coded.items() if value is not None]
    if layer.control is not None:
        own = {"kind": "control", "name": "control", "metric": data.headline, "value": layer.control}
        rows.append({**where, **own})
    for name, shown in _RATES.items():
        if layer.rates is not None and name in layer.rates:
            rates = {end: layer.rates[key] for end, key in (("low", f"{name}_low"), ("high", f"{name}_high"))}
            rows.append({**where, **marks, "metric": shown, "value": layer.rates[name], **rates})
    return rows


def _changes(data: ProbeData) -> list[dict[str, Any]]:
    """How far each place changes without the nuisances."""
    changes = {each["place"]: each for each in (data.meta.get("nuisance") or {"changes": []})["changes"]}
    return [
        {
            "kind": "change without nuisance",
            **_where(data, layer),
            "split": "test",
            "n": data.meta["n"]["test"],
            "metric": data.headline,
            "value": changes[layer.place]["change"],
            **ends_of(changes[layer.place]["interval"]),
        }
        for layer in data.residual
        if layer.place in changes
    ]


def _of_curve(data: ProbeData) -> list[dict[str, Any]]:
    """The scores of the complete procedure, the lead over the best baseline, and the p-value of the best layer."""
    rows = [] if data.procedure is None else procedure_rows(data.procedure, data.headline, chance_of(data))
    without = (data.meta.get("nuisance") or {}).get("procedure")
    if without is not None:
        own = {"kind": "change without nuisance", "metric": data.headline, "value": without["change"]}
        rows.append({**own, **ends_of(without["interval"])})
    compared = [("lead", lead["baseline"], lead)] if (lead := data.meta.get("lead")) is not None else []
    pooled = data.meta.get("pooled") or {}
    compared += [("lead over pooled", features_name(how), each) for how, each in pooled.items()]
    boxes = data.meta.get("black_boxes") or {}
    compared += [("lead over black box", name, each) for name, each in boxes.items() if each["over"] is not None]
    if (mixed := data.meta.get("ensemble")) is not None and mixed["over"] is not None:
        own = {"kind": "ensemble over quoted", "name": ", ".join(mixed["members"]), "metric": data.headline}
        rows.append({**own, "value": mixed["over"], **ends_of(mixed["interval"])})
    rows += [
        {"kind": "baseline", "name": name, "metric": "tokens_per_row", "value": each["tokens"]}
        for name, each in boxes.items()
        if each["tokens"] is not None
    ]
    for kind, name, each in compared:
        own = {"kind": kind, "name": name, "metric": data.headline, "value": each["over"]}
        rows.append({**own, **ends_of(each["interval"])})
    if (p_max := data.meta.get("p_max")) is not None:
        rows.append({"kind": "curve", "metric": data.headline, "p_corrected": p_max})
    n = data.meta["n"]["test"]
    return [{**row, "split": "test", "n": n, "point": data.meta["point"]} for row in rows]


def procedure_rows(procedure: Mapping[str, Any], headline: str, chance: float | None) -> list[dict[str, Any]]:
    """The scores of nested folds, which select anew in each fold; `chance` is of the headline."""
    return [
        {
            "kind": "procedure",
            "split": "test",
            "n": procedure.get("n"),
            "metric": metric,
            "value": value,
            **ends_of(procedure["intervals"].get(metric)),
            "chance": chance if metric == headline else None,
        }
        for metric, value in procedure["metrics"].items()
    ]


def transfer_rows(data: TransferData) -> list[TableRow]:
    """One row per train task, test task, layer and metric; `selected` is of the train task's best layer."""
    meta = data.meta
    about = {name: str(meta[name]) for name in ("model", "task", "label", "probe", "position") if name in meta}
    own = isinstance(meta.get("n"), list)  # each task its labels and rows; of a shift all values have one label
    labels = dict(zip(data.tasks, meta["labels"], strict=True)) if own else {}
    sizes = dict(zip(data.tasks, meta["n"], strict=True)) if own else {}
    if (shift := meta.get("shift")) is not None:
        about |= grid_cells(meta, f"shift of {shift['column']}")
    rows: list[TableRow] = []
    tested: dict[str, int] = {} if shift is None else shift.get("n", {})
    for cell in data.cells:
        if own:
            about |= {"label": labels[cell.train_task]}
        n = sizes[cell.test_task]["test"] if own else tested.get(cell.test_task)
        where = {"train_task": cell.train_task, "test_task": cell.test_task, **place_cells(cell, meta.get("n_layers"))}
        where |= {"C": cell.C, "converged": cell.converged, "selected": cell.chosen}
        rows += [
            {**about, "n": n, "kind": "probe", "name": about["probe"], **where, "split": "test", "metric": metric}
            | {"value": value, **ends_of(cell.intervals.get(metric))}
            for metric, value in cell.metrics.items()
        ]
    return rows + _shift_rows(data, about)


def _shift_rows(data: TransferData, about: Mapping[str, Any]) -> list[TableRow]:
    """The means over the values of a shift, and what is lost between them."""
    shift = data.meta.get("shift") or {}
    shown = {"same value": "same", "other values": "others", "change": "change"}
    found = {name: shift[key] for name, key in shown.items() if shift.get(key) is not None}
    where = {**about, "kind": "shift", "point": data.meta["point"]}
    where |= grid_cells(data.meta, f"shift of {shift.get('column')}", "mean over the values")
    ends = {"change": ends_of(shift.get("interval"))}
    return [
        {**where, "name": name, "split": "test", "metric": data.headline, "value": value, **ends.get(name, {})}
        for name, value in found.items()
    ]
