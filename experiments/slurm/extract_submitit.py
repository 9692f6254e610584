"""Extract one store with Slurm jobs that submitit submits, one part each; they requeue themselves and resume.

    pip install -e '.[slurm]'
    python experiments/slurm/extract_submitit.py --parts 8 --minutes 240 --gpus 1 -- \
        --model gpt2 --dataset sst2 --out /shared/runs/gpt2-sst2

What follows `--` are arguments of `probekit extract`. `--cluster local` runs the parts as processes on this machine.
submitit writes its jobs as pickles into `--logs`; probekit itself writes and reads none.
"""

import argparse
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

import submitit

INTERRUPTED = {128 + number for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)}
SECONDS_TO_REQUEUE = 600  # between a first signal (SIGTERM, when another job takes the place) and that of submitit


class ExtractPart:
    """One part as a job: a process that is interrupted in order before the job is requeued."""

    def __init__(self, arguments: Sequence[str], part: int, parts: int):
        self.command = ["probekit", "extract", *arguments, "--part", f"{part}/{parts}"]
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        self.process = subprocess.Popen(self.command)
        code = self.process.wait()
        if code in INTERRUPTED:
            time.sleep(SECONDS_TO_REQUEUE)  # submitit's signal ends this, and requeues the job
        if code:
            raise RuntimeError(f"{' '.join(self.command)} ended with exit code {code}; its last line says why")
        return code

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """What runs after a requeue: the same command, once the process has its finished shards on disk.

        A signal handler calls it in the middle of `__call__`, whose `wait` holds the lock of the process.
        """
        process, self.process = self.process, None
        with suppress(ProcessLookupError, ChildProcessError):  # it has ended
            if process is not None:
                os.kill(process.pid, signal.SIGUSR1)
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        return submitit.helpers.DelayedSubmission(self)


def submit(options: argparse.Namespace, arguments: Sequence[str]) -> list[submitit.Job]:
    """Submit one job for each part, as an array where there is Slurm."""
    executor = submitit.AutoExecutor(options.logs, cluster=options.cluster, slurm_max_num_timeout=100)
    executor.update_parameters(
        name="probekit", timeout_min=options.minutes, cpus_per_task=options.cpus, gpus_per_node=options.gpus
    )
    if executor.cluster == "slurm":
        executor.update_parameters(
            slurm_signal_delay_s=180,
            slurm_additional_parameters={"requeue": True},
            slurm_srun_args=[f"--cpus-per-task={options.cpus}"],  # since Slurm 22.05 srun does not inherit it
        )
    with executor.batch():
        return [executor.submit(ExtractPart(arguments, part, options.parts)) for part in range(1, options.parts + 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Extract one store with jobs that submitit submits.")
    parser.add_argument("--parts", type=int, required=True, help="jobs, one part of the store each")
    parser.add_argument("--minutes", type=int, default=240, help="time limit of a job; it is requeued before it")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of a job")
    parser.add_argument("--cpus", type=int, default=8, help="CPUs of a job")
    parser.add_argument("--logs", default="slurm-logs", help="folder that all nodes see, for submitit's files")
    parser.add_argument("--cluster", default=None, help="slurm, local; what is found here without it")
    parser.add_argument("arguments", nargs="+", help="of probekit extract, after --")
    options = parser.parse_args()
    jobs = submit(options, options.arguments)
    print(f"submitted: {', '.join(job.job_id for job in jobs)}")
    for job in jobs:
        job.result()


if __name__ == "__main__":
    main()
