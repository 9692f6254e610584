"""Parquet: the cells of pyarrow's own reader; files that unfold to gigabytes are refused in little memory."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from probekit.errors import DataError
from probekit.tasks import load_task
from probekit.tasks.tables.parquet import read_parquet

N = 7000


def repeated(value, n: int) -> pa.DictionaryArray:
    """One value n times, which takes a few bytes in a file."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, dtype=np.int32)), pa.array([value]))


def write(path: Path, **columns) -> Path:
    pq.write_table(pa.table(columns), path, compression="zstd", store_schema=False)
    return path


@pytest.mark.parametrize("compression", ["none", "zstd", "snappy"])
@pytest.mark.parametrize("use_dictionary", [True, False])
def test_cells_are_those_of_pyarrow(tmp_path, compression, use_dictionary):
    rng = np.random.default_rng(0)
    words = [None if k == 0 else f"wörd {k}" for k in rng.integers(0, 500, N).tolist()]
    table = pa.table(
        {
            "text": words,
            "large": pa.array(words, pa.large_string()),
            "dictionary": pa.array(words).dictionary_encode(),
            "bytes": [None if word is None else word.encode() for word in words],
            "int": rng.integers(-9, 9, N),
            "float": rng.normal(size=N),
            "bool": rng.integers(0, 2, N).astype(bool),
            "spans": [[{"start": i, "end": i + 1, "label": "xy"[i % 2]}] * (i % 3) for i in range(N)],
            "list": [[word] for word in words],
            "a.b": words,
        }
    )
    path = tmp_path / "data.parquet"
    pq.write_table(table, path, compression=compression, use_dictionary=use_dictionary, row_group_size=3000)
    read = read_parquet(path, path.read_bytes(), "")
    assert read.columns == table.column_names
    for name in table.column_names:
        assert read.column(name) == table.column(name).to_pylist(), name


def test_many_equal_texts_of_an_honest_file_are_one_object_a_batch(tmp_path):
    path = write(tmp_path / "data.parquet", text=repeated("x" * 1000, 4096))
    assert len({id(text) for text in read_parquet(path, path.read_bytes(), "").column("text")}) == 1


BOMBS = {
    "text": lambda: repeated("x" * 300_000, 100_000),
    "rows": lambda: repeated("x", 12_000_000),
    "nested": lambda: pa.ListArray.from_arrays(pa.array([0, 100_000]), repeated("x" * 300_000, 100_000)),
    "long list": lambda: pa.ListArray.from_arrays(pa.array([0, 12_000_000]), repeated("x", 12_000_000)),
}
CHILD = """
import resource, sys
from probekit.errors import DataError
from probekit.tasks import load_task
import pyarrow.parquet, pandas
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), used + (2 << 30)))
for path in sys.argv[1:]:
    try:
        load_task(path, label_column="label")
    except DataError as error:
        print(error)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc to measure the address space")
def test_a_small_file_that_unfolds_to_gigabytes_is_refused_in_bounded_memory(tmp_path):
    paths = []
    for kind, make in BOMBS.items():
        text = make()
        paths.append(write(tmp_path / f"{kind}.parquet", text=text, label=repeated("a", len(text))))
        assert paths[-1].stat().st_size < 200_000
    done = subprocess.run([sys.executable, "-c", CHILD, *map(str, paths)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for kind, line in zip(BOMBS, done.stdout.splitlines(), strict=True):
        assert f"{kind}.parquet has" in line
        assert "bytes that unfold to" in line
        assert line.endswith("write it again with fewer or shorter rows")


def test_a_label_column_may_be_long(tmp_path):
    """A column of two labels, a few bytes in the file, is no bomb."""
    n = 20_000
    labels = pa.DictionaryArray.from_arrays(pa.array((np.arange(n) % 2).astype(np.int32)), pa.array(["a", "b"]))
    path = write(tmp_path / "data.parquet", text=[f"text {i}" for i in range(n)], label=labels)
    assert len(load_task(path)) == n


FLIPS = """
import random, sys
from pathlib import Path
from probekit.errors import ProbekitError
from probekit.tasks import load_task
path = Path(sys.argv[1])
good = path.read_bytes()
for seed in range(150):
    drawn, data = random.Random(seed), bytearray(good)
    for _ in range(drawn.randint(1, 4)):
        data[drawn.randrange(len(data))] = drawn.choice([0, 255, drawn.randrange(256)])
    path.write_bytes(data)
    for options in ({}, {"span_column": "spans"}):
        try:
            load_task(path, **options)
        except ProbekitError:
            pass
print("done")
"""


def test_damaged_files_end_in_errors_and_never_the_process(tmp_path):
    """pyarrow itself aborts where some of the metadata is read; so this runs in a child."""
    n = 40
    spans = [[{"start": 0, "end": 4, "label": "xy"[i % 2]}] for i in range(n)]
    path = tmp_path / "data.parquet"
    pq.write_table(
        pa.table({"text": [f"some text {i}" for i in range(n)], "label": [i % 2 for i in range(n)], "spans": spans}),
        path,
    )
    done = subprocess.run([sys.executable, "-c", FLIPS, str(path)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_a_damaged_column_is_named(tmp_path):
    path = write(tmp_path / "data.parquet", text=[f"text {i}" for i in range(1000)], label=[i % 2 for i in range(1000)])
    data = bytearray(path.read_bytes())
    data[4:400] = bytes(396)
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"data\.parquet: column 'text' is damaged"):
        load_task(path)
