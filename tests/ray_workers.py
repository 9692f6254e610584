"""A worker of Ray that misbehaves as files in a folder tell it to.

The folder is CONTROL in the environment of the cluster. Orders: `kill`, `hang` or `fail`, once, for the first worker
that comes to a shard; `elsewhere`, workers do not see the store; `hold`, all wait when the store has `HELD` records.
Each worker that is given shards leaves a file `ran-PID`.
"""

import os
import signal
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


if __name__ == "__main__":  # a driver for tests that kill it
    import sys

    from probekit.cli.main import run

    ray_extract.ShardWorker = OddWorker
    sys.exit(run(sys.argv[1:]))
