"""`probekit causal`: whether the model uses what its probes read."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from probekit.causal.curve.find import check_record, find_probes
from probekit.cli import console
from probekit.cli.derive import command
from probekit.cli.fields import Output, argument
from probekit.cli.results import check_question, emit
from probekit.cli.stores import check_results_out
from probekit.errors import UsageError
from probekit.files.remote.path import AnyPath
from probekit.machine.program import loading
from probekit.machine.progress import parts_line
from probekit.manifest import results_home
from probekit.options import CausalOptions
from probekit.options.check import check_there
from probekit.options.kinds import READING
from probekit.options.option import CHECKS, RUNS, option
from probekit.options.picture import PictureOptions
from probekit.options.question import Question, asked_by, default_folder

if TYPE_CHECKING:
    from probekit.activations import Store
    from probekit.causal.results.results import CausalResults
    from probekit.evaluation import ProbeResults
    from probekit.models.base import LanguageModel

ORDER = """
    path answers answer_at answers_label method layer at scale rows out dry_run
    placebos no_das no_completeness neutral pairs align
    exact label point store model check seed title no_title width format
"""


@dataclass(frozen=True, kw_only=True)
class CausalJob(Output):
    """The probes, the store that they were trained on, the model, and the folder for the results."""

    path: str | None = argument(
        "A store with results of `probekit train-probe`, or a folder of such results; hf://OWNER/NAME with --store.  "
        "[default: the newest store under ./runs that has some]",
        metavar="[STORE|RESULTS]",
        default=None,
    )
    label: str | None = option(None, "Take the results of this label set.  [default: the newest]", metavar="NAME")
    point: str | None = option(None, "Take the results of this point.  [default: the newest]", metavar="NAME")
    store: AnyPath | None = option(None, "The store of results that lie elsewhere.", metavar="DIR")
    model: str | None = option(
        None, "The model that made the store.  [default: where it was loaded from]", metavar="NAME|FOLDER", heading=RUNS
    )
    check: str = option(
        "hash", "hash: compare what is read with its checksums; size: only the sizes of files.", READING, heading=CHECKS
    )
    out: Path | None = option(
        None, "Where the results go.  [default: STORE/results/causal-LABEL-POINT-...]", metavar="DIR"
    )
    dry_run: bool = option(False, "Say what would be run and how long it would take, and stop.")


@command(ORDER)
def causal(job: CausalJob, options: CausalOptions, picture: PictureOptions) -> None:
    """Edit what probes read, and watch the model's next token.

    Directions are fitted to train rows; direction, layer and scale are chosen on validation rows; effects are those on
    test rows, compared with the same edits along placebo directions. Writes causal_by_layer.png and .svg, causal.json
    and tables as CSV. A run that was stopped resumes with the layers that are missing.

    Minimal pairs (--pairs FILE --method patch) carry their answers, and need neither --answers nor probes.

    \b
    Examples:
        probekit causal --answers is,are
        probekit causal runs/agreement-gpt2-agreement --answers is,are --method interchange,erase
        probekit causal runs/STORE/results/number-resid_pre-logistic --answers is,are --layer 2-4 --rows 500
        probekit causal runs/STORE --method patch --pairs pairs.csv
    """
    store_path, results_path = find_probes(job.path, job.store, job.label, job.point, not options.patches_pairs_alone)
    check_results_out(job.out, store_path)
    if results_path is not None:
        check_record(store_path, results_path, options)
    for file in (options.pairs, options.neutral):
        if file is not None:
            check_there(Path(file))
    if not job.quiet:
        if job.path is None:
            console.note(f"probes: {results_path} (the newest)")
        if options.at == "all":
            console.note("edits at all tokens: erase and steer; interchange takes the coordinate of one token")
    console.hush_downloads(job.quiet)
    run_causal(store_path, results_path, options, job, picture)


def run_causal(
    store_path: AnyPath,
    results_path: Path | None,
    options: CausalOptions,
    job: CausalJob,
    picture: PictureOptions = PictureOptions(),  # noqa: B008 (frozen)
) -> None:
    """Open everything, run, save and print.

    Raises:
        StorageError: `job.out` holds something else; the disk refused.
        ResumeMismatch: `job.out` holds results of another question.
        KeyboardInterrupt: with what is complete and how to resume.
    """
    began = time.perf_counter()
    with parts_line(console.bars(job.quiet)) as line:
        line.part("loading libraries")
        with loading():
            from probekit.activations import load_activations
            from probekit.causal.curve.question import check_results
            from probekit.evaluation import ProbeResults

        line.part("reading the results")
        results = None if results_path is None else ProbeResults.load(results_path)
        if results is not None:
            check_results(results)
        store = load_activations(store_path, job.check)
        asked = asked_by(options, probes=results_path.name if results_path else None)
        question = Question("causal", "causal", asked, asked)
        names = ["pairs"] if results is None else [results.meta["label"], results.meta["point"]]
        folder = job.out or default_folder(question, results_home(store_path), *names)
        check_question(folder, question)
        line.part("loading the model")
        model = _load(job.model, store)
    if job.dry_run:
        _show_plan(model, store, results, options, job, began)
        return
    found = _run(model, store, results, options, folder, job)
    found.meta["files"] = {name: str(path) for name in ("neutral", "pairs") if (path := getattr(options, name))}
    where = {"store": str(store_path)}
    if results_path is not None:
        where["probes"] = str(results_path)
        found.meta["files"]["probes"] = os.path.relpath(results_path.resolve(), folder.resolve().parent)
    emit(found, question, folder, job, picture, "the edits are complete", where)
    from probekit.causal.curve.parts import remove_places

    remove_places(folder)


def _run(
    model: "LanguageModel",
    store: "Store",
    results: "ProbeResults | None",
    options: CausalOptions,
    folder: Path,
    job: CausalJob,
) -> "CausalResults":
    from probekit.causal.curve.causal_curve import causal_curve
    from probekit.causal.curve.parts import kept_places

    try:
        with parts_line(console.bars(job.quiet)) as line:
            return causal_curve(
                model, store, results, **vars(options), keep=folder, on_progress=line.set, on_part=line.part
            )
    except KeyboardInterrupt:
        if results is None:
            raise
        n = kept_places(folder)
        kept = f"saved {n} of {len(results.layers)} places in {folder}" if n else "no place was complete yet"
        raise KeyboardInterrupt(f"{kept}; run the same command again to resume") from None


def _load(name: str | None, store: "Store") -> "LanguageModel":
    """The model of the store, as it was loaded."""
    from probekit.models.load import load_model

    source = dict(store.source or {})
    if name is None and "name_or_path" not in source:
        raise UsageError(f"{str(store.path)!a} does not say where its model was loaded from; name it with --model")
    name_or_path = source.pop("name_or_path", None)
    return load_model(name or name_or_path, **(source if name is None else {}))


def _show_plan(
    model: "LanguageModel",
    store: "Store",
    results: "ProbeResults | None",
    options: CausalOptions,
    job: CausalJob,
    began: float,
) -> None:
    from probekit.causal.curve.estimate import describe_causal, plan_causal
    from probekit.causal.curve.grids import plan_patching

    if results is None:
        plan = plan_patching(model, store.meta.get("bos"), options)
        text = "\n".join(f"{key:<9}{value}" for key, value in plan.items())
    else:
        from probekit.plots.causal import save_causal_plot  # noqa: F401  the run needs it, too

        loading = time.perf_counter() - began
        plan = plan_causal(model, store, results, options)
        plan |= {"seconds": plan["seconds"] + loading, "parts": {"loading": loading} | plan["parts"]}
        text = describe_causal(plan)
    console.answer(job, lambda: plan, text)
