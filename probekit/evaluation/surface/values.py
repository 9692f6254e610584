"""The values of a column between which probes are shifted: categories, or numbers cut at the quartiles of train.

Axes: N examples, T values.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probekit.activations.activations import Activations
from probekit.errors import DataError
from probekit.evaluation.surface.columns import LENGTH, MISSING, MOST_COUNTED, TOKENS, categories, column_values
from probekit.tasks.chats.contents import compared_inputs
from probekit.text import listed

PARTS = 4  # of a column of many numbers, with equally many training rows each
MOST_VALUES = 12  # a larger matrix could not be read
LEAST_CHOOSE = 1  # rows of each class in validation; of a regression, this and one more


@dataclass(frozen=True, eq=False)
class ShiftValues:
    """The values of a column, and which of them can be trained on and tested.

    Attributes:
        of: the value of each example, [N]; None where it is missing.
        trained: those with enough rows in train and validation, the most frequent first, or parts of a range in order.
        tested: those with enough rows in test.
        left_out: value -> why it is neither.
    """

    of: np.ndarray
    trained: list[str]
    tested: list[str]
    left_out: dict[str, str]


def shift_values(
    acts: Activations, name: str, label: str, labels: np.ndarray, rows: dict[str, np.ndarray], least: int
) -> ShiftValues:
    """The values of a column that have enough rows of each class.

    Args:
        acts: one row for each example.
        name: a kept column, another label set, "length" (in words) or "tokens".
        label: the label set that is predicted.
        labels: int64 [N], or float64 [N] of a regression.
        rows: split -> rows in use.
        least: rows of each class that a value needs in train, and in test; of a regression, in all.

    Raises:
        UsageError: no such column.
        DataError: fewer than two values have enough rows.
    """
    values, parts = _named(acts, name, label, rows["train"])
    counts = Counter(value for value in values.tolist() if value is not None)
    known = [one for one in parts if counts[one]] or sorted(counts, key=lambda one: (-counts[one], one))
    n_classes = len(acts.label_names[label])

    def has(value: str, split: str, needed: int) -> bool:
        own = labels[rows.get(split, np.empty(0, dtype=np.int64))]
        own = own[values[rows.get(split, np.empty(0, dtype=np.int64))] == value]
        if not n_classes:
            return len(own) >= needed and bool(len(own)) and bool((np.ptp(own, axis=0) > 0).any())
        return bool((np.bincount(own, minlength=n_classes) >= needed).all())

    chooses = bool(len(rows.get("validation", ())))
    few = LEAST_CHOOSE if n_classes else LEAST_CHOOSE + 1
    trained = [one for one in known if has(one, "train", least) and (not chooses or has(one, "validation", few))]
    tested = [one for one in known if has(one, "test", least)]
    left_out = {
        one: f"fewer than {least} rows of each class in train and in test" if n_classes else f"fewer than {least} rows"
        for one in known
        if one not in trained and one not in tested
    }
    for one in [one for one in known if one not in left_out][MOST_VALUES:]:
        left_out[one] = f"not among the {MOST_VALUES} largest"
    trained, tested = ([one for one in own if one not in left_out] for own in (trained, tested))
    if not trained or not tested or len({*trained, *tested}) < 2:
        found = listed([f"{one!a:.40} {counts[one]:,}" for one in known], most=6) or "none"
        raise DataError(
            f"a shift needs two values of {name!a:.80} with {least} rows of each class in train and in test, and one "
            f"in validation; it has {found}; take fewer (--least-texts), add rows, or name another column"
        )
    return ShiftValues(values, trained, tested, left_out)


def _named(acts: Activations, name: str, label: str, train: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """The value of each example as text, None where it is missing; and the parts of a range in order."""
    if name == LENGTH and name not in acts.task.columns and acts.task.has_texts:
        inputs = compared_inputs(acts.task)
        numbers = np.array([len(one.split() if isinstance(one, str) else one) for one in inputs], dtype=np.float64)
    elif name == TOKENS and name not in acts.task.columns:
        numbers = acts.layout.own_lengths.astype(np.float64)
    else:
        numbers = column_values(acts, name, label)
    if numbers.dtype == np.float64 and len(np.unique(numbers[~np.isnan(numbers)])) > MOST_COUNTED:
        return _parts(numbers, train)
    names = categories(numbers)
    names[names == MISSING] = None
    return names, []


def _parts(numbers: np.ndarray, train: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Which part of the range each number is in, between the quartiles of the training rows; and the parts."""
    known = numbers[train][~np.isnan(numbers[train])]
    cuts = np.unique(np.quantile(known, np.linspace(0, 1, PARTS + 1)[1:-1])) if len(known) else np.empty(0)
    names = _part_names(cuts)
    part = np.searchsorted(cuts, numbers, side="left")  # a part holds its upper end
    out = np.empty(len(numbers), dtype=object)
    out[:] = [None if number != number else names[k] for number, k in zip(numbers, part, strict=True)]
    return out, names


def _part_names(cuts: Sequence[float]) -> list[str]:
    if not len(cuts):
        return ["all"]
    inner = [f"over {low:g} to {high:g}" for low, high in itertools.pairwise(cuts)]
    return [f"up to {cuts[0]:g}", *inner, f"over {cuts[-1]:g}"]
