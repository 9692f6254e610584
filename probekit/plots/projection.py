"""The test rows of a place along the probe's direction and along what varies most orthogonal to it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection

from probekit.activations.activations import Activations
from probekit.charts.palette import GREY, INK, PALETTE, short
from probekit.evaluation.projection import Projection, project
from probekit.evaluation.results.data import ProbeData
from probekit.evaluation.results.wording import decoding, interval_text, metric_name, position_name
from probekit.options.option import keywords
from probekit.options.picture import PictureOptions
from probekit.plots.style import (
    PLAIN,
    SMALL,
    above,
    inches,
    is_column,
    new_figure,
    shown_figure,
    wrapped,
    write_figure,
    write_headings,
)
from probekit.points import PointSpec
from probekit.text import counted

SIZE = (6.4, 5.6)  # inches
MOST_POINTS = 3000  # more would cover one another
MOST_CLASSES = len(PALETTE)  # with a colour of their own; of more, the last ones share grey
MARGIN, GAP = 0.13, 0.015  # of the axes: the densities, and the space between
MARKERS = "o^sDvP*"  # so that classes differ without their colours, too
COLOURS = "viridis"  # of a regression: readable for colour-blind people, and in grey
OTHERS = "other classes"
OUTER = 0.04  # of the values' range, around the points
NAME = 22  # letters of a class


def plot_projection(
    results: ProbeData,
    acts: Activations,
    place: PointSpec | None = None,
    ax: Axes | None = None,
    *,
    title: str | None = None,
    width: float | None = None,
) -> Axes:
    """Draw the test rows of a place, coloured by their label, with densities at the margins; returns the axes.

    Two classes: x is the distance to the decision boundary, the dashed line. A regression: x is the predicted value.
    y is the first principal component orthogonal to the probe. More classes: two discriminant directions.

    Args:
        results: of one curve, with a linear probe.
        acts: the activations that were probed.
        place: such as "resid_pre.5".  [default: the layer selected on validation]
        ax: where to draw; None makes a new pyplot figure, which a notebook shows.
        title: as plain text; "" for none.  [default: what was probed, in which model]
        width: of a new figure, in inches; 3.25 is a column of a paper.  [default: 6.4]

    Raises:
        UsageError: no such place; a probe that is not linear.
        DataError: other activations than those that were probed.
    """
    found = project(results, acts, place)
    if ax is None:
        with shown_figure(SIZE, width) as figure:
            return plot_projection(results, acts, place, figure.subplots(), title=title)
    _draw(found, results, ax)
    high = 72 * inches(ax)[1] * (MARGIN + 2 * GAP)
    write_headings(ax, _title(results, found) if title is None else title, _lines(results, found), start=high)
    return ax


@keywords(PictureOptions)
def save_projection_plot(results: ProbeData, acts: Activations, folder: str | Path, options: PictureOptions) -> Path:
    """Write projection.png and .svg of the selected layer into `folder`; returns the first path.

    Args:
        results: of one curve, with a linear probe.
        acts: the activations that were probed.
        folder: made if it is not there.
        options: as keyword arguments.

    Raises:
        UsageError: no layer was selected; a probe that is not linear.
        StorageError: the disk refused.
    """
    with new_figure(SIZE, options.width) as figure:
        plot_projection(results, acts, None, figure.subplots(), title=options.heading)
        return write_figure(figure, Path(folder) / "projection.png", options.formats)


def _draw(found: Projection, results: ProbeData, ax: Axes) -> None:
    shown = np.arange(len(found.x))
    if len(shown) > MOST_POINTS:
        shown = np.sort(np.random.default_rng(0).choice(shown, MOST_POINTS, replace=False))
    top = ax.inset_axes((0, 1 + GAP, 1, MARGIN), sharex=ax)
    right = ax.inset_axes((1 + GAP, 0, MARGIN, 1), sharey=ax)
    for margin in (top, right):
        margin.set_axis_off()
    if found.names:
        _draw_classes(found, shown, ax, (top, right))
    else:
        _draw_values(found, shown, ax, (top, right), results.meta["label"])
    if len(found.names) == 2:
        ax.axvline(0, color=INK, linewidth=1, linestyle=(0, (4, 2)), zorder=1)
    _name_axes(found, results, ax)


def _draw_classes(found: Projection, shown: np.ndarray, ax: Axes, margins: tuple[Axes, Axes]) -> None:
    counts = np.bincount(found.labels, minlength=len(found.names))
    n = len(found.names) if len(found.names) <= MOST_CLASSES else MOST_CLASSES - 1
    largest = sorted(np.argsort(-counts, kind="stable")[:n].tolist())
    groups: list[tuple[str, str, str, np.ndarray]] = [
        (short(found.names[k], NAME), PALETTE[i], MARKERS[i], found.labels == k) for i, k in enumerate(largest)
    ]
    if len(found.names) > len(largest):
        groups.append((OTHERS, "#B5B5B5", "x", ~np.isin(found.labels, largest)))
    handles: list[PathCollection] = []
    for name, colour, marker, rows in groups:
        _draw_densities(found, rows, colour, margins, 0.3 if len(groups) <= 3 else 0.0)  # many fills hide each other
        own = shown[rows[shown]]
        look = {"s": 13, "alpha": 0.6, "marker": marker, "linewidths": 1.0 if marker == "x" else 0}
        label = f"{name}, {counted(int(rows.sum()), 'row')}"
        handles.append(ax.scatter(found.x[own], found.y[own], color=colour, label=label, rasterized=True, **look))
    _write_legend(ax, handles)


def _draw_densities(
    found: Projection, rows: np.ndarray, colour: str, margins: tuple[Axes, Axes], opacity: float
) -> None:
    top, right = margins
    for values, every, draw in ((found.x, found.x, top.fill_between), (found.y, found.y, right.fill_betweenx)):
        if (line := _density(values[rows], every)) is not None:
            draw(*line, color=colour, alpha=opacity, linewidth=0)
            edge = line if draw == top.fill_between else line[::-1]
            (top if draw == top.fill_between else right).plot(*edge, color=colour, linewidth=1)


def _density(values: np.ndarray, every: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Where a Gaussian kernel estimate is computed, and the share of all rows there; None for too few values."""
    from scipy.stats import gaussian_kde  # half a second to import, which other pictures need not wait for

    if len(values) < 3 or np.ptp(values) <= 1e-9 * max(1.0, np.abs(values).max()):
        return None
    beyond = OUTER * np.ptp(every)  # as far as the axes go
    at = np.linspace(every.min() - beyond, every.max() + beyond, 200)
    return at, gaussian_kde(values)(at) * len(values) / len(every)


def _draw_values(found: Projection, shown: np.ndarray, ax: Axes, margins: tuple[Axes, Axes], label: str) -> None:
    _draw_densities(found, np.ones(len(found.x), dtype=bool), GREY, margins, 0.3)
    look = {"s": 13, "alpha": 0.8, "linewidths": 0, "cmap": COLOURS, "rasterized": True}
    points = ax.scatter(found.x[shown], found.y[shown], c=found.labels[shown], **look)
    figure = ax.get_figure(root=True)
    assert figure is not None
    bar = figure.colorbar(points, ax=ax, fraction=0.045, pad=0.02)
    bar.set_label(short(label), fontsize=SMALL, **PLAIN)
    bar.solids.set_alpha(1)  # pyright: ignore[reportOptionalMemberAccess]
    bar.ax.tick_params(labelsize=SMALL, length=2)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]


def _write_legend(ax: Axes, handles: Sequence[PathCollection]) -> None:
    names = [str(each.get_label()) for each in handles]
    where = {"loc": "upper left", "bbox_to_anchor": (0, 0), "bbox_transform": above(ax, -46), "borderaxespad": 0}
    look = {"frameon": False, "fontsize": SMALL, "handletextpad": 0.3, "columnspacing": 1.2}
    legend = ax.legend(handles, names, ncols=1 if is_column(ax) else 2, **where, **look)
    for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
        text.set_parse_math(False)
        assert handle is not None
        handle.set_alpha(1)


def _name_axes(found: Projection, results: ProbeData, ax: Axes) -> None:
    probe, (x, y) = short(results.meta["probe"]), (f"{share:.1%} of the variance" for share in found.shares)
    if not found.names:
        names = f"value predicted by the {probe} probe ({x})", f"first component orthogonal to the probe ({y})"
    elif len(found.names) == 2:
        names = f"distance to the boundary of the {probe} probe ({x})", f"first component orthogonal to the probe ({y})"
    else:
        names = f"first discriminant of the {probe} probe ({x})", f"second discriminant ({y})"
    x, y = ("\n".join(wrapped(name, 72 * side)) for name, side in zip(names, inches(ax), strict=True))
    ax.set_xlabel(x, fontsize=SMALL, **PLAIN)
    ax.set_ylabel(y, fontsize=SMALL, **PLAIN)
    ax.tick_params(labelsize=SMALL, length=2)
    ax.spines[["top", "right"]].set_visible(False)
    ax.margins(OUTER)


def _title(results: ProbeData, found: Projection) -> str:
    meta = results.meta
    return f"{decoding({key: short(meta[key]) for key in ('label', 'model', 'task')})}: {found.place}"


def _lines(results: ProbeData, found: Projection) -> list[str]:
    n = f"{len(found.x):,} test rows"
    if len(found.x) > MOST_POINTS:
        n += f", {MOST_POINTS:,} of them drawn"
    layer = next(layer for layer in results.layers if layer.place == found.place)
    lines = [f"{n}; {position_name(results.meta['position'])}"]
    if results.procedure is None:
        value, ends = layer.metrics["test"].get(results.headline), layer.intervals.get(results.headline)
        if value is not None:
            within = f", 95% interval {interval_text(ends)}" if ends else ""
            lines.append(f"test {metric_name(results.headline)} {value:.3f}{within}")
    if len(found.names) == 2:
        lines[-1] += f"; right of the dashed line: predicted {short(found.names[1], NAME)}"
    return lines
