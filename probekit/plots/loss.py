"""The loss of a training run by step, with its running mean, on a log scale.

On a linear scale everything after the first hundredfold drop would be a flat line.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from probekit.charts.palette import BLUE, PALE_BLUE, short
from probekit.options.option import keywords
from probekit.options.picture import PictureOptions
from probekit.plots.style import new_figure, shown_figure, write_figure, write_headings

SIZE = (7.0, 4.0)  # inches
SPAN = 50  # the running mean takes a fiftieth of all steps on either side
LAST = 100  # steps that the mean in the heading covers, as in `TrainingResult.mean_loss`


def plot_loss(
    losses: Sequence[float],
    name: str,
    ax: Axes | None = None,
    *,
    title: str | None = None,
    width: float | None = None,
) -> Axes:
    """Draw the loss of each step, and the mean of the steps around each.

    Args:
        losses: one per step, in nats; values that are not above 0 are left out.
        name: of the model.
        ax: where to draw; None makes a new pyplot figure, which a notebook shows.
        title: as plain text; "" for none.  [default: the model]
        width: of a new figure, in inches; 3.25 is a column of a paper.  [default: 7]
    """
    if ax is None:
        with shown_figure(SIZE, width) as figure:
            return plot_loss(losses, name, figure.subplots(), title=title)
    steps = np.arange(1, len(losses) + 1)
    means = running_mean(losses)
    ax.plot(steps, losses, color=PALE_BLUE, linewidth=0.7)
    ax.plot(steps, means, color=BLUE, linewidth=1.8)
    ax.set_xlim(0, len(losses) + 1)
    ax.set_yscale("log", nonpositive="mask")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("step")
    ax.set_ylabel("loss (nats)")
    ax.spines[["top", "right"]].set_visible(False)
    last = losses[-LAST:]
    shown = f"each step and the running mean; {np.mean(last):.4f} nats over the last {len(last)} steps"
    own = f"Loss of {short(name)} in training"
    write_headings(ax, own if title is None else title, [shown], start=7)
    return ax


def running_mean(losses: Sequence[float]) -> np.ndarray:
    """The mean of each loss and up to a `SPAN`-th of all losses on either side of it."""
    sums = np.concatenate([[0.0], np.cumsum(losses)])
    at, reach = np.arange(len(losses)), len(losses) // SPAN
    first, end = np.maximum(at - reach, 0), np.minimum(at + reach + 1, len(losses))
    return (sums[end] - sums[first]) / (end - first)


@keywords(PictureOptions)
def save_loss_plot(losses: Sequence[float], name: str, folder: str | Path, options: PictureOptions) -> Path:
    """Write loss.png and .svg into `folder`, the same bytes for the same losses; returns the first path.

    Args:
        losses: as for `plot_loss`.
        name: of the model.
        folder: made if it is not there.
        options: as keyword arguments.

    Raises:
        StorageError: the disk refused.
    """
    with new_figure(SIZE, options.width) as figure:
        plot_loss(losses, name, figure.subplots(), title=options.heading)
        return write_figure(figure, Path(folder) / "loss.png", options.formats)
