"""Results made up for pictures, and what every picture has to hold."""

from collections.abc import Iterable
from itertools import combinations
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from probekit.evaluation import BaselineResult, LayerResult, ProbeResults
from probekit.plots import plot_accuracy_by_layer
from probekit.probes import MeanDifferenceProbe

PROBE = MeanDifferenceProbe().fit(np.eye(2), [0, 1])
BASELINES = {"majority": 0.5, "bag-of-words": 0.7}
CROWD = {"majority": 0.5, "bag-of-words": 0.7, "length": 0.53, "embedding": 0.6}
HOSTILE = {"model": "$x_1$ 100% " + "m" * 60, "task": "a<b>&\x1b[31m_t" + "t" * 80, "label": r"\frac{$" + "l" * 50}


def scores(test: float, validation: float, metric: str = "accuracy") -> dict[str, dict[str, float]]:
    values = {"train": 1.0, "validation": validation, "test": test}
    return {split: {metric: v} for split, v in values.items()}


def make(
    n_layers: int = 4,
    point: str = "resid_pre",
    wanted: Iterable[int] | None = None,
    baselines: dict[str, float] = BASELINES,
    full: bool = False,
    metric: str = "accuracy",
    values: Iterable[float] | None = None,
    **meta: Any,
) -> ProbeResults:
    """A curve that rises from 0.55 to 0.95; a full one with band, best set, controls, random weights and codelength."""
    rng = np.random.default_rng(0)
    layers, random = [], []
    stack = point.rpartition(".")[0] + "." * ("." in point)
    places = list(range(n_layers + 1) if wanted is None else wanted)
    rising = [0.55 + 0.4 * i / n_layers for i in places]
    for i, test in zip(places, rising if values is None else values, strict=True):
        end = f"{stack}resid_post"
        at = (end, n_layers - 1) if i == n_layers and point != end else (point, i)
        metrics = scores(test, test + rng.normal() / 100, metric)
        beside: dict[str, Any] = {}
        if full:
            beside = {"band": (test - 0.04, test + 0.04), "in_best_set": test > 0.85, "control": 0.52 + 0.001 * i}
            beside["codelength"] = code(1 + test)
            random.append(LayerResult(*at, 0.1, True, scores(0.6, 0.6, metric), {metric: (0.58, 0.62)}, []))
        ends = {metric: (test - 0.02, test + 0.02)}
        layers.append(LayerResult(*at, 0.1, True, metrics, ends, [], PROBE, **beside))
    others = [
        BaselineResult(name, None, True, scores(v, v, metric), {metric: (v - 0.01, v + 0.01)})
        for name, v in baselines.items()
    ]
    about = {"model": "gpt2", "task": "sst2", "label": "label", "point": point, "position": "last", "probe": "logistic"}
    about |= {"headline": metric}
    return ProbeResults(layers, others, {**about, "n_layers": n_layers, "n": {"test": 100}, **meta}, random)


def code(compression: float) -> dict[str, float]:
    """100 bits for labels whose class frequencies give 90."""
    gain = 0.9 * compression
    return {
        "bits": 100 / compression,
        "uniform_bits": 100.0,
        "prior_bits": 90.0,
        "compression": compression,
        "gain": gain,
    }


def without_validation(results: ProbeResults) -> ProbeResults:
    """The same results, where nothing was selected."""
    layers = [LayerResult(**{**vars(x), "metrics": {"test": x.metrics["test"]}}) for x in results.layers]
    return ProbeResults(layers, results.baselines, results.meta, results.random_init)


def new_axes(size: tuple[float, float] = (8, 4.5)) -> Axes:
    figure = Figure(figsize=size)
    FigureCanvasAgg(figure)
    return figure.subplots()


def draw(*results: ProbeResults, size: tuple[float, float] = (8, 4.5), **how: Any) -> Axes:
    """Drawn, so that everything is in its place, but into no pixels, which take a fifth of the time."""
    ax = new_axes(size)
    for each in results:
        plot_accuracy_by_layer(each, ax, **how)
    figure_of(ax).draw_without_rendering()
    return ax


def figure_of(ax: Axes) -> Figure:
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure


def shown(ax: Axes) -> list[Text]:
    """Every text that is drawn."""
    ticks = [*ax.xaxis.get_major_ticks(), *ax.xaxis.get_minor_ticks(), *ax.yaxis.get_major_ticks()]
    of_ticks = {text for tick in ticks for text in (tick.label1, tick.label2)}
    ends = sorted(ax.get_xlim()), sorted(ax.get_ylim())
    drawn = [t.label1 for t in ax.xaxis.get_major_ticks() if ends[0][0] <= t.get_loc() <= ends[0][1]]
    drawn += [t.label1 for t in ax.yaxis.get_major_ticks() if ends[1][0] <= t.get_loc() <= ends[1][1]]
    rest = [text for text in ax.findobj(Text) if isinstance(text, Text) and text not in of_ticks]
    return [text for text in [*drawn, *rest] if text.get_visible() and text.get_text().strip()]


def texts(ax: Axes) -> str:
    return "\n".join(text.get_text() for text in shown(ax))


def legend_texts(ax: Axes) -> list[str]:
    """From the axes upwards, in each block in the order of the entries."""
    legends = [artist for artist in ax.get_children() if isinstance(artist, Legend)]
    return [text.get_text() for legend in legends for text in legend.get_texts()]


def line(ax: Axes, label: str) -> Line2D:
    (found,) = [line for line in ax.lines if line.get_label() == label]
    return found


def points(line: Line2D) -> tuple[list[float], list[float]]:
    return np.asarray(line.get_xdata(), dtype=float).tolist(), np.asarray(line.get_ydata(), dtype=float).tolist()


def check_texts(*several: Axes) -> None:
    """No text of these axes lies on another or leaves the figure."""
    bbox = figure_of(several[0]).bbox
    boxes = [(text.get_text(), Text.get_window_extent(text)) for ax in several for text in shown(ax)]
    for (one, a), (other, b) in combinations(boxes, 2):
        apart = a.x1 <= b.x0 or b.x1 <= a.x0 or a.y1 <= b.y0 + 1 or b.y1 <= a.y0 + 1
        assert apart, (one, other)
    for text, box in boxes:
        assert bbox.x0 - 1 <= box.x0 <= box.x1 <= bbox.x1 + 1, text
        assert bbox.y0 - 1 <= box.y0 <= box.y1 <= bbox.y1 + 1, text


def check_legend(ax: Axes) -> None:
    """The legend names exactly the labelled artists, and each of them has some part within the axes."""
    labelled = [artist for artist in (*ax.lines, *ax.collections) if not str(artist.get_label()).startswith("_")]
    labelled = [artist for artist in labelled if artist.get_label()]
    named = legend_texts(ax)
    for name in named:
        assert any(_names(name, str(artist.get_label())) for artist in labelled), name
    for artist in labelled:
        assert any(_names(name, str(artist.get_label())) for name in named), artist
        box = Bbox.null()
        for path in [artist.get_path()] if isinstance(artist, Line2D) else artist.get_paths():
            box.update_from_path(artist.get_transform().transform_path(path), ignore=False)
        assert box.x1 >= ax.bbox.x0, artist
        assert box.x0 <= ax.bbox.x1, artist
        assert box.y1 >= ax.bbox.y0, artist
        assert box.y0 <= ax.bbox.y1, artist


def _names(text: str, label: str) -> bool:
    """Whether a legend's text, which may be shorter, is that of a label."""
    word = label.split()[0]
    starts = text.startswith((f"{label}:", f"{word}:", f"{word} "))
    return starts or set(text.split()) <= set(label.split()) or "…" in text
