"""The scores of new texts below those of the test rows by class, with the threshold and the unusual texts."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from probekit.charts.palette import BLUE, GREY, INK, RED, short
from probekit.errors import DataError, UsageError
from probekit.evaluation.results.data import ProbeData
from probekit.options.option import keywords
from probekit.options.picture import PictureOptions
from probekit.plots.style import PLAIN, SMALL, above, is_column, new_figure, shown_figure, write_figure, write_headings
from probekit.scoring.rows import ScoreRows
from probekit.text import counted

SIZE = (7.0, 3.6)  # inches
BINS = 40
_SHARE = 0.22  # of the height, for the new texts
_CLIP = 0.001  # of the test rows on either side that may lie outside the picture


def check_scores_picture(results: ProbeData, place: str) -> None:
    """Check that the scores of a place can be drawn.

    Raises:
        DataError: results of older versions, which hold no scores of test rows.
        UsageError: three classes or more, or several numbers, which have no single score.
    """
    if results.rows is None or place not in results.rows.scores:
        raise DataError(f"these results hold no scores of test rows at {place} to draw; train again")
    if results.rows.scores[place].ndim != 1:
        raise UsageError("a picture of scores (--picture) is for two classes or one number; leave it out")


def plot_scores(
    results: ProbeData,
    scores: ScoreRows,
    ax: Axes | None = None,
    *,
    title: str | None = None,
    width: float | None = None,
) -> Axes:
    """Draw the scores of new texts with those of the test rows of the results.

    Args:
        results: that hold the probe.
        scores: what it gave for the new texts.
        ax: where to draw; None makes a new pyplot figure, which a notebook shows.
        title: as plain text; "" for none.  [default: the label]
        width: of a new figure, in inches; 3.25 is a column of a paper.  [default: 7]

    Raises:
        As `check_scores_picture`.
    """
    place = scores.meta["place"]
    check_scores_picture(results, place)
    if ax is None:
        with shown_figure(SIZE, width) as figure:
            return plot_scores(results, scores, figure.subplots(), title=title)
    assert results.rows is not None
    tested = results.rows.splits == "test"
    known, labels = results.rows.scores[place][tested], results.rows.labels[tested]
    low, high = _range(known, scores.scores)
    edges = np.linspace(low, high, BINS + 1)
    top = 0.0
    for k, own, name, color in _parts(known, labels, scores.meta["classes"]):
        share = np.histogram(own, edges)[0] / max(1, len(own))
        top = max(top, float(share.max()))
        ax.stairs(share, edges, fill=True, color=color, alpha=0.45 - 0.1 * k)
        ax.stairs(share, edges, color=color, linewidth=1.2, label=f"{short(name)} ({len(own):,} test rows)")
    ax.set_xlim(low, high)
    ax.set_ylim(-_SHARE * top / (1 - _SHARE), 1.08 * top)
    _draw_new(ax, scores, top)
    threshold = scores.meta["threshold"]
    if threshold is not None:
        ax.axvline(threshold["value"], color=INK, linewidth=1, linestyle=(0, (4, 2)), label="threshold")
    _finish(ax, scores)
    line = _says(scores)
    write_headings(ax, f"Scores of {short(scores.meta['label'])}" if title is None else title, [line], start=7)
    return ax


@keywords(PictureOptions)
def save_scores_plot(results: ProbeData, scores: ScoreRows, path: str | Path, options: PictureOptions) -> Path:
    """Write the picture as PNG and SVG, the same bytes for the same scores; returns the first path.

    Args:
        results: that hold the probe.
        scores: what it gave for the new texts.
        path: of the picture; the ending .svg or .pdf writes that alone.
        options: as keyword arguments.

    Raises:
        StorageError: the disk refused.
    """
    with new_figure(SIZE, options.width) as figure:
        plot_scores(results, scores, figure.subplots(), title=options.heading)
        return write_figure(figure, Path(path), options.formats)


def _range(known: np.ndarray, new: np.ndarray) -> tuple[float, float]:
    """The range of the scores, without the farthest test rows; every new text is in it."""
    low, high = np.quantile(known, [_CLIP, 1 - _CLIP])
    low, high = min(low, new.min()), max(high, new.max())
    room = 0.03 * (high - low) or 1.0
    return float(low - room), float(high + room)


def _parts(known: np.ndarray, labels: np.ndarray, classes: list[str]) -> list[tuple[int, np.ndarray, str, str]]:
    """The test rows of each class, with its number, name and colour; of a regression all of them."""
    if not classes:
        return [(0, known, "predicted", BLUE)]
    return [
        (k, known[labels == k], name, color) for k, (name, color) in enumerate(zip(classes, (BLUE, RED), strict=True))
    ]


def _draw_new(ax: Axes, scores: ScoreRows, top: float) -> None:
    """A mark for each new row, below the histograms; spread by their order, so that equal scores show."""
    n = len(scores.scores)
    unusual = np.zeros(n, dtype=bool) if scores.unusual is None else scores.unusual
    rows = -top * _SHARE / (1 - _SHARE) * (0.15 + 0.7 * ((np.arange(n) * 0.618034) % 1 if n > 1 else np.full(n, 0.5)))
    size = 22 if n <= 100 else 8
    unit = "token" if scores.token_index is not None else "text"
    ax.scatter(scores.scores[~unusual], rows[~unusual], s=size, color=INK, linewidths=0, label=f"new {unit}s", zorder=3)
    if unusual.any():
        ax.scatter(
            scores.scores[unusual],
            rows[unusual],
            s=size + 8,
            facecolors="none",
            edgecolors=INK,
            marker="D",
            linewidths=0.9,
            label="unusual: far from the training activations",
            zorder=3,
        )
    ax.axhline(0, color=GREY, linewidth=0.6)


def _finish(ax: Axes, scores: ScoreRows) -> None:
    meta = scores.meta
    ax.set_yticks([])
    ax.set_xlabel("score" if meta["classes"] else "predicted number")
    ax.set_ylabel("share of test rows")
    ax.spines[["top", "right", "left"]].set_visible(False)
    where = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "bbox_transform": above(ax, -34)}
    legend = ax.legend(fontsize=SMALL, frameon=False, ncols=1 if is_column(ax) else 2, **where)
    for text in legend.get_texts():
        text.set(**PLAIN)


def _says(scores: ScoreRows) -> str:
    unit = "token" if scores.token_index is not None else "text"
    far = "" if scores.unusual is None else f", {int(scores.unusual.sum()):,} unusual"
    return f"{short(scores.meta['model'])} at {scores.meta['place']}; {counted(len(scores.ids), f'new {unit}')}{far}"
