"""Lines in matplotlib: each mark of a description is drawn once, where it says; what stays is not drawn again."""

from dataclasses import replace

import numpy as np
import pytest
from drawn_curves import check_texts, figure_of, legend_texts, new_axes, points, texts
from made_up_lines import CHART, CURVE, LONE, MARKS, THIN
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from probekit.charts.lines import Band, Rule, Series, Stretch
from probekit.plots.lines import draw_chart


def test_each_mark_is_drawn_once_where_it_says():
    ax = new_axes()
    drawn, names = draw_chart(CHART, ax)
    assert names == (ax.get_xlabel(), ax.get_ylabel()) == ("layer", "score")
    assert list(drawn) == MARKS
    for mark, (first, *more) in drawn.items():
        if isinstance(mark, Series):
            assert isinstance(first, Line2D)
            inside = [y if 0 <= y <= 1 else np.nan for y in mark.ys]
            np.testing.assert_array_equal(points(first), [mark.xs, inside])
            assert first.get_label() == mark.name
        elif isinstance(mark, Band):
            assert isinstance(first, LineCollection) == (len(mark.xs) == 1)
        elif isinstance(mark, Rule) and isinstance(first, Line2D):
            assert points(first)[1] == [mark.value, mark.value if mark.to is None else mark.to]
        elif isinstance(mark, Stretch) and isinstance(first, Line2D):
            assert points(first)[0] == [mark.left, mark.right]
        assert len(more) == (mark is CURVE or isinstance(first, Rectangle))  # hollow dots; the strip of a shade
    (hollow,) = drawn[CURVE][1:]
    assert isinstance(hollow, Line2D)
    assert points(hollow) == ([1.0], [0.4])
    lone, thin = drawn[LONE][0], drawn[THIN][0]
    assert isinstance(lone, Line2D)
    assert isinstance(thin, Line2D)
    assert (lone.get_marker(), lone.get_markevery()) == ("D", [0])
    assert to_hex(thin.get_color()) == "#eaae80"  # halfway from red to white
    triangles = {each.get_label(): points(each)[0] for each in ax.lines if each.get_marker() in ("^", "v")}
    assert triangles == {"above the axis": [3.0], "below the axis": [1.0]}


def test_texts_stand_around_the_axes_and_apart():
    ax = new_axes()
    draw_chart(CHART, ax)
    figure_of(ax).set_layout_engine("constrained")
    figure_of(ax).draw_without_rendering()
    check_texts(ax)
    for text in ("chance 0.500", "↑ far 1.50", "! a caution", "a fact; a note", "left", "right"):
        assert text in texts(ax).splitlines()
    assert ax.get_title("left") == "Every <mark>"
    assert set(legend_texts(ax)) == {entry.texts[0] for entry in CHART.legend}
    assert min(ax.get_yticks()) > 0.085  # none beside the names of the shades


@pytest.mark.parametrize("is_bare", [False, True])
def test_a_caption_has_the_facts_and_low_axes_the_entries_that_matter(is_bare):
    ax = new_axes((8, 2.0) if is_bare else (8, 4.5))
    chart = replace(CHART, legend=[CHART.legend[0], replace(CHART.legend[1], is_minor=True)])
    draw_chart(chart, ax, "" if is_bare else None)
    assert ("lone" in legend_texts(ax)) is not is_bare
    assert ("a fact; a note" in texts(ax)) is not is_bare
    assert "a note" in texts(ax)


def test_marks_that_are_there_stay_and_others_go():
    ax = new_axes()
    before, _ = draw_chart(replace(CHART, legend=[], margin=[]), ax)
    artists = set(ax.get_children())
    named = replace(CURVE, name="renamed")
    after, _ = draw_chart(replace(CHART, legend=[], margin=[], marks=[named, *MARKS[2:]]), ax, before=before)
    assert all(after[mark] == before[mark] for mark in MARKS if mark is not LONE)
    assert before[LONE][0].axes is None
    assert before[CURVE][0].get_label() == "renamed"
    lines = [artist for artist in set(ax.get_children()) - artists if isinstance(artist, Line2D)]
    assert [line.get_marker() for line in lines] == ["^"]  # what depends on the limits
