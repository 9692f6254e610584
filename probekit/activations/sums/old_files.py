"""Sums as stores of format 2 and earlier saved statistics have them, a file for each place: read, and not written.

STORE/statistics/00012.json   after 12 shards: the files, of which plan; each is named by the sha256 of its content
"""

import hashlib
import math
import re
from dataclasses import dataclass
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from probekit.activations.store.shard import count_again
from probekit.activations.sums.files import FOLDER, Contents, Key
from probekit.activations.sums.moments import SplitMoments
from probekit.errors import StorageError
from probekit.files.durable import is_there, matches, read_plain, unseal
from probekit.files.remote.path import AnyPath
from probekit.files.run import AGAIN, question_digest
from probekit.points import POINTS, Place
from probekit.tasks.base import SPLITS

_RECORD_NAME = re.compile(r"\d+\.json")
_FILE_NAME = re.compile(r"[0-9a-f]{64}\.safetensors")
_MAX_HEADER = 1_000_000  # bytes of a safetensors file's header
_FORM = {
    "progress": {"plan": str, "shards": int, "shards_done": int, "texts": int, "texts_done": int},
    "places": [(str, int | None)],
    "widths": [int],
    "splits": [str],
    "label_names": [(str, [str])],
    "files": {str: {"file": str, "n_bytes": int}},
    "meta": dict,
}


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

    def contents(self) -> Contents:
        """The sums, with every byte, name, type and shape checked.

        Raises:
            StorageError: a file is missing or damaged.
        """
        names, found = dict(self.body["label_names"]), dict[Key, SplitMoments]()
        for (point, layer), D in zip(self.body["places"], self.body["widths"], strict=True):
            place = Place.of((point, layer))
            tensors = self._tensors(place, _shapes(self.body["splits"], D, list(map(len, names.values()))))
            for split in self.body["splits"]:
                one = {name.removeprefix(f"{split}."): x for name, x in tensors.items()}
                counts = {name: one[f"class_counts.{i}"] for i, name in enumerate(names)}
                sums = {name: one[f"class_sums.{i}"] for i, name in enumerate(names)}
                moments = SplitMoments(int(one["count"]), one["shift"], one["sum"], one["gram"], counts, sums)
                found[place, split] = moments
        return Contents(found, names, self.body["meta"])

    def _tensors(self, place: Place, shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]]) -> dict[str, Tensor]:
        """The tensors of a place's file; no more is read than these can take."""
        at = self.body["files"].get(str(place), {"file": "", "n_bytes": 0})
        file = self.file.parent / at["file"]
        content = sum(dtype.itemsize * math.prod(shape) for dtype, shape in shapes.values())
        try:
            data = read_plain(file, content + _MAX_HEADER) if _FILE_NAME.fullmatch(at["file"]) else b""
            tensors = safetensors.torch.load(data) if hashlib.sha256(data).hexdigest() == file.stem else {}
        except (FileNotFoundError, SafetensorError):
            tensors = {}
        if {name: (x.dtype, tuple(x.shape)) for name, x in tensors.items()} != shapes:
            raise _damaged(file, self.file)
        if not all(x.isfinite().all() for x in tensors.values()):
            raise _damaged(file, self.file)
        return tensors


def read_old_sums(path: AnyPath) -> OldSums | None:
    """The newest of such sums at `path`; None if there are none.

    Raises:
        StorageError: the record is damaged, or of another run than the store.
    """
    records = [one for one in (path / FOLDER).glob("*.json") if _RECORD_NAME.fullmatch(one.name)]
    if not records:
        return None
    file = max(records, key=lambda one: int(one.stem))
    body, _ = unseal(file, advice=AGAIN)
    if not (matches(body, _FORM) and _fits(**{key: body[key] for key in ("places", "widths", "splits")})):
        raise _damaged(file, file)
    plan = path / "plan.json"
    if is_there(plan) and question_digest(unseal(plan)[0].get("identity", {})) != body["progress"]["plan"]:
        raise StorageError(f"{str(file)!a} is of another run than the store; {AGAIN}")
    return OldSums(file, body)


def _fits(places: list[list[Any]], widths: list[int], splits: list[str]) -> bool:
    are_known = all(point in POINTS for point, _ in places) and set(splits) <= set(SPLITS)
    return are_known and len(set(splits)) == len(splits) > 0 < len(places) == len(widths) and min(widths) > 0


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
