"""`probekit export`: a probe or a table of results in a format of another program."""

from dataclasses import dataclass
from pathlib import Path

from probekit.cli import console
from probekit.cli.derive import command
from probekit.cli.fields import Output, argument
from probekit.cli.stores import check_out
from probekit.errors import UsageError
from probekit.files.remote.path import as_path
from probekit.manifest import check_is_store
from probekit.options import ExportOptions
from probekit.options.export import TABLES
from probekit.options.option import option
from probekit.text import counted, listed, printable


@dataclass(frozen=True, kw_only=True)
class ExportJob(Output):
    """The results, and the place of the probe."""

    results: str = argument(
        "A folder of results, and a place in it; without one the best. Of several curves LABEL/POINT.LAYER.",
        metavar="RESULTS[:PLACE]",
    )
    texts: bool = option(
        False, "Of a store instead: ids, texts, what the model wrote, splits and labels, to be labelled by a judge."
    )


@command("results to out texts")
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
        probekit export runs/STORE --texts --out texts.jsonl
    """
    check_out(options.out and Path(options.out).parent)
    if job.texts:
        _texts(job, options)
        return
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
    body = {"results": str(folder), "place": place, "to": options.to, "path": str(path)}
    console.answer(job, lambda: body, path, "" if place is None else f"the probe of {place}")


def _texts(job: ExportJob, options: ExportOptions) -> None:
    """Write the examples of a store as a table, in the format of the file's ending."""
    check_is_store(as_path(job.results))
    from probekit.activations import load_activations
    from probekit.scoring.write import check_table_file, write_columns
    from probekit.tasks.base import examples_table

    path = Path(options.out or "texts.csv")
    check_table_file(path, "texts")
    table = examples_table(load_activations(job.results).task)
    write_columns(path, [table], "texts")
    n = len(table["id"])
    note = printable(f"{counted(n, 'row')} with {listed([*table])}; join labels by id: probekit label")
    body = {"store": job.results, "path": str(path), "texts": n, "columns": [*table]}
    console.answer(job, lambda: body, path, note)
