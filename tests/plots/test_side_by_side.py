"""The pictures of a comparison: every run and difference is drawn, nothing lies on anything, colours part at chance."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from probekit.plots import save_comparison_plot
from probekit.plots.side_by_side import MOST_ROWS, _draw, _size
from probekit.side_by_side import Comparison
from probekit.side_by_side.data import ComparedPlace, ComparedRun, RunDifference, SeedGroup

HOSTILE = "<b>$_x_1$\x1b[31m" + "q" * 80


def a_run(number: int, L: int = 5, name: str | None = None, step: int | None = None) -> ComparedRun:
    rng = np.random.default_rng(number)
    values = np.linspace(0.5, 0.9, L + 1) + rng.uniform(-0.06, 0.06, L + 1)
    places = [
        ComparedPlace(
            "resid_pre" if i < L else "resid_post",
            i if i < L else L - 1,
            i,
            i / L,
            float(value),
            float(value) - 0.03,
            float(value) + 0.03,
            (float(value) - 0.05, float(value) + 0.05),
            None if step is None else (0.001 if value > 0.65 else 0.7),
        )
        for i, value in enumerate(values)
    ]
    facts = {"model": f"m{number}", "task": "sst2", "label": "label", "point": "resid_pre", "position": "last token"}
    facts |= {"probe": "logistic", "seed": "0"}
    best = places[L - 1]
    return ComparedRun(
        name or f"m{number}", None, facts, step, "accuracy", L, 400, places, L - 1, False, best.value,
        (best.value - 0.03, best.value + 0.03), 0.5, True,
    )  # fmt: skip


KINDS: list[Literal["paired", "unpaired"]] = ["paired", "unpaired"]


def make(n: int = 3, *, L: int = 5, seeds: bool = False, steps: bool = False, axis: str = "layer") -> Comparison:
    runs = [a_run(i, L, step=100 * i if steps else None) for i in range(n)]
    differences = [
        RunDifference(i, 0, -0.02 * i, (-0.02 * i - 0.03, -0.02 * i + 0.03), 0.1, 0.2, kind, "McNemar", 400)
        for i, kind in zip(range(1, n), KINDS * n, strict=False)
    ]
    shared = {key: runs[0].facts[key] for key in ("task", "label", "point", "position", "probe")}
    groups = [SeedGroup("trained", [0], 0.8, None), SeedGroup("random", list(range(1, n)), 0.7, 0.02)] if seeds else []
    meta = {"headline": "accuracy", "label": "label", "n_classes": 2, "axis": axis, "by": "step" if steps else "run"}
    meta |= {"pairs": "previous" if steps else "first", "shared": shared, "notes": [], "seed": 0}
    return Comparison(runs, differences, groups, meta)


def draw(data: Comparison) -> Figure:
    figure = Figure(figsize=_size(data), layout="constrained")
    _draw(data, figure, None)
    figure.draw_without_rendering()
    return figure


def shown(figure: Figure) -> list[Text]:
    found = [text for text in figure.findobj(Text) if isinstance(text, Text)]
    axes = {ax: (sorted(ax.get_xlim()), sorted(ax.get_ylim())) for ax in figure.axes}
    outside = set()
    for ax, (x, y) in axes.items():
        outside |= {t.label1 for t in ax.xaxis.get_major_ticks() if not x[0] <= t.get_loc() <= x[1]}
        outside |= {t.label1 for t in ax.yaxis.get_major_ticks() if not y[0] <= t.get_loc() <= y[1]}
    return [text for text in found if text.get_visible() and text.get_text().strip() and text not in outside]


@pytest.mark.parametrize(
    "data",
    [make(2), make(5), make(4, seeds=True), make(3, axis="depth"), make(4, steps=True), make(24, L=13, steps=True)],
    ids=["two", "five", "seeds", "depth", "steps", "many steps"],
)
def test_no_text_lies_on_another_or_leaves_the_figure(data):
    figure = draw(data)
    boxes = [(text.get_text(), text.get_window_extent()) for text in shown(figure)]
    for (one, a), (other, b) in combinations(boxes, 2):
        assert a.x1 <= b.x0 + 2 or b.x1 <= a.x0 + 2 or a.y1 <= b.y0 + 2 or b.y1 <= a.y0 + 2, (one, other)
    for text, box in boxes:
        assert figure.bbox.x0 - 1 <= box.x0 <= box.x1 <= figure.bbox.x1 + 1, text


def test_every_run_is_a_line_and_every_difference_a_row():
    data = make(4)
    upper, lower = draw(data).axes
    drawn = [np.asarray(line.get_ydata()) for line in upper.lines if len(np.asarray(line.get_xdata())) == 6]
    assert np.allclose(drawn, [[place.value for place in run.places] for run in data.runs])
    points = [float(np.asarray(line.get_xdata())[0]) for line in lower.lines if line.get_marker() == "o"]
    assert points == [each.difference for each in data.differences]
    faces = [line.get_markerfacecolor() for line in lower.lines if line.get_marker() == "o"]
    assert [face == "white" for face in faces] == [each.kind == "unpaired" for each in data.differences]
    assert [text.get_text() for text in lower.get_yticklabels()] == ["m1", "m2", "m3"]


def test_many_differences_are_cut_and_said():
    figure = draw(make(MOST_ROWS + 5))
    assert len(figure.axes[1].get_yticks()) == MOST_ROWS
    assert f"({MOST_ROWS} of {MOST_ROWS + 4} differences)" in figure.axes[1].get_xlabel()


@pytest.mark.parametrize("steps", [False, True])
def test_saved_pictures_are_the_same_bytes_and_hold_no_control_characters(tmp_path: Path, steps):
    data = make(3, steps=steps)
    named = [
        replace(run, name=HOSTILE + str(i), facts={**run.facts, "model": HOSTILE}) for i, run in enumerate(data.runs)
    ]
    data = Comparison(named, data.differences, [], {**data.meta, "shared": {**data.meta["shared"], "model": HOSTILE}})
    for name in ("a", "b"):
        assert save_comparison_plot(data, tmp_path / name) == tmp_path / name / "comparison.png"
    for name in ("comparison.png", "comparison.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert "\x1b" not in (tmp_path / "a/comparison.svg").read_text()
    assert "\x1b" not in data.summary()
