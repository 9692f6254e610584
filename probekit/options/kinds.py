"""The kinds of values that options have: how each is typed, checked and described, once; nothing here needs torch."""

import dataclasses
import math
import numbers
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from probekit.errors import UsageError, nearest
from probekit.files.remote.path import RemotePath
from probekit.machine.dtypes import SHORT
from probekit.options.check import check_among, check_names, check_whole, is_real, is_whole
from probekit.points import check_layers
from probekit.selections import Selection, check_together, parse_selections
from probekit.text import kind_of

MAX_STACKED = 10_000


def _any(_: str, value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Kind:
    """What the values of an option are.

    Attributes:
        check: (the option's name, a value) -> the value that the options keep. Raises UsageError.
        parse: what was typed -> a value for `check`; None where typer reads it, as numbers, texts and paths.
        metavar: the placeholder in `--help`.
        typed: what typer reads, where the field's annotation does not say it.
        choices: the words of which it is one.
    """

    check: Callable[[str, Any], Any] = _any
    parse: Callable[[str], Any] | None = None
    metavar: str | None = None
    typed: Any = None
    choices: tuple[str, ...] = ()


def whole(least: int, metavar: str = "N") -> Kind:
    """A whole number, `least` or more."""
    return Kind(lambda name, value: check_whole(name, value, least), metavar=metavar, typed=int)


def number(what: str, fits: Callable[[float], bool], metavar: str) -> Kind:
    """A number that fits; `what` says which do."""

    def check(name: str, value: Any) -> Any:
        if not (is_real(value) and fits(float(value))):
            raise UsageError(f"{name} must be {what}; got {value!a:.60}")
        return value

    return Kind(check, metavar=metavar, typed=float)


RATE = number("a rate between 0 and 1, such as 0.01", lambda value: 0 < value < 1, "RATE")
POSITIVE = number("a positive, finite number", lambda value: 0 < value < math.inf, "NUMBER")


def choice(*names: str) -> Kind:
    """One of a few words."""

    def check(name: str, value: Any) -> Any:
        check_among(name, value, names)
        return value

    return Kind(check, metavar="|".join(names), typed=str, choices=names)


READING = choice("hash", "size")  # how a store is checked as it is read


def name_of(what: str, known: Sequence[str], metavar: str = "NAME") -> Kind:
    """One of many names; an unknown one is answered with those near it."""

    def check(_: str, value: Any) -> Any:
        if value not in known:
            raise UsageError(f"unknown {what} {value!a:.60}; {nearest(str(value), known)}")
        return value

    return Kind(check, metavar=metavar)


def matching(pattern: str, what: str, metavar: str) -> Kind:
    """A text of this form; `what` says which have it."""

    def check(name: str, value: Any) -> Any:
        if re.fullmatch(pattern, str(value), re.DOTALL) is None:
            raise UsageError(f"{name} (--{name}) must be {what}; got {value!a:.60}")
        return value

    return Kind(check, metavar=metavar)


def not_blank(metavar: str = "NAME") -> Kind:
    """A text that is not blank."""
    return matching(r".*\S.*", "a text that is not blank, or left out", metavar)


def names(text: str) -> list[str]:
    """`"resid_pre, attn_out"` -> `["resid_pre", "attn_out"]`."""
    return [part.strip() for part in text.split(",") if part.strip()]


NAMES = Kind(parse=names, metavar="NAMES")
DIFFERENT_NAMES = Kind(lambda name, value: check_names(name.replace("_", "-"), value), names, "NAMES")


def strings(what: str, given: Any) -> tuple[str, ...]:
    """Names in their order, each once; `what` is the argument that has them."""
    each = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else ()
    if not each or not all(isinstance(name, str) for name in each):
        raise UsageError(f'{what} takes a list of names, or "all"; got {given!a}')
    return tuple(dict.fromkeys(each))


def dtype(text: str) -> str:
    """`"fp32"` or `"float32"` -> `"float32"`, and so on. Raises UsageError that names the nearest."""
    name = SHORT.get(text, text)
    if name not in SHORT.values():
        raise UsageError(f"unknown type {text!r:.80}; {nearest(text, [*SHORT, *SHORT.values()])}")
    return name


DTYPE = Kind(parse=dtype, metavar="TYPE")


def layers(*later: str) -> Kind:
    """Layers as text, a number or a list; the words in `later` are answered with a hint when the store is known."""

    def check(_: str, value: Any) -> str | int | tuple[int, ...]:
        if is_whole(value):
            return int(value)
        if isinstance(value, str):
            if value.strip() not in later:
                check_layers(value)
            return value
        if not isinstance(value, Iterable):
            raise UsageError(f"layers are all, 3, [0, 4], 0,4,8 or 2-6; got {value!a}")
        return tuple(value)  # it may be an iterator, or of NumPy

    return Kind(check, metavar="LAYERS")


LAYERS = layers()


def stacked_layers(text: str) -> list[int]:
    """`"0,4,8"` or `"2-6"` -> the layers in the order given, which is that of the array. Raises UsageError."""
    layers: list[int] = []
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        if not all(word.isdecimal() and len(word) < 5 for word in (first, last or first)) or (dash and not last):
            raise UsageError(f"--layers of stacked arrays are 0,4,8 or 2-6; got {text!r:.80}")
        layers += range(int(first), int(last or first) + 1)
        if len(layers) > MAX_STACKED:
            raise UsageError(f"--layers of stacked arrays are at most {MAX_STACKED:,}; got {text!r:.80}")
    return layers


def _several(text: str) -> Selection | list[Selection] | None:
    """One selection of tokens, or several with commas between them."""
    several = parse_selections(text)
    return several if len(several) > 1 else several[0] if several else None


def _position(_: str, given: Any) -> Selection | list[Selection]:
    """One position, or a list of those that are read together."""
    if not isinstance(given, list | tuple):
        return Selection.of(given)
    several = [Selection.of(one) for one in given]
    check_together(several)
    return several


POSITION = Kind(lambda _, given: Selection.of(given), Selection.of, "TOKEN")
POSITIONS = Kind(_position, _several, "TOKENS")


def positive_numbers(text: str) -> list[float]:
    """`"0.01,1,100"` -> `[0.01, 1.0, 100.0]`."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(value > 0 for value in values):
        known = "numbers above 0 with commas between them, such as 0.01,1,100 or inf"
        raise UsageError(f"--C takes {known}, got {text!r:.80}")
    return values


def ids(text: str) -> list[int]:
    """`"3,17,5"` -> `[3, 17, 5]`."""
    try:
        return [int(part) for part in names(text)]
    except ValueError:
        raise UsageError(f"--tokens takes ids with commas between them, such as 3,17,5; got {text!a:.80}") from None


def n_bytes(text: str | int) -> int:
    """`"8GB"`, `"500 MB"`, `"1.5GiB"` or a number of bytes as that number. Raises UsageError for anything else."""
    found = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,9})?)\s*([KMGT]?)(i?)B?\s*", str(text), re.IGNORECASE)
    value = 0.0
    if found is not None and not isinstance(text, bool):
        unit = (1024 if found[3] else 1000) ** " KMGT".index(found[2].upper() or " ")
        value = float(found[1]) * unit
    if not value >= 1:
        raise UsageError(f"memory (--memory) is a size such as 8GB, 500MB or a number of bytes; got {text!a:.80}")
    return int(value)


SIZE = Kind(lambda _, value: n_bytes(value), n_bytes, "SIZE")


class CallError(UsageError, TypeError):
    """A call with arguments that the function does not have; also a TypeError, as Python's own are."""


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
"""The types that annotations of options are made of."""


def check_types(options: type, given: Mapping[str, Any], by_place: Sequence[str] = ()) -> None:
    """Check the values that are given for the fields of an options class against the fields' annotations.

    Fields of other types than those of `WORDS` (Any, Literal, types of torch) are left to their kinds.

    Args:
        options: the class.
        given: field -> value.
        by_place: fields whose values were given by position, perhaps by mistake.

    Raises:
        UsageError: a value of another type.
    """
    for field in dataclasses.fields(options):
        types = _types(field.type) if field.name in given else None
        if types and not any(_is_of(given[field.name], one) for one in types):
            *most, last = dict.fromkeys(WORDS[one] for one in types)
            expected = " or ".join(filter(None, [", ".join(most), last]))
            value = given[field.name]
            shown = f"{value!a:.60}" if isinstance(value, bool | int | float | str | NoneType) else kind_of(value)
            hint = "; give options by name" if field.name in by_place else ""
            raise UsageError(f"{field.name} must be {expected}; got {shown}{hint}")


def _types(annotation: Any) -> list[Any] | None:
    """The types of a field's union; None where one of them is not in `WORDS`."""
    parts = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    types = [get_origin(part) or part for part in parts]
    return types if all(isinstance(one, type) and one in WORDS for one in types) else None


def _is_of(value: Any, one: Any) -> bool:
    if one is bool:
        return type(value).__name__ in ("bool", "bool_")  # of Python or NumPy
    if one in (int, float):
        return isinstance(value, numbers.Integral if one is int else numbers.Real) and not isinstance(value, bool)
    if one is Path:
        return isinstance(value, os.PathLike)
    return isinstance(value, one) and not (one in (Iterable, Sequence) and isinstance(value, bytes))
