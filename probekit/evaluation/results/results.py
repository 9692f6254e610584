"""`ProbeResults`: what `train_probes` returns, with its table, picture and files."""

from pathlib import Path
from typing import TYPE_CHECKING, Self

from probekit.evaluation.results.data import ProbeData
from probekit.evaluation.results.files import complete_results, load_results, save_results
from probekit.evaluation.results.frames import probe_frame
from probekit.evaluation.results.report import short_text, summary, summary_html
from probekit.options.check import check_path

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from probekit.activations.activations import Activations
    from probekit.points import PointSpec


class ProbeResults(ProbeData):
    """The curve that `train_probes` returns; its attributes are those of `ProbeData`."""

    def to_frame(self) -> "pd.DataFrame":
        """A tidy table: one row per probe, baseline, control task or random-weights probe, split and metric.

        `low` and `high` are the interval on test; `band_low` and `band_high` the band of the headline.
        """
        return probe_frame(self)

    def plot(
        self,
        ax: "Axes | None" = None,
        *,
        label: str | None = None,
        color: str | None = None,
        title: str | None = None,
    ) -> "Axes":
        """Draw the headline by layer, on `ax` or on a new figure; returns the axes.

        Several results can be drawn on one axes: `ax = first.plot()`, then `second.plot(ax)`.

        Args:
            ax: where to draw; other results on it are kept.
            label: the curve's name in the legend.  [default: what it differs in from the other curves]
            color: of the curve, as matplotlib has it.  [default: the next that is free]
            title: of the picture, as plain text; "" for none.  [default: label, model and task]

        Raises:
            UsageError: the axes hold results of another metric; an unknown color.
        """
        from probekit.plots.curve import plot_accuracy_by_layer

        return plot_accuracy_by_layer(self, ax, label=label, color=color, title=title)

    def plot_projection(
        self,
        acts: "Activations",
        place: "PointSpec | None" = None,
        ax: "Axes | None" = None,
        *,
        title: str | None = None,
    ) -> "Axes":
        """Draw the test rows along the probe and the first principal component orthogonal to it; returns the axes.

        Args:
            acts: the activations that were probed.
            place: such as "resid_pre.5".  [default: the layer selected on validation]
            ax: where to draw.
            title: of the picture, as plain text.  [default: label, model, task and place]

        Raises:
            UsageError: no such place; a probe that is not linear.
            DataError: other activations than those that were probed.
        """
        from probekit.plots.projection import plot_projection

        return plot_projection(self, acts, place, ax, title=title)

    def summary(self) -> str:
        """The results as a plain table, with at most six footnotes."""
        return summary(self)

    def save(self, folder: str | Path) -> Path:
        """Write results.csv, predictions.parquet, probes/ and, last, results.json into `folder`; returns the folder.

        Earlier results there, pictures included, are deleted first, so that all files are of one run.

        Raises:
            StorageError: the disk refused, or the folder holds something else.
        """
        folder = check_path("folder", folder)
        save_results(self, folder)
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what `save` wrote to `folder`, with every number and every probe.

        Raises:
            DataError: no results there, or files that do not belong together.
        """
        path = check_path("folder", folder)
        data = load_results(path)
        loaded = cls(data.layers, data.baselines, data.meta, data.random_init, data.pooled, data.rows)
        with complete_results(path):
            loaded.summary()  # reads everything that the record holds
        return loaded

    def _repr_html_(self) -> str:
        return summary_html(self)

    def __repr__(self) -> str:
        return f"ProbeResults({short_text(self)})"
