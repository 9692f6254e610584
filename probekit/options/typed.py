"""Options as they are typed: the words of a command line, from the values that an options object had."""

import dataclasses
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from probekit.options.option import help_of
from probekit.selections import Selection
from probekit.text import printable


def changed(options: Any, *kinds: type) -> dict[str, Any]:
    """The options that differ from their defaults and that the command line has, JSON-able.

    What JSON cannot hold, such as an array of positions, cannot be typed either, and is left out.

    Args:
        options: an options object, every field of which has a default.
        kinds: the classes whose fields count, among those that the object is of; without any, all fields.
    """
    usual, found = type(options)(), {}
    of = [kind for kind in kinds or (type(options),) if isinstance(options, kind)]
    for field in (field for kind in of for field in dataclasses.fields(kind)):
        value = json_value(getattr(options, field.name))
        if help_of(field).flag is None or _same(value, getattr(usual, field.name)):
            continue
        try:
            found[field.name] = json.loads(json.dumps(value, default=_plain))
        except TypeError:
            continue
    return found


def json_value(value: Any) -> Any:
    """The value of an option, selections as JSON has them; an array of positions as it is."""
    if isinstance(value, list):
        return [json_value(each) for each in value]
    if isinstance(value, Selection):
        return value.plain if value.each is None else value.each
    return value


def typed(kind: type, values: Mapping[str, Any], command: str = "", forms: Sequence[str] = ()) -> list[str]:
    """The words that give an options class these values on the command line; those of its defaults need none.

    Args:
        kind: the options class, every field of which has a default.
        values: field -> value, as JSON has it. Other keys are ignored.
        command: the section of `--set`, for values that have parameters.
        forms: the fields that decide the defaults of others.
    """
    fields = {field.name: help_of(field) for field in dataclasses.fields(kind)}
    words: list[str] = []
    for name, value in unusual(kind, values, forms).items():
        words += _words(str(fields[name].flag), value, fields[name].repeats, command)
    return words


def unusual(kind: type, values: Mapping[str, Any], forms: Sequence[str] = ()) -> dict[str, Any]:
    """The values, of those that the command line has, that differ from their defaults; arguments as of `typed`."""
    own = {name: getattr(kind(), name) for name in forms}
    usual = vars(kind(**{name: values[name] for name in forms if values.get(name) is not None})) | own
    shown = [field.name for field in dataclasses.fields(kind) if help_of(field).flag and field.name in values]
    return {name: values[name] for name in shown if not _same(values[name], usual[name])}


def _words(flag: str, value: Any, repeats: bool, command: str) -> list[str]:
    name, _, off = flag.partition(",")[0].partition("/")
    if isinstance(value, bool):
        return [name if value or name.startswith("--no-") else off]
    if isinstance(value, Mapping):  # a name with parameters
        parameters = {key: each for key, each in value.items() if key != "name"}
        sets = [["--set", f"{command}.{name[2:]}.{key}={_text(each)}"] for key, each in parameters.items()]
        return [name, str(value["name"]), *(word for each in sets for word in each)]
    if isinstance(value, list | tuple):
        texts = [_text(each) for each in value]
        return [word for each in texts for word in (name, each)] if repeats else [name, ",".join(texts)]
    return [name, _text(value)]


def _text(value: Any) -> str:
    """A value as it is typed: 10 for 10.0, all digits of any other number."""
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else str(value)


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal once JSON has held them, where a tuple is a list."""
    try:
        return json.dumps(one, default=_plain) == json.dumps(other, default=_plain)
    except TypeError:
        return False


def _plain(value: Any) -> Any:
    if isinstance(value, range):
        return list(value)
    if isinstance(value, Path):
        return str(value)
    if type(value).__name__ == "dtype":
        return str(value).removeprefix("torch.")
    raise TypeError(type(value).__name__)


def command_line(words: Iterable[str]) -> str:
    """The words as bash takes them: what has control or invisible characters in its own quotes, as escapes."""
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    if printable(word) == word:
        return shlex.quote(word)
    kept = {"\\": "\\\\", "'": "\\'"}
    body = "".join(kept.get(c, c if printable(c) == c else "".join(f"\\x{b:02x}" for b in _bytes(c))) for c in word)
    return f"$'{body}'"


def _bytes(character: str) -> bytes:
    return character.encode("utf-8", "surrogateescape" if "\udc80" <= character <= "\udcff" else "surrogatepass")
