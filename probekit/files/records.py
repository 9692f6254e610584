"""JSON files, read into the types that say what they hold: one checker for all of them.

A type says what its JSON must be, and nothing else lists it:

- `np.ndarray`, lists in lists of equal lengths, of numbers or null (nan), or of bools;
- `bool`, `str`, `None` as JSON has them; `int` a whole number; `float` a number, finite;
- `list[X]`; `dict[str, X]`; `tuple[X, Y]`, a list of this length; `Literal`; `X | Y`, the first that fits;
- a dataclass, an object with its fields and no others; those with a default may be missing;
- a TypedDict, an object with its keys, of which others are kept as they are;
- `Annotated[X, Must(...)]`, an X for which a condition holds; `Annotated[X, As(Y)]`, in JSON a Y;
- `Annotated[float, INFINITE]`, a number or "inf", since JSON has no infinity.

What two values say of one another (a place that is named and its rows) is checked by each kind, with `ensure`.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from probekit.errors import DataError
from probekit.files.plain_files import MAX_RESULTS, read_bytes
from probekit.text import counted, listed, printable

if TYPE_CHECKING:
    import numpy as np

LARGEST = 1e100  # of a number of results; squares stay finite, and no activation may be larger (`probes.base.LARGEST`)
LARGEST_WHOLE = (1 << 63) - 1  # what arrays hold
INFINITY = "inf"
_SHOWN = 60  # characters of a value in a message

Read = Callable[[Any], Any]


class Unfit(ValueError):
    """A value that is not what its type says.

    Attributes:
        path: keys and numbers that lead to it, the outermost first.
        expected: what must be there, with its article.
        got: the value; `MISSING` for none.
    """

    def __init__(self, expected: str, got: Any):
        super().__init__()
        self.path: list[str | int] = []
        self.expected, self.got = expected, got

    def __str__(self) -> str:
        where = ""
        for part in self.path:
            name = part if isinstance(part, str) and part.isidentifier() else f"[{part!a:.{_SHOWN}}]"
            where += name if name.startswith("[") or not where else f".{name}"
        got = "nothing" if self.got is MISSING else _shown(self.got)
        return f"{where or 'its content'}: expected {printable(self.expected):.400}, got {got}"


MISSING = object()


@dataclasses.dataclass(frozen=True)
class Must:
    """A condition on a value: `expected` says it in words, `holds` checks it."""

    expected: str
    holds: Callable[[Any], bool]


@dataclasses.dataclass(frozen=True)
class As:
    """The type of a value in JSON, where Python's says less: the keys of a dict. The value stays as JSON has it."""

    hint: Any


@dataclasses.dataclass(frozen=True)
class _Infinite:
    pass


INFINITE = _Infinite()

Count = Annotated[int, Must("a count", lambda n: n >= 0)]
Share = Annotated[float, Must("a number from 0 to 1", lambda x: 0 <= x <= 1)]
Ends = Annotated[tuple[float, float], Must("two numbers, the lower first", lambda ends: ends[0] <= ends[1])]
Plain = bool | int | float | str | None


def read_json_file(path: Path, form: str, what: str, maker: str, advice: str) -> dict[str, Any]:
    """The content of a JSON file of results, an object whose "format" is `form`.

    Args:
        path: the file.
        form: "probekit.results/2"; another version of it has its own message.
        what: "results of transfer", for messages.
        maker: the command that writes such files.
        advice: what to do without it: "train again".

    Raises:
        DataError: no file, no JSON, a name twice, NaN or infinity, another format.
    """
    try:
        body = parse_record(read_bytes(path, MAX_RESULTS))
    except FileNotFoundError:
        raise DataError(f"no {what} here, as {str(path)!a} is missing; give the folder that {maker} wrote") from None
    except (OSError, ValueError) as error:
        raise DataError(f"could not read {str(path)!a}: {printable(error)}; {advice}") from None
    found = body.get("format") if type(body) is dict else None
    if type(body) is dict and found == form:
        return body
    name, _, version = form.rpartition("/")
    text = found if isinstance(found, str) else ""
    start, _, other = text.rpartition("/")
    if start == name and other.isdecimal():
        age = "an older" if int(other[:9]) < int(version) else "a newer"
        raise DataError(f"{str(path)!a} has {age} format of {what} ({text[:_SHOWN]}, here {form}); {advice}")
    raise DataError(f"{str(path)!a} is not a file of {what} (expected format {form}, got {_shown(found)}); {advice}")


def parse_record(data: bytes) -> Any:
    """The value of a JSON text in UTF-8 without NaN, infinity, or a name twice in one object.

    Raises:
        ValueError: anything else.
    """
    try:
        return json.loads(
            data.decode(), parse_constant=_refused_constant, parse_float=_finite, object_pairs_hook=_without_duplicates
        )
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise ValueError("its lists or objects are nested too deeply") from None


def read_as(hint: Any, value: Any) -> Any:
    """A value out of JSON as the type that `hint` says: dataclasses, tuples for lists, infinity for "inf".

    Raises:
        Unfit: it is not of this type; the message says where.
    """
    return _reader(hint)(value)


def has_form(hint: Any, value: Any) -> bool:
    """True if a value out of JSON is of the type that `hint` says, as `read_as` reads it."""
    try:
        read_as(hint, value)
    except Unfit:
        return False
    return True


@contextmanager
def describing(path: Path, advice: str) -> Iterator[None]:
    """Turn an `Unfit` into a DataError that names the file and says what to do."""
    try:
        yield
    except Unfit as flaw:
        raise DataError(f"{str(path)!a} is damaged at {flaw}; {advice}") from None


@contextmanager
def inside(*path: str | int) -> Iterator[None]:
    """Put the keys that lead to a part before the path of an `Unfit` that is raised within."""
    try:
        yield
    except Unfit as flaw:
        flaw.path[:0] = path
        raise


def ensure(holds: object, expected: str, got: Any, *path: str | int) -> None:
    """Raise an `Unfit` at a path unless a condition holds."""
    if not holds:
        flaw = Unfit(expected, got)
        flaw.path[:0] = path
        raise flaw


def _shown(value: Any) -> str:
    """A value in a message: in full if it is short, else its kind."""
    if isinstance(value, dict):
        return f"an object with {counted(len(value), 'entry', 'entries')}"
    if isinstance(value, list | tuple) and (len(value) > 3 or any(isinstance(x, dict | list | tuple) for x in value)):
        return f"a list of {len(value):,}"
    if type(value) is int and abs(value) >= 10**_SHOWN:
        return "a number of many digits"
    if value is None or type(value) is bool:
        return json.dumps(value)
    text = ascii(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


# JSON -----------------------------------------------------------------------------------------------------------------


def _refused_constant(name: str) -> float:
    raise ValueError(f"it holds {name}, which is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"it holds {text[:_SHOWN]}, which is too large for a number")
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice!a:.{_SHOWN}} stands twice in one object")
    return entries


# types ----------------------------------------------------------------------------------------------------------------


@cache
def _reader(hint: Any) -> Read:
    """The function that reads a value of this type; made once for each type."""
    if hint in _ATOMS:
        return _ATOMS[hint]
    if getattr(hint, "__name__", "") == "ndarray":  # by name: `--help` imports this module and should not import numpy
        return _array
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Required, NotRequired):
        return _reader(parts[0])
    if origin is Annotated:
        return _annotated(parts[0], parts[1:])
    if origin in (Union, UnionType):
        return _any_of(parts)
    if origin is Literal:
        return _literal(parts)
    if origin is list:
        return _list_of(parts[0])
    if origin is dict:
        return _dict_of(_reader(parts[1]))
    if origin is tuple and parts[-1] is Ellipsis:
        read = _list_of(parts[0])
        return lambda value: tuple(read(value))
    if origin is tuple:
        return _tuple_of([_reader(part) for part in parts])
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _record_of(hint)
    assert is_typeddict(hint), f"no JSON is known for {hint}"
    return _keys_of(hint)


def _whole(value: Any) -> int:
    if type(value) is not int or abs(value) > LARGEST_WHOLE:
        raise Unfit("a whole number", value)
    return value


def _number(value: Any) -> float:
    if type(value) is not float and type(value) is not int:
        raise Unfit("a number", value)
    if abs(value) > LARGEST:  # of an int too, whose float may not exist
        raise Unfit(f"a number of at most {LARGEST:g}", value)
    return float(value)


def _exactly(kind: type, expected: str) -> Read:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise Unfit(expected, value)
        return value

    return read


def _array(value: Any) -> "np.ndarray":
    import numpy as np

    if type(value) is not list:
        raise Unfit("a list", value)
    kinds = _leaves(value)
    try:
        return np.array(value, np.bool_ if kinds == {bool} else np.float64)
    except ValueError:
        raise Unfit("lists of equal lengths", value) from None


def _leaves(value: list[Any]) -> set[type]:
    """The types of what is in nested lists, `float` for numbers and null."""
    kinds: set[type] = set()
    for i, one in enumerate(value):
        if type(one) is list:
            kinds |= _within(_leaves, one, i)
        elif type(one) is bool:
            kinds.add(bool)
        else:
            kinds.add(float)
            if one is not None:
                _within(_number, one, i)
    ensure(len(kinds) < 2, "numbers or truth values, not both", value)
    return kinds


_ATOMS: Mapping[Any, Read] = {
    Any: lambda value: value,
    int: _whole,
    float: _number,
    bool: _exactly(bool, "true or false"),
    str: _exactly(str, "a text"),
    None: _exactly(NoneType, "null"),
    NoneType: _exactly(NoneType, "null"),
}


def _annotated(hint: Any, marks: tuple[Any, ...]) -> Read:
    forms = [_reader(mark.hint) for mark in marks if isinstance(mark, As)]
    musts = [mark for mark in marks if isinstance(mark, Must)]
    inner = (lambda value: (forms[0](value), value)[1]) if forms else _reader(hint)
    is_open = any(isinstance(mark, _Infinite) for mark in marks)

    def read(value: Any) -> Any:
        found = math.inf if is_open and value == INFINITY else inner(value)
        for must in musts:
            if not must.holds(found):
                raise Unfit(must.expected, value)
        return found

    return read


def _any_of(hints: tuple[Any, ...]) -> Read:
    readers = [_reader(hint) for hint in hints if hint is not NoneType]
    has_none = NoneType in hints

    def read(value: Any) -> Any:
        if value is None and has_none:
            return None
        flaws = []
        for one in readers:
            try:
                return one(value)
            except Unfit as flaw:
                flaws.append(flaw)
        deepest = max(flaws, key=lambda flaw: len(flaw.path))
        if deepest.path or (len(flaws) == 1 and not has_none):
            raise deepest
        raise Unfit(" or ".join([flaw.expected for flaw in flaws] + ["null"] * has_none), value)

    return read


def _literal(values: tuple[Any, ...]) -> Read:
    def read(value: Any) -> Any:
        if not any(type(value) is type(one) and value == one for one in values):
            raise Unfit(f"one of {listed(values)}", value)
        return value

    return read


def _within(read: Read, value: Any, key: str | int) -> Any:
    try:
        return read(value)
    except Unfit as flaw:
        flaw.path.insert(0, key)
        raise


def _list_of(hint: Any) -> Read:
    read, atoms = _reader(hint), _atoms(hint)
    inner = _atoms(get_args(hint)[0]) if get_origin(hint) is list else frozenset()

    def read_list(value: Any) -> list[Any]:
        if type(value) is not list:
            raise Unfit("a list", value)
        # There may be millions of them: the slow way is for what it makes, and for the place of a flaw.
        if atoms and _are(value, atoms):
            return value
        if inner and _are(value, {list}) and _are(list(chain.from_iterable(value)), inner):
            return value
        return [_within(read, one, i) for i, one in enumerate(value)]

    return read_list


def _atoms(hint: Any) -> frozenset[type]:
    """The types that `hint` allows if their values are read as they are, as texts and whole numbers; else empty."""
    parts = frozenset(get_args(hint) if isinstance(hint, UnionType) else [hint])
    return parts if parts <= {int, str, bool, NoneType} else frozenset()


def _are(values: list[Any], types: Collection[type]) -> bool:
    """True if each value has one of these types exactly, and no whole number is too large."""
    found = set(map(type, values))
    if not found <= set(types):
        return False
    whole = [] if int not in found else values if found == {int} else [one for one in values if type(one) is int]
    return not whole or -LARGEST_WHOLE <= min(whole) <= max(whole) <= LARGEST_WHOLE


def _tuple_of(readers: list[Read]) -> Read:
    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(readers):
            raise Unfit(f"a list of {len(readers)}", value)
        return tuple(_within(one, inner, i) for i, (one, inner) in enumerate(zip(readers, value, strict=True)))

    return read


def _dict_of(read: Read) -> Read:
    def read_dict(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise Unfit("an object", value)
        return {key: _within(read, one, key) for key, one in value.items()}

    return read_dict


def _keys_of(kind: Any) -> Read:
    """A TypedDict: the keys that it has are checked, and others kept."""
    readers = {name: _reader(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}
    required = kind.__required_keys__

    def read(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise Unfit("an object", value)
        found = dict(value)
        for name, one in readers.items():
            if name in value or name in required:
                found[name] = _entry(one, value, name)
        return found

    return read


def _record_of(kind: type) -> Read:
    """A dataclass: its fields and no others."""
    hints = get_type_hints(kind, include_extras=True)
    fields = [one for one in dataclasses.fields(kind) if one.init]
    readers = {one.name: _reader(hints[one.name]) for one in fields}
    optional = {
        one.name
        for one in fields
        if one.default is not dataclasses.MISSING or one.default_factory is not dataclasses.MISSING
    }

    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise Unfit("an object", value)
        for name in value:
            ensure(name in readers, f"no entry of this name in a {kind.__name__}", value[name], name)
        return kind(
            **{name: _entry(one, value, name) for name, one in readers.items() if name in value or name not in optional}
        )

    return read


def _entry(read: Read, value: dict[str, Any], name: str) -> Any:
    try:
        if name not in value:
            raise Unfit(_expected(read), MISSING)
        return read(value[name])
    except Unfit as flaw:
        flaw.path.insert(0, name)
        raise


def _expected(read: Read) -> str:
    """What a reader expects, from what it says of something that is nothing."""
    try:
        read(MISSING)
    except Unfit as flaw:
        return flaw.expected
    return "a value"
