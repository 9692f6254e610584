"""The options of `write_report` and `probekit report`."""

from dataclasses import dataclass
from pathlib import Path

from probekit.options.option import option
from probekit.options.progress import PartsOptions
from probekit.options.tokens import TokenOptions


@dataclass(frozen=True, kw_only=True)
class ReportOptions(TokenOptions, PartsOptions):
    """What the page shows."""

    title: str | None = option(None, "Title of the page.  [default: label, point, probe and model]", metavar="TEXT")
    store: Path | None = option(
        None,
        "The store that the results are of, where they are in another folder (train-probe --out).  [default: the store "
        "that holds them]",
        metavar="STORE",
    )
