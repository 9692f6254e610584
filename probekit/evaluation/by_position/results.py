"""`PositionResults`: what `train_probes` returns with `by`, with its table, picture and files."""

from pathlib import Path
from typing import TYPE_CHECKING, Self

from probekit import registries
from probekit.errors import ProbekitError, UsageError
from probekit.evaluation.by_position.data import PositionCurve, PositionData, noun_of
from probekit.evaluation.by_position.files import load_positions, position_rows, save_positions
from probekit.evaluation.by_position.report import positions_html, positions_short_text, positions_summary
from probekit.options.check import check_path
from probekit.options.probe import BY_POSITION
from probekit.results.table import results_table
from probekit.text import listed

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


class UnknownPosition(UsageError, KeyError):
    """No such position or head; a KeyError too, as a mapping raises."""

    __str__ = ProbekitError.__str__


class PositionResults(PositionData):
    """A curve for each place in the text, as `train_probes(by=...)` returns it; attributes as in `PositionData`."""

    _noun = BY_POSITION  # of the files

    def __getitem__(self, position: str | int) -> PositionCurve:
        """The curve of one position: results[3], results[-1], results["last@assistant"].

        Raises:
            UnknownPosition: it was not probed.
        """
        for one in self.positions:
            if one.position == str(position):
                return one
        known = listed([one.position for one in self.positions])
        raise UnknownPosition(f"{noun_of(self)} {position!a} was not probed; there are {known}")

    def to_frame(self) -> "pd.DataFrame":
        """A tidy table: one row per position or head, layer, split and metric.

        The columns are `probekit.results.table.COLUMNS`; `at` is the position or the head. `chance`, `p_value` and
        `p_corrected` are of the headline on test.
        """
        return results_table(position_rows(self))

    def plot(self, ax: "Axes | None" = None, *, title: str | None = None, width: float | None = None) -> "Axes":
        """Draw layers against positions or heads as a heatmap, on `ax` or on a new figure; returns the axes.

        Args:
            ax: where to draw.
            title: of the picture, as plain text; "" for none.  [default: what was probed, in which model]
            width: of a new figure, in inches; 3.25 is a column of a paper.  [default: the picture's own]
        """
        return registries.METHODS["plot_positions"](self, ax, title=title, width=width)

    def summary(self) -> str:
        """A table with one line for each position or head, with footnotes."""
        return positions_summary(self)

    def save(self, folder: str | Path) -> Path:
        """Write results.csv, probes/ and, last, positions.json or heads.json into `folder`; returns the folder.

        The probes are those of the layer that validation selects at each position or for each head. Earlier results
        there, pictures included, are deleted first.

        Raises:
            StorageError: the disk refused, or the folder holds something else.
        """
        folder = check_path("folder", folder)
        save_positions(self, folder)
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what `save` wrote to `folder`.

        Raises:
            DataError: no such results there, or files that do not belong together.
        """
        data = load_positions(check_path("folder", folder), cls._noun)
        return cls(data.positions, data.meta)

    def _repr_html_(self) -> str:
        return positions_html(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({positions_short_text(self)})"
