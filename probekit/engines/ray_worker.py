"""A worker of `extract --engine ray`: one process of the cluster, which computes and writes the shards it is given.

It gets a path and numbers, and answers with plain values: {"node": ...} when it runs, {"loaded": True} when it has the
model, {"done": [...]} with the fields of each ShardDone, or {"error": ..., "kind": ..., "errno": ...}.
"""

import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from probekit.errors import ProbekitError, StorageError, UsageError
from probekit.program import is_out_of_memory

Answer = dict[str, Any]
_MOST_SAID = 1000  # characters of an error


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
            _check_versions(versions)
            self._path, self._check = path, check
            return {"node": here()}

        return _answer(compare)

    def load(self) -> Answer:
        """Load the model of the store."""

        def load() -> Answer:
            from probekit.activations.parts.work import open_work

            self._plan = open_work(self._path)
            return {"loaded": True}

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

    from probekit import __version__

    return {"probekit": __version__, "torch": str(torch.__version__)}


def _answer(work: Callable[[], Answer]) -> Answer:
    try:
        return work()
    except Exception as error:
        cause = error.__cause__
        return {"error": _said(error), "kind": type(error).__name__, "errno": getattr(cause, "errno", None)}


def _said(error: Exception) -> str:
    torch = sys.modules.get("torch")
    text = " ".join(str(error).split())[:_MOST_SAID]
    if is_out_of_memory(error) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return f"out of memory ({text})" if text else "out of memory"
    return text if isinstance(error, ProbekitError) else f"{type(error).__name__}: {text}"


def _check_sees(path: str) -> None:
    if "://" not in path and not os.path.lexists(Path(path) / "plan.json"):
        raise StorageError(
            f"node {here()} cannot see {str(path)!a}, which the driver has begun; write to a folder that all machines "
            "share (--out), or to an object store such as s3://"
        )


def _check_versions(versions: Mapping[str, str]) -> None:
    found = own_versions()
    differing = [
        f"{name} {found[name]} there, {version} here" for name, version in versions.items() if found[name] != version
    ]
    if differing:
        raise UsageError(f"node {here()} has other versions ({', '.join(differing)}); install the same on all machines")
