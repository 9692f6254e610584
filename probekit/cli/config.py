"""`--config FILE` and `--set COMMAND.KEY=VALUE`: values for the options that the command line leaves out.

A file has one section per command, and its keys are the long options without their dashes:

    extract: {model: gpt2, dataset: sst2, points: [resid_pre, attn_out]}
    train-probe: {layer: all}

Order of precedence: option > `--set` > file > default. What the file holds for other commands is checked all the same.
"""

import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import typer

from probekit.errors import UsageError, nearest

Keys = dict[str, tuple[str, type]]
"""Key in a file -> (name of the parameter, type of its values)."""

_STATE = "probekit.cli.config"
_OWN = ("config", "set_")
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", Path: "a path"}


def keys_of(command: Callable[..., Any]) -> Keys:
    """The keys of a command's section, read from the signature that its options are made from."""
    hints = typing.get_type_hints(command)
    return {
        name.rstrip("_").replace("_", "-"): (name, _plain_type(hint))
        for name, hint in hints.items()
        if name not in (*_OWN, "return") and hint is not typer.Context
    }


def read_config(path: Path, sections: Mapping[str, Keys]) -> dict[str, dict[str, Any]]:
    """Section -> {parameter: value} of a YAML file, every section, key and type checked.

    Raises UsageError for a file that cannot be read, is no YAML, or holds what no command takes.
    """
    document = _load_yaml(path)
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise UsageError(f"{str(path)!r}: expected sections such as 'extract: {{model: gpt2}}', got {_kind(document)}")
    return {section: _section(path, section, values, sections) for section, values in document.items()}


def read_setting(text: str, sections: Mapping[str, Keys]) -> tuple[str, str, str | list[str]]:
    """(section, parameter, value) of one `--set`; the value stays text, or a list of texts, as if it were typed."""
    target, equals, value = text.partition("=")
    section, dot, key = target.strip().partition(".")
    if not equals or not dot:
        raise UsageError(f"--set takes COMMAND.KEY=VALUE, such as extract.limit=100, got {text!r}")
    name, kind = _lookup("--set", section, key, sections)
    return section, name, value.strip().split(",") if kind is list else value.strip()


def config_callback(ctx: typer.Context, value: Path | None) -> Path | None:
    """Read the file of `--config` (eager: before any other option asks for its default)."""
    if value is not None:
        _state(ctx)["file"] = read_config(value, _sections()).get(ctx.info_name or "", {})
        _apply(ctx)
    return value


def set_callback(ctx: typer.Context, value: list[str] | None) -> list[str] | None:
    """Read every `--set` (eager, in any order with `--config`)."""
    for text in value or ():
        section, name, setting = read_setting(text, _sections())
        if section != ctx.info_name:
            raise UsageError(f"--set {text}: this is '{ctx.info_name}', and the value is for '{section}'")
        _state(ctx)["set"][name] = setting
    _apply(ctx)
    return value


def _state(ctx: typer.Context) -> dict[str, dict[str, Any]]:
    return ctx.meta.setdefault(_STATE, {"file": {}, "set": {}})


def _apply(ctx: typer.Context) -> None:
    state = _state(ctx)
    ctx.default_map = {**state["file"], **state["set"]}


def _sections() -> dict[str, Keys]:
    from probekit.cli.main import COMMANDS

    return {name: keys_of(command) for name, command in COMMANDS.items()}


def _plain_type(hint: Any) -> type:
    """The type inside `X | None` and `Literal[...]`; a list is of texts."""
    if typing.get_origin(hint) in (Literal, list):
        return str if typing.get_origin(hint) is Literal else list
    inner = [a for a in typing.get_args(hint) if a is not type(None)]
    return _plain_type(inner[0]) if inner else hint


def _load_yaml(path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(path.read_bytes())
    except OSError as e:
        raise UsageError(f"cannot read the config {str(path)!r}: {e.strerror}") from e
    except yaml.MarkedYAMLError as e:
        line = f", line {e.problem_mark.line + 1}" if e.problem_mark else ""
        raise UsageError(f"{str(path)!r}{line}: not YAML: {e.problem}") from e
    except (yaml.YAMLError, ValueError, RecursionError) as e:
        raise UsageError(f"{str(path)!r}: not YAML: {e}") from e


def _section(path: Path, section: Any, values: Any, sections: Mapping[str, Keys]) -> dict[str, Any]:
    where = repr(str(path))
    if section not in sections:
        raise UsageError(f"{where}: no section {section!r}; {nearest(str(section), sections)}")
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UsageError(f"{where}: {section} needs keys with values, got {_kind(values)}")
    found = {}
    for key, value in values.items():
        name, kind = _lookup(where, section, str(key), sections)
        if value is not None:
            found[name] = _checked(f"{where}: {section}.{key}", value, kind)
    return found


def _lookup(where: str, section: str, key: str, sections: Mapping[str, Keys]) -> tuple[str, type]:
    if section not in sections:
        raise UsageError(f"{where}: no section {section!r}; {nearest(section, sections)}")
    keys = sections[section]
    known = keys.get(key) or keys.get(key.replace("_", "-"))
    if known is None:
        raise UsageError(f"{where}: {section} has no key {key!r}; {nearest(key, keys)}")
    return known


def _checked(where: str, value: Any, kind: type) -> Any:
    """A YAML value as the option takes it; lists are joined by commas, as they are typed."""
    if kind is list:
        return [_checked(where, item, str) for item in (value if isinstance(value, list) else [value])]
    if isinstance(value, list) and kind is str:
        return ",".join(_checked(where, item, str) for item in value)
    if kind in (str, Path) and isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        hint = f" (write it in quotes: {str(value).lower()!r})" if kind is str and isinstance(value, bool) else ""
        raise UsageError(f"{where}: expected {_WORDS[kind]}, got {_kind(value)}{hint}")
    return value


def _kind(value: Any) -> str:
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."
