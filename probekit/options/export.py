"""The options of `results.export` and `push_to_hub`."""

from dataclasses import dataclass
from pathlib import Path

from probekit.options.engine import ProgressOptions
from probekit.options.kinds import Kind, matching, name_of, not_blank
from probekit.options.option import OUTPUT, Options, option

WEIGHTS = {"numpy": ".npz", "safetensors": ".safetensors", "sklearn-json": ".json", "gguf-control-vector": ".gguf"}
TABLES = {"latex": ".tex", "csv": ".csv", "parquet": ".parquet"}
CARD = "card"
KINDS = (*WEIGHTS, *TABLES, CARD)
_LICENSE = r"[a-z0-9][a-z0-9.-]{1,39}"
_BRANCH = r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._/-]{0,99}"


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Options, heading=OUTPUT):
    """What is written, and where."""

    to: str = option(
        "safetensors",
        f"{', '.join(KINDS[:-1])} or {CARD}.",
        notes="The first four write the weights of one place; latex, csv and parquet a table of the complete curve; "
        "card a folder with a README.md and the probe, ready to be published.",
        kind=name_of("kind of export", KINDS, "KIND"),
    )
    out: str | Path | None = option(
        None,
        "File to write; for card, a folder.  [default: LABEL-PLACE in the current folder]",
        Kind(lambda _, value: Path(value), metavar="PATH", typed=Path),
    )


@dataclass(frozen=True, kw_only=True)
class PushOptions(ProgressOptions, heading=OUTPUT):
    """Who can read what is pushed, where it goes, and what its card says."""

    private: bool = option(
        True,
        "Who can read a new repository: its owners alone, or everybody. A public one is pushed to with --public alone.",
        flag="--private/--public",
        notes="The visibility of a repository that is there already is not changed.",
    )
    revision: str | None = option(
        None,
        "Branch to push to; made if it is missing.  [default: main]",
        matching(_BRANCH, "the name of a branch", "BRANCH"),
    )
    message: str | None = option(None, "Message of the commit.  [default: what is pushed]", not_blank("TEXT"))
    license: str | None = option(
        None,
        "License in the card, as the Hub names it: mit, apache-2.0, cc-by-4.0.",
        matching(_LICENSE, "a name of the Hub's list, such as apache-2.0", "NAME"),
    )
