"""The fingerprint of a task: equal for tasks whose every input, label and split are equal."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np


def task_digest(task: Any) -> str:
    """Hex sha256 of a `tasks.base.Task`; of those without labels of tokens it is the one that older stores hold."""
    digest = hashlib.sha256()
    for line in each(_line, chain(task.inputs, task.splits.tolist(), task.ids)):
        digest.update(line)
    for label_set in sorted(task.labels):
        labels, names = task.labels[label_set], task.label_names[label_set]
        digest.update(repr((label_set, plain(names))).encode("utf-8", "surrogatepass"))
        is_regression = not len(names) and labels.dtype.kind == "f"
        digest.update(labels.astype("<f8" if is_regression else "<i8").tobytes())
    position = task.position if isinstance(task.position, str) else task.position.astype("<i8").tobytes()
    groups = None if task.groups is None else task.groups.tolist()
    digest.update(repr((task.target, position, groups)).encode("utf-8", "surrogatepass"))
    for label_set in sorted(task.token_labels):
        digest.update(_token_bytes(label_set, task.label_names[label_set], task.token_labels[label_set]))
    if task.spans is not None:
        digest.update(task.spans.astype("<i8").tobytes())
    for line in each(_line, task.targets or ()):
        digest.update(line)
    return digest.hexdigest()


def _token_bytes(label_set: str, names: list[str], labels: list[np.ndarray]) -> bytes:
    """One label set of tokens as a fingerprint takes it."""
    shape = [len(labels), *(labels[0].shape[1:] if labels else ())]
    head = repr((label_set, [str(name) for name in names], shape)).encode("utf-8", "surrogatepass")
    lengths = np.array([len(one) for one in labels], dtype="<i8").tobytes()
    values = np.concatenate(labels) if labels else np.empty(0)
    return head + lengths + values.astype("<f8" if values.dtype.kind == "f" else "<i8").tobytes()


def plain(value: Any) -> Any:
    """Numbers and texts of numpy and torch, single or nested, as Python's own, so that equal ones have equal reprs.

    The repr of a long array would omit its middle.
    """
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list) and set(map(type, value)) <= {int}:
        return value
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def _line(value: Any) -> bytes:
    """One value as a fingerprint takes it."""
    return repr(plain(value)).encode("utf-8", "surrogatepass") + b"\n"


def each(function: Callable[[Any], Any], values: Iterable[Any]) -> Iterator[Any]:
    """The function's results, computed once for one object several times in a row: the tokens of a text repeat it."""
    last, result = function, None
    for value in values:
        if value is not last:
            last, result = value, function(value)
        yield result
