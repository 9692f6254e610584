"""`--config FILE` and `--set COMMAND.KEY=VALUE`: values for options that the command line leaves out.

A file has one section for each command, and its keys are the long options without their dashes:

    extract: {model: gpt2, dataset: sst2, points: [resid_pre, attn_out]}
    train-probe: {layer: all, probe: {name: k-sparse, k: 4}}

Order of precedence: option > `--set` > file > default. The sections of other commands are checked as well. A value that
takes parameters of its own, such as a probe, is a mapping; `--set train-probe.probe.k=4` sets one of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_origin

import typer

from probekit.cli.console import one_line
from probekit.cli.fields import CliOption
from probekit.errors import UsageError, nearest
from probekit.files.plain_files import MAX_CONFIG, read_bytes

Keys = Mapping[str, CliOption]
"""The options of one command by name."""

MAX_VALUES = 10_000  # every command with all of its options has some 200
MAX_DIGITS = 40
_STATE = "probekit.cli.config"
_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path"}


@dataclass
class _Values:
    """Values of options by name, and the parameters that some of these values have."""

    plain: dict[str, Any] = field(default_factory=dict)
    parameters: dict[str, dict[str, Any]] = field(default_factory=dict)


def read_config(path: Path, sections: Mapping[str, Keys]) -> dict[str, dict[str, Any]]:
    """Section -> {option: value} of a YAML file, with every section, key and type checked.

    A value with parameters stays a dictionary. Raises UsageError for a file that cannot be read or is not YAML, and for
    anything that no command takes.
    """
    document = _load_yaml(path)
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise UsageError(f"{str(path)!r}: expected sections such as 'extract: {{model: gpt2}}', got {_kind(document)}")
    return {section: _section(path, section, values, sections) for section, values in document.items()}


def read_setting(text: str, sections: Mapping[str, Keys]) -> tuple[str, str, str | list[str] | dict[str, str]]:
    """(section, option, value) of one `--set`.

    The value is text, or a list of texts, as if it were typed; for one parameter of a value, a dictionary.
    """
    target, equals, value = text.partition("=")
    section, dot, key = target.strip().partition(".")
    if not equals or not dot:
        raise UsageError(f"--set takes COMMAND.KEY=VALUE, such as extract.limit=100, got {text!r}")
    key, dot, parameter = key.partition(".")
    one = _lookup("--set", section, key, sections)
    if not dot:
        return section, one.name, value.strip().split(",") if get_origin(one.kind) is list else value.strip()
    if not one.help.takes_parameters:
        raise UsageError(f"--set: {section}.{key} has no parameters, got {text!r}; write --set {section}.{key}=VALUE")
    return section, one.name, {parameter: value.strip()}


def config_callback(ctx: typer.Context, value: Path | None) -> Path | None:
    """Read the file of `--config` (eager: before any other option asks for its default)."""
    if value is not None:
        found = read_config(value, ctx.obj).get(ctx.info_name or "", {})
        for name, setting in found.items():
            _keep(_state(ctx)["file"], name, setting)
        _apply(ctx)
    return value


def set_callback(ctx: typer.Context, value: list[str] | None) -> list[str] | None:
    """Read every `--set` (eager, in any order with `--config`)."""
    for text in value or ():
        section, name, setting = read_setting(text, ctx.obj)
        if section != ctx.info_name:
            raise UsageError(f"--set {text!r} is for '{section}', and this command is '{ctx.info_name}'; leave it out")
        _keep(_state(ctx)["set"], name, setting)
    _apply(ctx)
    return value


def parameters_of(ctx: typer.Context, option: CliOption, value: Any) -> Any:
    """The value of an option; as {"name": value, ...} if it has parameters.

    The parameters of a file belong to the name that the file gives, and are left out when another name is chosen.
    """
    if not option.help.takes_parameters:
        return value
    file, given = _state(ctx)["file"], _state(ctx)["set"]
    fits = file.plain.get(option.name, value) == value
    parameters = {**(file.parameters.get(option.name, {}) if fits else {}), **given.parameters.get(option.name, {})}
    return {"name": value, **parameters} if parameters else value


def _state(ctx: typer.Context) -> dict[str, _Values]:
    return ctx.meta.setdefault(_STATE, {"file": _Values(), "set": _Values()})


def _keep(values: _Values, name: str, setting: Any) -> None:
    if isinstance(setting, dict):
        own = dict(setting)
        if "name" in own:
            values.plain[name] = own.pop("name")
        values.parameters.setdefault(name, {}).update(own)
    else:
        values.plain[name] = setting


def _apply(ctx: typer.Context) -> None:
    state = _state(ctx)
    ctx.default_map = {**state["file"].plain, **state["set"].plain}


def _load_yaml(path: Path) -> Any:
    import yaml

    try:
        loader = yaml.SafeLoader(read_bytes(path, MAX_CONFIG))
        root = loader.get_single_node()
        _check_size(path, root)
        return None if root is None else loader.construct_document(root)
    except OSError as e:
        raise UsageError(f"cannot read the config {str(path)!r}: {e.strerror or e}") from None
    except UsageError:
        raise
    except yaml.MarkedYAMLError as e:
        line = f", line {e.problem_mark.line + 1}" if e.problem_mark else ""
        raise UsageError(f"{str(path)!r}{line}: not YAML: {e.problem}") from None
    except RecursionError:
        raise UsageError(f"{str(path)!r}: not YAML: it is nested too deeply") from None
    except Exception as e:  # what the parser raises where a value does not fit its tag, such as !!float x
        raise UsageError(f"{str(path)!r}: not YAML: {one_line(e)[:100]}") from None


def _check_size(path: Path, root: Any) -> None:
    """Refuse more values than any config has, counting each one as often as aliases repeat it, and numbers too long.

    A file of 1 kB can expand to a billion values, and an alias can contain itself. A long number takes hours to read.
    """
    nodes, n = [root], 0
    while nodes:
        node, n = nodes.pop(), n + 1
        if n > MAX_VALUES:
            raise UsageError(
                f"{str(path)!r} has more than {MAX_VALUES:,} values, or an alias that contains itself; write them out"
            )
        if isinstance(node.value if node else None, list):
            nodes += [each for entry in node.value for each in (entry if isinstance(entry, tuple) else (entry,))]
        elif node and node.tag.endswith((":int", ":float")) and len(node.value) > MAX_DIGITS:
            raise UsageError(
                f"{str(path)!r}, line {node.start_mark.line + 1}: a number has at most {MAX_DIGITS} characters, "
                f"got {len(node.value):,}; correct it"
            )


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
        one = _lookup(where, section, str(key), sections)
        if value is not None:
            found[one.name] = _value(f"{where}: {section}.{key}", value, one)
    return found


def _lookup(where: str, section: str, key: str, sections: Mapping[str, Keys]) -> CliOption:
    if section not in sections:
        raise UsageError(f"{where}: no section {section!r}; {nearest(section, sections)}")
    keys = {one.key: one for one in sections[section].values()}
    known = keys.get(key) or keys.get(key.replace("_", "-"))
    if known is None:
        raise UsageError(f"{where}: {section} has no key {key!r}; {nearest(key, keys)}")
    return known


def _value(where: str, value: Any, one: CliOption) -> Any:
    if isinstance(value, dict) and one.help.takes_parameters:
        for key, inner in value.items():
            if not isinstance(key, str) or isinstance(inner, dict | list):
                raise UsageError(f"{where}: expected a name and its parameters, got {key!r}: {_kind(inner)}")
        return {key: _checked(f"{where}.name", inner, str) if key == "name" else inner for key, inner in value.items()}
    return _checked(where, value, get_origin(one.kind) or one.kind)


def _checked(where: str, value: Any, kind: type) -> Any:
    """A YAML value as the option takes it; lists are joined by commas, as on the command line."""
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
