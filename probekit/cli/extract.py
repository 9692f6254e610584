"""`probekit extract`: a model's activations on a dataset, as a store on disk, or one part of it."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probekit import worlds
from probekit.cli import console
from probekit.cli.checkpoints import at, revisions_of, store_name, summary_line
from probekit.cli.continuations import NO_STOP, continued_plan, sketched_plan, stops_of
from probekit.cli.derive import command
from probekit.cli.fields import Output, required
from probekit.cli.stores import check_store_out, check_via, make_store, saved_rows
from probekit.errors import ProbekitError, UsageError
from probekit.files.remote.path import AnyPath, as_path
from probekit.manifest import is_store
from probekit.options import ExtractArguments, ModelOptions, TaskOptions
from probekit.options.engine import Sums, checked_part
from probekit.options.option import CONTINUED, OUTPUT, option

if TYPE_CHECKING:
    from probekit.activations import ExtractionPlan
    from probekit.models.base import LanguageModel
    from probekit.tasks import Task
from shlex import quote
from typing import TYPE_CHECKING

from probekit.text import counted, listed

if TYPE_CHECKING:
    from probekit.activations import ExtractionPlan, PartDone


Part = tuple[int, int]
MOST_SHARES = 8  # that a plan lists one by one
UNEVEN = 0.25  # by how much the largest part may exceed an equal share before the plan says how to cut more evenly
SHARDS_EACH = 10  # shards of a part, so that one shard more or less is a tenth of its work


def write_part(
    plan: "ExtractionPlan",
    options: ExtractArguments,
    part: Part,
    quiet: bool,
    shown: tuple[Sums, str],
) -> "PartDone":
    """Do one part of a plan, and say what it did and what is missing.

    Args:
        plan: of the complete extraction.
        options: with the store's path, if it is named.
        part: (i, n).
        quiet: show neither plan, progress nor notes.
        shown: the sums that are wanted, and the plan in words.
    """
    from probekit.activations import Store, default_path, run_part, statistics_progress

    sums, text = shown
    path = as_path(options.out or default_path(plan))
    progress = statistics_progress if sums == "only" else Store.progress
    saved = partial(saved_rows, partial(progress, path), len(plan.task), "texts", path)
    write = partial(run_part, plan, path, part, console.bars(quiet), sums, options.check)
    done = make_store(f"{text}\n{describe_share(plan, part)}".strip(), write, saved, quiet)
    if not quiet:
        console.note(describe_part(done))
    return done


def describe_part(done: "PartDone") -> str:
    """What a part did, what is missing, and the next command."""
    name, path = f"part {done.part}/{done.of}", quote(str(done.path))
    if not done.shards:
        lines = [f"{name}: nothing to do, as there are fewer shards than parts"]
    else:
        lines = [f"{name}: done, {counted(done.shards, 'shard')} with {counted(done.rows, 'text')}"]
    if done.counted is not None:
        state = "joined" if done.counted else "not joined, as some are missing"
        lines.append(f"statistics of the {done.of} parts: {state}")
    if done.complete:
        lines.append(f"all parts are finished and the store is complete. Next: probekit train-probe {path}")
    if done.missing:
        from probekit.activations.parts.cut import parts_in_words

        lines.append(f"missing in {path}: {parts_in_words(done.missing)}")
        following = listed([f"--part {one.part}/{one.of}" for one in done.missing], most=4)
        lines.append(
            f"run the same command with {following}; if the parts have separate folders, merge them: "
            f"probekit merge {path} FOLDER... --out STORE"
        )
    return "\n".join(lines)


def share_as_dict(plan: "ExtractionPlan", part: Part) -> dict[str, Any]:
    """The share of the work of each part, and the shards and texts of this one."""
    from probekit.activations.parts.cut import cut_parts, shard_costs
    from probekit.activations.plan.plan import shard_rows

    costs = shard_costs(plan)
    cut = cut_parts(costs, part[1])
    own = cut[part[0] - 1].tolist()
    return {
        "part": part[0],
        "of": part[1],
        "shards": len(own),
        "rows": sum(len(shard_rows(plan, number)) for number in own),
        "shares": [float(costs[numbers].sum() / costs.sum()) for numbers in cut],
    }


def describe_share(plan: "ExtractionPlan", part: Part) -> str:
    """The share of this part, and how equal those of all parts are, as lines of the plan."""
    share = share_as_dict(plan, part)
    shares = share["shares"]
    own = (
        f"{counted(share['shards'], 'shard')}, {counted(share['rows'], 'text')}, {shares[part[0] - 1]:.1%} of the work"
    )
    every = ", ".join(f"{one:.1%}" for one in shares)
    if len(shares) > MOST_SHARES:
        every = f"{min(shares):.1%} to {max(shares):.1%}"
    line = f"{'part':<9}{part[0]} of {part[1]}: {own} (all parts: {every})"
    if max(shares) * len(shares) <= 1 + UNEVEN:
        return line
    from probekit.activations import plan_as_dict

    smaller = f"{max(1, plan_as_dict(plan)['bytes'] // (SHARDS_EACH * len(shares))):.1g}"
    return (
        f"{line}\n{'':<9}uneven: {counted(len(plan.shards), 'shard')} for {counted(len(shares), 'part')}; smaller "
        f"shards cut more evenly: --shard-bytes {int(float(smaller))} for every part"
    )


_JSON_SUMS = {"also": "beside", "only": "only"}  # the values that scripts know from `--json`

MODEL = (
    "A Hub name such as gpt2, a local folder, agreement-gpt2, or a world's model, which is trained on first use: "
    f"{', '.join(worlds.MODELS)}."
)
DATASET = (
    f"sst2, {', '.join(worlds.TASKS)}, a Hub name, a file or folder of CSV, TSV, JSONL, Parquet or CoNLL-U, or - for "
    "standard input."
)
ORDER = """
    model dataset points layers position text_column label_column limit out dry_run
    device dtype store_dtype batch_tokens devices revision via quantize device_map random_init model_seed
    messages_column token_label_column span_column id_column group_column split_column keep_columns columns header
    data_format regression rare_classes max_classes on_bad_row on_long validation
    bos keep_blanks skip_special chat_template add_generation_prompt
    generate temperature top_k top_p generate_seed stop no_stop seed
    stats stats_only picture shard_bytes check part engine workers gpus_per_worker address
"""


@dataclass(frozen=True, kw_only=True)
class ExtractJob(Output):
    """The model, the dataset, and options that only the command has."""

    model: str = required(MODEL, "NAME|FOLDER")
    dataset: str = required(DATASET, "NAME|PATH")
    stats_only: bool = option(False, "Write only those sums, and no activations.", heading=OUTPUT)
    no_stop: bool = option(False, f"With --generate: {NO_STOP[0].lower()}{NO_STOP[1:]}", heading=CONTINUED)
    dry_run: bool = option(False, "Print the plan, its time and memory and the tokens that are read, and stop.")
    picture: Path | None = option(
        None, "With --dry-run, draw the tokens that are read.", metavar="PATH", heading=OUTPUT
    )


@command(ORDER)
def extract(job: ExtractJob, model: ModelOptions, task: TaskOptions, options: ExtractArguments) -> None:
    """Keep a model's activations on a dataset, as a store on disk.

    The last line of stdout is the store's path. To resume an interrupted run, give the same command again.

    \b
    Examples:
        probekit extract --model gpt2 --dataset sst2
        probekit extract --model gpt2 --dataset cities.csv --points resid_pre,attn_out --layers 4-8 --dry-run
        probekit extract --model EleutherAI/pythia-70m --revision step1000,step8000,step143000 --dataset sst2
        probekit extract --model gpt2 --dataset prompts.csv --generate 64 --position last@generated
        probekit extract --model gpt2 --dataset en_ewt-ud-dev.conllu --label-column upos --limit 500
    """
    if job.picture is not None and job.picture.suffix.lower() not in ("", ".png", ".svg", ".pdf"):
        raise UsageError(f"--picture ends in .png, .svg or .pdf; got {job.picture.name!a:.60}")
    sums: Sums = "only" if job.stats_only else "also" if options.stats else None
    console.hush_downloads(job.quiet)
    check_store_out(options.out)
    check_via(options.out, model.via)
    options = replace(options, on_bad_row=task.on_bad_row, stop_tokens=stops_of(options.stop_tokens, job.no_stop))
    model, options = _spread(model, options)
    revisions = revisions_of(model)
    if job.dry_run:
        _dry_run(job, replace(model, revision=revisions[0]) if revisions else model, task, options, sums)
        if revisions and not (job.json or job.quiet):
            console.note(summary_line(revisions))
        return
    if revisions:
        _extract_each(job, model, task, options, (revisions, sums))
        return
    plan = planned(job, model, task, options)
    path, about = _written(job, plan, options, sums)
    console.answer(job, lambda: {"store": str(path), **about}, path)


def _spread(model: ModelOptions, options: ExtractArguments) -> tuple[ModelOptions, ExtractArguments]:
    """The options with which the driver of several devices, or of a cluster, plans; its own model stays on the CPU."""
    if options.engine is not None:
        from probekit.engines.cluster import check_cluster

        check_cluster(options)
    if options.engine is not None and model.device_map is None and model.quantize is None:
        from probekit.machine.devices import find_device

        return replace(model, device="cpu"), replace(options, device=find_device(model.device).type)
    if options.devices is None:
        return model, options
    from probekit.engines.devices import type_of_devices

    return replace(model, device="cpu"), replace(options, device=type_of_devices(options.devices))


def _written(
    job: ExtractJob, plan: "ExtractionPlan", options: ExtractArguments, sums: Sums, text: str | None = None
) -> tuple[AnyPath, dict[str, Any]]:
    """Write a store, or the part of it that is wanted; its path and what `--json` says of it."""
    if (part := checked_part(options.part)) is None:
        return write_store(plan, options, job.quiet, sums, text), _as_dict(plan, sums)
    done = write_part(plan, options, part, job.quiet, (sums, _describe(plan, sums) if text is None else text))
    return done.path, {**_as_dict(plan, sums), "part": done.as_dict()}


def _extract_each(
    job: ExtractJob, model: ModelOptions, task: TaskOptions, options: ExtractArguments, what: tuple[list[str], Sums]
) -> None:
    """A store for each revision, under one folder; one model is in memory at a time."""
    from probekit.activations import checkpoints_path, plan_extraction
    from probekit.models.load import check_model, load_model
    from probekit.tasks import load_task

    (revisions, sums), made = what, dict[str, AnyPath]()
    if options.out is not None and is_store(as_path(options.out)):
        raise UsageError(
            f"{str(options.out)!a} is a store, and several revisions have a store each; give another folder (--out)"
        )
    for revision in revisions:
        check_model(job.model, replace(model, revision=revision))
    loaded = load_task(job.dataset, **vars(task))

    def one(revision: str) -> dict[str, Any]:
        found = load_model(job.model, **{**vars(model), "revision": revision}, progress=console.bars(job.quiet))
        plan = plan_extraction(found, loaded, options)
        folder = as_path(options.out) if options.out else next((path.parent for path in made.values()), None)
        path = (folder or checkpoints_path(plan)) / store_name(revision)
        text = f"{_describe(plan, sums)}\n{summary_line(revisions)}" if not made else ""
        own = replace(options, out=path)
        made[revision], about = _written(job, plan, own, sums, f"{text}\n{revision}: {path}".strip())
        return {"revision": revision, "store": str(path), **about}

    stores: list[dict[str, Any]] = []
    for revision in revisions:
        try:
            stores.append(one(revision))
        except ProbekitError as error:
            raise at(revision, len(stores), len(revisions), error) from None
        if not job.json:
            console.result(stores[-1]["store"])
    if job.json:
        console.result_json({"folder": str(as_path(stores[0]["store"]).parent), "stores": stores})


def planned(job: ExtractJob, model: ModelOptions, task: TaskOptions, options: ExtractArguments) -> "ExtractionPlan":
    """The plan of an extraction; model and task are found before torch is imported."""
    loaded = load(job, model, task)
    if options.generate is not None:
        return continued_plan(*loaded, options, job.quiet)
    from probekit.activations import plan_extraction

    return plan_extraction(*loaded, options)


def load(job: ExtractJob, model: ModelOptions, task: TaskOptions) -> "tuple[LanguageModel, Task]":
    """The model and the task; the model's name is looked up first, then the task is loaded, which fails sooner."""
    from probekit.models.load import check_model, load_model

    check_model(job.model, model)
    from probekit.tasks import load_task

    loaded = load_task(job.dataset, **vars(task))
    return load_model(job.model, **vars(model), progress=console.bars(job.quiet)), loaded


def write_store(
    plan: "ExtractionPlan", options: ExtractArguments, quiet: bool, sums: Sums = None, text: str | None = None
) -> AnyPath:
    """Run a plan; the path of the finished store. Plan and progress go to stderr; errors as `make_store`.

    Args:
        plan: what is extracted.
        options: where the store goes, a name under ./runs by default, and who does the work.
        quiet: show neither.
        sums: as well as activations, or instead of them.
        text: shown in place of the plan.
    """
    from probekit import engines
    from probekit.activations import Store, default_path, run_plan, run_statistics, statistics_progress

    path, show = as_path(options.out or default_path(plan)), console.bars(quiet)
    if sums == "only":
        write, progress = partial(run_statistics, plan, path, show), statistics_progress
    else:
        write, progress = (
            partial(run_plan, plan, path, show, stats=sums == "also", engine=options, spread=engines.run),
            Store.progress,
        )
    saved = partial(saved_rows, partial(progress, path), len(plan.task), "texts", path)
    make_store(_describe(plan, sums) if text is None else text, write, saved, quiet)
    if sums and not quiet:
        console.note(f"statistics: {path / 'statistics'} (in Python: pk.load_statistics({str(path)!a}))")
    return path


def _dry_run(job: ExtractJob, model: ModelOptions, task: TaskOptions, options: ExtractArguments, sums: Sums) -> None:
    """Print the plan, with an estimate of its time and memory."""
    from probekit.activations import describe_estimate, estimate
    from probekit.activations.plan.reading.show import shown_reading

    writing, numbers = "", {}
    if options.generate is None:
        plan = planned(job, model, task, options)
    else:
        plan, line, about = sketched_plan(*load(job, model, task), options)
        writing, numbers = f"{line}\n", {"write": about}
    found, rows = estimate(plan), shown_reading(plan)
    if job.picture is not None:
        from probekit.plots import save_reading_plot

        drawn = save_reading_plot(rows, job.picture)
        if not job.quiet:
            console.note(f"picture: {drawn}")
    part = checked_part(options.part)
    if job.json:
        numbers |= {} if part is None else {"part": share_as_dict(plan, part)}
        console.result_json({**_as_dict(plan, sums), **numbers, "estimate": found.as_dict(), "rows": rows.as_dict()})
    else:
        share = "" if part is None else f"\n{describe_share(plan, part)}"
        console.result(f"{writing}{_describe(plan, sums)}\n{describe_estimate(found)}{share}\n{rows}")


def _as_dict(plan: "ExtractionPlan", sums: Sums) -> dict[str, Any]:
    from probekit.activations import plan_as_dict, statistics_bytes

    if sums is None:
        return plan_as_dict(plan)
    size = {"statistics": _JSON_SUMS[sums], "statistics_bytes": statistics_bytes(plan.task, plan.widths)}
    return {**plan_as_dict(plan), **size, **({"bytes": 0} if sums == "only" else {})}


def _describe(plan: "ExtractionPlan", sums: Sums) -> str:
    """The plan with the size of its sums; without activations, that is the only size."""
    from probekit.activations import describe_plan, statistics_bytes

    if sums is None:
        return describe_plan(plan)
    lines = [line for line in describe_plan(plan).split("\n") if sums == "also" or not line.startswith("size ")]
    size = f"{statistics_bytes(plan.task, plan.widths) / 1e6:,.1f} MB in all: sums for each place and split"
    return "\n".join([*lines, f"{'stats':<9}{size}{'' if sums == 'also' else '; no activations'}"])
