"""Sufficient statistics of activations: the moments of every place and split.

Axes: D width of a place, C classes.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from probekit.activations.store.format import read_plan
from probekit.activations.sums.files import (
    WHOLE,
    Contents,
    Counted,
    Key,
    Part,
    PartSums,
    list_sums,
    newest,
    read_sums,
    sums_at,
    write_sums,
)
from probekit.activations.sums.moments import SplitMoments
from probekit.activations.sums.old_files import OldSums, read_old_sums
from probekit.errors import DataError, StorageError
from probekit.files.durable import make_folder
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

    def __init__(self, moments: Mapping[Any, SplitMoments], label_names: dict[str, list[str]], meta: dict[str, Any]):
        own = {(Place(*place), split): one for (place, split), one in moments.items()}
        self._contents = Contents(own, label_names, meta)

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
        widths = [len(self._contents.moments[place, self.splits[0]].shift) for place in self.places]
        return _n_bytes(widths, len(self.splits), sum(map(len, self.label_names.values())))

    def save(self, path: str | AnyPath) -> AnyPath:
        """Write them to `path`, completely or not at all; `load_statistics` reads them.

        Raises:
            StorageError: the disk refused, or `path` already holds statistics or a store.
        """
        path = check_any_path("path", path)
        run = sums_at(path)
        if list_sums(run) or read_old_sums(path) or (path / "plan.json").exists():
            raise StorageError(f"{str(path)!a} already holds statistics or a store; name another folder")
        make_folder(run.folder)
        write_sums(run, WHOLE, self._contents, Counted([0], 1, (0, 0), ""))
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

    def read(sums: PartSums | OldSums) -> Contents:
        if not sums.is_complete:
            state = f"{sums.texts[0]} of {sums.texts[1]} texts are counted"
            raise StorageError(f"the statistics at {str(path)!a} are unfinished, {state}; run the same command again")
        return sums.contents()

    found = newest(sums_at(path), WHOLE, read)
    if found is None and (old := read_old_sums(path)) is not None:
        found = read(old)
    if found is None:
        raise DataError(f"no statistics at {str(path)!a}; make them with probekit extract --stats")
    return Statistics(*found)


def check_statistics(path: str | AnyPath) -> tuple[int, int] | None:
    """As `statistics_progress`, after checking every byte of the statistics at `path`, those of parts too.

    Raises:
        StorageError: they are damaged, or do not belong to the store at `path`; the message names the file.
    """
    return _progress(check_any_path("path", path), check=True)


def statistics_progress(path: str | AnyPath) -> tuple[int, int] | None:
    """(texts counted, texts in total) of the statistics at `path`; None if there are none.

    Of a store whose parts are not joined yet, the texts that the parts have counted.

    Raises:
        StorageError: they are damaged.
    """
    return _progress(check_any_path("path", path), check=False)


def _progress(path: AnyPath, check: bool) -> tuple[int, int] | None:
    """The progress of the whole, or of the parts by the cut that counted most; `check` reads every byte of them."""
    run = sums_at(path)
    parts: dict[Part, PartSums | OldSums] = {**read_sums(run)}
    whole = newest(run, WHOLE, lambda sums: sums) or read_old_sums(path)  # last, as parts go once it is there
    if whole is not None:
        parts = {WHOLE: whole} if whole.is_complete else {**parts, WHOLE: whole}
    by_cut: dict[int, int] = {}
    for part, one in parts.items():
        by_cut[part[1]] = by_cut.get(part[1], 0) + one.texts[0]
        if check and isinstance(one, OldSums):
            one.contents()
        elif check:
            newest(run, part, PartSums.check)
    if not parts:
        return None
    return max(by_cut.values()), whole.texts[1] if whole else read_plan(path).rows


def statistics_bytes(task: Task, widths: Iterable[int]) -> int:
    """Bytes of the statistics of this task at places of these widths D: O(places x splits x D^2) in float64."""
    return _n_bytes(list(widths), len(used_splits(task)), sum(map(len, task.label_names.values())))


def _n_bytes(widths: list[int], splits: int, classes: int) -> int:
    return sum(8 * (D + splits * (1 + D + D * D + classes * (D + 1))) for D in widths)


def used_splits(task: Task) -> list[str]:
    """The splits that have examples, in their usual order."""
    return [split for split in SPLITS if (task.splits == split).any()]
