"""`probekit extract --stats` and `--stats-only`, and what the other commands make of such stores."""

import json
from pathlib import Path

import pytest

from probekit.activations import load_activations, load_statistics
from probekit.activations.plan import build as planning
from probekit.activations.sums.tally import Tally
from probekit.cli.main import run
from probekit.models.families.gpt2 import GPT2

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def job(gpt2_folder: Path, texts: Path) -> list[str]:
    return ["extract", "--model", str(gpt2_folder), "--dataset", str(texts), "--out", "s"]


def test_stats_are_written_with_the_activations(here: Path, job: list[str], capsys: Capture) -> None:
    assert run([*job, "--stats"]) == 0
    out, err = capsys.readouterr()
    assert out == "s\n"
    assert err.endswith("statistics: s/statistics (in Python: pk.load_statistics('s'))\n")
    acts, sums = load_activations("s"), load_statistics("s")
    assert isinstance(acts["resid_pre", 1].sum().item(), float)
    assert sums.places == list(acts)
    assert sum(sums["resid_pre.1", split].count for split in sums.splits) == 90
    assert run(["ls", "s"]) == 0
    assert "complete, with statistics: tiny on texts" in capsys.readouterr().out


def test_stats_only_keeps_no_activations_and_says_so(here: Path, job: list[str], capsys: Capture) -> None:
    assert run([*job, "--stats-only", "--quiet"]) == 0
    assert capsys.readouterr() == ("s\n", "")
    assert list(Path("s/shards").iterdir()) == []
    assert run(["train-probe", "s"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("probekit: error: 's' holds statistics and no activations: ")
    assert run(["ls", "."]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("s  statistics: tiny on texts, resid_pre 0-2, resid_post 2, 90 texts, 0.")
    assert run(["ls", ".", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["stores"]
    assert found["state"] == "statistics"
    assert found["bytes"] == sum(p.stat().st_size for p in Path("s/statistics").glob("*.safetensors"))


def test_a_dry_run_shows_their_size(here: Path, job: list[str], capsys: Capture) -> None:
    assert run([*job, "--stats", "--dry-run"]) == 0
    both = capsys.readouterr().out
    assert "\nsize " in both
    assert "\nstats    0.0 MB in all: sums for each place and split\n" in both
    assert run([*job, "--stats", "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["statistics"] == "beside"  # scripts read this value
    assert run([*job, "--stats-only", "--dry-run"]) == 0
    alone = capsys.readouterr().out
    assert "\nsize " not in alone
    assert "; no activations\n" in alone
    assert run([*job, "--stats-only", "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert list(here.iterdir()) == []
    assert run([*job, "--stats-only", "--quiet"]) == 0
    assert planned["statistics_bytes"] == load_statistics("s").n_bytes
    assert (planned["statistics"], planned["bytes"]) == ("only", 0)


def test_ctrl_c_says_what_is_counted(
    here: Path, job: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "SHARD_BYTES", 4000)
    monkeypatch.setattr(Tally, "_is_due", lambda _: True)
    forward, calls = GPT2.forward, []

    def interrupted(self: GPT2, *args: object, **kwargs: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return forward(self, *args, **kwargs)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(GPT2, "forward", interrupted)
    job += ["--stats-only", "--quiet", "--batch-tokens", "100"]
    assert run(job) == 130
    err = capsys.readouterr().err
    assert "of 90 texts in s; run the same command again to resume" in err
    assert "saved 0" not in err
    assert run(["ls", "."]) == 0
    assert "of 90 texts counted" in capsys.readouterr().out
    monkeypatch.setattr(GPT2, "forward", forward)
    assert run(job) == 0
    assert sum(load_statistics("s")["resid_pre.0", split].count for split in ("train", "validation", "test")) == 90
