"""`SweepResults`: what `sweep` returns, with its table and picture; and reading the folder of a sweep."""

from pathlib import Path
from typing import TYPE_CHECKING, Self

from probekit import registries
from probekit.sweeps.data import SweepData
from probekit.sweeps.files import read_body, read_runs, table_rows
from probekit.sweeps.report import sweep_html, sweep_summary
from probekit.text import counted

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class SweepResults(SweepData):
    """A sweep: `runs` in the order of models and tasks, each with its rows.

    See `SweepData` for the attributes.
    """

    def to_frame(self) -> "pd.DataFrame":
        """One row for each curve, and one for each run that failed, whose `error` says why."""
        import pandas as pd

        from probekit.sweeps.files import COLUMNS

        kinds = {"layer": "Int64", "classes": "Int64", "n_train": "Int64", "n_test": "Int64"}
        return pd.DataFrame(table_rows(self), columns=list(COLUMNS)).astype(kinds)

    def summary(self) -> str:
        """A table with one line for each curve, then the runs that failed."""
        return sweep_summary(self)

    def plot(self, *, title: str | None = None, width: float | None = None) -> "Figure":
        """Draw the estimates with their intervals, sorted, and the best layers, on a new figure; returns it.

        Args:
            title: as plain text; "" for none.  [default: how many tasks and models, point and probe]
            width: in inches; 3.25 is a column of a paper.  [default: the picture's own]
        """
        return registries.METHODS["plot_sweep"](self, title=title, width=width)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read the folder of a sweep, finished or not.

        Raises:
            DataError: no sweep there, or a damaged file.
        """
        body = read_body(Path(folder))
        meta = {"tasks": [*body["tasks"]], "models": body["models"], "settings": body["settings"]}
        return cls(tuple(read_runs(Path(folder), body).values()), meta)

    def _repr_html_(self) -> str:
        return sweep_html(self)

    def __repr__(self) -> str:
        failed = f"; {len(self.failed)} failed" if self.failed else ""
        tasks, models = (counted(len(self.meta[key]), key[:-1]) for key in ("tasks", "models"))
        return f"SweepResults({counted(len(self.runs), 'run')} of {tasks}, {models}{failed})"
