"""Do one part of an extraction; the part that finds everything there completes the store."""

from dataclasses import asdict, dataclass
from typing import Any

from probekit.activations.parts.cut import (
    PartProgress,
    cut_file,
    cut_parts,
    missing_parts,
    read_cuts,
    shard_costs,
    write_cut,
)
from probekit.activations.parts.work import finish_store, open_writer
from probekit.activations.plan.plan import ExtractionPlan, shard_rows
from probekit.activations.run.loop import check_sums, write_missing
from probekit.activations.store.tensors import SIZE
from probekit.activations.sums.files import join_sums, sums_are_whole, sums_at
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
    cut, keep = [one.tolist() for one in cut_parts(shard_costs(plan), part[1])], sums != "only"
    write_cut(path, writer.plan, cut)
    run = sums_at(path, writer.plan)
    counted = None if sums is None else sums_are_whole(run)
    there = read_cuts(path, writer.plan).get(len(cut), cut)
    if there != cut and counted is False:
        raise StorageError(
            f"{str(cut_file(path, len(cut)))!a} has another cut into {len(cut)} parts, by another version of probekit; "
            "remove it, and run all parts again with one version"
        )
    cut, own = there, there[part[0] - 1]
    computed = 0
    if own and (keep or counted is False):
        try:
            computed = write_missing(  # no name here holds the tally: its memory is free when parts are joined
                plan, progress, writer, Tally(plan, own, run, part) if counted is False else None, keep, own
            )
        except StorageError:
            # another run of this part may have been faster: the files of its sums go once all are joined
            if counted is not False or not sums_are_whole(run):
                raise
            computed = write_missing(plan, progress, writer, None, keep, own)
    if counted is False:
        counted = join_sums(run, writer.plan, [(i, len(cut)) for i, numbers in enumerate(cut, 1) if numbers])
    complete = keep and finish_store(path)
    missing = missing_parts(path, writer.plan) if keep and not complete else []
    if not missing and counted is False:
        missing = missing_parts(path, writer.plan, counted=True)
    rows = sum(len(shard_rows(plan, number)) for number in own)
    return PartDone(path, *part, len(own), rows, computed, complete, missing, counted)
