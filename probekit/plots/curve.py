"""The curve: test score by layer with its confidence band, the selected layer, baselines and control task."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from probekit.evaluation.results.data import LayerResult, ProbeData, is_output
from probekit.evaluation.results.wording import metric_name, position_name
from probekit.plots.margin import MarginLabel, draw_margin
from probekit.plots.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    LINE,
    NAME_LENGTH,
    PALE_BLUE,
    PLAIN,
    RED,
    above,
    inches,
    new_figure,
    short,
    write_figure,
    write_headings,
)
from probekit.text import printable

SIZE = (8.0, 4.8)  # inches
PANEL = 1.0  # inches that the lower panel adds
PLACES = {
    "resid_pre": "input of block i",
    "resid_mid": "after the attention of block i",
    "resid_post": "before the last norm of block i",  # unless it is the output, in models without such a norm
}
NARROW = 5.0  # inches; narrower axes have shorter names, a legend of two lines, and no values in the margin
BOUNDS = {
    "r2": (-0.25, 1.0),
    "spearman": (-1.0, 1.0),
}  # of the y axis; an R2 may be far below 0
TIMES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000)  # ticks of the compression
TIED, TIED_SHORT = "statistically tied with the best", "tied with the best"  # the latter on narrow axes
_SMALLEST_SPAN = 0.3  # of the y axis, so that noise never fills the picture
_RULE = 0.4  # layers to either side that the rule of the tied layers covers


def plot_accuracy_by_layer(results: ProbeData, ax: Axes | None = None) -> Axes:
    """Draw the headline on test by layer, its band, the selected layer, the layers tied with the best, and baselines.

    Args:
        results: from `train_probes`.
        ax: where to draw; None makes a new pyplot figure, which a notebook shows, with the compression under the curve.
    """
    lower = None
    if ax is None:
        from matplotlib import pyplot as plt

        ax, lower = _axes(plt.figure(figsize=_size(results), layout="constrained"), results)
    _draw(results, ax, lower)
    return ax


def save_plot(results: ProbeData, folder: str | Path) -> Path:
    """Write accuracy_by_layer.png and .svg into `folder`, the same bytes for the same results; returns the PNG's path.

    Raises:
        StorageError: the disk refused.
    """
    with new_figure(_size(results)) as figure:
        _draw(results, *_axes(figure, results))
        return write_figure(figure, Path(folder) / "accuracy_by_layer.png")


def _has_panel(results: ProbeData) -> bool:
    return len(results.layers) > 1 and all(layer.codelength for layer in results.layers)


def _size(results: ProbeData) -> tuple[float, float]:
    return SIZE[0], SIZE[1] + (PANEL if _has_panel(results) else 0)


def _axes(figure: Figure, results: ProbeData) -> tuple[Axes, Axes | None]:
    """The axes of the curve, and those of the compression where there is one."""
    if not _has_panel(results):
        return figure.subplots(), None
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3.6, 1])
    return upper, lower


def _draw(results: ProbeData, ax: Axes, lower: Axes | None) -> None:
    xs = [_x(results, layer) for layer in results.layers]
    ax.set_ylim(*_y_limits(results))
    _draw_curve(results, ax, xs)
    _draw_comparisons(results, ax)
    draw_margin(ax, _margin(results), values=not _is_narrow(ax))
    _draw_best_set(results, ax, xs)
    _draw_chosen(results, ax)
    _fit_axes(results, ax, xs, lower)
    _write_above(results, ax)
    if lower is not None:
        _draw_codelength(results, lower, xs)
        lower.figure.align_ylabels([ax, lower])  # pyright: ignore[reportAttributeAccessIssue]


def _is_narrow(ax: Axes) -> bool:
    return inches(ax)[0] < NARROW


def _x(results: ProbeData, layer: LayerResult) -> int:
    if is_output(results, layer):
        return int(results.meta["n_layers"])
    return layer.layer or 0


def _test(results: ProbeData, layer: LayerResult) -> float:
    return layer.metrics["test"][results.headline]


def _bands(results: ProbeData) -> tuple[list[tuple[float, float]], str]:
    """(low, high) of each layer, and their name; without an interval, both ends are the value."""
    if len(results.layers) > 1 and all(layer.band is not None for layer in results.layers):
        return [layer.band for layer in results.layers if layer.band], "95% simultaneous band"
    values = [(_test(results, layer), _test(results, layer)) for layer in results.layers]
    ends = [x.intervals.get(results.headline, v) for x, v in zip(results.layers, values, strict=True)]
    return ends, "95% pointwise interval" if len(results.layers) > 1 else "95% interval"


def _draw_curve(results: ProbeData, ax: Axes, xs: Sequence[int]) -> None:
    bands, name = _bands(results)
    low, high = zip(*bands, strict=True)
    if len(xs) == 1:  # a band has no width here
        ax.vlines(xs, low, high, color=BLUE, alpha=0.35, linewidth=6, label=name)
    else:
        ax.fill_between(xs, low, high, color=BLUE, alpha=0.16, linewidth=0, label=name)
    validation = [layer.metrics["validation"][results.headline] for layer in results.layers]
    mark = {"marker": "_", "markersize": 18} if len(xs) == 1 else {}
    ax.plot(xs, validation, color=PALE_BLUE, linestyle=(0, (4, 2)), linewidth=1, label="validation", **mark)
    small = 4.5 if len(xs) <= 30 else 3
    test = [_test(results, layer) for layer in results.layers]
    ax.plot(xs, test, color=BLUE, linewidth=2, marker="o", markersize=small, label="test", zorder=4)


def _draw_comparisons(results: ProbeData, ax: Axes) -> None:
    """The curves of the control task and of random weights; their names are in the margin."""
    for xs, values, how in _comparisons(results):
        mark = "D" if len(xs) == 1 else ""
        ax.plot(xs, values, marker=mark, markersize=5, zorder=3, **how)


def _comparisons(results: ProbeData) -> list[tuple[list[int], list[float], dict[str, Any]]]:
    """(xs, values, how to draw them) of the control task and of random weights, where there are any."""
    control = [(_x(results, layer), layer.control) for layer in results.layers if layer.control is not None]
    random = [(_x(results, layer), _test(results, layer)) for layer in results.random_init]
    looks: list[tuple[list[tuple[int, float]], dict[str, Any]]] = [
        (control, {"label": "control task", "color": GREY, "linewidth": 1.2, "linestyle": (0, (5, 2.5))}),
        (random, {"label": "random init", "color": GREEN, "linewidth": 1.2, "linestyle": "-"}),
    ]
    return [([x for x, _ in points], [y for _, y in points], how) for points, how in looks if points]


def _margin(results: ProbeData) -> list[MarginLabel]:
    """Names in the right margin: a line for each baseline, and the ends of the other curves."""
    name = results.headline
    lines = [(b.metrics["test"].get(name), b.name) for b in results.baselines]
    labels = [MarginLabel(value, short(text, 16), GREY, is_line=True) for value, text in lines if value is not None]
    ends = [MarginLabel(values[-1], how["label"], how["color"]) for _, values, how in _comparisons(results)]
    return labels + ends


def _draw_best_set(results: ProbeData, ax: Axes, xs: Sequence[int]) -> None:
    """A thin rule on the x axis under every layer that is statistically tied with the best."""
    inside = [x for x, layer in zip(xs, results.layers, strict=True) if layer.in_best_set]
    if len(xs) == 1:
        return
    name = TIED_SHORT if _is_narrow(ax) else TIED
    for i, (first, last) in enumerate(_runs(inside)):
        ax.plot(
            [first - _RULE, last + _RULE],
            [0.011, 0.011],
            transform=ax.get_xaxis_transform(),
            color=BLUE,
            linewidth=4,
            solid_capstyle="butt",
            label="" if i else name,
        )


def _runs(xs: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive layers: [0, 1, 2, 5] -> [(0, 2), (5, 5)]."""
    runs: list[tuple[int, int]] = []
    for x in xs:
        if runs and runs[-1][1] == x - 1:
            runs[-1] = (runs[-1][0], x)
        else:
            runs.append((x, x))
    return runs


def _draw_chosen(results: ProbeData, ax: Axes) -> None:
    """A ring around the layer selected on validation; with nested folds, a line for the complete procedure."""
    if results.procedure is not None:
        value, ends = results.estimate
        within = "" if ends is None else f" [{ends[0]:z.3f}, {ends[1]:z.3f}]"
        name = f"nested cross-validation: {metric_name(results.headline)} {value:z.3f}{within}"
        ax.axhline(value, color=RED, linewidth=1.4, linestyle=(0, (6, 2, 1, 2)), label=name, zorder=5)
        return
    best = results.best
    value = _test(results, best)
    name = "output" if is_output(results, best) else best.point if best.layer is None else f"layer {best.layer}"
    low, high = best.intervals.get(results.headline, (value, value))
    on, what = ("", "") if _is_narrow(ax) else (" on validation", f"test {metric_name(results.headline)} ")
    score = f"{name}, {what}{value:z.3f} [{low:z.3f}, {high:z.3f}]"
    ax.plot(
        [_x(results, best)],
        [value],
        linestyle="none",
        marker="o",
        markersize=10,
        markerfacecolor="none",
        markeredgecolor=RED,
        markeredgewidth=1.8,
        label=f"{f'selected{on}: ' if len(results.layers) > 1 else ''}{score}",
        zorder=5,
        clip_on=False,
    )


def _fit_axes(results: ProbeData, ax: Axes, xs: Sequence[int], lower: Axes | None) -> None:
    ax.set_ylabel({"r2": "R²"}.get(results.headline, metric_name(results.headline)))
    (lower or ax).set_xlabel(_x_label(results), **PLAIN)
    margin = max(0.5, 0.02 * (xs[-1] - xs[0]))
    ax.set_xlim(xs[0] - margin, xs[-1] + margin)
    names = {x: _tick(results, layer) for x, layer in zip(xs, results.layers, strict=True)}
    shown = _shown_ticks(xs, 12 if _is_narrow(ax) else 30)
    ax.set_xticks(shown, [names[x] for x in shown], fontsize="small" if len(shown) > 16 else "medium")
    ax.set_xticks(xs, minor=True)
    for axes in (ax, lower):
        if axes is not None:
            axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)


def _y_limits(results: ProbeData) -> tuple[float, float]:
    name = results.headline
    values = [x.metrics[split][name] for x in results.layers for split in ("validation", "test")]
    values += [end for ends in _bands(results)[0] for end in ends]
    values += [] if results.procedure is None else [results.estimate[0]]
    values += [label.value for label in _margin(results)]
    values += [y for _, ys, _ in _comparisons(results) for y in ys]
    least, most = BOUNDS.get(name, (0.0, 1.0))
    low, high = max(least, min(values)), min(most, max(values))
    missing = max(0.0, _SMALLEST_SPAN - (high - low))
    high = min(most, high + missing / 2)
    low = max(least, min(low, high - _SMALLEST_SPAN))
    pad = 0.05 * (high - low)
    return low - 1.4 * pad, high + pad  # room for the rule of the tied layers


def _x_label(results: ProbeData) -> str:
    point = results.meta["point"]
    if results.layers[0].layer is None:
        return ""
    stack, _, name = point.rpartition(".")
    is_end = point == results.meta.get("output", "resid_post")
    place = "output of block i" if is_end else PLACES.get(name, f"{name} of block i")
    place += f" of the {stack}" if stack else ""
    return f"layer ({place}; last: output)" if is_output(results, results.layers[-1]) else f"layer ({place})"


def _tick(results: ProbeData, layer: LayerResult) -> str:
    if is_output(results, layer):
        return "out"
    return layer.point if layer.layer is None else str(layer.layer)


def _shown_ticks(xs: Sequence[int], most: int = 30) -> list[int]:
    """The ticks that get a label: all, or every second, fourth or so, and always the last; never too close."""
    step = next(step for step in (1, 2, 4, 10, 20, 50, 10**6) if len(xs) <= most * step and (step != 2 or most < 30))
    shown: list[int] = [xs[-1]]
    for x in reversed(xs[:-1]):
        if x % step == 0 and shown[-1] - x >= max(step / 2, (xs[-1] - xs[0]) / most):
            shown.append(x)
    return shown[::-1]


def _draw_codelength(results: ProbeData, ax: Axes, xs: Sequence[int]) -> None:
    """Compression of the training labels by layer; dotted: from the class frequencies alone."""
    codes = [layer.codelength for layer in results.layers if layer.codelength]
    values = [code["compression"] for code in codes]
    alone = codes[0]["uniform_bits"] / codes[0]["prior_bits"]
    ax.axhline(alone, color=GREY, linewidth=1, linestyle=(0, (1, 1.5)), zorder=1)
    ax.annotate(
        f"class frequencies {alone:.2f}",
        (1, alone),
        (1 + 0.14 / inches(ax)[0], alone),
        xycoords=ax.get_yaxis_transform(),
        textcoords=ax.get_yaxis_transform(),
        color=GREY,
        fontsize="small",
        va="center",
        annotation_clip=False,
    )
    ax.plot(xs, values, color=INK, linewidth=1.4, marker="o", markersize=2.5)
    low, high = min(0.9, *values), max(2.2, *values)
    ax.set_yscale("log")  # compression goes from about 1 to several hundred
    ax.set_ylim(low * 0.95, high * 1.15)
    ticks = [tick for tick in TIMES if tick <= high]
    ticks = ticks if len(ticks) < 5 else [tick for tick in ticks if f"{tick}"[0] == "1"]
    ax.set_yticks(ticks, [f"{tick}\N{MULTIPLICATION SIGN}" for tick in ticks], fontsize="small")
    ax.set_yticks([], minor=True)
    ax.set_ylabel("compression\nof labels", fontsize="small")


def _write_above(results: ProbeData, ax: Axes) -> None:
    """Title, point, position and probe, and the legend, stacked above the axes."""
    meta = results.meta
    is_narrow = _is_narrow(ax)
    most = NAME_LENGTH // 2 if is_narrow else NAME_LENGTH
    label, model, task = (short(meta[key], most) for key in ("label", "model", "task"))
    read = f"{printable(meta['point'])}, {position_name(meta['position'])}; {printable(meta['probe'])} probe"
    rows = _legends(ax, 2 if is_narrow else 4)
    n, folds = f"{meta['n']['test']:,}", meta.get("folds")
    lines = [read, f"{folds} nested folds of {n} examples" if folds else f"{n} test examples"]
    write_headings(
        ax, f"{label} in {model} on {task}", lines if is_narrow else ["; ".join(lines)], start=8 + rows * LINE
    )


def _legends(ax: Axes, columns: int) -> int:
    """The selected layer on its own line, then the other entries; returns the number of lines."""
    handles, labels = ax.get_legend_handles_labels()
    known = dict(zip(labels, handles, strict=True))
    chosen = labels[-1]
    marks = ["test", *(x for x in labels if x.startswith("95%")), "validation", TIED, TIED_SHORT]
    marks = [name for name in marks if name in known]
    rows = -(-len(marks) // columns)
    ax.add_artist(_legend(ax, {chosen: known[chosen]}, 1, 4 + rows * LINE))
    ax.add_artist(_legend(ax, {name: known[name] for name in marks}, columns, 4))
    return rows + 1


def _legend(ax: Axes, entries: dict[str, Artist], columns: int, height: float) -> Legend:
    return Legend(
        ax,
        list(entries.values()),
        list(entries),
        loc="lower left",
        bbox_to_anchor=(0, 1),
        bbox_transform=above(ax, height),
        borderaxespad=0,
        borderpad=0,
        ncols=columns,
        frameon=False,
        fontsize="small",
        handlelength=1.8,
        columnspacing=1.2,
        labelspacing=0.35,
    )
