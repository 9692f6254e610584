"""How the shards of a store are cut into parts of nearly equal cost, and how far each part is.

    STORE/parts/00004.json    the shard numbers of each of 4 parts

A cut is a pure function of the plan: every process that makes the same plan gets the same parts, so that n processes
share the work without speaking to each other. The first part to run writes the cut down, to say without a model which
parts lack shards. If another version of probekit has cut the store differently, its cut is followed, or refused
where sums are wanted too; sums are joined only if they count each shard once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from probekit.activations.plan.packing import ATTENTION_COST, Packing
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.store.format import PlanFile, has_manifest, record_numbers
from probekit.activations.sums.statistics import read_sums, sums_at
from probekit.files.durable import make_folder
from probekit.files.records import has_form
from probekit.files.remote.path import AnyPath
from probekit.files.run import Run
from probekit.text import listed

FOLDER = "parts"


class _Cut(TypedDict):
    parts: list[list[int]]


def shard_costs(plan: ExtractionPlan) -> np.ndarray:
    """The cost of each shard, float64 [shards]: its nodes as they are computed, with those that fill up batches.

    The unit is a node without attention; attention of a node to the N nodes of its block is added, as in
    `choose_nodes`. For a decoder the nodes of the sources count too.
    """
    # without d_model attention is left out, as nothing says how wide the linear layers are
    width = float(getattr(plan.model.cfg, "d_model", "inf"))
    packings = [plan.packing] + ([] if plan.packing.sources is None else [plan.packing.sources])

    def cost(packing: Packing, blocks: np.ndarray) -> float:
        largest = int(packing.sizes[blocks].max())
        return len(blocks) * largest * (1 + ATTENTION_COST * largest / width)

    return np.array([sum(cost(packing, batch) for batch in shard for packing in packings) for shard in plan.shards])


def cut_parts(costs: Sequence[float] | np.ndarray, n: int) -> list[np.ndarray]:
    """The shard numbers of each of n parts, ascending, int64; a part may be empty if there are fewer shards.

    The most expensive shard goes first, each to the part with the least so far (Graham 1969): no part costs more than
    an equal share and one shard. Ties go to the smaller number, of shards and of parts.
    """
    costs = np.asarray(costs, dtype=np.float64)
    loads, parts = np.zeros(n), [list[int]() for _ in range(n)]
    for number in np.argsort(-costs, kind="stable").tolist():
        least = int(np.argmin(loads))
        parts[least].append(number)
        loads[least] += costs[number]
    return [np.array(sorted(numbers), dtype=np.int64) for numbers in parts]


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


def write_cut(path: AnyPath, plan: PlanFile, parts: Iterable[Iterable[int]]) -> None:
    """Write a cut into the store at `path`, for those who read it without a model, unless it has one of as many parts.

    Raises:
        StorageError: the disk refused.
    """
    if not has_manifest(path):  # a complete store may be read-only, and lacks no part
        cut = [[int(number) for number in part] for part in parts]
        run = Run(path / FOLDER, plan.seal)
        make_folder(run.folder)
        run.write(f"{len(cut):05d}", {"parts": cut})


def cut_file(path: AnyPath, n: int) -> AnyPath:
    """The file of the cut into n parts in the store at `path`."""
    return Run(path / FOLDER, "").file(f"{n:05d}")


def read_cuts(path: AnyPath, plan: PlanFile) -> dict[int, list[list[int]]]:
    """Number of parts -> the shard numbers of each; those of another plan, and damaged ones, are left out."""
    found = [body["parts"] for _, body in Run(path / FOLDER, plan.seal).sound() if has_form(_Cut, body)]
    every = list(range(plan.shards or 0))
    return {len(parts): parts for parts in found if sorted(number for part in parts for number in part) == every}


def missing_parts(path: AnyPath, plan: PlanFile, counted: bool = False) -> list[PartProgress]:
    """The parts that lack shards, of the cut by which most parts are done; empty for a store without parts.

    Args:
        path: the store.
        plan: its plan.
        counted: those whose statistics lack shards.

    Raises:
        StorageError: the folders of the store hold other files, or statistics are damaged.
    """
    cuts = read_cuts(path, plan)
    there = set(record_numbers(path)) if cuts and not counted else set()

    def done(numbers: list[int], part: tuple[int, int]) -> int:
        if not counted or not numbers:
            return len(there.intersection(numbers))
        sums = read_sums(sums_at(path, plan), [part]).get(part)
        return 0 if sums is None else len(sums.record.rows)

    found = [
        [PartProgress(i, len(parts), len(own), done(own, (i, len(parts)))) for i, own in enumerate(parts, 1)]
        for parts in cuts.values()
    ]
    best = max(found, key=lambda one: (sum(part.done == part.shards for part in one) / len(one), len(one)), default=[])
    return [part for part in best if part.done < part.shards]


def left_to_do(path: AnyPath, plan: PlanFile, lacks_shards: bool, counted: bool | None) -> list[PartProgress]:
    """The parts that lack shards; if none does, those whose statistics lack some, where `counted` is False."""
    missing = missing_parts(path, plan) if lacks_shards else []
    return missing_parts(path, plan, counted=True) if counted is False and not missing else missing


def parts_in_words(parts: Sequence[PartProgress]) -> str:
    """`"part 1/4 (2 of 5 shards), part 3/4 (0 of 5 shards)"`: how far these parts are."""
    return listed([f"part {part.part}/{part.of} ({part.done} of {part.shards} shards)" for part in parts])
