"""`extract --devices`: one process on each device, which all take shards from one queue, the most expensive first.

The processes find everything in the store, and write their shards themselves (`device_worker.py`). Only numbers go over
the pipes. A process that fails is reported in one line, and the others compute its shards (`schedule.py`).
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import torch

from probekit.activations.plan.plan import ExtractionPlan
from probekit.engines.answers import Answer, death_answer
from probekit.engines.schedule import compute_missing
from probekit.errors import UsageError
from probekit.files.remote.path import AnyPath
from probekit.machine.devices import find_device
from probekit.options.engine import EngineOptions
from probekit.text import counted, listed

AHEAD = 5  # shards that a process has at most: it computes one or two while up to three are on their way to the disk
SECONDS_TO_END = 30.0  # for processes to write what they have computed
SECONDS_TO_DIE = 5.0
TICK = 1.0  # seconds; how often is looked for devices that hang
PIECE = 1 << 16
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")


def find_devices(devices: str | Sequence[str | int]) -> list[str]:
    """The devices that the option means, all of one type; "auto" is every GPU, or else the CPU.

    Raises:
        UsageError: there is no such device, or they are of several types.
    """
    names = EngineOptions(devices=devices).devices or ()
    if list(names) == ["auto"]:
        return [f"cuda:{i}" for i in range(torch.cuda.device_count())] or [find_device("auto").type]
    kinds = {_kind(str(name)) for name in names}
    if len(kinds) > 1:
        raise UsageError(f"devices (--devices) are of one type, as a store has one; got {listed(sorted(kinds))}")
    return [str(name) for name in names]


def type_of_devices(devices: str | Sequence[str | int]) -> str:
    """The type of the devices that the option means, such as "cuda"; errors as in `find_devices`."""
    return torch.device(find_devices(devices)[0]).type


def _kind(name: str) -> str:
    """The type of a device that is there; counting GPUs takes no memory on them."""
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = find_device(name)  # says what is wrong
    if device.type != "cuda" or not torch.cuda.is_available():
        return find_device(device).type
    if (device.index or 0) >= torch.cuda.device_count():
        there = counted(torch.cuda.device_count(), "GPU")
        raise UsageError(f"device {name!a:.60} (--devices) is not there: {there} here, counted from 0")
    return device.type


def run_on_devices(plan: ExtractionPlan, path: AnyPath, options: EngineOptions, progress: bool | None) -> None:
    """Compute every missing shard of the store at `path`, on all devices of the options.

    Raises:
        UsageError: a device that is not there, or of another type than the plan's; a model that is spread over devices.
        DataError: as from `extract`.
        StorageError: as from `extract`; or no device is left, with the first reason.
    """
    devices = find_devices(options.devices or "auto")
    if plan.model.stays:
        raise UsageError(
            f"{plan.model.name} was loaded with device_map or quantize, and stays where it is; "
            "leave out devices (--devices)"
        )
    if torch.device(devices[0]).type != plan.device.type:
        raise UsageError(
            f"device is {plan.device.type}, and devices (--devices) are {listed(devices)}; leave out device"
        )

    def crew() -> Any:
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # what this process computed before, as with `generate`
        return closing(_Devices(devices, path, options.check))

    compute_missing(plan, path, options.check, progress, crew)


class _Process:
    """One process on one device."""

    def __init__(self, name: str, process: Any):
        self.name, self.process = name, process
        self.ready = False
        self.numbers: list[int] = []
        self.heard = time.monotonic()
        self.said, self.noise = b"", b""  # the beginning of a line of stdout, and the end of stderr

    def give(self, numbers: Sequence[int]) -> None:
        """Send it shards; one that has died takes none, which its stdout says."""
        with suppress(OSError):
            self.process.stdin.write("".join(f"{number}\n" for number in numbers).encode())
            self.process.stdin.flush()

    def lines(self, piece: bytes) -> list[Answer]:
        """The answers that a piece of stdout completes."""
        *lines, self.said = (self.said + piece).split(b"\n")
        return [json.loads(line) for line in lines]

    def end_of(self) -> str:
        """Why a process ended that said nothing."""
        try:
            code, stderr = self.process.wait(SECONDS_TO_DIE), self.process.stderr.fileno()
        except subprocess.TimeoutExpired:
            return "its process says nothing more"
        os.set_blocking(stderr, False)  # a child of the process may hold it open
        with suppress(BlockingIOError):
            self.noise += os.read(stderr, PIECE)
        if code < 0:
            memory = " (by the system, if memory ran out)" if -code == signal.SIGKILL else ""
            return f"its process was ended by {signal.Signals(-code).name}{memory}"
        last = self.noise.decode(errors="replace").strip().splitlines()[-1:]
        return f"its process ended with exit code {code}" + (f" ({last[0][:300]})" if last else "")


class _Devices:
    """A process on each device, which is not replaced if it fails; `close` ends all of them."""

    ahead, alike = AHEAD, True

    def __init__(self, devices: Sequence[str], path: AnyPath, check: str):
        self.workers: list[_Process] = []
        self._selector = selectors.DefaultSelector()
        threads = max(1, torch.get_num_threads() // len(devices))
        try:
            for device in devices:
                worker = _Process(device, start(device, path, check, threads))
                self.workers.append(worker)
                for pipe in (worker.process.stdout, worker.process.stderr):
                    self._selector.register(pipe, selectors.EVENT_READ, worker)
        except BaseException:
            self.close()
            raise

    def wanted(self, n_left: int) -> int:
        """None is started later."""
        return 0

    def start(self) -> None:
        """Not called: all were started at once."""
        raise NotImplementedError

    def answers(self) -> list[tuple[_Process, Answer]]:
        """What the processes have written, or why one ended; waits for the first of them, a tick at most."""
        found = []
        for key, _ in self._selector.select(TICK):
            worker, piece = key.data, os.read(key.fd, PIECE)
            if key.fileobj is worker.process.stderr:
                worker.noise = (worker.noise + piece)[-PIECE:]
            elif piece:
                found += [(worker, answer) for answer in worker.lines(piece)]
            else:
                found.append((worker, death_answer(worker.end_of())))
            if not piece:
                self._selector.unregister(key.fileobj)
        return found

    def end(self, worker: _Process) -> None:
        """End a process that failed or hangs; what it had computed is computed again."""
        self.workers.remove(worker)
        for key in [key for key in self._selector.get_map().values() if key.data is worker]:
            self._selector.unregister(key.fileobj)
        _end([worker], 0.0)

    def close(self) -> None:
        """End all processes, once they have written what they have computed."""
        _end(self.workers, SECONDS_TO_END)
        self._selector.close()


def start(device: str, path: AnyPath, check: str, threads: int) -> "subprocess.Popen[bytes]":
    """Start a process on a device. One on a GPU sees that GPU alone, so that nothing lands on another."""
    root = str(Path(__file__).parents[2])
    env = {**os.environ, **dict.fromkeys(_THREADS, str(threads))}
    env["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [env.get("PYTHONPATH")])])
    wanted = torch.device(device)
    if wanted.type == "cuda":
        env["CUDA_VISIBLE_DEVICES"] = visible(wanted.index or 0, env.get("CUDA_VISIBLE_DEVICES"))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "probekit.engines.device_worker", str(path), wanted.type, check],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        start_new_session=True,  # Ctrl-C in a terminal reaches the driver alone, which ends its processes in order
    )


def visible(index: int, of_these: str | None) -> str:
    """The GPU that has this index among those that are visible here, as CUDA_VISIBLE_DEVICES names it."""
    names = [name.strip() for name in (of_these or "").split(",") if name.strip()]
    return names[index] if index < len(names) else str(index)


def _end(workers: Sequence[_Process], seconds: float) -> None:
    """End processes: the end of stdin tells them to; then kill those that are still there after so many seconds."""
    for worker in workers:
        with suppress(OSError):
            worker.process.stdin.close()
    until = time.monotonic() + seconds
    try:
        for worker in workers:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.0, until - time.monotonic()))
    finally:
        for worker in workers:
            if worker.process.poll() is None:
                worker.process.kill()
                with suppress(subprocess.TimeoutExpired):  # a process that hangs in a driver cannot even be killed
                    worker.process.wait(SECONDS_TO_DIE)
            for pipe in (worker.process.stdout, worker.process.stderr):
                pipe.close()
