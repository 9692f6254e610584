"""`probekit repair`: compute the broken parts of a store again."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from probekit.cli import console
from probekit.cli.derive import command
from probekit.cli.fields import Output, argument
from probekit.errors import StorageError
from probekit.files.remote.path import AnyPath
from probekit.machine.progress import progress_bar
from probekit.manifest import check_is_store
from probekit.options.option import option
from probekit.text import counted

if TYPE_CHECKING:
    from probekit.activations import Repaired


@dataclass(frozen=True, kw_only=True)
class RepairJob(Output):
    """The store, and the model that made it."""

    path: AnyPath = argument("The store.", metavar="PATH")
    model: str | None = option(
        None, "The model that made it.  [default: where it was loaded from]", metavar="NAME|FOLDER"
    )


@command()
def repair(job: RepairJob) -> None:
    """Compute the broken shards of a store again.

    Each must have the checksum that was recorded, bit for bit. A lost manifest is written again. Broken statistics are
    made again by the command that made them.

    \b
    Example:
        probekit repair runs/STORE
    """
    check_is_store(job.path)
    from probekit.activations import repair as repair_store

    console.hush_downloads(job.quiet)
    show = console.bars(job.quiet)
    with progress_bar("verify", "B", show=show) as read, progress_bar("repair", "shards", show=show) as computed:
        done = repair_store(job.path, job.model, computed.set, read.set)
    console.answer(job, done.as_dict, _summary(done))
    if done.left:
        raise StorageError(done.left[0].why)


def _summary(done: "Repaired") -> str:
    what = [f"computed {counted(len(done.shards), 'shard')} again"] if done.shards else []
    what += [f"removed {counted(len(done.removed), 'broken shard')}"] if done.removed else []
    what += ["wrote the manifest again"] if done.manifest else []
    rest = "" if done.complete else f"; the store is unfinished: run the same {done.command} command again"
    nothing = "nothing was repaired" if done.left else "nothing is broken"
    return f"{' and '.join(what) or nothing}{rest}"
