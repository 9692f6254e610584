"""Check the labels of tokens of a task, and make the task whose examples are the tokens.

Axes: N texts, L tokens of one text, K numbers of a label, T tokens of all texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from probekit.errors import DataError
from probekit.tasks.fields import changed_columns
from probekit.tasks.info import UNLABELLED
from probekit.tasks.task_checks import check_class_names
from probekit.tasks.tokens.stretches import Stretches, no_label
from probekit.text import counted

Task = Any  # `tasks.base.Task`, which imports this module


def values_of(labels: np.ndarray | Stretches) -> np.ndarray:
    """The labels of one text: of its tokens, or of its stretches and the rest."""
    return labels.values if isinstance(labels, Stretches) else labels


def by_token(task: Task) -> bool:
    """False while some labels are by character, or texts were not tokenised."""
    return not any(isinstance(one, Stretches) for labels in task.token_labels.values() for one in labels)


def check_token_labels(task: Task) -> None:
    """Check that every token of every input has a place for a label in every set.

    The labels of texts are compared with their tokens when an extraction is planned.

    Raises:
        DataError: targets of a decoder, words, an input with more or fewer labels than tokens, or infinity.
    """
    if not task.token_labels:
        return
    for what, given in (("targets of a decoder", task.targets), ("spans, the words of its texts", task.spans)):
        if given is not None:
            raise DataError(f"token_labels are of the tokens of inputs, and the task has {what}; leave one of them out")
    are_texts = len(task) > 0 and isinstance(task.inputs[0], str)
    for label_set, labels in task.token_labels.items():
        if labels:
            check_class_names(label_set, values_of(labels[0]).dtype, task.label_names[label_set])
        if len(labels) != len(task):
            found = f"expected the token labels {label_set!a} of {counted(len(task), 'input')}, got {len(labels)}"
            raise DataError(f"{found}; give one list for each input")
        (_check_characters if are_texts else _check_counts)(task, label_set, labels)
        if len({values_of(one).shape[1:] for one in labels}) > 1:
            raise DataError(
                f"some token labels of {label_set!a} hold more numbers than others; give each token equally many"
            )
        _check_finite(task, label_set, labels)


def _check_counts(task: Task, label_set: str, labels: Sequence[np.ndarray | Stretches]) -> None:
    """Check the labels of inputs of token ids."""
    for row, (one, ids) in enumerate(zip(labels, task.inputs, strict=True)):
        if isinstance(one, Stretches):
            raise DataError(
                f"example {task.ids[row]!a} has token labels {label_set!a} by character, and its input is a list of "
                "token ids; give one label for each token"
            )
        if len(one) != len(ids):
            raise DataError(
                f"example {task.ids[row]!a} has {counted(len(ids), 'token')} and {len(one)} labels "
                f"{label_set!a}; give one label for each token"
            )


def _check_characters(task: Task, label_set: str, labels: Sequence[np.ndarray | Stretches]) -> None:
    """Check that stretches are of the text that a task has, and not of a chat that becomes another text."""
    for row, one in enumerate(labels):
        if isinstance(one, Stretches) and len(one.spans):
            if task.chats is not None:
                raise DataError(
                    f"example {task.ids[row]!a} has token labels {label_set!a} by character, and is a chat, whose text "
                    "is made by a template; give one label for each token, or the rendered text"
                )
            if one.spans[-1, 1] > len(task.inputs[row]):
                raise DataError(
                    f"example {task.ids[row]!a} has {len(task.inputs[row])} characters, and token labels {label_set!a} "
                    f"up to character {one.spans[-1, 1]}; give labels of this text"
                )


def token_rows(task: Task, lengths: np.ndarray | None = None, index: np.ndarray | None = None) -> Task:
    """The task whose examples are the tokens, T rows, those of text 0 first; computed once for a task.

    Each token has its own labels and those of its text. Rows of one text have one number in `text_of`: they share its
    split and its groups, and are resampled together.

    Args:
        task: of N inputs; texts need `lengths`.
        lengths: how many tokens of each text are rows, int64 [N]; None is all of them. A text that was cut at the
            model's context has fewer.
        index: which token of its text each row is, int64 [T]; None is the first ones.
    """
    lengths = np.array([len(one) for one in task.inputs], dtype=np.int64) if lengths is None else lengths
    key = lengths if index is None else np.concatenate([lengths, index])
    if task.rows_made and np.array_equal(task.rows_made[0], key):
        return task.rows_made[1]
    text = np.repeat(np.arange(len(task)), lengths)
    if index is None:
        index = np.arange(len(text)) - np.repeat(np.cumsum(lengths) - lengths, lengths)

    def repeated_column(values: Any) -> Any:  # of a list the same object each time
        if isinstance(values, np.ndarray):
            return values[text]
        return [one for one, n in zip(values, lengths.tolist(), strict=True) for _ in range(n)]

    repeated = changed_columns(task, repeated_column)
    of_tokens = _labels_of_rows(task, text, index)
    repeated |= {
        "labels": repeated.get("labels", {}) | of_tokens,
        "token_labels": {},
        "position": index,
        "ids": [f"{one}:{k}" for one, k in zip(repeated["ids"], index.tolist(), strict=True)],
        "info": _info_of_rows(task, of_tokens),
        "text_of": text,
    }
    made = replace(task, **repeated)
    object.__setattr__(task, "rows_made", (key, made))  # in the task: weak references can swallow a Ctrl-C
    return made


def labels_at(task: Task, index: np.ndarray) -> Task:
    """The task with the labels of one token of each text, index [N] (negative: from the end), as labels [N]."""
    if not task.token_labels:
        return task
    counts = [len(values_of(one)) for one in next(iter(task.token_labels.values()))]
    own = _labels_of_rows(task, np.arange(len(task)), np.where(index < 0, index + counts, index))
    return replace(task, labels=task.labels | own, token_labels={}, info=_info_of_rows(task, own))


def label_rows(task: Task, label_set: str) -> Task:
    """The task whose examples are the labels of one set of `token_labels`, as `token_rows` has them.

    Tokens without a label are left out. Of labels by character each stretch is one, and so is the rest of a text.
    """
    rows = task
    if not (len(task) and by_token(task) and not isinstance(task.inputs[0], str)):
        values = [values_of(one) for one in task.token_labels[label_set]]
        names, sizes = {label_set: task.label_names[label_set]}, np.array([len(one) for one in values], dtype=np.int64)
        own = replace(task, labels={}, label_names=names, token_labels={label_set: values}, target=label_set)
        rows = token_rows(own, sizes)
    else:
        rows = token_rows(task)
    return rows_with_label(rows, label_set)


def unlabelled_rows(task: Task, label_set: str) -> np.ndarray:
    """Which examples have no label in the set, -1 or NaN, and are known to have none: bool [N]."""
    is_known = label_set in task.labels and label_set in task.info.get(UNLABELLED, {})
    return no_label(task.labels[label_set]) if is_known else np.zeros(len(task), dtype=bool)


def rows_with_label(task: Task, label_set: str) -> Task:
    """The task with only the examples that have a label in the set; the task itself if all have."""
    missing = unlabelled_rows(task, label_set)
    return task.subset(~missing) if missing.any() else task


def text_strata(task: Task, label_set: str) -> np.ndarray:
    """What splits are stratified by, [N]: the class of each text that is in the fewest texts, or its mean number.

    A text without labels is a class of its own, or has the mean of all.
    """
    values = [values_of(one) for one in task.token_labels[label_set]]
    text = np.repeat(np.arange(len(values)), [len(one) for one in values])
    flat = np.concatenate(values) if values else np.empty(0, dtype=np.int64)
    there = ~no_label(flat)
    text, flat = text[there], flat[there]
    if flat.dtype.kind == "f":
        flat = flat if flat.ndim == 1 else flat[:, 0]
        n, sums = np.bincount(text, minlength=len(values)), np.bincount(text, flat, minlength=len(values))
        return np.where(n > 0, sums / np.maximum(n, 1), flat.mean() if len(flat) else 0.0)
    n_classes = len(task.label_names[label_set])
    pairs = np.unique(text * n_classes + flat)  # each class of each text once
    text, classes = pairs // max(1, n_classes), pairs % max(1, n_classes)
    texts_with = np.bincount(classes, minlength=n_classes)
    order = np.lexsort((classes, texts_with[classes], text))
    found, first = np.unique(text[order], return_index=True)
    strata = np.full(len(values), n_classes)
    strata[found] = classes[order][first]
    return strata


def _labels_of_rows(task: Task, text: np.ndarray, index: np.ndarray) -> dict[str, np.ndarray]:
    """The labels of tokens `index` [R] of texts `text` [R], by label set.

    Raises:
        DataError: labels by character, or a text with fewer labels than tokens.
    """
    found = {}
    for label_set, labels in task.token_labels.items():
        if any(isinstance(one, Stretches) for one in labels):
            raise DataError(
                f"the token labels {label_set!a} are by character, and no tokenizer has made tokens of the texts; "
                "extract them first, or give one label for each token"
            )
        sizes = np.fromiter(map(len, labels), np.int64, len(labels))
        if (short := index >= sizes[text]).any():
            row = int(text[short.argmax()])
            raise DataError(
                f"example {task.ids[row]!a} has {counted(int(index[text == row].max()) + 1, 'token')} or more and "
                f"{sizes[row]} labels {label_set!a}; give one label for each token"
            )
        starts = np.cumsum(sizes) - sizes
        found[label_set] = np.concatenate(labels)[starts[text] + index] if labels else np.empty(0)
    return found


def _info_of_rows(task: Task, labels: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The task's info, with how many rows have no label in each set."""
    counts = {name: int(no_label(own).sum()) for name, own in labels.items()}
    found = {name: n for name, n in counts.items() if n}
    return {**task.info, UNLABELLED: {**task.info.get(UNLABELLED, {}), **found}} if found else task.info


def _check_finite(task: Task, label_set: str, labels: Sequence[np.ndarray | Stretches]) -> None:
    values = [values_of(one) for one in labels]
    if not values or values[0].dtype.kind != "f" or _usable(np.concatenate(values)).all():
        return
    row = next(row for row, own in enumerate(values) if not _usable(own).all())
    token = int(_usable(values[row]).argmin())
    raise DataError(
        f"a regression needs finite numbers, token {token} of example {task.ids[row]!a} has {values[row][token]} as "
        f"its {label_set!a}; write a number, or None for no label"
    )


def _usable(labels: np.ndarray) -> np.ndarray:
    """Which numbers [L] or [L, K] are finite or no label, bool [L]."""
    finite = np.isfinite(labels)
    return (finite if labels.ndim == 1 else finite.all(axis=1)) | no_label(labels)
