"""The heatmap of layers and positions: colours, numbers where they fit, and nothing upon anything."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from probekit.evaluation import LayerResult, PositionCurve, PositionResults
from probekit.plots import plot_positions, save_positions_plot
from probekit.plots.positions import NOT_ABOVE, _fills, _short_number, positions_size

HOSTILE = "<b>in:$_x_1$\x1b[31m" + "q" * 60


def make(P: int = 6, L: int = 4, *, names: list[str] | None = None, tested: bool = True) -> PositionResults:
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


def draw(results: PositionResults) -> Axes:
    figure = Figure(figsize=positions_size(results), layout="constrained")
    ax = plot_positions(results, figure.subplots())
    figure.draw_without_rendering()
    return ax


def shown(ax: Axes) -> list[Text]:
    found = [text for text in ax.findobj(Text) if isinstance(text, Text)]
    return [text for text in found if text.get_visible() and text.get_text().strip()]


def test_cells_not_above_chance_are_grey_and_the_others_are_coloured_from_chance_outwards():
    results = make(8)
    fills, matrix = _fills(results), results.matrix
    grey = np.isclose(fills[..., :3], to_rgb(NOT_ABOVE), atol=1e-3).all(axis=2)
    assert np.array_equal(grey, matrix <= 0.7)
    assert (fills[~grey][:, 2] > fills[~grey][:, 0]).all()  # blue above chance
    blue = _fills(make(8, tested=False))
    chance = np.array([one.chance for one in results.positions])
    below = matrix < chance - 0.05
    assert below.any()
    assert (blue[below][:, 0] > blue[below][:, 2]).all()  # red below chance


@pytest.mark.parametrize(("P", "L"), [(1, 1), (2, 3), (6, 4), (15, 13), (24, 25)])
def test_every_value_is_written_and_no_text_lies_on_another(P, L):
    results = make(P, L)
    ax = draw(results)
    texts = [text.get_text() for text in shown(ax)]
    for value in results.matrix.ravel():
        assert _short_number(value) in texts
    boxes = [(t.get_text(), t.get_window_extent()) for t in shown(ax)]
    for (one, a), (other, b) in combinations(boxes, 2):
        assert a.x1 <= b.x0 + 2 or b.x1 <= a.x0 + 2 or a.y1 <= b.y0 + 2 or b.y1 <= a.y0 + 2, (one, other)
    figure = ax.get_figure(root=True)
    assert figure is not None
    for text in shown(ax):
        box = text.get_window_extent()
        assert figure.bbox.x0 - 1 <= box.x0, text
        assert box.x1 <= figure.bbox.x1 + 1, text


def test_a_picture_without_a_test_of_chance_says_why():
    assert any(text.get_text() == "no p-values: not wanted" for text in shown(draw(make(tested=False))))
    assert not any("no p-values" in text.get_text() for text in shown(draw(make())))


def test_many_positions_leave_numbers_out_and_name_some():
    ax = draw(make(300, 5))
    labels = [text.get_text() for text in ax.get_xticklabels()]
    assert 5 < len(labels) < 100
    assert not any(text.get_text().startswith(".") for text in shown(ax))


def test_names_of_selections_are_drawn_as_they_are(tmp_path):
    results = make(3, names=["last@assistant", HOSTILE, "mean"])
    save_positions_plot(results, tmp_path)
    text = (tmp_path / "positions.svg").read_text()
    assert "last@assistant" in text
    assert "\x1b" not in text
    assert "\x1b" not in results.summary()
    assert "<b>" not in results._repr_html_().replace("<p><b>", "")


def test_positions_are_named_by_the_token_that_nearly_all_texts_have_there(tmp_path):
    results = make(4)
    tokens = ["<|im_start|>", None, " ", HOSTILE]
    named = [replace(one, token=token) for one, token in zip(results.positions, tokens, strict=True)]
    ax = draw(PositionResults(named, results.meta))
    labels = [text.get_text() for text in ax.get_xticklabels()]
    assert labels[:3] == ["<|im_start|>  0", "1", "' '  2"]
    assert labels[3].endswith("  3")
    assert len(labels[3]) < 30
    assert "\x1b" not in labels[3]


def test_saved_pictures_are_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        assert save_positions_plot(make(), tmp_path / name) == tmp_path / name / "positions.png"
    for name in ("positions.png", "positions.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
