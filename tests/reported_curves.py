"""Made-up results with everything that a page of a report shows."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
from drawn_curves import make

from probekit.evaluation import ProbeResults
from probekit.evaluation.results.row_scores import RowScores


def rows_of(results: ProbeResults, n_classes: int, n: int = 60) -> RowScores:
    """Rows that were made up, of every place."""
    rng = np.random.default_rng(1)
    labels = rng.integers(max(n_classes, 1), size=n)
    shape = (n,) if n_classes in (0, 2) else (n, n_classes)
    scores = {layer.place: rng.normal(size=shape) for layer in results.layers}
    chosen = {place: (x > 0).astype(int) if x.ndim == 1 else x.argmax(axis=1) for place, x in scores.items()}
    splits = np.array(["validation", "test", "test"] * (n // 3), dtype=object)
    ids = np.array([str(i) for i in range(n)], dtype=object)
    return RowScores(ids, np.array([""] * n, dtype=object), splits, labels, np.arange(n), scores, chosen)


def curve(classes: tuple[str, ...] = ("no", "yes"), **meta: Any) -> ProbeResults:
    """A made-up curve with everything that a page shows."""
    counts = dict.fromkeys(classes, 10)
    audit = {"lines": [], "splits": {"train": {"n": 20, "classes": counts, "leaks": 0}}, "shared": {}, "near": 0.7}
    known = {
        "classes": list(classes),
        "n_classes": len(classes),
        "seed": 0,
        "audit": audit,
        "versions": {"probekit": "0"},
    }
    made = make(full=True, **{**known, **meta})
    layers: list[Any] = [replace(layer, metrics=_with_ece(layer.metrics)) for layer in made.layers]
    found = ProbeResults(layers, made.baselines, json.loads(json.dumps(made.meta)), made.random_init)
    return ProbeResults(**{**vars(found), "rows": rows_of(found, len(classes))})


def _with_ece(metrics: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {split: {**values, "ece": 0.05, "brier": 0.2} for split, values in metrics.items()}
