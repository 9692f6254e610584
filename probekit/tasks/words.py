"""Tasks whose examples are words of texts: spans, and a limit on texts.

Axes: N examples, T texts.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from probekit.errors import UsageError
from probekit.tasks.base import SPLITS, Task
from probekit.tasks.tables.data_table import DataTable, quote
from probekit.text import counted

# a span written as text: "[4, 7]", "(4, 7)", "4, 7", "4:7", "4-7"
WRITTEN = re.compile(r"\s*[\[(]?\s*(?P<first>[0-9]{1,18})\s*[,:-]\s*(?P<end>[0-9]{1,18})\s*[\])]?\s*")


def unfolded(table: DataTable, column: str | None) -> DataTable:
    """The table with one row for each span, where the cells of `column` are lists of spans: {"start", "end", ...}.

    Other keys of the spans become columns: `label`, or `COLUMN.label` where the table already has a `label`.
    """
    cells: Sequence[Any] = table.column(column) if column in table.columns else []
    if not any(_are_spans(cell) and cell for cell in cells):
        return table
    rows: list[tuple[int, dict[str, Any]]] = []
    bad: dict[int, tuple[str, str]] = {}
    for i, cell in enumerate(cells):
        if i in table.bad or not _are_spans(cell):
            bad[len(rows)] = table.bad.get(i) or ("span", f"expected a list of spans, got {quote(cell)}; correct it")
            cell = [{}]
        rows += [(i, span) for span in cell]
    keys = dict.fromkeys(key for _, span in rows for key in span)
    named = {f"{column}.{key}" if key in table.columns else key: key for key in keys}

    def values(name: str) -> list[Any]:
        if name == column:
            return [[span.get("start"), span.get("end")] for _, span in rows]
        if name in named:
            return [span.get(named[name]) for _, span in rows]
        cells_of_texts = table.column(name)
        return [cells_of_texts[i] for i, _ in rows]

    lines = [table.lines[i] for i, _ in rows]
    return replace(table, columns=[*table.columns, *named], column=values, lines=lines, bad=bad, span=column)


def _are_spans(cell: Any) -> bool:
    return isinstance(cell, list) and all(isinstance(one, dict) for one in cell)


def spans_in(table: DataTable, columns: tuple[str, ...]) -> list[Any]:
    """The span of each row, (start, end), or a description of what is wrong with it."""
    cells: list[Any] = [table.column(name) for name in columns]
    return [_span(cell) for cell in (cells[0] if len(cells) == 1 else zip(*cells, strict=True))]


def _span(cell: Any) -> tuple[int, int] | str:
    if isinstance(cell, str) and (written := WRITTEN.fullmatch(cell)):
        return int(written["first"]), int(written["end"])
    parts = list(cell) if isinstance(cell, list | tuple) else []
    ends = [int(one) for one in parts if type(one) is int or (isinstance(one, str) and one.strip().isdecimal())]
    if len(ends) == len(parts) == 2:
        return ends[0], ends[1]
    return f"expected a span, the characters [start, end) such as [4, 7], got {quote(cell)}; correct it"


def limited_words(task: Task, limit: int, seed: int, keep_classes: bool = True) -> Task:
    """All words of at most `limit` texts of each split, chosen so that every split keeps every class.

    Texts are drawn uniformly, but the first text drawn of each class, rarest class first, is always kept.

    Raises:
        UsageError: more texts are needed to keep every class, and `keep_classes` is True; otherwise the first texts
            drawn are kept, with the classes that they have.
    """
    first, of = task.texts()
    kept = np.zeros(len(first), dtype=bool)
    for number, split in enumerate(SPLITS):
        texts = np.flatnonzero(task.splits[first] == split)
        drawn = np.random.default_rng([seed, number]).permutation(texts)
        needed = _with_each_class(task, of, drawn)
        if len(needed) > limit and keep_classes:
            raise UsageError(
                f"limit {limit} is less than the {counted(len(needed), 'text')} of {split} needed to keep each "
                f"of the {task.n_classes()} classes of {task.name!a}; raise it, or use --rare-classes drop"
            )
        needed = needed[:0] if len(needed) > limit else needed
        rest = drawn[~np.isin(drawn, needed)]
        kept[np.concatenate([needed, rest])[:limit]] = True
    return task.subset(kept[of])


def _with_each_class(task: Task, of: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """The first drawn text of each class, rarest class first, without repetitions."""
    place = np.full(of.max() + 1, len(drawn))
    place[drawn] = np.arange(len(drawn))
    labels, where = task.labels[task.target], place[of]
    classes = range(task.n_classes())
    counts = np.bincount(labels[where < len(drawn)], minlength=len(classes)) if classes else np.empty(0)
    chosen: list[int] = []
    for k in sorted(classes, key=lambda k: counts[k]):
        there = where[(labels == k) & (where < len(drawn))]
        if not np.isin(there, chosen).any():
            chosen.append(int(there.min()))
    return drawn[np.array(chosen, dtype=np.int64)]
