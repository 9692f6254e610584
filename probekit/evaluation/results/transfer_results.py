"""`TransferResults`: what `transfer` returns, with its matrix, picture and files."""

from pathlib import Path
from typing import TYPE_CHECKING, Self

from probekit import registries
from probekit.evaluation.results.data import TransferData
from probekit.evaluation.results.files import load_transfer, save_transfer
from probekit.evaluation.results.rows import transfer_rows
from probekit.evaluation.results.transfer_report import transfer_html, transfer_summary
from probekit.options.check import check_path
from probekit.results.table import results_table
from probekit.text import counted

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


class TransferResults(TransferData):
    """Scores for every pair of tasks, as `transfer` returns them; its attributes are those of `TransferData`."""

    def to_frame(self) -> "pd.DataFrame":
        """A tidy table with `probekit.results.table.COLUMNS`: one row per train task, test task, layer and metric."""
        return results_table(transfer_rows(self))

    def plot(self, ax: "Axes | None" = None, *, title: str | None = None, width: float | None = None) -> "Axes":
        """Draw the matrix, on `ax` or on a new figure; returns the axes.

        Args:
            ax: where to draw.
            title: of the picture, as plain text; "" for none.  [default: the model]
            width: of a new figure, in inches; 3.25 is a column of a paper.  [default: the picture's own]
        """
        return registries.METHODS["plot_transfer"](self, ax, title=title, width=width)

    def summary(self) -> str:
        """The matrix as a plain table, with footnotes."""
        return transfer_summary(self)

    def save(self, folder: str | Path) -> Path:
        """Write results.csv and, last, transfer.json into `folder`; returns the folder.

        Earlier results of transfer there, pictures included, are deleted first.

        Raises:
            StorageError: the disk refused, or the folder holds something else.
        """
        folder = check_path("folder", folder)
        save_transfer(self, folder)
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what `save` wrote to `folder`.

        Raises:
            DataError: no such results there, or incomplete ones.
        """
        data = load_transfer(check_path("folder", folder))
        return cls(data.cells, data.meta)

    def _repr_html_(self) -> str:
        return transfer_html(self)

    def __repr__(self) -> str:
        places = len(self.cells) // (len(self.tasks) * len(self.rows))
        return f"TransferResults({counted(len(self.tasks), 'task')}, {counted(places, 'layer')})"
