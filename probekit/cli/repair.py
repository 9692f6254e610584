"""`probekit repair`: what is broken in a store, computed again."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probekit.cli import console, options
from probekit.errors import StorageError

if TYPE_CHECKING:
    from probekit.activations import Repaired

Path_ = Annotated[Path, typer.Argument(metavar="PATH", help="The store.")]
Model = Annotated[
    str | None,
    typer.Option(metavar="NAME|FOLDER", help="The model that made it.  [default: where it was loaded from]"),
]


def repair(
    path: Path_,
    model: Model = None,
    json_: options.Json = False,
    quiet: options.Quiet = False,
    config: options.Config = None,
    set_: options.Set = None,
) -> None:
    """Compute the broken shards of a store again, and no others.

    Each must come out with the checksum that was recorded, bit for bit. A lost manifest is written again.
    Statistics are made again by the command that made them.

    \b
    Example:
        probekit repair runs/STORE
    """
    from probekit.activations import repair as repair_store

    console.hush_downloads(quiet)
    with console.progress("verify", "B", quiet) as show_bytes, console.progress("repair", "shards", quiet) as show:
        done = repair_store(path, model, show, show_bytes)
    if json_:
        console.result_json(done.as_dict())
    else:
        console.result(_told(done))
    if done.left:
        raise StorageError(done.left[0].why)


def _told(done: "Repaired") -> str:
    what = [f"computed {len(done.shards):,} shards again"] if done.shards else []
    what += [f"took {len(done.removed):,} broken shards out"] if done.removed else []
    what += ["wrote the manifest again"] if done.manifest else []
    rest = "" if done.complete else f"; the store is unfinished: run the same {done.command} command again"
    nothing = "nothing was repaired" if done.left else "nothing is broken"
    return f"{' and '.join(what) or nothing}{rest}"
