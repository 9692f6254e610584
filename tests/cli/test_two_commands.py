"""The two commands of the first page, as typed there, through the real Hub libraries; and without a Hub."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import HubServer, hub_env

import probekit
from probekit.activations import load_activations
from probekit.probes import load_probe

ROOT = Path(probekit.__file__).parents[1]


@pytest.fixture(scope="session")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH on which `probekit` is what an installer makes of the entry point."""
    folder = tmp_path_factory.mktemp("bin")
    program = folder / "probekit"
    program.write_text(f"#!{sys.executable}\nimport sys\nfrom probekit.cli.main import main\nsys.exit(main())\n")
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def typed(line: str, env: dict[str, str], path: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {**env, "PATH": path, "PYTHONPATH": str(ROOT)}
    return subprocess.run(shlex.split(line), env=env, cwd=cwd, capture_output=True, text=True, timeout=120)


def test_the_two_commands_of_the_first_page(hub: HubServer, path: str, tmp_path: Path) -> None:
    done = typed("probekit extract --model gpt2 --dataset sst2", hub.env, path, tmp_path)
    assert done.returncode == 0, done.stderr
    store = tmp_path / done.stdout.splitlines()[-1]
    acts = load_activations(store)
    assert acts.meta["model"] == "gpt2"
    assert acts.curve("resid_pre") == [("resid_pre", 0), ("resid_pre", 1), ("resid_pre", 2), ("resid_post", 2)]
    assert {s: int((acts.splits == s).sum()) for s in ("train", "validation", "test")} == {
        "train": 270,
        "validation": 30,
        "test": 60,
    }
    assert acts.meta["dropped_blanks"] == 360
    assert "Traceback" not in done.stderr
    assert "it/s" not in done.stderr
    assert "examples/s" not in done.stderr

    done = typed("probekit train-probe --layer all", hub.env, path, tmp_path)
    assert done.returncode == 0, done.stderr
    assert str(store.relative_to(tmp_path)) in done.stderr
    results = store / "results" / "label-resid_pre-logistic"
    assert str((results / "accuracy_by_layer.png").relative_to(tmp_path)) in done.stdout
    assert "selected on validation" in done.stdout
    assert (results / "accuracy_by_layer.png").read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (results / "accuracy_by_layer.svg").read_text()
    assert len(json.loads((results / "results.json").read_text())["layers"]) == 4
    assert (results / "results.csv").read_text().count("\n") > 4
    saved = sorted((results / "probes").iterdir())
    probe = load_probe(next(p for p in saved if p.suffix != ".json"))
    assert set(probe.predict(acts["resid_pre", 0])) <= {0, 1}


def test_without_a_hub_the_answer_names_the_option_that_takes_a_path(texts: Path, tmp_path: Path) -> None:
    jobs = (["--model", "gpt2", "--dataset", "sst2"], ["--model", "gpt2", "--dataset", str(texts)])
    code = f"from probekit.cli.main import run\nfor job in {jobs!r}: print(run(['extract', *job]))"
    env = {**hub_env("http://127.0.0.1:1", tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["3", "3"]
    of_dataset, of_model = done.stderr.splitlines()
    assert of_dataset.startswith("probekit: error: the Hub did not answer")
    assert "--dataset PATH" in of_dataset
    assert "--model PATH" in of_model
