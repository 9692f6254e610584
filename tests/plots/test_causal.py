"""The causal curve: nothing is clipped, both axes say the same, quadrants are named, no text lies on another."""

import dataclasses

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from probekit.causal.data import CausalData
from probekit.causal.results.results import CausalResults
from probekit.charts.lines import STRIP
from probekit.errors import UsageError
from probekit.plots.causal import draw_causal, draw_panels, panels_shown, save_causal_plot
from tests.drawn_curves import check_texts, legend_texts, texts
from tests.made_up_effects import HOSTILE, made_up, made_up_grids, made_up_of_another_direction


def drawn(data: CausalData, title: str | None = None) -> Axes:
    figure = Figure(figsize=(8.4, 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.subplots()
    draw_causal(data, ax, title)
    figure.draw_without_rendering()
    return ax


def panels(data: CausalData) -> list[Axes]:
    figure = Figure(figsize=(8.4, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    draw_panels(data, figure, figure.add_gridspec(1, 1)[0])
    figure.draw_without_rendering()
    return figure.axes


def bare(data: CausalData) -> CausalData:
    layers = [dataclasses.replace(layer, completeness={}, angles={}) for layer in data.layers]
    return dataclasses.replace(data, layers=layers)


WIDE = list(np.linspace(0.5, 0.99, 49))
CASES = {
    "all methods": made_up(),
    "one method": made_up(("erase",)),
    "hostile names": made_up(("interchange",), **HOSTILE),
    "48 layers": made_up(("steer", "erase"), scores=WIDE, values=list(np.linspace(-0.4, 1.7, 49))),
    "one place": made_up(("interchange",), scores=[0.9], values=[0.3]),
    "at chance": made_up(("erase",), base={"test": {"logit_difference": 0.1, "interval": [-0.2, 0.4]}}),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_no_text_lies_on_another_and_no_value_is_clipped(name):
    data = CASES[name]
    ax = drawn(data)
    check_texts(ax)
    low, high = ax.get_ylim()
    strip = low + STRIP * (high - low)
    for line in ax.lines:
        ys = np.asarray(line.get_ydata(), dtype=float)
        if len(ys) == len(data.layers):
            assert strip <= ys.min() <= ys.max() <= high


def test_both_axes_say_the_same():
    """0 on the left is the baseline on the right, 1 is a perfect score."""
    ax = drawn(made_up(("erase",)))
    (right,) = ax.child_axes
    (low, high), (bottom, top) = ax.get_ylim(), right.get_ylim()
    for share, score in ((0.0, 0.5), (1.0, 1.0), (0.5, 0.75)):
        assert (share - low) / (high - low) == pytest.approx((score - bottom) / (top - bottom))


def test_every_quadrant_is_named_on_its_layers_or_in_the_legend():
    data = made_up()
    ax = drawn(data)
    named = texts(ax).replace("\n", " ")
    assert all(name in named for name in ("read and used", "read, not shown to be used", "used, not read", "neither"))
    shapes = [patch for patch in ax.patches if isinstance(patch, Rectangle) and patch.get_height() == 1]
    assert sum(shape.get_width() for shape in shapes) == pytest.approx(len(data.layers))
    scores, values = [0.5, 0.9, 0.5, 0.9] * 12, [0.0, 0.5, 0.5, 0.0] * 12
    narrow = drawn(made_up(("erase",), scores=scores, values=values))
    assert set(legend_texts(narrow)) >= {"read and used", "read, not shown to be used", "used, not read", "neither"}


def test_panels_are_drawn_if_their_numbers_were_measured():
    assert len(panels_shown(made_up())) == 4
    assert len(panels_shown(bare(made_up()))) == 2
    assert panels_shown(bare(made_up(("erase",)))) == []
    others, dose, complete, _ = panels(made_up())
    assert legend_texts(others) == ["erase (LEACE)", "steer +4 sd (probe)"]
    (line,) = [line for line in dose.lines if len(np.asarray(line.get_xdata())) == 5]
    assert np.asarray(line.get_xdata()).tolist() == [-4.0, -2.0, 0.0, 2.0, 4.0]
    assert np.asarray(line.get_ydata())[2] == 0
    here, later = complete.lines
    assert [np.asarray(line.get_ydata()).tolist() for line in (here, later)] == [[1.0] * 7, [0.7] * 7]
    assert legend_texts(complete) == ["erase"]
    assert "31%" in "".join(label.get_text() for label in dose.get_xticklabels())


@pytest.mark.parametrize("scales", [[-4.0, -2.0, -1.0, 0.5, 1.0, 2.0, 4.0], [0.1, 40.0], list(range(-20, 21))])
def test_ticks_of_the_doses_are_apart(scales):
    data = made_up(("steer",))
    own = [each for each in data.effects if each.direction == "probe" and each.scale == 4.0]
    effects = [dataclasses.replace(each, scale=float(x), size=1.34) for each in own for x in scales]
    figure = Figure(figsize=(8.4, 2.2), layout="constrained")
    FigureCanvasAgg(figure)
    draw_panels(dataclasses.replace(data, effects=effects), figure, figure.add_gridspec(1, 1)[0])
    figure.draw_without_rendering()
    check_texts(figure.axes[0])
    assert "0\n" in [label.get_text() for label in figure.axes[0].get_xticklabels()]


def test_undefined_effects_leave_gaps():
    data = made_up(("erase",))
    effects = [dataclasses.replace(each, effect=float("nan"), interval=None) for each in data.effects]
    ax = drawn(dataclasses.replace(data, effects=effects))
    assert np.isfinite(ax.get_ylim()).all()


def test_files_are_the_same_for_the_same_results(tmp_path):
    data = bare(made_up(("erase",)))
    one, other = (save_causal_plot(data, tmp_path / name) for name in "ab")
    for suffix in (".png", ".svg"):
        assert one.with_suffix(suffix).read_bytes() == other.with_suffix(suffix).read_bytes()


def test_patching_alone_has_no_curve(tmp_path):
    data = CausalData([], [], made_up_grids(), [], {"model": "m"})
    with pytest.raises(UsageError, match="plot_patching"):
        CausalResults(data).plot()
    with pytest.raises(UsageError, match="plot_patching"):
        save_causal_plot(data, tmp_path)


def test_the_probes_own_direction_is_in_the_panel_where_the_curve_is_of_another():
    both = made_up_of_another_direction()
    assert legend_texts(panels(both)[0]) == ["interchange (the probe's own direction)"]
    check_texts(drawn(both))
    check_texts(*panels(both))
    assert not any("probe's own" in text for each in panels(made_up(("interchange",))) for text in legend_texts(each))
