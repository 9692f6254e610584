"""What the causal curve says: decodability and effects as shares, what shows use, quadrants, and what is selected."""

import dataclasses

import numpy as np
import pytest

from probekit.charts.effects import causal_chart, layer_xs, other_edits_chart
from probekit.charts.lines import STRIP, Band, LineChart, Ring, Series
from probekit.charts.palette import BLUE, GREY, RED
from tests.made_up_effects import EFFECTS, SCORES, made_up, made_up_of_another_direction


def line_of(chart: LineChart, start: str) -> Series:
    (found,) = [one for one in chart.series if one.name.startswith(start)]
    return found


def test_decodability_is_its_share_above_the_baseline_and_an_effect_is_a_share():
    chart = causal_chart(made_up())
    decodable, effect = line_of(chart, "decodability"), line_of(chart, "effect of interchange (probe)")
    assert decodable.xs == effect.xs == tuple(range(7))
    np.testing.assert_allclose(decodable.ys, (np.array(SCORES) - 0.5) / 0.5)
    assert effect.ys == tuple(EFFECTS)
    bands = {(mark.color, mark.name): mark for mark in chart.marks if isinstance(mark, Band)}
    np.testing.assert_allclose(np.array(bands[BLUE, ""].ends)[:, 0], (np.array(SCORES) - 0.02 - 0.5) / 0.5)
    assert [high for _, high in bands[RED, ""].ends] == [value + 0.06 for value in EFFECTS]
    assert set(bands[GREY, "placebos, lowest to highest"].ends) == {(-0.06, 0.07)}
    assert line_of(chart, "DAS (ceiling)").ys == tuple(min(1.0, value + 0.1) for value in EFFECTS)
    assert chart.tips[4].startswith("resid_pre.4: read and used\nprobe 0.980\ninterchange: 0.84 [0.79, 0.90]")


def test_dots_are_hollow_where_the_effect_is_not_outside_the_placebos():
    chart = causal_chart(made_up(("interchange",)))
    assert line_of(chart, "effect").hollow == {i for i, value in enumerate(EFFECTS) if value <= 0.09}
    assert "not shown to be used" in [entry.texts[0] for entry in chart.legend]


def test_the_selected_layer_has_a_ring_if_the_axis_shows_its_effect():
    chart = causal_chart(made_up(("interchange",)))
    assert [(ring.x, ring.y) for ring in chart.marks if isinstance(ring, Ring)] == [(4, EFFECTS[4])]
    assert chart.legend[0].texts[0] == "selected on validation: resid_pre.4, interchange 0.84 [0.79, 0.90]"
    far = causal_chart(made_up(("steer",), values=[0.0, 0.1, 0.2, 7.0, -5.0, 0.3, 0.1]))
    assert not [mark for mark in far.marks if isinstance(mark, Ring)]
    assert -2 < far.y_limits[0] < 0
    assert 1 < far.y_limits[1] < 2.5
    assert {"above the axis", "below the axis"} <= {entry.texts[0] for entry in far.legend}


def test_every_layer_is_in_the_shade_of_its_quadrant():
    data = made_up()
    shades = causal_chart(data).shades
    for layer, x in zip(data.layers, layer_xs(data).values(), strict=True):
        assert [shade.name for shade in shades if shade.left < x < shade.right] == [layer.quadrant]
    assert sum(shade.right - shade.left for shade in shades) == pytest.approx(len(data.layers))


@pytest.mark.parametrize("methods", [("interchange", "erase", "steer"), ("erase",)])
def test_limits_hold_every_value_above_the_names_of_the_quadrants(methods):
    chart = causal_chart(made_up(methods))
    low, high = chart.y_limits
    assert all(low + STRIP * (high - low) <= y <= high for one in chart.series for y in one.ys)


def test_the_output_comes_after_all_layers_and_a_missing_layer_leaves_a_gap():
    data = made_up(("erase",))
    assert list(layer_xs(data).values()) == list(range(7))
    some = dataclasses.replace(data, layers=[data.layers[i] for i in (1, 4, 6)])
    assert causal_chart(some).x_ticks == {1: "1", 4: "4", 6: "out"}


def test_edits_other_than_the_headline_have_an_axis_of_their_own():
    data = made_up()
    far = [
        dataclasses.replace(each, effect=30 * each.effect) if each.method == "steer" else each for each in data.effects
    ]
    data = dataclasses.replace(data, effects=far)
    others = other_edits_chart(data)
    assert others is not None
    assert causal_chart(data).y_limits[1] < 1.3
    assert others.y_limits[1] > 30 * max(EFFECTS)
    assert [entry.texts[0] for entry in others.legend] == ["erase (LEACE)", "steer +4 sd (probe)"]
    assert other_edits_chart(made_up(("erase",))) is None


def test_the_probes_own_direction_is_beside_the_curve_of_another():
    others = other_edits_chart(made_up_of_another_direction())
    assert others is not None
    assert [one.ys for one in others.series] == [tuple(EFFECTS)]
    assert others.legend[0].texts[0] == "interchange (the probe's own direction)"
