"""Do one part of an extraction; the part that finds everything there completes the store."""

from concurrent.futures import Future
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from probekit.activations.parts.cut import PartProgress, agree_on_cut, cut_parts, missing_parts, shard_costs
from probekit.activations.parts.work import finish_store, open_writer
from probekit.activations.plan.identity import digest_of, record_of_run
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.run.device_copy import on_host
from probekit.activations.run.loop import run_shards, shard_rows
from probekit.activations.run.memory import refuse_large_sums
from probekit.activations.store.format import read_plan
from probekit.activations.store.tensors import SIZE
from probekit.activations.store.writer import StoreWriter
from probekit.activations.sums.files import CountProgress
from probekit.activations.sums.join import join_sums, part_folder, sums_are_complete
from probekit.activations.sums.tally import Tally, check_countable
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
        StorageError: the parts were cut differently by other versions of probekit.
    """
    if sums:
        check_countable(plan.task, plan.layout, plan.places)
        refuse_large_sums(plan.task, plan.widths, plan.device)
    writer = open_writer(plan, path, check)
    file = read_plan(path)
    cut = agree_on_cut(path, file, cut_parts(shard_costs(plan), part[1]))
    own = cut[part[0] - 1]
    rows = sum(len(shard_rows(plan, number)) for number in own)
    counted = None if sums is None else sums_are_complete(path)
    computed = 0
    if not counted or sums == "also":
        start = None if counted or sums is None else CountProgress(digest_of(plan), len(own), rows)
        try:
            computed = _run(plan, writer, part, own, progress, start, keep=sums != "only")
        except StorageError:
            # another run of this part may have been faster: the files of its sums go once all are joined
            if start is None or not sums_are_complete(path):
                raise
            computed = _run(plan, writer, part, own, progress, None, keep=sums != "only")
    if sums and not counted:
        run = CountProgress(digest_of(plan), len(plan.shards), len(plan.task))
        counted = join_sums(path, run, [(i + 1, len(cut)) for i, numbers in enumerate(cut) if numbers])
    complete = sums != "only" and finish_store(path)
    missing = [] if complete or sums == "only" else missing_parts(path, file)
    if not missing and counted is False:
        missing = missing_parts(path, file, counted=True)
    return PartDone(path, *part, len(own), rows, computed, complete, missing, counted)


def _run(
    plan: ExtractionPlan,
    writer: StoreWriter,
    part: tuple[int, int],
    own: list[int],
    progress: bool | None,
    start: CountProgress | None,
    keep: bool,
) -> int:
    """Write, and count from `start`, the shards of a part; the number of shards that this run was the first to write.

    Args:
        plan: of the complete extraction.
        writer: of the store.
        part: (i, n).
        own: the shards of the part.
        progress: as for `run_part`.
        start: the progress of the sums before the first shard; None counts nothing.
        keep: whether shards are written; without it and without sums there is nothing to do.
    """
    if not own or not (keep or start):
        return 0
    tally = None
    if start is not None:
        folder = part_folder(writer.path, *part)
        tally = Tally(plan.task, plan.layout, plan.places, plan.device, start, folder)
    written: list[Future[bool]] = []
    with writer, closing(run_shards(plan, progress, writer, tally, keep, own)) as shards:
        written.extend(writer.write(number, rows, tensors) for number, rows, tensors in on_host(shards))
    if tally is not None:
        tally.finish(record_of_run(plan))
    return sum(one.result() for one in written)
