"""The rows of a task: which may be fitted, which share a fold, and which are resampled together.

Axes: N examples.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from probekit.activations.activations import Activations
from probekit.errors import DataError
from probekit.evaluation.compare.baseline_fits import word_counts
from probekit.evaluation.fits.protocol import Protocol, check_masks, fold_protocol, split_protocol
from probekit.evaluation.request import Request
from probekit.options import ProbeOptions
from probekit.tasks.base import SPLITS, Task
from probekit.tasks.chats.messages import compared_inputs
from probekit.tasks.quality.audit import Audit, TextComparison, audit, audit_of_folds, compare_texts
from probekit.tasks.quality.duplicates import linked_texts
from probekit.tasks.splitting.splits import components, text_numbers


class Comparisons:
    """What is known about the texts of a task whatever its labels, so that it is worked out once for all label sets.

    Args:
        near: whether splits are searched for near-duplicates too.
    """

    def __init__(self, near: bool = True) -> None:
        self.near = near
        self._known: dict[tuple[str, int], tuple[Task, Any]] = {}

    def of_splits(self, task: Task) -> TextComparison:
        """Which texts its splits share."""
        return self._once("splits", task, partial(compare_texts, near=self.near))

    def linked(self, task: Task) -> np.ndarray:
        """Numbers [N], equal for rows with equal or nearly equal texts."""
        return self._once("linked", task, _linked)

    def words(self, task: Task) -> Any:
        """How often each word occurs in each text."""
        return self._once("words", task, lambda task: word_counts(compared_inputs(task)))

    def bigrams(self, task: Task) -> Any:
        """How often each word and each pair of neighbouring words occurs in each text."""
        return self._once("bigrams", task, lambda task: word_counts(compared_inputs(task), 2))

    def fingerprint(self, acts: Activations) -> str | None:
        """The task's fingerprint, if the activations do not record it."""
        return self._once("fingerprint", acts.task, lambda _: task_fingerprint(acts))

    def _once(self, what: str, task: Task, work: Callable[[Task], Any]) -> Any:
        key = (what, id(task))
        if key not in self._known:
            self._known[key] = (task, work(task))  # the task is kept, so that no other gets its id
        return self._known[key][1]


def _linked(task: Task) -> np.ndarray:
    rows, of = task.texts() if task.text_of is not None else (np.arange(len(task)),) * 2
    inputs = compared_inputs(task)
    return linked_texts([inputs[i] for i in rows])[of] if task.has_texts else of


def audited_protocol(request: Request, options: ProbeOptions, texts: Comparisons) -> tuple[Audit, Protocol]:
    """The audit of the task, and its rows by split or fold, without leaks where the options drop them.

    Raises:
        DataError: a split or fold without all classes, before or after leaks are dropped.
    """
    task = request.acts.task
    if options.folds is not None:
        return _folds(request, options.folds, options.seed, texts.linked(task))
    task.check(request.label)
    found = audit(task, request.label, texts=texts.of_splits(task))
    kept = np.ones(len(task), dtype=bool)
    if not options.drop_leaks:
        return found, split_protocol(task.splits, kept)
    kept[found.leaks] = False
    _check_left(task.splits, kept)
    try:
        task.subset(kept).check(request.label)
    except DataError as error:
        raise DataError(
            f"too little is left by --drop-leaks (drop_leaks), without the texts of later splits: {error}"
        ) from None
    return replace(found, dropped=True), split_protocol(task.splits, kept)


def _check_left(splits: np.ndarray, kept: np.ndarray) -> None:
    """Refuse to drop a complete split: a validation file equal to the test file."""
    for split in SPLITS:
        if (splits == split).any() and not (kept & (splits == split)).any():
            carved = "" if split == "train" else ", or leave it out of the data"
            raise DataError(
                f"every text or group of {split} is also in a later split, so --drop-leaks (drop_leaks) leaves nothing "
                f"of it; give {split} texts of its own{carved}"
            )


def _folds(request: Request, folds: int, seed: int, texts: np.ndarray) -> tuple[Audit, Protocol]:
    task = request.acts.task
    linked = texts if task.groups is None else components(texts.tolist(), task.groups.tolist())
    protocol = fold_protocol(request.labels, linked, folds, seed)
    check_masks(protocol, request.labels, task.label_names[request.label], request.label)
    return audit_of_folds(task, request.label, texts), protocol


def types_read(acts: Activations) -> list[Any] | None:
    """The word of each example, or, where tokens are examples, the token's id; None where they are complete texts."""
    if acts.task.text_of is None:
        return acts.task.words
    return None if acts.layout.tokens is None else acts.layout.tokens.tolist()


def resampling_units(task: Task) -> np.ndarray | None:
    """Rows that depend on one another, and are resampled together, have equal numbers or names: [N]; None for no such.

    The units are the groups. Without groups, where each row is read at its own token, they are the rows of one text.
    """
    if task.groups is not None or isinstance(task.position, str):
        return task.groups
    if not task.has_texts:
        return task.text_of
    if task.text_of is not None:
        rows, of = task.texts()
        return text_numbers([task.inputs[i] for i in rows])[of]
    number = text_numbers(task.inputs)
    return number if len(np.unique(number)) < len(number) else None


def task_fingerprint(acts: Activations) -> str | None:
    """The fingerprint of the task, where the activations do not record it."""
    return None if "task_fingerprint" in acts.meta else acts.task.fingerprint()
