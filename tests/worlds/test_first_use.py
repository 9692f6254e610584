"""Models made on first use: whole or absent, and made once."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from probekit.errors import StorageError
from probekit.worlds import train
from probekit.worlds.train import cache_folder, make_once

TOGETHER = """
import sys, time
from pathlib import Path
from probekit.worlds.train import make_once

name, cache = sys.argv[1], Path(sys.argv[2])

def make(place):
    (place / "config.json").write_text(name)
    (cache / f"inside-{name}").touch()
    while len(list(cache.glob("inside-*"))) < 2:  # until both are
        time.sleep(0.01)
    (place / "weights").write_text(name)

print((make_once(cache / "models" / "one", make) / "weights").read_text())
"""
KILLED = """
import os, signal, sys
from pathlib import Path
from probekit.worlds.train import make_once

def make(place):
    (place / "config.json").write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)

make_once(Path(sys.argv[1]) / "one", make)
"""


def write(place: Path) -> None:
    (place / "weights").write_text("whole")


def refuse(place: Path) -> None:
    raise AssertionError("made twice")


def test_the_users_folder_is_the_nearest_that_is_named(monkeypatch, tmp_path):
    for name in ("PROBEKIT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "probekit"
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/probekit")
    monkeypatch.setenv("PROBEKIT_CACHE", "~/own")
    assert cache_folder() == tmp_path / "own"


def test_what_fails_leaves_nothing(tmp_path):
    def fail(place: Path) -> None:
        write(place)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        make_once(tmp_path / "one", fail)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_refuses_is_found_out_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file': File exists; set PROBEKIT_CACHE to another folder"):
        make_once(tmp_path / "file" / "one", refuse)

    def read_only(path: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", read_only)
        with pytest.raises(StorageError, match="one': Read-only file system; set PROBEKIT_CACHE to"):
            make_once(tmp_path / "one", refuse)


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(train.os, "fsync", full)
        with pytest.raises(StorageError, match="No space left on device; set PROBEKIT_CACHE to another folder"):
            make_once(tmp_path / "one", write)
    assert list(tmp_path.iterdir()) == []
    assert (make_once(tmp_path / "one", write) / "weights").read_text() == "whole"


def test_what_died_long_ago_is_swept_away_and_what_is_at_work_is_not(tmp_path):
    dead, alive = (tmp_path / f".tmp-{name}" for name in ("dead", "alive"))
    for folder in (dead, alive):
        folder.mkdir()
        (folder / "config.json").write_text("half")
    os.utime(dead, (0, 0))
    make_once(tmp_path / "one", write)
    assert {path.name for path in tmp_path.iterdir()} == {".tmp-alive", "one"}


def test_of_two_processes_at_once_the_first_one_stays(tmp_path):
    runs = [
        subprocess.Popen([sys.executable, "-c", TOGETHER, name, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for name in "ab"
    ]
    said = [run.communicate(timeout=60)[0].strip() for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    folder = tmp_path / "models" / "one"
    assert {path.name for path in folder.parent.iterdir()} == {"one"}
    assert {path.name for path in folder.iterdir()} == {"config.json", "weights"}
    assert {(folder / name).read_text() for name in ("config.json", "weights")} == set(said)
    assert len(set(said)) == 1


@pytest.mark.skipif(os.name != "posix", reason="kill -9")
def test_what_a_killed_process_began_does_not_count(tmp_path):
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    folder = tmp_path / "one"
    assert not folder.exists()
    assert (make_once(folder, write) / "weights").read_text() == "whole"
