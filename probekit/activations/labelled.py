"""Activations with labels that came later, joined by the ids of their texts."""

import copy
from collections.abc import Iterable
from typing import Any, TypeVar

from probekit.activations.activations import Activations
from probekit.errors import UsageError
from probekit.options.option import keywords
from probekit.options.task import LabelOptions
from probekit.tasks.base import Task
from probekit.tasks.join_labels import FINGERPRINTS, join_labels, labels_record, with_column_as_labels
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
