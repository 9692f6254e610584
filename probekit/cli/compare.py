"""`probekit compare`: curves of several runs on one axis, and their differences on the same test rows."""

from dataclasses import dataclass
from pathlib import Path

from probekit.cli import console
from probekit.cli.derive import command
from probekit.cli.fields import Output, argument
from probekit.cli.results import check_question, emit
from probekit.cli.stores import check_out
from probekit.errors import UsageError
from probekit.options import CompareOptions
from probekit.options.option import option
from probekit.options.picture import PictureOptions
from probekit.options.question import Question, asked_by, default_folder


@dataclass(frozen=True, kw_only=True)
class CompareJob(Output):
    """The runs, and the folder for the comparison."""

    runs: list[str] = argument(
        "Folders of results, here or at hf://OWNER/NAME, or stores with results; "
        "RESULTS:PLACE takes a place other than the selected one.",
        metavar="RUN RUN...",
    )
    out: Path | None = option(None, "Where the comparison goes.  [default: runs/compare-...]", metavar="DIR")


@command("runs axis by pairs out title no_title width format seed")
def compare(job: CompareJob, options: CompareOptions, picture: PictureOptions) -> None:
    """Put runs side by side: models, seeds, points, checkpoints.

    Prints one table: each run's selected layer, its test score, and the difference to the first run on the same test
    rows, with intervals. Runs that differ in their seed alone are averaged. A folder of checkpoints (extract
    --revision step1000,step2000) counts as one run for each step. Writes comparison.png and .svg, comparison.json and
    three tables.

    \b
    Examples:
        probekit compare runs/gpt2-sst2 runs/pythia-sst2 --axis depth
        probekit compare runs/STORE/results/label-resid_pre-logistic runs/STORE/results/label-attn_out-logistic
        probekit compare runs/STORE:resid_pre.3 runs/STORE:resid_pre.9
        probekit compare runs/pythia-steps --by step
    """
    check_out(job.out)
    if job.runs is None or not job.runs:
        raise UsageError("compare needs two runs or more; name their folders")
    rest = [[str(Path(run).resolve()) for run in job.runs], asked_by(options)]
    question = Question("compare", "comparison", asked_by(options, runs=job.runs), rest)
    check_question(job.out, question)
    complete = "the runs are complete"
    with console.interrupt_says(f"{complete}, no comparison was written; run the same command again"):
        from probekit.side_by_side import compare as put_side_by_side

        found = put_side_by_side(job.runs, **vars(options))
    emit(found, question, job.out or default_folder(question, Path("runs")), job, picture, complete)
