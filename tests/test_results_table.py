"""The one table of results, as bytes that other programs read."""

import io

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probekit.results.table import COLUMNS, csv_bytes, parquet_bytes, results_table
from probekit.text import from_spreadsheet_cell

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


CELLS = {
    "object": st.none() | st.text(alphabet=st.characters(exclude_characters="\r\0", max_codepoint=0x2FF)),
    "Int64": st.none() | st.integers(-(10**9), 10**9),
    "float64": st.none() | st.floats(width=32),
    "boolean": st.none() | st.booleans() | st.booleans().map(np.bool_),
}


@given(rows=st.lists(st.fixed_dictionaries({}, optional={name: CELLS[kind] for name, kind in COLUMNS.items()})))
def test_the_file_has_the_cells_of_the_frame(rows):
    table, csv = results_table(rows), pd.read_csv(io.BytesIO(csv_bytes(rows)), dtype=str, keep_default_na=False)
    assert len(csv) == len(table)
    for name, kind in COLUMNS.items():
        for text, cell in zip(csv[name], table[name], strict=True):
            if cell is None or cell is pd.NA or cell != cell:
                assert text == ""
            elif kind == "object":
                assert from_spreadsheet_cell(text) == cell
            elif kind == "boolean":
                assert text == str(cell)
            else:
                assert float(text) == cell


@pytest.mark.parametrize(("column", "wrong"), [("layer", 3.7), ("selected", "False"), ("selected", 2), ("value", "x")])
def test_a_cell_of_another_kind_is_refused(column, wrong):
    with pytest.raises((TypeError, ValueError)):
        csv_bytes([{column: wrong}])
    with pytest.raises((TypeError, ValueError)):
        results_table([{column: wrong}])


def test_a_row_has_no_other_columns():
    with pytest.raises(AssertionError, match="valeu"):
        results_table([{"kind": "probe", "valeu": 1.0}])
    assert len(results_table([])) == 0
