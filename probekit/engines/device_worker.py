"""One process of `extract --devices`: it computes the shards that it is sent, on one device, and writes them itself.

    python -m probekit.engines.device_worker STORE DEVICE CHECK

Numbers of shards come by stdin, one on a line. Each line of stdout is a JSON object: {"ready": true} once the model is
loaded, {"done": [...]} for each shard, or {"error": ...}, after which the process ends (`answers.py`). It also ends,
dropping the shard that it computes, when stdin ends: a driver that was killed leaves no process behind.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from queue import SimpleQueue

from probekit.engines.answers import Answer, error_answer
from probekit.machine.program import STOPPING

SECONDS_TO_END = 20.0  # for shards on their way to the disk; a call into CUDA may never come back


def serve(args: list[str]) -> int:
    """Compute shards until there are no more numbers to come; the exit code."""
    path, device, check = args
    for number in STOPPING:  # Slurm sends them to every process of a job: the driver decides
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, _interrupt)
    answers = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no answer
    numbers: SimpleQueue[int] = SimpleQueue()
    threading.Thread(target=_read, args=(numbers, threading.get_ident()), daemon=True).start()
    try:
        _work(path, device, check, numbers, answers)
    except (KeyboardInterrupt, BrokenPipeError):
        return 0
    except Exception as error:
        _say(answers, error_answer(error))
        return 1
    return 0


def _work(path: str, device: str, check: str, numbers: "SimpleQueue[int]", answers: int) -> None:
    from probekit.activations.parts.work import open_work, write_shards

    plan = open_work(path, device)
    _say(answers, {"ready": True})
    while True:
        first = numbers.get()
        for done in write_shards(plan, path, _waiting(first, numbers), check):
            _say(answers, {"done": [asdict(done)]})


def _waiting(number: int, numbers: "SimpleQueue[int]") -> Iterator[int]:
    """A number, and those that wait behind it; the end of them lets every shard get to the disk."""
    yield number
    while not numbers.empty():
        yield numbers.get()


def _read(numbers: "SimpleQueue[int]", main_thread: int) -> None:
    """Pass the numbers on; at the end of them interrupt the work, and end the process if that does not help."""
    for line in sys.stdin.buffer:
        numbers.put(int(line))
    signal.pthread_kill(main_thread, signal.SIGALRM)
    time.sleep(SECONDS_TO_END)
    os._exit(1)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _say(answers: int, what: Answer) -> None:
    os.write(answers, json.dumps(what).encode() + b"\n")  # shorter than a pipe takes at once


if __name__ == "__main__":
    code = serve(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # a GPU's libraries take seconds to end, and nothing is left to do
