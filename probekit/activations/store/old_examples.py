"""Read the examples of stores of format 2, which are JSON: those of a small task in examples.json, others in pieces.

Axes: N examples, n those of a piece, R their rows of tokens.
"""

import math
from types import NoneType
from typing import Any

import numpy as np

from probekit.activations.store.format import AGAIN, MAX_EXAMPLES_BYTES, piece_path, require, storage_errors
from probekit.errors import StorageError
from probekit.files.durable import matches, unseal
from probekit.files.remote.path import AnyPath
from probekit.tasks.fields import FIELDS

_HEAD = {"name": str, "target": str, "info": dict, "label_names": {str: [str]}, "pieces?": [str]}
_ROWS = {
    "labels": {str: list},
    "position": str | int | list,
    "positions": [str | int | list],
    "layout": {"positions": [str], "lengths": [int], "n_bos": int, "n_end?": int},
    "ids": [str | int],
    "splits": [str],
    "inputs": [str | list],
    "groups?": [str | int],
    "targets?": [str | list],
    "input_of?": [int],  # where inputs repeat
    "spans?": [(int, int)],
    "tokens?": [int],
    "chats?": [list],
    "regions?": [list],
    "token_ids?": [[int]],
    "generated?": [int],
    "picked?": [int],
    "token_index?": [int],
    "characters?": [int],  # start and end of each token
    "columns?": {str: {"numbers": bool, "values": [str | int | float | NoneType]}},
    "token_labels?": {str: {"width": int | None, "lengths": [int], "values": list}},
}
Columns = dict[tuple[str, str], Any]


def is_old(body: dict[str, Any]) -> bool:
    """Whether examples.json is of format 2, in which the layout stands beside the rows."""
    return "lengths" in (body.get("layout") or {"lengths": None})


def old_head(path: AnyPath, body: dict[str, Any]) -> dict[str, Any]:
    """What today's examples.json would say, and the rows of a small store as "own"; raises ValueError."""
    require(matches(body, _HEAD))
    pieces, rows = body.get("pieces") or [], body
    if pieces:
        rows, _ = unseal(piece_path(path, f"{pieces[0]}.json"), MAX_EXAMPLES_BYTES, AGAIN)
    require(matches(rows, _ROWS))
    form, position = rows["layout"], rows["position"]
    return {
        **{key: body[key] for key in ("name", "target", "info", "label_names")},
        "position": None if isinstance(position, list) else str(position),
        "positions": [None if isinstance(one, list) else one for one in rows["positions"]],
        "layout": {"positions": form["positions"], "n_bos": form["n_bos"], "n_end": form.get("n_end") or 0},
        "pieces": pieces,
        "own": None if pieces else _columns(body, body["label_names"]),
    }


def read_old_piece(file: AnyPath, checksum: str, label_names: dict[str, list[str]]) -> Columns:
    """The columns of a piece. Raises a StorageError for one that is missing, damaged, or not the one that is named."""
    body, found = unseal(file, MAX_EXAMPLES_BYTES, AGAIN)
    if found != checksum:
        raise StorageError(f"{str(file)!a} is damaged: its content does not match its name; {AGAIN}")
    with storage_errors(file, "list of the examples", AGAIN):
        return _columns(body, label_names)


def _columns(body: dict[str, Any], label_names: dict[str, list[str]]) -> Columns:
    require(matches(body, _ROWS))
    n = len(body["ids"])
    require(n > 0, (body["labels"].keys() | (body.get("token_labels") or {}).keys()) == label_names.keys())
    kind_of = {name: np.int64 if names else np.float64 for name, names in label_names.items()}
    inputs = body["inputs"]
    if body.get("input_of") is not None:
        require(min(body["input_of"]) >= 0)
        inputs = [inputs[i] for i in body["input_of"]]
    found: Columns = {("inputs", ""): inputs, ("lengths", ""): _numbers(body["layout"]["lengths"], n)}
    for field in ("ids", "splits", "groups", "targets", "chats", "regions", "token_ids"):
        if (cells := body.get(field)) is not None:
            made = FIELDS[field].made if field != "token_ids" else None
            found[field, ""] = cells if made is None else made(cells)
    for field in ("spans", "generated", "picked"):
        if (cells := body.get(field)) is not None:
            found[field, ""] = _numbers(cells, n)
    for field in ("tokens", "token_index", "characters"):
        if (cells := body.get(field)) is not None:
            found[field, ""] = _numbers(cells, len(cells)).reshape((-1, 2) if field == "characters" else -1)
    if isinstance(body["position"], list):
        found["position", ""] = _numbers(body["position"], n)
    for k, one in enumerate(body["positions"]):
        if isinstance(one, list):
            found["positions", str(k)] = _numbers(one, n)
    found |= {("labels", name): _numbers(cells, n, kind_of[name]) for name, cells in body["labels"].items()}
    for name, own in (body.get("columns") or {}).items():
        found["columns", name] = _side_column(own)
    for name, own in (body.get("token_labels") or {}).items():
        values = [math.nan if one is None else one for one in own["values"]]
        shape = -1 if own["width"] is None else (-1, own["width"])
        flat = _numbers(values, len(values), kind_of[name]).reshape(shape)
        require(sum(own["lengths"]) == len(flat), len(own["lengths"]) == n, min(own["lengths"]) >= 0)
        found["token_labels", name] = np.split(flat, np.cumsum(own["lengths"])[:-1])
    rows = (values for (field, _), values in found.items() if field not in ("tokens", "token_index", "characters"))
    require(all(len(values) == n for values in rows))
    return found


def _side_column(own: dict[str, Any]) -> np.ndarray:
    require(matches(own["values"], [int | float | NoneType] if own["numbers"] else [str | NoneType]))
    if own["numbers"]:
        return np.array([math.nan if one is None else one for one in own["values"]], dtype=np.float64)
    made = FIELDS["columns"].made
    assert made is not None
    return made(own["values"])


def _numbers(cells: list[Any], n: int, kind: type = np.int64) -> np.ndarray:
    """As an array n numbers, or lists of as many each; truth values, texts and other lengths are refused."""
    flat = [one for cell in cells for one in (cell if isinstance(cell, list) else [cell])]
    require(len(cells) == n, matches(flat, [int] if kind is np.int64 else [int | float]))
    return np.array(cells, dtype=kind)
