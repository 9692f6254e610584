"""Labels of every token of token-id inputs, and the task whose examples are the tokens.

Axes: N texts, L tokens of one text, K numbers of a label, T tokens of all texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from probekit.errors import DataError, UsageError
from probekit.tasks.task_checks import check_class_names, is_sequence
from probekit.tasks.task_fields import derived, numbered
from probekit.text import counted, kind_of

Task = Any  # `tasks.base.Task`, which imports this module
TokenLabels = dict[str, list[np.ndarray]]


def as_token_labels(
    given: Mapping[str, Any], label_names: Mapping[str, list[str] | None], ids: Sequence[Any]
) -> tuple[TokenLabels, dict[str, list[str]]]:
    """Labels of tokens in the form that `Task` holds, and the class names of each label set.

    Whole numbers, booleans and texts are classes; without `label_names` they are numbered in sorted order. Numbers with
    a decimal point, and whole numbers whose names are empty, are targets of a regression.

    Args:
        given: label set -> an array [N, L] or [N, L, K], or N lists of L labels, or of L lists of K numbers.
        label_names: label set -> class names, in label order, or None.
        ids: names of the N texts, for errors.

    Raises:
        UsageError: no list or array.
        DataError: labels of neither kind, of another shape, or that are no class.
    """
    labels: TokenLabels = {}
    names: dict[str, list[str]] = {}
    for label_set, texts in given.items():
        if not is_sequence(texts):
            raise UsageError(
                f"token_labels[{label_set!r}] is an array [texts, tokens], or a list for each text, got "
                f"{kind_of(texts)}; give one of these"
            )
        own = [_array(one, label_set) for one in texts]
        labels[label_set], names[label_set] = _coded(label_set, own, label_names.get(label_set), ids)
    return labels, names


def _coded(
    label_set: str, own: list[np.ndarray], known: list[str] | None, ids: Sequence[Any]
) -> tuple[list[np.ndarray], list[str]]:
    """The labels of one set as numbers, and its class names."""
    kinds = {one.dtype.kind for one in own if one.size}
    if "U" in kinds and len(kinds) > 1:
        raise DataError(f"the token labels {label_set!a} are texts and numbers; give only one of the two")
    if "f" in kinds or (known == [] and "U" not in kinds):
        return [one.astype(np.float64, copy=False) for one in own], known or []
    if known is not None and "U" not in kinds:
        return [one.astype(np.int64, copy=False) for one in own], known
    full = [one for one in own if one.size]  # an empty one has no type of its own
    flat = np.concatenate(full) if full else np.empty(0, dtype=np.int64)
    cells, first, of = np.unique(flat, return_index=True, return_inverse=True)
    ends = np.cumsum([len(one) for one in own])
    rows = np.searchsorted(ends, first, side="right").tolist()
    places = [f"a token of example {ids[row] if row < len(ids) else row!a}" for row in rows]
    if known is None:
        codes, known = derived(label_set, cells.tolist(), places)
    else:
        codes = numbered(label_set, cells.tolist(), known, places)
    return np.split(codes[of], ends[:-1]) if own else [], known


def check_token_labels(task: Task) -> None:
    """Check that every token of every input has a label in every set.

    Raises:
        DataError: inputs that are texts, targets of a decoder, an input with more or fewer labels than tokens, or NaN
            or infinity.
    """
    if not task.token_labels:
        return
    if task.targets is not None or (len(task) and isinstance(task.inputs[0], str)):
        what = "the task has targets of a decoder" if task.targets is not None else "the inputs are texts"
        raise DataError(f"token_labels are for tasks of token ids, and {what}; give inputs as lists of ids")
    counts = _counts(task)
    for label_set, labels in task.token_labels.items():
        if labels:
            check_class_names(label_set, labels[0].dtype, task.label_names[label_set])
        if len(labels) != len(task):
            found = f"expected the token labels {label_set!a} of {counted(len(task), 'input')}, got {len(labels)}"
            raise DataError(f"{found}; give one list for each input")
        wrong = np.flatnonzero(np.array([len(one) for one in labels], dtype=np.int64) != counts)
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"example {task.ids[row]!a} has {counted(int(counts[row]), 'token')} and {len(labels[row])} labels "
                f"{label_set!a}; give one label for each token"
            )
        if len({one.shape[1:] for one in labels}) > 1:
            raise DataError(
                f"some token labels of {label_set!a} hold more numbers than others; give each token equally many"
            )
        _check_finite(task, label_set, labels)


def token_rows(task: Task, lengths: np.ndarray | None = None) -> Task:
    """The task whose examples are the tokens, T rows, those of text 0 first; computed once for a task.

    Each token has its own labels and those of its text. Rows of one text have one number in `text_of`: they share its
    split and its groups, and are resampled together.

    Args:
        task: of N inputs; texts (without labels of tokens) need `lengths`.
        lengths: how many tokens of each text are rows, int64 [N]; None is all of them. A text that was cut at the
            model's context has fewer.
    """
    lengths = _counts(task) if lengths is None else lengths
    if task.rows_made and np.array_equal(task.rows_made[0], lengths):
        return task.rows_made[1]
    text = np.repeat(np.arange(len(task)), lengths)
    index = np.arange(len(text)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    of_tokens = {
        label_set: np.concatenate([one[:n] for one, n in zip(labels, lengths.tolist(), strict=True)])
        for label_set, labels in task.token_labels.items()
    }
    rows = text.tolist()
    made = replace(
        task,
        inputs=[task.inputs[i] for i in rows],
        labels={label_set: labels[text] for label_set, labels in task.labels.items()} | of_tokens,
        token_labels={},
        splits=task.splits[text],
        position=index,
        ids=[f"{task.ids[i]}:{k}" for i, k in zip(rows, index.tolist(), strict=True)],
        groups=None if task.groups is None else task.groups[text],
        text_of=text,
    )
    object.__setattr__(task, "rows_made", (lengths, made))  # in the task: weak references can swallow a Ctrl-C
    return made


def labels_at(task: Task, index: np.ndarray) -> Task:
    """The task with the labels of one token of each text, index [N] (negative: from the end), as labels [N]."""
    if not task.token_labels:
        return task
    own = {
        label_set: np.stack([one[i] for one, i in zip(labels, index.tolist(), strict=True)])
        for label_set, labels in task.token_labels.items()
    }
    return replace(task, labels=task.labels | own, token_labels={})


def _check_finite(task: Task, label_set: str, labels: list[np.ndarray]) -> None:
    if not labels or labels[0].dtype.kind != "f" or np.isfinite(np.concatenate(labels)).all():
        return
    row = next(row for row, own in enumerate(labels) if not np.isfinite(own).all())
    finite = np.isfinite(labels[row]).reshape(len(labels[row]), -1).all(axis=1)
    token = int(finite.argmin())
    raise DataError(
        f"a regression needs finite numbers, token {token} of example {task.ids[row]!a} has {labels[row][token]} as "
        f"its {label_set!a}; write a number, or leave the text out"
    )


def _counts(task: Task) -> np.ndarray:
    """Tokens of each input, int64 [N]."""
    return np.array([len(one) for one in task.inputs], dtype=np.int64)


def _array(labels: Any, label_set: str) -> np.ndarray:
    try:
        found = np.asarray(labels)
    except ValueError:
        found = np.empty(0, dtype=object)
    found = found if found.size else found.astype(np.int64)
    if found.dtype.kind not in "biufU" or found.ndim not in (1, 2) or (found.ndim == 2 and found.dtype.kind != "f"):
        raise DataError(
            f"labels of tokens are a class or a number for each token, or several decimal numbers; those of "
            f"{label_set!a} are {found.dtype} with {counted(found.ndim, 'axis', 'axes')}; "
            "give an array [texts, tokens], or a list for each text"
        )
    return found
