"""A worker of Ray that misbehaves as files in a folder tell it to.

The folder is CONTROL in the environment of the cluster. Orders: `kill`, `hang` or `fail`, once, for the first worker
that comes to a shard; `elsewhere`, workers do not see the store; `hold`, all wait when the store has `HELD` records.
Each worker that is given shards leaves a file `ran-PID`.

As a program, `ray_workers.py STUB` makes a program STUB, and serves it until stdin ends: it runs the script of Ray's
workers, or a driver (`drive`), in a fork of a process that has imported torch, which would take each of them seconds.
Ray is not imported before: it reads the environment when it is.
"""

import json
import os
import runpy
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probekit.engines import ray_extract
from probekit.engines.answers import ShardWorker

CONTROL = "PROBEKIT_TEST_CONTROL"
HELD = 3


class OddWorker(ShardWorker):
    """Does what the files say before each shard."""

    def look(self, path: str, versions: Mapping[str, str], check: str) -> dict[str, Any]:
        if (Path(os.environ[CONTROL]) / "elsewhere").exists():
            path += "-that-only-the-driver-sees"
        return super().look(path, versions, check)

    def write(self, numbers: Sequence[int]) -> dict[str, Any]:
        folder, done = Path(os.environ[CONTROL]), []
        (folder / f"ran-{os.getpid()}").touch()
        for number in numbers:
            while (folder / "hold").exists() and len(list(Path(self._path).glob("records/*.json"))) >= HELD:
                time.sleep(0.02)
            if _claimed(folder / "kill"):
                os.kill(os.getpid(), signal.SIGKILL)
            if _claimed(folder / "hang"):
                time.sleep(600)
            if _claimed(folder / "fail"):
                return {
                    "error": "RuntimeError: CUDA error: unspecified launch failure",
                    "kind": "RuntimeError",
                    "errno": None,
                }
            answer = super().write([number])
            if "error" in answer:
                return answer
            done += answer["done"]
        return {"done": done}


def _claimed(file: Path) -> bool:
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True


def drive(arguments: list[str]) -> int:
    """A driver for tests that kill it, which says its number: a command with these workers, or `sweep` and options."""
    (Path(os.environ[CONTROL]) / "driver").write_text(str(os.getpid()))
    if arguments[0] == "sweep":
        import ray

        import probekit as pk

        address, model, tasks, options = arguments[1:]
        ray.init(address=address, log_to_driver=False)
        pk.sweep(model, tasks, **json.loads(options))
        return 0
    from probekit.cli.main import run

    ray_extract.ShardWorker = OddWorker
    return run(arguments)


def forked(arguments: list[str]) -> int:
    """A worker of Ray, or a driver."""
    if not arguments[0].endswith("default_worker.py"):
        return drive(arguments)
    sys.argv = arguments
    runpy.run_path(arguments[0], run_name="__main__")
    return 0


def main() -> None:
    """Serve the stub."""
    import ray_tasks  # noqa: F401  # what workers and drivers import
    import torch
    from warm_program import WarmProgram

    import probekit.cli.extract
    import probekit.cli.main
    import probekit.models.families.gpt2
    import probekit.verbs.sweep
    import probekit.verbs.train_probes  # noqa: F401

    torch.set_num_threads(1)
    program = WarmProgram(Path(sys.argv[1]), forked)
    sys.stdin.read()
    program.close()


if __name__ == "__main__":
    main()
