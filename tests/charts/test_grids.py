"""What the pictures of grids say: a value and a tip in every cell, colours from chance outwards, names, notes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from probekit.causal.data import CausalData, PatchGrid
from probekit.charts.cells import CellGrid
from probekit.charts.grids import patching_grids, positions_grid, step_name, steps_grid, transfer_grid
from probekit.evaluation import PositionResults
from tests.made_up_effects import made_up_grids
from tests.made_up_grids import HOSTILE, positions, transfer
from tests.plots import test_side_by_side as compared


def of(grid: CellGrid, name: str) -> np.ndarray:
    return np.array([[getattr(cell, name) for cell in row] for row in grid.cells])


def patched(grids: list[PatchGrid], **meta: Any) -> list[CellGrid]:
    return patching_grids(CausalData([], [], grids, [], {"model": "m"} | meta))


def test_cells_not_above_chance_are_grey_and_the_others_are_coloured_from_chance_outwards():
    for results in (positions(8), positions(8, tested=False)):
        grid, matrix = positions_grid(results), results.matrix
        assert np.array_equal(of(grid, "muted"), (matrix <= 0.7) if results.meta.get("above_chance") else matrix < 0)
        chance = np.array([one.chance for one in results.positions], dtype=float)
        np.testing.assert_allclose(of(grid, "level"), (matrix - chance) / (1 - chance.min()))
        assert grid.scale == ("test accuracy\nabove the majority class", 1 - chance.min())
    assert "no p-values: not wanted" in positions_grid(positions(tested=False)).notes
    assert not any("no p-values" in note for note in positions_grid(positions()).notes)


def test_every_cell_has_its_value_and_the_selected_one_a_frame():
    results = positions(6, 4)
    grid = positions_grid(results)
    assert of(grid, "text").tolist() == [[f"{value:.2f}" for value in row] for row in results.matrix]
    assert of(grid, "tip")[1, 2].startswith(f"position 2, resid_pre.1\ntest accuracy {results.matrix[1, 2]:.3f}")
    column, layer = results.best
    assert np.argwhere(of(grid, "framed")).tolist() == [
        [results.places.index(layer.place), results.positions.index(column)]
    ]
    assert [name for name, _ in grid.footer] == ["majority", "test texts"]
    assert grid.footer[1][1][:2] == ["2,000", "1,997"]


def test_positions_are_named_by_the_token_that_nearly_all_texts_have_there():
    results = positions(4)
    tokens = ["<|im_start|>", None, " ", HOSTILE]
    named = [replace(one, token=token) for one, token in zip(results.positions, tokens, strict=True)]
    columns = positions_grid(PositionResults(named, results.meta)).columns
    assert columns[:3] == ["<|im_start|>  0", "1", "' '  2"]
    assert columns[3].endswith("  3")
    assert len(columns[3]) < 30
    assert "\x1b" not in columns[3]


@pytest.mark.parametrize("metric", ["accuracy", "auroc"])
def test_colours_of_transfer_part_at_what_a_guess_has(metric):
    for chance in (0.5, 0.2):
        results = transfer(5, metric, chance)
        grid, values = transfer_grid(results), results.matrix
        base = np.array(results.meta["majority"]) if metric == "accuracy" else np.full(5, chance)
        assert np.array_equal(of(grid, "level") > 0, values > base)
        assert np.abs(of(grid, "level")).max() <= 1
        assert bool(grid.footer) == (metric == "accuracy")
    assert transfer_grid(transfer(2)).cells[0][0].bold
    assert not transfer_grid(transfer(2)).cells[0][1].bold


def test_what_is_not_defined_is_a_grey_dash():
    grid = transfer_grid(transfer(2, missing=True))
    assert of(grid, "text")[:, 0].tolist() == ["\N{EN DASH}"] * 2
    assert of(grid, "muted").tolist() == [[True, False]] * 2


def test_colours_of_patching_are_centred_on_0_and_reach_every_value():
    grids = made_up_grids()
    grids[1].recovery[0, 0] = -2.5
    for grid, chart in zip(sorted(grids, key=lambda grid: grid.by == "head"), patched(grids), strict=True):
        np.testing.assert_allclose(of(chart, "level"), grid.recovery / 2.5)
        assert chart.scale == ("recovery", 2.5)
    empty = replace(grids[0], recovery=np.full_like(grids[0].recovery, np.nan))
    (chart,) = patched([empty])
    assert not of(chart, "level").any()
    assert not any(of(chart, "text").ravel())


def test_cells_inside_the_placebo_band_are_grey_and_have_no_number():
    grid = made_up_grids()[0]
    assert grid.within_placebo is not None
    (chart,) = patched([grid])
    assert np.array_equal(of(chart, "muted"), grid.within_placebo)
    assert np.array_equal(of(chart, "text") == "", grid.within_placebo)
    assert f"recovery {grid.recovery[0, 0]:z.3f} [" in chart.cells[0][0].tip


def test_tokens_and_heads_are_on_the_axis():
    tokens, heads = patched(made_up_grids(tokens="The keys to the cabinet"))
    assert tokens.columns == ["The", "keys", "to", "the", "cabinet"]
    assert heads.columns == ["0", "1", "2", "3"]
    assert "exact; attribution patching: correlation 0.93" in tokens.notes
    assert (tokens.x_name, heads.x_name) == ("", "head")
    several = replace(made_up_grids()[0], columns=["-5", "-4", "-3", "-2", "-1"])
    assert patched([several])[0].x_name == "token, counted from the last"
    grid = replace(made_up_grids()[0], columns=[" ", "", "\n", " the", "x" * 40], n_exact=8)
    (chart,) = patched([grid])
    assert chart.columns == ["␣", "∅", "\\n", " the", "xxxxxx…xxxxxx"]
    assert "by attribution patching: correlation 0.93 with exact patching of 8 pairs" in chart.notes


def test_columns_that_mix_words_say_so():
    mixed = "columns mix words, which differ by pair; shown: the first pair's"
    tokens, heads = patched(made_up_grids(), patched={"pairs": 3, "varied": 2})
    assert mixed in tokens.notes
    assert mixed not in heads.notes
    assert mixed not in patched(made_up_grids(), patched={"pairs": 3, "varied": 0})[0].notes


def test_every_step_has_its_column_and_a_frame_at_its_selected_layer():
    data = compared.make(4, steps=True)
    grid = steps_grid(data)
    assert np.array_equal(of(grid, "muted"), data.matrix <= 0.65)
    np.testing.assert_allclose(of(grid, "level"), (data.matrix - 0.5) / 0.5)
    assert of(grid, "framed").sum(axis=0).tolist() == [1] * 4
    assert grid.columns == ["0", "100", "200", "300"]
    assert grid.rows[-1] == "output"


@pytest.mark.parametrize(
    ("step", "name"), [(0, "0"), (512, "512"), (1000, "1k"), (143_000, "143k"), (1_500_000, "1.5M")]
)
def test_steps_are_short(step, name):
    assert step_name(step) == name
