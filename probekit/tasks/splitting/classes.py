"""The classes of a label set: whether every split has them, what is done with rare ones, and names that look alike.

Axes: N examples, C classes, K numbers of a label.
"""

import unicodedata
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from probekit.errors import DataError, UsageError
from probekit.options.task import RareClasses
from probekit.tasks.fields import CARVED_FROM_TRAIN
from probekit.tasks.labels import are_whole_numbers
from probekit.tasks.splitting.splits import SPLITS, first_rows, folded
from probekit.tasks.token_labels import Stretches, label_rows
from probekit.text import counted, listed

Task = Any  # `tasks.base.Task`, which imports this module
IMBALANCED = 0.8  # share of the training labels above which one class makes accuracy uninformative
OTHER = "other"
MANY_CLASSES = 20  # of whole numbers: they may be values to predict


def check_trainable(task: Task, label_set: str) -> None:
    """Check that train, test and, if it has rows, validation have every class, or two different numbers.

    Raises:
        DataError: they do not; labels out of range.
    """
    (_check_classes if task.n_classes(label_set) else _check_numbers)(task, label_set)


def needed_splits(task: Task) -> list[str]:
    """Train, test and, if it has rows, validation: it only serves to choose between probes."""
    return [split for split in SPLITS if split != "validation" or (task.splits == split).any()]


def every_split_needs(task: Task, label_set: str) -> str:
    """The first sentence of the error where a split lacks a class, with the counts."""
    counts = task.counts(label_set)
    found = count_line({split: counts[split] for split in needed_splits(task)})
    return f"every split needs every class of {label_set!a}, got {found}"


def regression_hint(names: Sequence[str]) -> str:
    """Advice where many classes are whole numbers; otherwise ""."""
    is_likely = len(names) > MANY_CLASSES and are_whole_numbers(names)
    return "; numbers such as years are predicted with --regression" if is_likely else ""


def too_alike(task: Task, label_set: str) -> str:
    """Advice where carved splits lack something because too many texts are equal; otherwise ""."""
    if CARVED_FROM_TRAIN not in task.info or not task.has_texts:
        return ""
    n, least = int(task.split_keys().max(initial=-1)) + 1, len(SPLITS)
    if task.spans is None:
        least *= max(2, task.n_classes(label_set))
    if n == len(task) or n >= least:
        return ""
    by_text = task.groups is None or task.spans is not None
    what, one = ("texts", "text") if by_text else ("texts and groups", "group")
    return (
        f"equal {what} stay in one split, and the {len(task)} examples have only "
        f"{counted(n, f'different {one}')}; add other texts, or give each split its own file"
    )


def count_line(counts: Mapping[str, Mapping[str, int]], most: int = 10) -> str:
    """Counts per class and split in one line; if there are more than `most` classes, the three rarest of each split."""
    parts = []
    for split, classes in counts.items():
        shown = list(classes.items())
        if len(shown) > most:
            shown = sorted(shown, key=lambda item: item[1])[:3]
        more = f", and {len(classes) - len(shown):,} more classes" if len(shown) < len(classes) else ""
        parts.append(
            f"{split}: " + (", ".join(f"{ascii(name)[1:-1][:40]}={n}" for name, n in shown) or "nothing") + more
        )
    return "; ".join(parts)


def _check_classes(task: Task, label_set: str) -> None:
    _check_range(task, label_set)
    names, counts = task.label_names[label_set], task.counts(label_set)
    counts = {split: counts[split] for split in needed_splits(task)}
    if sum(any(classes[name] for classes in counts.values()) for name in names) < 2:
        raise DataError(f"a probe needs two classes of {label_set!a} or more, got {count_line(counts)}")
    if any(n == 0 for classes in counts.values() for n in classes.values()):
        more = "" if task.groups is None else ", or make the groups smaller"
        advice = f"add examples, or merge rare classes{more}{regression_hint(names)}"
        raise DataError(f"{every_split_needs(task, label_set)}; {too_alike(task, label_set) or advice}")


def _check_range(task: Task, label_set: str) -> None:
    labels, n = task.labels[label_set], task.n_classes(label_set)
    if ((labels < 0) | (labels >= n)).any():
        found = {}
        for split in SPLITS:
            values, counts = np.unique(labels[task.splits == split], return_counts=True)
            found[split] = dict(zip(map(str, values.tolist()), counts.tolist(), strict=True))
        raise DataError(
            f"labels of {label_set!r} must be 0..{n - 1}, got {count_line(found)}; leave unlabelled examples out"
        )


def _check_numbers(task: Task, label_set: str) -> None:
    labels = task.labels[label_set]
    values = {split: labels[task.splits == split] for split in needed_splits(task)}
    if labels.ndim == 2 and (flaw := _constant_output(values)):
        raise DataError(f"a regression needs outputs that vary, and {flaw} of {label_set!a}; leave it out")
    if any(len(np.unique(own)) < 2 for own in values.values()):
        found = "; ".join(f"{split}: {_values_of(own)}" for split, own in values.items())
        raise DataError(
            f"a regression needs two different values of {label_set!a} or more in every split, got {found}; "
            f"{too_alike(task, label_set) or 'add examples, or name another column of labels'}"
        )


def _constant_output(values: Mapping[str, np.ndarray]) -> str | None:
    """The first output of targets [N, K] that does not vary in a split, in words; None if all vary.

    R2 is undefined for such an output, and so is its mean over the outputs.
    """
    for split, own in values.items():
        constant = np.ptp(own, axis=0) == 0 if len(own) else np.ones(own.shape[1], dtype=bool)
        if constant.any():
            return f"output {int(constant.argmax())} has one value in all of {split}"
    return None


def _values_of(labels: np.ndarray) -> str:
    return f"{len(labels)} of {labels.min():g} to {labels.max():g}" if len(labels) else "nothing"


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
    of = first_rows(keys)[1]
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
    left = task.subset(made.kept)
    settled = replace(
        left,
        labels={**left.labels, task.target: made.labels},
        label_names={**task.label_names, task.target: made.names},
        info={**task.info, **rare_info(made, how, task.info)},
    )
    if how == "merge":
        is_merged = settled.labels[task.target] == len(made.names) - 1
        for split in there:
            if not is_merged[settled.splits == split].any():
                raise DataError(
                    f"{_rare_line(settled.info['rare_classes'])} are too few even as one class, and {split} would have "
                    "none of it; leave them out with --rare-classes drop"
                )
    return settled


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


def look_alike_words(names: Iterable[str]) -> str:
    """A phrase that names the classes that differ only in case, Unicode form or spaces; "" if there are none."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(_plain_form(name), []).append(name)
    found = [" and ".join(map(ascii, together)) for together in alike.values() if len(together) > 1]
    return f"separate classes look alike: {listed(found, most=5, between='; ')}" if found else ""


def warn_of_look_alikes(task: Task) -> None:
    """Warn if classes of the target look alike."""
    if alike := look_alike_words(task.label_names[task.target]):
        warnings.warn(f"labels {task.target!a}: {alike}; spell them the same to join them", stacklevel=4)


def _plain_form(name: str) -> str:
    """The name without what the eye does not see: NFKC, case folded, white space collapsed, no format characters."""
    return " ".join("".join(c for c in folded(name) if unicodedata.category(c) != "Cf").split())
