"""The rows that have a curve of their own: those with one value of a column, fitted, chosen and tested alone.

Axes: N examples.
"""

from dataclasses import dataclass, field

import numpy as np

from probekit.activations.activations import Activations
from probekit.errors import DataError
from probekit.evaluation.surface.values import MOST_VALUES, has_rows, rows_by_value
from probekit.options import CurvesArguments
from probekit.tasks.token_labels import unlabelled_rows
from probekit.text import listed


@dataclass(frozen=True, eq=False)
class RowGroup:
    """The rows with one value of a column.

    Attributes:
        column: its name.
        value: that all of them have.
        rows: bool [N], with a label or without.
        left_out: values without a curve -> why; one for all groups of a label set, to which those are added whose rows
            turn out not to be enough once they are divided.
    """

    column: str
    value: str
    rows: np.ndarray
    left_out: dict[str, str] = field(default_factory=dict)


def row_groups(acts: Activations, options: CurvesArguments, label: str) -> list[RowGroup]:
    """The rows of each value of `options.within` that has enough of them, parts of a range in their order.

    Raises:
        UsageError: no such column.
        DataError: no value has enough rows of each class.
    """
    name, least = options.within, options.least_texts
    assert name is not None
    labels, n_classes = np.asarray(acts.labels[label]), len(acts.label_names[label])
    has_label, splits = ~unlabelled_rows(acts.task, label), acts.task.splits
    needed = {"train": least, "test": least, "validation": 1 if n_classes else 2}
    if options.folds is not None:  # every row is fitted, chooses and tests in turn
        splits, needed = np.full(len(labels), "all"), {"all": max(least, options.folds)}
    train = np.flatnonzero(has_label & np.isin(splits, ("train", "all")))
    values, known, _ = rows_by_value(acts, name, label, train)

    def lacks(value: str) -> str:
        for split, few in needed.items():
            own = has_label & (splits == split)
            if own.any() and not has_rows(labels[own & (values == value)], n_classes, few):
                return f"fewer than {few} rows{' of each class' if n_classes else ''} in {split}"
        return ""

    left_out = {value: why for value in known if (why := lacks(value))}
    kept = [value for value in known if value not in left_out]
    if blank := int((has_label & (values == None)).sum()):  # noqa: E711  of each element
        left_out["no value"] = f"{blank:,} rows"
    left_out |= dict.fromkeys(kept[MOST_VALUES:], f"not among the {MOST_VALUES} most frequent")
    if not kept:
        found = listed([f"{value!a:.40} ({left_out[value]})" for value in known], most=6) or "no value"
        raise DataError(
            f"no value of {name!a:.80} has enough rows of each class of {label!a:.80} for a curve (--within); it has "
            f"{found}; take fewer (--least-texts), add rows, or name another column"
        )
    return [RowGroup(name, value, values == value, left_out) for value in kept[:MOST_VALUES]]
