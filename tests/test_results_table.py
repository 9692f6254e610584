"""The one table of results, as bytes that other programs read."""

import io

import numpy as np
import pandas as pd
import pytest

from probekit.results.table import COLUMNS, csv_bytes, parquet_bytes, results_table

HOSTILE = ["\r", "a\r\nb", "=cmd()", "-1", "'x", '"', ",", "\ud800", "é\x1b[31m"]


def test_cells_of_any_text_are_read_back():
    rows = [{"kind": "probe", "token": text, "value": i / 3} for i, text in enumerate(HOSTILE)]
    table = results_table(rows)
    shown = [text.encode("utf-8", "backslashreplace").decode() for text in HOSTILE]
    csv = pd.read_csv(io.BytesIO(csv_bytes(rows)), keep_default_na=False)
    assert csv["token"].tolist() == ["'" + text if text[0] in "=\r'" else text for text in shown]
    np.testing.assert_allclose(csv["value"], table["value"])
    assert pd.read_parquet(io.BytesIO(parquet_bytes(table)))["token"].tolist() == shown
    assert list(csv) == list(COLUMNS)


def test_a_row_has_no_other_columns():
    with pytest.raises(AssertionError, match="valeu"):
        results_table([{"kind": "probe", "valeu": 1.0}])
    assert len(results_table([])) == 0
