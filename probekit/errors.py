"""The errors that a user can fix, each with its exit code on the command line."""

import difflib
from collections.abc import Iterable


class ProbekitError(Exception):
    """Something that the user can fix: one line says what was expected, what came and what to do."""

    exit_code = 1
    __str__ = Exception.__str__


class UsageError(ProbekitError, ValueError):
    """An argument that cannot be used: an unknown name, a layer out of range, options that contradict each other."""

    exit_code = 2


class DataError(ProbekitError, ValueError):
    """Input that cannot be used: a model folder, a data file, labels, activations."""

    exit_code = 3


class StorageError(ProbekitError):
    """The disk refused, or a file on it is damaged."""

    exit_code = 4


class ResumeMismatch(ProbekitError):
    """A store or results with other settings are already there."""

    exit_code = 5


def nearest(name: str, known: Iterable[str], n: int = 3) -> str:
    """A clause that names the entries of `known` nearest to `name`, or all of them if none is near."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=n, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known are: {', '.join(known)}"
