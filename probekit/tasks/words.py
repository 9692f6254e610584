"""Tasks whose examples are words of texts: their spans, classes that are too rare, and a limit on texts.

Axes: N examples, T texts.
"""

import re
from dataclasses import replace
from typing import Any

import numpy as np

from probekit.errors import DataError, UsageError
from probekit.tasks.base import SPLITS, Task, count_line
from probekit.tasks.files import Table, quote

# how a cell of text writes a span: "[4, 7]", "(4, 7)", "4, 7", "4:7", "4-7"
WRITTEN = re.compile(r"\s*[\[(]?\s*(?P<first>[0-9]{1,18})\s*[,:-]\s*(?P<behind>[0-9]{1,18})\s*[\])]?\s*")


def unfolded(table: Table, column: str | None) -> Table:
    """The table with a row for each span, where the cells of `column` are lists of them: {"start", "end", ...}.

    What a span says besides becomes columns: its `label`, or `COLUMN.label` where the table has a `label` of its own.
    """
    cells: list[Any] = table.column(column) if column in table.columns else []
    if not any(_are_spans(cell) and cell for cell in cells):
        return table
    rows: list[tuple[int, dict[str, Any]]] = []
    bad: dict[int, tuple[str, str]] = {}
    for i, cell in enumerate(cells):
        if i in table.bad or not _are_spans(cell):
            bad[len(rows)] = table.bad.get(i) or ("span", f"expected a list of spans, got {quote(cell)}; mend it")
            cell = [{}]
        rows += [(i, span) for span in cell]
    said = dict.fromkeys(key for _, span in rows for key in span)
    named = {f"{column}.{key}" if key in table.columns else key: key for key in said}

    def values(name: str) -> list[Any]:
        if name == column:
            return [[span.get("start"), span.get("end")] for _, span in rows]
        if name in named:
            return [span.get(named[name]) for _, span in rows]
        whole = table.column(name)
        return [whole[i] for i, _ in rows]

    lines = [table.lines[i] for i, _ in rows]
    return replace(table, columns=[*table.columns, *named], column=values, lines=lines, bad=bad, span=column)


def _are_spans(cell: Any) -> bool:
    return isinstance(cell, list) and all(isinstance(one, dict) for one in cell)


def spans_of(table: Table, columns: tuple[str, ...]) -> list[Any]:
    """The span of each row, (first character, the one behind the last), or in words why it is none."""
    cells: list[Any] = [table.column(name) for name in columns]
    return [_span(cell) for cell in (cells[0] if len(cells) == 1 else zip(*cells, strict=True))]


def _span(cell: Any) -> tuple[int, int] | str:
    if isinstance(cell, str) and (written := WRITTEN.fullmatch(cell)):
        return int(written["first"]), int(written["behind"])
    parts = list(cell) if isinstance(cell, list | tuple) else []
    ends = [int(one) for one in parts if type(one) is int or (isinstance(one, str) and one.strip().isdecimal())]
    if len(ends) == len(parts) == 2:
        return ends[0], ends[1]
    return f"expected a span, the characters [first, behind the last) such as [4, 7], got {quote(cell)}; mend it"


def without_rare(task: Task, skip: bool) -> Task:
    """The task of words without the classes that a split lacks, which are counted.

    Raises:
        DataError: there are such classes, and `skip` is not given.
    """
    target = task.target
    names, labels = task.label_names[target], task.labels[target]
    if not names:
        return task
    counts = task.counts()
    common = [k for k, name in enumerate(names) if all(counts[split][name] for split in SPLITS)]
    rare = {name: int((labels == k).sum()) for k, name in enumerate(names) if k not in common}
    if not rare:
        return task
    told = f"every split needs every class of {target!a}, got {count_line(counts)}"
    if len(common) < 2:  # to leave out the others would leave nothing to tell apart
        raise DataError(f"{told}; {task.too_alike(target) or 'add texts, or take another label'}")
    if not skip:
        raise DataError(
            f"{told}; take another label, or leave "
            f"such words out with --on-bad-row skip: the {sum(rare.values()):,} words of {len(rare)} classes"
        )
    kept = task.subset(np.isin(labels, common))
    anew = np.searchsorted(common, kept.labels[target])
    info = {**task.info, "rare_classes": rare, "skipped_rows": task.info["skipped_rows"] + sum(rare.values())}
    return replace(kept, labels={target: anew}, label_names={target: [names[k] for k in common]}, info=info)


def limited_words(task: Task, limit: int, seed: int) -> Task:
    """All words of at most `limit` texts of each split, drawn such that each class stands in each split.

    Texts are drawn evenly, but for those that are taken first: the first drawn with each class, the rarest first.

    Raises:
        UsageError: it takes more texts to have each class.
    """
    first, of = task.texts()
    kept = np.zeros(len(first), dtype=bool)
    for number, split in enumerate(SPLITS):
        texts = np.flatnonzero(task.splits[first] == split)
        drawn = np.random.default_rng([seed, number]).permutation(texts)
        needed = _with_each_class(task, of, drawn)
        if len(needed) > limit:
            raise UsageError(
                f"limit {limit} is less than the {len(needed)} texts of {split} that it takes to have each of the "
                f"{task.n_classes()} classes of {task.name!a}; raise it"
            )
        rest = drawn[~np.isin(drawn, needed)]
        kept[np.concatenate([needed, rest])[:limit]] = True
    return task.subset(kept[of])


def _with_each_class(task: Task, of: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """The first of the drawn texts with each class, the rarest class first; none twice."""
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
