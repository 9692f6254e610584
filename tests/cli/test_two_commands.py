"""The two commands of the first page, as typed there, through the real Hub libraries; and without a Hub."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hub_server import HubServer, hub_env

import probekit
from probekit.activations import Store, load_activations
from probekit.activations.plan import build as planning
from probekit.cli.main import run
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


def test_ctrl_c_keeps_what_is_done_and_the_same_command_resumes(
    gpt2_folder: Path, texts: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ["extract", "--model", str(gpt2_folder), "--dataset", str(texts), "--batch-tokens", "100", "--out", "store"]
    slowly = (
        "import sys, time\n"
        "from probekit.activations.plan import build as planning\n"
        "from probekit.cli.main import run\n"
        "planning.SHARD_BYTES = 4000\n"
        "work = sys.modules['probekit.activations.run.loop']\n"
        "batch = work.compute_batch\n"
        "work.compute_batch = lambda *args: (time.sleep(0.2), batch(*args))[1]\n"
        f"sys.exit(run({job!r}))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", slowly], env=env, stderr=subprocess.PIPE, text=True)
    for _ in range(6000):
        if Path("store/records/00001.json").exists() or process.poll() is not None:
            break
        time.sleep(0.01)
    else:
        process.kill()
        pytest.fail("no second shard after a minute")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    kept, total = Store.progress("store")
    assert 0 < kept < total == 90
    assert err.splitlines()[-1] == (
        f"probekit: error: saved {kept} of 90 texts in store; run the same command again to resume"
    )
    assert "Traceback" not in err
    monkeypatch.setattr(planning, "SHARD_BYTES", 4000)
    assert run([*job, "--quiet"]) == 0
    assert load_activations("store").n_examples == 90
