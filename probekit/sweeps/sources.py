"""What a sweep runs over: tasks in folders, files, by name or in memory, and models, each with a name of its own."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probekit.errors import DataError, UsageError
from probekit.files.plain_files import MAX_TABLE, read_bytes
from probekit.options import kinds
from probekit.tasks.base import Task
from probekit.tasks.tables.readers import READERS
from probekit.tasks.tables.sources import is_one_task, is_table


@dataclass(frozen=True, eq=False)
class SweepSource:
    """A task or a model of a sweep.

    Attributes:
        name: which no other task (or model) of the sweep has.
        given: what `load_task` or `load_model` takes, or what they return.
    """

    name: str
    given: Any


def task_sources(given: Any) -> list[SweepSource]:
    """The tasks that are meant.

    Args:
        given: names of tasks with commas between them, paths of files, folders of tasks; or a list of these and of
            `Task` objects; or a dict name -> any of these. A folder with train, validation or test files is one task;
            any other is a task for each table in it, and for each subfolder that is a task.

    Raises:
        UsageError: nothing to run over.
        DataError: a folder without any table.
    """
    if isinstance(given, Mapping):
        return _checked([SweepSource(str(name), one) for name, one in given.items()], "task", "dataset")
    found = [source for one in _several(given) for source in _tasks_of(one)]
    return _checked(_with_names(found), "task", "dataset")


def model_sources(given: Any) -> list[SweepSource]:
    """The models that are meant: names or folders with commas between them, a list of these, or loaded models.

    Raises:
        UsageError: nothing to run over.
    """
    found = [SweepSource(_model_name(one), one) for one in _several(given)]
    return _checked(_with_names(found), "model", "model")


def file_digest(source: SweepSource) -> str:
    """The sha256 of the files of a task; "" for names and objects."""
    path = _path(source.given)
    if path is None:
        return ""
    digest = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file()):
        try:
            digest.update(read_bytes(file, MAX_TABLE))
        except OSError as error:
            raise DataError(f"{str(file)!a}: {error.strerror or error}; check the file") from None
    return digest.hexdigest()


def _several(given: Any) -> list[Any]:
    """The parts of a text with commas, unless it is a path that exists; the items of a list."""
    if isinstance(given, str):
        return [given] if _path(given) is not None else kinds.names(given)
    if isinstance(given, Iterable) and not isinstance(given, Task | os.PathLike):
        return list(given)
    return [given]


def _tasks_of(given: Any) -> list[SweepSource]:
    path = _path(given)
    if isinstance(given, Task):
        return [SweepSource(given.name, given)]
    if path is None or path.is_file() or is_one_task(path):
        return [SweepSource(str(given) if path is None else _stem(path), given)]
    inside = sorted(one for one in path.iterdir() if not one.name.startswith("."))
    found = [one for one in inside if (one.is_file() and is_table(one)) or (one.is_dir() and is_one_task(one))]
    if not found:
        raise DataError(
            f"{str(path)!a} has no tables of tasks (files ending in {', '.join(READERS)}); give a folder of them"
        )
    return [SweepSource(_stem(one), one) for one in found]


def _stem(path: Path) -> str:
    resolved = path.resolve()
    return resolved.stem if resolved.is_file() else resolved.name


def _path(given: Any) -> Path | None:
    """The path that is there under this name; None if there is none."""
    if not isinstance(given, str | os.PathLike):
        return None
    try:
        path = Path(given).expanduser()
        return path if path.exists() and str(given) else None
    except (OSError, RuntimeError, ValueError):
        return None


def _model_name(given: Any) -> str:
    path = _path(given)
    if path is not None:
        return path.resolve().name
    return given if isinstance(given, str) else str(getattr(given, "name", type(given).__name__))


def _with_names(found: list[SweepSource]) -> list[SweepSource]:
    """The sources; those whose names are taken twice have the names of their folders in front, or a number behind."""
    taken = Counter(source.name for source in found)
    named = [
        SweepSource(f"{path.resolve().parent.name}/{source.name}", source.given)
        if taken[source.name] > 1 and (path := _path(source.given)) is not None
        else source
        for source in found
    ]
    seen: Counter[str] = Counter()
    unique = []
    for source in named:
        seen[source.name] += 1
        n = seen[source.name]
        unique.append(source if n == 1 else SweepSource(f"{source.name} ({n})", source.given))
    return unique


def _checked(found: list[SweepSource], what: str, option: str) -> list[SweepSource]:
    if not found:
        raise UsageError(f"a sweep needs at least one {what}, got none; name one (--{option})")
    return found
