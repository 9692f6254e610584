"""The tidy table of one or several curves as CSV or Parquet."""

import io
from collections.abc import Sequence
from typing import Any

from probekit.evaluation.results.data import ProbeData
from probekit.evaluation.results.frames import curves_frame
from probekit.text import spreadsheet_cell


def export_frame(curves: Sequence[ProbeData]) -> Any:
    """`model` and `task`, then the columns of `ProbeCurves.to_frame`."""
    frame = curves_frame(curves)
    for i, name in enumerate(("model", "task")):
        frame.insert(i, name, str(curves[0].meta[name]))
    return frame


def csv_bytes(curves: Sequence[ProbeData]) -> bytes:
    """The table as CSV in UTF-8; a cell that a spreadsheet would take for a formula has an apostrophe before it."""
    frame = export_frame(curves)
    for name in frame.columns:
        if frame[name].dtype.kind not in "biuf" and not hasattr(frame[name].dtype, "numpy_dtype"):
            frame[name] = [spreadsheet_cell(cell) if isinstance(cell, str) else cell for cell in frame[name]]
    return frame.to_csv(index=False, lineterminator="\n").encode("utf-8", "backslashreplace")


def parquet_bytes(curves: Sequence[ProbeData]) -> bytes:
    """The table as Parquet."""
    out = io.BytesIO()
    export_frame(curves).to_parquet(out, index=False)
    return out.getvalue()
