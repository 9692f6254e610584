"""The options of `write_report` and `probekit report`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from probekit.options.option import option
from probekit.options.tokens import TokenOptions


@dataclass(frozen=True, kw_only=True)
class ReportOptions(TokenOptions):
    """What the page shows."""

    title: str | None = option(None, "Title of the page.  [default: label, point, probe and model]", metavar="TEXT")
    store: Path | None = option(
        None,
        "The store that the results are of, where they are in another folder (train-probe --out).  [default: the store "
        "that holds them]",
        metavar="STORE",
    )
    progress: Callable[[int, int], None] | None = option(None, "Called with (done, all) of a part.", flag=None)
    on_part: Callable[[str], None] | None = option(None, "Called with the name of each part as it begins.", flag=None)
