"""What transfer gives back: a number for each pair of tasks and each place, as a matrix, a table and files."""

import html
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from probekit.durable import write_as
from probekit.errors import DataError
from probekit.evaluation.results.report import metric_name, where
from probekit.evaluation.results.results import check_folder, clear
from probekit.text import printable

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

FORMAT = "probekit.transfer/1"
COLUMNS = ("train_task", "test_task", "point", "layer", "place", "chosen", "C", "converged", "metric")
COLUMNS += ("value", "low", "high")
OWN_FILES = re.compile(r"transfer\.(json|csv|png|svg)")


@dataclass(frozen=True)
class TransferCell:
    """A probe of one task and place on the test split of one task.

    Attributes:
        train_task: whose train split it was fitted on.
        test_task: whose test split it was judged on.
        point: short name, such as "resid_pre".
        layer: None for a point that belongs to no layer.
        C: the regularisation that the train task's validation chose; None for a probe without one.
        converged: whether the solver reached its tolerance.
        validation: the headline on the train task's validation.
        chosen: whether that is the train task's best place.
        metrics: metric -> value.
        intervals: metric -> (low, high).
    """

    train_task: str
    test_task: str
    point: str
    layer: int | None
    C: float | None
    converged: bool
    validation: float
    chosen: bool
    metrics: dict[str, float]
    intervals: dict[str, tuple[float, float]]

    @property
    def place(self) -> str:
        """Point and layer in one word: "resid_pre.5"."""
        return self.point if self.layer is None else f"{self.point}.{self.layer}"


@dataclass(frozen=True)
class TransferResults:
    """Train on the rows, test on the columns.

    Attributes:
        cells: one per train task, test task and place, in this order.
        meta: JSON-able: tasks, labels, headline, chance, model, point, position, probe, seed, n, notes and more.
    """

    cells: list[TransferCell]
    meta: dict[str, Any]

    @property
    def tasks(self) -> list[str]:
        """T names."""
        return self.meta["tasks"]

    @property
    def headline(self) -> str:
        """The metric of the matrix: "accuracy" or "auroc"."""
        return self.meta["headline"]

    @property
    def chosen(self) -> list[list[TransferCell]]:
        """[T][T]: train task, test task, at the train task's best place on its own validation."""
        cells = {(cell.train_task, cell.test_task): cell for cell in self.cells if cell.chosen}
        return [[cells[train, test] for test in self.tasks] for train in self.tasks]

    @property
    def matrix(self) -> np.ndarray:
        """The headline of `chosen`, float64 [T, T]; nan where it is not defined."""
        return np.array([[cell.metrics.get(self.headline, np.nan) for cell in row] for row in self.chosen])

    def to_frame(self) -> "pd.DataFrame":
        """A tidy table: one row per train task, test task, place and metric."""
        import pandas as pd

        rows = [
            (*_about(cell), metric, value, *cell.intervals.get(metric, (None, None)))
            for cell in self.cells
            for metric, value in cell.metrics.items()
        ]
        types = {"layer": "Int64", "C": "float64", "low": "float64", "high": "float64"}
        return pd.DataFrame(rows, columns=list(COLUMNS)).astype(types)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the matrix, on `ax` or on a new figure; returns the axes."""
        from probekit.plots import plot_transfer

        return plot_transfer(self, ax)

    def summary(self) -> str:
        """The matrix as a plain table, and what a reader must know."""
        rows = _table(self)
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
        return "\n".join([title(self), "", *lines, "", *_notes(self)])

    def _repr_html_(self) -> str:
        head, *rows = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in _table(self)]
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in _notes(self))
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<div><p><b>{html.escape(title(self))}</b></p><table><tr>{head}</tr>{body}</table>{notes}</div>"

    def __repr__(self) -> str:
        return f"TransferResults({len(self.tasks)} tasks, {len(self.cells) // len(self.tasks) ** 2} places)"

    def save(self, folder: str | Path) -> Path:
        """Write transfer.csv and, last, transfer.json into `folder`, each whole; returns the folder.

        Results of transfer that stood there are taken away first, pictures too.

        Raises:
            StorageError: the disk refused, or something else stands in the folder.
        """
        folder = Path(folder)
        body = {"format": FORMAT, "meta": self.meta, "cells": [vars(cell) for cell in self.cells]}
        text = json.dumps(body, indent=1, allow_nan=False)
        frame = self.to_frame().to_csv(index=False, lineterminator="\n").encode()
        clear(folder, OWN_FILES)
        write_as(folder / "transfer.csv", frame)
        write_as(folder / "transfer.json", text.encode())
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """What `save` wrote to `folder`.

        Raises:
            DataError: no such results there, or not whole ones.
        """
        path = Path(folder) / "transfer.json"
        try:
            body = json.loads(path.read_bytes())
            if body["format"] != FORMAT:
                raise ValueError(f"format {body['format']!a}, expected {FORMAT}")
            ends = [{name: tuple(pair) for name, pair in cell["intervals"].items()} for cell in body["cells"]]
            cells = [TransferCell(**{**c, "intervals": e}) for c, e in zip(body["cells"], ends, strict=True)]
            return cls(cells, body["meta"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(f"no whole results of transfer at {str(path)!a}: {error}") from None


def check_transfer_folder(folder: str | Path) -> None:
    """Whether results of transfer may be written to `folder`: it is not there, or nothing else stands in it.

    Raises:
        StorageError: something else stands there; it would be in danger.
    """
    check_folder(folder, OWN_FILES)


def _about(cell: TransferCell) -> tuple[Any, ...]:
    """The first columns of its rows."""
    return cell.train_task, cell.test_task, cell.point, cell.layer, cell.place, cell.chosen, cell.C, cell.converged


def title(results: TransferResults) -> str:
    """What was asked, in one line."""
    meta = results.meta
    read = f"{meta['point']}, {where(meta['position'])}; {meta['probe']} probe"
    return printable(f"Transfer in {meta['model']}: {read}; test {metric_name(results.headline)}")


def _table(results: TransferResults) -> list[tuple[str, ...]]:
    """Heading and rows, safe to show."""
    return [tuple(map(printable, row)) for row in [_heading(results), *_rows(results)]]


def _heading(results: TransferResults) -> tuple[str, ...]:
    return ("train on \\ test on", *results.tasks, "at", "C")


def _rows(results: TransferResults) -> list[tuple[str, ...]]:
    rows = [_row(results, row) for row in results.chosen]
    if results.headline == "accuracy":
        rows.append(("(majority class)", *[f"{share:.3f}" for share in results.meta["majority"]], "", ""))
    return rows


def _row(results: TransferResults, row: list[TransferCell]) -> tuple[str, ...]:
    mark = "" if row[0].converged else " !"
    C = "" if row[0].C is None else f"{row[0].C:g}"
    return (row[0].train_task + mark, *[_value(cell, results.headline) for cell in row], row[0].place, C)


def _value(cell: TransferCell, metric: str) -> str:
    if metric not in cell.metrics:
        return "-"
    low, high = cell.intervals.get(metric, (None, None))
    return f"{cell.metrics[metric]:.3f}" + ("" if low is None else f" [{low:.3f}, {high:.3f}]")


def _notes(results: TransferResults) -> list[str]:
    """How layers were chosen, and what a reader must know before believing the matrix; safe to show."""
    what = ["layer"] * (len({cell.place for cell in results.cells}) > 1) + ["C"] * (len(results.meta["C"] or []) > 1)
    were = f"{' and '.join(what)} {'was' if len(what) == 1 else 'were'}".replace("layer", "Layer")
    notes = [f"{were} chosen on the validation split of the task that is trained on; no test split decided anything."]
    notes = notes if what else ["Nothing was chosen: one place, one setting."]
    if late := [row[0].train_task for row in results.chosen if not row[0].converged]:
        notes.append(f"Not converged: {', '.join(late)}; more regularisation (a smaller C) helps.")
    return [printable(note) for note in [*notes, *results.meta["notes"]]]
