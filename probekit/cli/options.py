"""The options that several commands share, and how their words are read."""

import math
from pathlib import Path
from typing import Annotated, Literal

import typer

from probekit.cli.config import config_callback, set_callback
from probekit.errors import UsageError, nearest

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="YAML with a section per command; its keys are the long options.",
        callback=config_callback,
        is_eager=True,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="COMMAND.KEY=VALUE",
        help="One value over the file, such as extract.limit=100; may be repeated.",
        callback=set_callback,
        is_eager=True,
    ),
]
Model = Annotated[
    str,
    typer.Option(
        metavar="NAME|FOLDER",
        help="A Hub name such as gpt2, a local folder, agreement-gpt2, or a world's model, which is trained on first "
        "use: counting-gpt, ranking-transformer, spans-bert, dialogue-gpt, brackets-gpt.",
    ),
]
Revision = Annotated[str | None, typer.Option(metavar="REV", help="Branch, tag or commit of the model on the Hub.")]
Device = Annotated[str, typer.Option(metavar="NAME", help="cpu, cuda, cuda:1, mps; auto takes the best there is.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but the result and errors.")]
Seed = Annotated[int, typer.Option(metavar="N", min=0, help="Seed of all that is drawn from the data.")]

Sums = Literal["beside", "only"] | None
"""Statistics beside the activations, instead of them, or none."""

_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def dtype_name(text: str) -> str:
    """'fp32' or 'float32' -> 'float32', and so on. Raises UsageError naming the nearest."""
    name = _DTYPES.get(text, text)
    if name not in _DTYPES.values():
        raise UsageError(f"unknown type {text!r}; {nearest(text, [*_DTYPES, *_DTYPES.values()])}")
    return name


def position_of(text: str) -> str | int:
    """'last', 'first', 'mean', 'all' or a token index. Raises UsageError for anything else."""
    if text in ("last", "first", "mean", "all", "per example"):
        return text
    try:
        return int(text)
    except ValueError:
        raise UsageError(
            f"--position is last, first, mean, all or a token's number such as 3 or -2, got {text!r}"
        ) from None


def positions_of(text: str | None) -> str | int | list[str | int] | None:
    """One position, or several with commas between them. Raises UsageError for anything else."""
    several = [position_of(part) for part in names(text)] if text is not None else []
    return several if len(several) > 1 else several[0] if several else None


def sums_of(stats: bool, stats_only: bool) -> Sums:
    """What --stats and --stats-only ask for. Raises UsageError for both."""
    if stats and stats_only:
        raise UsageError("--stats keeps the activations, --stats-only does not: give one of them")
    return "only" if stats_only else "beside" if stats else None


def positive_numbers(option: str, text: str) -> list[float]:
    """'0.01,1,100' -> [0.01, 1.0, 100.0]. Raises UsageError naming the option."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(0 < value < math.inf for value in values):
        raise UsageError(f"{option} takes numbers above 0 with commas between them, such as 0.01,1,100, got {text!r}")
    return values


def names(text: str) -> list[str]:
    """'resid_pre, attn_out' -> ['resid_pre', 'attn_out']."""
    return [part.strip() for part in text.split(",") if part.strip()]
