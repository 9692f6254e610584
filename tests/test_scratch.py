"""Lists and arrays in files without a name: equal to those in memory, and nothing is left of them."""

import copy
import errno
import os
import pickle
import tempfile
from operator import add
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probekit.errors import StorageError
from probekit.files import scratch
from probekit.files.scratch import ArrayWriter, DiskList, is_mapped, on_disk, pieces, scratch_list, settled, take

TEXTS = st.text(st.characters(codec=None), max_size=9)  # lone surrogates and NUL among them
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=5,
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "IN_MEMORY", 4)
    monkeypatch.setattr(scratch, "PIECE", 3)
    monkeypatch.setattr(scratch, "LEAST_BYTES", 64)


@settings(max_examples=40)
@given(st.lists(TEXTS, max_size=20) | st.lists(JSON, max_size=20), st.slices(20), st.integers(-25, 25))
def test_a_list_on_disk_is_the_list(values: list[Any], some: slice, row: int) -> None:
    made = DiskList(values)
    assert [*made] == made[:] == values
    assert [type(one) for one in made] == [type(one) for one in values]
    assert len(made) == len(values)
    assert made[some] == values[some]
    assert made == values
    assert made == DiskList(values)
    assert made != [*values, 1]
    assert add(made, [1]) == add(made, DiskList([1])) == [*values, 1]
    assert add([1], made) == [1, *values]
    if -len(values) <= row < len(values):
        assert made[row] == made[np.int64(row)] == values[row]
    else:
        with pytest.raises(IndexError):
            made[row]
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == values
    rows = [*range(len(values))][::-2]
    assert [*take(made, rows)] == take(values, rows) == values[::-2]


def test_lists_share_a_file_and_grow_in_turn() -> None:
    file = scratch.ScratchFile()
    one, other = DiskList(file=file), DiskList(file=file)
    for k in range(50):
        one.append(f"a{k}")
        other.append({"b": k})
        assert one[k] == f"a{k}"
    assert one == [f"a{k}" for k in range(50)]
    assert other == [{"b": k} for k in range(50)]
    assert one.are_texts
    assert not other.are_texts


def test_what_json_cannot_hold_stays_in_memory() -> None:
    values = ["a", *map(str, range(9)), b"bytes", *map(str, range(9))]
    made = DiskList(values)
    assert made == values
    assert not made.is_on_disk


def test_only_long_lists_are_on_disk() -> None:
    assert isinstance(scratch_list("abc"), list)
    assert isinstance(settled(DiskList("ab")), list)
    assert isinstance(scratch_list("abcdefg"), DiskList)


@pytest.mark.parametrize("dtype", ["<i8", "<f8", "<i4", "<U10", bool])
@pytest.mark.parametrize("shape", [(0,), (3,), (200,), (50, 2)])
def test_an_array_on_disk_is_the_array(dtype: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).integers(0, 9, shape).astype(dtype)
    made, given = ArrayWriter(), on_disk(x)
    for rows in pieces(len(x), 7):
        made.add(x[rows])
    for one in (given, made.array()):
        assert one.dtype == x.dtype or not len(x)  # without a piece nothing says the type
        assert np.array_equal(one, x)
        assert is_mapped(one) == (x.nbytes >= scratch.LEAST_BYTES)
    if is_mapped(given):
        before = x.copy()
        given[0] = x[1]
        assert np.array_equal(x, before)
        assert on_disk(given[1:]).base is not None


def test_nothing_is_left_in_the_folder_even_while_it_is_used(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    values, x = DiskList(map(str, range(99))), on_disk(np.arange(99))
    assert values.is_on_disk
    assert is_mapped(x)
    assert [*tmp_path.iterdir()] == []  # so that nothing is left after kill -9 either
    assert values[98] == "98"
    assert x[98] == 98


def test_a_full_disk_is_one_line_that_names_tmpdir(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    for make in (lambda: DiskList(map(str, range(9))), lambda: on_disk(np.arange(99))):
        with pytest.raises(StorageError, match="No space left on device; set TMPDIR") as caught:
            make()
        assert "\n" not in str(caught.value)
