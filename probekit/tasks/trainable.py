"""Whether a probe can be trained and tested on a label set of a task, and what to do where it cannot.

Axes: N examples, K numbers of a label.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from probekit.errors import DataError
from probekit.tasks.info import CARVED_FROM_TRAIN
from probekit.tasks.labels import are_whole_numbers
from probekit.tasks.splitting.split_names import SPLITS
from probekit.text import counted

Task = Any  # `tasks.base.Task`, which imports this module
IMBALANCED = 0.8  # share of the training labels above which one class makes accuracy uninformative
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
