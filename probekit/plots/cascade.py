"""The picture of a cascade: what each budget gains, and what it costs."""

from pathlib import Path

from matplotlib.axes import Axes

from probekit.black_box.cascade import CascadeResults
from probekit.charts.cascade import cascade_chart
from probekit.options.option import keywords
from probekit.options.picture import PictureOptions
from probekit.plots.lines import draw_chart
from probekit.plots.style import new_figure, shown_figure, write_figure

SIZE = (7.0, 4.2)  # inches


def plot_cascade(
    results: CascadeResults, ax: Axes | None = None, *, title: str | None = None, width: float | None = None
) -> Axes:
    """Draw a cascade against the cost of a row; returns the axes.

    Args:
        results: from `cascade`.
        ax: where to draw; None makes a new pyplot figure, which a notebook shows.
        title: as plain text; "" for none.  [default: both scorers]
        width: of a new figure, in inches; 3.25 is a column of a paper.  [default: 7]
    """
    if ax is None:
        with shown_figure(SIZE, width) as figure:
            return plot_cascade(results, figure.subplots(), title=title)
    draw_chart(cascade_chart(results), ax, title)
    return ax


@keywords(PictureOptions)
def save_cascade_plot(results: CascadeResults, folder: str | Path, options: PictureOptions) -> Path:
    """Write cascade.png and .svg into `folder`, the same bytes for the same results; returns the first path.

    Args:
        results: from `cascade`.
        folder: made if it is not there.
        options: as keyword arguments.

    Raises:
        StorageError: the disk refused.
    """
    with new_figure(SIZE, options.width) as figure:
        plot_cascade(results, figure.subplots(), title=options.heading)
        return write_figure(figure, Path(folder) / "cascade.png", options.formats)
