"""The picture of patching: colours centred on 0 and never clipped, tokens on the axis, placebos grey."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from probekit.causal.data import CausalData, PatchGrid
from probekit.causal.results.results import CausalResults
from probekit.errors import UsageError
from probekit.plots.patching import WITHIN, _draw, _size, colour_range, draw_patching, save_patching_plot
from tests.drawn_curves import check_texts, texts
from tests.made_up_effects import HOSTILE, made_up, made_up_grids

LONG = "The keys to the old and very dusty cabinet of supercalifragilistic curiosities are $x_1$ \x1b[31m now " * 2


def drawn(grids: list[PatchGrid], **meta: Any) -> Figure:
    figure = Figure(figsize=_size(grids), layout="constrained")
    FigureCanvasAgg(figure)
    _draw(CausalData([], [], grids, [], {"model": "m"} | meta), grids, figure, None)
    figure.draw_without_rendering()
    return figure


def without_placebos(grid: PatchGrid) -> PatchGrid:
    return dataclasses.replace(grid, within_placebo=None, attribution=None, correlation=None, n=None, n_exact=None)


CASES = {
    "two": made_up_grids(),
    "small": made_up_grids(2, "The key")[:1],
    "four, large": [*made_up_grids(32, LONG), *map(without_placebos, made_up_grids(32, LONG))],
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_no_text_lies_on_another(name):
    figure = drawn(CASES[name], **HOSTILE)
    axes = [ax for ax in figure.axes if ax.images]
    assert len(axes) == len(CASES[name])
    for ax in axes:
        labels = [label for label in ax.get_xticklabels() if label.get_rotation()]
        for label in labels:
            label.set_visible(False)  # the boxes of turned texts overlap, their letters do not
        check_texts(ax)


def test_colours_are_centred_on_0_and_reach_every_value():
    grids = made_up_grids()
    grids[1].recovery[0, 0] = -2.5
    norm = colour_range(grids)
    assert (norm.vmin, norm.vmax) == (-2.5, 2.5)
    assert norm(0.0) == 0.5
    empty = dataclasses.replace(grids[0], recovery=np.full_like(grids[0].recovery, np.nan))
    assert np.isfinite(colour_range([empty])(0.0))


def test_cells_inside_the_placebo_band_are_grey_and_have_no_number():
    grid = made_up_grids()[0]
    assert grid.within_placebo is not None
    ax = Figure().subplots()
    draw_patching(grid, ax, colour_range([grid]))
    (_, over) = ax.images
    shown = np.asarray(over.get_array())
    assert (shown[grid.within_placebo] == to_rgba(WITHIN)).all()
    assert (shown[~grid.within_placebo, 3] == 0).all()
    numbers = [text.get_text() for text in ax.texts if text.get_transform() == ax.transData]
    assert sorted(numbers) == sorted(f"{value:.2f}" for value in grid.recovery[~grid.within_placebo])


def test_tokens_and_heads_are_on_the_axis():
    figure = drawn(made_up_grids(tokens="The keys to the cabinet"))
    tokens, heads = [ax for ax in figure.axes if ax.images]
    assert [label.get_text() for label in tokens.get_xticklabels()] == ["The", "keys", "to", "the", "cabinet"]
    assert [label.get_text() for label in heads.get_xticklabels()] == ["0", "1", "2", "3"]
    assert "exact; attribution patching: correlation 0.93" in texts(tokens)
    assert (tokens.get_xlabel(), heads.get_xlabel()) == ("", "head")
    several = dataclasses.replace(made_up_grids()[0], columns=["-5", "-4", "-3", "-2", "-1"])
    assert drawn([several]).axes[0].get_xlabel() == "token, counted from the last"
    grid = dataclasses.replace(made_up_grids()[0], columns=[" ", "", "\n", " the", "x" * 40], n_exact=8)
    names = [label.get_text() for label in drawn([grid]).axes[0].get_xticklabels()]
    assert names == ["␣", "∅", "\\n", " the", "xxxxxx…xxxxxx"]
    assert "by attribution patching: correlation 0.93 with exact patching of 8 pairs" in texts(drawn([grid]).axes[0])


def test_files_are_the_same_for_the_same_results(tmp_path):
    data = made_up()
    one, other = (save_patching_plot(data, tmp_path / name) for name in "ab")
    assert one.name == "patching.png"
    for suffix in (".png", ".svg"):
        assert one.with_suffix(suffix).read_bytes() == other.with_suffix(suffix).read_bytes()


def test_no_patching_says_what_to_run():
    with pytest.raises(UsageError, match="--method patch"):
        CausalResults(made_up(grids=False)).plot_patching()


def test_the_picture_says_the_label_where_layer_0_is_and_that_columns_mix_words():
    def written(**meta):
        figure = drawn(made_up_grids(), **meta)
        tokens, heads = [ax for ax in figure.axes if ax.images]
        return figure, texts(tokens), texts(heads)

    figure, tokens, heads = written(label="number", patched={"pairs": 3, "varied": 2})
    assert figure.get_suptitle().startswith("Activation patching of number in m")
    assert "layer 0, the first block, is the lowest row" in figure.get_supxlabel()
    mixed = "columns mix words, which differ by pair; shown: the first pair's"
    assert mixed in tokens
    assert mixed not in heads
    assert mixed not in written(patched={"pairs": 3, "varied": 0})[1]
