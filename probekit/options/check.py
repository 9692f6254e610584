"""Checks of option values that many options share; without numpy."""

import math
import numbers
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from probekit.errors import UsageError, nearest
from probekit.files.remote.path import AnyPath, RemotePath, as_path, local_path
from probekit.text import listed

C_RANGE = 1e-100, 1e100  # float64 holds its products with losses, and their squares


def check_whole(name: str, value: Any, least: int = 1) -> int:
    """`value` as an int. Raises UsageError unless it is a whole number, `least` or more."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        raise UsageError(f"{name} must be a whole number, {least} or more; got {value!a:.60}")
    return int(value)


def check_positive(name: str, value: Any) -> float:
    """`value` as a float. Raises UsageError unless it is a positive, finite number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < float(value) < math.inf:
        raise UsageError(f"{name} must be a positive, finite number; got {value!a:.60}")
    return float(value)


def check_strength(name: str, value: Any, without_penalty: bool = True) -> float:
    """`value` as a float. Raises UsageError unless it is a C in `C_RANGE`, or infinity if `without_penalty`."""
    if not without_penalty:
        check_positive(name, value)
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not float(value) > 0:
        raise UsageError(f"{name} must be a positive number, or inf for no penalty; got {value!a:.60}")
    low, high = C_RANGE
    if not (low <= float(value) <= high or value == math.inf):
        raise UsageError(f"{name} must be between {low:g} and {high:g}; got {value!a:.60}")
    return float(value)


def check_among(name: str, value: Any, choices: Sequence[str | None]) -> None:
    """Raise a UsageError unless the value of an option is one of these; it names the nearest."""
    if not (value is None or isinstance(value, str)) or value not in choices:
        known = [one for one in choices if one is not None]
        hint = nearest(value, known) if isinstance(value, str) else ""
        more = f"; {hint}" if hint.startswith("did you mean") else ""
        flag = f"--{name.replace('_', '-')}"
        raise UsageError(f"{name} ({flag}) is one of {listed(known)}; got {value!a:.60}{more}")


def check_path(name: str, value: Any) -> Path:
    """`value` as a path on this machine. Raises UsageError unless it is a text or a path, or if it is elsewhere."""
    found = check_any_path(name, value)
    if (path := local_path(found)) is None:
        raise UsageError(f"{name} must be a folder or a file on this machine; got {str(found)!a:.80}")
    return path


def check_any_path(name: str, value: Any) -> AnyPath:
    """`value` as a path, or as a place in an object store. Raises UsageError unless it is one."""
    if isinstance(value, RemotePath):
        return value
    if not isinstance(value, str | os.PathLike) or isinstance(os.fspath(value), bytes):
        raise UsageError(f"{name} must be a path; got {value!a:.60}")
    return as_path(os.fspath(value))


def check_there(path: Path) -> Path:
    """`path` itself. Raises UsageError unless a file or folder is there, on this machine."""
    if local_path(as_path(path)) is None:
        raise UsageError(f"{str(as_path(path))!a:.80} is not on this machine; copy it here first")
    if not path.exists():
        raise UsageError(f"no file or folder {str(path)!a}; check the path")
    return path


def check_names(name: str, value: Any) -> list[str]:
    """`value`, "text,label" or a list, as different names. Raises UsageError unless it is such."""
    given = value.split(",") if isinstance(value, str) else value
    names = [one.strip() if isinstance(one, str) else one for one in given] if isinstance(given, list | tuple) else []
    if not names or len(set(names)) < len(names) or not all(isinstance(one, str) and one for one in names):
        raise UsageError(f"{name} (--{name}) must be different names such as text,label; got {value!a:.60}")
    return names


def is_whole(value: Any) -> bool:
    """True for a whole number, of Python or NumPy."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_real(value: Any) -> bool:
    """True for a real number, of Python or NumPy."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
