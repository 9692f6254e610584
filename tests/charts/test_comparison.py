"""What the picture of a comparison's curves says: a line for each run or set of seeds, and the quoted places."""

from dataclasses import replace

import numpy as np

from probekit.charts.comparison import comparison_chart
from probekit.charts.lines import Band, Ring, Rule
from probekit.charts.palette import PALETTE
from probekit.side_by_side import Comparison
from tests.plots.test_side_by_side import a_run, make


def test_the_value_of_a_place_is_a_point_with_its_band():
    data = make(2)
    chart = comparison_chart(data)
    for run, line, band in zip(data.runs, chart.series, [x for x in chart.marks if isinstance(x, Band)], strict=True):
        assert line.xs == tuple(place.x for place in run.places)
        assert line.ys == tuple(place.value for place in run.places)
        assert list(band.ends) == [place.band for place in run.places]
    assert [(mark.value, mark.name) for mark in chart.marks if isinstance(mark, Rule)] == [(0.5, "chance level")]
    assert [(ring.x, ring.look) for ring in chart.marks if isinstance(ring, Ring)] == [(4, "ring")] * 2
    own = [entry.texts[0] for entry in chart.legend if entry.is_own]
    assert own[0].startswith("m0: resid_pre.4, test accuracy 0.8")


def test_of_three_runs_or_more_the_first_alone_has_its_band():
    chart = comparison_chart(make(4))
    assert [mark.color for mark in chart.marks if isinstance(mark, Band)] == [PALETTE[0]]
    assert "95% band of the first" in [entry.texts[0] for entry in chart.legend]


def test_depth_takes_the_place_of_the_layer():
    chart = comparison_chart(make(2, axis="depth"))
    assert chart.series[0].xs == (0, 0.2, 0.4, 0.6, 0.8, 1)
    assert list(chart.x_ticks.values()) == ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
    assert chart.x_name.startswith("relative depth")


def test_seeds_are_their_mean_with_their_spread_and_thin_lines():
    data = make(4, seeds=True)
    chart = comparison_chart(data)
    values = np.array([[place.value for place in run.places] for run in data.runs[1:]])
    mean = next(one for one in chart.series if one.name == "random")
    np.testing.assert_allclose(mean.ys, values.mean(axis=0))
    (band,) = [mark for mark in chart.marks if isinstance(mark, Band) and mark.name == "standard deviation"]
    np.testing.assert_allclose(np.ptp(band.ends, axis=1), 2 * values.std(axis=0, ddof=1))
    assert [one.ys for one in chart.series if one.thin] == [tuple(row) for row in values.tolist()]
    assert "95% band; of seeds one standard deviation" in [entry.texts[0] for entry in chart.legend]


def test_a_run_without_an_estimate_is_drawn_with_the_seeds():
    data = make(4, seeds=True)
    bare = replace(a_run(9), best=None, estimate=None, interval=None)
    data = Comparison([*data.runs, bare], data.differences, data.groups, data.meta)
    assert tuple(place.value for place in bare.places) in [one.ys for one in comparison_chart(data).series]


def test_runs_with_one_colour_have_other_dashes():
    n = len(PALETTE) + 1
    assert len({(one.color, one.look) for one in comparison_chart(make(n)).series}) == n


def test_two_places_of_one_run_share_a_curve():
    first = a_run(0)
    other = replace(first, name="m0, resid_pre.1", best=1, given=True)
    data = make(2)
    chart = comparison_chart(Comparison([first, other], data.differences, [], data.meta))
    assert len(chart.series) == 1
    assert [(ring.x, ring.look) for ring in chart.marks if isinstance(ring, Ring)] == [(4, "ring"), (1, "square")]
    assert [entry.look for entry in chart.legend if entry.is_own] == ["solid", "square"]
