"""`SweepResults`: what `sweep` returns, with its table and picture; and reading the folder of a sweep."""

from pathlib import Path
from typing import TYPE_CHECKING, Self

from probekit import registries
from probekit.results.table import TableRow, results_table
from probekit.sweeps.data import SweepData, SweepRun
from probekit.sweeps.files import read_body, read_runs
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
        """The tidy table, with `probekit.results.table.COLUMNS`.

        For each curve a row of the kind "probe", its score to quote, and rows "baseline", the best one, and "lead"; for
        each run that failed a row "failed", whose `note` says why. results.csv has a line for each curve.
        """
        return results_table(row for run in self.runs for row in _run_rows(run))

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
            DataError: no sweep there.
            StorageError: a damaged file.
        """
        body = read_body(Path(folder))
        meta = {
            "tasks": [*body["tasks"]],
            "models": body["models"],
            "settings": body["settings"],
            "asked": body["asked"],
        }
        return cls(tuple(read_runs(Path(folder), body).values()), meta)

    def _repr_html_(self) -> str:
        return sweep_html(self)

    def __repr__(self) -> str:
        failed = f"; {len(self.failed)} failed" if self.failed else ""
        tasks, models = (counted(len(self.meta[key]), key[:-1]) for key in ("tasks", "models"))
        return f"SweepResults({counted(len(self.runs), 'run')} of {tasks}, {models}{failed})"


def _run_rows(run: SweepRun) -> list[TableRow]:
    about = {"model": run.model, "task": run.task}
    if run.error:
        return [{**about, "kind": "failed", "note": run.error}]
    rows = []
    for row in run.rows:
        names = {**about, "label": row.label, "split": "test", "n": row.n_test, "metric": row.metric}
        where = {"probe": row.probe, "point": row.point}
        if row.value is not None:
            score = {"value": row.value, "low": row.low, "high": row.high, "C": row.C, "layer": row.layer}
            score |= {
                "point": row.place.rpartition(".")[0] or row.place or row.point,
                "place": row.place or None,
                "depth": row.depth,
                "selected": True if row.place else None,
            }
            flags = {"note": "; ".join(row.flags) or None}
            kind = "probe" if row.place else "procedure"  # nested folds select a place of their own in each fold
            rows.append({**names, **where, "kind": kind, "name": row.probe, **score, **flags})
        baseline = {**names, "kind": "baseline", "name": row.baseline, "value": row.baseline_value}
        if row.baseline_value is not None and baseline not in rows:
            rows.append(baseline)
        if row.lead is not None:
            ahead = {"value": row.lead, "low": row.lead_low, "high": row.lead_high}
            rows.append({**names, **where, "kind": "lead", "name": row.baseline, **ahead})
    return rows
