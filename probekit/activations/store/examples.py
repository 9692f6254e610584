"""examples.json: the task of a store, and how the rows of its tensors belong to the examples.

Axes: N examples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from probekit.activations.layout import Layout
from probekit.activations.store.format import AGAIN, MAX_EXAMPLES_BYTES, PlanFile, require, storage_errors
from probekit.durable import matches, unseal
from probekit.tasks.base import Task

_FORM = {
    "name": str,
    "target": str,
    "info": dict,
    "label_names": {str: [str]},
    "labels": {str: list},
    "position": str | int | list,
    "positions": [str | int | list],
    "layout": {"positions": [str], "lengths": [int], "n_bos": int, "n_end?": int},  # older stores have no n_end
    "ids": [str | int],
    "splits": [str],
    "inputs": [str | list],
    "groups?": [str | int],
    "targets?": [str | list],
    "input_of?": [int],
    "spans?": [[int]],  # of tasks whose examples are words
    "tokens?": [int],  # older stores have none
    "token_labels?": {str: {"width": int | None, "lengths": [int], "values": list}},  # of tasks with labels of tokens
}


@dataclass(frozen=True, eq=False)
class StoredExamples:
    """The content of examples.json.

    Attributes:
        task: the N examples.
        layout: how many rows each has at a place.
        positions: the positions that were requested: words, ints, int64 [N].
        seal: checksum of the file.
    """

    task: Task
    layout: Layout
    positions: list[str | int | np.ndarray]
    seal: str


def examples_body(task: Task, layout: Layout, positions: Sequence[str | int | np.ndarray]) -> dict[str, Any]:
    """The content of examples.json."""
    return {
        "name": task.name,
        "target": task.target,
        "info": task.info,
        "label_names": task.label_names,
        "position": task.position,
        "positions": positions,
        "layout": {
            "positions": layout.positions,
            "lengths": layout.lengths,
            "n_bos": layout.n_bos,
            "n_end": layout.n_end,
        },
        "ids": task.ids,
        "splits": task.splits,
        "labels": {name: labels.astype(_label_type(task, name)) for name, labels in task.labels.items()},
        "groups": task.groups,
        "tokens": layout.tokens,
        **_inputs_body(task),
        **({} if task.targets is None else {"targets": task.targets}),
        **({"token_labels": _token_labels_body(task)} if task.token_labels else {}),
    }


def _label_type(task: Task, label_set: str) -> type:
    return np.int64 if task.n_classes(label_set) else np.float64


def _token_labels_body(task: Task) -> dict[str, Any]:
    """The labels of all tokens of each set one after the other, with the numbers of each label, or None for one."""
    return {
        name: {
            "width": None if labels[0].ndim == 1 else labels[0].shape[1],
            "lengths": [len(one) for one in labels],
            "values": np.concatenate(labels).ravel(),
        }
        for name, labels in task.token_labels.items()
    }


def _inputs_body(task: Task) -> dict[str, Any]:
    """The inputs; where examples are words, each text once, the index of each example's text, and the spans."""
    if task.spans is None:
        return {"inputs": task.inputs}
    known: dict[Any, int] = {}
    input_of = [known.setdefault(text, len(known)) for text in task.inputs]
    return {"inputs": list(known), "input_of": input_of, "spans": task.spans}


def read_examples(path: Path, plan: PlanFile) -> StoredExamples:
    """The examples of the store at `path`.

    Raises:
        StorageError: missing, damaged, or not those of the plan.
    """
    file = path / "examples.json"
    body, seal = unseal(file, MAX_EXAMPLES_BYTES, AGAIN)
    with storage_errors(file, "list of the examples", AGAIN):
        require(matches(body, _FORM))
        positions = [_position(one, plan.rows) for one in body["positions"]]
        return StoredExamples(_task(body, plan.rows), _layout(body, plan.rows), positions, seal)


def _layout(body: dict[str, Any], n: int) -> Layout:
    form, tokens = body["layout"], body.get("tokens")
    n_bos, n_end = form["n_bos"], form.get("n_end") or 0
    lengths = _int64(form["lengths"], n)
    require(len(form["positions"]) == len(body["positions"]) > 0, n_bos in (0, 1), n_end in (0, 1))
    require(lengths.min() >= n_bos + n_end, (lengths.astype(float) ** 2).sum() < 2**60)
    layout = Layout(form["positions"], lengths, n_bos, n_end=n_end)
    if tokens is None:
        return layout
    n_tokens = int(layout.counts(("", None)).sum())
    return Layout(form["positions"], lengths, n_bos, _int64(tokens, n_tokens), n_end)


def _task(body: dict[str, Any], n: int) -> Task:
    inputs, spans = _inputs(body, n)
    groups, targets, label_names = body.get("groups"), body.get("targets"), body["label_names"]
    of_tokens = body.get("token_labels") or {}
    require(len(inputs) == len(body["ids"]) == n, body["target"] in (label_names or [""]))
    require(body["labels"].keys() | of_tokens.keys() == label_names.keys())
    return Task(  # which checks that its fields fit together
        name=body["name"],
        inputs=inputs,
        labels={name: _labels(labels, bool(label_names[name]), n) for name, labels in body["labels"].items()},
        label_names=label_names,
        splits=np.array(body["splits"]),
        target=body["target"],
        position=_position(body["position"], n),
        ids=body["ids"],
        groups=None if groups is None else np.array(groups),
        info=body["info"],
        spans=spans,
        targets=targets,
        token_labels={name: _token_labels(one, bool(label_names[name]), inputs) for name, one in of_tokens.items()},
    )


def _inputs(body: dict[str, Any], n: int) -> tuple[list[Any], np.ndarray | None]:
    """The input of each example, and its span [N, 2] where examples are words."""
    inputs = body["inputs"]
    if body.get("spans") is None:
        require(matches(inputs, [str]) or matches(inputs, [[int]]))
        return inputs, None
    require(matches(inputs, [str]), body.get("input_of") is not None)
    input_of, spans = _int64(body["input_of"], n), np.array(body["spans"], dtype=np.int64)
    require(spans.shape == (n, 2), bool(((input_of >= 0) & (input_of < len(inputs))).all()))
    inputs = [inputs[i] for i in input_of]
    ends = np.array([len(text) for text in inputs])
    require(bool(((spans[:, 0] >= 0) & (spans[:, 0] < spans[:, 1]) & (spans[:, 1] <= ends)).all()))
    return inputs, spans


def _labels(labels: list[Any], are_classes: bool, n: int) -> np.ndarray:
    if labels and isinstance(labels[0], list):  # several numbers for each example
        require(not are_classes, matches(labels, [[float]]), len(labels[0]) > 0)
        require(all(len(one) == len(labels[0]) for one in labels))
        return _array(labels, np.float64, n)
    require(matches(labels, [int if are_classes else float]))
    return _int64(labels, n) if are_classes else _array(labels, np.float64, n)


def _token_labels(body: dict[str, Any], are_classes: bool, inputs: list[Any]) -> list[np.ndarray]:
    lengths, width, values = body["lengths"], body["width"], body["values"]
    require(lengths == [len(one) for one in inputs], width is None or width > 0, bool(lengths))
    require(width is None or not are_classes, not isinstance(inputs[0], str))
    flat = _labels(values, are_classes, sum(lengths) * (1 if width is None else width))
    require(flat.ndim == 1)
    return np.split(flat if width is None else flat.reshape(-1, width), np.cumsum(lengths)[:-1])


def _position(value: Any, n: int) -> Any:
    require(not isinstance(value, list) or matches(value, [int]))
    return _int64(value, n) if isinstance(value, list) else value


def _int64(values: list[int], n: int) -> np.ndarray:
    return _array(values, np.int64, n)


def _array(values: list[Any], dtype: Any, n: int) -> np.ndarray:
    require(len(values) == n)
    return np.array(values, dtype=dtype)
