"""Statistics of the parts of a run, and their sum.

    STORE/statistics/parts/2-of-4/    as STORE/statistics for the shards of one part

Each part sums its shards in their order around a shift of its own. The parts are joined in the order of their numbers,
whichever finished first, so that the result is the same bits in any order of finishing. It equals the sums of one
process up to rounding: a relative error of at most 1e-12 in test (float64; the shifts are means of rows, so that moving
to another shift loses little).

Axes: D width of a place.
"""

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from probekit.activations.sums.files import (
    FOLDER,
    Contents,
    CountProgress,
    Key,
    checkpoint_path,
    damaged,
    read_newest,
    read_place,
    read_progress,
    remove_older,
    write_place,
)
from probekit.activations.sums.moments import SplitMoments
from probekit.durable import seal, write_first
from probekit.errors import StorageError
from probekit.points import place_name, split_point
from probekit.remote.path import AnyPath

PARTS = "parts"
_SAME = ("format", "version", "places", "widths", "splits", "label_names")  # fields that are equal in all parts

Part = tuple[int, int]  # number from 1, and number of parts


class PartSums(NamedTuple):
    """The newest record of a part's sums."""

    record: AnyPath
    body: dict[str, Any]
    progress: CountProgress


def part_folder(path: AnyPath, part: int, of: int) -> AnyPath:
    """The folder of a part's sums in the store at `path`."""
    return path / FOLDER / PARTS / f"{part}-of-{of}"


def read_part_sums(folder: AnyPath) -> PartSums | None:
    """The newest sums in the folder of a part, finished or not; None where there are none.

    Raises:
        StorageError: they are damaged.
    """
    return read_newest(folder, lambda record, body: PartSums(record, body, read_progress(record, body)))


def sums_are_complete(path: AnyPath) -> bool:
    """True if the store at `path` has the statistics of every text, joined."""
    found = read_newest(path / FOLDER, read_progress)
    return found is not None and found.is_complete


def join_sums(path: AnyPath, plan: str, parts: Sequence[Part]) -> bool:
    """Add up the sums of these parts if all of them are complete, and remove theirs; True if that is done.

    Places are joined one after the other, so that memory holds the sums of few at once.

    Args:
        path: the store.
        plan: digest of the identity of the run.
        parts: all that have shards.

    Raises:
        StorageError: the disk refused, or a file is damaged.
    """
    try:
        found = [read_part_sums(part_folder(path, *part)) for part in parts]
        own = [one for one in found if one is not None and one.progress.is_complete]
        if len(own) == len(parts):
            _join(path, plan, own)
    except StorageError:
        if not sums_are_complete(path):  # another process may have joined and removed them meanwhile
            raise
    joined = sums_are_complete(path)
    if joined:
        _remove_parts(path)
    return joined


def _join(path: AnyPath, plan: str, parts: list[PartSums]) -> None:
    first = parts[0]
    for part in parts:
        same = all(part.body.get(field) == first.body.get(field) for field in _SAME)
        if part.progress.plan != plan or not same:
            raise damaged(part.record, "is of another run than the other parts")
    folder = path / FOLDER
    files = {name: write_place(folder, *one) for name, one in _joined_places(parts)}
    body = {key: value for key, value in first.body.items() if key not in ("progress", "files", "meta")}
    progress = _joined_progress(plan, [part.progress for part in parts])
    meta = {**first.body["meta"], "parts": len(parts)}
    body |= {"progress": vars(progress), "meta": meta, "files": files}
    record = checkpoint_path(folder, progress.shards_done)
    write_first(record, seal(body)[0])
    remove_older(record, body)


def _joined_places(parts: list[PartSums]) -> Iterator[tuple[str, tuple[Contents, Any]]]:
    """For each place its name, and what `write_place` takes: the sums of all parts."""
    first = parts[0]
    try:
        label_names = {name: list(names) for name, names in first.body["label_names"]}
        for entry in first.body["places"]:
            place = split_point(tuple(entry))
            total: dict[Key, SplitMoments] = {}
            for part in parts:
                own = read_place(part.record, part.body, place)
                total = {key: total[key] + own[key] for key in own} if total else own
            yield place_name(place), (Contents(total, label_names, {}), place)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise damaged(first.record, "is not a record of statistics") from None


def _joined_progress(plan: str, parts: list[CountProgress]) -> CountProgress:
    """The progress of all parts together; its order is that of their orders."""
    shards, texts = sum(part.shards for part in parts), sum(part.texts for part in parts)
    order = hashlib.sha256("|".join(part.order for part in parts).encode()).hexdigest()
    return CountProgress(plan, shards, texts, shards, texts, order)


def _remove_parts(path: AnyPath) -> None:
    """Remove the sums of parts, which are joined; what cannot be removed only takes room."""
    for folder in part_folders(path):
        with contextlib.suppress(OSError):
            for file in folder.iterdir():
                file.unlink(missing_ok=True)
            if isinstance(folder, Path):  # an object store has no folders
                folder.rmdir()
    if isinstance(path, Path):
        with contextlib.suppress(OSError):
            (path / FOLDER / PARTS).rmdir()


def part_folders(path: AnyPath) -> list[AnyPath]:
    """The folders of the sums of parts in the store at `path`."""
    return sorted(folder for folder in (path / FOLDER / PARTS).glob("*-of-*") if folder.is_dir())
