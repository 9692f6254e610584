"""Which columns of a table hold texts or chats, labels, groups and spans."""

import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

from probekit.errors import UsageError
from probekit.options import TaskOptions
from probekit.options.check import check_names
from probekit.tasks.chats.messages import is_chat
from probekit.tasks.splitting.splits import SPLITS, split_of_cell
from probekit.tasks.tables.data_table import DataTable, Flaw, choose_column, quote
from probekit.text import listed

TEXT_COLUMNS = ("text", "sentence", "statement", "prompt")
TOKEN_COLUMNS = ("ids", "input_ids")  # of lists of token ids, where there is no column of texts
LABEL_COLUMNS = ("label", "target")
ID_COLUMNS = ("id",)  # of a table of labels; texts have ids of their own only by a column that is named
SPLIT_COLUMNS = ("split", "is_test")
MESSAGES_COLUMN = "messages"


class Columns(NamedTuple):
    """The names of a table's columns; None for those that are not read."""

    text: str | None
    label: str | None
    group: str | None
    span: tuple[str, ...] | None
    split: str | None = None
    id: str | None = None
    has_chats: bool = False  # the texts are lists of messages
    token_label: str | None = None
    kept: tuple[str, ...] = ()  # others, for surface controls
    has_tokens: bool = False  # the texts are lists of token ids
    labels: tuple[str, ...] = ()  # of more label sets


NO_COLUMNS = Columns(None, None, None, None)


def columns_of(table: DataTable, options: TaskOptions, labelled: bool = False) -> Columns:
    """The columns of a table: those that the options name, or else the defaults.

    Unless it must be `labelled`, a table of texts may have no column of labels.

    Raises:
        UsageError: a column that is not there, or one named for two purposes.
        DataError: two columns with the same name.
    """

    def named(name: str | None, what: str) -> str | None:
        return None if name is None else choose_column(table, name, (), what)

    messages = _messages_column(table, options)
    of_tokens = [name for name in table.columns if table.typed and name.strip().lower() in TOKEN_COLUMNS]
    text_columns = TEXT_COLUMNS + (TOKEN_COLUMNS if of_tokens else ())
    text = messages or choose_column(table, options.text_column, text_columns, "text")
    has_tokens = messages is None and _holds_lists(table, text)
    first, more = options.label_column, ()
    if first is not None and first not in table.columns and "," in first:  # a name that exists is taken whole
        first, *others = check_names("label-column", first)
        more = tuple(choose_column(table, name, (), "label") for name in others)
    usual = {name.strip().lower() for name in table.columns}
    may_lack = not labelled and first is None and table.span is None and usual.isdisjoint(LABEL_COLUMNS)
    label = None if may_lack else choose_column(table, first, LABEL_COLUMNS, "label")
    group = named(options.group_column if options.group_column is not None else table.group, "group")
    own_id = named(options.id_column, "id")
    if own_id is not None and options.span_column is not None:
        raise UsageError("ids name texts, and the examples are words of texts; leave --id-column out")
    token_label = named(options.token_label_column, "token-label")
    check_one_use({"text": text, "label": label, "id": own_id, "labels of tokens": token_label})
    for name in more:
        check_one_use({"text": text, "id": own_id, "group": group, "label": name})
    check_one_use({"label": label, "group": group})
    span = _span_columns(table, options.span_column)
    if span is not None and (messages is not None or has_tokens):
        what = "token ids" if has_tokens else "chats"
        raise UsageError(f"a span is in a text, and these rows are {what}; leave --span-column out")
    if token_label is not None and span is not None:
        raise UsageError("the examples are words of texts, which have one label each; leave --token-label-column out")
    kept = tuple(choose_column(table, name, (), "keep") for name in options.keep_columns or ())
    return Columns(text, label, group, span, None, own_id, messages is not None, token_label, kept, has_tokens, more)


def _holds_lists(table: DataTable, column: str) -> bool:
    """Whether the cells of a column are lists of token ids, as the first one is, and not texts."""
    first = next((cell for cell in table.column(column) if cell is not None), None) if table.typed else None
    return isinstance(first, list | tuple) and not is_chat(first)


def check_one_use(columns: dict[str, str | None]) -> None:
    """Check that no column has two uses; `columns` are use -> name.

    Raises:
        UsageError: one has.
    """
    uses: dict[str, str] = {}
    for use, name in columns.items():
        if name is not None and name in uses:
            raise UsageError(f"column {name!a} cannot be both {uses[name]} and {use}; name another one for one of them")
        uses |= {} if name is None else {name: use}


def _messages_column(table: DataTable, options: TaskOptions) -> str | None:
    """The column of chats: the named one, or one of the usual name that holds lists of messages, if only as JSON."""
    if options.messages_column is not None:
        if options.text_column is not None:
            raise UsageError("a row is a text or a chat; name --text-column or --messages-column, not both")
        if not table.typed:
            raise UsageError(f"{table.name} has no lists of messages; write chats as JSONL or Parquet")
        return choose_column(table, options.messages_column, (), "messages")
    usual = [name for name in table.columns if name.strip().lower() == MESSAGES_COLUMN]
    if options.text_column is not None or not table.typed or not usual:
        return None
    column = choose_column(table, None, (MESSAGES_COLUMN,), "messages")
    cells = [cell for cell in table.column(column) if cell is not None]
    is_json = bool(cells) and isinstance(cells[0], str) and cells[0].lstrip().startswith("[{")  # refused with its row
    return column if is_json or any(isinstance(cell, list | tuple) for cell in cells) else None


def split_column_of(table: DataTable, taken: Iterable[str | None], named: str | None = None) -> str | None:
    """The column that says the split of each row: the named one, or "split" or "is_test" where it says so; or None.

    A column of these names that says no split is not read, with a warning; nor is one that is taken by texts, labels or
    groups.

    Raises:
        UsageError: the named column is not there.
        DataError: two columns with the name.
    """
    if named is not None:
        return choose_column(table, named, (), "split")
    there = {name.strip().lower(): name for name in reversed(table.columns)}
    usual = [there[name] for name in SPLIT_COLUMNS if name in there and there[name] not in taken]
    if not usual:
        return None
    column = choose_column(table, usual[0], (), "split")
    if any(split_of_cell(cell, column) for cell in table.column(column)):
        return column
    values = list(dict.fromkeys(map(quote, table.column(column))))
    warnings.warn(
        f"column {column!a} of {table.name} is not read as splits, which are called {', '.join(SPLITS)}: it holds "
        f"{listed(values, most=3)}; rename its values if these are splits",
        stacklevel=2,
    )
    return None


def split_flaw(cell: Any, column: str) -> Flaw | None:
    """What is wrong with a cell of a split column, as (kind, description); None if nothing is."""
    if split_of_cell(cell, column) is not None:
        return None
    return "split", f"expected a split ({', '.join(SPLITS)}) in {column!a}, got {quote(cell)}; correct it"


def _span_columns(table: DataTable, named: str | None) -> tuple[str, ...] | None:
    named = named if named is not None else table.span
    if named is None:
        return None
    parts = [named] if named in table.columns else [part.strip() for part in named.split(",")]
    if len(parts) > 2:
        raise UsageError(f"a span is in one column or in two, such as start,end; got {named!a}")
    return tuple(choose_column(table, part, (), "span") for part in parts)
