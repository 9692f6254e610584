import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from probekit.errors import StorageError
from probekit.evaluation import BaselineResult, LayerResult, ProbeResults
from probekit.plots import _shown_ticks, _spread, plot_accuracy_by_layer, save_plot
from probekit.probes import MeanDifferenceProbe

PROBE = MeanDifferenceProbe().fit(np.eye(2), [0, 1])


def scores(test: float, validation: float) -> dict[str, dict[str, float]]:
    values = {"train": 1.0, "validation": validation, "test": test}
    return {split: {"accuracy": v, "balanced_accuracy": v, "auroc": v} for split, v in values.items()}


def make(n_layers=4, point="resid_pre", wanted=None, baselines=(0.5, 0.7), flat=False, **meta: Any) -> ProbeResults:
    rng = np.random.default_rng(0)
    layers = []
    for i in range(n_layers + 1) if wanted is None else wanted:
        test = 0.5 if flat else 0.55 + 0.4 * i / n_layers
        at = ("resid_post", n_layers - 1) if i == n_layers and point != "resid_post" else (point, i)
        metrics = scores(test, test + rng.normal() / 100)
        layers.append(LayerResult(*at, 0.1, True, metrics, {"accuracy": (test - 0.02, test + 0.02)}, [], PROBE))
    named = zip(("majority", "bag-of-words"), baselines, strict=False)
    beside = [BaselineResult(name, None, True, scores(v, v), {"accuracy": (v, v)}) for name, v in named]
    about = {"model": "gpt2", "task": "sst2", "label": "label", "point": point, "position": "last", "probe": "logistic"}
    return ProbeResults(layers, beside, {**about, "n_layers": n_layers, "n": {"test": 100}, **meta})


def draw(results: ProbeResults) -> Any:
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    ax = plot_accuracy_by_layer(results, figure.subplots())
    FigureCanvasAgg(figure).draw()
    return ax


def texts(ax) -> str:
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    return "\n".join([ax.get_title("left"), ax.get_xlabel(), *(t.get_text() for t in ax.texts), *legend])


def test_it_shows_the_curve_and_says_what_it_is():
    results = make()
    ax = draw(results)
    curves = {line.get_label(): line for line in ax.lines}
    np.testing.assert_array_equal(curves["test"].get_xdata(), range(5))
    np.testing.assert_allclose(curves["test"].get_ydata(), [r.metrics["test"]["accuracy"] for r in results.layers])
    np.testing.assert_allclose(
        curves["validation"].get_ydata(), [r.metrics["validation"]["accuracy"] for r in results.layers]
    )
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["0", "1", "2", "3", "out"]
    for part in ("gpt2", "sst2", "resid_pre", "last token", "logistic", "input of block i; last = output"):
        assert part in texts(ax)
    assert "majority\n0.500" in texts(ax)
    assert "bag-of-words\n0.700" in texts(ax)
    best = results.best
    assert f"best on validation: output, test {best.metrics['test']['accuracy']:.3f}" in texts(ax)
    assert any(len(line.get_xdata()) == 1 and line.get_xdata()[0] == 4 for line in ax.lines)


@pytest.mark.parametrize(
    ("point", "wanted", "label", "last"),
    [
        ("resid_mid", None, "layer (after the attention of block i; last = output)", "out"),
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


@pytest.mark.parametrize("n_layers", [1, 4, 12, 24, 36, 48, 96])
@pytest.mark.parametrize("baselines", [(0.5, 0.7), (0.50, 0.51), (0.99, 1.0), ()])
def test_no_label_lies_on_another(n_layers, baselines):
    ax = draw(make(n_layers, baselines=baselines))
    ticks = [tick.label1.get_window_extent() for tick in ax.xaxis.get_major_ticks()]
    assert all(a.x1 < b.x0 for a, b in pairwise(ticks))
    assert ax.get_xticklabels()[-1].get_text() == "out"
    beside = sorted((t.get_window_extent() for t in ax.texts if "\n" in t.get_text()), key=lambda box: box.y0)
    assert len(beside) == len(baselines)
    assert all(a.y1 <= b.y0 for a, b in pairwise(beside))
    figure = ax.get_figure().bbox
    above = [
        ax.get_legend().get_window_extent(),
        *[t.get_window_extent() for t in ax.texts if "\n" not in t.get_text()],
    ]
    title = ax._left_title.get_window_extent()
    assert above[0].y1 <= above[1].y0
    assert above[1].y1 <= title.y0
    for box in [*beside, *above, title]:
        assert figure.x0 <= box.x0
        assert box.x1 <= figure.x1


def test_noise_does_not_fill_the_picture_and_limits_hold_everything():
    low, high = draw(make(flat=True, baselines=(0.5,))).get_ylim()
    assert high - low >= 0.3
    low, high = draw(make()).get_ylim()
    assert low < 0.5
    assert 0.97 < high < 1.05


def test_sparse_layers_keep_their_places_and_one_layer_has_its_interval():
    ax = draw(make(48, wanted=[3, 4, 20, 30]))
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["3", "4", "20", "30"]
    ax = draw(make(wanted=[2]))
    assert "best on validation" not in texts(ax)
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


def test_a_long_title_still_fits():
    ax = draw(make(model="m" * 100, task="t" * 100, label="l" * 100))
    assert ax._left_title.get_window_extent().x1 <= ax.get_figure().bbox.x1
    assert "…" in ax.get_title("left")


def test_saved_pictures_are_the_same_bytes_whatever_the_users_style(tmp_path):
    path = save_plot(make(), tmp_path / "a")
    assert path == tmp_path / "a" / "accuracy_by_layer.png"
    with mpl.rc_context({"font.size": 20, "axes.facecolor": "black", "svg.fonttype": "path"}):
        save_plot(make(), tmp_path / "b")
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
        "import sys, test_plots as t, pathlib; t.save_plot(t.make(), pathlib.Path(sys.argv[1]));"
        "assert 'matplotlib.pyplot' not in sys.modules;"
        "ax = t.make().plot(); from matplotlib import pyplot as plt;"
        "assert plt.get_fignums() == [1] and ax.figure is plt.gcf();"
        "fig, mine = plt.subplots(); assert t.make().plot(mine) is mine and plt.get_fignums() == [1, 2]"
    )
    here = str(Path(__file__).parent)
    env = {**os.environ, "PYTHONPATH": f"{here}:{here}/..", "MPLBACKEND": "agg"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, env=env)


def test_ticks_and_heights():
    assert _shown_ticks(range(26)) == list(range(26))
    assert _shown_ticks(range(49)) == [*range(0, 48, 4), 48]
    assert _shown_ticks(range(48)) == [*range(0, 45, 4), 47]
    assert _spread([], 0.1, 0, 1) == []
    assert _spread([0.5, 0.5], 0.1, 0, 1) == pytest.approx([0.45, 0.55])
    assert _spread([1.0, 1.0], 0.1, 0, 1) == pytest.approx([0.85, 0.95], abs=1e-6)
