"""Whatever is wrong in a folder of results, each reader gives what the folder says, or one line of error.

Folders of every kind are damaged in one file each (`damage.py`) and given to the readers (`results_readers.py`);
PROBEKIT_FAULTS=nightly has all of the damages, and every reader for each.
"""

import json
import os
import re
import shutil
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damage import correct_hashes, damage
from results_folders import make_folders
from results_readers import SHOWN, class_of, readers_of

import probekit as pk
from probekit.errors import ProbekitError
from probekit.evaluation import ProbeResults
from probekit.evaluation.results.row_scores import ROWS_FILE
from probekit.results.kinds import KINDS, kind_in
from probekit.results.table import COLUMNS

NIGHTLY = os.environ.get("PROBEKIT_FAULTS") == "nightly"
ROUNDS = 2000 if NIGHTLY else 120
READERS = 99 if NIGHTLY else 3  # that read each damaged folder
LONGEST = 1500  # characters of a message
NO_NUMBER = re.compile(r"\b(nan|NaN|inf|Infinity)\b")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folders, and the model that they are of."""
    home = tmp_path_factory.mktemp("results")
    return make_folders(home), pk.load_model(str(home / "model"))


def test_every_reader_of_a_damaged_folder_answers_or_says_what_is_wrong(made: tuple[Path, Any]) -> None:
    home, model = made
    folders = sorted(path for path in home.iterdir() if path.is_dir())
    readers = {folder: readers_of(folder, model) for folder in folders}
    broken, told = [], 0
    for number in range(ROUNDS):
        rng = np.random.default_rng([0, number])
        good = folders[int(rng.integers(len(folders)))]
        bad = home.parent / "damaged" / good.name
        shutil.rmtree(bad.parent, ignore_errors=True)
        shutil.copytree(good, bad)
        what = damage(bad, rng)
        for name in rng.permutation(list(readers[good]))[:READERS]:
            flaw = _flaw(readers[good][name], bad, name in SHOWN)
            told += flaw is None
            broken += [f"{number}: {good.name}, {what}; {name}: {flaw}"] if flaw else []
    assert not broken, f"{len(broken)} readers broke:\n" + "\n".join(broken[:20])
    assert told > ROUNDS, "most damages are told"


def test_every_kind_has_the_same_columns_and_a_table_on_disk(made: tuple[Path, Any]) -> None:
    """The table in the file, read by another program, is that of the results, and no number is said twice."""
    folders = [path for path in sorted(made[0].iterdir()) if path.is_dir() and kind_in(path) is not None]
    assert {kind_in(folder) for folder in folders} == {*KINDS}
    for folder in folders:
        table = class_of(folder).load(folder).to_frame()
        assert list(table.columns) == list(COLUMNS)
        assert table.dtypes.astype(str).to_dict() == COLUMNS
        written = pd.read_csv(folder / "results.csv")
        assert list(written.columns) == list(COLUMNS)
        for name in ("value", "low", "high", "p_value", "p_corrected", "n", "layer"):
            there = table[name].to_numpy(float, na_value=np.nan)
            np.testing.assert_allclose(written[name].to_numpy(float), there, rtol=1e-12, atol=1e-300)
        assert table["kind"].notna().all()
        assert table["metric"].notna().all()
        assert not table[table["kind"] != "placebo"].duplicated().any(), folder.name  # two placebos may do the same
        within = table.dropna(subset=["low", "value"])
        assert ((within["low"] <= within["value"]) & (within["value"] <= within["high"])).all(), folder.name


def test_a_store_with_results_of_every_kind_is_one_report(made: tuple[Path, Any], tmp_path: Path) -> None:
    home = made[0]
    pk.write_report([home.parent], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert [
        path.name for path in home.iterdir() if path.name not in ("compared", "swept") and path.name not in page
    ] == []


def _flaw(read: Any, folder: Path, is_shown: bool) -> str | None:
    """What is wrong with the outcome of a reader: "" for an answer, None for a line of error."""
    try:
        with warnings.catch_warnings(action="error", category=RuntimeWarning):
            shown = read(folder)
    except ProbekitError as error:
        is_line = "\n" not in str(error) and len(str(error)) <= LONGEST
        return None if is_line else f"a message of {len(str(error)):,} characters: {error!s:.200}"
    except Exception as error:
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if "/probekit/" in frame.filename]
        at = f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else "the test"
        return f"{type(error).__name__} at {at}: {error!s:.200}"
    found = NO_NUMBER.search(shown) if is_shown else None
    return "" if found is None else f"shows {shown[max(0, found.start() - 60) : found.end()]!r}"


def test_more_rows_than_a_file_can_hold_take_no_memory(made: tuple[Path, Any], tmp_path: Path) -> None:
    """A Parquet file says how many rows it has, and a byte of it can stand for millions of equal ones."""
    folder = shutil.copytree(made[0] / "full", tmp_path / "full")
    path = folder / ROWS_FILE
    before, rows = path.read_bytes(), 4_000_000
    names = pq.read_schema(path).names
    column = pa.array(np.zeros(rows, dtype=np.int8))
    pq.write_table(pa.table(dict.fromkeys(names, column)), path, compression="zstd")
    correct_hashes(folder, path, before)
    taken = pa.default_memory_pool().max_memory()
    del column
    with pytest.raises(ProbekitError, match=r"predictions\.parquet' is damaged at .*: expected at most .* values"):
        ProbeResults.load(folder)
    assert pa.default_memory_pool().max_memory() == taken


def test_what_is_wrong_is_named_with_its_place_in_the_file(made: tuple[Path, Any], tmp_path: Path) -> None:
    """Which file, which entry, what was expected, what came, and what to do."""
    folder = shutil.copytree(made[0] / "full", tmp_path / "full")
    path = folder / "results.json"
    body = json.loads(path.read_text())
    body["layers"][1]["metrics"]["test"]["accuracy"] = "high"
    path.write_text(json.dumps(body))
    with pytest.raises(ProbekitError) as error:
        ProbeResults.load(folder)
    where = f"{str(path)!r} is damaged at layers[1].metrics.test.accuracy"
    assert str(error.value) == f"{where}: expected a number, got 'high'; train again"
    assert error.value.exit_code == 3
