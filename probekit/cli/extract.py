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

MODEL = (
    "A Hub name such as gpt2, a local folder, agreement-gpt2, a function of your own (module.py:make_model), or a "
    f"world's model, which is trained on first use: {', '.join(worlds.MODELS)}; or the name of a compiled task."
)
DATASET = (
    f"sst2, {', '.join((*worlds.TASKS, *worlds.COMPILED))}, "
    "a Hub name, a file or folder of CSV, TSV, JSONL, Parquet or CoNLL-U, or - for standard input."
)
ORDER = """
    model dataset points layers position text_column label_column limit out dry_run
    device dtype store_dtype batch_tokens devices revision via quantize device_map random_init model_seed
    messages_column token_label_column span_column id_column group_column split_column keep_columns columns header
    data_format regression rare_classes max_classes on_bad_row on_long validation
    bos keep_blanks skip_special chat_template add_generation_prompt
    generate temperature top_k top_p generate_seed stop no_stop seed
    sae force stats stats_only picture shard_bytes check part engine workers gpus_per_worker address
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
    if options.sae:
        options = _with_saes(options)
    if job.dry_run:
        _dry_run(job, replace(model, revision=revisions[0]) if revisions else model, task, options, sums)
        if revisions and not (job.json or job.quiet):
            console.note(summary_line(revisions))
        return
    if revisions:
        _extract_each(job, model, task, options, (revisions, sums))
        return
    plan = planned(job, model, task, options)
    path, about = write_store(plan, options, job.quiet, sums)
    console.answer(job, lambda: {"store": str(path), **about}, path)


def _with_saes(options: ExtractArguments) -> ExtractArguments:
    """The options with the autoencoders loaded, and with the points that they read, unless others were named."""
    from probekit.verbs.latents import saes_asked, with_places_read

    saes = saes_asked(options, stored=True)
    return replace(with_places_read(options, saes), sae=saes)


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


def _extract_each(
    job: ExtractJob, model: ModelOptions, task: TaskOptions, options: ExtractArguments, what: tuple[list[str], Sums]
) -> None:
    """A store for each revision, under one folder; one model is in memory at a time."""
    from probekit.activations import checkpoints_path, describe_plan, plan_extraction
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
        plan = _checked(plan_extraction(found, loaded, options), options)
        folder = as_path(options.out) if options.out else next((path.parent for path in made.values()), None)
        path = (folder or checkpoints_path(plan)) / store_name(revision)
        text = f"{describe_plan(plan, sums)}\n{summary_line(revisions)}" if not made else ""
        shown = f"{text}\n{revision}: {path}".strip()
        made[revision], about = write_store(plan, replace(options, out=path), job.quiet, sums, shown)
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
        return _checked(continued_plan(*loaded, options, job.quiet), options)
    from probekit.activations import plan_extraction

    return _checked(plan_extraction(*loaded, options), options)


def _checked(plan: "ExtractionPlan", options: ExtractArguments) -> "ExtractionPlan":
    """The plan, which keeps what the autoencoders read, if there are any."""
    if options.sae:
        from probekit.verbs.latents import check_saes

        check_saes(plan, options.sae, options.force)
    return plan


def load(job: ExtractJob, model: ModelOptions, task: TaskOptions) -> "tuple[LanguageModel, Task]":
    """The model and the task; the model's name is looked up first, then the task is loaded, which fails sooner."""
    from probekit.models.load import check_model, load_model

    check_model(job.model, model)
    from probekit.tasks import load_task

    loaded = load_task(job.dataset, **vars(task))
    return load_model(job.model, **vars(model), progress=console.bars(job.quiet)), loaded


def write_store(
    plan: "ExtractionPlan", options: ExtractArguments, quiet: bool, sums: Sums = None, text: str | None = None
) -> tuple[AnyPath, dict[str, Any]]:
    """Run a plan, or the part of it that is wanted; the store's path, and what `--json` says of it.

    Plan, progress and notes go to stderr; errors as `make_store`.

    Args:
        plan: of the complete extraction.
        options: where the store goes, a name under ./runs by default, and who does the work.
        quiet: show none of them.
        sums: as well as activations, or instead of them.
        text: shown in place of the plan.
    """
    from probekit import activations, engines
    from probekit.activations.parts.describe import describe_part, describe_share

    path, show = as_path(options.out or activations.default_path(plan)), console.bars(quiet)
    shown = activations.describe_plan(plan, sums) if text is None else text
    progress = activations.statistics_progress if sums == "only" else activations.Store.progress
    saved = partial(saved_rows, partial(progress, path), len(plan.task), "texts", path)
    about, notes = activations.plan_as_dict(plan, sums), list[str]()
    if (part := checked_part(options.part)) is not None:
        write = partial(activations.run_part, plan, path, part, show, sums, options.check)
        done = make_store(f"{shown}\n{describe_share(plan, part)}".strip(), write, saved, quiet)
        about, notes = {**about, "part": done.as_dict()}, [describe_part(done)]
    elif sums == "only":
        make_store(shown, partial(activations.run_statistics, plan, path, show), saved, quiet)
    else:
        run = partial(activations.run_plan, stats=sums == "also", engine=options, spread=engines.run)
        make_store(shown, partial(run, plan, path, show), saved, quiet)
    if sums and part is None:
        notes.append(f"statistics: {path / 'statistics'} (in Python: pk.load_statistics({str(path)!a}))")
    if options.sae:
        from probekit.verbs.latents import keep_latents, latents_in_words

        latents = keep_latents(activations.load_activations(path), plan, options.sae, options.force, show)
        about, notes = {**about, "latents": latents.meta["latents"]}, [*notes, *latents_in_words(latents)]
    if notes and not quiet:
        console.note("\n".join(notes))
    return path, about


def _dry_run(job: ExtractJob, model: ModelOptions, task: TaskOptions, options: ExtractArguments, sums: Sums) -> None:
    """Print the plan, with an estimate of its time and memory."""
    from probekit.activations import describe_estimate, describe_plan, estimate, plan_as_dict
    from probekit.activations.parts.describe import describe_share, share_as_dict
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
        console.result_json(
            {**plan_as_dict(plan, sums), **numbers, "estimate": found.as_dict(), "rows": rows.as_dict()}
        )
    else:
        share = "" if part is None else f"\n{describe_share(plan, part)}"
        console.result(f"{writing}{describe_plan(plan, sums)}\n{describe_estimate(found)}{share}\n{rows}")
