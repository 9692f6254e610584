"""Export what is on disk: results and the place in them by name, and the texts of a store."""

from pathlib import Path
from typing import Any

from probekit.activations import load_activations
from probekit.errors import UsageError
from probekit.evaluation import ProbeCurves
from probekit.export.export import export_results
from probekit.files.remote.path import AnyPath
from probekit.options import ExportOptions
from probekit.options.export import TABLES
from probekit.options.option import keywords
from probekit.scoring.find import find_results, split_name
from probekit.scoring.write import check_table_file, write_columns
from probekit.tasks.base import examples_table


@keywords(ExportOptions)
def export_saved(name: str, options: ExportOptions) -> dict[str, Any]:
    """Write one probe, or a table, of saved results; their folder, the probe's place, the kind and the path, JSON-able.

    Args:
        name: RESULTS[:PLACE], without a place the best one; of several curves LABEL/POINT.LAYER. A table is of all
            curves and takes no place.
        options: as keyword arguments.

    Raises:
        As `export_results` and `find_results`.
    """
    folder, place = split_name(name)
    if options.to in TABLES and (folder / "curves.json").is_file():
        if place is not None:
            raise UsageError(f"{options.to} is a table of all curves; leave the place {place!a:.60} out")
        path = export_results(list(ProbeCurves.load(folder).values()), None, **vars(options))
    else:
        results, place = find_results(folder, place)
        path = export_results(results, place, **vars(options))
        place = None if options.to in TABLES else place or results.best.place
    return {"results": str(folder), "place": place, "to": options.to, "path": str(path)}


def export_texts(store: str | AnyPath, out: Path) -> dict[str, Any]:
    """Write the examples of a store as .csv, .jsonl or .parquet; the number of texts and the columns, JSON-able.

    Raises:
        UsageError: another ending.
        StorageError: the store is damaged; the disk refused.
    """
    check_table_file(out, "texts")
    table = examples_table(load_activations(store).task)
    write_columns(out, [table], "texts")
    return {"store": str(store), "path": str(out), "texts": len(table["id"]), "columns": [*table]}
