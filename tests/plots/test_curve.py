import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from probekit.errors import StorageError
from probekit.evaluation import BaselineResult, LayerResult, ProbeResults
from probekit.plots import plot_accuracy_by_layer, save_plot
from probekit.plots.curve import _runs, _shown_ticks
from probekit.plots.margin import spread
from probekit.probes import MeanDifferenceProbe

PROBE = MeanDifferenceProbe().fit(np.eye(2), [0, 1])


BASELINES = {"majority": 0.5, "bag-of-words": 0.7}
HOSTILE = {"model": "$x_1$ 100% " + "m" * 60, "task": "a<b>&\x1b[31m_t" + "t" * 80, "label": r"\frac{$" + "l" * 50}


def scores(test: float, validation: float, metric: str = "accuracy") -> dict[str, dict[str, float]]:
    values = {"train": 1.0, "validation": validation, "test": test}
    return {split: {metric: v} for split, v in values.items()}


def make(
    n_layers: int = 4,
    point: str = "resid_pre",
    wanted: Iterable[int] | None = None,
    baselines: dict[str, float] = BASELINES,
    flat: bool = False,
    full: bool = False,
    metric: str = "accuracy",
    **meta: Any,
) -> ProbeResults:
    """A curve that rises; a full one with band, best set, controls, random weights and codelength."""
    rng = np.random.default_rng(0)
    layers, random = [], []
    for i in range(n_layers + 1) if wanted is None else wanted:
        test = 0.5 if flat else 0.55 + 0.4 * i / n_layers
        at = ("resid_post", n_layers - 1) if i == n_layers and point != "resid_post" else (point, i)
        metrics = scores(test, test + rng.normal() / 100, metric)
        beside: dict[str, Any] = {}
        if full:
            beside = {"band": (test - 0.04, test + 0.04), "in_best_set": test > 0.85, "control": 0.52 + 0.001 * i}
            beside["codelength"] = {
                "bits": 50.0,
                "uniform_bits": 100.0,
                "prior_bits": 90.0,
                "compression": 1 + test,
                "gain": 0.9 * (1 + test),
            }
            random.append(LayerResult(*at, 0.1, True, scores(0.6, 0.6, metric), {metric: (0.58, 0.62)}, []))
        ends = {metric: (test - 0.02, test + 0.02)}
        layers.append(LayerResult(*at, 0.1, True, metrics, ends, [], PROBE, **beside))
    others = [BaselineResult(name, None, True, scores(v, v, metric), {metric: (v, v)}) for name, v in baselines.items()]
    about = {"model": "gpt2", "task": "sst2", "label": "label", "point": point, "position": "last", "probe": "logistic"}
    about |= {"headline": metric}
    return ProbeResults(layers, others, {**about, "n_layers": n_layers, "n": {"test": 100}, **meta}, random)


def draw(results: ProbeResults, size: tuple[float, float] = (8, 4.5)) -> Axes:
    figure = Figure(figsize=size, layout="constrained")
    ax = plot_accuracy_by_layer(results, figure.subplots())
    FigureCanvasAgg(figure).draw()
    return ax


def shown(ax: Axes) -> list[Text]:
    """Every text that is drawn."""
    ticks = [*ax.xaxis.get_major_ticks(), *ax.xaxis.get_minor_ticks(), *ax.yaxis.get_major_ticks()]
    of_ticks = {text for tick in ticks for text in (tick.label1, tick.label2)}
    (left, right), (low, high) = ax.get_xlim(), ax.get_ylim()
    drawn = [t.label1 for t in ax.xaxis.get_major_ticks() if left <= t.get_loc() <= right]
    drawn += [t.label1 for t in ax.yaxis.get_major_ticks() if low <= t.get_loc() <= high]
    rest = [text for text in ax.findobj(Text) if isinstance(text, Text) and text not in of_ticks]
    return [text for text in [*drawn, *rest] if text.get_visible() and text.get_text().strip()]


def texts(ax: Axes) -> str:
    return "\n".join(text.get_text() for text in shown(ax))


def line(ax: Axes, label: str) -> Line2D:
    (found,) = [line for line in ax.lines if line.get_label() == label]
    return found


def points(line: Line2D) -> tuple[list[float], list[float]]:
    return np.asarray(line.get_xdata(), dtype=float).tolist(), np.asarray(line.get_ydata(), dtype=float).tolist()


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
    ring = line(ax, f"selected on validation: output, test accuracy {value:.3f} {interval}")
    assert points(ring) == ([4], [value])


def test_what_a_sceptic_asks_for_is_in_the_picture():
    results = make(full=True)
    ax = draw(results)
    assert "95% simultaneous band" in texts(ax)
    (band,) = ax.collections
    corners = np.asarray(band.get_paths()[0].vertices)
    for i, layer in enumerate(results.layers):
        assert layer.band is not None
        np.testing.assert_allclose(sorted({y for x, y in corners if x == i}), layer.band)
    assert points(line(ax, "control task"))[1] == [layer.control for layer in results.layers]
    assert points(line(ax, "random init"))[1] == [0.6] * 5
    assert "control task 0.524" in texts(ax)
    assert "random init 0.600" in texts(ax)
    first, last = points(line(ax, "statistically tied with the best"))[0]
    assert 2 < first < 3
    assert 4 < last < 5


@pytest.mark.parametrize(
    ("metric", "label"), [("accuracy", "accuracy"), ("auroc", "AUROC"), ("r2", "R\N{SUPERSCRIPT TWO}")]
)
def test_the_headline_is_on_the_axis(metric, label):
    ax = draw(make(metric=metric, baselines={"mean": -30.0} if metric == "r2" else BASELINES))
    assert ax.get_ylabel() == label
    assert ax.get_ylim()[0] > -0.4
    assert ax.get_ylim()[1] < 1.1


def test_codelength_stands_under_the_curve_where_the_figure_is_ours(tmp_path):
    code = "import test_curve as t; ax = t.make(full=True).plot(); upper, lower = ax.figure.axes;"
    code += "assert upper is ax and lower.get_xlabel() and not upper.get_xlabel();"
    code += (
        "assert list(lower.lines[1].get_ydata()) == [x.codelength['compression'] for x in t.make(full=True).layers];"
    )
    code += "assert len(t.make(full=True, wanted=[2]).plot().figure.axes) == 1"
    run_here(code)
    assert len(draw(make(full=True)).figure.axes) == 1
    assert "compression" in save_plot(make(full=True), tmp_path).with_suffix(".svg").read_text()


@pytest.mark.parametrize(
    ("point", "wanted", "label", "last"),
    [
        ("resid_mid", None, "layer (after the attention of block i; last: output)", "out"),
        ("resid_post", range(4), "layer (output of block i)", "3"),
        ("resid_pre", [0, 2], "layer (input of block i)", "2"),
        ("attn_out", range(4), "layer (attn_out of block i)", "3"),
        ("embed", [None], "", "embed"),
    ],
)
def test_the_layer_axis_is_honest(point, wanted, label, last):
    results = make(point=point, wanted=wanted) if wanted != [None] else make(point=point, wanted=[0])
    if wanted == [None]:
        results = ProbeResults([LayerResult(**{**vars(results.layers[0]), "layer": None})], [], results.meta)
    ax = draw(results)
    assert ax.get_xlabel() == label
    assert ax.get_xticklabels()[-1].get_text() == last


@pytest.mark.parametrize(
    ("point", "label"),
    [
        ("resid_pre", "layer (input of block i)"),
        ("resid_post", "layer (before the last norm of block i)"),
        ("ln2_normalized", "layer (output of block i)"),
        ("encoder.resid_pre", "layer (input of block i of the encoder)"),
        ("decoder.ln3_normalized", "layer (output of block i of the decoder)"),
    ],
)
def test_the_layer_axis_is_honest_where_blocks_end_with_a_norm(point, label):
    output = "decoder.ln3_normalized" if point.startswith("decoder") else "ln2_normalized"
    assert draw(make(point=point, wanted=range(4), output=output)).get_xlabel() == label


CROWD = {"majority": 0.5, "bag-of-words": 0.7, "length": 0.53, "embedding": 0.6}
SAME = dict.fromkeys(CROWD, 0.6)
TOP = dict(zip(CROWD, (1.0, 1.0, 0.99, 0.98), strict=True))


SIZES = [(8, 4.8), (4.2, 3.8), (14, 4)]
CASES = [(size, n, *how) for size in SIZES for n in (12, 24, 48) for how in ((CROWD, {}), (SAME, HOSTILE))]
CASES += [(SIZES[0], n, TOP, {}) for n in (1, 4, 36, 96)] + [(SIZES[1], n, {}, HOSTILE) for n in (1, 96)]


@pytest.mark.parametrize(("size", "n_layers", "baselines", "names"), CASES)
def test_no_text_lies_on_another_or_leaves_the_picture(size, n_layers, baselines, names):
    ax = draw(make(n_layers, baselines=baselines, full=bool(baselines), **names), size)
    figure = ax.get_figure(root=True)
    assert figure is not None
    boxes = [(text.get_text(), Text.get_window_extent(text)) for text in shown(ax)]  # without the lines to them
    assert len(boxes) > 12
    for (one, a), (other, b) in combinations(boxes, 2):
        assert a.x1 <= b.x0 or b.x1 <= a.x0 or a.y1 <= b.y0 + 1 or b.y1 <= a.y0 + 1, (one, other)
    for text, box in boxes:
        assert figure.bbox.x0 <= box.x0, text
        assert box.x1 <= figure.bbox.x1, text
        assert box.y1 <= figure.bbox.y1 + 1, text
    assert ax.get_xticklabels()[-1].get_text() == "out"


def test_noise_does_not_fill_the_picture_and_limits_hold_everything():
    low, high = draw(make(flat=True, baselines={"majority": 0.5})).get_ylim()
    assert high - low >= 0.3
    low, high = draw(make()).get_ylim()
    assert low < 0.5
    assert 0.97 < high < 1.05


def test_sparse_layers_keep_their_places_and_one_layer_has_its_interval():
    ax = draw(make(48, wanted=[3, 4, 20, 30]))
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["3", "4", "20", "30"]
    ax = draw(make(wanted=[2]))
    assert "selected" not in texts(ax)
    assert "95% interval" in texts(ax)
    assert any(len(c.get_paths()) == 1 for c in ax.collections)


def test_names_are_drawn_as_they_are_spelled(tmp_path):
    names: dict[str, Any] = {
        "model": "$x_1$ 100%",
        "task": "a<b>&\x1b[31m_t",
        "label": r"\frac{$",
        "position": "per example",
    }
    results = make(**names)
    ax = draw(results)
    assert "$x_1$ 100% on a<b>&\\x1b[31m_t" in ax.get_title("left")
    save_plot(results, tmp_path)
    svg = (tmp_path / "accuracy_by_layer.svg").read_text()
    drawn = [e.text or "" for e in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert any("$x_1$ 100% on a<b>&\\x1b[31m_t" in text for text in drawn)
    assert "\x1b" not in svg


def test_saved_pictures_are_the_same_bytes_whatever_the_users_style(tmp_path):
    path = save_plot(make(full=True), tmp_path / "a")
    assert path == tmp_path / "a" / "accuracy_by_layer.png"
    with mpl.rc_context({"font.size": 20, "axes.facecolor": "black", "svg.fonttype": "path"}):
        save_plot(make(full=True), tmp_path / "b")
        assert mpl.rcParams["font.size"] == 20
    for name in ("accuracy_by_layer.png", "accuracy_by_layer.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["accuracy_by_layer.png", "accuracy_by_layer.svg"]


def test_a_disk_that_refuses_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="File exists"):
        save_plot(make(), tmp_path / "file")


def test_saving_touches_no_pyplot_and_plotting_makes_one_figure(tmp_path):
    code = (
        "import sys, test_curve as t, pathlib; t.save_plot(t.make(), pathlib.Path(sys.argv[1]));"
        "assert 'matplotlib.pyplot' not in sys.modules;"
        "ax = t.make().plot(); from matplotlib import pyplot as plt;"
        "assert plt.get_fignums() == [1] and ax.figure is plt.gcf();"
        "fig, mine = plt.subplots(); assert t.make().plot(mine) is mine and plt.get_fignums() == [1, 2]"
    )
    run_here(code, str(tmp_path))


def run_here(code: str, *args: str) -> None:
    """In a process of its own, where nobody has imported pyplot yet."""
    here = str(Path(__file__).parent)
    env = {**os.environ, "PYTHONPATH": f"{here}:{here}/../..", "MPLBACKEND": "agg"}
    subprocess.run([sys.executable, "-c", code, *args], check=True, env=env)


def test_ticks_and_heights():
    assert _shown_ticks(range(26)) == list(range(26))
    assert _shown_ticks(range(49)) == [*range(0, 48, 4), 48]
    assert _shown_ticks(range(48)) == [*range(0, 45, 4), 47]
    assert _runs([]) == []
    assert _runs([0, 1, 2, 5]) == [(0, 2), (5, 5)]
    assert spread([], 0.1, 0, 1) == []
    assert spread([0.5, 0.5], 0.1, 0, 1) == pytest.approx([0.45, 0.55])
    assert spread([1.0, 1.0], 0.1, 0, 1) == pytest.approx([0.85, 0.95], abs=1e-6)


def test_a_picture_of_folds_says_so(tmp_path):
    folds = make(full=True, folds=5, procedure=None)
    assert "5 nested folds of 100 examples" in save_plot(folds, tmp_path).with_suffix(".svg").read_text()
