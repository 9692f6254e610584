"""Classes that some split lacks: a probe cannot be fitted and tested on them.

Axes: N examples, C classes.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from probekit.errors import DataError, UsageError
from probekit.options.task import RareClasses
from probekit.tasks.base import Task
from probekit.tasks.labels import are_whole_numbers
from probekit.tasks.tokens.stretches import Stretches
from probekit.tasks.tokens.token_labels import label_rows
from probekit.tasks.trainable import every_split_needs, needed_splits, regression_hint, too_alike
from probekit.text import counted, listed

OTHER = "other"


@dataclass(frozen=True, eq=False)
class SettledClasses:
    """Labels after rare classes were dropped or merged.

    Attributes:
        kept: the rows that stay, int64, of N before.
        labels: their classes.
        names: of the classes.
        rare: name -> number of rows, of each class that was dropped or merged.
        merged: the name of the class of merged ones; None if there is none.
    """

    kept: np.ndarray
    labels: np.ndarray
    names: list[str]
    rare: dict[str, int] = field(default_factory=dict)
    merged: str | None = None


def settle_classes(labels: np.ndarray, names: list[str], rare: np.ndarray, how: RareClasses) -> SettledClasses:
    """Drop or merge the classes whose numbers are in `rare`; the others are renumbered in order, "other" is last."""
    if not len(rare) or how == "error":
        return SettledClasses(np.arange(len(labels)), labels, names)
    counts = np.bincount(labels, minlength=len(names))
    new = np.full(len(names), -1)
    common = np.setdiff1d(np.arange(len(names)), rare)
    new[common] = np.arange(len(common))
    left, merged = [names[k] for k in common], None
    if how == "merge":
        new[rare] = len(common)
        merged = _free_name(left)
        left.append(merged)
    kept = np.flatnonzero(new[labels] >= 0)
    return SettledClasses(kept, new[labels[kept]], left, {names[k]: int(counts[k]) for k in rare}, merged)


def too_rare_to_carve(
    labels: np.ndarray,
    n_classes: int,
    splits: Sequence[str],
    keys: Sequence[Hashable] | np.ndarray,
    missing: Sequence[str],
) -> np.ndarray:
    """The classes that cannot be in every split after carving.

    A class needs a key of its own in train for each split that is carved from it and one for train itself, since rows
    of equal keys stay together; and a row in each split that is given.

    Args:
        labels: int64 [N].
        n_classes: C.
        splits: N names, before carving.
        keys: N, equal for rows that must share a split.
        missing: the splits to be carved.
    """
    given = np.asarray(splits)
    number: dict[Hashable, int] = {}
    of = np.array([number.setdefault(key, len(number)) for key in keys], dtype=np.int64)
    train = given == "train"
    pairs = np.unique(np.stack([labels[train], of[train]]), axis=1)[0]
    rare = np.bincount(pairs, minlength=n_classes) < 1 + len(missing)
    for split in set(given.tolist()) - {"train"}:
        rare |= np.bincount(labels[given == split], minlength=n_classes) == 0
    return np.flatnonzero(rare)


def without_rare_classes(task: Task, how: RareClasses) -> Task:
    """The task with the target's classes that some split lacks dropped or merged, named and counted in `info`.

    Raises:
        DataError: there are such classes and `how` is "error", or too little is left of the others.
    """
    if task.target in task.token_labels:
        return _without_rare_of_tokens(task, how)
    labels, names = task.labels[task.target], task.label_names[task.target]
    there = needed_splits(task)
    if not len(names) or (len(labels) and not 0 <= labels.min() <= labels.max() < len(names)):
        return task  # a regression, or labels that `Task.check` refuses
    counts = [np.bincount(labels[task.splits == split], minlength=len(names)) for split in there]
    rare = np.flatnonzero(np.min(counts, axis=0) == 0)
    if not len(rare) or len(names) < 2:
        return task
    if how == "error" or len(names) - len(rare) < (2 if how == "drop" else 1):
        raise DataError(_problem(task, rare, how))
    if (merged := task.info.get("merged_classes")) in names:
        rare = np.union1d(rare, names.index(merged))
    made = settle_classes(labels, names, rare, how)
    settled = _with_classes(task.subset(made.kept), made, how)
    if how == "merge":
        is_merged = settled.labels[task.target] == len(made.names) - 1
        for split in there:
            if not is_merged[settled.splits == split].any():
                raise DataError(
                    f"{_rare_line(settled.info['rare_classes'])} are too few even as one class, and {split} would have "
                    "none of it; leave them out with --rare-classes drop"
                )
    return settled


def _with_classes(task: Task, made: SettledClasses, how: RareClasses) -> Task:
    """The task with these classes of its target, and what was dropped or merged in its info."""
    info = {**task.info, **rare_info(made, how, task.info)}
    return replace(
        task,
        labels={**task.labels, task.target: made.labels},
        label_names={**task.label_names, task.target: made.names},
        info=info,
    )


def _without_rare_of_tokens(task: Task, how: RareClasses) -> Task:
    """As `without_rare_classes`, where the target is of tokens; those of dropped classes have no label then."""
    rows, names = label_rows(task, task.target), task.label_names[task.target]
    settled = without_rare_classes(rows, how) if names else rows
    if settled is rows:
        return task
    left, merged = settled.label_names[task.target], settled.info.get("merged_classes")
    known: dict[Any, int] = {name: k for k, name in enumerate(left)}
    codes = np.array([*(known.get(name, known.get(merged, -1)) for name in names), -1])
    labels = [
        one._replace(values=codes[one.values]) if isinstance(one, Stretches) else codes[one]
        for one in task.token_labels[task.target]
    ]
    return replace(
        task,
        token_labels={**task.token_labels, task.target: labels},
        label_names={**task.label_names, task.target: left},
        info={**task.info, **{key: settled.info[key] for key in ("rare_classes", "rare_policy", "merged_classes")}},
    )


def rare_info(made: SettledClasses, how: RareClasses, before: dict) -> dict:
    """The part of a task's info about rare classes; `before` may hold those of an earlier step."""
    if not made.rare:
        return {}
    rare = {name: n for name, n in made.rare.items() if name != before.get("merged_classes")}
    return {
        "rare_classes": {**before.get("rare_classes", {}), **rare},
        "rare_policy": how,
        "merged_classes": made.merged,
    }


def check_number_of_classes(names: Sequence[str], column: str, where: str, most: int) -> None:
    """Raise a UsageError if a label column has more classes than `most`."""
    if len(names) <= most:
        return
    shown = ", ".join(ascii(name)[:40] for name in names[:3])
    numbers = ", predict numbers with --regression" if are_whole_numbers(names) else ""
    raise UsageError(
        f"{where}: expected at most {most:,} classes, got {len(names):,} different labels in column {column!a} "
        f"({shown}, ...); name another --label-column{numbers}, or raise --max-classes"
    )


def rare_words(info: dict) -> str:
    """What was dropped or merged, for a plan; "" if nothing was."""
    rare = info.get("rare_classes")
    if not rare:
        return ""
    done = "left out" if info.get("rare_policy") == "drop" else f"merged into {info.get('merged_classes')!a}"
    return f"{_rare_line(rare)}: too rare for a split, {done}"


def _rare_line(rare: dict[str, int]) -> str:
    largest = sorted(rare.items(), key=lambda item: -item[1])
    names = listed([f"{ascii(name)[1:-1][:40]}={n:,}" for name, n in largest])
    return f"{counted(sum(rare.values()), 'example')} of {counted(len(rare), 'class', 'classes')} ({names})"


def _problem(task: Task, rare: np.ndarray, how: RareClasses) -> str:
    """What is wrong, and what to do about it."""
    names = task.label_names[task.target]
    sizes = np.bincount(task.labels[task.target], minlength=len(names))
    problem, is_left = every_split_needs(task, task.target), len(names) - len(rare) >= 2
    if not is_left and (alike := too_alike(task, task.target)):
        return f"{problem}; {alike}"
    groups = "" if task.groups is None or task.spans is not None else ", make the groups smaller"
    if how != "error" or not is_left:
        return f"{problem}; add examples{groups}, or use another label{regression_hint(names)}"
    found = _rare_line({names[k]: int(sizes[k]) for k in rare})
    return (
        f"{problem}; add examples{groups}, or leave rare classes out with --rare-classes drop, or merge them: "
        f"{found}{regression_hint(names)}"
    )


def _free_name(names: Sequence[str]) -> str:
    """The name "other", or a name like it that no class has."""
    known, name, n = {each.casefold() for each in names}, OTHER, 1
    while name in known:
        n += 1
        name = f"{OTHER} {n}"
    return name
