"""A file is complete or absent, and the first writer wins; the form of JSON values."""

import errno
import os
from typing import Any

import pytest

from probekit.errors import StorageError
from probekit.files.durable import matches, write_as, write_first


def test_the_first_writer_wins_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "a.json"
    assert [write_first(path, data) for data in (b"one", b"two")] == [True, False]
    assert path.read_bytes() == b"one"
    write_as(path, b"three")
    assert path.read_bytes() == b"three"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("call", ["fsync", "link", "replace"])
def test_a_refusal_of_the_disk_is_told_and_leaves_nothing(tmp_path, monkeypatch, call):
    def refuse(*_):
        raise OSError(errno.EIO, "disk")

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(StorageError, match="disk"):
        (write_as if call == "replace" else write_first)(tmp_path / "a.json", b"one")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("write", [write_as, write_first])
def test_a_file_and_its_folder_are_on_disk_in_order(tmp_path, monkeypatch, write):
    """The content before the name, and the name before the caller goes on."""
    real, synced = os.fsync, []

    def fsync(fd):
        synced.append("folder" if os.path.samestat(os.fstat(fd), tmp_path.stat()) else os.fstat(fd).st_size)
        assert (tmp_path / "a").exists() == (synced[-1] == "folder")
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    write(tmp_path / "a", b"content")
    assert synced == [7, "folder"]


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (1, int),
        ("a", str | int),
        ([1, "a"], [str | int]),
        ([], [int]),
        ([[], [1, 2]], [[int]]),
        ([["q", 0], ["embed", None]], [(str, int | None)]),
        ({"rows": 3, "more": 1}, {"rows": int}),
        ({"a": [1], "b": []}, {str: [int]}),
        ({"rows": 3}, {"rows": int, "shards?": int}),
        ({"rows": 3, "shards": None}, {"rows": int, "shards?": int}),
    ],
)
def test_values_of_a_form_match_it(value: Any, schema: Any) -> None:
    assert matches(value, schema)


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (True, int),
        (1.0, int),
        (None, str),
        ([1, True], [int]),
        ([[1], [2, True]], [[int]]),
        ([[1], 2], [[int]]),
        ("ab", [str]),
        (["q"], [(str, int)]),
        ([["q", 0, 1]], [(str, int)]),
        ({}, {"rows": int}),
        ({"rows": 3, "shards": "x"}, {"rows": int, "shards?": int}),
        ({"a": 1}, {str: [int]}),
        ([], {"rows": int}),
    ],
)
def test_other_values_do_not(value: Any, schema: Any) -> None:
    assert not matches(value, schema)
