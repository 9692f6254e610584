"""Write a probe, a curve or several in a format of another program."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from probekit.errors import StorageError, UsageError
from probekit.evaluation.results.data import LayerResult, ProbeData
from probekit.evaluation.results.files import is_saved
from probekit.evaluation.results.rows import curves_rows
from probekit.export.about import fitted
from probekit.export.card import card
from probekit.export.latex import latex_curve, latex_curves
from probekit.export.weights import gguf_bytes, npz_bytes, safetensors_bytes, sklearn_bytes
from probekit.files.durable import write_as
from probekit.options import ExportOptions
from probekit.options.export import CARD, TABLES, WEIGHTS
from probekit.options.option import keywords
from probekit.results.table import csv_bytes, parquet_bytes, results_table
from probekit.scoring.probe import result_at

_LONGEST = 80  # characters of a default name
_WRITERS: dict[str, Callable[[ProbeData, LayerResult], bytes]] = {
    "numpy": npz_bytes,
    "safetensors": safetensors_bytes,
    "sklearn-json": sklearn_bytes,
    "gguf-control-vector": gguf_bytes,
}
CARD_FILE, PROBE_FILE = "README.md", "probe"


@keywords(ExportOptions)
def export_results(curves: ProbeData | Sequence[ProbeData], place: Any, options: ExportOptions) -> Path:
    """Write one probe of a curve, or a table of one or several curves; returns the path.

    Args:
        curves: one curve, or several.
        place: of the probe, such as "resid_pre.5"; None is the best one. A table is of complete curves and takes none.
        options: as keyword arguments.

    Raises:
        UsageError: an unknown kind or place, several curves where one probe is written, a probe that has no such form.
        DataError: the results hold no fitted probe of the place.
        StorageError: the disk refused.
    """
    several = [curves] if isinstance(curves, ProbeData) else list(curves)
    if options.to in TABLES:
        if place is not None:
            raise UsageError(f"{options.to} is a table of the complete curve; leave the place {place!a:.60} out")
        path = Path(options.out or _name(several[0], "curve") + TABLES[options.to])
        return _written(path, _table(several, options.to))
    if len(several) > 1:
        raise UsageError(
            f"{options.to} is of one probe, and there are {len(several)} curves; give the folder of one of them"
        )
    data = several[0]
    layer = data.best if place is None else result_at(data, place)
    name = _name(data, layer.place)
    if options.to == CARD:
        return _write_card(data, layer, Path(options.out or name))
    return _written(Path(options.out or name + WEIGHTS[options.to]), _WRITERS[options.to](data, layer))


def _table(curves: Sequence[ProbeData], kind: str) -> bytes:
    if kind == "latex":
        return (latex_curve(curves[0]) if len(curves) == 1 else latex_curves(curves)).encode()
    rows = curves_rows(curves)
    return csv_bytes(rows) if kind == "csv" else parquet_bytes(results_table(rows))


def _write_card(data: ProbeData, layer: LayerResult, folder: Path) -> Path:
    """A folder with the card and the probe; a README.md that is no card is not replaced."""
    path = folder / CARD_FILE
    if path.is_dir():
        raise StorageError(f"{str(path)!a} is a folder, and the card is a file of that name; name another (--out)")
    if folder.exists() and not folder.is_dir():
        raise StorageError(f"{str(folder)!a} is a file, and a card is a folder; name another (--out)")
    if path.exists() and "library_name: probekit" not in path.read_text(encoding="utf-8", errors="replace")[:200]:
        raise StorageError(f"{str(path)!a} is no card of a probe and stays as it is; name another folder (--out)")
    saved = layer.probe is not None and is_saved(layer.probe)
    text = card(data, layer, PROBE_FILE if saved else None)
    if saved:
        fitted(layer).save(folder / PROBE_FILE)
    return _written(path, text.encode())


def _written(path: Path, data: bytes) -> Path:
    if path.is_dir():
        raise StorageError(f"{str(path)!a} is a folder, and this export is a file; name a file (--out)")
    write_as(path, data)
    return path


def _name(data: ProbeData, what: str) -> str:
    """Label and place as the name of a file."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{data.meta['label']}-{what}").strip(".-")
    return plain[-_LONGEST:].lstrip(".-") or "probe"
