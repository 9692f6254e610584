"""Labels of characters: stretches of a text, for tasks whose tokens are known only once there is a model.

Axes: S stretches of one text, K numbers of a label.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from probekit.errors import DataError
from probekit.tasks.tables.data_table import quote
from probekit.tasks.task_checks import span_flaw

EXAMPLE = '{"start": 4, "end": 7, "label": "name"}'


class Stretches(NamedTuple):
    """The labels of one text by character.

    Attributes:
        spans: the characters [start, end) of each stretch, in order and without overlap, int64 [S, 2].
        values: the label of each stretch, and last the label of tokens outside all of them: [S + 1] or [S + 1, K]; -1
            or NaN is no label.
    """

    spans: np.ndarray
    values: np.ndarray


def are_stretches(given: Any) -> bool:
    """True for a list with a dict in it, as the stretches of a text are given."""
    return isinstance(given, Sequence) and any(isinstance(one, Mapping) for one in given)


def read_stretches(given: Sequence[Any], text: Any) -> tuple[np.ndarray, list[Any]]:
    """The characters of the stretches of one text, int64 [S, 2], and S + 1 labels, last that of the rest of the text.

    Args:
        given: {"start", "end", "label"} each; one without start and end has the label of the rest, which is otherwise
            None.
        text: they belong to.

    Raises:
        DataError: a stretch without a label, outside the text, or over another one; it does not name the text.
    """
    stretches: list[tuple[int, int, Any]] = []
    rest: list[Any] = []
    for one in given:
        if not isinstance(one, Mapping) or "label" not in one:
            raise DataError(f"expected a stretch such as {EXAMPLE}, got {quote(one)}; correct it")
        start, end = one.get("start"), one.get("end")
        if start is None and end is None:
            rest.append(one["label"])
            continue
        if start is None or end is None or not (_is_whole(start) and _is_whole(end)):
            raise DataError(f"expected whole numbers as start and end of a stretch, got {quote(one)}; correct it")
        if flaw := span_flaw(text, int(start), int(end)):
            raise DataError(flaw)
        stretches.append((int(start), int(end), one["label"]))
    if len(rest) > 1:
        raise DataError(f"expected one label for the rest of the text, got {len(rest)}; keep one without start and end")
    stretches.sort(key=lambda one: one[:2])
    spans = np.array([one[:2] for one in stretches], dtype=np.int64).reshape(-1, 2)
    if (over := spans[1:, 0] < spans[:-1, 1]).any():
        (a, b), (c, d) = spans[int(over.argmax()) :][:2].tolist()
        raise DataError(f"the stretches {a} to {b} and {c} to {d} overlap; give each character one label")
    return spans, [*(one[2] for one in stretches), *(rest or [None])]


def stretches_of_characters(labels: np.ndarray) -> Stretches:
    """Equal labels [L] or [L, K] of neighbouring characters as stretches; characters without a label are in none."""
    missing = no_label(labels)
    begins = np.ones(len(labels), dtype=bool)
    differ = labels[1:] != labels[:-1]
    begins[1:] = differ if labels.ndim == 1 else differ.any(axis=1)
    starts = np.flatnonzero(begins & ~missing)
    ends = np.append(np.flatnonzero(begins), len(labels))
    ends = ends[np.searchsorted(ends, starts, side="right")]
    rest = np.full((1, *labels.shape[1:]), np.nan if labels.dtype.kind == "f" else -1, dtype=labels.dtype)
    return Stretches(np.stack([starts, ends], axis=1), np.concatenate([labels[starts], rest]))


def labels_of_tokens(stretches: Stretches, offsets: np.ndarray) -> np.ndarray:
    """The label of each token of a text, [T] or [T, K]; -1 or NaN for none.

    A token has the label of the stretch whose characters it covers. If it covers those of several, it has the label
    with most of its characters; ties go to the label that comes first. A token without a character of any stretch has
    the label of the rest. So has a token of blanks alone, unless it is inside a stretch.

    Args:
        stretches: of the text.
        offsets: the characters [start, end) of each token, int64 [T, 2], as from `Tokenizer.offsets`.
    """
    (starts, ends), values = stretches.spans.T, stretches.values
    # stretches do not overlap, so those that a token meets follow one another: first to one past the last
    first = np.searchsorted(ends, offsets[:, 0], side="right")
    past = np.searchsorted(starts, offsets[:, 1], side="left")
    labels = values[np.where(past > first, first, len(starts))]
    for token in np.flatnonzero(past > first + 1).tolist():
        some = slice(int(first[token]), int(past[token]))
        start, end = offsets[token].tolist()
        covered = np.minimum(ends[some], end) - np.maximum(starts[some], start)
        _, own, which = np.unique(values[some], axis=0, return_index=True, return_inverse=True)
        votes = np.bincount(which.ravel(), weights=covered)
        best = own[votes == votes.max()].min()  # ties go to the first
        labels[token] = values[some][best]
    return labels


def no_label(labels: np.ndarray) -> np.ndarray:
    """Which of the labels [L] or [L, K] say that there is none, -1 or NaN: bool [L]."""
    if labels.dtype.kind != "f":
        return np.equal(labels, -1)
    missing = np.isnan(labels)
    return np.asarray(missing if labels.ndim == 1 else missing.all(axis=1))


def _is_whole(given: Any) -> bool:
    return isinstance(given, int | np.integer) and not isinstance(given, bool)
