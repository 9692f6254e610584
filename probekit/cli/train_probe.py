"""`probekit train-probe`: a probe at every layer of a store, and the picture of it."""

import dataclasses
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probekit.cli import console, probes, stores
from probekit.cli.checkpoints import train_each
from probekit.cli.derive import command
from probekit.cli.fields import Output, argument
from probekit.cli.results import check_question, emit
from probekit.errors import UsageError
from probekit.files.remote.path import AnyPath
from probekit.files.run import question_digest
from probekit.logging_to.check import check_tracker
from probekit.machine.program import loading
from probekit.machine.progress import parts_line
from probekit.manifest import newest_manifest, results_home, stores_in
from probekit.options import ClusterOptions, ProbeArguments, ProbeOptions, kinds
from probekit.options.kinds import READING
from probekit.options.option import CHECKS, OUTPUT, like, option
from probekit.options.picture import PictureOptions
from probekit.options.probe import BY_HEAD
from probekit.options.prompt import PromptOptions
from probekit.options.question import Question, asked_by, content_of_file, default_folder
from probekit.points import LATENTS
from probekit.text import listed

if TYPE_CHECKING:
    from probekit.activations import Activations, Store
    from probekit.evaluation import ProbeResults

ORDER = """
    store layer point label probe position quick out baseline metric C
    sae force by within least_texts aggregate concatenate folds drop_leaks ensemble on_bad_row nuisance shift_column
    controls control_type control_C no_codelength no_intervals
    prompt question answers shots as_chat prompt_template
    title no_title width format projection log_to seed check memory engine workers gpus_per_worker address
"""


RANDOM_INIT, PROMPTED, SCORES = "random-init", "prompted", "scores:"


@dataclass(frozen=True, kw_only=True)
class TrainProbeJob(ClusterOptions, Output):
    """The store and how its files are checked, the baseline, and the folder for the results."""

    store: AnyPath | None = argument(
        "A store made by `probekit extract`, or a folder of them.  [default: the newest complete store under ./runs]",
        default=None,
    )
    baseline: list[str] | None = option(
        None,
        "random-init: the same architecture with random weights; prompted: the model's own answers; prompted:MODEL; "
        "scores:FILE.",
        kinds.NAMES,
        notes="Several have commas between them. A file of scores has the columns id and score, or a column for each "
        "class; a column tokens is the cost of each row. All are compared on the same rows.",
    )
    check: str = option(
        "hash",
        "hash: compare what is read with its checksums; size: only the sizes of files, which saves 0.5 s a GB.",
        READING,
        heading=CHECKS,
    )
    sae: list[str] | None = option(
        None,
        "Probe the latents of these sparse autoencoders or transcoders: folders, or hf://owner/name/folder.",
        kinds.NAMES,
        notes="Files of SAELens, sparsify and Gemma Scope. Each reads a place of the store; several give a curve.",
        metavar="PATHS",
    )
    force: bool = option(False, "With --sae: go on where an autoencoder names another model than the store does.")
    out: Path | None = option(
        None, "Where the results go.  [default: STORE/results/LABEL-POINT-PROBE...]", metavar="DIR"
    )
    projection: bool = option(
        False,
        "Also draw the test rows of the best layer along the probe, and along what varies most orthogonal to it.",
        heading=OUTPUT,
    )
    log_to: str | None = like(ProbeArguments, "log_to", flag="--log-to")
    memory: int | None = like(ProbeArguments, "memory", flag="--memory")

    @property
    def black_boxes(self) -> tuple[str, ...]:
        """The baselines that are scores by row."""
        return tuple(name for name in self.baseline or [] if name != RANDOM_INIT)

    @property
    def prompted(self) -> bool:
        """Whether a model is prompted."""
        return any(not name.startswith(SCORES) for name in self.black_boxes)


@command(ORDER)
def train_probe(job: TrainProbeJob, options: ProbeOptions, picture: PictureOptions, prompts: PromptOptions) -> None:
    """Train a probe at each layer and plot accuracy by layer.

    The best layer is chosen on validation; test decides nothing. Texts that are in several splits are reported. Writes
    accuracy_by_layer.png and .svg, results.json, results.csv and the probes. Several points, label sets or probes have
    a table with a line for each curve, one curves.png, one results.csv, and a folder for each curve. With --by position
    there is a line for each place in the text, and positions.png is a heatmap of layers and positions. With --by head
    there is a line for each attention head, and the heatmap is heads.png. Several of these have a folder each, and
    grids.png has all heatmaps.

    \b
    Examples:
        probekit train-probe --layer all
        probekit train-probe runs/gpt2-sst2 --layer 2-6 --probe ridge --C 0.01,1,100
        probekit train-probe runs/gpt2-sst2 --drop-leaks --baseline random-init
        probekit train-probe runs/gpt2-sst2 --baseline prompted --shots 4
        probekit train-probe runs/gpt2-sst2 --point resid_pre,attn_out --label all
        probekit train-probe runs/gpt2-sst2 --probe logistic,mean-diff
        probekit train-probe runs/gpt2-sst2-all --by position
        probekit train-probe runs/gpt2-sst2 --within length
        probekit train-probe runs/gpt2-sst2-heads --by head --point z,v --label all
        probekit train-probe runs/gpt2-sst2 --probe mean-diff --projection
        probekit train-probe runs/gpt2-sst2 --probe k-sparse --set train-probe.probe.k=4
        probekit train-probe runs/gpt2-sst2 --sae path/to/sae --probe k-sparse
    """
    _check_baselines(job)
    if job.log_to is not None:
        check_tracker(job.log_to)
    if job.store is not None and (inside := stores_in(job.store)):
        for each in inside:
            if not job.sae and options.point != LATENTS:
                stores.check_places(each, options)
        train_each(inside, partial(_train_checkpoint, options, job, picture, prompts), job.json, job.quiet)
        return
    path: AnyPath = job.store or newest_manifest(Path("runs"))
    if not job.sae and options.point != LATENTS:
        stores.check_places(path, options)
    stores.check_results_out(job.out, path)
    with parts_line(console.bars(job.quiet)) as line:
        line.part("reading the store")
        with loading():
            from probekit.activations import load_activations

        store = load_activations(job.store or _newest(job.quiet), job.check)
    train(store, options, job, picture, prompts)


def _check_baselines(job: TrainProbeJob) -> None:
    for name in job.baseline or []:
        of = name.partition(":")[2]
        if name not in (RANDOM_INIT, PROMPTED) and not (name.startswith((f"{PROMPTED}:", SCORES)) and of):
            raise UsageError(
                f"unknown baseline {name!a:.60}; give --baseline random-init, prompted, prompted:MODEL or scores:FILE, "
                "or leave it out"
            )
        if name.startswith(SCORES) and not Path(of).expanduser().is_file():
            raise UsageError(f"no file of scores {of!a:.80}; give a CSV, TSV, JSONL or Parquet file (scores:FILE)")


def _train_checkpoint(
    options: ProbeOptions, job: TrainProbeJob, picture: PictureOptions, prompts: PromptOptions, path: AnyPath
) -> Path:
    """Train on one of several stores, without printing; the folder of its results."""
    from probekit.activations import load_activations

    out = None if job.out is None else job.out / path.name
    stores.check_results_out(out, path)
    own = dataclasses.replace(job, store=path, out=out)
    return train(load_activations(path, job.check), options, own, picture, prompts, show=False)


def several_of(options: ProbeOptions, acts: "Activations") -> dict[str, Any]:
    """`points`, `labels` and `probes` where --point, --label and --probe name several.

    For points and labels also "all"; a name that exists is taken whole.
    """
    found: dict[str, Any] = {"probe": None, "probes": options.probe} if len(options.each_probe) > 1 else {}
    for one, known in (("point", acts.points), ("label", acts.labels)):
        given = getattr(options, one)
        if given is None or given in known:
            continue
        parts = kinds.names(given)
        if given == "all" or len(parts) > 1:
            found |= {one: None, f"{one}s": given if given == "all" else parts}
    return found


def train(
    store: "Store",
    options: ProbeOptions,
    job: TrainProbeJob,
    picture: PictureOptions = PictureOptions(),  # noqa: B008 (frozen)
    prompts: PromptOptions = PromptOptions(),  # noqa: B008
    show: bool = True,
) -> Path:
    """Train, save and print: one curve, or a folder with several; the folder.

    Raises:
        StorageError: `job.out` holds something else; the disk refused.
        ResumeMismatch: `job.out` holds results of another question.
        KeyboardInterrupt: with what is complete and how to resume.
    """
    complete = f"the store {store.path} is complete"
    with console.interrupt_says(f"{complete}, no results were written; run the same command again"):
        with parts_line(console.bars(job.quiet)) as line:
            line.part("loading libraries")
            with loading():
                from probekit import plots  # noqa: F401  the results are drawn
                from probekit.activations import random_init_of, record_of_labels, with_label_columns
                from probekit.activations.latents import Latents
                from probekit.verbs.train_probes import train_probes

        store = with_label_columns(store, *kinds.names(options.label or ""), options.label)
        acts = _encoded(store, job, options)
        several = several_of(options, acts)
        question, how = _question(acts, options, job, several, prompts)
        known = record_of_labels(acts, _labels(several, options, acts))
        check_question(job.out, question, known)
        how["black_boxes"] = _black_boxes(store, options, job, prompts, _labels(several, options, acts))
        if RANDOM_INIT in (job.baseline or []):
            noise = random_init_of(store, progress=console.bars(job.quiet))
            how["random_init"] = noise.encode(acts.saes, force=True) if isinstance(acts, Latents) else noise
        with parts_line(console.bars(job.quiet)) as line:
            results: Any = train_probes(acts, **how, on_progress=line.set, on_part=line.part)
    meta: dict[str, Any] = (next(iter(results.values())) if question.kind in ("curves", "grids") else results).meta
    results.meta["activations"] = {key: known.get(key, value) for key, value in meta["activations"].items()}
    names = [getattr(options, key) if several and getattr(options, key) else meta[key] for key in ("label", "point")]
    folder = job.out or default_folder(question, results_home(store.path), *names, meta["probe"])
    also = partial(_projection, results, acts, folder, picture) if job.projection else list
    emit(results, question, folder, job if show else None, picture, complete, {"store": str(store.path)}, also)
    if job.log_to is not None:
        from probekit.logging_to.trackers import log_results

        log_results(results, job.log_to)
    return folder


def _encoded(store: "Store", job: TrainProbeJob, options: ProbeOptions) -> "Activations":
    """The latents of the store's activations, where autoencoders or kept latents are named; else the store."""
    if not job.sae:
        return store.encode() if options.point == LATENTS else store
    from probekit.latents import load_sae

    return store.encode([load_sae(path) for path in job.sae], job.force)


def _saes_asked(acts: "Activations", job: TrainProbeJob) -> dict[str, Any]:
    """What the question says of autoencoders: where they are, and a digest of what they are."""
    if LATENTS not in acts.meta:
        return {}
    read = {place: (one["of"], one["fingerprint"]) for place, one in acts.meta[LATENTS].items()}
    return {"sae": job.sae, "sae_digest": question_digest(read)[:8], "force": job.force}


def _black_boxes_asked(job: TrainProbeJob, prompts: PromptOptions) -> dict[str, Any]:
    """What the question says of black boxes: their names, how they are prompted, and a digest that has their files."""
    if not job.black_boxes:
        return {}
    how = {name: str(value) if isinstance(value, Path) else value for name, value in vars(prompts).items()}
    files = [Path(name.removeprefix(SCORES)).expanduser() for name in job.black_boxes if name.startswith(SCORES)]
    files += [Path(value) for value in (how["prompt"], how["prompt_template"]) if value and Path(value).is_file()]
    digest = question_digest([list(job.black_boxes), how, [content_of_file(file) for file in files]])[:8]
    return {"black_boxes": list(job.black_boxes), "black_boxes_digest": digest, **(how if job.prompted else {})}


def _black_boxes(
    store: "Store", options: ProbeOptions, job: TrainProbeJob, prompts: PromptOptions, labels: list[str]
) -> list[Any] | None:
    """The scores of each black box, files first, as they cost nothing."""
    if not job.black_boxes:
        return None
    from probekit.black_box.prompted import prompted_scores
    from probekit.evaluation.compare.black_boxes import opened

    if prompts.answers is not None and len(labels) > 1:
        raise UsageError(f"--answers are of one label, and {listed(labels)} are probed; name one, or leave it out")
    files = [name.removeprefix(SCORES) for name in job.black_boxes if name.startswith(SCORES)]
    boxes = opened(files, store.task.ids)
    how = {**vars(prompts), "seed": options.seed, "every_row": options.folds is not None}
    for name in job.black_boxes:
        if not name.startswith(SCORES):
            model = name.partition(":")[2] or None
            progress = console.bars(job.quiet)
            boxes += [prompted_scores(store, model=model, label=label, progress=progress, **how) for label in labels]
    return boxes


def _question(
    acts: "Activations", options: ProbeOptions, job: TrainProbeJob, several: dict[str, Any], prompts: PromptOptions
) -> tuple[Question, dict[str, Any]]:
    """What is asked, and the arguments of `train_probes`; the probe's parameters are checked."""
    first = dataclasses.replace(options, label=next(iter(_labels(several, options, acts)), None))
    if job.projection and several:
        raise UsageError("--projection draws one curve; name one point and one label, or leave it out")
    probe = probes.check_parameters(first, acts)  # the kind of the first label decides what a name means
    if job.projection:
        probes.check_linear(first, acts)
    random_init = RANDOM_INIT in (job.baseline or [])
    more = _saes_asked(acts, job) | _black_boxes_asked(job, prompts)
    asked = asked_by(options, probe=probe, random_init=random_init, **more)
    how = {**vars(options), "probe": probes.make_probe(probe, first, acts), **several}
    how |= {name: getattr(job, name) for name in ("memory", *(field.name for field in fields(ClusterOptions)))}
    return Question("train-probe", _kind(options, several), asked), how


def _kind(options: ProbeOptions, several: dict[str, Any]) -> str:
    """The kind of results that the options ask for, a key of `KINDS`."""
    if several or options.within is not None:
        return "curves" if options.by is None and options.shift_column is None else "grids"
    if options.shift_column is not None:
        return "transfer"
    return {None: "curve", BY_HEAD: "heads"}.get(options.by, "positions")


def _labels(several: dict[str, Any], options: ProbeOptions, acts: "Activations") -> list[str]:
    """The label sets that probes are trained for."""
    named = several.get("labels", [options.label or acts.target])
    return [*acts.labels] if named == "all" else named


def _projection(results: "ProbeResults", acts: "Activations", folder: Path, picture: PictureOptions) -> list[Path]:
    """Draw the selected layer, if there is one."""
    from probekit.plots import save_projection_plot

    if results.selected is None:
        console.note("no projection: no layer was selected, as the task has no validation split")
        return []
    return [save_projection_plot(results, acts, folder, **vars(picture))]


def _newest(quiet: bool) -> AnyPath:
    from probekit.activations import newest_store

    path = newest_store("runs")
    if not quiet:
        console.note(f"store: {path} (the newest under runs)")
    return path
