"""A file is complete or absent, and the first writer wins; the form of JSON values."""

import errno
import os
from typing import Any, NotRequired, TypedDict

import pytest

from probekit.errors import StorageError
from probekit.files.durable import write_as, write_first
from probekit.files.records import has_form


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


class Form(TypedDict):
    rows: int
    shards: NotRequired[int | None]


@pytest.mark.parametrize(
    ("hint", "values", "others"),
    [
        (int, [1, -(2**63) + 1], [True, 1.0, 10**30, None]),
        (str | int, ["a", 1], [None, 1.5]),
        (list[int], [[], [1, 2]], [[1, True], "ab", [1, 10**30], [-(10**30)]]),
        (list[list[int]], [[[], [1, 2]]], [[[1], [2, True]], [[1], 2]]),
        (list[str | int], [[1, "a"]], [[1, None]]),
        (list[tuple[str, int | None]], [[["q", 0], ["embed", None]]], [["q"], [["q", 0, 1]], [["q"]]]),
        (dict[str, list[int]], [{"a": [1], "b": []}], [{"a": 1}, []]),
        (Form, [{"rows": 3, "more": 1}, {"rows": 3, "shards": None}], [{}, {"rows": 3, "shards": "x"}, []]),
    ],
)
def test_values_out_of_json_have_the_form_of_their_type(hint: Any, values: list[Any], others: list[Any]) -> None:
    assert [has_form(hint, one) for one in values + others] == [True] * len(values) + [False] * len(others)
