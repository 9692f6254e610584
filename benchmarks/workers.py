"""Contestants of a benchmark, each in a process of its own that is kept alive, so that runs can take turns.

A request and its reply are one line of JSON each, on the worker's stdin and stdout; tensors go through files.
A worker may run under another Python, with packages of its own: this file needs the standard library alone.
"""

import ctypes
import gc
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

THREADS = 2
_UNSET = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
_SET = {
    "OMP_NUM_THREADS": str(THREADS),
    "MKL_NUM_THREADS": str(THREADS),
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}


class WorkerFailed(Exception):
    """What the worker said, or that it died."""


class Worker:
    """`python script *arguments`, which must call `serve`."""

    def __init__(self, script: str | Path, *arguments: str, python: str = sys.executable):
        env = {key: value for key, value in os.environ.items() if key not in _UNSET} | _SET
        command = [python, str(script), *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True)

    def ask(self, **request: Any) -> dict[str, Any]:
        """The reply; WorkerFailed when the worker raised an error or died."""
        assert self._process.stdin
        assert self._process.stdout
        with suppress(BrokenPipeError):
            print(json.dumps(request), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise WorkerFailed(f"died with exit code {self._process.wait()}")
        reply = json.loads(line)
        if "error" in reply:
            raise WorkerFailed(reply["error"])
        return reply

    def close(self) -> None:
        """End the process: it stops when its stdin does."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer requests until stdin ends; whatever else prints to stdout goes to stderr."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line))
        except Exception as error:
            traceback.print_exc()
            first = (str(error).splitlines() or [""])[0]
            reply = {"error": f"{type(error).__name__}: {first}"}
        print(json.dumps(reply), file=replies, flush=True)


def resident() -> int:
    """Bytes that this process holds, what is free for the allocator to reuse left out."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    forget_peak()
    return peak()


def forget_peak() -> None:
    """Let the peak of the resident memory begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def peak() -> int:
    """Resident bytes at most, since `forget_peak`; getrusage would count those of the process that started this one."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def timed(work: Callable[[], Any], clock: Callable[[], float]) -> tuple[float, int, Any]:
    """Seconds of this clock, peak resident bytes and the result of `work()`."""
    resident()
    start = clock()
    result = work()
    return clock() - start, peak(), result
