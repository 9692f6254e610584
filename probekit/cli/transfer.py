"""`probekit transfer`: probes of each task on the test splits of all of them."""

from dataclasses import dataclass
from pathlib import Path

from probekit.cli import console, probes
from probekit.cli.derive import command
from probekit.cli.fields import Output, argument
from probekit.cli.results import check_question, emit
from probekit.cli.stores import check_places, check_results_out
from probekit.errors import UsageError
from probekit.files.remote.path import AnyPath
from probekit.machine.progress import parts_line
from probekit.manifest import results_home
from probekit.options import TransferOptions
from probekit.options.option import option
from probekit.options.picture import PictureOptions
from probekit.options.question import Question, asked_by, default_folder
from probekit.results.kinds import check_results_folder


@dataclass(frozen=True, kw_only=True)
class TransferJob(Output):
    """The stores, and the folder for the results."""

    stores: list[AnyPath] = argument("Stores of one model, each with another task.")
    out: Path | None = option(
        None, "Where the results go.  [default: STORE/results/transfer-..., in the first store]", metavar="DIR"
    )


@command("stores layer point probe label position C out title no_title width format seed")
def transfer(job: TransferJob, options: TransferOptions, picture: PictureOptions) -> None:
    """Train probes on each task and test them on all tasks.

    Does the direction that a probe found on one task hold on others? Layer and C are chosen on the validation split of
    the training task. Writes transfer.png and .svg, transfer.json and results.csv, with every layer.

    \b
    Examples:
        probekit transfer runs/cities runs/neg_cities runs/sp_en_trans runs/larger_than
        probekit transfer runs/cities runs/neg_cities --layer 8 --probe mean-diff
    """
    if len(job.stores) < 2:
        raise UsageError(f"transfer needs the activations of two tasks or more; got {len(job.stores)}")
    for path in job.stores:
        check_places(path, options)
    check_results_out(job.out, job.stores[0])
    if job.out is not None:
        check_results_folder(job.out, "transfer")  # before the stores are read
    complete, stores = "the stores are complete", [str(path) for path in job.stores]
    with console.interrupt_says(f"{complete}, no results were written; run the same command again"):
        from probekit.activations import load_activations
        from probekit.evaluation import transfer as run_transfer

        opened = [load_activations(path) for path in job.stores]
        probe = probes.check_parameters(options, opened[0])
        rest = [[str(path.resolve()) for path in job.stores], asked_by(options, probe=probe)]
        question = Question("transfer", "transfer", asked_by(options, probe=probe, stores=stores), rest)
        check_question(job.out, question)
        how = {**vars(options), "probe": probes.make_probe(probe, options, opened[0])}
        with parts_line(console.bars(job.quiet)) as line:
            results = run_transfer(opened, **how, on_progress=line.set, on_part=line.part)
    home = results_home(job.stores[0])
    folder = job.out or default_folder(question, home, results.meta["point"], results.meta["probe"])
    emit(results, question, folder, job, picture, complete, {"stores": stores})
