"""Make a store: show the plan, run it, and say what was saved if it is interrupted."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from probekit.cli import console
from probekit.errors import ProbekitError, StorageError

T = TypeVar("T")


def make_store(description: str, write: Callable[[], T], saved: Callable[[], str], quiet: bool) -> T:
    """Write a store and return what `write` returns; the plan goes to stderr.

    Args:
        description: the plan, in lines.
        write: writes the store.
        saved: what was saved so far, and how to resume.
        quiet: leave the plan out.

    Raises:
        KeyboardInterrupt: with `saved()`.
        StorageError: as from `write`; with `saved()` if the disk refused.
    """
    if not quiet:
        console.note(description)
    try:
        return write()
    except KeyboardInterrupt:
        raise KeyboardInterrupt(saved()) from None
    except StorageError as error:
        if isinstance(error.__cause__, OSError):
            raise StorageError(f"{error}; {saved()}") from error
        raise


def saved_rows(progress: Callable[[], tuple[int, int] | None], total: int, unit: str, path: Path) -> str:
    """How many rows of a store were saved, and how to resume.

    Args:
        progress: gives (rows there, rows in all); None or an error if the store was not begun.
        total: rows in all.
        unit: "texts" or "rows".
        path: the store.
    """
    try:
        saved, _ = progress() or (0, 0)
    except ProbekitError:
        saved = 0
    if not saved:
        return f"nothing was complete yet in {path} (a part is saved every 64 MB); run the same command again"
    return f"saved {saved:,} of {total:,} {unit} in {path}; run the same command again to resume"
