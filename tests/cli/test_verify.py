"""`probekit verify` and `probekit repair`: what they print, and their exit codes."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from probekit.cli.main import run

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def copy(store: Path, here: Path) -> Path:
    return shutil.copytree(store, here / "copy")


def test_a_sound_store_is_one_line(copy: Path, capsys: Capture) -> None:
    assert run(["verify", str(copy)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    n_bytes = sum(p.stat().st_size for p in copy.rglob("*.*") if p.is_file())
    assert out == f"sound: 5 files, {n_bytes:,} bytes, 90 rows\n"
    assert run(["repair", str(copy)]) == 0
    assert capsys.readouterr().out == "nothing is broken\n"
    assert run(["verify", "nothing"]) == 3


def test_broken_files_are_named_and_repaired_from_the_recorded_source(copy: Path, capsys: Capture) -> None:
    shard = next((copy / "shards").iterdir())
    good = shard.read_bytes()
    shard.write_bytes(good[:-1])
    (copy / "manifest.json").unlink()
    assert run(["verify", str(copy), "--json"]) == 4
    out, err = capsys.readouterr()
    assert [one["file"] for one in json.loads(out)["broken"]] == [f"shards/{shard.name}", "manifest.json"]
    first, second, last = err.splitlines()
    assert first.startswith(f"shards/{shard.name}: ")
    assert second.startswith("manifest.json: missing")
    assert last == f"probekit: error: 2 of 5 files are broken; run: probekit repair {copy}"
    assert run(["repair", str(copy), "--quiet"]) == 0
    assert capsys.readouterr().out == "computed 1 shards again and wrote the manifest again\n"
    assert shard.read_bytes() == good
    assert run(["verify", str(copy)]) == 0


def test_another_model_is_a_mismatch(
    copy: Path, make_model: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    next((copy / "shards").iterdir()).unlink()
    other = make_model(tmp_path / "other", n_layers=2)
    assert run(["repair", str(copy), "--model", str(other)]) == 5
    assert "config.n_layers: 3 there, 2 here" in capsys.readouterr().err
