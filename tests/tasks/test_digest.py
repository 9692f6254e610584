"""The fingerprint of a task, against its plain definition: stores of every age hold it."""

import hashlib
from typing import Any

import numpy as np
import pytest
import torch

from probekit.tasks import Task

RNG = np.random.default_rng(0)
SHORT = [RNG.integers(0, 50_257, k % 7 + 1).tolist() for k in range(1300)]  # more than one batch of them
LONG = RNG.integers(0, 1000, (40, 30)).tolist()
TEXTS = ["it's", 'a "b"', "\\n", "tab\t", "é\u0301 漢字 \U0001f600", "\ud800 alone", "x" * 300, "\x00\x7f\xa0"]
INPUTS = {
    "texts": [f"{text} {k}" for k in range(80) for text in TEXTS],
    "texts of NumPy": [np.str_(text) for text in TEXTS],
    "short lists": SHORT,
    "a list for each of its tokens": [row for row in LONG for _ in row],
    "copies": [list(row) for row in LONG for _ in range(40)],
    "copies far apart": [list(row) for _ in range(40) for row in LONG],
    "copies of another type": [LONG[0], [np.int64(x) for x in LONG[0]], [np.int32(x) for x in LONG[1]], LONG[1]],
    "arrays and tensors": [np.array(LONG[0]), torch.tensor(LONG[1]), tuple(LONG[2]), LONG[3]],
    "large, small, negative": [[10**9, 2**40], [0, 9, 10, 99, 100, 10**9 - 1], [-1, 5], [2**70]],
    "zeros": [[0], [0, 0], [10, 0]],
    "up to the largest": [[999_999_999], [1], [0]],
    "an empty one": [[1], [], [2, 3]],
}


def defined(task):
    """The definition: one value after the other."""

    def plain(value):
        if hasattr(value, "tolist"):
            return value.tolist()
        return [plain(one) for one in value] if isinstance(value, list | tuple) else value

    def line(value):
        return repr(plain(value)).encode("utf-8", "surrogatepass") + b"\n"

    parts = [line(value) for value in [*task.inputs, *task.splits, *task.ids]]
    for name in sorted(task.labels):
        parts += [repr((name, plain(task.label_names[name]))).encode(), task.labels[name].astype("<i8").tobytes()]
    position = task.position if isinstance(task.position, str) else task.position.astype("<i8").tobytes()
    groups = None if task.groups is None else task.groups.tolist()
    parts.append(repr((task.target, position, groups)).encode("utf-8", "surrogatepass"))
    parts += [] if task.spans is None else [task.spans.astype("<i8").tobytes()]
    return hashlib.sha256(b"".join(parts + [line(value) for value in task.targets or ()])).hexdigest()


def task_of(inputs: Any, **changes: Any) -> Task:
    n = len(inputs)
    splits = np.array(["train", "validation", "test"])[np.arange(n) % 3]
    return Task("t", inputs, {"a": np.arange(n) % 2}, {"a": ["no", "yes"]}, splits, "a", **changes)


@pytest.mark.parametrize("inputs", INPUTS.values(), ids=INPUTS)
def test_the_fingerprint_is_the_defined_one(inputs):
    n = len(inputs)
    for changes in (
        {},
        {"ids": list(range(n)), "groups": np.arange(n) // 2, "targets": inputs[::-1]},
        {"ids": [np.int64(k) for k in range(n)], "position": np.arange(n)},
    ):
        task = task_of(inputs, **changes)
        assert task.fingerprint() == defined(task)


def test_the_fingerprint_of_spans_is_the_defined_one():
    inputs = [text for text in TEXTS if len(text) > 3 for _ in range(3)]
    spans = np.array([[k % 2, 3] for k in range(len(inputs))])
    task = Task("t", inputs, {"a": np.arange(len(inputs)) % 2}, {"a": ["no", "yes"]}, spans=spans)
    assert task.fingerprint() == defined(task)
