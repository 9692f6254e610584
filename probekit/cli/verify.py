"""`probekit verify`: is every byte of a store as it was written?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probekit.cli import console, options
from probekit.errors import StorageError

if TYPE_CHECKING:
    from probekit.activations import Verification

MOST_LINES = 20

Path_ = Annotated[Path, typer.Argument(metavar="PATH", help="The store.")]


def verify(
    path: Path_,
    json_: options.Json = False,
    quiet: options.Quiet = False,
    config: options.Config = None,
    set_: options.Set = None,
) -> None:
    """Read every byte of a store, finished or not, and name each file that is broken or missing.

    Statistics are read too; the results of train-probe are not.

    \b
    Example:
        probekit verify runs/STORE
    """
    from probekit.activations import verify as verify_store

    with console.progress("verify", "B", quiet) as show:
        found = verify_store(path, show)
    if json_:
        console.result_json(found.as_dict())
    if found.broken:
        for one in found.broken[:MOST_LINES]:
            console.note(f"{one.file}: {console.one_line(one.why)}")
        if len(found.broken) > MOST_LINES:
            console.note(f"and {len(found.broken) - MOST_LINES:,} more")
        raise StorageError(f"{len(found.broken):,} of {found.files:,} files are broken; {found.advice}")
    if not json_:
        console.result(_told(found))


def _told(found: "Verification") -> str:
    state = "sound" if found.finished or found.has_sums_alone else "sound so far"
    rows = f"{found.rows:,} rows" if found.finished else f"{found.rows:,} of {found.total:,} rows"
    sums = "" if found.counted is None else f", statistics of {found.counted:,} texts"
    rest = f"; unfinished: {found.advice}" if found.advice else ""
    return f"{state}: {found.files:,} files, {found.bytes:,} bytes, {rows}{sums}{rest}"
