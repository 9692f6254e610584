"""What stores of format 2 and earlier hold that today's do not: it is read, and not written.

    STORE/examples.json           the examples of a small task, or the names of the pieces
          examples/<sha256>.json  pieces
          statistics/00012.json   sums after 12 shards: of which plan, and a file for each place, named by its sha256

Axes: N examples, n those of a piece, R their rows of tokens, D width, C classes.
"""

import hashlib
import math
import re
from dataclasses import dataclass
from types import NoneType
from typing import Any, NotRequired, TypedDict

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from probekit.activations.store.format import AGAIN as EXTRACT_AGAIN
from probekit.activations.store.format import MAX_EXAMPLES_BYTES, require
from probekit.activations.store.shard import count_again
from probekit.activations.sums.moments import SplitMoments
from probekit.errors import StorageError
from probekit.files.durable import is_there, read_plain, unseal
from probekit.files.records import has_form, read_as
from probekit.files.remote.path import AnyPath
from probekit.files.run import AGAIN, question_digest
from probekit.points import POINTS, Place
from probekit.tasks.base import SPLITS
from probekit.tasks.fields import FIELDS

_SUMS_RECORD = re.compile(r"\d+\.json")
_SUMS_FILE = re.compile(r"[0-9a-f]{64}\.safetensors")
_MAX_HEADER = 1_000_000  # bytes of a safetensors file's header
Columns = dict[tuple[str, str], Any]


class _Head(TypedDict):
    name: str
    target: str
    info: dict[str, Any]
    label_names: dict[str, list[str]]
    pieces: NotRequired[list[str] | None]


class _Layout(TypedDict):
    positions: list[str]
    lengths: list[int]
    n_bos: int
    n_end: NotRequired[int | None]


class _Column(TypedDict):
    numbers: bool
    values: list[Any]


class _TokenLabels(TypedDict):
    width: int | None
    lengths: list[int]
    values: list[Any]


class _Rows(TypedDict):
    labels: dict[str, list[Any]]
    position: str | int | list[Any]
    positions: list[str | int | list[Any]]
    layout: _Layout
    ids: list[str | int]
    splits: list[str]
    inputs: list[str | list[Any]]
    groups: NotRequired[list[str | int] | None]
    targets: NotRequired[list[str | list[Any]] | None]
    input_of: NotRequired[list[int] | None]  # where inputs repeat
    spans: NotRequired[list[tuple[int, int]] | None]
    tokens: NotRequired[list[int] | None]
    chats: NotRequired[list[list[Any]] | None]
    regions: NotRequired[list[list[Any]] | None]
    token_ids: NotRequired[list[list[int]] | None]
    generated: NotRequired[list[int] | None]
    picked: NotRequired[list[int] | None]
    token_index: NotRequired[list[int] | None]
    characters: NotRequired[list[int] | None]  # start and end of each token
    columns: NotRequired[dict[str, _Column] | None]
    token_labels: NotRequired[dict[str, _TokenLabels] | None]


# examples -------------------------------------------------------------------------------------------------------------


def is_old(body: dict[str, Any]) -> bool:
    """Whether examples.json is of format 2, whose layout has a length for each text."""
    return "lengths" in (body.get("layout") or {"lengths": None})


def old_head(path: AnyPath, body: dict[str, Any]) -> dict[str, Any]:
    """What today's examples.json would say, and the rows of a small store as "own"; raises ValueError."""
    read_as(_Head, body)
    pieces, rows = body.get("pieces") or [], body
    if pieces:
        rows, _ = unseal(path / "examples" / f"{pieces[0]}.json", MAX_EXAMPLES_BYTES, EXTRACT_AGAIN)
    read_as(_Rows, rows)
    form, position = rows["layout"], rows["position"]
    return {
        **{key: body[key] for key in ("name", "target", "info", "label_names")},
        "position": None if isinstance(position, list) else str(position),
        "positions": [None if isinstance(one, list) else one for one in rows["positions"]],
        "layout": {"positions": form["positions"], "n_bos": form["n_bos"], "n_end": form.get("n_end") or 0},
        "pieces": pieces,
        "own": None if pieces else old_columns(body, body["label_names"]),
    }


def old_columns(body: dict[str, Any], label_names: dict[str, list[str]]) -> Columns:
    """The columns of a piece, or of a small store's examples.json; raises ValueError."""
    read_as(_Rows, body)
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
        require(set(map(type, own["values"])) <= ({int, float, NoneType} if own["numbers"] else {str, NoneType}))
        cells = [math.nan if one is None else one for one in own["values"]] if own["numbers"] else own["values"]
        found["columns", name] = np.array(cells, dtype=np.float64 if own["numbers"] else object)
    for name, own in (body.get("token_labels") or {}).items():
        values = [math.nan if one is None else one for one in own["values"]]
        shape = -1 if own["width"] is None else (-1, own["width"])
        flat = _numbers(values, len(values), kind_of[name]).reshape(shape)
        require(sum(own["lengths"]) == len(flat), len(own["lengths"]) == n, min(own["lengths"]) >= 0)
        found["token_labels", name] = np.split(flat, np.cumsum(own["lengths"])[:-1])
    rows = (values for (field, _), values in found.items() if field not in ("tokens", "token_index", "characters"))
    require(all(len(values) == n for values in rows))
    return found


def _numbers(cells: list[Any], n: int, kind: type = np.int64) -> np.ndarray:
    """As an array n numbers, or lists of as many each; truth values, texts and other lengths are refused."""
    flat = [one for cell in cells for one in (cell if isinstance(cell, list) else [cell])]
    require(len(cells) == n, set(map(type, flat)) <= ({int} if kind is np.int64 else {int, float}))
    return np.array(cells, dtype=kind)


# sums -----------------------------------------------------------------------------------------------------------------


class _Progress(TypedDict):
    plan: str
    shards: int
    shards_done: int
    texts: int
    texts_done: int


class _File(TypedDict):
    file: str
    n_bytes: int


class _Sums(TypedDict):
    progress: _Progress
    places: list[tuple[str, int | None]]
    widths: list[int]
    splits: list[str]
    label_names: list[tuple[str, list[str]]]
    files: dict[str, _File]
    meta: dict[str, Any]


@dataclass(frozen=True, eq=False)
class OldSums:
    """The newest record of such sums."""

    file: AnyPath
    body: dict[str, Any]

    @property
    def texts(self) -> tuple[int, int]:
        """Examples that are counted, and all."""
        return self.body["progress"]["texts_done"], self.body["progress"]["texts"]

    @property
    def is_complete(self) -> bool:
        """True if every shard is counted."""
        return self.body["progress"]["shards_done"] == self.body["progress"]["shards"]

    def contents(self) -> tuple[dict[tuple[Place, str], SplitMoments], dict[str, list[str]], dict[str, Any]]:
        """The arguments of `Statistics`, with every byte, name, type and shape checked.

        Raises:
            StorageError: a file is missing or damaged.
        """
        names, found = dict(self.body["label_names"]), dict[tuple[Place, str], SplitMoments]()
        for (point, layer), D in zip(self.body["places"], self.body["widths"], strict=True):
            place = Place.of((point, layer))
            tensors = self._tensors(place, _shapes(self.body["splits"], D, list(map(len, names.values()))))
            for split in self.body["splits"]:
                one = {name.removeprefix(f"{split}."): x for name, x in tensors.items()}
                counts = {name: one[f"class_counts.{i}"] for i, name in enumerate(names)}
                sums = {name: one[f"class_sums.{i}"] for i, name in enumerate(names)}
                moments = SplitMoments(int(one["count"]), one["shift"], one["sum"], one["gram"], counts, sums)
                found[place, split] = moments
        return found, names, self.body["meta"]

    def _tensors(self, place: Place, shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]]) -> dict[str, Tensor]:
        """The tensors of a place's file; no more is read than these can take."""
        at = self.body["files"].get(str(place), {"file": "", "n_bytes": 0})
        file = self.file.parent / at["file"]
        content = sum(dtype.itemsize * math.prod(shape) for dtype, shape in shapes.values())
        try:
            data = read_plain(file, content + _MAX_HEADER) if _SUMS_FILE.fullmatch(at["file"]) else b""
            tensors = safetensors.torch.load(data) if hashlib.sha256(data).hexdigest() == file.stem else {}
        except (FileNotFoundError, SafetensorError):
            tensors = {}
        if {name: (x.dtype, tuple(x.shape)) for name, x in tensors.items()} != shapes:
            raise _damaged(file, self.file)
        if not all(x.isfinite().all() for x in tensors.values()):
            raise _damaged(file, self.file)
        return tensors


def read_old_sums(folder: AnyPath) -> OldSums | None:
    """The newest of such sums in the folder of a store's statistics; None if there are none.

    Raises:
        StorageError: the record is damaged, or of another run than the store.
    """
    records = [one for one in folder.glob("*.json") if _SUMS_RECORD.fullmatch(one.name)]
    if not records:
        return None
    file = max(records, key=lambda one: int(one.stem))
    body, _ = unseal(file, advice=AGAIN)
    if not has_form(_Sums, body):
        raise _damaged(file, file)
    places, widths, splits = body["places"], body["widths"], body["splits"]
    are_known = all(point in POINTS for point, _ in places) and set(splits) <= set(SPLITS)
    if not (are_known and len(set(splits)) == len(splits) > 0 < len(places) == len(widths) and min(widths) > 0):
        raise _damaged(file, file)
    plan = folder.parent / "plan.json"
    if is_there(plan) and question_digest(unseal(plan)[0].get("identity", {})) != body["progress"]["plan"]:
        raise StorageError(f"{str(file)!a} is of another run than the store; {AGAIN}")
    return OldSums(file, body)


def _shapes(splits: list[str], D: int, classes: list[int]) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {"shift": (torch.float64, (D,))}
    for split in splits:
        shapes[f"{split}.count"] = (torch.int64, ())
        shapes |= {f"{split}.sum": (torch.float64, (D,)), f"{split}.gram": (torch.float64, (D, D))}
        for i, C in enumerate(classes):
            shapes[f"{split}.class_counts.{i}"] = (torch.int64, (C,))
            shapes[f"{split}.class_sums.{i}"] = (torch.float64, (C, D))
    return shapes


def _damaged(file: AnyPath, record: AnyPath) -> StorageError:
    return StorageError(f"{str(file)!a} is missing, damaged or not of these statistics; {count_again(record)}")
