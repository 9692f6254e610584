"""`extract --devices`: one process on each device, which all take shards from one queue, the most expensive first.

The processes find everything in the store, and write their shards themselves (`device_worker.py`). Only numbers go over
the pipes. A process that fails is reported in one line, and the others compute its shards.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

import probekit
from probekit.activations.parts.cut import shard_costs
from probekit.activations.parts.work import ShardDone, begin_work, finish_store
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.run.loop import shard_rows
from probekit.devices import find_device
from probekit.errors import DataError, ResumeMismatch, StorageError, UsageError
from probekit.options.engine import EngineOptions
from probekit.progress import progress_bar
from probekit.remote.path import AnyPath
from probekit.text import counted, listed

AHEAD = 5  # shards that a process has at most: it computes one or two while up to three are on their way to the disk
SECONDS_TO_END = 30.0  # for processes to write what they have computed
SECONDS_TO_DIE = 5.0
# A device that says nothing for so long may hang; at the end, idle ones compute its shards too
PATIENCE, TIMES_THE_SLOWEST = 60.0, 10
PIECE = 1 << 16
# errors that every process would have
_OF_ALL = {kind.__name__: kind for kind in (DataError, StorageError, ResumeMismatch)}
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
    missing, costs = begin_work(plan, path, options.check), shard_costs(plan)
    if missing:
        missing.sort(key=lambda number: -costs[number])
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # what this process computed before, as with `generate`
        with _bar(plan, missing, progress) as count, _crew(devices, path, options.check) as crew:
            _Queue(crew, missing, count).compute()
    finish_store(path)


class _Worker:
    """One process on one device."""

    def __init__(self, device: str, process: Any):
        self.device, self.process = device, process
        self.ready = False
        self.given: list[int] = []  # shards that it has not reported yet
        self.heard = time.monotonic()
        self.said, self.noise = b"", b""  # the beginning of a line of stdout, and the end of stderr

    def give(self, number: int) -> None:
        """Send it a shard; one that has died takes none, which its stdout says."""
        if not self.given:
            self.heard = time.monotonic()
        self.given.append(number)
        with suppress(OSError):
            self.process.stdin.write(f"{number}\n".encode())
            self.process.stdin.flush()

    def lines(self, piece: bytes) -> list[dict[str, Any]]:
        """The messages that a piece of stdout completes."""
        *lines, self.said = (self.said + piece).split(b"\n")
        return [json.loads(line) for line in lines]

    def end_of(self) -> str:
        """Why a process ended that said nothing."""
        try:
            code, stderr = self.process.wait(SECONDS_TO_END), self.process.stderr.fileno()
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


class _Queue:
    """Shards that are still to do, and the workers that share them.

    Args:
        crew: the workers; those that fail are removed.
        numbers: of the shards, in the order in which they are given.
        count: called with each shard that is on disk.
    """

    def __init__(self, crew: list[_Worker], numbers: Sequence[int], count: Callable[[ShardDone], None]):
        self._crew, self._left, self._count = crew, deque(numbers), count
        self._undone, self._slowest = set(numbers), 0.0
        self._reasons: list[str] = []
        self._selector = selectors.DefaultSelector()

    def compute(self) -> None:
        """Let the workers compute every shard.

        Raises:
            ProbekitError: an error that every worker would have, or no worker is left.
        """
        with self._selector:
            for worker in self._crew:
                for pipe in (worker.process.stdout, worker.process.stderr):
                    self._selector.register(pipe, selectors.EVENT_READ, worker)
            while self._undone:
                self._give()
                self._give_twice()
                for key, _ in self._selector.select(PATIENCE):
                    if key.data in self._crew:
                        self._hear(key.data, key.fileobj, os.read(key.fd, PIECE))

    def _give(self) -> None:
        """Give shards to workers that are ready; fewer at once near the end, so that none waits for another."""
        left = len(self._left) + sum(len(worker.given) for worker in self._crew)
        for ahead in range(1, min(AHEAD, max(1, left // (2 * len(self._crew)))) + 1):
            for worker in self._crew:
                if self._left and worker.ready and len(worker.given) < ahead:
                    worker.give(self._left.popleft())

    def _give_twice(self) -> None:
        """Give the shards of a device that may hang to an idle one too; whoever writes a shard first has done it."""
        idle = [worker for worker in self._crew if worker.ready and not worker.given]
        if self._left or not idle:
            return
        patience = max(PATIENCE, TIMES_THE_SLOWEST * self._slowest)
        for worker in self._crew:
            silent = time.monotonic() - worker.heard
            held = {number for other in self._crew if other is not worker for number in other.given}
            if silent > patience and (shards := [n for n in worker.given if n in self._undone - held]):
                for one, number in zip(cycle(idle), shards, strict=False):
                    one.give(number)
                self._warn(f"{worker.device} has said nothing for {silent:,.0f} s", [one.device for one in idle])

    def _hear(self, worker: _Worker, pipe: Any, piece: bytes) -> None:
        """Take up a piece of what a worker wrote; nothing is the end of it."""
        if pipe is worker.process.stderr:
            worker.noise = (worker.noise + piece)[-PIECE:]
            if not piece:
                self._selector.unregister(pipe)
        elif not piece:
            self._lose(worker, worker.end_of())
        else:
            for message in worker.lines(piece):
                self._take(worker, message)

    def _take(self, worker: _Worker, message: dict[str, Any]) -> None:
        worker.heard = time.monotonic()
        if "done" in message:
            done = ShardDone(**message["done"])
            worker.given.remove(done.number)
            self._slowest = max(self._slowest, done.seconds)
            if done.number in self._undone:
                self._undone.remove(done.number)
                self._count(done)
        elif "ready" in message:
            worker.ready = True
        elif kind := _OF_ALL.get(message["kind"]):
            # the command line says what was saved where the disk refused
            cause = None if message["errno"] is None else OSError(message["errno"], message["error"])
            raise kind(message["error"]) from cause
        else:
            self._lose(worker, message["error"])

    def _lose(self, worker: _Worker, why: str) -> None:
        """Put the shards of a worker that failed back, and say so.

        Raises:
            StorageError: no worker is left.
        """
        self._crew.remove(worker)
        for key in [key for key in self._selector.get_map().values() if key.data is worker]:
            self._selector.unregister(key.fileobj)
        _end([worker])
        self._left.extendleft(number for number in reversed(worker.given) if number in self._undone)
        worker.given.clear()
        self._reasons.append(f"{worker.device}: {why}")
        if self._crew:
            self._warn(self._reasons[-1], [one.device for one in self._crew])
            return
        first, failed = self._reasons[0], len(self._reasons) - 1
        more = f"; then {counted(failed, 'other device')} failed" if failed else ""
        memory = "; a smaller --batch-tokens needs less" if "out of memory" in first else ""
        raise StorageError(f"{first}{more}{memory}; finished shards stay: run the same command again to resume")

    def _warn(self, what: str, others: list[str]) -> None:
        warnings.warn(f"{what}; its shards go to {listed(others)}", stacklevel=2)


@contextmanager
def _crew(devices: Sequence[str], path: AnyPath, check: str) -> Iterator[list[_Worker]]:
    """A process on each device; at the end of the context none is left."""
    everyone: list[_Worker] = []
    threads = max(1, torch.get_num_threads() // len(devices))
    try:
        for device in devices:
            everyone.append(_Worker(device, start(device, path, check, threads)))
        yield list(everyone)
    finally:
        _end(everyone)


def start(device: str, path: AnyPath, check: str, threads: int) -> "subprocess.Popen[bytes]":
    """Start a process on a device. One on a GPU sees that GPU alone, so that nothing lands on another."""
    root = str(Path(probekit.__file__).parents[1])
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


def _end(workers: Sequence[_Worker]) -> None:
    """End processes: the end of stdin tells them to; then kill those that do not."""
    for worker in workers:
        with suppress(OSError):
            worker.process.stdin.close()
    until = time.monotonic() + SECONDS_TO_END
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


@contextmanager
def _bar(plan: ExtractionPlan, missing: list[int], show: bool | None) -> Iterator[Callable[[ShardDone], None]]:
    """One bar over all devices: texts done and time left, tokens per second, megabytes so far."""
    start, tokens, n_bytes = time.monotonic(), 0, 0
    there = set(range(len(plan.shards))) - set(missing)
    with progress_bar("extract", "texts", len(plan.task), show) as bar:
        bar.advance(sum(len(shard_rows(plan, number)) for number in there))

        def count(done: ShardDone) -> None:
            nonlocal tokens, n_bytes
            if done.computed:
                tokens, n_bytes = tokens + done.tokens, n_bytes + done.n_bytes
            rate = tokens / (time.monotonic() - start)
            bar.advance(done.rows, f"{rate:,.0f} tokens/s, {n_bytes / 1e6:,.0f} MB")

        yield count
