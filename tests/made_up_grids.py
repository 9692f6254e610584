"""Grids of results made up for pictures."""

from typing import Any

import numpy as np

from probekit.evaluation import LayerResult, PositionCurve, PositionResults, TransferCell, TransferResults

HOSTILE = "<b>in:$_x_1$\x1b[31m" + "q" * 60
TASKS = ["cities", "neg_cities", "sp_en_trans", "larger_than", "smaller_than", "common_claim_true_false", "x"]
TASKS += ["a<b>&\x1b[31m_$x_1$" + "q" * 50]


def positions(P: int = 6, L: int = 4, *, names: list[str] | None = None, tested: bool = True) -> PositionResults:
    """Random scores; those of at most 0.7 are not above chance."""
    rng = np.random.default_rng(P)
    curves = []
    for p in range(P):
        values = rng.uniform(0.3, 1, L)
        layers = [
            LayerResult(
                "resid_pre", i, 0.1, True, {"validation": {"accuracy": value}, "test": {"accuracy": value}}, {}, []
            )
            for i, value in enumerate(values)
        ]
        corrected: list[float | None] = [0.001 if value > 0.7 else 0.6 for value in values] if tested else [None] * L
        n = {"train": 400, "validation": 100, "test": 2000 - 3 * p}
        curves.append(
            PositionCurve((names or [str(i) for i in range(P)])[p], n, 0.45 + 0.01 * (p % 5), layers, corrected)
        )
    meta = {"headline": "accuracy", "point": "resid_pre", "probe": "logistic", "model": "$gpt$", "task": HOSTILE}
    meta |= {"label": "kind", "n_classes": 2, "by": "position", "kept": ["all"] if names is None else names}
    meta |= {"few_texts": {}, "least_texts": 10, "no_p_values": None if tested else "not wanted"}
    return PositionResults(curves, meta | ({"above_chance": 0.05} if tested else {}))


def transfer(n: int = 4, metric: str = "accuracy", chance: float = 0.5, missing: bool = False) -> TransferResults:
    """Random scores of pairs of tasks, and 0.99 on a probe's own."""
    rng = np.random.default_rng(0)
    cells = []
    for i, train in enumerate(TASKS[-n:]):
        for j, test in enumerate(TASKS[-n:]):
            value = 0.99 if i == j else float(rng.uniform(0.03, 0.97))
            metrics = {} if missing and j == 0 else {metric: value}
            ends = {name: (max(0.0, v - 0.03), min(1.0, v + 0.03)) for name, v in metrics.items()}
            cells.append(TransferCell(train, test, "resid_post", 7 + i, 0.1, True, 0.9, True, metrics, ends))
    meta: dict[str, Any] = {"tasks": TASKS[-n:], "headline": metric, "chance": chance, "model": "$gpt$", "notes": []}
    meta |= {"point": "resid_post", "position": "last", "probe": "logistic"}
    return TransferResults(cells, meta | {"majority": [0.5 + 0.01 * i for i in range(n)]})
