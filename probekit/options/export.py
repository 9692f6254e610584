"""The options of `export`."""

from dataclasses import dataclass
from pathlib import Path

from probekit.errors import UsageError, nearest
from probekit.options.option import option

WEIGHTS = {"numpy": ".npz", "safetensors": ".safetensors", "sklearn-json": ".json", "gguf-control-vector": ".gguf"}
TABLES = {"latex": ".tex", "csv": ".csv", "parquet": ".parquet"}
CARD = "card"
KINDS = (*WEIGHTS, *TABLES, CARD)


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What is written, and where."""

    to: str = option(
        "safetensors",
        f"{', '.join(KINDS[:-1])} or {CARD}.",
        notes="The first four write the weights of one place; latex, csv and parquet a table of the complete curve; "
        "card a folder with a README.md and the probe, ready to be published.",
        metavar="KIND",
    )
    out: str | Path | None = option(
        None, "File to write; for card, a folder.  [default: LABEL-PLACE in the current folder]", metavar="PATH"
    )

    def __post_init__(self) -> None:
        if self.to not in KINDS:
            raise UsageError(f"unknown kind of export {self.to!a:.60}; {nearest(str(self.to), KINDS)}")
        if self.out is not None:
            object.__setattr__(self, "out", Path(self.out))
