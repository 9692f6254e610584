"""How the shards of a store were cut into parts, on disk, and how far each part is.

    STORE/parts/00004.json    the shard numbers of each of 4 parts

The first part to run writes the file, and the others do what it says: should another version of probekit cut
differently, no shard is left out or counted twice. Reading a cut needs no model.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from probekit.activations.store.format import PlanFile, has_manifest, record_numbers
from probekit.activations.sums.join import part_folder, read_part_sums
from probekit.errors import StorageError
from probekit.files.durable import is_there, make_folder, matches, seal, unseal, write_first
from probekit.files.remote.path import AnyPath
from probekit.text import listed

FOLDER = "parts"


@dataclass(frozen=True)
class PartProgress:
    """How far one part of a store is.

    Attributes:
        part: its number, from 1.
        of: number of parts.
        shards: number of its shards.
        done: how many of them are on disk, or counted where only statistics are made.
    """

    part: int
    of: int
    shards: int
    done: int


def agree_on_cut(path: AnyPath, plan: PlanFile, parts: Iterable[Iterable[int]]) -> list[list[int]]:
    """The cut into as many parts that the store at `path` has; this one is written there if it has none.

    Raises:
        StorageError: the disk refused, or the cut there is damaged.
    """
    cut = [[int(number) for number in part] for part in parts]
    if (known := read_cuts(path, plan).get(len(cut))) is not None:
        return known
    file = path / FOLDER / f"{len(cut):05d}.json"
    if not has_manifest(path):  # a complete store may be read-only, and its parts have nothing to write
        make_folder(path / FOLDER)
        write_first(file, seal({"plan": plan.seal, "parts": cut})[0])
    elif not is_there(file):
        return cut
    if (known := read_cuts(path, plan).get(len(cut))) is None:
        raise StorageError(f"{str(file)!a} is damaged, or of another store; remove it and run the same command again")
    return known


def read_cuts(path: AnyPath, plan: PlanFile) -> dict[int, list[list[int]]]:
    """Number of parts -> the shard numbers of each; those of another plan, and damaged ones, are left out."""
    cuts = {}
    for file in sorted((path / FOLDER).glob("*.json")):
        try:
            body, _ = unseal(file)
        except StorageError:
            continue
        if matches(body, {"plan": str, "parts": [[int]]}) and body["plan"] == plan.seal:
            numbers = sorted(number for part in body["parts"] for number in part)
            if numbers == list(range(plan.shards or 0)):
                cuts[len(body["parts"])] = body["parts"]
    return cuts


def parts_progress(path: AnyPath, plan: PlanFile) -> list[PartProgress]:
    """How far each part is, of the cut by which most parts are done; empty for a store without parts.

    Raises:
        StorageError: the folders of the store hold other files.
    """
    cuts = read_cuts(path, plan)
    there = set(record_numbers(path)) if cuts else set()
    return _furthest(cuts, lambda i, n: len(there.intersection(cuts[n][i])))


def counted_progress(path: AnyPath, plan: PlanFile) -> list[PartProgress]:
    """As `parts_progress`, of the shards in the statistics that each part has on disk.

    Raises:
        StorageError: statistics are damaged.
    """

    def counted(i: int, n: int) -> int:
        sums = read_part_sums(part_folder(path, i + 1, n))
        return 0 if sums is None else sums.progress.shards_done

    return _furthest(read_cuts(path, plan), counted)


def _furthest(cuts: Mapping[int, list[list[int]]], done: Callable[[int, int], int]) -> list[PartProgress]:
    """The progress of every part of the cut with the largest share of finished parts; `done` takes (index, parts)."""
    found = [
        [PartProgress(i + 1, n, len(part), done(i, n) if part else 0) for i, part in enumerate(parts)]
        for n, parts in cuts.items()
    ]
    return max(found, key=lambda one: (sum(part.done == part.shards for part in one) / len(one), len(one)), default=[])


def unfinished(parts: Sequence[PartProgress]) -> list[PartProgress]:
    """The parts that lack shards."""
    return [part for part in parts if part.done < part.shards]


def parts_in_words(parts: Sequence[PartProgress]) -> str:
    """`"part 1/4 (2 of 5 shards), part 3/4 (0 of 5 shards)"`: how far these parts are."""
    return listed([f"part {part.part}/{part.of} ({part.done} of {part.shards} shards)" for part in parts])
