"""Write labels into a store that is there, by the ids of its texts."""

from dataclasses import dataclass
from typing import Any

from probekit.activations.store.examples import read_examples
from probekit.activations.store.format import read_plan
from probekit.activations.store.labels import stored_labels, with_stored_labels, write_labels
from probekit.errors import UsageError
from probekit.files.remote.path import AnyPath
from probekit.options.check import check_any_path
from probekit.options.option import keywords
from probekit.options.task import LabelArguments
from probekit.tasks.base import Task
from probekit.tasks.join_labels import checked_labels, read_label_set, with_label_sets


@dataclass(frozen=True, eq=False)
class LabelledStore:
    """The result of `label_store`.

    Attributes:
        path: the store.
        name: of the label set.
        task: the texts with all labels of the store; the new set is the target.
        info: how many texts are labelled and unlabelled, how many rows were skipped and why.
        is_new: False if the store had the same labels already.
    """

    path: AnyPath
    name: str
    task: Task
    info: dict[str, Any]
    is_new: bool

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        counts = self.task.counts(self.name)
        return {"store": str(self.path), "label": self.name, **self.info, "counts": counts, "new": self.is_new}


@keywords(LabelArguments)
def label_store(path: str | AnyPath, labels: Any, options: LabelArguments) -> LabelledStore:
    """Write labels into a store, complete or not, by the ids of its texts.

    Each label set has a file of its own; activations and examples stay as they are. The first labels of a store that
    was made without labels carve its splits, as `load_task` carves them, and later label sets have the same splits.

    Args:
        path: the store.
        labels: a file, a dict id -> label, a Series whose index holds ids, a DataFrame, a list of (id, label) pairs or
            of dicts.
        options: as keyword arguments.

    Raises:
        UsageError: labels without ids, a column that is not there, or the name of a label set that was extracted.
        DataError: no store there; an id that is unknown, missing or there twice; a label that cannot be used; fewer
            than two classes, or a class that a split lacks.
        ResumeMismatch: the store has other labels of this name, and `replace` is False.
        StorageError: the store is damaged, or the disk refused.
    """
    path = check_any_path("the store", path)
    plan = read_plan(path)
    examples = read_examples(path, plan)
    known = stored_labels(path, examples)
    task = with_stored_labels(examples.task, known)
    label_set, splits = read_label_set(task, labels, options)
    if label_set.name in (*examples.task.labels, *examples.task.token_labels):
        raise UsageError(
            f"the label set {label_set.name!a} of {str(path)!a} was extracted with its texts; name this one otherwise "
            "(--name)"
        )
    if options.replace and [one.name for one in known.sets] == [label_set.name]:
        task = examples.task  # as if these were the first: splits are carved anew
        label_set, splits = read_label_set(task, labels, options)
    made = checked_labels(with_label_sets(task, [label_set], splits, target=label_set.name), splits is not None)
    is_new = write_labels(path, examples, known, label_set, splits, options.replace)
    return LabelledStore(path, label_set.name, made, label_set.info, is_new)
