"""The options of `known_answers`."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from probekit import registries
from probekit.errors import UsageError, nearest
from probekit.options.check import check_whole
from probekit.options.engine import ProgressOptions
from probekit.options.kinds import Kind, names, whole
from probekit.options.option import READ, Options, option
from probekit.registries import COMPILED

LEAST_TEXTS, MOST_TEXTS = 300, 100_000  # with fewer, verdicts are wrong for want of texts


def _models(_: str, given: str | Iterable[str]) -> tuple[str, ...]:
    """Names of compiled models, in full; all of them where none is named."""
    chosen = [str(name) for name in (names(given) if isinstance(given, str) else given)]
    known = [name for name in registries.MODELS if name.startswith(COMPILED)]
    if chosen == ["all"]:
        return tuple(known)
    for name in chosen:
        if COMPILED + name.removeprefix(COMPILED) not in known:
            short = [one.removeprefix(COMPILED) for one in known]
            raise UsageError(f"no compiled model {name!a:.60}; {nearest(name, ['all', *short])}")
    if not chosen:
        raise UsageError("name a compiled model or more, such as xor,copies, or all of them (all); got none")
    return tuple(COMPILED + name.removeprefix(COMPILED) for name in dict.fromkeys(chosen))


def _texts(name: str, given: Any) -> int:
    n = check_whole(name, given, LEAST_TEXTS)
    if n > MOST_TEXTS:
        raise UsageError(f"{name} must be {MOST_TEXTS:,} or fewer; got {given!a:.60}")
    return n


@dataclass(frozen=True, kw_only=True)
class KnownAnswersOptions(Options, heading=READ):
    """Which compiled models are asked, on how many texts."""

    only: str | Iterable[str] = option("all", "Compiled models, such as xor,copies.", Kind(_models, metavar="NAMES"))
    train_texts: int = option(
        1000,
        "Training texts of each model; validation and test have 2 for every 5.",
        Kind(_texts, typed=int, metavar="N"),
    )
    seed: int = option(0, "Seed of the texts, and of everything else that is drawn.", whole(0))
    repeats: int = option(
        1,
        "How often the battery runs, each time with other texts: how often is each verdict wrong?",
        whole(1),
        notes="The seeds count up from `seed`.",
    )


@dataclass(frozen=True, kw_only=True)
class KnownAnswersArguments(ProgressOptions, KnownAnswersOptions, heading=READ):
    """`KnownAnswersOptions`, and whether progress is shown."""
