"""What the parts of results say of one another: places that are named and are there, classes, counts of rows, shapes.

Types of single values are in `meta` and `data`, and `probekit.files.records` checks them.

Axes: N rows, C classes, D width.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from probekit.errors import DataError
from probekit.evaluation.results.data import LayerResult, ProbeData, TransferData
from probekit.files.records import MISSING, ensure, inside
from probekit.text import listed


def check_probe_data(data: ProbeData, best: str | None) -> None:
    """Check that the record of a curve agrees with itself; `best` is the place that it names as selected.

    Raises:
        Unfit: it does not.
    """
    places = check_curve_layers(data.layers, data.headline)
    ensure(best is None or best in places, f"one of the places {listed(places, most=4)}", best, "best")
    for i, baseline in enumerate(data.baselines):
        ensure("test" in baseline.metrics, "scores on test", baseline.metrics, "baselines", i, "metrics")
    for name, layers in (("random_init", data.random_init), ("residual", data.residual)):
        _check_others(layers, places, name)
    for how, layers in data.pooled.items():
        _check_others(layers, places, "pooled", how)
        ensure(len(layers) == len(places), f"a list of {len(places)}, one for each place", layers, "pooled", how)
    with inside("meta"):
        _check_meta(data, places)


def check_curve_layers(layers: Sequence[LayerResult], headline: str) -> list[str]:
    """The places of the layers of a curve, each once, if all have the headline on the same splits.

    Raises:
        Unfit: they do not.
    """
    ensure(layers, "one place or more", list(layers), "layers")
    places: list[str] = []
    chosen = any("validation" in layer.metrics for layer in layers)
    for i, layer in enumerate(layers):
        with inside("layers", i):
            ensure(layer.place not in places, "each place once", layer.place)
            places.append(layer.place)
            for split in ("validation", "test") if chosen else ("test",):
                found = layer.metrics.get(split, {})
                ensure(headline in found, f"the headline, {headline}", found, "metrics", split)
    return places


def _check_others(layers: Sequence[LayerResult], places: Sequence[str], *path: str) -> None:
    """Layers of other weights or rows, at the places of the curve."""
    for i, layer in enumerate(layers):
        with inside(*path, i):
            ensure(layer.place in places, f"a place of the curve ({listed(places, most=4)})", layer.place)
            ensure("test" in layer.metrics, "scores on test", layer.metrics, "metrics")
            ensure(layer.probe is None, "null: numbers only", layer.probe, "probe")


def _check_meta(data: ProbeData, places: Sequence[str]) -> None:
    meta = data.meta
    check_label_classes(meta)
    classes, n = meta["classes"], meta["n"]
    ensure("test" in n, "how many rows of test there are", n, "n")
    texts = meta.get("n_texts")
    ensure(texts is None or n.keys() <= texts.keys(), "the splits of n", texts, "n_texts")
    for split, counts in meta.get("counts", {}).items():
        ensure(set(classes) == counts.keys(), "a count for each class", counts, "counts", split)
    if (procedure := meta.get("procedure")) is not None:
        metrics = procedure["metrics"]
        ensure(data.headline in metrics, f"the headline, {data.headline}", metrics, "procedure", "metrics")
    if (nuisance := meta.get("nuisance")) is not None:
        found = [change["place"] for change in nuisance["changes"]]
        ensure(found == list(places), "the places of the curve", found, "nuisance", "changes")
        is_folds = meta.get("procedure") is not None
        ensure(not is_folds or "procedure" in nuisance, "the change of the procedure", MISSING, "nuisance", "procedure")
        found = [layer.place for layer in data.residual]
        ensure(found == list(places), "results for each place in residual", found, "nuisance")
        without = [layer.place for layer in data.residual if data.headline not in layer.metrics["test"]]
        ensure(not without, f"the headline of each place in residual, {data.headline}", without, "nuisance")


def check_label_classes(meta: dict[str, Any]) -> None:
    """Check that names and number of classes agree, and that the headline is for labels of this kind.

    Raises:
        Unfit: they do not.
    """
    classes, n_classes = meta["classes"], meta["n_classes"]
    ensure(len(classes) == n_classes, f"{n_classes} names of classes (n_classes)", classes, "classes")
    ensure(len(set(classes)) == n_classes, "each class once", classes, "classes")
    ensure(n_classes != 1, "two classes or more, or 0 for numbers", n_classes, "n_classes")
    of_classes = meta["headline"] not in ("r2", "spearman")
    ensure(of_classes == bool(n_classes), "a metric for these labels", meta["headline"], "headline")


def check_transfer(data: TransferData) -> None:
    """Check that there is a chosen cell for each pair of tasks, and a chance level for each column.

    Raises:
        Unfit: there is not.
    """
    chosen = [(cell.train_task, cell.test_task) for cell in data.cells if cell.chosen]
    with inside("meta"):
        for name, given in (("tasks", data.tasks), ("rows", data.rows)):
            ensure(given, "one name or more", given, name)
            ensure(len(set(given)) == len(given), "each name once", given, name)
        majority = data.meta.get("majority")
        if data.headline == "accuracy" or majority is not None:
            fits = majority is not None and len(majority) == len(data.tasks)
            ensure(fits, f"a list of {len(data.tasks)}, one for each task", majority, "majority")
    pairs = [(train, test) for train in data.rows for test in data.tasks]
    with inside("cells"):
        ensure(
            set(chosen) == set(pairs) and len(chosen) == len(pairs), "one chosen cell for each pair of tasks", chosen
        )
        known = {(cell.train_task, cell.test_task) for cell in data.cells}
        ensure(known == set(pairs), "cells of the pairs of tasks alone", sorted(known))


def check_probe(probe: Any, path: Path, classes: Sequence[str]) -> None:
    """Check that a fitted probe is of labels like those of its results.

    Raises:
        DataError: it predicts numbers where there are classes, or another number of classes.
    """
    of_numbers = probe.predicts == "numbers"
    found = 0 if of_numbers else len(probe.classes_)
    if found != len(classes):
        what = "predicts numbers" if of_numbers else f"has {found} classes"
        raise DataError(f"the probe {str(path)!a} {what}, and its results have {len(classes)} classes; train again")


def widths_of(layers: Sequence[LayerResult]) -> dict[str, int | None]:
    """The width of the activations at each place, as its probe has it; None without a probe."""
    return {layer.place: None if layer.probe is None else int(layer.probe.n_features_in_) for layer in layers}
