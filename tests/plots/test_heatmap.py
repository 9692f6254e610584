"""The picture of transfer: a value in every cell, nothing upon anything, colours from chance outwards."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from probekit.evaluation import TransferCell, TransferResults
from probekit.plots import plot_transfer, save_transfer_plot
from probekit.plots.heatmap import _fills, transfer_size

TASKS = ["cities", "neg_cities", "sp_en_trans", "larger_than", "smaller_than", "common_claim_true_false", "x"]
TASKS += ["a<b>&\x1b[31m_$x_1$" + "q" * 50]


def make(n: int = 4, metric: str = "accuracy", chance: float = 0.5, missing: bool = False) -> TransferResults:
    rng = np.random.default_rng(0)
    cells = []
    for i, train in enumerate(TASKS[-n:]):
        for j, test in enumerate(TASKS[-n:]):
            value = 0.99 if i == j else float(rng.uniform(0.03, 0.97))
            metrics = {} if missing and j == 0 else {metric: value}
            ends = {name: (max(0.0, v - 0.03), min(1.0, v + 0.03)) for name, v in metrics.items()}
            cells.append(TransferCell(train, test, "resid_post", 7 + i, 0.1, True, 0.9, True, metrics, ends))
    meta: dict[str, Any] = {"tasks": TASKS[-n:], "headline": metric, "chance": chance, "model": "$gpt$", "notes": []}
    meta |= {
        "point": "resid_post",
        "position": "last",
        "probe": "logistic",
        "majority": [0.5 + 0.01 * i for i in range(n)],
    }
    return TransferResults(cells, meta)


def draw(results: TransferResults, size: tuple[float, float] | None = None) -> Axes:
    figure = Figure(figsize=size or transfer_size(results), layout="constrained")
    ax = plot_transfer(results, figure.subplots())
    figure.draw_without_rendering()
    return ax


def shown(ax: Axes) -> list[Text]:
    found = [text for text in ax.findobj(Text) if isinstance(text, Text)]
    return [text for text in found if text.get_visible() and text.get_text().strip()]


@pytest.mark.parametrize("metric", ["accuracy", "auroc"])
@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_every_value_is_written_and_no_text_lies_on_another(n, metric):
    results = make(n, metric)
    ax = draw(results)
    figure = ax.get_figure(root=True)
    assert figure is not None
    texts = [text.get_text() for text in shown(ax)]
    for value in results.matrix.ravel():
        assert f"{value:.2f}" in texts
    assert ("majority class" in texts) == (metric == "accuracy")
    turned = {text for text in ax.get_xticklabels() if text.get_rotation()}
    boxes = [(t.get_text(), t.get_window_extent()) for t in shown(ax) if t not in turned]
    for (one, a), (other, b) in combinations(boxes, 2):
        assert a.x1 <= b.x0 + 1 or b.x1 <= a.x0 + 1 or a.y1 <= b.y0 + 1 or b.y1 <= a.y0 + 1, (one, other)
    for text in shown(ax):
        box = text.get_window_extent()
        assert figure.bbox.x0 - 1 <= box.x0, text
        assert box.x1 <= figure.bbox.x1 + 1, text


def test_colours_part_at_chance():
    for chance in (0.5, 0.2):
        results = make(5, chance=chance)
        fills, values = _fills(results), results.matrix
        assert (fills[values > chance + 0.1][:, 2] > fills[values > chance + 0.1][:, 0]).all()  # blue above
        assert (fills[values < chance - 0.1][:, 0] > fills[values < chance - 0.1][:, 2]).all()  # red below


def test_what_is_not_defined_is_a_dash():
    ax = draw(make(2, missing=True))
    assert sum(text.get_text() == "\N{EN DASH}" for text in shown(ax)) == 2


def test_saved_pictures_are_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        assert save_transfer_plot(make(8), tmp_path / name) == tmp_path / name / "transfer.png"
    for name in ("transfer.png", "transfer.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert "\x1b" not in (tmp_path / "a" / "transfer.svg").read_text()
    assert make(3).plot(draw(make(3))) is not None
