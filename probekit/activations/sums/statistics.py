"""Sufficient statistics of activations: the moments of every place and split.

Axes: D width of a place, C classes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from probekit.activations.sums.files import (
    FOLDER,
    Contents,
    CountProgress,
    Key,
    check_same_run,
    list_records,
    place_tensors,
    read_contents,
    read_newest,
    read_progress,
    write_checkpoint,
)
from probekit.activations.sums.join import part_folders
from probekit.activations.sums.moments import SplitMoments
from probekit.errors import DataError, StorageError
from probekit.files.durable import make_folder, unseal
from probekit.files.remote.path import AnyPath
from probekit.options.check import check_any_path
from probekit.points import Place, PointSpec, UnknownPoint, as_extracted
from probekit.tasks.base import SPLITS, Task
from probekit.text import listed, printable


class Statistics(Mapping[Key, SplitMoments]):
    """(place, split) -> the moments of its rows.

    Args:
        moments: by place and split; every place has the same splits.
        label_names: label set -> class names, in label order.
        meta: where the values come from, JSON-able, as `Activations.meta`.
    """

    def __init__(self, moments: Mapping[Key, SplitMoments], label_names: dict[str, list[str]], meta: dict[str, Any]):
        self._contents = Contents(dict(moments), label_names, meta)

    def __getitem__(self, key: tuple[PointSpec, str]) -> SplitMoments:
        """`statistics["resid_pre.5", "train"]`, or with a place such as ("resid_pre", 5).

        Raises:
            UnknownPoint: no such place or split here.
        """
        if not (isinstance(key, tuple) and len(key) == 2):
            raise UnknownPoint(f"the key is a place and a split, such as ('resid_pre.5', 'train'); got {key!r}")
        short, layer = Place.of(key[0])
        place = Place(as_extracted(short, self.places), layer)
        if (place, key[1]) not in self._contents.moments:
            there = f"{listed([str(one) for one in self.places])}; {', '.join(self.splits)}"
            raise UnknownPoint(f"no statistics of {place}, {key[1]!a} here; there are {there}")
        return self._contents.moments[place, key[1]]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._contents.moments)

    def __len__(self) -> int:
        """Places times splits."""
        return len(self._contents.moments)

    @property
    def label_names(self) -> dict[str, list[str]]:
        """Label set -> class names, in label order."""
        return self._contents.label_names

    @property
    def meta(self) -> dict[str, Any]:
        """Where the values come from, as `Activations.meta`."""
        return self._contents.meta

    @property
    def places(self) -> list[Place]:
        """In the order of the curve."""
        return self._contents.places

    @property
    def splits(self) -> list[str]:
        """The splits that have examples."""
        return self._contents.splits

    @property
    def n_bytes(self) -> int:
        """Bytes of all sums in memory; on disk a few kB more."""
        return sum(x.nbytes for place in self.places for x in place_tensors(self._contents, place).values())

    def save(self, path: str | AnyPath) -> AnyPath:
        """Write them to `path`, completely or not at all; `load_statistics` reads them.

        Raises:
            StorageError: the disk refused, or `path` already holds statistics or a store.
        """
        path = check_any_path("path", path)
        folder = path / FOLDER
        if list_records(folder) or (path / "plan.json").exists():
            raise StorageError(f"{str(path)!a} already holds statistics or a store; name another folder")
        make_folder(folder)
        write_checkpoint(folder, self._contents, CountProgress())
        return path

    def __repr__(self) -> str:
        where = f"{printable(self.meta.get('model', '?'))} on {printable(self.meta.get('task', '?'))}"
        return f"Statistics({where}: {len(self.places)} places x {', '.join(self.splits)}, {self.n_bytes / 1e6:.1f} MB)"


def load_statistics(path: str | AnyPath) -> Statistics:
    """Read the statistics that `extract(..., stats=True)`, `extract_statistics` or `Statistics.save` wrote to `path`.

    Raises:
        DataError: no statistics there.
        StorageError: they are unfinished or damaged; the message names the file.
        UsageError: no path.
    """
    path = check_any_path("path", path)

    def read(record: AnyPath, body: dict[str, Any]) -> Statistics:
        progress = read_progress(record, body)
        if not progress.is_complete:
            state = f"{progress.texts_done} of {progress.texts} texts are counted"
            raise StorageError(f"the statistics at {str(path)!a} are unfinished, {state}; run the same command again")
        check_same_run(path, progress, record)
        return Statistics(*read_contents(record, body))

    found = read_newest(path / FOLDER, read)
    if found is None:
        raise DataError(f"no statistics at {str(path)!a}; make them with probekit extract --stats")
    return found


def check_statistics(path: str | AnyPath) -> tuple[int, int] | None:
    """As `statistics_progress`, after checking every byte of the statistics at `path`, those of parts too.

    Raises:
        StorageError: they are damaged, or do not belong to the store at `path`; the message names the file.
    """
    place = check_any_path("path", path)

    def check(record: AnyPath, body: dict[str, Any]) -> tuple[int, int]:
        progress = read_progress(record, body)
        check_same_run(place, progress, record)
        read_contents(record, body)
        return progress.texts_done, progress.texts

    return _read_all(place, check)


def statistics_progress(path: str | AnyPath) -> tuple[int, int] | None:
    """(texts counted, texts in total) of the statistics at `path`; None if there are none.

    Of a store whose parts are not joined yet, the texts that the parts have counted.

    Raises:
        StorageError: they are damaged.
    """

    def count(record: AnyPath, body: dict[str, Any]) -> tuple[int, int]:
        progress = read_progress(record, body)
        return progress.texts_done, progress.texts

    return _read_all(check_any_path("path", path), count)


def _read_all(path: AnyPath, read: Callable[[AnyPath, dict[str, Any]], tuple[int, int]]) -> tuple[int, int] | None:
    """What `read` says of the newest record, or of the newest ones of all parts by the cut that counted most."""
    joined = read_newest(path / FOLDER, read)
    if joined is not None and joined[0] == joined[1]:
        return joined
    by_cut: dict[str, int] = {}
    for folder in part_folders(path):
        cut = folder.name.rpartition("-")[2]
        by_cut[cut] = by_cut.get(cut, 0) + (read_newest(folder, read) or (0, 0))[0]
    if not any(by_cut.values()):
        return joined
    total = joined[1] if joined else int(unseal(path / "plan.json")[0]["identity"]["rows"])
    return max([*by_cut.values(), joined[0] if joined else 0]), total


def statistics_bytes(task: Task, widths: Iterable[int]) -> int:
    """Bytes of the statistics of this task at places of these widths D: O(places x splits x D^2) in float64."""
    classes, splits = sum(len(names) for names in task.label_names.values()), len(used_splits(task))
    return sum(8 * (D + splits * (1 + D + D * D + classes * (D + 1))) for D in widths)


def used_splits(task: Task) -> list[str]:
    """The splits that have examples, in their usual order."""
    return [split for split in SPLITS if (task.splits == split).any()]
