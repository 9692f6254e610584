"""`probekit report`: results as one HTML file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from probekit.cli import console
from probekit.cli.derive import command
from probekit.cli.fields import Output, argument
from probekit.files.remote.path import as_path, local_path
from probekit.machine.program import loading
from probekit.machine.progress import parts_line
from probekit.manifest import newest_with_results
from probekit.options import ReportOptions
from probekit.options.option import option
from probekit.results.kinds import KINDS

DEFAULT = "report.html"


@dataclass(frozen=True, kw_only=True)
class ReportJob(Output):
    """The runs, and the file."""

    runs: list[str] | None = argument(
        "Folders of results, here or at hf://OWNER/NAME, or stores that hold them.  "
        "[default: the newest store under ./runs that holds some]",
        metavar="[RUN]...",
        default=None,
    )
    out: Path | None = option(
        None,
        "The file.  [default: report.html in RUN; in the working folder for several, or one of the Hub]",
        metavar="FILE",
    )


@command("runs out")
def report(job: ReportJob, options: ReportOptions) -> None:
    """Write results as one HTML file that opens anywhere.

    A run is a folder that train-probe, transfer or causal wrote, or a store, whose results are all shown. The page
    holds the curve with its values, tables, confusion matrix, calibration, the audit with the texts found, causal
    results, and where the numbers come from. It loads nothing, so it can be sent to others and opened offline.

    \b
    Examples:
        probekit report
        probekit report runs/STORE/results/label-resid_pre-logistic --out probe.html
        probekit report runs/gpt2-sst2 runs/pythia-sst2 --title "SST-2 in two models"
    """
    runs = job.runs or [
        str(newest_with_results(Path("runs"), [each.file for kind, each in KINDS.items() if kind != "comparison"]))
    ]
    if job.runs is None and not job.quiet:
        console.note(f"results: {runs[0]} (the newest store that holds some)")
    home = local_path(as_path(runs[0])) if len(runs) == 1 else None
    out = job.out or (home or Path()) / DEFAULT
    make_report(runs, out, options, job)


def make_report(
    runs: Sequence[str | Path], out: Path, options: ReportOptions, output: Output, show: bool = True
) -> None:
    """Write the report and, unless `show` is False, print its path.

    Raises:
        DataError: no results there.
        StorageError: `out` may not be written.
    """
    with parts_line(console.bars(output.quiet)) as line:
        line.part("loading libraries")
        with loading():
            from probekit.report.build import write_report

        path = write_report(runs, out, **{**vars(options), "on_progress": line.set, "on_part": line.part})
    if not show:
        return
    size = path.stat().st_size
    body = {"report": str(path), "bytes": size, "runs": [str(run) for run in runs]}
    text = f"Report: {path} ({size / 1000:,.0f} kB; open it in a browser)"
    console.answer(output, lambda: body, text, brief=path)
