"""Nothing is cut off in silence: comparisons beyond the axis, long titles, small axes."""

import re

import pytest
from drawn_curves import check_texts, draw, figure_of, legend_texts, line, make, texts
from matplotlib import pyplot as plt
from matplotlib.text import Text

from probekit.evaluation import LayerResult, ProbeResults
from probekit.plots import plot_accuracy_by_layer, plot_curves

CONTROL = [1.0, 0.96, 0.90, 0.88, 0.69, 0.68]


def compared(values: list[float], control: list[float], **how) -> ProbeResults:
    results = make(6, wanted=range(6), values=values, **how)
    layers = [LayerResult(**{**vars(x), "control": y}) for x, y in zip(results.layers, control, strict=True)]
    return ProbeResults(layers, results.baselines, results.meta, results.random_init)


@pytest.mark.parametrize(
    ("level", "control", "notes"),
    [
        (0.55, CONTROL, ["↑ control task up to 1.00"]),  # an easier task would squash the curve
        (0.95, CONTROL, []),
        (0.3, CONTROL, ["↑ control task 0.68 to 1.00"]),
        (0.3, CONTROL[::-1], ["↑ control task 0.68 to 1.00"]),
        (0.9, [0.1, 0.8, 0.8, 0.85, 0.8, 0.8], ["↓ control task down to 0.10"]),
        (0.5, [0.01, 0.5, 0.5, 0.5, 0.5, 0.99], ["↑ control task up to 0.99"]),  # room for the lower end alone
        (0.1, [0.9, 1.0, 0.9, 0.9, 0.9, 0.95], ["↑ control task 0.90 to 1.00"]),
    ],
)
@pytest.mark.parametrize("n", [1, 2])
def test_every_value_of_a_comparison_is_inside_the_axes_or_announced(level, control, notes, n):
    values = [level - 0.01, level, level, level + 0.02, level, level]
    several = [compared(values, control, baselines={}, model=f"model{i}") for i in range(n)]
    ax = draw(*several)
    assert sorted(re.findall(r"[↑↓].*", texts(ax))) == sorted(notes)
    heights = ax.transData.transform([(0, value) for value in control])[:, 1]
    for value, height in zip(control, heights, strict=True):
        announced = any(text[0] == "↑" and value <= float(text.split()[-1]) for text in notes if height > ax.bbox.y1)
        announced |= any(text[0] == "↓" and value >= float(text.split()[-1]) for text in notes if height < ax.bbox.y0)
        assert announced or ax.bbox.y0 <= height <= ax.bbox.y1
    assert all(ax.bbox.y0 < y < ax.bbox.y1 for y in ax.transData.transform([(0, value) for value in values])[:, 1])


@pytest.mark.parametrize("n_panels", [1, 2])
def test_a_long_title_stands_once_and_whole(n_panels):
    title = "Where the number of the subject can be read from the residual stream of a small model " * 2
    labels, points = ("number", "tense")[:n_panels], ("resid_pre", "resid_mid")
    figure = plot_curves([make(2, label=label, point=at) for label in labels for at in points], title=title)
    assert len(figure.axes) == n_panels
    figure.canvas.draw()
    written = [text for text in figure.findobj(Text) if "Where the number" in text.get_text()]
    assert [" ".join(text.get_text().split()) for text in written] == [title.strip()]
    box = written[0].get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
    plt.close(figure)


def test_panels_share_the_legend_of_their_marks_and_take_further_curves():
    curves = [make(2, full=True, label=label, point=at) for label in ("a", "b") for at in ("resid_pre", "resid_mid")]
    figure = plot_curves(curves)
    (legend,) = figure.legends
    assert {"95% simultaneous band", "control task"} < {text.get_text() for text in legend.get_texts()}
    for ax in figure.axes:
        assert [text.partition(":")[0] for text in legend_texts(ax)] == ["resid_pre", "resid_mid"]
    plot_accuracy_by_layer(make(2, label="a", point="attn_out"), figure.axes[0])
    assert [line(figure.axes[0], name) for name in ("resid_pre", "resid_mid", "attn_out")]
    plt.close(figure)


def test_panels_whose_bands_mean_different_things_keep_their_legends():
    figure = plot_curves([make(2, label="a", full=True), make(2, label="b", point="resid_mid")])
    assert figure.legends == []
    assert [name in legend_texts(figure.axes[0]) for name in ("test", "95% simultaneous band")] == [True, True]
    assert "95% pointwise interval" in legend_texts(figure.axes[1])
    plt.close(figure)


@pytest.mark.parametrize("n", [1, 2])
def test_on_low_axes_the_curve_has_most_of_the_height(n, monkeypatch):
    monkeypatch.setattr("probekit.plots.headings.cautions", lambda data: ["108 texts were cut"])
    several = [compared([0.3] * 6, CONTROL, full=True, model=f"model{i}") for i in range(n)]
    ax = draw(*several, size=(4, 3))
    assert ax.bbox.height > 0.45 * figure_of(ax).bbox.height
    if n == 1:
        assert [text.partition(":")[0] for text in legend_texts(ax)] == ["test", "selected on validation"]
    assert {"control task", "random init"} <= set(texts(ax).splitlines())
    for part in ("! 108 texts were cut", "↑ control task up to 1.00"):
        assert part in texts(ax)
    assert "logistic" not in texts(ax)
    check_texts(ax)
