"""load_texts: the texts of a source, whatever labels it has, to be scored rather than probed."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from probekit import registries
from probekit.errors import UsageError
from probekit.options import TaskOptions
from probekit.tasks.base import Task
from probekit.tasks.load import check_builtin, open_tables
from probekit.tasks.tables.columns import NamedColumns, columns_of
from probekit.tasks.tables.objects import task_of
from probekit.tasks.tables.rows import Rows, collect


def typed_texts(texts: Sequence[str], as_chats: bool = False) -> Task:
    """Texts that were typed, as a task; `as_chats` makes each a chat of one message from the user.

    Raises:
        UsageError: an empty text.
    """
    if not all(texts):
        raise UsageError(f"text {list(map(bool, texts)).index(False)} (--text) is empty; write one")
    if as_chats:
        return task_of([[{"role": "user", "content": text}] for text in texts])
    return Task("texts", list(texts))


def load_texts(source: Any, options: TaskOptions) -> Task:
    """The texts, words or chats of a source that `load_task` takes, without labels and splits, in their order.

    Raises:
        UsageError: an unknown name, column or option.
        DataError: a file or text that cannot be used.
    """
    named = NamedColumns(
        text=options.text_column, span=options.span_column, id=options.id_column, messages=options.messages_column
    )
    if isinstance(source, str | Path) and source in registries.TASKS:
        check_builtin(str(source), named, options)
        task = registries.TASKS[str(source)](seed=options.seed)
        return replace(task, labels={}, label_names={}, token_labels={}, target="", groups=None)
    name, tables, info = open_tables(source, named, options)
    rows, of_spans = Rows(), False
    for table in tables.values():
        is_words = table.span is not None  # the words of CoNLL-U need some label to be read
        columns = columns_of(table, replace(named, label="upos") if is_words else named)
        columns = columns._replace(label=columns.label if is_words else None, group=None, token_label=None)
        collect(rows, "train", table, columns, options.keep_blanks, options.on_bad_row == "skip")
        of_spans = columns.span is not None
    return Task(
        name,
        rows.texts,
        {},
        {},
        np.full(len(rows.texts), "train"),
        ids=rows.ids,
        info=info | {"dropped_blanks": rows.dropped_blanks, "skipped_rows": rows.skipped.total()},
        spans=np.array(rows.spans, dtype=np.int64).reshape(-1, 2) if of_spans else None,
        chats=rows.chats or None,
    )
