"""Pictures of results. What comes from data is drawn as it is spelled: no mathtext, no control characters."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from probekit.durable import write_as
from probekit.evaluation.show import is_output, where
from probekit.text import printable

if TYPE_CHECKING:
    from probekit.evaluation import LayerResult, ProbeResults

# Okabe and Ito's colours, which stay apart for colour-blind readers
BLUE, ORANGE, RED, GREY, INK = "#0072B2", "#E69F00", "#D55E00", "#6B6B6B", "#222222"
SIZE = (8.0, 4.5)  # inches
PLACES = {
    "resid_pre": "input of block i",
    "resid_mid": "after the attention of block i",
    "resid_post": "output of block i",
}
NAME_LENGTH = 28  # longer names are cut in the middle
LETTERS_PER_INCH = 9  # of the title's usual size; longer titles are set smaller
PLAIN: dict[str, Any] = {"parse_math": False, "usetex": False}  # names hold $, _ and %
_SMALLEST_SPAN = 0.3  # of the y axis, so that noise never fills the picture


def plot_accuracy_by_layer(results: "ProbeResults", ax: Axes | None = None) -> Axes:
    """Draw test accuracy by layer with its interval, validation, the baselines and the place that was chosen.

    Args:
        results: what `train_probes` gave.
        ax: where to draw; None makes a new pyplot figure, which a notebook shows.
    """
    if ax is None:
        from matplotlib import pyplot as plt

        _, ax = plt.subplots(figsize=SIZE, layout="constrained")
    xs = [_x(results, layer) for layer in results.layers]
    _draw_curve(results, ax, xs)
    _draw_best(results, ax)
    _fit_axes(results, ax, xs)
    _draw_baselines(results, ax)
    _write_title(results, ax)
    return ax


def save_plot(results: "ProbeResults", folder: str | Path) -> Path:
    """Write accuracy_by_layer.png and .svg into `folder`, the same bytes for the same results; returns the PNG's path.

    Raises:
        StorageError: the disk refused.
    """
    with mpl.rc_context():
        mpl.rcdefaults()  # so that nobody's own style leaks into the files
        mpl.rcParams.update({"svg.hashsalt": "probekit", "svg.fonttype": "none"})  # text stays text
        figure = Figure(figsize=SIZE, layout="constrained")
        FigureCanvasAgg(figure)
        plot_accuracy_by_layer(results, figure.subplots())
        png, svg = io.BytesIO(), io.BytesIO()
        figure.savefig(png, format="png", dpi=200, metadata={"Software": None})
        figure.savefig(svg, format="svg", metadata={"Date": None})
    path = Path(folder) / "accuracy_by_layer.png"
    write_as(path.with_suffix(".svg"), svg.getvalue())
    write_as(path, png.getvalue())
    return path


def _x(results: "ProbeResults", layer: "LayerResult") -> int:
    if is_output(results, layer):
        return int(results.meta["n_layers"])
    return layer.layer or 0


def _draw_curve(results: "ProbeResults", ax: Axes, xs: Sequence[int]) -> None:
    test = [layer.metrics["test"]["accuracy"] for layer in results.layers]
    low, high = zip(*(layer.intervals["accuracy"] for layer in results.layers), strict=True)
    validation = [layer.metrics["validation"]["accuracy"] for layer in results.layers]
    small = 5 if len(xs) <= 30 else 3
    if len(xs) == 1:  # a band has no width here
        ax.vlines(xs, low, high, color=BLUE, alpha=0.35, linewidth=6, label="95% interval")
    else:
        ax.fill_between(xs, low, high, color=BLUE, alpha=0.18, linewidth=0, label="95% interval")
    ax.plot(
        xs, validation, color=ORANGE, linestyle="--", linewidth=1.4, marker=".", markersize=small, label="validation"
    )
    ax.plot(xs, test, color=BLUE, linewidth=2, marker="o", markersize=small, label="test")


def _draw_best(results: "ProbeResults", ax: Axes) -> None:
    best = results.best
    accuracy = best.metrics["test"]["accuracy"]
    name = "output" if is_output(results, best) else best.point if best.layer is None else f"layer {best.layer}"
    ax.plot(
        [_x(results, best)],
        [accuracy],
        linestyle="none",
        marker="o",
        markersize=11,
        markerfacecolor="none",
        markeredgecolor=RED,
        markeredgewidth=2,
        label=f"{'best on validation: ' if len(results.layers) > 1 else ''}{name}, test {accuracy:.3f}",
        zorder=5,
        clip_on=False,
    )


def _fit_axes(results: "ProbeResults", ax: Axes, xs: Sequence[int]) -> None:
    ax.set_ylim(*_y_limits(results))
    ax.set_ylabel("accuracy")
    ax.set_xlabel(_x_label(results), **PLAIN)
    margin = max(0.35, 0.02 * (xs[-1] - xs[0]))
    ax.set_xlim(xs[0] - margin, xs[-1] + margin)
    names = {x: _tick(results, layer) for x, layer in zip(xs, results.layers, strict=True)}
    shown = _shown_ticks(xs)
    ax.set_xticks(shown, [names[x] for x in shown])
    ax.set_xticks(xs, minor=True)
    ax.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _y_limits(results: "ProbeResults") -> tuple[float, float]:
    values = [layer.metrics[split]["accuracy"] for layer in results.layers for split in ("validation", "test")]
    values += [end for layer in results.layers for end in layer.intervals["accuracy"]]
    values += [baseline.metrics["test"]["accuracy"] for baseline in results.baselines]
    low, high = min(values), max(values)
    missing = max(0.0, _SMALLEST_SPAN - (high - low))
    high = min(1.0, high + missing / 2)
    low = max(0.0, min(low, high - _SMALLEST_SPAN))
    pad = 0.05 * (high - low)
    return low - pad, high + pad


def _x_label(results: "ProbeResults") -> str:
    point = results.meta["point"]
    if results.layers[0].layer is None:
        return ""
    place = PLACES.get(point, f"{point} of block i")
    return f"layer ({place}; last = output)" if is_output(results, results.layers[-1]) else f"layer ({place})"


def _tick(results: "ProbeResults", layer: "LayerResult") -> str:
    if is_output(results, layer):
        return "out"
    return layer.point if layer.layer is None else str(layer.layer)


def _shown_ticks(xs: Sequence[int], most: int = 30) -> list[int]:
    """The ticks that get a label: all, or every fourth, tenth or so, and always the last; never two too near."""
    step = next(step for step in (1, 4, 10, 20, 50, 10**6) if len(xs) <= most * step)
    shown: list[int] = [xs[-1]]
    for x in reversed(xs[:-1]):
        if x % step == 0 and shown[-1] - x >= max(step / 2, (xs[-1] - xs[0]) / most):
            shown.append(x)
    return shown[::-1]


def _draw_baselines(results: "ProbeResults", ax: Axes) -> None:
    named = sorted((baseline.metrics["test"]["accuracy"], baseline.name) for baseline in results.baselines)
    low, high = ax.get_ylim()
    heights = _spread([value for value, _ in named], gap=0.09 * (high - low), low=low, high=high)
    for (value, name), height in zip(named, heights, strict=True):
        ax.axhline(value, color=GREY, linewidth=1.3, linestyle=(0, (1, 1.5)), zorder=1)
        ax.annotate(
            f"{name}\n{value:.3f}",
            (1, height),
            (6, 0),
            xycoords=ax.get_yaxis_transform(),
            textcoords="offset points",
            color=GREY,
            fontsize="small",
            va="center",
            linespacing=1.05,
            **PLAIN,
        )


def _spread(values: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Heights for labels of sorted values: near the values, at least `gap` apart, within the axis."""
    heights = list(values)
    for _ in range(100):  # neighbours that are too near push each other apart, and the ends push back
        for i in range(len(heights) - 1):
            push = max(0.0, gap - (heights[i + 1] - heights[i])) / 2
            heights[i], heights[i + 1] = heights[i] - push, heights[i + 1] + push
        heights = [min(max(height, low + gap / 2), high - gap / 2) for height in heights]
    return heights


def _write_title(results: "ProbeResults", ax: Axes) -> None:
    meta = results.meta
    label, model, task = (_short(meta[key]) for key in ("label", "model", "task"))
    read = f"{printable(meta['point'])}, {where(meta['position'])}; {printable(meta['probe'])} probe"
    n = meta["n"]["test"]
    title, width = f"{label} in {model} on {task}", _width(ax)
    size = 12 * min(1, width * LETTERS_PER_INCH / len(title))
    above = 0 if width > 5 else 15  # a narrow picture has two lines of legend
    ax.set_title(title, loc="left", pad=42 + above, fontsize=size, fontweight="bold", color=INK, **PLAIN)
    ax.annotate(
        f"{read}; {n:,} test examples",
        (0, 1),
        (0, 28 + above),
        xycoords="axes fraction",
        textcoords="offset points",
        color=GREY,
        fontsize="small",
        **PLAIN,
    )
    handles, labels = ax.get_legend_handles_labels()
    order = [labels.index(name) for name in ("test", "95% interval", "validation")] + [len(labels) - 1]
    ax.legend(
        [handles[i] for i in order],
        [labels[i] for i in order],
        loc="lower left",
        bbox_to_anchor=(0, 1),
        borderaxespad=0.6,
        borderpad=0,
        ncols=2 if above else 4,
        frameon=False,
        fontsize="small",
        handlelength=1.8,
        columnspacing=1.4,
    )


def _width(ax: Axes) -> float:
    """Of the axes, in inches."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    return ax.get_window_extent().width / figure.dpi


def _short(name: object) -> str:
    text = printable(name)
    half = NAME_LENGTH // 2 - 1  # and an ellipsis
    return text if len(text) <= NAME_LENGTH else f"{text[:half]}…{text[-half:]}"
