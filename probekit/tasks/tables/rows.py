"""The usable rows of a task's tables, and the checks that each row must pass."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from probekit.errors import DataError
from probekit.files.plain_files import parse_json
from probekit.files.scratch import DiskList, take
from probekit.tasks.chats.messages import chat_flaw, is_chat, plain_lines
from probekit.tasks.labels import NA, cell_flaw, group_name, is_numeral, label_flaw, name_flaw
from probekit.tasks.splitting.splits import split_of_cell
from probekit.tasks.tables.columns import Columns, split_flaw
from probekit.tasks.tables.data_table import DataTable, Flaw, flaw_of, quote
from probekit.tasks.task_checks import span_flaw
from probekit.tasks.token_labels import EXAMPLE, are_stretches, read_stretches
from probekit.text import counted, listed

SKIP_HINT = "or leave such rows out with on_bad_row='skip' (--on-bad-row skip)"
_MISSING = NA - {""}


@dataclass
class Rows:
    """The usable rows of all tables, and counts of what was left out or changed.

    Where no column says them, groups and labels of tokens are empty.

    Attributes:
        texts: of each row, or its token ids; of a chat, its messages as plain lines.
        cells: its label, as in the table.
        groups: its group's name, where there is a group column.
        splits: its split.
        ids: "train:17": file (or split) and row counted from 0.
        places: "train.csv, line 19", for errors.
        spans: its characters, where rows are words.
        chats: its messages, where rows are chats.
        token_cells: the labels of its tokens, as in the table.
        skipped: kind of flaw -> number of rows left out.
        dropped_blanks: number of texts that lost white space at their end.
        unlabelled: number of words left out because they do not have such a label.
        of_id: id -> its place, where there is a column of ids.
        kept: column -> its cells, of other columns that are kept.
    """

    texts: Any = field(default_factory=DiskList)
    cells: list[Any] = field(default_factory=list)
    groups: list[str | None] = field(default_factory=list)
    splits: Any = field(default_factory=list)
    ids: Any = field(default_factory=DiskList)
    places: Any = field(default_factory=DiskList)
    spans: list[tuple[int, int]] = field(default_factory=list)
    chats: list[list[dict[str, Any]]] = field(default_factory=list)
    token_cells: list[Any] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    dropped_blanks: int = 0
    unlabelled: int = 0
    of_id: dict[str, str] = field(default_factory=dict)
    kept: dict[str, list[Any]] = field(default_factory=dict)


def keep_rows(rows: Rows, kept: Sequence[int]) -> None:
    """Drop all rows but these."""
    for name in ("texts", "cells", "groups", "splits", "ids", "places", "spans", "chats", "token_cells"):
        values = getattr(rows, name)
        setattr(rows, name, take(values, kept) if len(values) else values)
    rows.kept = {name: [cells[i] for i in kept] for name, cells in rows.kept.items()}


def collect(
    rows: Rows, split: str, table: DataTable, columns: Columns, keep_blanks: bool, advice: str | None = SKIP_HINT
) -> None:
    """Add the usable rows of one table, which belong to `split`, or to the splits that its split column says.

    Args:
        rows: to which they are added.
        split: of all rows, unless a column says it.
        table: whose rows they are.
        columns: that are read; without one of texts, the ids are the texts.
        keep_blanks: whether white space at the end of a text stays.
        advice: what an error says after what is wrong with a row; None leaves such rows out.

    Raises:
        DataError: a row cannot be used, and none may be left out; or no row can.
    """
    n_before = len(rows.texts)
    cells = table.column(columns.text) if columns.text else [f"{table.stem}:{i}" for i in range(len(table.lines))]
    chat_flaws, chats, texts = _chats(cells, columns.has_chats)
    if columns.span is not None:
        rows.texts = [*rows.texts]  # the words of a text have one object
    keep_blanks = keep_blanks or columns.token_label is not None
    others = {name: [*table.column(name)] for name in (*columns.kept, *columns.labels)}
    sound: dict[str, str] = {}  # labels repeat
    _refuse_numbers(table, columns.text or "", texts)
    cells = _cells(table, columns, len(texts))
    for i, (text, (label, group, own_split, own_id, span, token_labels)) in enumerate(zip(texts, cells, strict=True)):
        if table.span is not None and label is None and i not in table.bad:
            rows.unlabelled += 1
            continue
        kept = text.rstrip() if isinstance(text, str) and not (keep_blanks or chats) else text
        flaw = (
            table.bad.get(i)
            or chat_flaws.get(i)
            or _row_flaw(table, columns, text, label, sound)
            or (None if columns.group is None else name_flaw(group, "group"))
            or (None if columns.span is None else _span_flaw(kept, span))
            or (None if columns.split is None else split_flaw(own_split, columns.split))
            or token_flaw(token_labels, kept)
            or (None if columns.id is None else _id_flaw(rows, columns.id, own_id))
            or next((found for name, column in others.items() if (found := cell_flaw(column[i], name))), None)
        )
        if flaw is not None:
            if advice is not None:
                raise DataError(f"{table.where(i)}: {flaw[1]}{advice and ', '}{advice}")
            rows.skipped[flaw[0]] += 1
            continue
        rows.dropped_blanks += kept != text
        rows.texts.append(kept)
        rows.cells.append(sound.get(label, label) if type(label) is str else label)
        rows.spans += [] if columns.span is None else [span]
        rows.chats += [chats[i]] if chats else []
        rows.token_cells += [] if columns.token_label is None else [token_labels]
        rows.groups += [] if columns.group is None else [group_name(group)]
        rows.splits.append(split if columns.split is None else str(split_of_cell(own_split, columns.split)))
        rows.ids.append(f"{table.stem}:{i}" if columns.id is None else group_name(own_id))
        rows.places.append(table.where(i))
        for name, column in others.items():
            rows.kept.setdefault(name, []).append(column[i])
        rows.of_id |= {} if columns.id is None else {rows.ids[-1]: rows.places[-1]}
    if len(rows.texts) == n_before:
        n = f"{len(table.lines)} of {counted(len(table.lines), 'row')}"
        raise DataError(f"{table.name}: skipped {n}, none is left; correct the file")
    if "train" not in rows.splits:
        raise DataError(f"{table.name}: no row is in the split train by column {columns.split!a}; add some to fit on")


def _cells(table: DataTable, columns: Columns, n: int) -> Iterator[tuple[Any, ...]]:
    """Of each of n rows its label, group, split, id, span and labels of tokens; None where there is no such column."""
    names = (columns.label, columns.group, columns.split, columns.id)
    found: list[Iterable[Any]] = [repeat(None, n) if one is None else table.column(one) for one in names]
    spans = [table.column(name) for name in columns.span or ()]
    found.append(map(_span, spans[0] if len(spans) == 1 else zip(*spans, strict=True)) if spans else repeat(None, n))
    labels = repeat(None, n) if columns.token_label is None else table.column(columns.token_label)
    found.append(labels if table.typed or columns.token_label is None else map(_parsed, labels))
    return zip(*found, strict=True)


def _chats(cells: Sequence[Any], are_chats: bool) -> tuple[dict[int, Flaw], list[list[dict[str, Any]]], Sequence[Any]]:
    """What is wrong with chats, by row; the chats; and each as plain lines. Nothing, nothing and texts as they are."""
    if not are_chats:
        return {}, [], cells
    flaws = {i: flaw for i, cell in enumerate(cells) if (flaw := chat_flaw(cell))}
    chats = [[] if i in flaws else cell for i, cell in enumerate(cells)]
    return flaws, chats, [plain_lines(chat) for chat in chats]


def _row_flaw(table: DataTable, columns: Columns, text: Any, label: Any, sound: dict[str, str]) -> Flaw | None:
    """What is wrong with a row's text or label, as (kind, description); None if nothing is, and `sound` has the label.

    Labels in `sound` are not looked at again.
    """
    flaw = tokens_flaw(text) if columns.has_tokens else _text_flaw(text, table.typed)
    is_known = type(label) is str and label in sound
    if flaw or is_known:
        return flaw or (flaw_of([text]) if table.typed else None)
    if columns.label is not None:
        flaw = label_flaw(label, table.typed, table.class_names.get(columns.label, ()))
    flaw = flaw or (flaw_of([text, label]) if table.typed else None)
    if flaw is None and type(label) is str:
        sound[label] = label
    return flaw


def _id_flaw(rows: Rows, column: str, cell: Any) -> Flaw | None:
    """What is wrong with a row's id: it is missing, or another row has it."""
    flaw = name_flaw(cell, "id")
    if flaw is None and (place := rows.of_id.get(group_name(cell))):
        flaw = "twice", f"the id {quote(cell)} in {column!a} is that of {place} too; give each row its own"
    return flaw


def _span_flaw(text: str, span: tuple[int, int] | str) -> Flaw | None:
    words = span if isinstance(span, str) else span_flaw(text, *span)
    return None if words is None else ("span", words)


def tokens_flaw(cell: Any) -> Flaw | None:
    """What is wrong with a cell as token ids, as (kind, description); None if nothing is."""
    if cell is None:
        return "na", "expected token ids, got a missing value; write a list of whole numbers"
    if not isinstance(cell, list | tuple):
        return "not_tokens", f"expected a list of token ids, got {quote(cell)} ({type(cell).__name__}); write a list"
    if not cell:
        return "empty", "expected token ids, got an empty list; write one or more"
    if wrong := [one for one in cell if type(one) is not int or one < 0]:
        return "not_tokens", f"token ids are whole numbers from 0, got {quote(wrong[0])} in {quote(cell)}; correct it"
    return None


def _text_flaw(cell: Any, typed: bool) -> Flaw | None:
    """What is wrong with a cell as a text, as (kind, description); None if nothing is."""
    stripped = cell.strip() if isinstance(cell, str) else cell
    if isinstance(stripped, str) and stripped and (typed or stripped not in _MISSING):
        return None
    if cell is None or (not typed and stripped in _MISSING) or (isinstance(cell, float) and cell != cell):
        hint = "write the text" if typed else "write the text (in JSONL the word itself is a text)"
        return "na", f"expected a text, got {quote(cell)}, a missing value; {hint}"
    if is_chat(cell):
        hint = "name the column of chats with --messages-column"
        return "not_text", f"expected a text, got a chat, {quote(cell)}; {hint}"
    if not isinstance(cell, str):
        return "not_text", f"expected a text, got {quote(cell)} ({type(cell).__name__}); put the text in quotes"
    return "empty", f"expected a text, got the empty {quote(cell)}; write one"


def _refuse_numbers(table: DataTable, column: str, texts: Sequence[str]) -> None:
    """Refuse a text column of nothing but numbers. A single one is fine: "1987" is a phrase of SST-2."""
    if table.typed:
        return
    first = None
    for i, text in enumerate(texts):
        if i in table.bad or text.strip() in NA:
            continue
        if not is_numeral(text):
            return
        first = i if first is None else first
    if first is not None:
        there = listed([f"{name!a:.80}" for name in table.columns])
        raise DataError(
            f"{table.where(first)}: expected texts in column {column!a}, got only numbers "
            f"(first {quote(texts[first])}); name the text column with --text-column: {there}"
        )


# a span written as text: "[4, 7]", "(4, 7)", "4, 7", "4:7", "4-7"
WRITTEN = re.compile(r"\s*[\[(]?\s*(?P<first>[0-9]{1,18})\s*[,:-]\s*(?P<end>[0-9]{1,18})\s*[\])]?\s*")


def _span(cell: Any) -> tuple[int, int] | str:
    """(start, end), or a description of what is wrong with the cell."""
    if isinstance(cell, str) and (written := WRITTEN.fullmatch(cell)):
        return int(written["first"]), int(written["end"])
    parts = list(cell) if isinstance(cell, list | tuple) else []
    ends = [int(one) for one in parts if type(one) is int or (isinstance(one, str) and one.strip().isdecimal())]
    if len(ends) == len(parts) == 2:
        return ends[0], ends[1]
    return f"expected a span, the characters [start, end) such as [4, 7], got {quote(cell)}; correct it"


def token_flaw(cell: Any, text: Any) -> Flaw | None:
    """What is wrong with a cell as labels of the tokens of a text, as (kind, description); None if nothing is."""
    if cell is None:
        return None
    if not isinstance(cell, list):
        expected = f"expected a list of labels, or of stretches such as {EXAMPLE}"
        return "token_labels", f"{expected}, got {quote(cell)}; write one"
    labels = cell
    if are_stretches(cell):
        try:
            labels = read_stretches(cell, text)[1]
        except DataError as error:
            return "token_labels", str(error)
    for label in labels:
        numbers = label if isinstance(label, list) else [label]
        flaws = (label_flaw(one, typed=True) for one in numbers if one is not None)
        if flaw := next(filter(None, flaws), None) or flaw_of(numbers):
            return flaw
    return None


def _parsed(cell: str) -> Any:
    """A cell of a table whose cells are texts."""
    if not cell.strip():
        return None
    try:
        return parse_json(cell.encode())
    except ValueError:
        return cell
