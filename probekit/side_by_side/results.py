"""`Comparison`: what `compare` returns, with its table, picture and files."""

from pathlib import Path
from typing import TYPE_CHECKING, Self

from probekit import registries
from probekit.options.check import check_path
from probekit.results.table import results_table
from probekit.side_by_side.data import ComparisonData
from probekit.side_by_side.files import load_comparison, save_comparison
from probekit.side_by_side.report import comparison_html, comparison_summary
from probekit.side_by_side.table import comparison_rows
from probekit.text import counted

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class Comparison(ComparisonData):
    """Runs side by side, as `compare` returns them; its attributes are those of `ComparisonData`."""

    def to_frame(self) -> "pd.DataFrame":
        """The tidy table, with `probekit.results.table.COLUMNS`.

        Rows of the kind "run" are the quoted scores, "probe" the complete curves, and "difference" a run's score minus
        that of the run in `name`, on the rows in common (`n`) where they are paired (`note`).
        """
        return results_table(comparison_rows(self))

    def plot(self, *, title: str | None = None, width: float | None = None) -> "Figure":
        """Draw the curves with the differences under them, or layers against steps, on a new figure; returns it.

        Args:
            title: as plain text; "" for none.  [default: what the runs share]
            width: in inches; 3.25 is a column of a paper.  [default: the picture's own]
        """
        return registries.METHODS["plot_comparison"](self, title=title, width=width)

    def summary(self) -> str:
        """One table with a line for each run, and how the differences were made."""
        return comparison_summary(self)

    def save(self, folder: str | Path) -> Path:
        """Write results.csv and, last, comparison.json into `folder`; returns it.

        An earlier comparison there, pictures included, is deleted first.

        Raises:
            StorageError: the disk refused, or the folder holds something else.
        """
        folder = check_path("folder", folder)
        save_comparison(self, folder)
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what `save` wrote to `folder`.

        Raises:
            DataError: no comparison there, or an incomplete one.
        """
        data = load_comparison(check_path("folder", folder))
        return cls(data.runs, data.differences, data.groups, data.meta)

    def _repr_html_(self) -> str:
        return comparison_html(self)

    def __repr__(self) -> str:
        return f"Comparison({counted(len(self.runs), 'run')}, {counted(len(self.differences), 'difference')})"
