"""Merge the folders that parts of one extraction were written to into one store."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from probekit.activations.parts.cut import (
    PartProgress,
    left_to_do,
    parts_in_words,
    read_cuts,
    write_cut,
)
from probekit.activations.parts.work import finish_store
from probekit.activations.store.check import Advance
from probekit.activations.store.examples import check_examples
from probekit.activations.store.format import (
    MAX_EXAMPLES_BYTES,
    PlanFile,
    read_plan,
    read_record,
    record_numbers,
    record_piece,
    records_of,
    stored_rows,
)
from probekit.activations.store.shard import record_body
from probekit.activations.store.tensors import SIZE, check_shard
from probekit.activations.store.writer import check_free, check_same
from probekit.activations.sums.statistics import PartSums, join_sums, list_sums, newest, sums_are_whole, sums_at
from probekit.errors import StorageError, UsageError
from probekit.files.durable import (
    TEMPORARY,
    entries,
    is_there,
    link_or_copy,
    make_folder,
    make_folders,
    read_plain,
    remove,
    touch,
    write_first,
)
from probekit.files.remote.path import AnyPath
from probekit.files.run import Run
from probekit.options.check import check_any_path
from probekit.options.kinds import READING


@dataclass(frozen=True)
class Merged:
    """The result of `merge_stores`.

    Attributes:
        path: the store.
        taken: shards that this merge brought into it.
        rows: examples that have a shard.
        total: examples in all.
        complete: True if the store can be loaded.
        missing: the parts that the store lacks shards of, where the folders say which parts there are; if it lacks
            none, or the folders have statistics alone, those whose statistics it lacks.
        counted: True if the store has the statistics of all texts; None if no folder has statistics.
    """

    path: AnyPath
    taken: int
    rows: int
    total: int
    complete: bool
    missing: list[PartProgress]
    counted: bool | None

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {**asdict(self), "path": str(self.path)}


def merge_stores(
    stores: Sequence[str | AnyPath], out: str | AnyPath, *, check: str = SIZE, advance: Advance = None
) -> Merged:
    """Merge stores with parts of one extraction; a shard that several have is taken from the first.

    Files are hard links where the disk can, else copies; the stores stay as they are. A merge that was interrupted
    resumes. `out` may be one of the stores, which then gets the shards of the others.

    Args:
        stores: the folders of the parts.
        out: the store of all.
        check: how shards are checked: "size", or every byte by "hash".
        advance: called with (shards done, shards in all).

    Raises:
        UsageError: no stores.
        DataError: no store at one of the paths.
        ResumeMismatch: the stores, or one at `out`, are of different extractions; the message names the fields.
        StorageError: a file is damaged, or the disk refused.
    """
    path, check = check_any_path("out", out), READING.check("check", check)
    if isinstance(stores, str | AnyPath) or not stores:
        raise UsageError("merge_stores takes a list of stores, and one at least")
    given = [check_any_path("a store", one) for one in stores]
    plans = [read_plan(one) for one in given]
    for one, plan in zip(given[1:], plans[1:], strict=True):
        _check_same(one, plan, plans[0], given[0])
    plan = _begin(path, given[0], plans[0])
    others = [(one, own) for one, own in zip(given, plans, strict=True) if one.resolve() != path.resolve()]
    for one, own in others:
        for parts in read_cuts(one, own).values():
            write_cut(path, plan, parts)
    taken = _take_shards(path, plan, others, check, advance)
    run, counted = sums_at(path, plan), None
    for one, own in others:
        _take_sums(run, sums_at(one, own))
    if any(list_sums(sums_at(one, own)) for one, own in [(path, plan), *others]):
        for parts in read_cuts(path, plan).values():
            join_sums(run, plan, [(i, len(parts)) for i, numbers in enumerate(parts, 1) if numbers])
        counted = sums_are_whole(run)
    complete = finish_store(path)
    rows = plan.rows if complete else stored_rows(path, plan)
    # parts of another version's cut are named by nobody: they would find nothing to do
    cuts = read_cuts(path, plan)
    is_one = all(read_cuts(one, own).get(n, cut) == cut for one, own in others for n, cut in cuts.items())
    missing = left_to_do(path, plan, bool(rows) and not complete, counted) if is_one else []
    return Merged(path, taken, rows, plan.rows, complete, missing, counted)


def _check_same(path: AnyPath, plan: PlanFile, first: PlanFile, where: AnyPath) -> None:
    """Raise a ResumeMismatch unless a store is of the extraction of the first one."""
    wanted = {"identity": first.identity, "model": first.model, "task": first.task}
    check_same(path, plan, wanted, f"a merge takes parts of one extraction ('here' is {str(where)!a})")


def _begin(path: AnyPath, first: AnyPath, plan: PlanFile) -> PlanFile:
    """The plan of the store at `path`, which gets the plan and the examples of the first store if it has none."""
    check_free(path)
    make_folders(path, "shards", "records")
    if not is_there(path / "plan.json"):
        write_first(path / "plan.json", read_plain(first / "plan.json", MAX_EXAMPLES_BYTES))
    own = read_plan(path)
    _check_same(path, own, plan, first)
    if not is_there(path / "examples.json"):
        make_folder(path / "examples")
        for piece in entries(first / "examples"):
            if not (piece.is_folder or piece.path.name.startswith(TEMPORARY)):
                link_or_copy(piece.path, path / "examples")
        write_first(path / "examples.json", read_plain(first / "examples.json", MAX_EXAMPLES_BYTES))
    check_examples(path, own)
    return own


def _take_shards(
    path: AnyPath, plan: PlanFile, others: list[tuple[AnyPath, PlanFile]], check: str, advance: Advance
) -> int:
    """Bring the shards that the store lacks into it, each before its record; how many there were."""
    records, there = records_of(path, plan), set(record_numbers(path))
    found: dict[int, tuple[AnyPath, PlanFile]] = {}
    for one, own in others:
        for number in record_numbers(one):
            if number not in there:
                found.setdefault(number, (one, own))
    for done, (number, (one, own)) in enumerate(sorted(found.items())):
        record, _ = read_record(one, own, number)
        check_shard(one, record, check)
        link_or_copy(one / "shards" / record.file, path / "shards")
        check_shard(path, record, check)  # what was there under that name may be damaged
        records.write(record_piece(number), record_body(record))
        if advance:
            advance(done + 1, len(found))
    return len(found)


def _take_sums(run: Run, store: Run) -> None:
    """Bring the complete sums of a store and of its parts, each shard before its record."""

    def take(sums: PartSums) -> None:
        if sums.is_complete:
            sums.check()  # a damaged file would hide the sound one that the part writes when it is run again
            make_folder(run.folder)
            file = run.folder / sums.record.file
            if is_there(file):
                try:
                    replace(sums, path=run.folder.parent).check()
                except StorageError:
                    remove(file)
            link_or_copy(store.folder / file.name, run.folder)
            touch(file)  # a link is as old as its file, and an old file without a record is removed
            run.write(sums.file.stem, {key: value for key, value in sums.body.items() if key != "plan"})

    for part in [] if sums_are_whole(run) else list_sums(store):
        newest(store, part, take)


def missing_in_words(merged: Merged) -> str:
    """What a merged store lacks, and what to do."""
    only_sums = merged.counted is not None and not merged.rows
    state = "the statistics of some texts" if only_sums else f"{merged.rows:,} of {merged.total:,} rows"
    state = f"{str(merged.path)!a} is unfinished, with {state}"
    if not merged.missing:
        return f"{state}: run the same extract command on it (--out), or merge the store with the rest"
    return f"{state}: missing in {parts_in_words(merged.missing)}; run these parts, then merge again with their folders"
