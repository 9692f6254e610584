"""Labels that came later, joined by the ids of the texts: to activations in memory, and in a store that is there."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from probekit.activations.activations import Activations
from probekit.activations.store.examples import read_examples
from probekit.activations.store.format import read_plan
from probekit.activations.store.labels import stored_labels, with_stored_labels, write_labels
from probekit.errors import UsageError
from probekit.files.remote.path import AnyPath
from probekit.options.check import check_any_path
from probekit.options.option import keywords
from probekit.options.task import LabelArguments, LabelOptions
from probekit.tasks.base import Task
from probekit.tasks.join_labels import (
    FINGERPRINTS,
    checked_labels,
    join_labels,
    labels_record,
    read_label_set,
    with_column_as_labels,
    with_label_sets,
)
from probekit.text import kind_of

A = TypeVar("A", bound=Activations)


@keywords(LabelOptions)
def label(acts: Activations, labels: Any, options: LabelOptions) -> Activations:
    """The same activations with labels, joined by the ids of the texts (`acts.ids`); they become the target.

    Nothing is copied, and a store on disk stays as it is: `probekit label` (`label_store`) writes labels into it.
    Splits are carved with the first labels, as `load_task` carves them; those that were given stay.

    Args:
        acts: of texts, labelled or not.
        labels: a dict id -> label, a Series whose index holds ids, a DataFrame, a list of (id, label) pairs or of
            dicts, or the path of a CSV, TSV, JSONL or Parquet file.
        options: as keyword arguments.

    Raises:
        UsageError: labels without ids, a column that is not there, or a label set of this name.
        DataError: an id that is unknown, missing or there twice; a label that cannot be used; fewer than two classes.
    """
    if not isinstance(acts, Activations):
        raise UsageError(f"expected activations, as extract and load_activations return them; got {kind_of(acts)}")
    return with_task(acts, join_labels(acts.task, labels, options))


def with_task(acts: A, task: Task) -> A:
    """The same activations with another task of the same examples."""
    view = copy.copy(acts)
    view.task = task
    view.meta = {**acts.meta, **labels_record(task)}
    return view


def with_label_columns(acts: A, *names: str | None) -> A:
    """The same activations; columns that were kept with the texts become label sets where `names` has them."""
    task = acts.task
    for name in names:
        task = with_column_as_labels(task, name)
    return acts if task is acts.task else with_task(acts, task)


def record_of_labels(acts: Activations, label_sets: Iterable[str]) -> dict[str, Any]:
    """The record of activations (`meta`), with only these of the label sets that were joined later.

    Results hold it. A label set that comes later still, or other labels in place of another set, do not change it.
    """
    known = acts.meta.get(FINGERPRINTS, {})
    own = {name: known[name] for name in label_sets if name in known}
    rest = {key: value for key, value in acts.meta.items() if key != FINGERPRINTS}
    return {**rest, FINGERPRINTS: own} if own else rest


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
