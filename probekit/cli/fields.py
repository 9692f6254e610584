"""The options and arguments of a command, read from the dataclasses that its function takes."""

import dataclasses
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from probekit.errors import UsageError
from probekit.files.remote.path import RemotePath, as_path
from probekit.machine.dtypes import SHORT
from probekit.options.option import HEADINGS, OUTPUT, READ, OptionHelp, Options, help_of, option

ARGUMENT = ""  # the flag of a positional argument
NEEDED_FIRST = 10  # options that stand before all headings, those that most people need
FEW = 20  # options that need no headings
_SHORT_NAMES = {name: short for short, name in SHORT.items()}


@dataclass(frozen=True, kw_only=True)
class JsonOutput(Options, heading=OUTPUT):
    """The option of every command that prints a result."""

    json: bool = option(False, "Print one JSON object on stdout.")


@dataclass(frozen=True, kw_only=True)
class Output(JsonOutput, heading=OUTPUT):
    """`JsonOutput`, and whether progress and notes are printed."""

    quiet: bool = option(False, "Print only the result and errors.", flag="--quiet, -q")


@dataclass(frozen=True)
class Given:
    """Marks a dictionary of the options that were given, in place of an options object.

    Attributes:
        options: the dataclass that declares them.
        default: where the values of the others come from, as `--help` says it.
    """

    options: type
    default: str


@dataclass(frozen=True)
class CliOption:
    """One option or positional argument of a command.

    Attributes:
        owner: the parameter of the command's function that gets the value.
        field: the field of its dataclass.
        help: the field's help.
        name: the name of the value while typer handles it; with hyphens, the key in `--config` files.
        flags: the names on the command line; none for a positional argument.
        kind: the type that typer checks: str for everything that is parsed later.
        default: as it would be typed; MISSING if the option is required.
        negates: whether the flag makes the field false, as `--no-codelength` does.
        heading: the one under which it is shown; "Options" for those that most people need.
    """

    owner: str
    field: "dataclasses.Field[Any]"
    help: OptionHelp
    name: str
    flags: tuple[str, ...]
    kind: Any
    default: Any
    negates: bool
    heading: str

    @property
    def key(self) -> str:
        """The key in a section of a `--config` file."""
        return self.name.replace("_", "-")


def required(text: str, metavar: str) -> Any:
    """A field for an option that must be given."""
    return option(MISSING, text, metavar=metavar)


def argument(text: str, metavar: str | None = None, default: Any = MISSING) -> Any:
    """A field for a positional argument."""
    return option(default, text, metavar=metavar, flag=ARGUMENT)


def cli_options(function: Callable[..., Any], order: str = "") -> dict[str, CliOption]:
    """The options of a command by name, as they are shown.

    First those that most people need, which are the first of `order`; then the others under their headings, within
    which those named in `order` precede, and those of `JsonOutput` and `Output` come last. A command of few options
    has no headings.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    found = [one for owner, hint in hints.items() if owner != "return" for one in _options_of(owner, hint)]
    by_name = {one.name: one for one in found}
    if len(by_name) < len(found):
        raise TypeError(f"{function.__name__}: two options have one name among {[one.name for one in found]}")
    first = order.split()
    if unknown := set(first) - set(by_name):
        raise TypeError(f"{function.__name__}: no options {sorted(unknown)}")
    last = [field.name for field in dataclasses.fields(Output)]
    names = [*first, *(name for name in by_name if name not in (*first, *last)), *(x for x in last if x in by_name)]
    flags = [name for name in names if by_name[name].flags]
    plain = flags if len(flags) <= FEW else [name for name in first if name in flags][:NEEDED_FIRST]
    shown = {
        name: dataclasses.replace(one, heading="Options") if name in plain or not one.flags else one
        for name, one in ((name, by_name[name]) for name in names)
    }
    return dict(sorted(shown.items(), key=lambda item: ("Options", *HEADINGS).index(item[1].heading)))


def _options_of(owner: str, hint: Any) -> list[CliOption]:
    given = given_of(hint)
    found = [_cli_option(owner, field) for field in dataclasses.fields(given.options if given else hint)]
    options = [one for one in found if one is not None]
    return [_without_default(one, given.default) for one in options] if given else options


def given_of(hint: Any) -> Given | None:
    """The `Given` of an annotation, if it has one."""
    return next((part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Given)), None)


def _cli_option(owner: str, field: "dataclasses.Field[Any]") -> CliOption | None:
    known = help_of(field)
    if known.flag is None:
        return None
    flags = tuple(flag.strip() for flag in known.flag.split(",") if flag.strip())
    name = flags[0].partition("/")[0].removeprefix("--").replace("-", "_") if flags else field.name
    negates = name == f"no_{field.name}"
    default = False if negates else field.default
    default = _SHORT_NAMES.get(default, default) if isinstance(default, str) else default
    return CliOption(owner, field, known, name, flags, _kind(field, known), default, negates, known.heading or READ)


def _without_default(one: CliOption, default: str) -> CliOption:
    text = f"{one.help.text}  [default: {default}]"
    return dataclasses.replace(one, default=None, help=dataclasses.replace(one.help, text=text))


def _kind(field: "dataclasses.Field[Any]", known: OptionHelp) -> Any:
    """The type of what is typed; annotations that need torch or numpy are strings, and stay text here."""
    if known.repeats:
        return list[str]
    if known.kind.parse is not None or isinstance(field.type, str):
        return str
    if known.kind.typed is not None:
        return known.kind.typed
    members = typing.get_args(field.type) or (field.type,)
    if RemotePath in _leaves(field.type):  # typed as a path, and made a place by `_parsed`
        return list[Path] if any(typing.get_origin(one) is list for one in (field.type, *members)) else Path
    if lists := [one for one in (field.type, *members) if typing.get_origin(one) is list]:
        return lists[0]
    return next((kind for kind in (Path, bool, str, int, float) if kind in members), str)


def _leaves(annotation: Any) -> list[Any]:
    """The types in an annotation, those inside of lists included."""
    parts = typing.get_args(annotation)
    return [annotation] if not parts else [leaf for part in parts for leaf in _leaves(part)]


def build_arguments(
    function: Callable[..., Any], options: Mapping[str, CliOption], values: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a command's function, from the values of its options as typer hands them over.

    Raises:
        UsageError: a value that cannot be parsed, or that its dataclass refuses.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    given: dict[str, dict[str, Any]] = {owner: {} for owner in hints if owner != "return"}
    for name, one in options.items():
        if values[name] != one.default and values[name] is not None:
            given[one.owner][one.field.name] = _parsed(one, values[name])
    return {owner: kept if given_of(hints[owner]) else hints[owner](**kept) for owner, kept in given.items()}


def number_reader(kind: type) -> Callable[[Any], Any]:
    """A function that reads a number; text that is none stays as it is, which `build_arguments` refuses."""

    def number(typed: Any) -> Any:
        try:
            return kind(typed) if isinstance(typed, str) else typed
        except ValueError:
            return typed

    return number


def _parsed(one: CliOption, value: Any) -> Any:
    if one.kind in (int, float) and isinstance(value, str):
        one.help.kind.check(one.field.name, value)
        what = "whole number" if one.kind is int else "number"
        raise UsageError(f"{one.field.name} ({one.flags[0]}) must be a {what}; got {value!a:.60}")
    if one.negates:
        return not value
    if not isinstance(one.field.type, str) and RemotePath in _leaves(one.field.type):
        return [as_path(each) for each in value] if isinstance(value, list) else as_path(value)
    parse = one.help.kind.parse
    return parse(value) if parse is not None and isinstance(value, str) else value
