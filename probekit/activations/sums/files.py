"""Statistics on disk: how they are written, checked and resumed.

    STORE/statistics/<sha256>.safetensors   the moments of one place, named by their content
                     00012.json             after 12 shards: which files, of which plan; it carries its own checksum

The files of all places are on disk before the JSON record that names them, and older ones are removed afterwards.

Axes: D width of a place, C classes.
"""

import contextlib
import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from probekit.activations.digest import identity_digest
from probekit.activations.sums.moments import SplitMoments
from probekit.errors import StorageError
from probekit.files.durable import is_there, read_plain, refused, remove_old, seal, unseal, write_as, write_first
from probekit.files.remote.path import AnyPath
from probekit.points import Place
from probekit.tasks.base import SPLITS

FORMAT = "probekit-statistics"
FORMAT_VERSION = 1
FOLDER = "statistics"
_MAX_HEADER = 1_000_000  # bytes of a safetensors file's header
_FILE_NAME = re.compile(r"[0-9a-f]{64}\.safetensors")
_RECORD_NAME = re.compile(r"\d+\.json")

Key = tuple[Place, str]
T = TypeVar("T")


class Contents(NamedTuple):
    """The content of statistics: moments by place and split, label set -> class names, and the record of the run."""

    moments: Mapping[Key, SplitMoments]
    label_names: dict[str, list[str]]
    meta: dict[str, Any]

    @property
    def places(self) -> list[Place]:
        """In the order of the curve."""
        return list(dict.fromkeys(place for place, _ in self.moments))

    @property
    def splits(self) -> list[str]:
        """The splits that have examples."""
        return list(dict.fromkeys(split for _, split in self.moments))


@dataclass(frozen=True)
class CountProgress:
    """How far a run has counted.

    Attributes:
        plan: digest of the identity of the run.
        shards: of the run.
        texts: of the run.
        shards_done: shards that are counted.
        texts_done: texts that are counted.
        order: sha256 over the counted examples in their order.
    """

    plan: str = ""
    shards: int = 0
    texts: int = 0
    shards_done: int = 0
    texts_done: int = 0
    order: str = ""

    @property
    def is_complete(self) -> bool:
        """True if every shard is counted."""
        return self.shards_done == self.shards


def progress_after(progress: CountProgress, rows: np.ndarray, digest: Any) -> CountProgress:
    """The progress after one more shard with these rows; updates the running sha256 `digest` of the order."""
    digest.update(rows.astype("<i8").tobytes() + b"|")
    done = (progress.shards_done + 1, progress.texts_done + len(rows), digest.hexdigest())
    return CountProgress(progress.plan, progress.shards, progress.texts, *done)


def read_progress(record: AnyPath, body: dict[str, Any]) -> CountProgress:
    """The progress in a record.

    Raises:
        StorageError: it is not a record of statistics, or has another format.
    """
    try:
        found = CountProgress(**body["progress"])
    except (KeyError, TypeError):
        raise damaged(record, "is not a record of statistics") from None
    numbers = (found.shards_done, found.shards, found.texts_done, found.texts)
    sound = all(type(n) is int and n >= 0 for n in numbers) and found.shards_done <= found.shards
    if body.get("format") != FORMAT or not sound:
        raise damaged(record, "is not a record of statistics")
    if body.get("version") != FORMAT_VERSION:
        raise StorageError(
            f"{str(record)!a} has format {body.get('version')!a}, and this probekit reads format {FORMAT_VERSION}; "
            "extract again"
        )
    return found


def write_checkpoint(folder: AnyPath, contents: Contents, progress: CountProgress) -> None:
    """Write the files of all places, then their record, then remove older ones.

    Raises:
        StorageError: the disk refused.
    """
    body = {**_about(contents, progress), "files": write_files(folder, contents)}
    record = checkpoint_path(folder, progress.shards_done)
    write_first(record, seal(body)[0])
    remove_older(record, body)


def write_files(folder: AnyPath, contents: Contents) -> dict[str, Any]:
    """Write a file for each place, with at most one place in memory twice; returns the record's entry for them."""
    return {str(place): write_place(folder, contents, place) for place in contents.places}


def write_place(folder: AnyPath, contents: Contents, place: Place) -> dict[str, Any]:
    """Write the file of one place; returns the record's entry for it."""
    data = safetensors.torch.save({name: x.cpu() for name, x in place_tensors(contents, place).items()})
    file = f"{hashlib.sha256(data).hexdigest()}.safetensors"
    write_as(folder / file, data)
    return {"file": file, "n_bytes": len(data)}


def place_tensors(contents: Contents, place: Place) -> dict[str, Tensor]:
    """All tensors of a place by their names in its file. Label sets are numbered there: their names can be any text."""
    tensors = {"shift": contents.moments[place, contents.splits[0]].shift}
    for split in contents.splits:
        moments = contents.moments[place, split]
        tensors[f"{split}.count"] = torch.tensor(moments.count)
        tensors |= {f"{split}.sum": moments.shifted_sum, f"{split}.gram": moments.shifted_gram}
        for i, name in enumerate(contents.label_names):
            tensors[f"{split}.class_counts.{i}"] = moments.class_counts[name]
            tensors[f"{split}.class_sums.{i}"] = moments.shifted_class_sums[name]
    return {name: x.contiguous() for name, x in tensors.items()}


def _about(contents: Contents, progress: CountProgress) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "progress": vars(progress),
        "places": [list(place) for place in contents.places],
        "widths": [len(contents.moments[place, contents.splits[0]].shift) for place in contents.places],
        "splits": contents.splits,
        "label_names": [[name, names] for name, names in contents.label_names.items()],
        "meta": contents.meta,
    }


def checkpoint_path(folder: AnyPath, shards_done: int) -> AnyPath:
    """The record of a checkpoint after this many shards."""
    return folder / f"{shards_done:05d}.json"


def list_records(folder: AnyPath) -> list[AnyPath]:
    """All records, oldest first."""
    try:
        found = [path for path in folder.iterdir() if _RECORD_NAME.fullmatch(path.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise refused(folder, error) from error
    return sorted(found, key=lambda path: int(path.stem))


def read_newest(folder: AnyPath, read: Callable[[AnyPath, dict[str, Any]], T]) -> T | None:
    """Call `read` with the newest record and its content; None if there is no record.

    A run that is still counting removes a record, and then its files, once a newer one is there. If that happens
    meanwhile, the newer one is read.
    """
    while records := list_records(folder):
        try:
            return read(records[-1], _unsealed(records[-1]))
        except StorageError:
            if is_there(records[-1]):
                raise
    return None


def check_same_run(store: AnyPath, progress: CountProgress, record: AnyPath) -> None:
    """Check that the statistics within a store belong to its plan.

    Raises:
        StorageError: they belong to another run.
    """
    plan = store / "plan.json"
    if plan.exists() and identity_digest(unseal(plan)[0].get("identity", {})) != progress.plan:
        raise damaged(record, "is of another run than the store")


def damaged(path: AnyPath, why: str) -> StorageError:
    """The error for a file that is missing or altered."""
    folder = str(path.parent)
    return StorageError(f"{str(path)!a} {why}; remove the folder {folder!a} and run the same command again")


def _unsealed(path: AnyPath) -> dict[str, Any]:
    try:
        return unseal(path)[0]
    except StorageError:
        raise damaged(path, "is damaged: its content does not match its checksum, or cannot be read") from None


def remove_older(record: AnyPath, body: dict[str, Any]) -> None:
    """Remove the records older than this one, and the files that only they name."""
    folder = record.parent
    kept = {at["file"] for at in body["files"].values()}
    for old in list_records(folder):
        if int(old.stem) < int(record.stem):
            with contextlib.suppress(StorageError, OSError, KeyError, TypeError, AttributeError):
                files = {at["file"] for at in _unsealed(old)["files"].values()}
                old.unlink()
                for file in files - kept:
                    if _FILE_NAME.fullmatch(file):
                        (folder / file).unlink()


def remove_orphans(folder: AnyPath, body: dict[str, Any]) -> None:
    """Remove files of a run that died before it wrote their record; a young file may belong to a live run."""
    kept = {at["file"] for at in body["files"].values()}
    remove_old(folder, lambda name: name.endswith(".safetensors") and name not in kept)


def read_contents(record: AnyPath, body: dict[str, Any]) -> Contents:
    """The statistics that a record names, with every byte, name, type and shape checked.

    Raises:
        StorageError: a file is missing or damaged, or the record is incomplete.
    """
    moments: dict[Key, SplitMoments] = {}
    for place in recorded_places(record, body):
        moments |= read_place(record, body, place)
    with _record_errors(record):
        return Contents(moments, read_label_names(record, body), dict(body["meta"]))


def recorded_places(record: AnyPath, body: dict[str, Any]) -> list[Place]:
    """The places of a record, one or more; errors as in `read_contents`."""
    with _record_errors(record):
        places = [Place.of((point, layer)) for point, layer in body["places"]]
        if not places:
            raise ValueError
        return places


def read_place(record: AnyPath, body: dict[str, Any], place: Place) -> dict[Key, SplitMoments]:
    """The moments of one place in every split; errors as in `read_contents`."""
    with _record_errors(record):
        return _read_place(record, body, place)


def read_label_names(record: AnyPath, body: dict[str, Any]) -> dict[str, list[str]]:
    """Label set -> class names, of a record; errors as in `read_contents`."""
    with _record_errors(record):
        return _label_names(body)


@contextlib.contextmanager
def _record_errors(record: AnyPath) -> Iterator[None]:
    """Turn what a record without its form raises into a StorageError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError):
        raise damaged(record, "is not a record of statistics") from None


def _read_place(record: AnyPath, body: dict[str, Any], place: Place) -> dict[Key, SplitMoments]:
    splits, widths, label_names = body["splits"], body["widths"], _label_names(body)
    if not splits or len(set(splits) & set(SPLITS)) != len(splits) or len(widths) != len(body["places"]):
        raise ValueError
    D = widths[body["places"].index(list(place))]
    if not (type(D) is int and D > 0):
        raise ValueError
    at = body["files"][str(place)]
    shapes = _shapes(splits, D, [len(names) for names in label_names.values()])
    tensors = _read_file(record.parent, at["file"], at["n_bytes"], shapes)
    return {(place, split): _moments(tensors, split, list(label_names)) for split in splits}


def _label_names(body: dict[str, Any]) -> dict[str, list[str]]:
    return {name: [str(one) for one in names] for name, names in body["label_names"]}


def _shapes(splits: list[str], D: int, classes: list[int]) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Type and shape of each tensor of a place's file."""
    shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {"shift": (torch.float64, (D,))}
    for split in splits:
        shapes[f"{split}.count"] = (torch.int64, ())
        shapes |= {f"{split}.sum": (torch.float64, (D,)), f"{split}.gram": (torch.float64, (D, D))}
        for i, C in enumerate(classes):
            shapes[f"{split}.class_counts.{i}"] = (torch.int64, (C,))
            shapes[f"{split}.class_sums.{i}"] = (torch.float64, (C, D))
    return shapes


def _read_file(folder: AnyPath, file: Any, n_bytes: Any, shapes: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a place's file; no more is read than these can take."""
    if not (isinstance(file, str) and _FILE_NAME.fullmatch(file) and type(n_bytes) is int):
        raise ValueError
    path = folder / file
    content = sum(dtype.itemsize * math.prod(shape) for dtype, shape in shapes.values())
    try:
        data = read_plain(path, content + _MAX_HEADER)
    except FileNotFoundError:
        raise damaged(path, "is missing") from None
    if len(data) != n_bytes:
        raise damaged(path, f"is damaged: it has {len(data)} bytes, not those of its record")
    if hashlib.sha256(data).hexdigest() != path.stem:
        raise damaged(path, "is damaged: its content does not match its checksum")
    try:
        tensors = safetensors.torch.load(data)
    except SafetensorError:
        raise damaged(path, "is not a safetensors file") from None
    if {name: (x.dtype, tuple(x.shape)) for name, x in tensors.items()} != dict(shapes):
        raise damaged(path, "does not hold the tensors of its record")
    if not all(x.isfinite().all() for x in tensors.values()):
        raise damaged(path, "holds NaN or infinity")
    return tensors


def _moments(tensors: Mapping[str, Tensor], split: str, label_sets: list[str]) -> SplitMoments:
    return SplitMoments(
        int(tensors[f"{split}.count"]),
        tensors["shift"],
        tensors[f"{split}.sum"],
        tensors[f"{split}.gram"],
        {name: tensors[f"{split}.class_counts.{i}"] for i, name in enumerate(label_sets)},
        {name: tensors[f"{split}.class_sums.{i}"] for i, name in enumerate(label_sets)},
    )
