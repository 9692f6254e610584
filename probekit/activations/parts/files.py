"""The cuts that the parts of a store were made by, on disk.

    STORE/parts/00004.json    the shard numbers of each of 4 parts

With it, who knows only the store can say which part a missing shard belongs to: the cut itself needs the model.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from probekit.activations.store.format import PlanFile, record_numbers
from probekit.durable import make_folder, matches, seal, unseal, write_first
from probekit.errors import StorageError
from probekit.remote.path import AnyPath
from probekit.text import listed

FOLDER = "parts"


@dataclass(frozen=True)
class PartProgress:
    """How far one part of a store is.

    Attributes:
        part: its number, from 1.
        of: number of parts.
        shards: that it has.
        done: those of them with a record.
    """

    part: int
    of: int
    shards: int
    done: int


def write_cut(path: AnyPath, plan: PlanFile, parts: Iterable[Iterable[int]]) -> None:
    """Note the cut in the store at `path`, unless an equal one is there.

    Raises:
        StorageError: the disk refused.
    """
    make_folder(path / FOLDER)
    cut = [[int(number) for number in part] for part in parts]
    write_first(path / FOLDER / f"{len(cut):05d}.json", seal({"plan": plan.seal, "parts": cut})[0])


def read_cuts(path: AnyPath, plan: PlanFile) -> dict[int, list[list[int]]]:
    """Number of parts -> the shard numbers of each; those of another plan, and damaged ones, are left out.

    Nothing depends on them but messages, and a part writes its cut again.
    """
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
    found = [
        [PartProgress(i + 1, n, len(part), len(there & set(part))) for i, part in enumerate(parts)]
        for n, parts in cuts.items()
    ]
    return max(found, key=lambda one: (sum(part.done == part.shards for part in one) / len(one), len(one)), default=[])


def unfinished(parts: Sequence[PartProgress]) -> list[PartProgress]:
    """The parts that lack shards."""
    return [part for part in parts if part.done < part.shards]


def in_words(parts: Sequence[PartProgress]) -> str:
    """`"part 1/4 (2 of 5 shards), part 3/4 (0 of 5)"`: of these parts, the shards that are there."""
    return listed([f"part {part.part}/{part.of} ({part.done} of {part.shards} shards)" for part in parts])
