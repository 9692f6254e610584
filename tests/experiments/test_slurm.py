"""The scripts of `experiments/slurm`, under a stand-in for Slurm: a job that is signalled is requeued, and resumes."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fake_slurm
import pytest
from store_cases import lasting
from user_files import write_model, write_texts

from probekit.activations import load_activations
from probekit.activations.plan import build as planning
from probekit.cli.main import run

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "experiments" / "slurm"
# `probekit` with small shards. The first run of job 2 waits for a signal before its third batch
PROBEKIT = """
import os, sys, time
from pathlib import Path
from probekit.activations.plan import build
from probekit.cli.main import run
build.SHARD_BYTES = 4000
loop = sys.modules["probekit.activations.run.loop"]
batch, calls = loop.compute_batch, []
def slowly(*given):
    calls.append(given)
    if (os.environ["SLURM_ARRAY_TASK_ID"], os.environ["SLURM_RESTART_COUNT"], len(calls)) == ("2", "0", 3):
        Path(os.environ["FAKE_SLURM"], "waits").write_text("yes")
        time.sleep(120)
    return batch(*given)
loop.compute_batch = slowly
sys.exit(run(sys.argv[1:]))
"""
# Stands for a long command: says that it runs, and ends as `probekit` does when it is signalled
LONG = """
trap 'echo interrupted; exit 138' USR1 USR2
echo "$@" "restart $SLURM_RESTART_COUNT"
[ "$SLURM_RESTART_COUNT" = 0 ] || exit 0
echo yes > "$FAKE_SLURM/waits_$SLURM_ARRAY_TASK_ID"
for i in $(seq 600); do sleep 0.1; done
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "slurm"
    for name, value in {**fake_slurm.install(folder), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    yield folder
    fake_slurm.end_all(folder)


def program(slurm: Path, text: str) -> None:
    file = slurm / "bin" / "probekit"
    file.write_text(text)
    file.chmod(0o755)


def test_an_array_whose_job_is_signalled_and_requeued_ends_in_the_store_of_one_process(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(Path("tiny"))
    write_texts(Path("texts.csv"))
    job = ["--model", "tiny", "--dataset", "texts.csv", "--batch-tokens", "100", "--out"]
    program(slurm, f'#!/bin/sh\nexec {sys.executable} -c {shlex.quote(PROBEKIT)} "$@"\n')
    subprocess.run(["sbatch", "--array=1-3", str(SCRIPTS / "extract_array.sh"), *job, "store"], check=True)
    fake_slurm.wait_for(slurm / "waits")
    subprocess.run(["scancel", "--batch", "--signal=USR1", "100_2"], check=True)
    ended = {n: fake_slurm.wait_for(slurm / f"100_{n}.ended") for n in (1, 2, 3)}
    logs = {n: Path(f"job-100_{n}.log").read_text() for n in (1, 2, 3)}
    assert ended == {1: "0", 2: "138 0", 3: "0"}, logs
    assert "run the same command again to resume" in logs[2]
    assert "Traceback" not in "".join(logs.values())
    monkeypatch.setattr(planning, "SHARD_BYTES", 4000)
    assert run(["extract", *job, "whole", "--quiet"]) == 0
    assert lasting(Path("store")) == lasting(Path("whole"))
    assert load_activations("store").n_examples == 90


@pytest.mark.parametrize(
    ("code", "restarts", "requeued"), [(3, "0", False), (143, "0", False), (138, "6", True), (138, "7", False)]
)
def test_only_a_job_that_usr1_ended_is_requeued(slurm: Path, code: int, restarts: str, requeued: bool) -> None:
    """An error would come again; SIGTERM may be `scancel`; and there is an end to restarts."""
    program(slurm, f"#!/bin/sh\nexit {code}\n")
    task = {"SLURM_ARRAY_JOB_ID": "100", "SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_MAX": "3", "FAKE_JOB": "100_2"}
    limits = {"SLURM_RESTART_COUNT": restarts, "MAX_RESTARTS": "7"}
    script = ["bash", str(SCRIPTS / "extract_array.sh")]
    done = subprocess.run(
        script, env={**os.environ, **task, **limits}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    assert (slurm / "100_2.requeue").exists() == requeued


def test_jobs_of_submitit_interrupt_their_process_and_run_the_same_command_after_the_requeue(slurm: Path) -> None:
    """submitit finds the stand-in by PATH. Its signal reaches every process of the step, as Slurm's does."""
    program(slurm, f"#!/bin/bash\n{LONG}")
    given = ["--parts", "2", "--logs", "logs", "--", "--model", "tiny", "--out", "a folder"]
    main = subprocess.Popen([sys.executable, str(SCRIPTS / "extract_submitit.py"), *given])
    try:
        for index in (0, 1):
            fake_slurm.wait_for(slurm / f"waits_{index}")
            subprocess.run(["scancel", f"100_{index}", "--signal", "USR2"], check=True)
        assert main.wait(timeout=60) == 0
    finally:
        main.kill()
    for index in (0, 1):
        said = Path(f"logs/100_{index}_0_log.out").read_text().splitlines()
        command = f"extract --model tiny --out a folder --quiet --part {index + 1}/2 restart"
        assert [line for line in said if line.startswith("extract")] == [f"{command} 0", f"{command} 1"]
        assert said.count("interrupted") == 1
    assert "'signal': 'USR2@180'" in (slurm / "options").read_text()
