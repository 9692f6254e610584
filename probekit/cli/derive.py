"""Commands: functions of options objects, made into functions that typer understands."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from probekit.cli.config import config_callback, parameters_of, set_callback
from probekit.cli.fields import CliOption, build_arguments, cli_options, number_reader
from probekit.options.capabilities import refuse
from probekit.options.option import Options

_CONFIG = typer.Option(
    "--config",
    metavar="FILE",
    help="YAML with a section for each command; the keys are the long options.",
    callback=config_callback,
    is_eager=True,
)
_CONFIG_FIRST = typer.Argument(
    metavar="[CONFIG]",
    help="A YAML file, as of --config.",
    callback=config_callback,
    is_eager=True,
)
_SET = typer.Option(
    "--set",
    metavar="COMMAND.KEY=VALUE",
    help="Override one value of the file, such as extract.limit=100; may be repeated.",
    callback=set_callback,
    is_eager=True,
)


@dataclass(frozen=True)
class Command:
    """A command: what runs, its options by name, and the function for typer that connects them."""

    run: Callable[..., None]
    options: Mapping[str, CliOption]
    function: Callable[..., None]


def command(order: str = "", config_first: bool = False) -> Callable[[Callable[..., None]], Command]:
    """Make a command of a function whose parameters are options objects.

    Args:
        order: names of options in the order of `--help`; the others follow in the order of their fields.
        config_first: whether a file of values may be the first argument, in place of `--config`.
    """

    def derive(run: Callable[..., None]) -> Command:
        options = cli_options(run, order)

        def function(ctx: typer.Context, **typed: Any) -> None:
            values = {name: parameters_of(ctx, one, typed[name]) for name, one in options.items()}
            arguments = build_arguments(run, options, values)
            refuse(*(each for each in arguments.values() if isinstance(each, Options)))
            run(**arguments)

        function.__name__, function.__doc__ = run.__name__, run.__doc__
        function.__signature__ = _signature(run, options.values(), config_first)  # pyright: ignore[reportFunctionMemberAccess]
        return Command(run, options, function)

    return derive


def help_text(run: Callable[..., None], one: CliOption) -> str:
    """The help of an option; one whose value takes parameters says how to set them."""
    if one.negates:
        return one.help.off
    if not one.help.takes_parameters:
        return one.help.text
    section = run.__name__.strip("_").replace("_", "-")
    text, bracket, default = one.help.text.partition("  [default")
    return f"{text} Parameters: --set {section}.{one.key}.NAME=VALUE.{bracket}{default}"


def _signature(run: Callable[..., None], own: Iterable[CliOption], config_first: bool) -> inspect.Signature:
    keyword = inspect.Parameter.KEYWORD_ONLY
    file = inspect.Parameter("config_file", keyword, default=None, annotation=Annotated[Path | None, _CONFIG_FIRST])
    return inspect.Signature(
        [
            inspect.Parameter("ctx", keyword, annotation=typer.Context),
            *([file] if config_first else []),
            *(inspect.Parameter(one.name, keyword, default=_default(one), annotation=_hint(run, one)) for one in own),
            inspect.Parameter("config", keyword, default=None, annotation=Annotated[Path | None, _CONFIG]),
            inspect.Parameter("set", keyword, default=None, annotation=Annotated[list[str] | None, _SET]),
        ]
    )


def _default(one: CliOption) -> Any:
    return inspect.Parameter.empty if one.default is MISSING else one.default


def _hint(run: Callable[..., None], one: CliOption) -> Any:
    kind = one.kind | None if one.default is None else one.kind
    shown: dict[str, Any] = {"metavar": one.help.metavar, "help": help_text(run, one)}
    if one.kind in (int, float):
        shown |= {"metavar": one.help.metavar or one.kind.__name__.upper(), "parser": number_reader(one.kind)}
    if not one.flags:
        return Annotated[kind, typer.Argument(**shown)]
    return Annotated[kind, typer.Option(*one.flags, **shown, rich_help_panel=one.heading)]
