"""The rows with each value of a column: categories, or parts of a range of numbers.

Axes: N examples.
"""

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np

from probekit.activations.activations import Activations
from probekit.evaluation.surface.columns import (
    COMPUTED,
    MOST_COUNTED,
    categories,
    column_values,
    is_computed,
    number_names,
)

PARTS = 4  # of a column of many numbers, with equally many training rows each
MOST_VALUES = 12  # more curves are indistinguishable, and a larger matrix is unreadable


def rows_by_value(
    acts: Activations, name: str, label: str, train: np.ndarray
) -> tuple[np.ndarray, list[str], Counter[str]]:
    """The value of each example as text, [N], None where it is missing; the values in order; and the rows of each.

    Many numbers are cut at the quartiles of the training rows. Their parts are in the order of the range, other values
    have the most frequent first.

    Args:
        acts: one row for each example.
        name: a key of `COMPUTED`, a kept column, or another label set.
        label: the label set that is predicted.
        train: rows.

    Raises:
        UsageError: no such column.
        DataError: the length of inputs that have no texts.
    """
    if is_computed(acts, name):
        numbers = COMPUTED[name](acts, train).astype(np.float64)
    else:
        numbers = column_values(acts, name, label)
    if numbers.dtype == np.float64 and len(np.unique(numbers[~np.isnan(numbers)])) > MOST_COUNTED:
        values, order = _parts(numbers, train)
    else:
        values, order = categories(numbers), []
        values[[one is None or one != one for one in numbers.tolist()]] = None
    counts = Counter(value for value in values.tolist() if value is not None)
    return values, [one for one in order if counts[one]] or sorted(counts, key=lambda one: (-counts[one], one)), counts


def has_rows(labels: np.ndarray, n_classes: int, least: int) -> bool:
    """Whether there are `least` rows of each class; of a regression in all, with different numbers."""
    if n_classes:
        return bool((np.bincount(labels, minlength=n_classes) >= least).all())
    return len(labels) >= least and bool(len(labels)) and bool((np.ptp(labels, axis=0) > 0).any())


def _parts(numbers: np.ndarray, train: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Which part of the range each number is in, between the quartiles of the training rows; and the parts."""
    known = numbers[train][~np.isnan(numbers[train])]
    cuts = np.unique(np.quantile(known, np.linspace(0, 1, PARTS + 1)[1:-1])) if len(known) else np.empty(0)
    names = _part_names(cuts.tolist())
    part = np.searchsorted(cuts, numbers, side="left")  # a part holds its upper end
    out = np.empty(len(numbers), dtype=object)
    out[:] = [None if number != number else names[k] for number, k in zip(numbers, part, strict=True)]
    return out, names


def _part_names(cuts: Sequence[float]) -> list[str]:
    if not cuts:
        return ["all"]
    ends = number_names(cuts)
    inner = [f"over {low} to {high}" for low, high in itertools.pairwise(ends)]
    return [f"up to {ends[0]}", *inner, f"over {ends[-1]}"]
