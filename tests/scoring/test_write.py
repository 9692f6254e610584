"""Files of scores: the same rows in every format, complete or absent, harmless in a spreadsheet."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probekit.errors import DataError, StorageError, UsageError
from probekit.scoring.results import Scores
from probekit.scoring.rows import ScoreRows
from probekit.scoring.write import check_table_file, write_scores
from probekit.text import from_spreadsheet_cell, spreadsheet_cell

HOSTILE = [
    "=1+1",
    "+cmd",
    "-2",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "'quoted",
    "a,b",
    'say "x"',
    "two\nlines",
    "\x1b[31m",
    "\u202e",
    "",
]
META = {"classes": ["no", "=yes"], "place": "p.0", "notes": ["a note"], "label": "y", "model": "m", "probe": "ridge"}
META |= {"read": "last token", "task": "t"}


def part(start: int, n: int) -> Scores:
    rng = np.random.default_rng(start)
    scores = rng.normal(size=n)
    return Scores(
        ids=np.array([HOSTILE[(start + i) % len(HOSTILE)] for i in range(n)], dtype=object),
        texts=np.array([f"{HOSTILE[-1 - (start + i) % len(HOSTILE)]}{i}" for i in range(n)], dtype=object),
        scores=scores,
        predicted=np.array(META["classes"], dtype=object)[(scores > 0).astype(int)],
        probabilities=np.stack([1 - scores, scores], axis=1),
        flagged=scores > 1,
        meta=META,
    )


def parts() -> list[Scores]:
    return [part(0, 7), part(7, 1), part(8, 5)]


@given(st.text(st.sampled_from("=+-@\t\r'a1 \x00\u202e\n"), max_size=6))
def test_a_cell_starts_no_formula_and_is_read_back(text: str) -> None:
    cell = spreadsheet_cell(text)
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
    assert from_spreadsheet_cell(cell) == text


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_every_format_holds_the_same_rows(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"scores.{ending}"
    write_scores(path, iter(parts()))
    names = ["id", "text", "predicted", "probability", "score", "flagged"]
    if ending == "csv":
        with path.open(newline="") as file:
            cells = list(csv.DictReader(file))
        assert not [cell for row in cells for name in names[:3] if (cell := row[name]).startswith(("=", "+", "-", "@"))]
        found = pd.DataFrame(cells).assign(
            id=lambda x: x["id"].map(from_spreadsheet_cell),
            text=lambda x: x["text"].map(from_spreadsheet_cell),
            predicted=lambda x: x["predicted"].map(from_spreadsheet_cell),
            probability=lambda x: x["probability"].map(float),
            score=lambda x: x["score"].map(float),
            flagged=lambda x: x["flagged"] == "true",
        )
    elif ending == "jsonl":
        found = pd.DataFrame([json.loads(line) for line in path.read_text(encoding="ascii").splitlines()])
    else:
        found = pq.read_table(path).to_pandas()
    expected = pd.concat([each.to_frame() for each in parts()], ignore_index=True)
    assert list(found) == list(expected) == names
    for name in names:
        assert found[name].tolist() == expected[name].tolist()


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), DataError("bad text")])
def test_a_file_is_complete_or_absent(tmp_path: Path, ending: str, error: BaseException) -> None:
    def stopped() -> Iterator[ScoreRows]:
        yield from parts()
        raise error

    path = tmp_path / f"scores.{ending}"
    with pytest.raises(type(error)):
        write_scores(path, stopped())
    assert not list(tmp_path.iterdir())
    path.write_text("before")
    with pytest.raises(type(error)):
        write_scores(path, stopped())
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [(path.name, "before")]


def test_a_place_for_the_file_is_checked_first(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a file such as scores\.csv, got .*known are: \.csv, \.jsonl, \.parquet"):
        check_table_file(tmp_path / "scores.txt")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(StorageError, match="is a folder; name a file"):
        check_table_file(tmp_path / "folder.csv")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="may not be written"):
        check_table_file(tmp_path / "file" / "scores.csv")


def test_tables_show_hostile_names_escaped() -> None:
    rows = part(0, len(HOSTILE))
    shown = rows.summary()
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "\\x1b[31m" in shown
    page = Scores(
        **{**vars(rows), "ids": np.array(["<script>alert(1)</script>"] * len(rows), dtype=object)}
    )._repr_html_()
    assert "<script" not in page
    assert repr(rows) == "Scores(13 texts at p.0)"
