"""Sufficient statistics of activations: the moments of every place and split, gathered while a model runs.

    STORE/statistics/<sha256>.safetensors   the moments of one place, named by their content
                     00012.json             after 12 shards: which files, of which plan; it carries its own checksum

A place's file stands on disk before the JSON that names it, and what is older is removed afterwards. Shards are added
in their order, and a run that was stopped goes on from the last JSON, so that it ends in the same bits.

Axes: N rows, D width of a place, C classes.
"""

import contextlib
import hashlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from probekit.activations.sums.moments import Moments
from probekit.durable import make_folder, open_plain, refused, seal, sweep, unseal, write_as, write_first
from probekit.errors import DataError, StorageError, UsageError
from probekit.points import PAIR_POINTS, Place, PointSpec, UnknownPoint, place_name, split_point
from probekit.tasks.base import SPLITS, Task
from probekit.text import printable

if TYPE_CHECKING:
    from probekit.activations.plan.plan import ExtractionPlan

FORMAT = "probekit-statistics"
FORMAT_VERSION = 1
FOLDER = "statistics"
SECONDS_BETWEEN = 30  # checkpoints
SHARE_OF_TIME = 0.1  # that checkpoints may take, where they are large
STALE_SECONDS = 3600  # a file without a record that old belongs to a run that died
_FILE_NAME = re.compile(r"[0-9a-f]{64}\.safetensors")
_RECORD_NAME = re.compile(r"\d+\.json")

Key = tuple[Place, str]
T = TypeVar("T")


class Statistics(Mapping[Key, Moments]):
    """(place, split) -> the moments of its rows.

    Args:
        moments: by place and split; every place has the same splits.
        label_names: label set -> class names, in label order.
        meta: where the values come from, JSON-able, as `Activations.meta`.
    """

    def __init__(self, moments: Mapping[Key, Moments], label_names: dict[str, list[str]], meta: dict[str, Any]):
        self._moments = dict(moments)
        self.label_names = label_names
        self.meta = meta

    def __getitem__(self, key: tuple[PointSpec, str]) -> Moments:
        """`statistics["resid_pre.5", "train"]`, or with a place such as ("resid_pre", 5).

        Raises:
            UnknownPoint: no such place or split here.
        """
        if not (isinstance(key, tuple) and len(key) == 2):
            raise UnknownPoint(f"statistics are of a place and a split, such as ('resid_pre.5', 'train'); got {key!r}")
        place = split_point(key[0])
        if (place, key[1]) not in self._moments:
            there = f"{', '.join(map(place_name, self.places))}; {', '.join(self.splits)}"
            raise UnknownPoint(f"no statistics of {place_name(place)}, {key[1]!a} here; there are {there}")
        return self._moments[place, key[1]]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._moments)

    def __len__(self) -> int:
        """Places times splits."""
        return len(self._moments)

    @property
    def places(self) -> list[Place]:
        """In the order of the curve."""
        return list(dict.fromkeys(place for place, _ in self._moments))

    @property
    def splits(self) -> list[str]:
        """Those that have examples."""
        return list(dict.fromkeys(split for _, split in self._moments))

    @property
    def n_bytes(self) -> int:
        """Bytes of all sums, in memory and, but for a few kB, on disk."""
        return sum(x.nbytes for place in self.places for x in self._tensors(place).values())

    def save(self, path: str | Path) -> Path:
        """Write them to `path`, whole or not at all; `load_statistics` reads them.

        Raises:
            StorageError: the disk refused, or statistics stand there already.
        """
        folder = Path(path) / FOLDER
        if _records(folder) or (Path(path) / "plan.json").exists():
            raise StorageError(f"statistics or a store stand at {str(path)!a} already; name another folder")
        make_folder(folder)
        write_first(folder / _record_name(0), seal({**_about(self, _Progress.none()), **self._write_files(folder)})[0])
        return Path(path)

    def _write_files(self, folder: Path) -> dict[str, Any]:
        """A file for each place, at most one of them in memory twice; the entry of the JSON that names them."""
        files = {}
        for place in self.places:
            data = safetensors.torch.save({name: x.cpu() for name, x in self._tensors(place).items()})
            file = f"{hashlib.sha256(data).hexdigest()}.safetensors"
            write_as(folder / file, data)
            files[place_name(place)] = {"file": file, "n_bytes": len(data)}
        return {"files": files}

    def _tensors(self, place: Place) -> dict[str, Tensor]:
        """Everything of a place by its name in the file; label sets have any name, so theirs is their number."""
        tensors = {"shift": self._moments[place, self.splits[0]].shift}
        for split in self.splits:
            moments = self._moments[place, split]
            tensors[f"{split}.count"] = torch.tensor(moments.count)
            tensors |= {f"{split}.sum": moments.shifted_sum, f"{split}.gram": moments.shifted_gram}
            for i, name in enumerate(self.label_names):
                tensors[f"{split}.class_counts.{i}"] = moments.class_counts[name]
                tensors[f"{split}.class_sums.{i}"] = moments.shifted_class_sums[name]
        return {name: x.contiguous() for name, x in tensors.items()}

    def __repr__(self) -> str:
        where = f"{printable(self.meta.get('model', '?'))} on {printable(self.meta.get('task', '?'))}"
        return f"Statistics({where}: {len(self.places)} places x {', '.join(self.splits)}, {self.n_bytes / 1e6:.1f} MB)"


def load_statistics(path: str | Path) -> Statistics:
    """What `extract(..., stats=True)`, `extract_statistics` or `Statistics.save` wrote to `path`.

    Raises:
        DataError: no statistics there.
        StorageError: they are unfinished, or what stands there is damaged; the message names the file.
    """

    def load(record: Path, body: dict[str, Any]) -> Statistics:
        progress = _Progress.of(body, record)
        if not progress.is_complete:
            state = f"{progress.texts_done} of {progress.texts} texts are counted"
            raise StorageError(f"the statistics at {str(path)!a} are unfinished, {state}: run the same command again")
        _check_plan(Path(path) / "plan.json", progress, record)
        return _loaded(record, body)

    found = _of_newest(Path(path) / FOLDER, load)
    if found is None:
        raise DataError(f"no statistics at {str(path)!a}; make them with probekit extract --stats")
    return found


def check_statistics(path: str | Path) -> tuple[int, int] | None:
    """As `statistics_progress`, when every byte of what stands at `path`, finished or not, was compared.

    Raises:
        StorageError: it is damaged, or not of the plan that stands there; the message names the file.
    """

    def check(record: Path, body: dict[str, Any]) -> tuple[int, int]:
        progress = _Progress.of(body, record)
        _check_plan(Path(path) / "plan.json", progress, record)
        _loaded(record, body)
        return progress.texts_done, progress.texts

    return _of_newest(Path(path) / FOLDER, check)


def identity_digest(identity: dict[str, Any]) -> str:
    """Hex sha256 of what decides the bits of a run."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _check_plan(plan: Path, progress: "_Progress", record: Path) -> None:
    """In a store, the statistics must be those of the store's plan."""
    if plan.exists() and identity_digest(unseal(plan)[0].get("identity", {})) != progress.plan:
        raise _damaged(record, "is of another run than the store")


def statistics_progress(path: str | Path) -> tuple[int, int] | None:
    """(texts counted, texts in all) of the statistics at `path`; None where there are none.

    Raises:
        StorageError: they are damaged.
    """

    def count(record: Path, body: dict[str, Any]) -> tuple[int, int]:
        progress = _Progress.of(body, record)
        return progress.texts_done, progress.texts

    return _of_newest(Path(path) / FOLDER, count)


def statistics_bytes(task: Task, widths: Iterable[int]) -> int:
    """Bytes of the statistics of this task at places of these widths D: O(places x splits x D^2) in float64."""
    classes = sum(len(names) for names in task.label_names.values())
    return sum(8 * (D + len(_splits(task)) * (1 + D + D * D + classes * (D + 1))) for D in widths)


class Tally:
    """Adds up a plan's shards, in their order, on the plan's device; with a folder, it goes on from what stands there.

    Args:
        plan: what is run; one row an example, or one a token.
        folder: None, or the store's, below which checkpoints are written.

    Raises:
        UsageError: several positions, or attention.
        DataError: labels out of range.
        StorageError: a damaged checkpoint, or one of other shards.
    """

    def __init__(self, plan: "ExtractionPlan", folder: Path | None = None):
        check_countable(plan)
        self._plan = plan
        self._folder = None if folder is None else folder / FOLDER
        self._device = plan.device if plan.device.type == "cuda" else torch.device("cpu")
        self._moments: dict[Key, Moments] = {}
        self._progress = _Progress.none(plan.digest, len(plan.shards), plan.texts)
        self._order = hashlib.sha256()
        self._written, self._pause = time.monotonic(), float(SECONDS_BETWEEN)
        self._meta: dict[str, Any] = {}
        self._standing = self._resume()

    @property
    def is_complete(self) -> bool:
        """Whether every shard is counted, and that stands on disk."""
        return self._standing is not None and self._standing.is_complete

    def wants(self, number: int) -> bool:
        """Whether this shard is not counted yet."""
        return self._standing is None or number >= self._standing.shards_done

    def add(self, number: int, rows: np.ndarray, values: Mapping[Place, Tensor]) -> None:
        """Count a shard, the one after the last, with its `values` [R, D]; one that is counted already is left alone.

        Raises:
            StorageError: the disk refused a checkpoint, or the one that stands there is of other shards.
        """
        assert number == self._progress.shards_done, f"shard {number} after {self._progress.shards_done}"
        if self.wants(number):
            for place, x in values.items():
                self._add(place, rows, x.to(self._device))
        self._progress = self._progress.after(rows, self._order)
        self._check_order()
        if self.wants(number) and self._is_due():
            self._checkpoint()

    def finish(self, meta: dict[str, Any]) -> Statistics:
        """All of them; with a folder, they stand on disk from now on. Complete ones keep their own `meta`."""
        if not self.is_complete:
            self._meta = meta
            self._checkpoint()
        return self._statistics()

    def _is_due(self) -> bool:
        return time.monotonic() - self._written > self._pause

    def _add(self, place: Place, rows: np.ndarray, x: Tensor) -> None:
        task, counts = self._plan.task, self._plan.layout.counts(place)[rows]
        examples = np.repeat(rows, counts)
        if (place, _splits(task)[0]) not in self._moments:
            shift, classes = x.double().mean(dim=0), {name: len(names) for name, names in task.label_names.items()}
            self._moments |= {(place, split): Moments.zero(shift, classes) for split in _splits(task)}
        for split in _splits(task):
            own = np.flatnonzero(task.splits[examples] == split)
            labels = {name: given[examples[own]] for name, given in task.labels.items()}
            moments = self._moments[place, split]
            self._moments[place, split] = moments.including(x[torch.from_numpy(own).to(x.device)], labels)

    def _statistics(self) -> Statistics:
        keys = [(place, split) for place in self._plan.places for split in _splits(self._plan.task)]
        return Statistics({key: self._moments[key] for key in keys}, self._plan.task.label_names, self._meta)

    def _resume(self) -> "_Progress | None":
        """Take over the newest checkpoint; what it has counted."""
        if self._folder is None:
            return None
        make_folder(self._folder)
        sweep(self._folder)
        return _of_newest(self._folder, self._take_over)

    def _take_over(self, record: Path, body: dict[str, Any]) -> "_Progress":
        progress, ours = _Progress.of(body, record), self._progress
        if (progress.plan, progress.shards, progress.texts) != (ours.plan, ours.shards, ours.texts):
            raise _damaged(record, "is of another run")
        standing = _loaded(record, body)
        self._moments = {key: moments.to(self._device) for key, moments in standing.items()}
        self._meta = standing.meta
        _remove_older(record, body)
        _remove_orphans(record.parent, body)
        return progress

    def _check_order(self) -> None:
        """The shards that a checkpoint counted must be those of this run."""
        standing = self._standing
        if standing is not None and standing.shards_done == self._progress.shards_done and standing != self._progress:
            assert self._folder is not None
            raise _damaged(self._folder / _record_name(standing.shards_done), "counted other shards than this run has")

    def _checkpoint(self) -> None:
        if self._folder is None:
            return
        start = time.monotonic()
        statistics = self._statistics()
        body = {**_about(statistics, self._progress), **statistics._write_files(self._folder)}
        record = self._folder / _record_name(self._progress.shards_done)
        write_first(record, seal(body)[0])
        _remove_older(record, body)
        self._written = time.monotonic()
        self._pause = max(SECONDS_BETWEEN, (self._written - start) / SHARE_OF_TIME)


@dataclass(frozen=True)
class _Progress:
    """How far a run has counted: shards and texts, and a sha256 over the examples in the order in which they came."""

    plan: str
    shards: int
    texts: int
    shards_done: int
    texts_done: int
    order: str

    @property
    def is_complete(self) -> bool:
        """Whether every shard is counted."""
        return self.shards_done == self.shards

    @classmethod
    def none(cls, plan: str = "", shards: int = 0, texts: int = 0) -> "_Progress":
        return cls(plan, shards, texts, 0, 0, "")

    @classmethod
    def of(cls, body: dict[str, Any], path: Path) -> "_Progress":
        try:
            found = cls(**body["progress"])
        except (KeyError, TypeError):
            raise _damaged(path, "is no record of statistics") from None
        numbers = (found.shards_done, found.shards, found.texts_done, found.texts)
        sound = all(type(n) is int and n >= 0 for n in numbers) and found.shards_done <= found.shards
        if body.get("format") != FORMAT or not sound:
            raise _damaged(path, "is no record of statistics")
        if body.get("version") != FORMAT_VERSION:
            raise StorageError(
                f"{str(path)!a} has format {body.get('version')!a}, this probekit reads {FORMAT_VERSION}"
            )
        return found

    def after(self, rows: np.ndarray, digest: Any) -> "_Progress":
        digest.update(rows.astype("<i8").tobytes() + b"|")
        done = (self.shards_done + 1, self.texts_done + len(rows), digest.hexdigest())
        return _Progress(self.plan, self.shards, self.texts, *done)


def _splits(task: Task) -> list[str]:
    return [split for split in SPLITS if (task.splits == split).any()]


def check_countable(plan: "ExtractionPlan") -> None:
    """Whether statistics can be made of what this plan reads.

    Raises:
        UsageError: several positions, or attention.
        DataError: labels out of range.
    """
    _check_rows(plan)
    _check_labels(plan.task)


def _check_rows(plan: "ExtractionPlan") -> None:
    if pairs := [place_name(place) for place in plan.places if place[0] in PAIR_POINTS]:
        raise UsageError(f"statistics are of tokens, and {pairs[0]} belongs to pairs of them; leave it out")
    if len(plan.layout.positions) > 1:
        raise UsageError(f"statistics are of one position, or of all; got {', '.join(plan.layout.positions)}")


def _check_labels(task: Task) -> None:
    for name, labels in task.labels.items():
        if not task.n_classes(name):
            raise UsageError(f"statistics count classes, and {name!a} is a regression; leave --stats out")
        bad = (labels < 0) | (labels >= len(task.label_names[name]))
        if bad.any():
            row = int(bad.argmax())
            raise DataError(
                f"labels of {name!a} must be 0..{len(task.label_names[name]) - 1} to be counted, example "
                f"{task.ids[row]!a} has {labels[row]}; leave unlabelled examples out"
            )


def _about(statistics: Statistics, progress: _Progress) -> dict[str, Any]:
    some = {place: statistics[place, statistics.splits[0]] for place in statistics.places}
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "progress": vars(progress),
        "places": [list(place) for place in statistics.places],
        "widths": [len(moments.shift) for moments in some.values()],
        "splits": statistics.splits,
        "label_names": [[name, names] for name, names in statistics.label_names.items()],
        "meta": statistics.meta,
    }


def _record_name(shards_done: int) -> str:
    return f"{shards_done:05d}.json"


def _records(folder: Path) -> list[Path]:
    """Oldest first."""
    try:
        found = [path for path in folder.iterdir() if _RECORD_NAME.fullmatch(path.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise refused(folder, error) from error
    return sorted(found, key=lambda path: int(path.stem))


def _of_newest(folder: Path, use: Callable[[Path, dict[str, Any]], T]) -> T | None:
    """What `use` makes of the newest record and its content; None where there is none.

    A run that goes on removes it, and then its files, as soon as a newer one stands there; that one is taken then.
    """
    while records := _records(folder):
        try:
            return use(records[-1], _unsealed(records[-1]))
        except StorageError:
            if os.path.lexists(records[-1]):
                raise
    return None


def _damaged(path: Path, why: str) -> StorageError:
    folder = str(path.parent)
    return StorageError(f"{str(path)!a} {why}; remove the folder {folder!a}, and the same command makes it anew")


def _unsealed(path: Path) -> dict[str, Any]:
    try:
        return unseal(path)[0]
    except StorageError:
        raise _damaged(path, "is damaged: its content does not match its checksum, or cannot be read") from None


def _remove_older(record: Path, body: dict[str, Any]) -> None:
    """Older records and what only they name: the newer ones stand on disk, and nobody needs both."""
    folder = record.parent
    kept = {at["file"] for at in body["files"].values()}
    for old in _records(folder):
        if int(old.stem) < int(record.stem):
            with contextlib.suppress(StorageError, OSError, KeyError, TypeError, AttributeError):
                files = {at["file"] for at in _unsealed(old)["files"].values()}
                old.unlink()
                for file in files - kept:
                    if _FILE_NAME.fullmatch(file):
                        (folder / file).unlink()


def _remove_orphans(folder: Path, body: dict[str, Any]) -> None:
    """Files of a run that died before their record stood; a younger one may be another run's that still writes."""
    kept = {at["file"] for at in body["files"].values()}
    for path in folder.glob("*.safetensors"):
        with contextlib.suppress(OSError):
            if path.name not in kept and time.time() - path.stat().st_mtime > STALE_SECONDS:
                path.unlink()


def _loaded(record: Path, body: dict[str, Any]) -> Statistics:
    """The statistics that a record names, every byte, name, type and shape checked.

    Raises:
        StorageError: a file is missing or damaged, or the record is no whole one.
    """
    try:
        places = [split_point((point, layer)) for point, layer in body["places"]]
        label_names = {name: [str(one) for one in names] for name, names in body["label_names"]}
        splits, widths = body["splits"], body["widths"]
        if not places or not splits or len(set(splits) & set(SPLITS)) != len(splits):
            raise ValueError
        if not all(type(D) is int and D > 0 for D in widths):
            raise ValueError
        moments: dict[Key, Moments] = {}
        for place, D in zip(places, widths, strict=True):
            at = body["files"][place_name(place)]
            shapes = _shapes(splits, D, [len(names) for names in label_names.values()])
            tensors = _read(record.parent, at["file"], at["n_bytes"], shapes)
            moments |= {(place, split): _moments_of(tensors, split, list(label_names)) for split in splits}
        return Statistics(moments, label_names, dict(body["meta"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _damaged(record, "is no record of statistics") from None


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


_MOST_HEADER = 1_000_000  # bytes of a safetensors file's header


def _read(folder: Path, file: Any, n_bytes: Any, shapes: Mapping[str, Any]) -> dict[str, Tensor]:
    """A place's file; its size is known before a byte of it is read."""
    if not (isinstance(file, str) and _FILE_NAME.fullmatch(file) and type(n_bytes) is int):
        raise ValueError
    path = folder / file
    content = sum(dtype.itemsize * math.prod(shape) for dtype, shape in shapes.values())
    try:
        with open_plain(path) as fd, open(fd, "rb", closefd=False) as opened:
            size = os.fstat(fd).st_size
            if not size == n_bytes <= content + _MOST_HEADER:
                raise _damaged(path, f"is damaged: it has {size} bytes, not those of its record")
            data = opened.read()
    except FileNotFoundError:
        raise _damaged(path, "is missing") from None
    if hashlib.sha256(data).hexdigest() != path.stem:
        raise _damaged(path, "is damaged: its content does not match its checksum")
    try:
        tensors = safetensors.torch.load(data)
    except SafetensorError:
        raise _damaged(path, "is no safetensors file") from None
    if {name: (x.dtype, tuple(x.shape)) for name, x in tensors.items()} != dict(shapes):
        raise _damaged(path, "does not hold what its record says")
    if not all(x.isfinite().all() for x in tensors.values()):
        raise _damaged(path, "holds NaN or infinity")
    return tensors


def _moments_of(tensors: Mapping[str, Tensor], split: str, label_sets: list[str]) -> Moments:
    return Moments(
        int(tensors[f"{split}.count"]),
        tensors["shift"],
        tensors[f"{split}.sum"],
        tensors[f"{split}.gram"],
        {name: tensors[f"{split}.class_counts.{i}"] for i, name in enumerate(label_sets)},
        {name: tensors[f"{split}.class_sums.{i}"] for i, name in enumerate(label_sets)},
    )
