"""Which classes are taken for which: the confusion matrix of the selected layer on test, with recall and precision."""

import numpy as np

from probekit.evaluation.results.data import LayerResult, ProbeData
from probekit.evaluation.results.wording import interval_text
from probekit.evaluation.scores.rates import rate_of
from probekit.report.parts import Lines, PageTable, Part, Picture
from probekit.report.render import html_of
from probekit.report.section import Section
from probekit.report.sections.names import shown_layer, test_rows, why_not_shown
from probekit.report.svg.grid import Cell, CellGrid, draw_grid

MOST = 20  # classes in the picture; the others are counted together
OTHERS = "all others"


def confusion_section(data: ProbeData) -> Section | None:
    """The matrix; None for a regression."""
    if not data.meta["n_classes"]:
        return None
    layer = shown_layer(data)
    parts: list[Part] = [Lines([why_not_shown(data)])] if layer is None else _parts(data, layer)
    counts = {} if layer is None else {"counts": {"names": _names(data), "rows": confusion(data, layer.place).tolist()}}
    return Section("confusion", "Confusion matrix", html_of(parts), counts)


def confusion(data: ProbeData, place: str) -> np.ndarray:
    """Test rows by true class (rows) and predicted class (columns), int64 [C, C]."""
    rows, n = data.rows, int(data.meta["n_classes"])
    assert rows is not None
    of_test = test_rows(rows)
    pairs = rows.labels[of_test].astype(np.int64) * n + rows.predicted[place][of_test]
    return np.bincount(pairs, minlength=n * n).reshape(n, n)


def _names(data: ProbeData) -> list[str]:
    return [str(name) for name in data.meta["classes"]]


def _parts(data: ProbeData, layer: LayerResult) -> list[Part]:
    counts, names = confusion(data, layer.place), _names(data)
    what = f"{int(counts.sum()):,} test rows, {layer.place}. Rows are the true class; colour is the share of the row."
    if data.procedure is not None:
        what += " Each row is predicted by the probe of this place of the fold that held it out."
    shown, drawn = _largest(counts, names)
    grid = CellGrid("Confusion matrix", shown, shown, _cells(drawn, shown), "true class", "predicted class")
    return [Lines([what]), Picture(draw_grid(grid)), PageTable(_table(data, layer.place))]


def _largest(counts: np.ndarray, names: list[str]) -> tuple[list[str], np.ndarray]:
    """The commonest classes in their order, and one row and column for the others together."""
    if len(names) <= MOST:
        return names, counts
    kept = np.sort(np.argsort(-counts.sum(axis=1), kind="stable")[: MOST - 1])
    group = np.full(len(names), len(kept))
    group[kept] = np.arange(len(kept))
    merged = np.zeros((len(kept) + 1,) * 2, dtype=np.int64)
    np.add.at(merged, (group[:, None], group[None, :]), counts)
    return [*(names[i] for i in kept), f"{OTHERS} ({len(names) - len(kept)})"], merged


def _cells(counts: np.ndarray, names: list[str]) -> list[list[Cell]]:
    totals = counts.sum(axis=1)
    return [
        [
            Cell(
                f"{n:,}",
                f"true {names[i]}, predicted {names[j]}\n{n:,} of {totals[i]:,} rows ({n / max(totals[i], 1):.1%})",
                n / max(totals[i], 1) * (1 if i == j else -1),
            )
            for j, n in enumerate(row)
        ]
        for i, row in enumerate(counts.tolist())
    ]


def _table(data: ProbeData, place: str) -> list[list[str]]:
    """Recall and precision of each class with their intervals, those of the lowest recall first if there are many."""
    rows, names = data.rows, _names(data)
    assert rows is not None
    of_test = test_rows(rows)
    truth, predicted, groups = rows.labels[of_test], rows.predicted[place][of_test], rows.groups[of_test]
    order = list(range(len(names)))
    if len(names) > MOST:
        order.sort(key=lambda i: float(np.mean(predicted[truth == i] == i)) if (truth == i).any() else 0.0)
    table = [["class", "test rows", "recall", "95% interval", "precision", "95% interval"]]
    for i in order[: 2 * MOST]:
        row = [names[i], f"{(truth == i).sum():,}"]
        for one, other in ((truth, predicted), (predicted, truth)):
            own = one == i
            rate = rate_of(other[own] == i, groups[own]) if own.any() else None
            row += ["", ""] if rate is None else [f"{rate.value:.3f}", interval_text((rate.low, rate.high))]
        table.append(row)
    return table
