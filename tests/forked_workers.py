"""Workers of `--devices` that are forks of the test's own process: they start at once, and can be given faults."""

import io
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from probekit.engines import device_worker

Fault = Callable[[str, int], None]  # called in the worker with (name of the device, number of the shard)


class Forked:
    """Replaces the `subprocess.Popen` of the worker's module."""

    def __init__(self, args: list[str], before: Callable[[], None]):
        theirs, ours = self._pipes()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            for at, fd in enumerate(theirs):
                os.dup2(fd, at)
            os.closerange(3, 200)  # the ends of other workers' pipes too, as Popen does
            code = 99
            try:
                sys.stdin = open(0, closefd=False)  # noqa: SIM115
                sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
                before()
                code = device_worker.serve(args)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        for fd in theirs:
            os.close(fd)
        self.stdin, self.stdout, self.stderr = (io.FileIO(fd, mode) for fd, mode in zip(ours, "wrr", strict=True))

    @staticmethod
    def _pipes() -> tuple[list[int], list[int]]:
        pairs = [os.pipe() for _ in range(3)]
        theirs = [pairs[0][0], pairs[1][1], pairs[2][1]]
        return theirs, [pairs[0][1], pairs[1][0], pairs[2][0]]

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float = 60) -> int:
        until = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("worker", timeout)
            time.sleep(0.005)
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


class Crew:
    """Starts workers in the place of `devices.start`; each may fail as the test says."""

    def __init__(self, fault: Fault | None = None):
        self.fault, self.made = fault, list[Forked]()
        self.names: list[str] = []
        self.threads: list[int] = []

    def start(self, device: str, path: Path, check: str, threads: int) -> Forked:
        name = f"{device}#{len(self.made)}"
        self.names.append(name)
        self.threads.append(threads)
        self.made.append(Forked([str(path), device, check], lambda: self._prepare(name)))
        return self.made[-1]

    def _prepare(self, name: str) -> None:
        from probekit.activations.parts import work

        compute, fault = work.compute_shard, self.fault

        def faulty(plan: Any, number: int, *more: Any, **named: Any) -> Any:
            if fault is not None:
                fault(name, number)
            return compute(plan, number, *more, **named)

        work.compute_shard = faulty

    @property
    def all_ended(self) -> bool:
        return all(worker.returncode is not None for worker in self.made)
