"""Activations with labels that came later: `label` joins them, and probes read the rows that have one.

Axes: N examples, n of them.
"""

import copy
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from probekit.activations.activations import Activations
from probekit.activations.layout import Layout
from probekit.errors import UsageError
from probekit.options.label import LabelOptions
from probekit.options.option import keywords
from probekit.points import Place
from probekit.tasks.base import Task
from probekit.tasks.join_labels import join_labels
from probekit.tasks.trainable import labelled_rows
from probekit.text import kind_of

A = TypeVar("A", bound=Activations)
EVERY_ROW = ("", None)  # a place with the rows of tokens, whatever the point


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
    """The same activations with another task of the same examples; its fingerprint is recorded."""
    view = copy.copy(acts)
    view.task = task
    view.meta = {**acts.meta, "task_fingerprint": task.fingerprint()}
    return view


def labelled_only(acts: Activations, label_set: str) -> Activations:
    """The examples that have a label in this set; the activations themselves if all have one."""
    rows = labelled_rows(acts.task, label_set)
    return acts if rows is None or rows.all() else SomeExamples(acts, np.flatnonzero(rows))


class SomeExamples(Activations):
    """Some examples of activations, read on access.

    Args:
        of: all of them.
        rows: which examples, int64 [n].
    """

    def __init__(self, of: Activations, rows: np.ndarray):
        self.of, self.rows = of, rows
        super().__init__(list(of), of.task.subset(rows), of.meta, _some(of.layout, rows))

    def same_of(self, other: Activations) -> "SomeExamples":
        """The same examples of other activations."""
        return SomeExamples(other, self.rows)

    def _rows(self, place: Place) -> Tensor:
        every = self.of._rows(place)
        return every[torch.from_numpy(self.of.layout.index(place, self.rows)).to(every.device)]

    def _n_bytes(self) -> int:
        return self.of._n_bytes()


def _some(layout: Layout, rows: np.ndarray) -> Layout:
    index = layout.index(EVERY_ROW, rows)
    return replace(
        layout,
        lengths=layout.lengths[rows],
        tokens=None if layout.tokens is None else layout.tokens[index],
        picked=None if layout.picked is None else layout.picked[rows],
        token_index=None if layout.token_index is None else layout.token_index[index],
        characters=None if layout.characters is None else layout.characters[index],
    )
