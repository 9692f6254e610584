"""`probekit verify`: is every byte of a store as it was written?"""

from pathlib import Path
from typing import Annotated

import typer

from probekit.cli import console, options
from probekit.errors import StorageError

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
        raise StorageError(f"{len(found.broken):,} of {found.files:,} files are broken; run: probekit repair {path}")
    if not json_:
        state = "sound" if found.finished else "sound so far"
        rows = f"{found.rows:,} rows" if found.finished else f"{found.rows:,} of {found.total:,} rows"
        console.result(f"{state}: {found.files:,} files, {found.bytes:,} bytes, {rows}")
