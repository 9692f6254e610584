"""`probekit extract`: what it prints and where, what it writes, and how it resumes."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probekit.activations import load_activations
from probekit.activations.plan import build as planning
from probekit.activations.plan import packing as batching
from probekit.cli.main import run
from probekit.cli.stores import saved_rows
from probekit.files.durable import seal, unseal

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def job(gpt2_folder: Path, texts: Path) -> list[str]:
    return ["extract", "--model", str(gpt2_folder), "--dataset", str(texts)]


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many shards, as a large dataset has."""
    monkeypatch.setattr(planning, "SHARD_BYTES", 4000)
    monkeypatch.setattr(planning, "MIN_NODES", {"cpu": 16})
    monkeypatch.setattr(batching, "SIZES", (16,))


def test_stdout_ends_with_the_path_and_the_rest_is_on_stderr(here: Path, job: list[str], capsys: Capture) -> None:
    assert run(job) == 0
    out, err = capsys.readouterr()
    (path,) = out.splitlines()
    assert Path(path).is_relative_to("runs")
    assert "90 texts" in err
    assert "layers" in err
    acts = load_activations(path)
    assert list(acts) == [("resid_pre", 0), ("resid_pre", 1), ("resid_pre", 2), ("resid_post", 2)]
    assert acts["resid_pre", 1].shape == (90, 16)


def test_a_store_computed_by_other_code_is_refused_before_the_model_is_loaded(
    here: Path, job: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run([*job, "--limit", "2", "--quiet", "--out", "store"]) == 0
    monkeypatch.setattr("probekit.cli.extract.load", lambda *_: pytest.fail("the model was loaded"))
    assert run([*job, "--limit", "2", "--out", "store", "--via", "transformers"]) == 5
    says = "'store' was made with other settings (via: 'probekit' there, 'transformers' here); name another folder"
    assert says in capsys.readouterr().err
    body, _ = unseal(Path("store/plan.json"))
    Path("store/plan.json").write_bytes(seal({**body, "identity": {**body["identity"], "kind": "import"}})[0])
    monkeypatch.setattr("probekit.cli.extract.load", lambda *_: sys.exit(9))
    for spoilt in (None, b"{}"):
        if spoilt is not None:
            Path("store/plan.json").write_bytes(spoilt)
        with pytest.raises(SystemExit):
            run([*job, "--limit", "2", "--out", "store", "--via", "transformers"])


def test_quiet_prints_only_the_path(here: Path, job: list[str], capsys: Capture) -> None:
    assert run([*job, "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    assert err == ""


def test_a_dry_run_prints_the_plan_and_writes_nothing(here: Path, job: list[str], capsys: Capture) -> None:
    assert run([*job, "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert "90 texts" in out
    assert [line.split()[:2] for line in out.splitlines()[-8:-6]] == [["time", "about"], ["memory", "about"]]
    assert [line.split()[0] for line in out.splitlines()[-6::2]] == ["row"] * 3
    assert all("last token: token" in line for line in out.splitlines()[-6::2])
    assert all(line.endswith("}}") for line in out.splitlines()[-5::2])  # the last token is marked
    assert err == ""
    assert run([*job, "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["texts"] == 90
    assert planned["layers"] == [0, 1, 2]
    assert planned["estimate"]["flops"] > 0
    assert [len(row["tokens"]) for row in planned["rows"]] == [1, 1, 1]
    assert list(here.iterdir()) == []


def test_json_names_the_store_and_what_is_in_it(here: Path, job: list[str], capsys: Capture) -> None:
    assert run([*job, "--json", "--out", "a b"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["store"] == "a b"
    assert found["texts"] == load_activations("a b").n_examples


def test_every_option_reaches_the_store(here: Path, job: list[str]) -> None:
    chosen = "--points resid_mid,attn_out --layers 1-2 --position -2 --limit 6 --store-dtype bf16 --dtype bf16"
    more = "--batch-tokens 100 --seed 3 --bos --on-long error --text-column text --label-column label --device cpu"
    assert (
        run([*job, *chosen.split(), *more.split(), "--random-init", "--model-seed", "5", "--out", "store", "--quiet"])
        == 0
    )
    acts = load_activations("store")
    assert list(acts) == [("resid_mid", 1), ("resid_mid", 2), ("attn_out", 1), ("attn_out", 2)]
    assert acts["attn_out", 2].dtype == torch.bfloat16
    assert {split: int((acts.splits == split).sum()) for split in ("train", "validation", "test")} == {
        "train": 6,
        "validation": 6,
        "test": 6,
    }
    expected = {"position": -2, "dtype": "bfloat16", "compute_dtype": "bfloat16", "batch_tokens": 100, "seed": 3}
    expected |= {"bos": True, "on_long": "error", "model": "tiny-random5"}
    assert {key: acts.meta[key] for key in expected} == expected


def test_rows_of_one_group_stay_in_one_split(here: Path, gpt2_folder: Path, capsys: Capture) -> None:
    rows = [f"text {i},{i % 2},pair {i // 2}" for i in range(60)]
    Path("t.csv").write_text("\n".join(["text,label,pair", *rows]) + "\n")
    job = ["extract", "--model", str(gpt2_folder), "--dataset", "t.csv", "--out", "store", "--quiet"]
    assert run([*job, "--group-column", "pear"]) == 2
    assert "did you mean 'pair'" in capsys.readouterr().err
    assert run([*job, "--group-column", "pair"]) == 0
    acts = load_activations("store")
    assert acts.groups is not None
    assert acts.groups.tolist() == [f"pair {i // 2}" for i in range(60)]
    assert (acts.splits[::2] == acts.splits[1::2]).all()


def test_another_random_baseline_is_read_on_the_same_task(here: Path, job: list[str]) -> None:
    for seed in ("0", "1"):
        assert run([*job, "--random-init", "--model-seed", seed, "--out", seed, "--quiet"]) == 0
    zero, one = load_activations("0"), load_activations("1")
    assert zero.meta["task_fingerprint"] == one.meta["task_fingerprint"]
    assert zero.meta["model_fingerprint"] != one.meta["model_fingerprint"]
    assert (zero.splits == one.splits).all()


def test_cut_texts_dropped_blanks_and_skipped_rows_are_reported(here: Path, gpt2_folder: Path, capsys: Capture) -> None:
    rows = [f"{'long ' * 10 * (i < 3)}text {i} ,{i % 2}" for i in range(60)]
    Path("t.csv").write_text("\n".join(["text,label", *rows, ",1", "NA,0"]) + "\n")
    job = ["extract", "--model", str(gpt2_folder), "--dataset", "t.csv", "--out", "store"]
    assert run(job) == 3
    assert "t.csv" in capsys.readouterr().err
    assert run([*job, "--on-bad-row", "skip"]) == 0
    err = capsys.readouterr().err
    assert "3 texts" in err
    assert "60 texts" in err
    assert "2 rows of the data could not be used" in err
    meta = load_activations("store").meta
    assert [meta[key] for key in ("cut", "dropped_blanks", "skipped_rows")] == [3, 60, 2]
    assert run([*job, "--on-bad-row", "skip", "--on-long", "error"]) == 3
    assert "--on-long cut" in capsys.readouterr().err
    assert run([*job, "--on-bad-row", "skip", "--keep-blanks", "--quiet", "--out", "kept"]) == 0
    assert load_activations("kept").meta["dropped_blanks"] == 0


def test_the_same_command_finds_its_own_store_and_other_settings_another(
    here: Path, job: list[str], capsys: Capture
) -> None:
    paths = []
    for more in ([], [], ["--layers", "1"], ["--seed", "1"]):
        assert run([*job, "--quiet", *more]) == 0
        paths.append(capsys.readouterr().out)
    assert paths[0] == paths[1]
    assert len(set(paths)) == 3


def test_other_settings_at_the_same_place_are_refused(here: Path, job: list[str], capsys: Capture) -> None:
    assert run([*job, "--out", "store", "--quiet"]) == 0
    assert run([*job, "--out", "store", "--layers", "1", "--quiet"]) == 5
    assert "other settings" in capsys.readouterr().err


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 138)])
def test_a_signal_says_what_was_saved_and_the_same_command_resumes(
    here: Path, job: list[str], capsys: Capture, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    work = sys.modules["probekit.activations.run.loop"]
    job = [*job, "--batch-tokens", "100"]
    assert run([*job, "--out", "whole", "--quiet"]) == 0
    compute_batch, calls = work.compute_batch, []

    def interrupted(plan: Any, rows: np.ndarray) -> Any:
        calls.append(rows)
        if len(calls) == 4:
            signal.raise_signal(number)
        return compute_batch(plan, rows)

    with monkeypatch.context() as patch:
        patch.setattr(work, "compute_batch", interrupted)
        assert run([*job, "--out", "store"]) == code
    err = capsys.readouterr().err
    assert "probekit: interrupted: saved " in err
    assert " of 90 texts in store; run the same command again to resume" in err
    kept = int(err.split("saved ")[1].split(" ")[0])
    assert 0 < kept < 90
    assert run([*job, "--out", "store", "--quiet"]) == 0
    assert torch.equal(load_activations("store")["resid_pre", 2], load_activations("whole")["resid_pre", 2])


def test_names_that_look_like_markup_or_escapes_are_text(here: Path, gpt2_folder: Path, capsys: Capture) -> None:
    hostile = "[bold]a\x1b[31m\u202eb"
    assert run(["extract", "--model", str(gpt2_folder), "--dataset", f"{hostile}.csv"]) == 2
    err = capsys.readouterr().err
    assert "[bold]a\\x1b[31m\\u202eb.csv" in err
    Path(f"{hostile}.csv").write_text("text,label\n" + "".join(f"t {i},{i % 2}\n" for i in range(40)))
    assert run(["extract", "--model", str(gpt2_folder), "--dataset", f"{hostile}.csv", "--out", hostile]) == 0
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert "\u202e" not in out + err
    assert "[bold]a" in out


def test_whole_numbers_are_a_regression_on_request(here: Path, gpt2_folder: Path, capsys: Capture) -> None:
    Path("years.csv").write_text("text,year\n" + "".join(f"text {i},{1900 + i % 7}\n" for i in range(60)))
    job = ["extract", "--model", str(gpt2_folder), "--dataset", "years.csv", "--label-column", "year", "--limit", "9"]
    assert run([*job, "--regression", "--out", "store"]) == 0
    assert "labels   year is a number, 1900 to 1906: a regression" in capsys.readouterr().err
    acts = load_activations("store")
    assert (acts.labels["year"].dtype, acts.label_names) == (np.float64, {"year": []})
    assert run([*job, "--out", "classes"]) == 0
    assert load_activations("classes").task.n_classes() == 7


def test_ctrl_c_before_the_first_shard_says_that_nothing_was_kept(tmp_path) -> None:
    said = saved_rows(lambda: (0, 90), 90, "texts", tmp_path)
    assert said == f"nothing was complete yet in {tmp_path} (a shard is saved every 64 MB); run the same command again"
    assert saved_rows(lambda: (30, 90), 90, "texts", tmp_path).startswith(f"saved 30 of 90 texts in {tmp_path}")
    assert saved_rows(lambda: (0, 90), 90, "texts", tmp_path / "store").startswith("nothing was written; run")
