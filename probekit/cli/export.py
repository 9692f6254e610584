"""`probekit export`: a probe or a table of results in a format of another program."""

from dataclasses import dataclass
from pathlib import Path

from probekit.cli import console
from probekit.cli.derive import command
from probekit.cli.fields import Output, argument
from probekit.cli.stores import check_out
from probekit.errors import UsageError
from probekit.options import ExportOptions
from probekit.options.export import TABLES


@dataclass(frozen=True, kw_only=True)
class ExportJob(Output):
    """The results, and the place of the probe."""

    results: str = argument(
        "A folder of results, and a place in it; without one the best. Of several curves LABEL/POINT.LAYER.",
        metavar="RESULTS[:PLACE]",
    )


@command("results to out")
def export(job: ExportJob, options: ExportOptions) -> None:
    """Write a probe or a table of results for other programs.

    numpy, safetensors, sklearn-json and gguf-control-vector hold the weights of one place, with what was trained on
    what. latex, csv and parquet hold the complete curve, or all curves of the folder. card is a folder with a README.md
    and the probe, ready to be published.

    \b
    Examples:
        probekit export runs/STORE/results/label-resid_pre-logistic --to numpy
        probekit export RESULTS:resid_pre.5 --to sklearn-json --out probe.json
        probekit export RESULTS --to latex --out table.tex
        probekit export RESULTS --to card --out published
    """
    check_out(options.out and Path(options.out).parent)
    from probekit.evaluation import ProbeCurves
    from probekit.export.export import export_results
    from probekit.scoring.find import find_results, split_name

    folder, place = split_name(job.results)
    if options.to in TABLES and (folder / "curves.json").is_file():
        if place is not None:
            raise UsageError(f"{options.to} is a table of all curves; leave the place {place!a:.60} out")
        path = ProbeCurves.load(folder).export(**vars(options))
        place = None
    else:
        results, place = find_results(folder, place)
        path = export_results(results, place, **vars(options))
        place = None if options.to in TABLES else place or results.best.place
    if job.json:
        console.result_json({"results": str(folder), "place": place, "to": options.to, "path": str(path)})
        return
    if not job.quiet and place is not None:
        console.note(f"the probe of {place}")
    console.result(path)
