"""Only regular files of a bounded size are read: pipes, devices, links to them and files without end are refused."""

import os
from pathlib import Path

import pytest

from probekit.errors import StorageError
from probekit.files.durable import open_plain, write_first
from probekit.files.plain_files import open_regular, parse_json, read_bytes

LIMIT = 100


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_a_file_within_the_limit_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * LIMIT)
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_bytes(tmp_path / "file", LIMIT) == read_bytes(tmp_path / "link", LIMIT) == b"x" * LIMIT


def test_a_file_beyond_the_limit_is_not(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="1,099,511,627,776 bytes, more than the 100 that are read"):
        read_bytes(tmp_path / "sparse", LIMIT)


def test_what_is_no_regular_file_is_named(tmp_path: Path, pipe: Path) -> None:
    for path, words in [(pipe, "a pipe"), (Path("/dev/zero"), "a device"), (tmp_path, "a folder")]:
        link = tmp_path / "link"
        link.symlink_to(path)
        for one in (path, link):
            with pytest.raises(OSError, match=f"{words}, not a regular file"), open_regular(one):
                pass
        link.unlink()
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "nothing", LIMIT)


def test_a_store_refuses_links_as_well(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(StorageError, match="a link, not the file itself"), open_plain(tmp_path / "link"):
        pass


def test_the_first_writer_does_not_take_a_link_that_leads_nowhere_for_a_file(tmp_path: Path) -> None:
    (tmp_path / "taken").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StorageError, match="is a link, and a file must be written there; move it away"):
        write_first(tmp_path / "taken", b"x")
    (tmp_path / "taken").unlink()
    assert write_first(tmp_path / "taken", b"x")
    assert not write_first(tmp_path / "taken", b"y")


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5_000, "{", '{"a": ' * 100_000])
def test_json_that_python_cannot_read_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"nested|digits|Expecting"):
        parse_json(text)
