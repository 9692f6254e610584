"""A worker of Ray that misbehaves as files in a folder tell it to, each file once.

The folder is CONTROL in the environment of the cluster. Files: `kill`, `hang` or `fail`, for the first worker that
computes a shard after it is there; `slow`, for as long as it is there.
"""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from probekit.engines import ray_pool, ray_worker

CONTROL = "PROBEKIT_TEST_CONTROL"


class OddWorker(ray_worker.ShardWorker):
    """Does what the files say before each shard."""

    def write(self, numbers: Sequence[int]) -> dict[str, Any]:
        folder, done = Path(os.environ[CONTROL]), []
        for number in numbers:
            if (folder / "slow").exists():
                time.sleep(0.3)
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

    ray_pool.ShardWorker = OddWorker
    sys.exit(run(sys.argv[1:]))
