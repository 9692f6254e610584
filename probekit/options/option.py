"""Declare an option as a dataclass field, and let a function take such a dataclass as flat keyword arguments.

A field carries its kind, help, heading and flag. The signature of Python's functions, the command line, `--config`
files, `--help` and the reference pages come from it.
"""

import dataclasses
import functools
import inspect
import textwrap
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from probekit.errors import nearest
from probekit.options.capabilities import refuse
from probekit.options.kinds import CallError, Kind, check_types

A = TypeVar("A")
A_ = TypeVar("A_", contravariant=True)
B = TypeVar("B")
C = TypeVar("C")
O_ = TypeVar("O_", covariant=True)
N = ParamSpec("N")
O = TypeVar("O")  # noqa: E741
P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_ = TypeVar("R_", covariant=True)
S_ = TypeVar("S_", covariant=True)
T = TypeVar("T")
T_ = TypeVar("T_", covariant=True)

_FROM_NAME = "--"


READ = "What to read"
CHOSEN = "How it is chosen"
EDITED = "What is edited"
CONTINUED = "How texts are continued"
CHECKS = "Checks"
RUNS = "Where it runs"
OUTPUT = "Output"
HEADINGS = (READ, CHOSEN, EDITED, CONTINUED, CHECKS, RUNS, OUTPUT)
"""Of the options in `--help` and in the reference of commands, in their order."""


@dataclasses.dataclass(frozen=True)
class OptionHelp:
    """What one field is, for the command line, the docstrings and the reference page.

    Attributes:
        text: one line; what the option does, and its default where that is not the value itself.
        kind: how its value is typed and checked.
        heading: one of `HEADINGS`; by default that of the class which declares the field.
        metavar: the placeholder for the value in `--help`, where it is not the kind's.
        flag: the long option where it is not `--field-name`; None keeps the field off the command line.
        notes: more for the docstring and the reference page; the command line leaves it out.
        repeats: whether the flag may be given several times; the value is then a list.
        takes_parameters: whether the value is a name with parameters of its own, as a probe's.
        off: the text for a flag that makes the field false, such as `--no-codelength`.
        tag: precedes the value in the name of a results folder; None is the field's name, and "" no tag.
    """

    text: str
    kind: Kind = Kind()
    heading: str | None = None
    metavar: str | None = None
    flag: str | None = _FROM_NAME
    notes: str = ""
    repeats: bool = False
    takes_parameters: bool = False
    off: str = ""
    tag: str | None = None


class Options:
    """Base of the lists of options: values are checked by their fields' kinds, and against `CAPABILITIES`."""

    def __init_subclass__(cls, heading: str | None = None, **more: Any):
        super().__init_subclass__(**more)
        for field in vars(cls).values():
            known = field.metadata.get("help") if isinstance(field, dataclasses.Field) else None
            if known is not None and known.heading is None:
                field.metadata = MappingProxyType({"help": dataclasses.replace(known, heading=heading)})

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # pyright: ignore[reportArgumentType]
            value = getattr(self, field.name)
            if not (value is None and field.default is None):
                object.__setattr__(self, field.name, help_of(field).kind.check(field.name, value))
        refuse(self)


def option(default: T, text: str, kind: Kind | None = None, **more: Any) -> T:
    """A dataclass field with its default, its help and its kind; `more` are other attributes of `OptionHelp`."""
    known = OptionHelp(text, kind or Kind(), **more)
    return dataclasses.field(default=default, metadata={"help": known})  # pyright: ignore[reportReturnType]


def like(owner: type, name: str, text: str | None = None, **changes: Any) -> Any:
    """The field `name` of another options class, with another text or other attributes of `OptionHelp`."""
    field = next(field for field in dataclasses.fields(owner) if field.name == name)
    known = dataclasses.replace(field.metadata["help"], **changes, **({} if text is None else {"text": text}))
    return dataclasses.field(default=field.default, metadata={"help": known})


def help_of(field: dataclasses.Field[Any]) -> OptionHelp:
    """The help of a field that `option` made, its flag filled in from the name and its placeholder from the kind."""
    found: OptionHelp = field.metadata["help"]
    flag = f"--{field.name.replace('_', '-')}" if found.flag == _FROM_NAME else found.flag
    return dataclasses.replace(found, flag=flag, metavar=found.metavar or found.kind.metavar)


class _Flatten(Protocol[P, O_]):
    @overload
    def __call__(self, verb: Callable[[O_], R], /) -> Callable[P, R]: ...
    @overload
    def __call__(self, verb: Callable[[A, O_], R], /) -> Callable[Concatenate[A, P], R]: ...
    @overload
    def __call__(self, verb: Callable[[A, B, O_], R], /) -> Callable[Concatenate[A, B, P], R]: ...
    @overload
    def __call__(self, verb: Callable[[A, B, C, O_], R], /) -> Callable[Concatenate[A, B, C, P], R]: ...


def keywords(options: Callable[P, Any]) -> _Flatten[P, Any]:
    """Let a function whose last parameter is an options object take the object's fields as keyword arguments.

    Fields that are not keyword-only may be given by position, after the function's own arguments.

    The decorated function shows the flat signature to `help`, Jupyter and type checkers. In its docstring, the line
    that starts with "options:" becomes one entry for each field.
    """

    def flatten(verb: Callable[..., Any]) -> Callable[..., Any]:
        own = list(inspect.signature(verb).parameters.values())[:-1]
        fields = dataclasses.fields(options)  # pyright: ignore[reportArgumentType]
        names = [field.name for field in fields]
        placed = [field.name for field in fields if not field.kw_only]

        @functools.wraps(verb)
        def flat(*args: Any, **given: Any) -> Any:
            for name in given.keys() - set(names) - {parameter.name for parameter in own}:
                raise CallError(f"{verb.__name__}() has no option {name!r}; {nearest(name, names)}")
            by_place = args[len(own) :]
            if len(by_place) > len(placed):
                unnamed = by_place[len(placed)]
                raise CallError(
                    f"{verb.__name__}() takes its options by name, such as {names[len(placed)]}=...; "
                    f"got {unnamed!a:.60} as a positional argument"
                )
            chosen = {name: given.pop(name) for name in names if name in given}
            check_types(options, dict(zip(placed, by_place, strict=False)) | chosen, placed[: len(by_place)])  # pyright: ignore
            last = options(*by_place, **chosen)  # pyright: ignore[reportCallIssue]
            return verb(*args[: len(own)], **given, **{_last(verb): last})

        signature = inspect.signature(options)
        flat.__signature__ = inspect.Signature(  # pyright: ignore[reportAttributeAccessIssue]
            [*own, *signature.parameters.values()], return_annotation=inspect.signature(verb).return_annotation
        )
        flat.__doc__ = _with_fields(verb.__doc__ or "", options)
        return flat

    return flatten


class OneOrSeveral(Protocol[A_, N, T_, P, R_, Q, S_]):
    """A function of three forms, for type checkers: what it returns depends on which keyword arguments are given."""

    @overload
    def __call__(self, given: A_, /, *args: N.args, **options: N.kwargs) -> T_: ...
    @overload
    def __call__(self, given: A_, /, *args: P.args, **options: P.kwargs) -> R_: ...
    @overload
    def __call__(self, given: A_, /, *args: Q.args, **options: Q.kwargs) -> S_: ...


class _Flatten3(Protocol[N, T_, P, R_, Q, S_]):
    def __call__(self, verb: Callable[[A, Any], Any], /) -> OneOrSeveral[A, N, T_, P, R_, Q, S_]: ...


def keywords_of_three(
    first: tuple[Callable[N, Any], type[O]],
    one: tuple[Callable[P, Any], type[R]],
    several: tuple[Callable[Q, Any], type[T]],
) -> _Flatten3[N, O, P, R, Q, T]:
    """`keywords` for a function whose result has one of three types.

    Args:
        first: the options of the form that is recognised by an option it requires, and the type of its result.
        one: the options without those that ask for several results, and the type of one result.
        several: all options, which the function takes, and the type of several results.
    """
    return keywords(several[0])  # pyright: ignore[reportReturnType]


def _last(verb: Callable[..., Any]) -> str:
    return list(inspect.signature(verb).parameters)[-1]


def _with_fields(doc: str, options: Any) -> str:
    """The docstring with one entry for each field in place of the line "options: ..."."""
    lines = []
    for line in doc.splitlines():
        if line.strip().startswith("options:"):
            indent = " " * (len(line) - len(line.lstrip()))
            lines += [line for field in dataclasses.fields(options) for line in _entry(field, indent)]
        else:
            lines.append(line)
    return "\n".join(lines)


def _entry(field: dataclasses.Field[Any], indent: str) -> list[str]:
    known = help_of(field)
    text = " ".join(f"{field.name}: {known.text} {known.notes}".split())
    return textwrap.wrap(text, 120, initial_indent=indent, subsequent_indent=indent + "    ", break_on_hyphens=False)
