"""`ProbeCurves`: what `train_probes` returns for several points, label sets and probes: table, picture and files."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from probekit import registries
from probekit.evaluation.results.curves_report import curves_html, curves_summary
from probekit.evaluation.results.files import load_results, save_results
from probekit.evaluation.results.results import ProbeResults
from probekit.evaluation.results.rows import curves_rows
from probekit.evaluation.results.several import SeveralResults, load_several, save_several
from probekit.probes.in_results import results_folder
from probekit.results.table import results_table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class ProbeCurves(SeveralResults[ProbeResults]):
    """The curves of several points, label sets and probes: (label, point) -> `ProbeResults`.

    With `within` the keys are (label, point, value), and with several probes for each of these the probe is last.

    Args:
        curves: label set by label set, in each point by point, then probe by probe.
        meta: JSON-able, of all curves together; each curve has a `meta` of its own.

    Attributes:
        meta: as given.
    """

    def to_frame(self) -> "pd.DataFrame":
        """The tidy tables of all curves as one; rows that several share, such as the majority class, are there once."""
        return results_table(curves_rows(list(self.values())))

    def plot(self, *, title: str | None = None, width: float | None = None) -> "Figure":
        """Draw the curves on a new figure, those that can be compared on the same axes; returns the figure.

        Curves of one label set share axes, and so do label sets with the same metric where there is one point. With
        several probes and points there is a row of axes for each label set, and in it axes for each point.

        Args:
            title: over all panels, or of the only one, as plain text; "" for none.
            width: in inches; 3.25 is a column of a paper.  [default: the picture's own]
        """
        return registries.METHODS["plot_curves"](list(self.values()), title=title, width=width)

    def export(self, **options: Any) -> Path:
        """Write one table of all curves (to="latex", "csv" or "parquet"); returns the path."""
        return registries.METHODS["export_results"]([*self.values()], None, **options)

    def summary(self) -> str:
        """A table with one line for each curve."""
        return curves_summary(list(self.values()))

    def save(self, folder: str | Path) -> Path:
        """Write a folder for each curve, results.csv with all of them and, last, curves.json; returns the folder.

        Earlier curves there are deleted first.

        Raises:
            StorageError: the disk refused, or the folder holds something else.
        """
        curves = list(self.values())
        save_several("curves", curves, self.meta, curves_rows(curves), Path(folder), save_results)
        return Path(folder)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what `save` wrote to `folder`, here or at hf://owner/name.

        Raises:
            DataError: no curves there, or files that do not belong together.
        """
        curves, meta = load_several("curves", results_folder(folder), load_results)
        return cls((ProbeResults(**vars(each)) for each in curves), meta)

    def _repr_html_(self) -> str:
        return curves_html(list(self.values()))
