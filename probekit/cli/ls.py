"""`probekit ls`: the stores and results under a folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from probekit.cli import console
from probekit.cli.derive import command
from probekit.cli.fields import JsonOutput, argument
from probekit.errors import DataError
from probekit.files.remote.path import AnyPath
from probekit.manifest import results_home
from probekit.results.kinds import KINDS
from probekit.text import counted, listed, printable

if TYPE_CHECKING:
    from probekit.activations import StoreInfo


@dataclass(frozen=True, kw_only=True)
class LsJob(JsonOutput):
    """The folder to search."""

    folder: AnyPath = argument("Where to look.", metavar="[DIR]", default=Path("runs"))


@command()
def ls(job: LsJob) -> None:
    """List the stores under a folder, and the results in each.

    \b
    Example:
        probekit ls runs
    """
    if not job.folder.is_dir() and job.folder != Path("runs"):
        raise DataError(f"no folder {str(job.folder)!a}; name one that holds stores")
    from probekit.activations import list_stores

    stores = list_stores(job.folder)
    if job.json:
        rows = [{**info.as_dict(), "results": [str(path) for path in results_of(info)]} for info in stores]
        console.result_json({"folder": str(job.folder), "stores": rows})
        return
    if not stores:
        console.note(f"no stores under {str(job.folder)!r}; make one with probekit extract")
    for info in stores:
        console.result(f"{info.path}  {describe(info)}")
        for path in results_of(info):
            console.result(f"  {path}")


def results_of(info: "StoreInfo") -> list[Path]:
    """The folders in a store that hold results of `probekit train-probe`."""
    return sorted(path.parent for each in KINDS.values() for path in results_home(info.path).glob(f"*/{each.file}"))


def describe(info: "StoreInfo") -> str:
    """A store in one line."""
    if not info.model:
        return info.state
    size = f"{counted(info.rows, 'text')}, {info.bytes / 1e6:,.1f} MB"
    edits = f"; edited: {info.edits}" if info.edits else ""
    state = "complete, with statistics" if info.is_complete and info.statistics else info.state
    labels = f"; labels {listed([printable(one) for one in info.labels])}" if info.labels else "; no labels"
    labels = labels if info.is_complete else f"; missing in {info.missing}" if info.missing else ""
    return f"{state}: {info.model} on {info.task}, {info.places}, {size}{edits}{labels}"
