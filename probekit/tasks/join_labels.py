"""Labels that come after the texts: joined to a task by the ids of its rows.

Axes: N examples of the task.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from probekit.errors import DataError, UsageError
from probekit.options.task import LabelOptions
from probekit.tasks.base import Task
from probekit.tasks.fields import CARVED_FROM_TRAIN, LABEL_SETS, UNLABELLED
from probekit.tasks.labels import (
    as_labels,
    encode,
    group_name,
    is_unlabelled,
    label_flaw,
    name_flaw,
    refuse_unlabelled,
)
from probekit.tasks.splitting.classes import check_number_of_classes, warn_of_look_alikes
from probekit.tasks.splitting.splits import (
    carve_missing,
    components,
    kept_together,
    missing_splits,
    split_of_cell,
    text_numbers,
)
from probekit.tasks.tables.columns import (
    ID_COLUMNS,
    LABEL_COLUMNS,
    NO_COLUMNS,
    Columns,
    check_one_use,
    split_column_of,
    split_flaw,
)
from probekit.tasks.tables.data_table import DataTable, Flaw, choose_column, flaw_of, quote
from probekit.tasks.tables.objects import label_table
from probekit.tasks.task_checks import is_sequence
from probekit.text import counted, listed

SKIP_HINT = "or leave such rows out: --on-bad-row skip, in Python label(acts, labels, on_bad_row='skip')"
TOKENS_HINT = (
    "labels of tokens are extracted with their texts (extract --token-label-column), or joined in Python to all "
    "tokens, label(acts.at('all'), {'ID:TOKEN': label})"
)
FINGERPRINTS = "label_fingerprints"  # in the record of activations: joined label set -> its sha256


@dataclass(frozen=True, eq=False)
class LabelSet:
    """The labels of one set, joined to the N examples of a task.

    Attributes:
        name: of the set.
        labels: int64 [N], -1 where there is none; or float64 [N], NaN where there is none, for a regression.
        names: of the classes, in label order; empty for a regression.
        info: where they come from, JSON-able: source, sha256, columns; how many are labelled, unlabelled and skipped.
    """

    name: str
    labels: np.ndarray
    names: list[str]
    info: dict[str, Any]


@dataclass(frozen=True, eq=False)
class LabelledSplits:
    """The splits of a task, made when its first labels arrive.

    Attributes:
        splits: [N] of "train", "validation", "test".
        groups: [N] or None.
        info: how they were made, JSON-able.
    """

    splits: np.ndarray
    groups: np.ndarray | None
    info: dict[str, Any]


@dataclass
class _Joined:
    """The rows of a table of labels that belong to examples of the task: example -> value, and what was skipped."""

    cells: dict[int, Any] = field(default_factory=dict)
    places: dict[int, str] = field(default_factory=dict)
    groups: dict[int, str] = field(default_factory=dict)
    splits: dict[int, str] = field(default_factory=dict)
    twice: set[int] = field(default_factory=set)
    skipped: Counter[str] = field(default_factory=Counter)


def read_label_set(task: Task, source: Any, options: LabelOptions) -> tuple[LabelSet, LabelledSplits | None]:
    """The labels that a source holds for a task, and the splits that are made with its first labels.

    Args:
        task: whose ids the labels name. If it has labels, its splits stay.
        source: a file, a DataFrame, a Series, a dict id -> label, a list of (id, label) pairs or of dicts.
        options: of `label`.

    Returns:
        The label set, and the splits; None where those of the task stay.

    Raises:
        UsageError: a column that is not there, an option that cannot apply, too many classes.
        DataError: an id that is unknown, missing or there twice, or a label that cannot be used; the message names the
            first. With `on_bad_row="skip"` these are counted in the set's info.
    """
    _refuse_lists(task, source)
    table = label_table(source, options)
    own = choose_column(table, options.id_column, ID_COLUMNS, "id")
    label = choose_column(table, options.label_column, LABEL_COLUMNS, "label")
    group = None if options.group_column is None else choose_column(table, options.group_column, (), "group")
    check_one_use({"id": own, "label": label, "group": group})
    columns = Columns(None, label, group, None, split_column_of(table, (own, label, group), options.split_column), own)
    if group is not None and (task.groups is not None or _has_splits(task)):
        have = "groups" if task.groups is not None else "splits, made without them,"
        raise UsageError(f"the texts of {task.name!a} have {have} already; leave --group-column out")
    joined = _join(task, table, columns, options.on_bad_row == "skip")
    label_set = _label_set(task, table, label, joined, options)
    label_set.info["id_column"] = own
    if task.target:
        _check_same_splits(task, joined)
        return label_set, None
    return label_set, _splits(task, label_set.labels, joined, columns, options)


def label_set_of_column(
    task: Task,
    name: str,
    cells: Sequence[Any],
    places: Sequence[str],
    typed: bool,
    class_names: Sequence[str],
    options: LabelOptions,
) -> LabelSet:
    """The label set that a column of the task's examples is; a cell that is missing or -1 is no label.

    Args:
        task: of the N examples.
        name: of the column and the label set.
        cells: N.
        places: N, for errors.
        typed: whether cells have types of their own; otherwise all are texts.
        class_names: of whole numbers, where the format has them.
        options: whether numbers are a regression, and how many classes there may be.

    Raises:
        DataError: labels of several kinds, or none at all.
        UsageError: too many classes.
    """
    rows = [row for row, cell in enumerate(cells) if label_flaw(cell, typed, class_names) is None]
    joined = _Joined({row: cells[row] for row in rows}, {row: places[row] for row in rows})
    known = {name: [*class_names]} if class_names else {}
    table = DataTable(f"column {name!a}", "", [name], lambda _: cells, range(len(cells)), typed, class_names=known)
    if not rows:
        raise DataError(f"the column {name!a} of {task.name!a} has no label for any text; name another column")
    return _label_set(task, table, name, joined, options)


def with_column_as_labels(task: Task, name: str | None) -> Task:
    """The task with a column that was kept with it as a label set; the task itself unless `name` is such a column.

    The first labels of a task carve its splits. Errors as `label_set_of_column`.
    """
    if name is None or name not in task.columns or name in (*task.labels, *task.token_labels):
        return task
    cells = task.columns[name].tolist()
    places, how = [f"example {one!a}" for one in task.ids], LabelOptions(on_bad_row="skip")
    label_set = label_set_of_column(task, name, cells, places, True, (), how)
    if task.target:
        return with_label_sets(task, [label_set], None)
    made = _splits(task, label_set.labels, _Joined(), NO_COLUMNS, LabelOptions())
    return with_label_sets(task, [label_set], made)


def with_label_sets(task: Task, sets: Sequence[LabelSet], made: LabelledSplits | None, target: str = "") -> Task:
    """The task with more label sets.

    Args:
        task: of the same examples.
        sets: each replaces one of its name.
        made: splits that replace the task's; None keeps those.
        target: the default label set; "" keeps the task's, or takes the first of `sets`.
    """
    info: dict[str, Any] = {**task.info, **({} if made is None else made.info)}
    known, partial = dict(info.get(LABEL_SETS, {})), dict(info.get(UNLABELLED, {}))
    for one in sets:
        known[one.name] = one.info
        partial[one.name] = one.info["unlabelled"]
    info |= {LABEL_SETS: known, UNLABELLED: {name: n for name, n in partial.items() if n}}
    return replace(
        task,
        labels={**task.labels, **{one.name: one.labels for one in sets}},
        label_names={**task.label_names, **{one.name: one.names for one in sets}},
        target=target or task.target or (sets[0].name if sets else ""),
        splits=task.splits if made is None else made.splits,
        groups=task.groups if made is None else made.groups,
        info=info,
    )


def labels_record(task: Task) -> dict[str, Any]:
    """What is recorded of the labels that were joined to a task: a sha256 of each set, with the splits and groups."""
    joined = task.info.get(LABEL_SETS, {})
    if not joined:
        return {}
    groups = None if task.groups is None else task.groups.tolist()
    common = json.dumps([task.splits.tolist(), groups]).encode()
    found = {}
    for name in joined:
        labels = task.labels[name]
        own = json.dumps([name, task.label_names[name]]).encode() + labels.astype("<f8").tobytes()
        found[name] = hashlib.sha256(own + common).hexdigest()
    return {FINGERPRINTS: found}


def join_labels(task: Task, source: Any, options: LabelOptions) -> Task:
    """The task with the labels of a source, which become its target.

    Raises:
        UsageError: as `read_label_set`; or the task has a label set of this name.
        DataError: as `read_label_set`; or fewer than two classes, or a class that a split lacks.
    """
    label_set, made = read_label_set(task, source, options)
    if label_set.name in (*task.labels, *task.token_labels):
        raise UsageError(
            f"{task.name!a} has a label set {label_set.name!a} already; give this one another name, "
            "label(acts, labels, name=...)"
        )
    return checked_labels(with_label_sets(task, [label_set], made, target=label_set.name), made is not None)


def checked_labels(task: Task, are_first: bool) -> Task:
    """The task itself, if a probe can be trained on its target; warns of classes that look alike.

    Args:
        task: with labels that were joined.
        are_first: whether its splits were made with these labels.

    Raises:
        DataError: fewer than two classes, or a class that a split lacks.
    """
    try:
        task.check()
    except DataError as error:
        if are_first or CARVED_FROM_TRAIN not in task.info:
            raise
        raise DataError(
            f"{error}; the splits were carved for earlier labels: to have splits that suit all label sets, give them "
            "with the first one (--split-column)"
        ) from None
    warn_of_look_alikes(task)
    return task


def _refuse_lists(task: Task, source: Any) -> None:
    """Refuse a dict id -> list, which would be read as a dict of columns."""
    if not isinstance(source, Mapping) or not source:
        return
    own, value = next(iter(source.items()))
    if is_sequence(value) and isinstance(own, str | int | float) and group_name(own) in map(group_name, task.ids):
        raise DataError(f"expected one label for the text {quote(own)}, got {quote(value)}; {TOKENS_HINT}")


def _has_splits(task: Task) -> bool:
    """Whether splits were given, or made with earlier labels."""
    return bool(task.target) or bool((task.splits != "train").any())


def _join(task: Task, table: DataTable, columns: Columns, skip: bool) -> _Joined:
    """Find the example of each row of the table, and check the row."""
    row_of = {group_name(one): row for row, one in enumerate(task.ids)}
    if len(row_of) < len(task):
        raise DataError("some ids of the texts differ only in blanks, or as 1 and 1.0; extract with other ids")
    ids, joined = table.column(str(columns.id)), _Joined()
    names = table.class_names.get(str(columns.label), ())
    groups = [] if columns.group is None else table.column(columns.group)
    splits = [] if columns.split is None else table.column(columns.split)
    cells = table.column(str(columns.label))
    for i, own in enumerate(ids):
        flaw = table.bad.get(i) or name_flaw(own, "id")
        row = None if flaw else row_of.get(group_name(own))
        flaw, who = flaw or _id_flaw(task, joined, own, row_of), ""
        if flaw is None:
            flaw, who = _label_flaw(cells[i], table.typed, names), f", id {quote(own)}"
            flaw = flaw or (name_flaw(groups[i], "group") if groups else None)
            flaw = flaw or (split_flaw(splits[i], str(columns.split)) if splits else None)
        if flaw is not None and not skip:
            raise DataError(f"{table.where(i)}{who}: {flaw[1]}, {SKIP_HINT}")
        if row is not None:
            joined.twice |= {row} if row in joined.places else set()
            joined.places[row] = table.where(i)
        if flaw is not None:
            joined.skipped[flaw[0]] += 1
            continue
        assert row is not None
        joined.cells[row] = cells[i]
        joined.groups |= {row: group_name(groups[i])} if groups else {}
        joined.splits |= {row: str(split_of_cell(splits[i], columns.split or ""))} if splits else {}
    for row in joined.twice & joined.cells.keys():  # nothing says which of its labels is right
        del joined.cells[row]
        joined.skipped["twice"] += 1
    return joined


def _id_flaw(task: Task, joined: _Joined, own: Any, row_of: Mapping[str, int]) -> Flaw | None:
    """What is wrong with an id: no text has it, or another row of the table."""
    row = row_of.get(group_name(own))
    if row is None:
        known = listed([quote(one) for one in task.ids], most=3)
        text, _, token = group_name(own).rpartition(":")
        is_token = token.isdecimal() and text in row_of and task.text_of is None
        advice = f"correct it; {TOKENS_HINT}" if is_token else "correct it"
        return "unknown_id", f"no text has the id {quote(own)}, only {known}; {advice}"
    if row in joined.places:
        return "twice", f"the id {quote(own)} is that of {joined.places[row]} too; keep one of them"
    return None


def _label_flaw(cell: Any, typed: bool, names: Sequence[str]) -> Flaw | None:
    if isinstance(cell, list):
        return "label_type", f"expected one label for the text, got {quote(cell)}; {TOKENS_HINT}"
    return label_flaw(cell, typed, names) or flaw_of([cell])


def _label_set(task: Task, table: DataTable, column: str, joined: _Joined, options: LabelOptions) -> LabelSet:
    """The labels of all examples of the task; those without one are -1, or NaN in a regression."""
    rows = sorted(joined.cells)
    cells = [joined.cells[row] for row in rows]
    places = [f"{joined.places[row]}, id {quote(task.ids[row])}" for row in rows]
    found = as_labels(cells, places, column, options.regression or column in table.measured) if rows else []
    if options.on_bad_row != "skip":
        refuse_unlabelled(found, places, column, f"write the label, {SKIP_HINT}")
    classes = {row: value for row, value in zip(rows, found, strict=True) if not is_unlabelled(value)}
    joined.skipped["unlabelled"] += len(rows) - len(classes)
    rows = list(classes)
    missing = len(task) - len(rows)
    if not rows:
        raise DataError(f"no row of {table.name} labels a text of {task.name!a}; correct the ids")
    if missing and options.on_bad_row != "skip":
        first = next(one for row, one in enumerate(task.ids) if row not in classes)
        raise DataError(
            f"{table.name}: no label for the id {quote(first)} ({missing:,} of {counted(len(task), 'text')} have "
            f"none); add them, {SKIP_HINT}"
        )
    numbers, names = encode(list(classes.values()), table.class_names.get(column))
    check_number_of_classes(names, column, table.name, options.max_classes)
    labels = np.full(len(task), -1 if names else np.nan, dtype=numbers.dtype)
    labels[rows] = numbers
    info = {"source": table.name, "sha256": table.checksums(), "id_column": "", "label_column": column}
    info |= {"labelled": len(rows), "unlabelled": missing, "skipped": dict(+joined.skipped)}
    return LabelSet(column if options.name is None else options.name, labels, names, info)


def _check_same_splits(task: Task, joined: _Joined) -> None:
    """Check that a column of splits says what the splits of the task are."""
    for row, split in joined.splits.items():
        if task.splits[row] != split:
            raise DataError(
                f"{joined.places[row]}: the split of {quote(task.ids[row])} is {task.splits[row]}, got {split}; all "
                "label sets have the splits of the first: correct it, or leave the column out"
            )


def _splits(task: Task, labels: np.ndarray, joined: _Joined, columns: Columns, options: LabelOptions) -> LabelledSplits:
    """The splits with the missing ones carved from train, as `load_task` carves them."""
    if columns.group is not None:
        own = [joined.groups.get(row, f"the text {one}") for row, one in enumerate(task.ids)]
        texts = text_numbers(task.inputs) if task.has_texts else np.arange(len(task))
        task = replace(task, groups=kept_together(texts, own)[1])
    given, origin = task.splits.tolist(), task.info.get("splits_from", "")
    if _has_splits(task):
        _check_same_splits(task, joined)
    elif columns.split is not None:
        given = [joined.splits.get(row, "train") for row in range(len(task))]
        origin = f"by column {columns.split!a}"
    if "train" not in given:
        raise DataError(f"no text is in the split train by column {columns.split!a}; put some there to fit on")
    missing = missing_splits(given, options.validation)
    seed = task.info.get("seed", 0) if options.seed is None else options.seed
    keys = task.split_keys().tolist()
    if task.generated is not None and task.token_ids is not None:  # one prompt may have several continuations
        prompts = [tuple(own[: len(own) - n]) for own, n in zip(task.token_ids, task.generated.tolist(), strict=True)]
        keys = components(keys, prompts).tolist()
    splits = carve_missing(labels, given, keys, missing, seed)
    return LabelledSplits(splits, task.groups, {"seed": seed, CARVED_FROM_TRAIN: missing, "splits_from": origin})
