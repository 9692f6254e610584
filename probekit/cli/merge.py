"""`probekit merge`: the folders of the parts of one extraction as one store."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from probekit.cli import console
from probekit.cli.derive import command
from probekit.cli.fields import Output, argument, required
from probekit.cli.stores import check_store_out
from probekit.errors import StorageError
from probekit.files.remote.path import AnyPath
from probekit.machine.progress import progress_bar
from probekit.manifest import check_is_store
from probekit.options import EngineOptions
from probekit.options.check import check_reading
from probekit.options.option import like
from probekit.text import counted

if TYPE_CHECKING:
    from probekit.activations import Merged


@dataclass(frozen=True, kw_only=True)
class MergeJob(Output):
    """The stores, and where the one of all goes."""

    stores: list[AnyPath] = argument("Stores with parts of one extraction.")
    out: AnyPath = required("The store of all; it may be one of the stores.", "PATH")
    check: str = like(EngineOptions, "check", "How shards are checked: by size, or every byte by hash.")

    def __post_init__(self) -> None:
        check_reading(self.check)


@command("stores out check")
def merge(job: MergeJob) -> None:
    """Make one store of the parts of an extraction.

    The parts were written to folders of their own. Shards become hard links where the disk can, else copies; the
    folders stay as they are. To resume an interrupted merge, give the same command again. The last line of stdout is
    the store's path.

    \b
    Examples:
        probekit merge part1 part2 part3 part4 --out runs/all
        probekit merge runs/all late-part --out runs/all
    """
    for path in job.stores:
        check_is_store(path)
    check_store_out(job.out)
    from probekit.activations import merge_stores
    from probekit.activations.parts.merge import missing_in_words

    stopped = "what was merged so far stays; run the same command again to resume"
    with (
        progress_bar("merge", "shards", show=console.bars(job.quiet)) as bar,
        console.interrupt_says(stopped),
    ):
        merged = merge_stores(job.stores, job.out, check=job.check, advance=bar.set)
    if job.json:
        console.result_json(merged.as_dict())
    if not (merged.complete or (merged.counted and not merged.rows)):
        raise StorageError(missing_in_words(merged))
    if not job.json:
        if not job.quiet:
            console.note(_summary(merged))
        console.result(merged.path)


def _summary(merged: "Merged") -> str:
    from probekit.activations.parts.cut import parts_in_words

    sums = "; statistics joined" if merged.counted else ""
    if merged.counted is False:
        sums = f"; statistics not joined: missing in {parts_in_words(merged.missing)}"
    state = f"complete: {counted(merged.total, 'row')}" if merged.complete else "no activations"
    return f"{state}; {counted(merged.taken, 'shard')} taken{sums}"
