"""`probekit ls`: the stores and results under a folder."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probekit.cli import console, options
from probekit.errors import UsageError

if TYPE_CHECKING:
    from probekit.activations import StoreInfo

RESULTS = "results.json"


def ls(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where to look.")] = Path("runs"),
    json_: options.Json = False,
    config: options.Config = None,
    set_: options.Set = None,
) -> None:
    """List the stores under a folder, and the results in each.

    \b
    Example:
        probekit ls runs
    """
    from probekit.activations import list_stores

    if not folder.is_dir() and folder != Path("runs"):
        raise UsageError(f"no folder {str(folder)!r}")
    stores = list_stores(folder)
    if json_:
        found = [{**info.as_dict(), "results": [str(path) for path in results_of(info)]} for info in stores]
        console.result_json({"folder": str(folder), "stores": found})
        return
    if not stores:
        console.note(f"no stores under {str(folder)!r}; make one with probekit extract")
    for info in stores:
        console.result(f"{info.path}  {describe(info)}")
        for path in results_of(info):
            console.result(f"  {path}")


def results_of(info: "StoreInfo") -> list[Path]:
    """The folders in a store that hold results of `probekit train-probe`."""
    return sorted(path.parent for path in (info.path / "results").glob(f"*/{RESULTS}"))


def describe(info: "StoreInfo") -> str:
    """What is in a store, in one line."""
    if not info.model:
        return info.state
    size = f"{info.rows:,} texts, {info.bytes / 1e6:,.1f} MB"
    state = "complete, with statistics" if info.is_complete and info.statistics else info.state
    return f"{state}: {info.model} on {info.task}, {info.places}, {size}"
