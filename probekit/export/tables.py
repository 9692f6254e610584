"""The tidy table of one or several curves as CSV or Parquet."""

import io
from collections.abc import Sequence
from typing import Any

from probekit.evaluation.results.data import ProbeData
from probekit.evaluation.results.frames import probe_frame
from probekit.text import spreadsheet_cell


def export_frame(curves: Sequence[ProbeData]) -> Any:
    """Columns model, task and label, then those of `ProbeResults.to_frame`; rows that curves share occur once."""
    import pandas as pd

    frames = []
    for curve in curves:
        frame = probe_frame(curve)
        for i, name in enumerate(("model", "task", "label")):
            # a lone surrogate, which JSON can hold and UTF-8 cannot, becomes its escape
            frame.insert(i, name, str(curve.meta[name]).encode("utf-8", "backslashreplace").decode())
        frames.append(frame)
    return pd.concat(frames, ignore_index=True).drop_duplicates(ignore_index=True)


def csv_bytes(curves: Sequence[ProbeData]) -> bytes:
    """The table as CSV in UTF-8; a cell that a spreadsheet would take for a formula has an apostrophe before it."""
    frame = export_frame(curves)
    for name in frame.columns:
        if frame[name].dtype.kind not in "biuf" and not hasattr(frame[name].dtype, "numpy_dtype"):
            frame[name] = [spreadsheet_cell(cell) if isinstance(cell, str) else cell for cell in frame[name]]
    return frame.to_csv(index=False, lineterminator="\n").encode()


def parquet_bytes(curves: Sequence[ProbeData]) -> bytes:
    """The table as Parquet."""
    out = io.BytesIO()
    export_frame(curves).to_parquet(out, index=False)
    return out.getvalue()
