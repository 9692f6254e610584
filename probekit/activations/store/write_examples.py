"""Write examples.json. The examples of a large task go into pieces of some megabytes, so that memory holds one of them.

Axes: N examples.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from probekit.activations.layout import Layout
from probekit.activations.store.format import MAX_EXAMPLES_BYTES, piece_path
from probekit.files.durable import seal, write_first, write_named
from probekit.files.remote.path import AnyPath
from probekit.files.scratch import give_back_memory, pieces
from probekit.tasks.base import Task

PIECE_BYTES = 4 << 20  # roughly; parsing a piece takes ten times as much memory for a moment
PIECE_ROWS = 16_384
_ROW_BYTES = 64  # of an id, a split, a label, roughly
_NUMBER_BYTES = 7  # of a token id or a label with its comma, roughly

Positions = Sequence[str | int | np.ndarray]


def write_examples(path: AnyPath, task: Task, layout: Layout, positions: Positions) -> None:
    """Write the examples of the store at `path`: the pieces first, if it takes several, and examples.json last.

    Raises:
        StorageError: the disk refused, or a text is larger than what is read again.
    """
    head = {"name": task.name, "target": task.target, "info": task.info, "label_names": task.label_names}
    cuts = list(_cuts(task, layout))
    if len(cuts) == 1:
        rest = _body(task, layout, positions, cuts[0])
    else:
        rest = {"pieces": [_write_piece(path, _body(task, layout, positions, rows)) for rows in cuts]}
        give_back_memory()  # of the JSON
    write_first(path / "examples.json", seal(head | rest, MAX_EXAMPLES_BYTES)[0])


def _write_piece(path: AnyPath, body: dict[str, Any]) -> str:
    """Put one piece on disk, named by its checksum, which is returned."""
    data, checksum = seal(body, MAX_EXAMPLES_BYTES)
    file = piece_path(path, checksum)
    write_named(file.parent, [data], lambda: file.name)
    return checksum


def _cuts(task: Task, layout: Layout) -> Iterator[slice]:
    """The rows of each piece.

    A piece holds each text once, so only a new text can make it too large by its texts: the words of a long text stay
    together.
    """
    each, own = 1 if isinstance(task.inputs[0], str) else _NUMBER_BYTES, _own_bytes(task, layout)
    start = size = own_size = 0
    known: set[Any] = set()
    inputs = zip(_keys(task.inputs), task.inputs, own, strict=True)
    for row, (key, given, own_of_row) in enumerate(inputs):
        new = 0 if key in known else each * len(given)
        too_large = own_size >= PIECE_BYTES or (new and size + new > PIECE_BYTES)
        if row > start and (too_large or row - start == PIECE_ROWS):
            yield slice(start, row)
            start, size, own_size, new = row, 0, 0, each * len(given)
            known.clear()
        known.add(key)
        size, own_size = size + new, own_size + own_of_row
    yield slice(start, len(task))


def _own_bytes(task: Task, layout: Layout) -> Iterator[int]:
    """Bytes of each example apart from its input, roughly."""
    numbers = np.zeros(len(task), dtype=np.int64) if layout.tokens is None else layout.counts(("", None)).copy()
    numbers = numbers * (1 if layout.characters is None else 3)
    numbers += sum(labels.size for labels in task.labels.values()) // len(task)
    for labels in task.token_labels.values():
        numbers += np.fromiter((one.size for one in labels), np.int64, len(task))
    if task.token_ids is not None:
        numbers += np.fromiter(map(len, task.token_ids), np.int64, len(task))
    for values in task.columns.values():
        is_text = values.dtype != np.float64
        numbers += np.fromiter((len(one or "") // 4 if is_text else 1 for one in values), np.int64, len(task)) + 1
    if task.targets is not None:
        numbers += np.fromiter(map(len, task.targets), np.int64, len(task))
    for rows in pieces(len(task)):
        yield from (_ROW_BYTES + _NUMBER_BYTES * numbers[rows]).tolist()


def _keys(inputs: Sequence[Any]) -> Iterable[Any]:
    """What tells inputs apart: texts themselves, and lists by being one object."""
    return inputs if isinstance(inputs[0], str) else map(id, inputs)


def _body(task: Task, layout: Layout, positions: Positions, rows: slice) -> dict[str, Any]:
    """The part of examples.json, or the piece, that has these rows."""
    offsets = layout.offsets(("", None))
    form = {"positions": layout.positions, "lengths": layout.lengths[rows], "n_bos": layout.n_bos}
    return {
        "position": _rows_of(task.position, rows),
        "positions": [_rows_of(one, rows) for one in positions],
        "layout": {**form, "n_end": layout.n_end},
        "ids": task.ids[rows],
        "splits": task.splits[rows],
        "labels": {name: labels[rows].astype(_label_type(task, name)) for name, labels in task.labels.items()},
        "groups": None if task.groups is None else task.groups[rows],
        **{
            name: None if values is None else values[offsets[rows.start] : offsets[rows.stop]]
            for name, values in (("tokens", layout.tokens), ("token_index", layout.token_index))
            if name == "tokens" or values is not None
        },
        **_optional(task, layout, rows),
        **_inputs_body(task, rows),
        **({} if task.targets is None else {"targets": task.targets[rows]}),
        **({"columns": _columns_body(task, rows)} if task.columns else {}),
        **({"token_labels": _token_labels_body(task, rows)} if task.token_labels else {}),
    }


def _optional(task: Task, layout: Layout, rows: slice) -> dict[str, Any]:
    """What older stores do not have, where the task or the layout has it."""
    given = {name: getattr(task, name) for name in ("chats", "regions", "token_ids", "generated")}
    given["picked"] = layout.picked
    found = {name: values[rows] for name, values in given.items() if values is not None}
    if layout.characters is not None:
        offsets = layout.offsets(("", None))
        found["characters"] = layout.characters[offsets[rows.start] : offsets[rows.stop]].ravel()
    return found


def _rows_of(position: str | int | np.ndarray, rows: slice) -> str | int | np.ndarray:
    """A position, or these rows of one with an index for each example."""
    return position[rows] if isinstance(position, np.ndarray) else position


def _label_type(task: Task, label_set: str) -> type:
    return np.int64 if task.n_classes(label_set) else np.float64


def _token_labels_body(task: Task, rows: slice) -> dict[str, Any]:
    """The labels of all tokens of each set one after the other, with the numbers of each label, or None for one."""
    return {
        name: {
            "width": None if labels[0].ndim == 1 else labels[0].shape[1],
            "lengths": [len(one) for one in labels[rows]],
            "values": _values(np.concatenate(labels[rows]).ravel()),
        }
        for name, labels in task.token_labels.items()
    }


def _columns_body(task: Task, rows: slice) -> dict[str, Any]:
    """The columns that are kept; None is a missing value."""
    return {
        name: {"numbers": True, "values": _values(values[rows])}
        if values.dtype == np.float64
        else {"numbers": False, "values": values[rows].tolist()}
        for name, values in task.columns.items()
    }


def _values(labels: np.ndarray) -> np.ndarray | list[float | None]:
    """Labels as JSON: None is the missing number of a regression."""
    if labels.dtype.kind != "f" or not (missing := np.isnan(labels)).any():
        return labels
    values = labels.astype(object)
    values[missing] = None
    return values.tolist()


def _inputs_body(task: Task, rows: slice) -> dict[str, Any]:
    """The inputs; where some repeat, as those of words do, each once, and the index of each example's input."""
    inputs = task.inputs[rows]
    known: dict[Any, int] = {}
    input_of = [known.setdefault(key, len(known)) for key in _keys(inputs)]
    spans = {} if task.spans is None else {"spans": task.spans[rows]}
    if len(known) == len(inputs) and not spans:
        return {"inputs": inputs}
    first = dict(zip(reversed(input_of), reversed(inputs), strict=True))
    return {"inputs": [first[k] for k in range(len(known))], "input_of": input_of, **spans}
