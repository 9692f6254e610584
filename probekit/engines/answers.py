"""What workers answer, over a pipe or over Ray: plain values, one line of each error, and nothing pickled by us.

An answer is {"ready": True} once the model is loaded, {"done": [...]} with the fields of each ShardDone, or
{"error": one line, "kind": the name of its class, "errno": of the OSError behind it, or None}.
"""

import sys
from typing import Any

from probekit import errors
from probekit.errors import ProbekitError, StorageError
from probekit.machine.program import is_out_of_memory

Answer = dict[str, Any]
OF_ALL = ("DataError", "StorageError", "ResumeMismatch")  # while computing, errors that every worker would have
_MOST_SAID = 1000  # characters of an error


def error_answer(error: Exception) -> Answer:
    """The answer of a worker that cannot go on."""
    errno = getattr(error.__cause__, "errno", None)
    return {"error": _one_line(error), "kind": type(error).__name__, "errno": errno}


def death_answer(why: str) -> Answer:
    """The answer in the place of one, of a worker whose process is gone."""
    return {"error": why, "kind": "death", "errno": None}


def error_of(answer: Answer, name: str) -> ProbekitError:
    """The error of an answer, as the same class where it is one of ours; `name` says which worker had it."""
    named = getattr(errors, answer["kind"], None)
    kind = named if isinstance(named, type) and issubclass(named, ProbekitError) else StorageError
    error = kind(f"{name}: {answer['error']}")
    if answer["errno"] is not None:  # the command line says what was saved where the disk refused
        error.__cause__ = OSError(answer["errno"], answer["error"])
    return error


def _one_line(error: Exception) -> str:
    torch = sys.modules.get("torch")
    text = " ".join(str(error).split())[:_MOST_SAID]
    if is_out_of_memory(error) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return f"out of memory ({text})" if text else "out of memory"
    return text if isinstance(error, ProbekitError) else f"{type(error).__name__}: {text}"
