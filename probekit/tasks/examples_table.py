"""The examples of a task as a table: what a person, or a judge, needs to label them."""

from typing import Any

import numpy as np

from probekit.tasks.base import Task
from probekit.tasks.info import PROMPT_CHARACTERS
from probekit.tasks.tokens.stretches import no_label


def examples_table(task: Task) -> dict[str, np.ndarray]:
    """Name -> [N]: id, text (or ids, of tokens), what the model wrote, word, split, group, label sets, other columns.

    `prompt` and `continuation` are the two parts of a text that the model continued. Classes are names; a missing
    label is None, or NaN of a number. A column whose name is taken is called "column NAME".
    """
    found: dict[str, np.ndarray] = {"id": _objects(task.ids)}
    if task.has_texts:
        found["ids" if len(task) and not isinstance(task.inputs[0], str) else "text"] = _objects(task.inputs)
    others = dict(task.columns)
    starts = others.pop(PROMPT_CHARACTERS, None)
    if starts is not None and "text" in found:
        cut = [(str(text), int(start)) for text, start in zip(task.inputs, starts.tolist(), strict=True)]
        found["prompt"] = _objects([text[:start] for text, start in cut])
        found["continuation"] = _objects([text[start:] for text, start in cut])
    if task.words is not None:
        found["word"] = _objects(task.words)
    found["split"] = _objects(task.splits.tolist())
    if task.groups is not None:
        found["group"] = _objects(task.groups.tolist())
    sets = {name: _labels(task, name) for name in task.labels if task.labels[name].ndim == 1}
    for name, values in (sets | others).items():
        found[name if name not in found else f"column {name}"] = values
    return found


def _labels(task: Task, name: str) -> np.ndarray:
    labels, names = task.labels[name], task.label_names[name]
    if not names:
        return labels
    missing = no_label(labels).tolist()
    return _objects([None if gone else names[k] for k, gone in zip(labels.tolist(), missing, strict=True)])


def _objects(values: Any) -> np.ndarray:
    cells = np.empty(len(values), dtype=object)
    cells[:] = list(values)
    return cells
