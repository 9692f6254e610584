"""Statistics of the parts of a run, and their sum.

    STORE/statistics/parts/2-of-4/    as STORE/statistics for the shards of one part

Each part sums its shards in their order around a shift of its own. The parts are joined in the order of their numbers,
whichever finished first, so that the result is the same bits in any order of finishing. It equals the sums of one
process up to rounding: a relative error of at most 1e-12 in test (float64; the shifts are means of rows, so that moving
to another shift loses little).

Axes: D width of a place.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from probekit.activations.sums.files import (
    FOLDER,
    Contents,
    CountProgress,
    Key,
    checkpoint_path,
    damaged,
    read_label_names,
    read_newest,
    read_place,
    read_progress,
    recorded_places,
    remove_older,
    write_place,
)
from probekit.activations.sums.moments import SplitMoments
from probekit.errors import StorageError
from probekit.files.durable import remove_folder, seal, write_first
from probekit.files.remote.path import AnyPath
from probekit.points import Place

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


def check_sums(sums: PartSums) -> None:
    """Read the sums of every place.

    Raises:
        StorageError: a file is missing or damaged.
    """
    for place in recorded_places(sums.record, sums.body):
        read_place(sums.record, sums.body, place)


def sums_are_complete(path: AnyPath) -> bool:
    """True if the store at `path` has the statistics of every text, joined."""
    found = read_newest(path / FOLDER, read_progress)
    return found is not None and found.is_complete


def join_sums(path: AnyPath, run: CountProgress, parts: Sequence[Part]) -> bool:
    """Add up the sums of these parts if all of them are complete, and remove theirs; True if that is done.

    Places are joined one after the other, so that memory holds the sums of few at once.

    Args:
        path: the store.
        run: the run in one process, before its first shard.
        parts: all that have shards.

    Raises:
        StorageError: the disk refused, a file is damaged, or the parts do not have the texts of the run.
    """
    try:
        found = [read_part_sums(part_folder(path, *part)) for part in parts]
        own = [one for one in found if one is not None and one.progress.is_complete]
        if len(own) == len(parts):
            _join(path, run, own)
    except StorageError:
        if not sums_are_complete(path):  # another process may have joined and removed them meanwhile
            raise
    joined = sums_are_complete(path)
    if joined:
        _remove_parts(path)
    return joined


def _join(path: AnyPath, run: CountProgress, parts: list[PartSums]) -> None:
    first = parts[0]
    for part in parts:
        same = all(part.body.get(field) == first.body.get(field) for field in _SAME)
        if part.progress.plan != run.plan or not same:
            raise damaged(part.record, "is of another run than the other parts")
    progress = _joined_progress([part.progress for part in parts])
    if (progress.shards, progress.texts) != (run.shards, run.texts):
        folder = str(path / FOLDER / PARTS)
        raise StorageError(
            f"the parts in {folder!a} count {progress.texts:,} texts, and the run has {run.texts:,}: they were cut "
            "differently, by other versions of probekit; remove the folder and run all parts again with one version"
        )
    folder = path / FOLDER
    files = {name: write_place(folder, *one) for name, one in _joined_places(parts)}
    body = {key: value for key, value in first.body.items() if key not in ("progress", "files", "meta")}
    meta = {**first.body["meta"], "parts": len(parts)}
    body |= {"progress": vars(progress), "meta": meta, "files": files}
    record = checkpoint_path(folder, progress.shards_done)
    write_first(record, seal(body)[0])
    remove_older(record, body)


def _joined_places(parts: list[PartSums]) -> Iterator[tuple[str, tuple[Contents, Place]]]:
    """For each place its name, and what `write_place` takes: the sums of all parts."""
    first = parts[0]
    label_names = read_label_names(first.record, first.body)
    for place in recorded_places(first.record, first.body):
        total: dict[Key, SplitMoments] = {}
        for part in parts:
            own = read_place(part.record, part.body, place)
            total = {key: total[key] + own[key] for key in own} if total else own
        yield str(place), (Contents(total, label_names, {}), place)


def _joined_progress(parts: list[CountProgress]) -> CountProgress:
    """The progress of all parts together; `order` is a sha256 of theirs."""
    shards, texts = sum(part.shards for part in parts), sum(part.texts for part in parts)
    order = hashlib.sha256("|".join(part.order for part in parts).encode()).hexdigest()
    return CountProgress(parts[0].plan, shards, texts, shards, texts, order)


def _remove_parts(path: AnyPath) -> None:
    """Remove the sums of parts, which are joined; what cannot be removed only takes room."""
    for folder in [*part_folders(path), path / FOLDER / PARTS]:
        remove_folder(folder)


def part_folders(path: AnyPath) -> list[AnyPath]:
    """The folders of the sums of parts in the store at `path`."""
    return sorted(folder for folder in (path / FOLDER / PARTS).glob("*-of-*") if folder.is_dir())
