"""Errors that the user can correct, each with the exit code of the command line."""

import difflib
from collections.abc import Iterable

from probekit.text import listed


class ProbekitError(Exception):
    """An error that the user can correct; one line: what was expected, what came, and what to do."""

    exit_code = 1
    __str__ = Exception.__str__


class UsageError(ProbekitError, ValueError):
    """An invalid argument: an unknown name, a layer out of range, contradicting options."""

    exit_code = 2


class DataError(ProbekitError, ValueError):
    """Input that cannot be used: a model folder, a data file, labels, activations."""

    exit_code = 3


class UnreadError(DataError):
    """A text without the token that is read, such as a chat without an answer."""


class StorageError(ProbekitError):
    """The disk refused, or a file on it is damaged."""

    exit_code = 4


class ResumeMismatch(ProbekitError):
    """The store or results here were made with other settings, or a probe with another model."""

    exit_code = 5


def nearest(name: str, known: Iterable[str], n: int = 3) -> str:
    """A clause that names the known names nearest to `name`, or the first ten of them when none is near."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=n, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known are: {listed(known)}"
