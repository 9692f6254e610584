"""One warm process for all campaigns (`campaign.py`): forking is safe there, for it runs no threads."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NIGHTLY = os.environ.get("PROBEKIT_FAULTS") == "nightly"
REPO = Path(__file__).parents[2]
MEMORY = Path("/dev/shm")

Verdict = dict[str, Any]
Campaign = Callable[..., Verdict]


@pytest.fixture(scope="session")
def server() -> Iterator[subprocess.Popen[str]]:
    if not hasattr(os, "fork") or not Path("/proc/self/fd").is_dir():
        pytest.skip("the campaigns fork, and read /proc")
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(REPO), str(REPO / "tests"), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, str(Path(__file__).with_name("campaign.py")), "--serve"]
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


@pytest.fixture
def campaign(server: subprocess.Popen[str], tmp_path: Path) -> Campaign:
    """Run a campaign by name, with the rounds of every day or those of the night (`PROBEKIT_FAULTS=nightly`)."""

    def run(name: str, daily: int, nightly: int, seed: int = 0, kind: str = "store") -> Verdict:
        in_memory = not NIGHTLY and os.access(MEMORY, os.W_OK)
        task = {"campaign": name, "rounds": nightly if NIGHTLY else daily, "seed": seed, "kind": kind}
        assert server.stdin
        assert server.stdout
        server.stdin.write(json.dumps({**task, "folder": str(MEMORY if in_memory else tmp_path)}) + "\n")
        server.stdin.flush()
        verdict = json.loads(server.stdout.readline())
        assert verdict["broken"] == []
        return verdict

    return run
