"""Grids on axes: every text is drawn as it is, none lies on another, files are the same for the same results."""

import dataclasses
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from probekit.causal.data import CausalData, PatchGrid
from probekit.causal.results.results import CausalResults
from probekit.charts.cells import Cell, CellGrid
from probekit.errors import UsageError
from probekit.plots import plot_grids, plot_positions, plot_transfer, save_positions_plot, save_transfer_plot
from probekit.plots.cells import MUTED, draw_cells, draw_scale, grid_size
from probekit.plots.grids import plot_patching, save_patching_plot
from tests.drawn_curves import check_texts, texts
from tests.made_up_effects import HOSTILE as NAMES
from tests.made_up_effects import made_up, made_up_grids
from tests.made_up_grids import HOSTILE, positions, transfer

LONG = "The keys to the old and very dusty cabinet of supercalifragilistic curiosities are $x_1$ \x1b[31m now " * 2


def shown(ax: Axes) -> list[Text]:
    found = [text for text in ax.findobj(Text) if isinstance(text, Text)]
    return [text for text in found if text.get_visible() and text.get_text().strip()]


def drawn(ax: Axes) -> Axes:
    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    return ax


def of_positions(P: int, L: int) -> tuple[Axes, np.ndarray]:
    return drawn(plot_positions(positions(P, L))), positions(P, L).matrix


def of_transfer(n: int, metric: str) -> tuple[Axes, np.ndarray]:
    return drawn(plot_transfer(transfer(n, metric))), transfer(n, metric).matrix


CASES: list[tuple[Callable[..., tuple[Axes, np.ndarray]], tuple[Any, ...]]] = [
    (of_positions, size) for size in [(1, 1), (2, 3), (6, 4), (15, 13), (24, 25)]
]
CASES += [(of_transfer, (n, metric)) for n, metric in [(2, "accuracy"), (3, "auroc"), (5, "accuracy"), (8, "auroc")]]


@pytest.mark.parametrize(("make", "how"), CASES)
def test_every_value_is_written_and_no_text_lies_on_another(make, how):
    ax, matrix = make(*how)
    written = [text.get_text() for text in shown(ax)]
    for value in matrix.ravel():
        assert f"{value:.2f}" in written
    turned = {text for text in ax.get_xticklabels() if text.get_rotation()}  # their boxes overlap, their letters do not
    boxes = [(t.get_text(), t.get_window_extent()) for t in shown(ax) if t not in turned]
    for (one, a), (other, b) in combinations(boxes, 2):
        assert a.x1 <= b.x0 + 2 or b.x1 <= a.x0 + 2 or a.y1 <= b.y0 + 2 or b.y1 <= a.y0 + 2, (one, other)
    figure = ax.get_figure(root=True)
    assert figure is not None
    for text in shown(ax):
        box = text.get_window_extent()
        assert figure.bbox.x0 - 1 <= box.x0 <= box.x1 <= figure.bbox.x1 + 1, text


def test_levels_are_colours_from_white_outwards_and_muted_cells_are_grey():
    cells = [Cell("", "", -1), Cell("", "", 0), Cell("", "", 1), Cell("", "", 1, muted=True)]
    grid = CellGrid("one", ["row"], list("abcd"), [cells])
    ax = Figure(figsize=grid_size(grid)).subplots()
    draw_cells(grid, ax)
    (mesh,) = [each for each in ax.collections if isinstance(each, QuadMesh)]
    red, white, blue, grey = np.asarray(mesh.get_array()).reshape(4, 4)
    assert red[0] > red[2]
    assert min(white[:3]) > 0.95
    assert blue[2] > blue[0]
    assert tuple(grey) == pytest.approx(to_rgba(MUTED))


def test_many_columns_leave_numbers_out_and_name_some():
    ax, _ = of_positions(300, 5)
    assert 5 < len(ax.get_xticklabels()) < 100
    assert not any(text.get_text().startswith("0.") for text in shown(ax))


def test_names_are_drawn_as_they_are(tmp_path):
    results = positions(3, names=["last@assistant", HOSTILE, "mean"])
    save_positions_plot(results, tmp_path)
    text = (tmp_path / "positions.svg").read_text()
    assert "last@assistant" in text
    assert "\x1b" not in text
    assert "\x1b" not in results.summary()
    assert "<b>" not in results._repr_html_().replace("<p><b>", "")


def without_placebos(grid: PatchGrid) -> PatchGrid:
    return dataclasses.replace(grid, within_placebo=None, attribution=None, correlation=None, n=None, n_exact=None)


@pytest.mark.parametrize(
    "grids",
    [
        made_up_grids(),
        made_up_grids(2, "The key")[:1],
        [*made_up_grids(32, LONG), *map(without_placebos, made_up_grids(32, LONG))],
    ],
    ids=["two", "small", "four, large"],
)
def test_no_text_of_patching_lies_on_another(grids):
    figure = plot_patching(CausalData([], [], grids, [], {"model": "m"} | NAMES))
    figure.draw_without_rendering()
    axes = figure.axes[: len(grids)]
    for ax in axes:
        for label in ax.get_xticklabels():
            label.set_visible(not label.get_rotation())
        check_texts(ax)


def test_patching_says_the_label_and_where_layer_0_is():
    figure = plot_patching(CausalData([], [], made_up_grids(), [], {"model": "m", "label": "number"}))
    assert figure.get_suptitle().startswith("Activation patching of number in m")
    assert "layer 0, the first block, is the lowest row" in figure.get_supxlabel()
    assert "exact; attribution patching: correlation 0.93" in texts(figure.axes[0])


def test_no_patching_says_what_to_run():
    with pytest.raises(UsageError, match="--method patch"):
        CausalResults(made_up(grids=False)).plot_patching()


def test_results_draw_themselves_on_axes():
    ax = Figure().subplots()
    assert transfer(3).plot(ax) is ax


@pytest.mark.parametrize(
    ("save", "results", "name"),
    [
        (save_positions_plot, positions(), "positions"),
        (save_transfer_plot, transfer(8), "transfer"),
        (save_patching_plot, made_up(), "patching"),
    ],
)
def test_saved_pictures_are_the_same_bytes(save: Callable[..., Path], results: Any, name: str, tmp_path: Path):
    for folder in ("a", "b"):
        assert save(results, tmp_path / folder) == tmp_path / folder / f"{name}.png"
    for suffix in ("png", "svg"):
        one, other = ((tmp_path / folder / f"{name}.{suffix}").read_bytes() for folder in "ab")
        assert one == other
    assert "\x1b" not in (tmp_path / "a" / f"{name}.svg").read_text()


@pytest.mark.parametrize("first_at_bottom", [True, False])
def test_numbers_frames_and_rows_stand_where_the_description_says(first_at_bottom: bool):
    cells = [[Cell(f"{i}{j}", "", framed=(i, j) == (1, 2)) for j in range(3)] for i in range(2)]
    grid = CellGrid("g", ["a", "b"], ["x", "y", "z"], cells, first_at_bottom=first_at_bottom, scale=("lead", 0.4))
    figure = Figure(figsize=grid_size(grid))
    ax = figure.subplots()
    draw_cells(grid, ax)
    draw_scale(grid, figure, ax)
    drawn(ax)
    numbers = {text.get_text(): text.get_position() for text in ax.texts if len(text.get_text()) == 2}
    assert numbers == {f"{i}{j}": (j, i) for i in range(2) for j in range(3)}
    (frame,) = (patch for patch in ax.patches if isinstance(patch, Rectangle))
    np.testing.assert_allclose(frame.get_xy() + np.array([frame.get_width(), frame.get_height()]) / 2, (2, 1))
    low, high = ax.get_ylim()
    assert (low < high) == first_at_bottom
    assert [(tick, name.get_text()) for tick, name in zip(ax.get_yticks(), ax.get_yticklabels(), strict=True)] == [
        (0, "a"),
        (1, "b"),
    ]
    (bar,) = (axes for axes in figure.axes if axes is not ax)
    assert bar.get_ylim() == (-0.4, 0.4)


def test_of_very_many_grids_the_first_are_drawn_and_the_last_of_them_says_so():
    figure = plot_grids([positions(1, 1)] * 13)
    assert len([ax for ax in figure.axes if ax.get_xlabel()]) == 12
    said = [text.get_text() for text in figure.findobj(Text) if "12 of 13 grids" in text.get_text()]
    assert len(said) == 1
