import sys
import xml.etree.ElementTree as ET
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from drawn_curves import (
    CROWD,
    HOSTILE,
    check_legend,
    check_texts,
    code,
    draw,
    figure_of,
    legend_texts,
    line,
    make,
    points,
    shown,
    texts,
    without_validation,
)
from matplotlib import pyplot as plt

from probekit.errors import StorageError
from probekit.evaluation import LayerResult, ProbeResults
from probekit.plots import save_plot


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The PNG of a full picture, with its SVG beside it."""
    return save_plot(make(full=True), tmp_path_factory.mktemp("saved") / "a")


def test_it_shows_the_curve_and_says_what_it_is():
    results = make()
    ax = draw(results)
    assert points(line(ax, "test"))[0] == list(range(5))
    for split in ("test", "validation"):
        values = [r.metrics[split]["accuracy"] for r in results.layers]
        np.testing.assert_allclose(points(line(ax, split))[1], values)
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["0", "1", "2", "3", "out"]
    for part in ("gpt2", "sst2", "resid_pre", "last token", "logistic", "input of block i; last: output"):
        assert part in texts(ax)
    for part in ("majority 0.500", "bag-of-words 0.700", "95% pointwise interval", "100 test examples"):
        assert part in texts(ax)
    value = results.best.metrics["test"]["accuracy"]
    interval = f"[{value - 0.02:.3f}, {value + 0.02:.3f}]"
    assert f"selected on validation: resid_post.3 (output), test accuracy {value:.3f} {interval}" in legend_texts(ax)
    assert points(line(ax, "selected on validation")) == ([4], [value])


def test_a_place_has_one_name_in_the_picture_and_in_the_table():
    results = make(wanted=range(4))
    assert f"selected on validation: {results.best.place}, test" in texts(draw(results))
    assert f"*  {results.best.place} " in results.summary()


def test_codelength_stands_under_the_curve_where_the_figure_is_ours(saved):
    """The figure of pyplot is checked below."""
    assert len(draw(make(full=True)).figure.axes) == 1
    assert "compression" in saved.with_suffix(".svg").read_text()


SAME = dict.fromkeys(CROWD, 0.6)
TOP = dict(zip(CROWD, (1.0, 1.0, 0.99, 0.98), strict=True))
SIZES = [(8, 4.8), (4.2, 3.8), (14, 4)]
FRIENDLY, ALIKE = (CROWD, {}), (SAME, HOSTILE)
CASES = [(SIZES[0], 12, *FRIENDLY), (SIZES[0], 24, *ALIKE), (SIZES[1], 48, *FRIENDLY), (SIZES[1], 12, *ALIKE)]
CASES += [(SIZES[2], 24, *FRIENDLY), (SIZES[2], 48, *ALIKE)]
CASES += [(SIZES[0], n, TOP, {}) for n in (2, 36, 96)] + [(SIZES[1], n, {}, HOSTILE) for n in (2, 96)]


@pytest.mark.parametrize(("size", "n_layers", "baselines", "names"), CASES)
def test_no_text_lies_on_another_or_leaves_the_picture(size, n_layers, baselines, names):
    ax = draw(make(n_layers, baselines=baselines, full=bool(baselines), **names), size=size)
    assert len(shown(ax)) > 11
    check_texts(ax)
    check_legend(ax)
    assert ax.get_xticklabels()[-1].get_text() == "out"


def test_a_compression_of_one_is_said_and_not_drawn(tmp_path):
    layers = [LayerResult(**{**vars(x), "codelength": code(1.02)}) for x in make(full=True).layers]
    flat = ProbeResults(layers, [], make().meta)
    svg = save_plot(flat, tmp_path).with_suffix(".svg").read_text()
    assert "no layer compresses the labels (at most 1.02" in svg
    assert "compression" not in svg


@pytest.mark.parametrize("full", [False, True])
def test_where_nothing_was_selected_there_is_no_ring_and_no_validation(full):
    ax = draw(without_validation(make(full=full)))
    assert not any(word in text for text in legend_texts(ax) for word in ("selected", "validation"))
    assert points(line(ax, "test"))[0] == list(range(5))
    check_texts(ax)


@pytest.mark.parametrize(("size", "n"), [(SIZES[0], 1), (SIZES[1], 3)])
def test_cautions_stand_between_the_subtitle_and_the_legend(monkeypatch, size, n):
    said = ["40% of test texts are also in train (--drop-leaks removes them)"] * (n > 0)
    said += [f"{i * 100:,} of 2,039 texts were cut at the $x$ \x1b[31m context" for i in range(1, n)]
    monkeypatch.setattr("probekit.charts.accuracy.cautions", lambda data: said)
    ax = draw(make(full=True, baselines=CROWD), size=size)
    drawn = [text for text in ax.texts if text.get_color() == "#D55E00"]
    whole = " ".join(text.get_text() for text in sorted(drawn, key=lambda text: -text.get_window_extent().y0))
    assert whole == " ".join(f"! {text}" for text in said).replace("\x1b", "\\x1b")
    check_texts(ax)


@pytest.mark.parametrize("title", ["Number of the subject", "$x_1$ \x1b[31m 100%", "", "long " * 100, "x" * 400])
def test_a_title_is_drawn_as_it_is_typed(title):
    ax = draw(make(full=True), title=title)
    written = title.replace("\x1b", "\\x1b")
    assert ax.get_title("left").replace("\n", "") in (written, written.replace(" ", "")) or len(title) > 100
    assert ax.get_title("left").count("\n") < 3
    check_texts(ax)


@pytest.mark.parametrize("title", ["$x_1$ \x1b[31m 100%", ""])
def test_a_title_is_saved_as_it_is_typed(title, tmp_path):
    svg = save_plot(make(), tmp_path, title=title).with_suffix(".svg").read_text()
    assert "\x1b" not in svg
    assert ("$x_1$ \\x1b[31m 100%" in svg) == bool(title)
    assert "Decoding" not in svg


def test_sparse_layers_keep_their_places():
    ax = draw(make(48, wanted=[3, 4, 20, 30]))
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["3", "4", "20", "30"]


def test_names_are_drawn_as_they_are_spelled(tmp_path):
    names: dict[str, Any] = {
        "model": "$x_1$ 100%",
        "task": "a<b>&\x1b[31m_t",
        "label": r"\frac{$",
        "position": "per example",
    }
    results = make(**names)
    ax = draw(results)
    assert "$x_1$ 100% (a<b>&\\x1b[31m_t)" in ax.get_title("left")
    save_plot(results, tmp_path)
    svg = (tmp_path / "accuracy_by_layer.svg").read_text()
    drawn = [e.text or "" for e in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert any("$x_1$ 100% (a<b>&\\x1b[31m_t)" in text for text in drawn)
    assert "\x1b" not in svg


def test_saved_pictures_are_the_same_bytes_whatever_the_users_style(saved, tmp_path):
    assert saved == saved.parent / "accuracy_by_layer.png"
    with mpl.rc_context({"font.size": 20, "axes.facecolor": "black", "svg.fonttype": "path"}):
        save_plot(make(full=True), tmp_path / "b")
        assert mpl.rcParams["font.size"] == 20
    for name in ("accuracy_by_layer.png", "accuracy_by_layer.svg"):
        assert (saved.parent / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert sorted(p.name for p in saved.parent.iterdir()) == ["accuracy_by_layer.png", "accuracy_by_layer.svg"]


def test_a_disk_that_refuses_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="File exists"):
        save_plot(make(), tmp_path / "file")


def test_saving_touches_no_pyplot(tmp_path, monkeypatch):
    """No module of the pictures holds it, and an import of it while saving would raise."""
    modules = [module for name, module in sys.modules.items() if name.startswith("probekit.plots")]
    assert len(modules) > 5
    assert not [module.__name__ for module in modules if any(value is plt for value in vars(module).values())]
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    monkeypatch.delattr("matplotlib.pyplot")
    save_plot(make(), tmp_path)
    assert (tmp_path / "accuracy_by_layer.png").exists()


def test_plotting_makes_one_figure():
    plt.close("all")
    ax = make().plot()
    assert plt.get_fignums() == [1]
    assert ax.figure is plt.gcf()
    _, mine = plt.subplots()
    assert make().plot(mine) is mine
    assert plt.get_fignums() == [1, 2]
    full = make(full=True)
    ax = full.plot()
    upper, lower = figure_of(ax).axes
    assert upper is ax
    assert lower.get_xlabel()
    assert not upper.get_xlabel()
    compressions = [layer.codelength["compression"] for layer in full.layers if layer.codelength]
    assert compressions in [points(line)[1] for line in lower.lines]
    assert len(figure_of(make(full=True, wanted=[2]).plot()).axes) == 1
    plt.close("all")


def test_a_picture_of_folds_says_so(tmp_path):
    procedure = {"metrics": {"accuracy": 0.8}, "intervals": {"accuracy": (0.75, 0.85)}}
    folds = make(full=True, folds=5, procedure=procedure)
    assert "5 nested folds of 100 examples" in save_plot(folds, tmp_path).with_suffix(".svg").read_text()
    ax = draw(folds)
    assert "nested cross-validation: accuracy 0.800 [0.750, 0.850]" in legend_texts(ax)
    assert not any("selected" in text for text in legend_texts(ax))
    check_texts(ax)
    check_legend(ax)


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_the_curve_of_a_stack_ends_with_its_output(stack):
    ax = draw(make(6, point=f"{stack}.resid_pre", full=True))
    assert ax.get_xlabel() == f"layer (input of block i of the {stack}; last: output)"
    assert f"selected on validation: {stack}.resid_post.5 (output), test" in texts(ax)
    assert [tick.get_text() for tick in ax.get_xticklabels()][-2:] == ["5", "out"]
    check_texts(ax)
