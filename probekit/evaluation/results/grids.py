"""`ProbeGrids`: what `train_probes` returns for several points, label sets and probes by position, head or value."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from probekit import registries
from probekit.evaluation.by_head.results import HeadResults
from probekit.evaluation.by_position.data import noun_of
from probekit.evaluation.by_position.files import position_rows
from probekit.evaluation.by_position.report import nothing_selected, positions_notes, positions_verdict
from probekit.evaluation.by_position.results import PositionResults
from probekit.evaluation.results.coordinates import coordinates
from probekit.evaluation.results.curves_report import within_notes
from probekit.evaluation.results.data import TransferData
from probekit.evaluation.results.quote import ON_VALIDATION, QUOTE, inside_folds, quote_line, quote_of_each
from probekit.evaluation.results.rows import transfer_rows
from probekit.evaluation.results.several import SeveralResults, load_several, save_several
from probekit.evaluation.results.transfer_report import transfer_notes
from probekit.evaluation.results.transfer_results import TransferResults
from probekit.evaluation.results.wording import interval_text, metric_name, number_text
from probekit.options.check import check_path
from probekit.results.kinds import kind_in
from probekit.results.table import TableRow, results_table
from probekit.tables import html_page, html_table, text_table, without_empty_columns
from probekit.text import counted, printable

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Grid = PositionResults | TransferResults
CLASSES = {"positions": PositionResults, "heads": HeadResults, "transfer": TransferResults}


class ProbeGrids(SeveralResults[Grid]):
    """The grids of several points, label sets and probes: (label, point) -> results.

    They are `PositionResults` or `HeadResults` with `by`, and `TransferResults` with `shift_column`. With `within` the
    keys are (label, point, value), and with several probes for each of these the probe is last.
    """

    _noun = "grid"

    def to_frame(self) -> "pd.DataFrame":
        """The tidy tables of all grids as one."""
        return results_table(self._rows())

    def _rows(self) -> Iterator[TableRow]:
        return (row for grid in self.values() for row in grid_table_rows(grid))

    def plot(self, *, title: str | None = None, width: float | None = None) -> "Figure":
        """Draw the grids under one another on a new figure; returns the figure.

        Args:
            title: over all of them, as plain text.  [default: none; each has its own]
            width: in inches; 3.25 is a column of a paper.  [default: the picture's own]
        """
        return registries.METHODS["plot_grids"](list(self.values()), title=title, width=width)

    def summary(self) -> str:
        """A table with one line for each grid, and their notes; `grids[label, point].summary()` has the tables."""
        rows, grids = grid_rows(list(self.values())), self.values()
        each = [_notes(grid) for grid in grids]
        shared = [note for note in each[0] if all(note in own for own in each) and not note.startswith(QUOTE)]
        notes = [
            f"{_name(grid)}: {note.removeprefix(QUOTE)}"
            for grid, own in zip(grids, each, strict=True)
            for note in own
            if note not in shared
        ]
        notes += shared
        notes += within_notes(list(grids), self._noun)
        notes = [*quote_of_grids(list(grids)), *notes]
        lines = [self._title(), "", *text_table(rows, left=_left(rows)).split("\n"), "", *notes]
        return "\n".join(map(printable, lines))

    def save(self, folder: str | Path) -> Path:
        """Write a folder for each grid, results.csv with all of them and, last, grids.json; returns the folder.

        Earlier grids there are deleted first.

        Raises:
            StorageError: the disk refused, or the folder holds something else.
        """
        folder = check_path("folder", folder)
        save_several("grids", list(self.values()), self.meta, self._rows(), folder, lambda grid, own: grid.save(own))
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what `save` wrote to `folder`.

        Raises:
            DataError: no grids there, or files that do not belong together.
        """
        return cls(*load_several("grids", check_path("folder", folder), _load))

    def _title(self) -> str:
        first = next(iter(self.values()))
        by = "by value" if isinstance(first, TransferData) else f"by {noun_of(first)}"
        where = f"{first.meta['model']} on {first.meta['task']}"
        return f"{counted(len(self), 'grid')} {by} in {where}"

    def _repr_html_(self) -> str:
        rows = grid_rows(list(self.values()))
        return html_page(self._title(), html_table(rows, left=_left(rows)), [])


def quote_of_grids(grids: Sequence[Grid]) -> list[str]:
    """The line that says what to quote of several grids, which have a line each; none of a shift."""
    selecting = [grid for grid in grids if not isinstance(grid, TransferData)]
    quoted = [grid for grid in selecting if grid.quoted is not None]
    if not quoted:
        line = quote_line(f"nothing, as {nothing_selected(selecting[0])}") if selecting else ""
        return [f"{line} Lowest and highest are over all layers, on test."] if selecting else []
    noun, metrics = noun_of(quoted[0]), [grid.headline for grid in quoted]
    nested = [grid.procedure is not None for grid in quoted]
    chosen = f"its {noun} and layer were {ON_VALIDATION}"
    return [quote_line(quote_of_each("grid", metrics, nested, chosen, inside_folds(f"{noun}, layer")))]


def grid_table_rows(grid: Grid) -> list[TableRow]:
    """The rows of one grid in the table of all."""
    return transfer_rows(grid) if isinstance(grid, TransferData) else position_rows(grid)


def _load(folder: Path) -> Grid:
    """One grid, whatever its kind; without any the positions say what is missing."""
    kind = kind_in(folder)
    return CLASSES.get(str(kind), PositionResults).load(folder)


def grid_rows(grids: Sequence[Grid]) -> list[list[str]]:
    """Header and rows of a table with a line for each grid."""
    first = grids[0]
    column = next((str(grid.meta["within"]["column"]) for grid in grids if grid.meta.get("within")), "")
    header = ["label", "point", column, "probe", "metric"]
    if isinstance(first, TransferData):
        header += ["same value", "other values", "change", "95% interval"]
    else:
        chance = "majority" if first.meta["n_classes"] else "mean"
        header += [noun_of(first), "layer", "test", "95% interval", chance, "random weights", "above chance"]
    return without_empty_columns([header, *(_row(grid) for grid in grids)])


def _left(rows: Sequence[Sequence[str]]) -> int:
    """How many columns are texts."""
    return rows[0].index("metric") + 1


def _row(grid: Grid) -> list[str]:
    names = [coordinates(grid.meta).get(name, "") for name in ("label", "point", "within", "probe")]
    names.append(metric_name(grid.headline))
    if isinstance(grid, TransferData):
        shift = grid.meta["shift"]
        change = "" if shift["change"] is None else f"{shift['change']:+z.3f}"
        values = [number_text(shift["same"]), number_text(shift["others"]), change]
        return [*names, *values, interval_text(shift["interval"])]
    level = grid.meta.get("above_chance")
    cells = [p for one in grid.positions for p in one.corrected]
    above = "" if level is None else f"{sum(p is not None and p <= level for p in cells):,} of {len(cells):,}"
    random = (grid.meta.get("over_random") or {}).get("value")
    quoted = grid.quoted
    if quoted is None:
        return [*names, "", "", "", "", "", number_text(random), above]
    where = ["" if quoted.column is None else quoted.column.position, quoted.place]
    score = [number_text(quoted.value), interval_text(quoted.interval), number_text(quoted.chance)]
    return [*names, *where, *score, number_text(random), above]


def _name(grid: Grid) -> str:
    return ", ".join(coordinates(grid.meta).values())


def _notes(grid: Grid) -> list[str]:
    """The verdict of a grid, if it is a poor one, and its notes."""
    if isinstance(grid, TransferData):
        return transfer_notes(grid)
    notes = [note for note in positions_notes(grid) if grid.quoted is not None or not note.startswith(QUOTE)]
    return [*positions_verdict(grid), *notes]
