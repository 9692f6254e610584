"""The scripts of `experiments/slurm`, under a stand-in for Slurm: a job that is signalled is requeued, and resumes."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_slurm
import pytest
import torch
from store_cases import lasting
from user_files import write_model, write_texts
from warm_program import WarmProgram

from probekit.activations import load_activations
from probekit.activations.run import loop
from probekit.cli.main import run

ROOT = Path(__file__).parents[2]
N = 270
SCRIPTS = ROOT / "experiments" / "slurm"
# Stands for a long command: says that it runs, and ends as `probekit` does when it is signalled
LONG = """
trap 'echo interrupted; exit 138' USR1 USR2
echo "$@" "restart $SLURM_RESTART_COUNT, $SLURM_CPUS_PER_TASK cpus"
[ "$SLURM_RESTART_COUNT" = 0 ] || exit 0
echo yes > "$FAKE_SLURM/waits_$SLURM_ARRAY_TASK_ID"
for i in $(seq 600); do sleep 0.1; done
"""


def work(arguments: list[str]) -> int:
    """`probekit`, in a process of a job. The first run of job 2 waits for a signal before its second shard."""
    compute, job = loop.compute_shard, os.environ["SLURM_ARRAY_TASK_ID"]
    folder, computed = Path(os.environ["FAKE_SLURM"]), []

    def compute_shard(plan: Any, number: int, *more: Any, **named: Any) -> Any:
        if (job, os.environ["SLURM_RESTART_COUNT"], len(computed)) == ("2", "0", 1):
            (folder / "waits").write_text("yes")
            time.sleep(60)
        computed.append(number)
        with (folder / f"computed_{job}").open("a") as file:
            file.write(f"{number}\n")
        return compute(plan, number, *more, **named)

    loop.compute_shard = compute_shard
    torch.set_num_threads(1)
    return run(arguments)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "slurm"
    for name, value in fake_slurm.install(folder).items():
        monkeypatch.setenv(name, value)
    yield folder
    fake_slurm.end_all(folder)


def program(slurm: Path, text: str) -> None:
    file = slurm / "bin" / "probekit"
    file.write_text(text)
    file.chmod(0o755)


def test_an_array_whose_job_is_signalled_and_requeued_ends_in_the_store_of_one_process(slurm: Path) -> None:
    write_model(Path("tiny"))
    write_texts(Path("texts.csv"), N)
    job = ["--model", "tiny", "--dataset", "texts.csv", "--batch-tokens", "40", "--shard-bytes", "1000", "--out"]
    warm = WarmProgram(slurm / "bin" / "probekit", work)
    try:
        subprocess.run(["sbatch", "--array=1-3", str(SCRIPTS / "extract_array.sh"), *job, "store"], check=True)
        fake_slurm.wait_for(slurm / "waits")
        subprocess.run(["scancel", "--batch", "--signal=USR1", "100_2"], check=True)
        ended = {n: fake_slurm.wait_for(slurm / f"100_{n}.ended") for n in (1, 2, 3)}
    finally:
        warm.close()
    logs = {n: Path(f"job-100_{n}.log").read_text() for n in (1, 2, 3)}
    assert ended == {1: "0", 2: "138 0", 3: "0"}, logs
    assert "run the same command again to resume" in logs[2]
    assert "Traceback" not in "".join(logs.values())
    assert run(["extract", *job, "whole", "--quiet"]) == 0
    written = {name: data for name, data in lasting(Path("store")).items() if name.parts[0] != "parts"}  # who did what
    assert written == lasting(Path("whole"))
    assert load_activations("store").n_examples == N
    computed = [(slurm / f"computed_{n}").read_text().split() for n in (1, 2, 3)]
    everything = sorted(int(number) for each in computed for number in each)
    assert everything == list(range(len(list(Path("whole/records").iterdir())))), "each shard is computed once"
    assert all(computed)


@pytest.mark.parametrize(
    ("code", "limits", "requeued"),
    [
        (0, {}, False),
        (3, {}, False),
        (143, {}, False),
        (138, {"MAX_RESTARTS": "7", "SLURM_RESTART_COUNT": "6"}, True),
        (138, {"MAX_RESTARTS": "7", "SLURM_RESTART_COUNT": "7"}, False),
    ],
)
def test_only_a_job_that_usr1_ended_is_requeued(slurm: Path, code: int, limits: dict[str, str], requeued: bool) -> None:
    """An error would come again; SIGTERM may be `scancel`; and there is an end to restarts."""
    done = job_script(slurm, f"exit {code}", limits)
    assert done.returncode == code, done.stderr
    assert (slurm / "100_2.requeue").exists() == requeued


@pytest.mark.parametrize(("parts", "part"), [({}, "2/3"), ({"PARTS": "8"}, "2/8")])
def test_a_job_does_its_part_of_all_jobs_or_of_the_number_that_is_given(
    slurm: Path, parts: dict[str, str], part: str
) -> None:
    done = job_script(slurm, 'for one; do echo "[$one]"; done', parts)
    assert done.stdout.split("\n") == ["[extract]", "[--out]", "[a folder]", "[--part]", f"[{part}]", ""], done.stderr


def test_the_step_has_all_cpus_of_its_job_and_a_thread_on_each(slurm: Path) -> None:
    done = job_script(slurm, "echo $SLURM_CPUS_PER_TASK $OMP_NUM_THREADS", {"SLURM_CPUS_PER_TASK": "6"})
    assert done.stdout == "6 6\n", done.stderr


def job_script(slurm: Path, command: str, more: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """The script of job 2 of 3, with a program in the place of `probekit`."""
    program(slurm, f"#!/bin/sh\n{command}\n")
    task = {"SLURM_ARRAY_JOB_ID": "100", "SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_MAX": "3", "FAKE_JOB": "100_2"}
    script = ["bash", str(SCRIPTS / "extract_array.sh"), "--out", "a folder"]
    env = {**os.environ, **task, **more}
    return subprocess.run(script, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_jobs_of_submitit_interrupt_their_process_and_run_the_same_command_after_the_requeue(slurm: Path) -> None:
    """submitit finds the stand-in by PATH. Its signal reaches every process of the step, as Slurm's does."""
    program(slurm, f"#!/bin/bash\n{LONG}")
    given = ["--parts", "2", "--cpus", "3", "--logs", "logs", "--", "--model", "tiny", "--out", "a folder"]
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
        command = f"extract --model tiny --out a folder --part {index + 1}/2 restart"
        assert [line for line in said if line.startswith("extract")] == [f"{command} {n}, 3 cpus" for n in (0, 1)]
        assert said.count("interrupted") == 1
    assert "'signal': 'USR2@180'" in (slurm / "options").read_text()
