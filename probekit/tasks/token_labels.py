"""Labels of every token of token-id inputs, and the task whose examples are the tokens.

Axes: N texts, L tokens of one text, K numbers of a label, T tokens of all texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from probekit.errors import DataError, UsageError
from probekit.text import counted

Task = Any  # `tasks.base.Task`, which imports this module
TokenLabels = dict[str, list[np.ndarray]]
_known: WeakKeyDictionary[Task, tuple[np.ndarray, Task]] = WeakKeyDictionary()


def as_token_labels(
    given: Mapping[str, Any], label_names: Mapping[str, Sequence[str]]
) -> tuple[TokenLabels, dict[str, list[str]]]:
    """Labels of tokens in the form that `Task` holds, and the class names of each label set.

    Whole numbers and texts are classes; their names are derived where `label_names` has none. Numbers with a decimal
    point, and whole numbers whose names are empty, are targets of a regression.

    Args:
        given: label set -> an array [N, L] or [N, L, K], or N lists of L labels, or of L lists of K numbers.
        label_names: label set -> class names, in label order.

    Raises:
        DataError: labels of neither kind, or of another shape.
    """
    labels: TokenLabels = {}
    names = {label_set: list(label_names[label_set]) for label_set in given if label_names.get(label_set) is not None}
    for label_set, texts in given.items():
        own = [_array(one, label_set) for one in texts]
        if {one.dtype.kind for one in own if one.size} == {"U"}:
            own, names[label_set] = _classes(own, label_set, names.get(label_set))
        is_regression = names.get(label_set) == [] or any(one.dtype.kind == "f" for one in own)
        labels[label_set] = [one.astype(np.float64 if is_regression else np.int64, copy=False) for one in own]
        if label_set not in names:
            most = -1 if is_regression else max((int(one.max()) for one in own if one.size), default=-1)
            names[label_set] = [str(k) for k in range(most + 1)]
    return labels, names


def check_token_labels(task: Task) -> None:
    """Check that every token of every input has a label in every set.

    Raises:
        DataError: inputs that are texts, targets of a decoder, or an input with more or fewer labels than tokens.
        UsageError: a name that is also a label set of the texts.
    """
    if not task.token_labels:
        return
    if twice := [label_set for label_set in task.token_labels if label_set in task.labels]:
        raise UsageError(f"{twice[0]!a} is in labels and in token_labels; give each label set its own name")
    if task.targets is not None or (len(task) and isinstance(task.inputs[0], str)):
        what = "the task has targets of a decoder" if task.targets is not None else "the inputs are texts"
        raise DataError(f"token_labels are for tasks of token ids, and {what}; give inputs as lists of ids")
    counts = _counts(task)
    for label_set, labels in task.token_labels.items():
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
    if task in _known and np.array_equal(_known[task][0], lengths):
        return _known[task][1]
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
    _known[task] = lengths, made
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


def token_digest(label_set: str, names: list[str], labels: list[np.ndarray]) -> bytes:
    """The bytes of one label set that a task's fingerprint takes."""
    shape = [len(labels), *(labels[0].shape[1:] if labels else ())]
    head = repr((label_set, [str(name) for name in names], shape)).encode("utf-8", "surrogatepass")
    lengths = np.array([len(one) for one in labels], dtype="<i8").tobytes()
    values = np.concatenate(labels) if labels else np.empty(0)
    return head + lengths + values.astype("<f8" if values.dtype.kind == "f" else "<i8").tobytes()


def constant_output(labels: np.ndarray, values: Mapping[str, np.ndarray]) -> str | None:
    """The first output of targets [N, K] that does not vary in a split, in words; None if all vary.

    R2 is undefined for such an output, and so is its mean over the outputs.
    """
    for split, own in values.items():
        constant = np.ptp(own, axis=0) == 0 if len(own) else np.ones(labels.shape[1], dtype=bool)
        if constant.any():
            return f"output {int(constant.argmax())} has one value in all of {split}"
    return None


def _counts(task: Task) -> np.ndarray:
    """Tokens of each input, int64 [N]."""
    return np.array([len(one) for one in task.inputs], dtype=np.int64)


def _array(labels: Any, label_set: str) -> np.ndarray:
    try:
        found = np.asarray(labels)
    except ValueError:
        found = np.empty(0, dtype=object)
    found = found.astype(np.int64) if not found.size or found.dtype.kind == "b" else found
    if found.dtype.kind not in "iufU" or found.ndim not in (1, 2) or (found.ndim == 2 and found.dtype.kind != "f"):
        raise DataError(
            f"labels of tokens are a class or a number for each token, or several decimal numbers; those of "
            f"{label_set!a} are {found.dtype} with {counted(found.ndim, 'axis', 'axes')}; "
            "give an array [texts, tokens], or a list for each text"
        )
    return found


def _classes(own: list[np.ndarray], label_set: str, names: list[str] | None) -> tuple[list[np.ndarray], list[str]]:
    """Texts as numbers of their class names."""
    names = names or sorted({name for one in own for name in one.tolist()})
    number = {name: k for k, name in enumerate(names)}
    try:
        return [np.array([number[name] for name in one.tolist()], dtype=np.int64) for one in own], names
    except KeyError as error:
        raise DataError(f"label_names[{label_set!a}] lacks the class {error.args[0]!a} of a token; add it") from None
