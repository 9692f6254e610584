"""A worker of `extract --engine ray`: one process of the cluster, which computes and writes the shards it is given.

It gets a path and numbers. It answers {"node": the name of its machine} when it runs, and then as `answers.py` says.
"""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from probekit.engines.answers import Answer, error_answer
from probekit.errors import StorageError, UsageError
from probekit.text import listed


class ShardWorker:
    """An actor of the cluster.

    Its checks and the model's loading are calls, and no part of `__init__`, of whose errors Ray makes a traceback.
    """

    def __init__(self) -> None:
        self._path, self._check, self._plan = "", "size", None

    def look(self, path: str, versions: Mapping[str, str], check: str) -> Answer:
        """Check that this machine sees the store at `path` and has the driver's versions."""

        def compare() -> Answer:
            _check_sees(path)
            check_versions(versions)
            self._path, self._check = path, check
            return {"node": here()}

        return _answer(compare)

    def load(self) -> Answer:
        """Load the model of the store."""

        def load() -> Answer:
            from probekit.activations.parts.work import open_work

            self._plan = open_work(self._path)
            return {"ready": True}

        return _answer(load)

    def write(self, numbers: Sequence[int]) -> Answer:
        """Compute these shards and write them; those that have a record already are not computed again."""

        def compute() -> Answer:
            from probekit.activations.parts.work import write_shards

            assert self._plan is not None
            return {"done": [asdict(done) for done in write_shards(self._plan, self._path, numbers, self._check)]}

        return _answer(compute)


def here() -> str:
    """The name of this machine."""
    return socket.gethostname()


def own_versions() -> dict[str, str]:
    """Versions that must be the same wherever shards of a store are computed."""
    import torch

    from probekit.machine.versions import __version__

    return {"probekit": __version__, "torch": str(torch.__version__)}


def _answer(work: Callable[[], Answer]) -> Answer:
    try:
        return work()
    except Exception as error:
        return error_answer(error)


def _check_sees(path: str) -> None:
    if "://" not in path and not os.path.lexists(Path(path) / "plan.json"):
        raise StorageError(
            f"node {here()} cannot see {str(path)!a}, which the driver has begun; write to a folder that all machines "
            "share (--out), or to an object store such as s3://"
        )


def check_versions(versions: Mapping[str, str]) -> None:
    """Raise a UsageError unless this machine has the driver's versions."""
    found = own_versions()
    differing = [
        f"{name} {found[name]} there, {version} here" for name, version in versions.items() if found[name] != version
    ]
    if differing:
        raise UsageError(f"node {here()} has other versions ({listed(differing)}); install the same on all machines")
