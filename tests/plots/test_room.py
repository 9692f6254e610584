"""Nothing is cut off in silence: comparisons beyond the axis, long titles, small axes."""

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
    monkeypatch.setattr("probekit.charts.accuracy.cautions", lambda data: ["108 texts were cut"])
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
