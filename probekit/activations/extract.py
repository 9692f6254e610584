"""Run a model over a task and keep the activations in memory, write them to a store, or keep only their statistics.

All three plan first (`plan/`) and then go through one shard loop (`run/loop.py`).

Axes: N examples, D width of a place.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, cast, overload

from probekit.activations.activations import ActivationSet
from probekit.activations.continuations.plan import of_continued, plan_continuations
from probekit.activations.continuations.write import folder_of, write_continuations
from probekit.activations.parts.run import PartDone, run_part
from probekit.activations.parts.work import missing_shards, open_writer
from probekit.activations.plan.build import plan_extraction, position_of_rows
from probekit.activations.plan.identity import record_of_run
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.plan.summary import plan_as_dict
from probekit.activations.run.loop import check_sums, compute_in_memory, refuse_hooks, run_shards, write_missing
from probekit.activations.store.reader import Store
from probekit.activations.store.tensors import SIZE
from probekit.activations.store.writer import StoreWriter
from probekit.activations.sums.statistics import Statistics, sums_at
from probekit.activations.sums.tally import Tally
from probekit.errors import UsageError
from probekit.files.remote.path import AnyPath
from probekit.models.base import LanguageModel
from probekit.options import EngineOptions, ExtractArguments, ExtractOptions
from probekit.options.check import check_any_path
from probekit.options.engine import Sums, checked_part
from probekit.tasks.base import Task
from probekit.tasks.tables.objects import task_of
from probekit.text import counted, kind_of

Spread = Callable[[ExtractionPlan, AnyPath, EngineOptions, "bool | None"], None]
"""Has others write every shard of a plan to the store at a path."""


def extract_task(
    model: LanguageModel,
    task: Task | Iterable[Any],
    options: ExtractArguments,
    spread: Spread | None = None,
    on_plan: Callable[[ExtractionPlan], None] | None = None,
) -> ActivationSet | Store:
    """`extract`, with its options as an object.

    `spread` does the work where the options name devices or an engine; `on_plan` is called before anything is computed.
    """
    task = task_of(task)
    if options.generate is not None:
        given, task = task, continued(model, task, options)
        options = replace(of_continued(options), position=position_of_rows(options.position, given, task))
    plan = plan_extraction(model, task, options)
    _warn_of_cut(plan, stacklevel=5)  # the caller of the function with flat options
    if on_plan is not None:
        on_plan(plan)
    if options.part is None:
        return run_plan(plan, options.out, options.progress, options.stats, options, spread)
    done = _run_part(
        plan, options.out, options.part, options.progress, "also" if options.stats else None, options.check
    )
    return cast(Any, done)  # typed as activations: with a union, every use of `extract` would need a check of its type


def _run_part(
    plan: ExtractionPlan,
    out: str | AnyPath | None,
    part: str | Sequence[int],
    progress: bool | None,
    sums: Sums,
    check: str = SIZE,
) -> PartDone:
    """`run_part`, with a part and a path as users give them."""
    i_of_n = checked_part(part)
    assert i_of_n is not None
    if out is None:
        raise UsageError("parts share a store, and none is named; give out=PATH")
    return run_part(plan, check_any_path("out", out), i_of_n, progress, sums, check)


@overload
def extract_statistics(
    model: LanguageModel,
    task: Task | Iterable[Any],
    options: ExtractOptions | None = None,
    *,
    out: str | AnyPath | None = None,
    progress: bool | None = None,
    part: None = None,
) -> Statistics: ...
@overload
def extract_statistics(
    model: LanguageModel,
    task: Task | Iterable[Any],
    options: ExtractOptions | None = None,
    *,
    out: str | AnyPath,
    progress: bool | None = None,
    part: str | Sequence[int],
) -> PartDone: ...


def extract_statistics(
    model: LanguageModel,
    task: Task | Iterable[Any],
    options: ExtractOptions | None = None,
    *,
    out: str | AnyPath | None = None,
    progress: bool | None = None,
    part: str | Sequence[int] | None = None,
) -> Statistics | PartDone:
    """Count, sum, Gram matrix and class sums of every place and split, without keeping activations.

    Bit for bit equal to `extract(..., out=PATH, stats=True).statistics`.

    Args:
        model: a model from `load_model`.
        task: a task from `load_task`, all of whose label sets are counted; or texts.
        options: as for `extract`, without attention, and with one position or "all"; with "all" each token is a row
            with the label of its text. `dtype` is the type that values are rounded to before they are summed. None
            takes the defaults.
        out: None keeps the sums in memory; a path writes them there, or resumes an interrupted run. If a store with the
            same options is there, its shards are read and not computed again.
        progress: show progress on stderr: None on a terminal and in a notebook, True always, False never.
        part: one part of several, "1/4" or (1, 4), all with the same `out`. The result is then a `PartDone`, and
            `load_statistics(out)` opens the statistics once every part is counted. They equal those of one process up
            to rounding.

    Raises:
        As `extract`, and
        UsageError: several positions, or attention; more than fits in memory.
        DataError: labels out of range.
    """
    options = options or ExtractOptions()
    if not isinstance(options, ExtractOptions):
        raise UsageError(
            f"expected options made by ExtractOptions, got {kind_of(options)}; write ExtractOptions(points=...)"
        )
    plan = plan_extraction(model, task_of(task), options)
    _warn_of_cut(plan, stacklevel=3)
    return run_statistics(plan, out, progress) if part is None else _run_part(plan, out, part, progress, "only")


def continued(model: LanguageModel, task: Task, options: ExtractArguments) -> Task:
    """The task with each text as the model continues it; finished batches are kept in the store at `options.out`."""
    if options.out is not None:
        refuse_hooks(model)
    plan = plan_continuations(model, task, options)
    folder = None if options.out is None else folder_of(plan, check_any_path("out", options.out))
    return write_continuations(plan, folder, options.progress)


def _warn_of_cut(plan: ExtractionPlan, stacklevel: int) -> None:
    """Say that texts were cut; the command line prints the plan, which says it too."""
    if n := plan_as_dict(plan)["cut"]:
        warnings.warn(
            f"{counted(n, 'text')} cut to the first {plan.model.cfg.n_ctx:,} tokens, the model's context; "
            "shorten them, or refuse such texts with on_long='error'",
            stacklevel=stacklevel,
        )


def run_plan(
    plan: ExtractionPlan,
    out: str | AnyPath | None = None,
    progress: bool | None = None,
    stats: bool = False,
    engine: EngineOptions | None = None,
    spread: Spread | None = None,
) -> ActivationSet | Store:
    """Carry out a plan, as `extract` does; `out`, `progress`, `stats` and errors as there.

    `engine` says who works, and `spread` has them do it.
    """
    engine = engine or EngineOptions()
    is_spread = engine.devices is not None or engine.engine is not None
    if out is not None:
        path = check_any_path("out", out)
        if not is_spread:
            return _to_store(plan, path, progress, stats, engine.check)
        _check_spreadable(plan)
        assert spread is not None
        spread(plan, path, engine, progress)
        return _to_store(plan, path, progress if stats else False, stats)  # the engine has checked what was there
    if is_spread:
        raise UsageError("several processes share a store, and none is named; give out=PATH")
    if stats:
        raise UsageError("stats=True writes to a store, and none is named; give out=PATH, or call extract_statistics")
    plan, tensors = compute_in_memory(plan, progress)
    return ActivationSet(tensors, plan.task, record_of_run(plan), plan.layout)


def run_statistics(plan: ExtractionPlan, out: str | AnyPath | None = None, progress: bool | None = None) -> Statistics:
    """Carry out a plan, as `extract_statistics` does; `out`, `progress` and errors as there."""
    path = None if out is None else check_any_path("out", out)
    check_sums(plan)
    writer = None if path is None else open_writer(plan, path)
    tally = _tally(plan, writer)
    if not tally.is_complete:
        with closing(run_shards(plan, progress, writer, tally, keep=False)) as shards:
            for _ in shards:  # counted by the loop
                pass
    return tally.finish(record_of_run(plan))


def _check_spreadable(plan: ExtractionPlan) -> None:
    """Refuse what other processes cannot make: they plan again from the store, which does not hold everything."""
    refuse_hooks(plan.model)
    if plan.edits is not None:
        raise UsageError(
            "edits are tensors that a store does not hold, so that no other process can make them again; extract in "
            "one process, or with part=(i, n) in several"
        )
    if not isinstance((plan.model.source or {}).get("name_or_path"), str):
        raise UsageError(
            f"{plan.model.name} was not loaded from a folder or the Hub, where other processes could load it too; "
            "save it and load it with load_model, or extract in one process"
        )


def _to_store(plan: ExtractionPlan, path: AnyPath, progress: bool | None, stats: bool, check: str = SIZE) -> Store:
    if stats:
        check_sums(plan)
    writer = open_writer(plan, path, check)
    tally = _tally(plan, writer) if stats else None
    if writer.is_complete and (tally is None or tally.is_complete):
        if check != SIZE:
            missing_shards(plan, writer)
        store = Store(path)
        writer.mark_newest()
        return store
    write_missing(plan, progress, writer, tally)
    writer.finish(record_of_run(plan))
    return Store(path)


def _tally(plan: ExtractionPlan, writer: StoreWriter | None) -> Tally:
    return Tally(plan, range(len(plan.shards)), None if writer is None else sums_at(writer.path, writer.plan))
