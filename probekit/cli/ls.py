"""`probekit ls`: the stores and results under a folder."""

from dataclasses import dataclass
from pathlib import Path

from probekit.cli import console
from probekit.cli.derive import command
from probekit.cli.fields import JsonOutput, argument
from probekit.errors import DataError
from probekit.files.remote.path import AnyPath


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
        console.result_json({"folder": str(job.folder), "stores": [info.as_dict() for info in stores]})
        return
    if not stores:
        console.note(f"no stores under {str(job.folder)!r}; make one with probekit extract")
    for info in stores:
        console.result(f"{info.path}  {info}")
        for path in info.results:
            console.result(f"  {path}")
