"""Do one part of an extraction; the part that finds everything there completes the store."""

from dataclasses import asdict, dataclass
from typing import Any

from probekit.activations.parts.cut import (
    PartProgress,
    cut_file,
    cut_parts,
    left_to_do,
    read_cuts,
    shard_costs,
    write_cut,
)
from probekit.activations.parts.work import finish_store, open_writer
from probekit.activations.plan.plan import ExtractionPlan, shard_rows
from probekit.activations.run.loop import check_sums, write_missing
from probekit.activations.store.tensors import SIZE
from probekit.activations.sums.statistics import join_sums, sums_are_whole, sums_at
from probekit.activations.sums.tally import Tally
from probekit.errors import StorageError
from probekit.files.remote.path import AnyPath
from probekit.options.engine import Sums


@dataclass(frozen=True)
class PartDone:
    """The result of one part.

    Attributes:
        path: the store.
        part: the number of the part, from 1.
        of: number of parts.
        shards: that the part has.
        rows: examples in them.
        computed: shards that this run computed and was the first to write.
        complete: True if the store can be loaded.
        missing: the parts that this store lacks shards of; if it lacks none, or only statistics are made, those whose
            statistics it lacks.
        counted: True if the statistics of all parts are joined; None without statistics.
    """

    path: AnyPath
    part: int
    of: int
    shards: int
    rows: int
    computed: int
    complete: bool
    missing: list[PartProgress]
    counted: bool | None

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {**asdict(self), "path": str(self.path)}


def run_part(
    plan: ExtractionPlan,
    path: AnyPath,
    part: tuple[int, int],
    progress: bool | None = None,
    sums: Sums = None,
    check: str = SIZE,
) -> PartDone:
    """Do part i of n of a plan; what is there already is not done again.

    Args:
        plan: of the complete extraction, the same for every part.
        path: the store: one for all parts, or one for each.
        part: (i, n), i from 1.
        progress: show progress on stderr: None on a terminal and in a notebook, True always, False never.
        sums: sums as well as activations, or instead of them.
        check: how shards that are there are checked: "size" or "hash".

    Raises:
        As `extract` with `out`, and
        StorageError: the sums of parts were cut differently by other versions of probekit.
    """
    if sums:
        check_sums(plan)
    writer = open_writer(plan, path, check)
    keep, run = sums != "only", sums_at(path, writer.plan)
    must_count = sums is not None and not sums_are_whole(run)
    cut = [one.tolist() for one in cut_parts(shard_costs(plan), part[1])]
    write_cut(path, writer.plan, cut)
    there = read_cuts(path, writer.plan).get(len(cut), cut)
    if there != cut and must_count:
        raise StorageError(
            f"{str(cut_file(path, len(cut)))!a} has another cut into {len(cut)} parts, by another version of probekit; "
            "remove it, and run all parts again with one version"
        )
    own, computed = there[part[0] - 1], 0
    if own and (keep or must_count):
        try:
            computed = write_missing(  # no name here holds the tally: its memory is free when parts are joined
                plan, progress, writer, Tally(plan, own, run, part) if must_count else None, keep, own
            )
        except StorageError:
            # another run of this part may have been faster: the files of its sums go once all are joined
            if not must_count or not sums_are_whole(run):
                raise
            computed = write_missing(plan, progress, writer, None, keep, own)
    if must_count:
        parts = [(i, len(there)) for i, numbers in enumerate(there, 1) if numbers]
        counted = join_sums(run, writer.plan, parts)
    else:
        counted = None if sums is None else True
    complete = keep and finish_store(path)
    missing = left_to_do(path, writer.plan, keep and not complete, counted)
    rows = sum(len(shard_rows(plan, number)) for number in own)
    return PartDone(path, *part, len(own), rows, computed, complete, missing, counted)
