"""A stand-in for Slurm on one machine: sbatch, srun, scancel, scontrol and sacct as programs in a folder for PATH.

Run as a program it is whichever of them it is called as. Jobs start at once. `scancel --signal` reaches the step, as in
Slurm, or with `--batch` the script; a job that `scontrol requeue` named starts again after its script has ended.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

PROGRAMS = ("sbatch", "srun", "scancel", "scontrol", "sacct")
ARRAY = "100"  # the number of the one job


def install(folder: Path) -> dict[str, str]:
    """Put the programs into `folder`/bin; the environment in which they are found."""
    (folder / "bin").mkdir(parents=True)
    for name in PROGRAMS:
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {shlex.quote(__file__)} {name} "$@"\n')
        program.chmod(0o755)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return {**inherited, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "FAKE_SLURM": str(folder)}


def wait_for(path: Path, seconds: float = 60) -> str:
    """What is in a file, once it is there and not empty."""
    until = time.monotonic() + seconds
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < until, f"no {path} after {seconds} s"
        time.sleep(0.02)
    return path.read_text()


def end_all(folder: Path) -> None:
    """End whatever still runs."""
    for file in [*folder.glob("*.runner"), *folder.glob("*.script"), *folder.glob("*.step")]:
        try:
            os.killpg(int(file.read_text()), signal.SIGKILL)
        except (ProcessLookupError, ValueError):
            continue


def sbatch(folder: Path, given: list[str]) -> None:
    at = next(i for i, one in enumerate(given) if not one.startswith("--"))
    script, arguments = given[at], given[at + 1 :]
    text = Path(script).read_text().split("\n")
    lines = [line.removeprefix("#SBATCH ") for line in text if line.startswith("#SBATCH --")]
    options = [shlex.split(line)[0].removeprefix("--") for line in [*lines, *given[:at]]]
    wanted = {name: value for name, _, value in (option.partition("=") for option in options)}
    first, last = re.match(r"(\d+)-(\d+)", wanted["array"]).groups()  # type: ignore[union-attr]
    (folder / "options").write_text(repr(wanted))
    for index in range(int(first), int(last) + 1):
        job = f"{ARRAY}_{index}"
        about = {"SLURM_JOB_ID": str(200 + index), "SLURM_ARRAY_JOB_ID": ARRAY, "SLURM_ARRAY_TASK_ID": str(index)}
        about |= {"SLURM_ARRAY_TASK_MAX": last, "SLURM_JOB_NUM_NODES": "1"}
        about["SLURM_CPUS_PER_TASK"] = wanted["cpus-per-task"]
        log = wanted["output"].replace("%A", ARRAY).replace("%a", str(index)).replace("%x", "job")
        if os.fork() == 0:
            os.setsid()
            for stream in (0, 1, 2):  # who submits reads to the end of them
                os.dup2(os.open(os.devnull, os.O_RDWR), stream)
            run_job(folder, job, ["bash", script, *arguments], about, Path(log))
    print(f"Submitted batch job {ARRAY}")


def run_job(folder: Path, job: str, command: list[str], about: dict[str, str], log: Path) -> None:
    """Run a job until it ends without being requeued; its exit codes are lines of a file."""
    (folder / f"{job}.runner").write_text(str(os.getpid()))
    codes: list[str] = []
    again = folder / f"{job}.requeue"
    while not codes or again.exists():
        again.unlink(missing_ok=True)
        env = {**os.environ, **about, "FAKE_JOB": job, "SLURM_RESTART_COUNT": str(len(codes))}
        with log.open("ab") as out:
            script = subprocess.Popen(command, env=env, stdout=out, stderr=out, start_new_session=True)
            (folder / f"{job}.script").write_text(str(script.pid))
            codes.append(str(script.wait()))
    (folder / f"{job}.ended").write_text(" ".join(codes))
    os._exit(0)


def srun(folder: Path, given: list[str]) -> None:
    os.environ["SLURM_CPUS_PER_TASK"] = "1"  # of the step: since Slurm 22.05, srun does not inherit the job's
    while given[0].startswith("--"):
        name, _, value = given.pop(0).partition("=")
        if name == "--cpus-per-task":
            os.environ["SLURM_CPUS_PER_TASK"] = value
        if name in ("--output", "--error"):
            log = given.pop(0).replace("%A", ARRAY).replace("%a", os.environ["SLURM_ARRAY_TASK_ID"]).replace("%t", "0")
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1 if name == "--output" else 2)
    os.setpgid(0, 0)
    (folder / f"{os.environ['FAKE_JOB']}.step").write_text(str(os.getpid()))
    os.execvp(given[0], given)


def scancel(folder: Path, given: list[str]) -> None:
    words = " ".join(given)
    number = getattr(signal, "SIG" + re.search(r"--signal[= ](?:SIG)?(\w+)", words).group(1))  # type: ignore[union-attr]
    job = re.search(r"\b\d+_\d+\b", words).group()  # type: ignore[union-attr]
    if "--batch" in words:
        os.kill(int((folder / f"{job}.script").read_text()), number)
    else:  # every process of the step
        os.killpg(int((folder / f"{job}.step").read_text()), number)


def scontrol(folder: Path, given: list[str]) -> None:
    assert given[0] == "requeue"
    (folder / f"{given[1]}.requeue").write_text("yes")


def sacct(folder: Path, given: list[str]) -> None:
    print("JobID|State|NodeList")
    for file in sorted(folder.glob("*.runner")):
        print(f"{file.stem}|{'COMPLETED' if file.with_suffix('.ended').exists() else 'RUNNING'}|here")


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(os.environ["FAKE_SLURM"]), sys.argv[2:])
