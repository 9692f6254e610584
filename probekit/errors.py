"""The errors that are the user's to mend, each with the exit code of the command line."""

import difflib
from collections.abc import Iterable


class ProbekitError(Exception):
    """Something the user can mend: one line saying what was expected, what came and what to do."""

    exit_code = 1
    __str__ = Exception.__str__


class UsageError(ProbekitError, ValueError):
    """An argument that cannot be: an unknown name, a layer out of range, options at odds."""

    exit_code = 2


class DataError(ProbekitError, ValueError):
    """Input that cannot be used: a model folder, a data file, labels, activations."""

    exit_code = 3


class StorageError(ProbekitError):
    """The disk refused, or what stands on it is damaged."""

    exit_code = 4


class ResumeMismatch(ProbekitError):
    """A store exists at this place and was made with other settings."""

    exit_code = 5


def nearest(name: str, known: Iterable[str], n: int = 3) -> str:
    """A clause that names the nearest of `known` to `name`, or all of them when none is near."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=n, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known are: {', '.join(known)}"
