"""Pictures for papers: as wide as a column, in any format, with or without a title, and nothing upon anything."""

import zlib
from pathlib import Path
from typing import Any, cast

import pytest
from drawn_curves import check_texts, legend_texts, line, make, points
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.text import Text

from probekit.errors import UsageError
from probekit.evaluation import LayerResult, ProbeResults
from probekit.options.picture import PictureOptions
from probekit.plots import plot_accuracy_by_layer, plot_comparison, plot_curves, save_plot
from probekit.plots.causal import plot_causal
from probekit.plots.style import NotebookFigure
from tests.made_up_effects import made_up
from tests.plots import test_side_by_side as compared

COLUMN = 3.25
POINTS = ("resid_pre", "resid_mid", "attn_out", "mlp_out")
CURVES = [make(6, full=True, point=point) for point in POINTS]
KINDS: dict[str, Any] = {
    "curve": lambda **how: plot_accuracy_by_layer(make(12, full=True), **how).figure,
    "several": lambda **how: plot_curves(CURVES, **how),
    "panels": lambda **how: plot_curves([make(4, full=True, label=name, metric=name) for name in ("r2", "f1")], **how),
    "causal": lambda **how: plot_causal(made_up(), **how),
    "compare": lambda **how: plot_comparison(compared.make(4), **how),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("title", ["", None])
def test_a_column_is_readable(kind: str, title: str | None) -> None:
    figure: Figure = KINDS[kind](width=COLUMN, title=title)
    assert figure.get_figwidth() == COLUMN
    figure.draw_without_rendering()
    shown = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    assert all(7 <= cast(float, text.get_fontsize()) <= 12 for text in shown if isinstance(text, Text))
    axes = [ax for ax in figure.axes if ax.has_data()]
    for ax in axes:
        check_texts(ax)
        assert ax.bbox.width > 0.45 * figure.bbox.width
        assert ax.bbox.height > 72 * 0.6 / 72 * figure.dpi
    plt.close(figure)


def test_no_title_leaves_out_the_facts_and_keeps_the_legend() -> None:
    with_title, without = (plot_accuracy_by_layer(make(full=True), title=title) for title in (None, ""))
    said = {text.get_text() for text in with_title.findobj(Text) if isinstance(text, Text)}
    left = {text.get_text() for text in without.findobj(Text) if isinstance(text, Text)}
    assert {"Decoding sst2 labels from gpt2", "resid_pre, last token; logistic probe; 100 test examples"} <= said - left
    assert legend_texts(with_title) == legend_texts(without)
    for ax in (with_title, without):  # also the legend, which nothing else makes room for
        figure = ax.get_figure(root=True)
        assert isinstance(figure, NotebookFigure)
        figure.draw_without_rendering()
        check_texts(ax)
    plt.close("all")


@pytest.mark.parametrize(
    ("given", "written"),
    [(None, ["png", "svg"]), ("pdf", ["pdf"]), (["svg", "pdf"], ["pdf", "svg"]), (["png"], ["png"])],
)
def test_the_formats_that_are_named_are_written_and_the_same_for_the_same_results(
    given: Any, written: list[str], tmp_path: Path
) -> None:
    paths = [save_plot(make(), tmp_path / name, format=given, width=COLUMN, no_title=True) for name in "ab"]
    assert [sorted(path.suffix[1:] for path in one.parent.iterdir()) for one in paths] == [written] * 2
    for suffix in written:
        one, other = (path.with_suffix(f".{suffix}").read_bytes() for path in paths)
        assert one == other
        assert suffix != "pdf" or b"/FontFile2" in one  # TrueType: publishers refuse Type 3
        assert zlib.crc32(one)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"width": 0.5}, "from 2 to 40"),
        ({"width": "wide"}, "number of inches"),
        ({"format": "gif"}, "png, svg, pdf"),
        ({"format": []}, "png, svg, pdf"),
        ({"title": "a", "no_title": True}, "exclude"),
    ],
)
def test_what_no_picture_can_have_is_refused(how: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        PictureOptions(**how)
    with pytest.raises((UsageError, TypeError)):
        save_plot(make(), tmp_path, **how)
    before = plt.get_fignums()
    if "width" in how:
        with pytest.raises(UsageError, match=said):
            make().plot(width=how["width"])
    assert plt.get_fignums() == before


def test_values_of_a_comparison_beyond_the_axis_are_marked_and_no_leader_points_at_them() -> None:
    results = make(8, metric="r2", values=[0.1, 0.15, 0.2, 0.2, 0.22, 0.2, 0.18, 0.15, 0.1], baselines={"far": 0.99})
    control = [0.4, 0.5, 0.6, 0.8, 0.95, 0.9, 0.7, 0.5, 0.4]
    layers: list[Any] = [LayerResult(**{**vars(x), "control": y}) for x, y in zip(results.layers, control, strict=True)]
    ax = plot_accuracy_by_layer(ProbeResults(layers, results.baselines, results.meta, []))
    high = ax.get_ylim()[1]
    beyond = [i for i, value in enumerate(control) if value > high]
    assert [line.get_label() for line in ax.lines].count("above the axis") == bool(beyond)
    if beyond:
        assert points(line(ax, "above the axis"))[0] == beyond
    arrows = [text for text in ax.texts if text.get_text()[:1] in "↑↓" and text.get_text()]
    assert [getattr(text, "arrow_patch", None) for text in arrows] == [None] * len(arrows)
    plt.close("all")
