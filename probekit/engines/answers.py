"""What workers answer, over a pipe or over Ray, and what they compare first: plain values, and nothing pickled by us.

`ShardWorker` is here so that versions are compared before anything else of this package is imported on its machine.

An answer says what was done, such as {"ready": True} or {"done": [...]} with the fields of each ShardDone; or it is
{"error": one line, "kind": the name of its class, "errno": of the OSError behind it, or None}.
"""

import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Any

from probekit import errors
from probekit.errors import ProbekitError, StorageError, UsageError
from probekit.machine.program import is_out_of_memory
from probekit.text import listed

Answer = dict[str, Any]
OF_ALL = ("DataError", "StorageError", "ResumeMismatch")  # while computing, errors that every worker would have
_MOST_SAID = 1000  # characters of an error


def error_answer(error: Exception) -> Answer:
    """The answer of a worker that cannot go on."""
    torch, said = sys.modules.get("torch"), one_line(error)
    if is_out_of_memory(error) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        said = f"out of memory ({said})" if str(error) else "out of memory"
    elif not isinstance(error, ProbekitError):
        said = f"{type(error).__name__}: {said}"
    return {"error": said, "kind": type(error).__name__, "errno": getattr(error.__cause__, "errno", None)}


def death_answer(why: str) -> Answer:
    """The answer in the place of one, of a worker whose process is gone."""
    return {"error": why, "kind": "death", "errno": None}


def error_of(answer: Answer, name: str, other: type[ProbekitError] = StorageError) -> ProbekitError:
    """The error of an answer, as the same class where it is one of ours, else as `other`; `name` says who had it."""
    named = getattr(errors, answer["kind"], None)
    kind = named if isinstance(named, type) and issubclass(named, ProbekitError) else other
    error = kind(f"{name}: {answer['error']}")
    if answer.get("errno") is not None:  # the command line says what was saved where the disk refused
        error.__cause__ = OSError(answer["errno"], answer["error"])
    return error


def one_line(error: BaseException) -> str:
    """What an error says, on one line; the name of its kind where it says nothing."""
    return " ".join(str(error).split())[:_MOST_SAID] or type(error).__name__


def here() -> str:
    """The name of this machine."""
    return socket.gethostname()


def own_versions() -> dict[str, str]:
    """Versions that must be the same wherever parts of a run are computed."""
    import torch

    from probekit.machine.versions import __version__

    return {"probekit": __version__, "torch": str(torch.__version__)}


def check_versions(versions: Mapping[str, str]) -> None:
    """Raise a UsageError unless this machine has the driver's versions."""
    found = own_versions()
    differing = [
        f"{name} {found[name]} there, {version} here" for name, version in versions.items() if found[name] != version
    ]
    if differing:
        raise UsageError(f"node {here()} has other versions ({listed(differing)}); install the same on all machines")


def check_sees(path: str, file: str) -> None:
    """Raise a StorageError unless this machine sees the folder where the driver works, which has this file."""
    if "://" not in path and not os.path.lexists(Path(path) / file):
        raise StorageError(
            f"node {here()} cannot see {path!a}, where the driver works; take a folder that all machines share, or an "
            "object store such as s3://"
        )


def _answering(method: Callable[..., Answer]) -> Callable[..., Answer]:
    """The method with an `error_answer` in the place of an error, of which Ray would make a traceback."""

    @wraps(method)
    def answer(self: "ShardWorker", *given: Any) -> Answer:
        try:
            return method(self, *given)
        except Exception as error:
            return error_answer(error)

    return answer


class ShardWorker:
    """A worker of `extract --engine ray`: an actor of the cluster, which computes and writes the shards it is given."""

    def __init__(self) -> None:
        self._path, self._check, self._plan = "", "size", None

    @_answering
    def look(self, path: str, versions: Mapping[str, str], check: str) -> Answer:
        """Check that this machine sees the store at `path` and has the driver's versions: {"node": its name}."""
        check_sees(path, "plan.json")
        check_versions(versions)
        self._path, self._check = path, check
        return {"node": here()}

    @_answering
    def load(self) -> Answer:
        """Load the model of the store."""
        from probekit.activations.parts.work import open_work

        self._plan = open_work(self._path)
        return {"ready": True}

    @_answering
    def write(self, numbers: Sequence[int]) -> Answer:
        """Compute these shards and write them; those that have a record already are not computed again."""
        from probekit.activations.parts.work import write_shards

        assert self._plan is not None
        return {"done": [asdict(done) for done in write_shards(self._plan, self._path, numbers, self._check)]}
