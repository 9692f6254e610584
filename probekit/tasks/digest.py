"""The fingerprint of a task: equal for tasks whose every input, label and split are equal."""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

_BATCH = 512  # values whose lines are made at once, long texts among them
_MAX_WRITTEN = 10**9  # what `_written` takes; token ids are smaller


def task_digest(task: Any) -> str:
    """Hex sha256 of a `tasks.base.Task`; of those without labels of tokens it is the one that older stores hold."""
    digest = hashlib.sha256()
    for values in (task.inputs, task.splits, task.ids):
        for lines in _lines(values):
            digest.update(lines)
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
    for lines in _lines(task.targets or ()):
        digest.update(lines)
    for name in ("chats", "regions", "token_ids"):  # which older stores do not have
        if (given := getattr(task, name)) is not None:
            digest.update(name.encode())
            for lines in _lines([repr(plain(one)) for one in given]):
                digest.update(lines)
    if task.generated is not None:
        digest.update(b"generated" + task.generated.astype("<i8").tobytes())
    for name in sorted(task.columns):  # older stores have none
        values = task.columns[name]
        digest.update(repr(("column", name)).encode("utf-8", "surrogatepass"))
        numbers = values.dtype == np.float64
        digest.update(
            values.astype("<f8").tobytes() if numbers else repr(plain(values)).encode("utf-8", "surrogatepass")
        )
    return digest.hexdigest()


def _token_bytes(label_set: str, names: list[str], labels: list[Any]) -> bytes:
    """One label set of tokens as a fingerprint takes it; labels by character with their stretches."""
    spans = [one.spans for one in labels if hasattr(one, "spans")]
    labels = [one.values if hasattr(one, "spans") else one for one in labels]
    shape = [len(labels), *(labels[0].shape[1:] if labels else ())]
    head = repr((label_set, [str(name) for name in names], shape)).encode("utf-8", "surrogatepass")
    lengths = np.array([len(one) for one in labels], dtype="<i8").tobytes()
    values = np.concatenate(labels) if labels else np.empty(0)
    characters = b"".join([b"spans", *(one.astype("<i8").tobytes() for one in spans)]) if spans else b""
    return head + lengths + characters + values.astype("<f8" if values.dtype.kind == "f" else "<i8").tobytes()


def plain(value: Any) -> Any:
    """Numbers and texts of numpy and torch, single or nested, as Python's own, so that equal ones have equal reprs.

    The repr of a long array would omit its middle.
    """
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list) and set(map(type, value)) <= {int}:
        return value
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def _lines(values: Sequence[Any]) -> Iterator[bytes]:
    """What a fingerprint takes of these values, some thousand at a time: the repr of each as `plain`, in its line."""
    for start in range(0, len(values), _BATCH):
        batch = values[start : start + _BATCH]
        batch = batch.tolist() if isinstance(batch, np.ndarray) else batch
        if set(map(type, batch)) <= {str, int}:
            lines = "\n".join(map(repr, batch))
        elif hasattr(batch[0], "__len__") and not isinstance(batch[0], str) and all(map(len, batch)):
            lines = _token_lines(batch)
        else:
            lines = "\n".join([repr(plain(value)) for value in batch])
        yield f"{lines}\n".encode("utf-8", "surrogatepass")


def _token_lines(batch: Sequence[Any]) -> str:
    """The lines of lists of token ids, none of them empty; equal ones, such as those of a text's tokens, made once."""
    objects = {id(value): value for value in batch}
    keys = {one: tuple(value.tolist() if hasattr(value, "tolist") else value) for one, value in objects.items()}
    distinct = list(dict.fromkeys(keys.values()))
    lines = _written(distinct)
    if len(distinct) == len(batch):
        return lines
    line_of = dict(zip(distinct, lines.split("\n"), strict=True))
    return "\n".join([line_of[keys[id(value)]] for value in batch])


def _written(rows: list[tuple[int, ...]]) -> str:
    """The reprs of lists of whole numbers, one in a line, a digit of all numbers at a time: half the time of `repr`."""
    numbers = list(chain.from_iterable(rows))
    if min(numbers) < 0 or max(numbers) >= _MAX_WRITTEN:
        return "\n".join([repr(plain(row)) for row in rows])
    flat, ends = np.array(numbers, dtype=np.uint32), np.cumsum([len(row) for row in rows])
    n_digits = len(str(flat.max()))
    # each number is ", " or "[", its digits, and at the end of a row "]" and a line feed; 0 is no character
    chars = np.zeros((len(flat), n_digits + 4), dtype=np.uint8)
    chars[:, :2], chars[ends[:-1], 0], chars[0, 0] = (ord(","), ord(" ")), ord("["), ord("[")
    chars[ends[:-1], 1] = chars[0, 1] = 0
    chars[ends - 1, -2], chars[ends[:-1] - 1, -1] = ord("]"), ord("\n")
    rest = flat
    for k in range(n_digits):
        tens = rest // 10
        chars[:, 1 + n_digits - k] = (rest - 10 * tens + ord("0")) * ((rest > 0) | (k == 0))
        rest = tens
    return chars[chars > 0].tobytes().decode("ascii")
