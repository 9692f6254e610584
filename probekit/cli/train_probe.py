"""`probekit train-probe`: a probe at every layer of a store, and the picture of it."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from probekit.cli import console, probes
from probekit.cli.derive import command
from probekit.cli.fields import Output, argument
from probekit.cli.results import check_out, question_of, results_folder, save_and_show
from probekit.errors import UsageError
from probekit.options import ProbeOptions
from probekit.options.option import option
from probekit.progress import progress_bar

if TYPE_CHECKING:
    from probekit.activations import Store

ORDER = """
    store layer point probe label position C controls control_type no_codelength folds drop_leaks baseline metric seed
    out title
"""


@dataclass(frozen=True, kw_only=True)
class TrainProbeJob(Output):
    """The store, the baseline, the folder for the results, and the picture's title."""

    store: Path | None = argument(
        "A store made by `probekit extract`.  [default: the newest complete one under ./runs]", default=None
    )
    baseline: str | None = option(
        None, "random-init: add the curve of the same architecture with random weights.", metavar="NAME"
    )
    out: Path | None = option(None, "Results.  [default: STORE/results/LABEL-POINT-PROBE...]", metavar="DIR")
    title: str | None = option(None, "Title of the picture.  [default: label, model and task]", metavar="TEXT")


@command(ORDER)
def train_probe(job: TrainProbeJob, options: ProbeOptions) -> None:
    """Train a probe at each layer and plot accuracy by layer.

    The best layer is chosen on validation; test decides nothing. Texts that are in several splits are reported. Writes
    accuracy_by_layer.png and .svg, results.json, results.csv and the probes.

    \b
    Examples:
        probekit train-probe --layer all
        probekit train-probe runs/gpt2-sst2 --layer 2-6 --probe ridge --C 0.01,1,100
        probekit train-probe runs/gpt2-sst2 --drop-leaks --baseline random-init
        probekit train-probe runs/gpt2-sst2 --probe k-sparse --set train-probe.probe.k=4
    """
    if job.baseline not in (None, "random-init"):
        raise UsageError(f"no baseline {job.baseline!a}; the only one that can be added is random-init")
    from probekit.activations import load_activations

    train(load_activations(job.store or _newest(job.quiet)), options, job)


def train(store: "Store", options: ProbeOptions, job: TrainProbeJob) -> None:
    """Train, save and print.

    Raises:
        StorageError: `job.out` holds something else; the disk refused.
        ResumeMismatch: `job.out` holds results of another question.
        KeyboardInterrupt: with what is complete and how to resume.
    """
    complete = f"the store {store.path} is complete"
    with console.interrupt_says(f"{complete}, no results were written; run the same command again"):
        from probekit.activations import random_init_of
        from probekit.evaluation import train_probes
        from probekit.plots import save_plot

        probe = probes.check_parameters(options, store)
        question = {**question_of(options), "probe": probe, "random_init": job.baseline is not None}
        if job.out is not None:
            check_out(job.out, store.meta, question)
        how = {**vars(options), "probe": probes.make_probe(probe, options, store)}
        if job.baseline is not None:
            how["random_init"] = random_init_of(store, progress=console.bars(job.quiet))
        with progress_bar("train", "layers", show=console.bars(job.quiet)) as bar:
            results = train_probes(store, **how, progress=bar.set)
        results.meta["asked"] = question
    folder = job.out or results_folder(store.path, results.meta, question)
    draw = partial(save_plot, title=job.title)
    save_and_show(results, folder, draw, "results.json", {"store": str(store.path)}, complete, job)


def _newest(quiet: bool) -> Path:
    from probekit.activations import newest_store

    path = newest_store("runs")
    if not quiet:
        console.note(f"store: {path} (the newest under runs)")
    return path
