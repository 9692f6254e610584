"""`probekit verify`: is every byte of a store as it was written?"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from probekit.cli import console
from probekit.cli.derive import command
from probekit.cli.fields import Output, argument
from probekit.errors import DataError, StorageError
from probekit.files.remote.path import AnyPath
from probekit.machine.progress import progress_bar
from probekit.manifest import check_is_store
from probekit.text import counted

if TYPE_CHECKING:
    from probekit.activations import Verification

MAX_LINES = 20


@dataclass(frozen=True, kw_only=True)
class VerifyJob(Output):
    """The store."""

    path: AnyPath = argument("The store.", metavar="PATH")


@command()
def verify(job: VerifyJob) -> None:
    """Check every byte of a store, finished or not.

    Names each file that is broken or missing (exit code 4), and says whether the store is unfinished (exit code 3).
    Statistics are read too; the results of train-probe are not.

    \b
    Example:
        probekit verify runs/STORE
    """
    check_is_store(job.path)
    from probekit.activations import verify as verify_store

    with progress_bar("verify", "B", show=console.bars(job.quiet)) as bar:
        checked = verify_store(job.path, bar.set)
    if job.json:
        console.result_json(checked.as_dict())
    if checked.broken:
        for one in checked.broken[:MAX_LINES]:
            console.note(f"{one.file}: {console.one_line(one.why)}")
        if len(checked.broken) > MAX_LINES:
            console.note(f"and {len(checked.broken) - MAX_LINES:,} more")
        raise StorageError(
            f"{len(checked.broken):,} of {counted(checked.files, 'file')} "
            f"{'is' if len(checked.broken) == 1 else 'are'} broken; {checked.advice}"
        )
    if not job.json:
        console.result(_summary(checked))
    if not _is_finished(checked):
        raise DataError(f"{str(job.path)!a} is unfinished: {checked.advice}")


def _summary(checked: "Verification") -> str:
    state = "sound" if _is_finished(checked) else "sound so far"
    rows = counted(checked.rows, "row") if checked.finished else f"{checked.rows:,} of {counted(checked.total, 'row')}"
    sums = "" if checked.counted is None else f", statistics of {counted(checked.counted, 'text')}"
    return f"{state}: {counted(checked.files, 'file')}, {checked.bytes:,} bytes, {rows}{sums}"


def _is_finished(checked: "Verification") -> bool:
    return checked.finished or checked.has_only_statistics
