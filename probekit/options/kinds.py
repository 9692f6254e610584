"""Check values of options against the types of their fields, so that a wrong one is refused before anything runs."""

import dataclasses
import numbers
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from probekit.errors import UsageError
from probekit.files.remote.path import RemotePath
from probekit.text import kind_of

WORDS: dict[Any, str] = {
    str: "a text",
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    Path: "a path",
    RemotePath: "a path",
    Iterable: "a list",
    Sequence: "a list",
    Callable: "a function",
    NoneType: "None",
}


class CallError(UsageError, TypeError):
    """A call with arguments that the function does not have; also a TypeError, as Python's own are."""


def check_kinds(options: type, given: Mapping[str, Any], by_place: Sequence[str] = ()) -> None:
    """Check the values that are given for the fields of an options class.

    Fields of other types than those of `WORDS` (Any, Literal, types of torch) are left to their own checks.

    Args:
        options: the class.
        given: field -> value.
        by_place: fields whose values were given by position, perhaps by mistake.

    Raises:
        UsageError: a value of another type.
    """
    for field in dataclasses.fields(options):
        kinds = _kinds(field.type) if field.name in given else None
        if kinds and not any(_is_of(given[field.name], kind) for kind in kinds):
            hint = "; give options by name" if field.name in by_place else ""
            raise UsageError(f"{field.name} must be {_in_words(kinds)}; got {_shown(given[field.name])}{hint}")


def _in_words(kinds: Sequence[Any]) -> str:
    words = list(dict.fromkeys(WORDS[kind] for kind in kinds))
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _shown(value: Any) -> str:
    if isinstance(value, bool | int | float | str | NoneType):
        return f"{value!a:.60}"
    return kind_of(value)


def _kinds(annotation: Any) -> list[Any] | None:
    """The types of a field's union; None where one of them is not in `WORDS`."""
    parts = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    kinds = [get_origin(part) or part for part in parts]
    return kinds if all(isinstance(kind, type) and kind in WORDS for kind in kinds) else None


def _is_of(value: Any, kind: Any) -> bool:
    if kind is bool:
        return type(value).__name__ in ("bool", "bool_")  # of Python or NumPy
    if kind in (int, float):
        number = numbers.Integral if kind is int else numbers.Real
        return isinstance(value, number) and not isinstance(value, bool)
    if kind is Path:
        return isinstance(value, os.PathLike)
    return isinstance(value, kind) and not (kind in (Iterable, Sequence) and isinstance(value, bytes))
