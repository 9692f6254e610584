"""`probekit export`: a probe or a table of results in a format of another program."""

from dataclasses import dataclass
from pathlib import Path

from probekit.cli import console
from probekit.cli.derive import command
from probekit.cli.fields import Output, argument
from probekit.cli.stores import check_out
from probekit.files.remote.path import as_path
from probekit.manifest import check_is_store
from probekit.options import ExportOptions
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
        check_is_store(as_path(job.results))
        from probekit.export.saved import export_texts

        body = export_texts(job.results, Path(options.out or "texts.csv"))
        columns = listed(body["columns"])
        note = printable(f"{counted(body['texts'], 'row')} with {columns}; join labels by id: probekit label")
    else:
        from probekit.export.saved import export_saved

        body = export_saved(job.results, **vars(options))
        note = "" if body["place"] is None else f"the probe of {body['place']}"
    console.answer(job, lambda: body, body["path"], note)
