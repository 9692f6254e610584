"""The column of a table that holds labels of tokens: its cells, their checks, and the task with them.

A cell is a list of labels, one for each token or for each character of the row's text, or a list of stretches,
{"start", "end", "label"}; null in a list, or in place of it, is no label. CSV and TSV write the list as JSON.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from probekit.errors import DataError
from probekit.files.plain_files import parse_json
from probekit.options import TaskOptions
from probekit.tasks.base import SPLITS, Task
from probekit.tasks.info import CARVED_FROM_TRAIN
from probekit.tasks.labels import label_flaw
from probekit.tasks.splitting.rare import check_number_of_classes
from probekit.tasks.splitting.splits import carve_missing
from probekit.tasks.tables.data_table import DataTable, flaw_of, quote
from probekit.tasks.tokens.stretches import EXAMPLE, are_stretches, read_stretches
from probekit.tasks.tokens.token_labels import text_strata


def token_cells(table: DataTable, column: str) -> Sequence[Any]:
    """The cells of the column."""
    cells = table.column(column)
    return cells if table.typed else [_parsed(cell) for cell in cells]


def token_flaw(cell: Any, text: Any) -> tuple[str, str] | None:
    """What is wrong with a cell as labels of the tokens of a text, as (kind, description); None if nothing is."""
    if cell is None:
        return None
    if not isinstance(cell, list):
        return (
            "token_labels",
            f"expected a list of labels, or of stretches such as {EXAMPLE}, got {quote(cell)}; write one",
        )
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


def with_token_cells(
    task: Task, column: str, cells: Sequence[Any], keys: Sequence[Hashable] | np.ndarray, options: TaskOptions
) -> Task:
    """The task with these labels of tokens as its target; without labels of texts, missing splits are carved by them.

    Args:
        task: of N texts, all in the splits that were given.
        column: the name of the labels of tokens.
        cells: N.
        keys: N, equal for rows that must share a split.
        options: of the task.

    Raises:
        DataError: labels that do not fit together.
        UsageError: too many classes.
    """
    is_carved = bool(task.labels)
    names = {**task.label_names, **({column: []} if options.regression else {})}
    task = replace(task, token_labels={column: list(cells)}, label_names=names, target=column)
    check_number_of_classes(task.label_names[column], column, task.name, options.max_classes)
    if is_carved:
        return task
    wanted = [split for split in SPLITS if options.validation or split != "validation"]
    missing = [split for split in wanted if not (task.splits == split).any()]
    splits = carve_missing(text_strata(task, column), task.splits, keys, missing, options.seed)
    return replace(task, splits=splits, info={**task.info, CARVED_FROM_TRAIN: missing})


def _parsed(cell: str) -> Any:
    """A cell of a table whose cells are texts."""
    if not cell.strip():
        return None
    try:
        return parse_json(cell.encode())
    except ValueError:
        return cell
