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
    assert out == f"sound: 6 files, {n_bytes:,} bytes, 90 rows\n"
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
    assert [one["file"] for one in json.loads(out)["broken"]] == [f"shards/{shard.name}"]
    first, last = err.splitlines()
    assert first.startswith(f"shards/{shard.name}: ")
    assert last == f"probekit: error: 1 of 5 files is broken; run: probekit repair {str(copy)!a}"
    assert run(["repair", str(copy), "--quiet"]) == 0
    assert capsys.readouterr().out == "computed 1 shard again and wrote the manifest again\n"
    assert shard.read_bytes() == good
    assert run(["verify", str(copy)]) == 0


def test_a_path_may_be_relative(copy: Path, here: Path, capsys: Capture) -> None:
    assert Path.cwd() == here
    assert run(["verify", copy.name]) == 0
    assert capsys.readouterr().out.startswith("sound: 6 files, ")
    (copy / "records" / "00000.json").unlink()
    assert run(["verify", copy.name, "--json"]) == 4
    assert [one["file"] for one in json.loads(capsys.readouterr().out)["broken"]] == ["records/00000.json"]
    assert run(["repair", copy.name]) == 0
    assert run(["verify", copy.name]) == 0


def test_a_run_that_was_killed_before_its_manifest_is_unfinished_and_not_broken(copy: Path, capsys: Capture) -> None:
    (copy / "manifest.json").unlink()
    assert run(["verify", str(copy)]) == 3
    out, err = capsys.readouterr()
    advice = f"is unfinished: run the same extract command again, or probekit repair {str(copy)!a}"
    assert out.startswith("sound so far: 5 files, ")
    assert out.endswith(" 90 of 90 rows\n")
    assert err == f"probekit: error: {str(copy)!a} {advice}\n"
    assert run(["repair", str(copy)]) == 0
    assert capsys.readouterr().out == "wrote the manifest again\n"


def test_broken_statistics_are_named(copy: Path, capsys: Capture) -> None:
    (copy / "statistics").mkdir()
    (copy / "statistics" / "00001.json").write_text("{}")
    for command, out in (("verify", ""), ("repair", "nothing was repaired\n")):
        assert run([command, str(copy)]) == 4
        printed = capsys.readouterr()
        assert printed.out == out
        assert "00001.json' is damaged" in printed.err
        assert printed.err.splitlines()[-1].endswith("and run the same command again")


def test_another_model_is_a_mismatch(
    copy: Path, make_model: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    next((copy / "shards").iterdir()).unlink()
    other = make_model(tmp_path / "other", n_layers=2)
    assert run(["repair", str(copy), "--model", str(other)]) == 5
    assert "config.n_layers: 3 there, 2 here" in capsys.readouterr().err
