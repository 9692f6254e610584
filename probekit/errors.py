"""Errors that the user can correct, each with its exit code on the command line."""

import difflib
from collections.abc import Iterable


class ProbekitError(Exception):
    """Something the user can correct: one line that says what was expected, what came, and what to do."""

    exit_code = 1
    __str__ = Exception.__str__


class UsageError(ProbekitError, ValueError):
    """An invalid argument: an unknown name, a layer out of range, options that contradict each other."""

    exit_code = 2


class DataError(ProbekitError, ValueError):
    """Unusable input: a model folder, a data file, labels, activations."""

    exit_code = 3


class StorageError(ProbekitError):
    """The disk refused, or a file on it is damaged."""

    exit_code = 4


class ResumeMismatch(ProbekitError):
    """A store or results with other settings are already in this folder."""

    exit_code = 5


def nearest(name: str, known: Iterable[str], n: int = 3) -> str:
    """Return a clause that names the `known` values closest to `name`, or all of them when none is close."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=n, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known are: {', '.join(known)}"
