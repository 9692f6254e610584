"""The loss of a training run, step by step: each step's, and their running mean, on a scale of ratios.

What a model still learns when its loss has fallen a hundredfold shows there, and would be a flat line beside its start.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from probekit.plots.style import BLUE, PALE_BLUE, new_figure, short, write_figure, write_headings

SIZE = (7.0, 4.0)  # inches
SPAN = 50  # of all steps, one in so many stands on either side in the running mean
LAST = 100  # steps that the figure in the heading is the mean of, as in `TrainingResult.mean_loss`


def plot_loss(losses: Sequence[float], name: str, ax: Axes | None = None) -> Axes:
    """Draw the loss of each step, and the mean of the steps around each.

    Args:
        losses: of every step, in nats; what is not above 0 is left out.
        name: of the model.
        ax: where to draw; None makes a new pyplot figure, which a notebook shows.
    """
    if ax is None:
        from matplotlib import pyplot as plt

        _, ax = plt.subplots(figsize=SIZE, layout="constrained")
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
    shown = f"each step's, and the mean around it; {np.mean(last):.4f} nats over the last {len(last)} steps"
    write_headings(ax, f"Loss of {short(name)} in training", [shown], start=7)
    return ax


def running_mean(losses: Sequence[float]) -> np.ndarray:
    """The mean of each loss and of a `SPAN`-th of all on either side of it, or of what there is of these."""
    sums = np.concatenate([[0.0], np.cumsum(losses)])
    at, reach = np.arange(len(losses)), len(losses) // SPAN
    first, behind = np.maximum(at - reach, 0), np.minimum(at + reach + 1, len(losses))
    return (sums[behind] - sums[first]) / (behind - first)


def save_loss_plot(losses: Sequence[float], name: str, folder: str | Path) -> Path:
    """Write loss.png and .svg into `folder`, the same bytes for the same losses; returns the PNG's path.

    Raises:
        StorageError: the disk refused.
    """
    with new_figure(SIZE) as figure:
        plot_loss(losses, name, figure.subplots())
        return write_figure(figure, Path(folder) / "loss.png")
