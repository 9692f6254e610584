"""Read examples.json: the task of a store, and how the rows of its tensors belong to the examples.

A small task is in examples.json itself, as all tasks of older stores are; a large one is in the pieces that it names.

Axes: N examples, n those of a piece.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from types import NoneType
from typing import Any

import numpy as np

from probekit.activations.layout import Layout
from probekit.activations.store.format import (
    AGAIN,
    MAX_EXAMPLES_BYTES,
    PlanFile,
    piece_path,
    require,
    storage_errors,
)
from probekit.errors import StorageError
from probekit.files.durable import each_of, matches, unseal
from probekit.files.remote.path import AnyPath
from probekit.files.scratch import ArrayWriter, DiskList, settled
from probekit.tasks.base import SPLITS, Task
from probekit.tasks.regions import Region

_HEAD = {"name": str, "target": str, "info": dict, "label_names": {str: [str]}, "pieces?": [str]}
_ROWS = {
    "labels": {str: list},
    "position": str | int | list,
    "positions": [str | int | list],
    "layout": {"positions": [str], "lengths": [int], "n_bos": int, "n_end?": int},  # older stores have no n_end
    "ids": [str | int],
    "splits": [str],
    "inputs": [str | list],
    "groups?": [str | int],
    "targets?": [str | list],
    "input_of?": [int],  # where inputs repeat
    "spans?": [[int]],  # of tasks whose examples are words
    "tokens?": [int],  # older stores have none
    "chats?": [list],
    "regions?": [list],
    "token_ids?": [[int]],
    "generated?": [int],
    "picked?": [int],  # where a selection keeps several tokens of each text
    "token_index?": [int],  # older stores have none
    "characters?": [int],  # start and end of each token that is kept, where several of a text are
    "columns?": {str: {"numbers": bool, "values": [str | int | float | NoneType]}},  # of tasks that keep some
    "token_labels?": {str: {"width": int | None, "lengths": [int], "values": list}},  # of tasks with labels of tokens
}
PIECES = 3  # read ahead from an object store; each takes several times its 4 MB while it is parsed
_CHECKSUM = re.compile(r"[0-9a-f]{64}")
_WHAT = "list of the examples"


@dataclass(frozen=True, eq=False)
class Piece:
    """Some examples in a row.

    Attributes:
        n: how many.
        columns: what there is one of for each example (for each row of `tokens`), by name: lists and arrays; labels by
            (kind, label set); positions with an index for each example by their number.
        common: what is equal in all pieces.
    """

    n: int
    columns: dict[Any, Any]
    common: dict[str, Any]


@dataclass(frozen=True, eq=False)
class ExamplesHead:
    """examples.json.

    Attributes:
        name: of the task, as `target`, `info` and `label_names` are.
        target: its default label set.
        info: where it comes from.
        label_names: label set -> class names.
        pieces: checksums of the pieces, which are their names; empty where the examples are in examples.json.
        own: the examples in examples.json, if they are there.
        seal: checksum of the file.
    """

    name: str
    target: str
    info: dict[str, Any]
    label_names: dict[str, list[str]]
    pieces: list[str]
    own: Piece | None
    seal: str


@dataclass(frozen=True, eq=False)
class StoredExamples:
    """The examples of a store.

    Attributes:
        task: the N examples.
        layout: how many rows each has at a place.
        positions: the positions that were requested: words, ints, int64 [N].
        seal: checksum of examples.json.
    """

    task: Task
    layout: Layout
    positions: list[str | int | np.ndarray]
    seal: str


def read_examples(path: AnyPath, plan: PlanFile) -> StoredExamples:
    """The examples of the store at `path`; apart from them memory holds one piece, of an object store `PIECES`.

    Raises:
        StorageError: missing, damaged, or not those of the plan.
    """
    head = read_head(path)
    return joined(path, plan, head, each_of(path, lambda one: read_piece(path, head, one), head.pieces, PIECES))


def check_examples(path: AnyPath, plan: PlanFile) -> None:
    """Read the examples of the store at `path`, a piece at a time; errors as `read_examples`."""
    head = read_head(path)
    n = head.own.n if head.own else sum(each_of(path, lambda one: read_piece(path, head, one).n, head.pieces, PIECES))
    with storage_errors(path / "examples.json", _WHAT, AGAIN):
        require(n == plan.rows)


def read_head(path: AnyPath) -> ExamplesHead:
    """examples.json of the store at `path`.

    Raises:
        StorageError: missing or damaged.
    """
    file = path / "examples.json"
    body, seal = unseal(file, MAX_EXAMPLES_BYTES, AGAIN)
    with storage_errors(file, _WHAT, AGAIN):
        require(matches(body, _HEAD), body["target"] in (body["label_names"] or [""]))
        pieces = body.get("pieces") or []
        require(all(map(_CHECKSUM.fullmatch, pieces)))
        own = None if pieces else _piece(body, body["label_names"])
        return ExamplesHead(body["name"], body["target"], body["info"], body["label_names"], pieces, own, seal)


def read_piece(path: AnyPath, head: ExamplesHead, checksum: str) -> Piece:
    """One piece of the examples.

    Raises:
        StorageError: missing, damaged, or not the one that is named.
    """
    file = piece_path(path, checksum)
    body, seal = unseal(file, MAX_EXAMPLES_BYTES, AGAIN)
    if seal != checksum:
        raise StorageError(f"{str(file)!a} is damaged: its content does not match its name; {AGAIN}")
    with storage_errors(file, _WHAT, AGAIN):
        return _piece(body, head.label_names)


def joined(path: AnyPath, plan: PlanFile, head: ExamplesHead, pieces: Iterable[Piece]) -> StoredExamples:
    """All examples in order.

    Raises:
        StorageError: the pieces do not fit together, or are not those of the plan.
    """
    with storage_errors(path / "examples.json", _WHAT, AGAIN):
        common, columns = _joined_columns([head.own] if head.own else pieces, plan.rows)
        lengths, form = columns["lengths"], common["layout"]
        require((lengths.astype(float) ** 2).sum() < 2**60)
        layout = Layout(
            form["positions"],
            lengths,
            form["n_bos"],
            columns.get("tokens"),
            form["n_end"],
            columns.get("picked"),
            columns.get("token_index"),
            columns.get("characters"),
        )
        positions = [columns.get(k, one) for k, one in enumerate(common["positions"])]
        return StoredExamples(_task(head, common, columns), layout, positions, head.seal)


def _joined_columns(pieces: Iterable[Piece], n: int) -> tuple[dict[str, Any], dict[Any, Any]]:
    """What is equal in all pieces, and their columns, n rows; texts and numbers are on disk if there are many."""
    common, rows, made = dict[str, Any](), 0, dict[Any, Any]()
    for piece in pieces:
        if not rows:
            common, made = piece.common, {key: _empty(key, column) for key, column in piece.columns.items()}
        require(piece.common == common, piece.columns.keys() == made.keys())
        rows += piece.n
        for key, column in piece.columns.items():
            made[key].add(column)
    require(rows == n)
    return common, {key: column.joined() for key, column in made.items()}


class _Arrays(ArrayWriter):
    joined = ArrayWriter.array


class _Texts(DiskList):
    add = DiskList.extend

    def joined(self) -> Any:
        return settled(self)


class _Parts(list[Any]):
    add = list.append

    def joined(self) -> Any:
        are_arrays = isinstance(self[0], np.ndarray)
        return np.concatenate(self) if are_arrays else [*chain.from_iterable(self)]


def _empty(key: Any, column: Any) -> Any:
    """What collects a column piece by piece."""
    if isinstance(column, np.ndarray) and (column.dtype.kind in "if" or key == "splits"):
        return _Arrays()
    is_text = key in ("ids", "targets", "inputs") and isinstance(column[0], str)
    return _Texts() if is_text else _Parts()


def _task(head: ExamplesHead, common: dict[str, Any], columns: dict[Any, Any]) -> Task:
    def sets(kind: str) -> dict[str, Any]:
        return {key[1]: column for key, column in columns.items() if isinstance(key, tuple) and key[0] == kind}

    return Task(  # which checks that its fields fit together
        name=head.name,
        inputs=columns["inputs"],
        labels=sets("labels"),
        label_names=head.label_names,
        splits=columns["splits"],
        target=head.target,
        position=columns.get("position", common["position"]),
        ids=columns["ids"],
        groups=columns.get("groups"),
        info=head.info,
        spans=columns.get("spans"),
        targets=columns.get("targets"),
        token_labels=sets("token_labels"),
        chats=columns.get("chats"),
        regions=columns.get("regions"),
        token_ids=columns.get("token_ids"),
        generated=columns.get("generated"),
        columns=sets("columns"),
    )


def _piece(body: dict[str, Any], label_names: dict[str, list[str]]) -> Piece:
    """The content of a piece, or of examples.json without pieces."""
    require(matches(body, _ROWS))
    n, of_tokens, form = len(body["ids"]), body.get("token_labels") or {}, body["layout"]
    require(n > 0, len(body["splits"]) == n, body["labels"].keys() | of_tokens.keys() == label_names.keys())
    layout = _layout(body, n)
    inputs, spans = _inputs(body, n)
    given = {"position": body["position"], **dict(enumerate(body["positions"]))}
    indices = {key: one for key, one in given.items() if isinstance(one, list)}
    require(all(matches(one, [int]) for one in indices.values()))
    groups, targets = body.get("groups"), body.get("targets")
    columns: dict[Any, Any] = {
        "ids": body["ids"],
        "splits": _splits(body["splits"]),
        "inputs": inputs,
        "lengths": layout.lengths,
        "tokens": layout.tokens,
        "spans": spans,
        "groups": None if groups is None else np.array(groups),
        "targets": targets,
        "chats": body.get("chats"),
        "regions": _regions(body.get("regions")),
        "token_ids": body.get("token_ids"),
        "generated": None if body.get("generated") is None else _array(body["generated"], np.int64, n),
        **{name: getattr(layout, name) for name in ("picked", "token_index", "characters")},
        **{key: _array(one, np.int64, n) for key, one in indices.items()},
        **{("labels", name): _labels(one, bool(label_names[name]), n) for name, one in body["labels"].items()},
        **{("columns", name): _side_column(one, n) for name, one in (body.get("columns") or {}).items()},
        **{
            ("token_labels", name): _token_labels(one, bool(label_names[name]), inputs, layout)
            for name, one in of_tokens.items()
        },
    }
    words = {key: "" if isinstance(one, list) else one for key, one in given.items()}
    common = {
        "layout": {"positions": form["positions"], "n_bos": layout.n_bos, "n_end": layout.n_end},
        "position": words.pop("position"),
        "positions": list(words.values()),
        "are texts": isinstance(inputs[0], str),
    }
    return Piece(n, {key: column for key, column in columns.items() if column is not None}, common)


def _splits(names: list[str]) -> np.ndarray:
    require(set(names) <= set(SPLITS))
    return np.array(names, dtype="<U10")


def _layout(body: dict[str, Any], n: int) -> Layout:
    form, tokens = body["layout"], body.get("tokens")
    n_bos, n_end = form["n_bos"], form.get("n_end") or 0
    lengths = _array(form["lengths"], np.int64, n)
    require(len(form["positions"]) == len(body["positions"]) > 0, n_bos in (0, 1), n_end in (0, 1))
    require(lengths.min() >= n_bos + n_end, (lengths.astype(float) ** 2).sum() < 2**60)
    picked = None if body.get("picked") is None else _array(body["picked"], np.int64, n)
    require(picked is None or (len(form["positions"]) == 1 and bool((picked > 0).all())))
    rows = int(Layout(form["positions"], lengths, n_bos, n_end=n_end, picked=picked).counts(("", None)).sum())
    tokens, index = (
        None if given is None else _array(given, np.int64, rows) for given in (tokens, body.get("token_index"))
    )
    characters = None
    if body.get("characters") is not None:
        characters = _array(body["characters"], np.int64, 2 * rows).reshape(-1, 2)
        require(bool(((characters[:, 0] >= 0) & (characters[:, 0] <= characters[:, 1])).all()))
    return Layout(form["positions"], lengths, n_bos, tokens, n_end, picked, index, characters)


def _regions(given: list[list[Any]] | None) -> list[list[Region]] | None:
    if given is None:
        return None
    require(all(matches(one, [str | int]) and len(one) == 3 for own in given for one in own))
    return [[Region(*one) for one in own] for own in given]


def _inputs(body: dict[str, Any], n: int) -> tuple[list[Any], np.ndarray | None]:
    """The input of each example, and its span [n, 2] where examples are words."""
    inputs = body["inputs"]
    require(matches(inputs, [str]) or matches(inputs, [[int]]))
    if body.get("input_of") is not None:
        input_of = _array(body["input_of"], np.int64, n)
        require(bool(((input_of >= 0) & (input_of < len(inputs))).all()))
        inputs = [inputs[i] for i in input_of.tolist()]
    require(len(inputs) == n)
    if body.get("spans") is None:
        return inputs, None
    spans = np.array(body["spans"], dtype=np.int64)
    require(isinstance(inputs[0], str), spans.shape == (n, 2))
    ends = np.array([len(text) for text in inputs])
    require(bool(((spans[:, 0] >= 0) & (spans[:, 0] < spans[:, 1]) & (spans[:, 1] <= ends)).all()))
    return inputs, spans


def _labels(labels: list[Any], are_classes: bool, n: int) -> np.ndarray:
    if labels and isinstance(labels[0], list):  # several numbers for each example
        require(not are_classes, matches(labels, [[float]]), len(labels[0]) > 0)
        require(all(len(one) == len(labels[0]) for one in labels))
        return _array(labels, np.float64, n)
    require(matches(labels, [int if are_classes else float]))
    return _array(labels, np.int64 if are_classes else np.float64, n)


def _side_column(body: dict[str, Any], n: int) -> np.ndarray:
    """Numbers float64 [n], or categories [n]; None is a missing one."""
    values = body["values"]
    require(len(values) == n, matches(values, [int | float | NoneType] if body["numbers"] else [str | NoneType]))
    if body["numbers"]:
        return np.array([math.nan if one is None else one for one in values], dtype=np.float64)
    column = np.empty(n, dtype=object)
    column[:] = values
    return column


def _token_labels(body: dict[str, Any], are_classes: bool, inputs: list[Any], layout: Layout) -> list[np.ndarray]:
    lengths, width, values = body["lengths"], body["width"], body["values"]
    are_texts = isinstance(inputs[0], str)
    require(lengths == (layout.own_lengths.tolist() if are_texts else [len(one) for one in inputs]))
    require(bool(lengths), width is None or (width > 0 and not are_classes))
    if not are_classes:  # a token without a label
        values = [math.nan if one is None else one for one in values]
    flat = _labels(values, are_classes, sum(lengths) * (1 if width is None else width))
    require(flat.ndim == 1)
    return np.split(flat if width is None else flat.reshape(-1, width), np.cumsum(lengths)[:-1])


def _array(values: list[Any], dtype: Any, n: int) -> np.ndarray:
    require(len(values) == n)
    return np.array(values, dtype=dtype)
