"""`probekit demo`: the main job on the model and the task that come with probekit."""

from dataclasses import dataclass
from pathlib import Path

from probekit.cli import console, stores
from probekit.cli.causal import CausalJob, run_causal
from probekit.cli.derive import command
from probekit.cli.extract import ExtractJob, planned, write_store
from probekit.cli.fields import Output
from probekit.cli.report import DEFAULT, make_report
from probekit.cli.train_probe import TrainProbeJob, train
from probekit.options import CausalOptions, ExtractArguments, ModelOptions, ProbeOptions, ReportOptions, TaskOptions
from probekit.options.option import like, option


@dataclass(frozen=True, kw_only=True)
class DemoJob(Output):
    """The folder for the store, the seed, and whether the model's use of what is read is measured too."""

    out: Path | None = like(ExtractArguments, "out")
    seed: int = like(TaskOptions, "seed")
    causal: bool = option(
        False, "Then see whether the model uses what the probes read (the same as `probekit causal --answers is,are`)."
    )


@command()
def demo(job: DemoJob) -> None:
    """Extract, train and plot, on a small built-in model.

    Needs no network and no data. The model learned English agreement: at which layer does the model know whether the
    verb's subject is singular or plural? The same as `probekit extract --model agreement-gpt2 --dataset agreement`,
    then `probekit train-probe` and `probekit report`.

    \b
    Examples:
        probekit demo
        probekit demo --causal
    """
    stores.check_out(job.out)
    from probekit.activations import load_activations

    console.hush_downloads(job.quiet)
    extraction = ExtractJob(model="agreement-gpt2", dataset="agreement", quiet=job.quiet)
    plan = planned(extraction, ModelOptions(), TaskOptions(seed=job.seed), ExtractArguments())
    path, _ = write_store(plan, ExtractArguments(out=job.out), job.quiet)
    probes = TrainProbeJob(json=job.json, quiet=job.quiet)
    results = train(load_activations(path), ProbeOptions(seed=job.seed), probes, show=not job.causal)
    if job.causal:
        options = CausalOptions(answers=["is", "are"], seed=job.seed)
        run_causal(path, results, options, CausalJob(json=job.json, quiet=job.quiet))
    make_report([results], Path(str(path)) / DEFAULT, ReportOptions(), job, show=not job.json and not job.quiet)
