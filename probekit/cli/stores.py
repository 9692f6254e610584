"""Make a store: show the plan, run it, and say what was saved if it is interrupted."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from probekit.cli import console
from probekit.errors import ProbekitError, ResumeMismatch, StorageError, UsageError
from probekit.files.durable import unseal
from probekit.files.remote.attempts import NotReached
from probekit.files.remote.path import AnyPath, as_path, is_private, local_path
from probekit.manifest import results_home, stored_places
from probekit.options import CurveOptions, kinds
from probekit.options.check import check_path
from probekit.points import places_of
from probekit.selections import check_kept, check_several_kept

T = TypeVar("T")


def check_store_out(out: str | AnyPath | None) -> None:
    """`check_out` for a store; one in an object store is first looked for by `check_via`, or when it is begun.

    Raises:
        StorageError: as from `check_out`.
        UsageError: a place in memory.
    """
    if out is None:
        return
    place = as_path(out)
    if is_private(place):
        raise UsageError(f"--out {str(place)!a} would be gone when the command ends; name a folder or a bucket")
    check_out(local_path(place))


def check_out(out: str | Path | None) -> None:
    """Raise before anything is loaded if no store can be written at `--out`.

    Raises:
        StorageError: it is a file, or inside of one, or its folder may not be written.
    """
    path = None if out is None else check_path("--out", out)
    if path is None or path.is_dir():
        return  # what it holds is checked later
    there = next(folder for folder in (path, *path.parents) if os.path.lexists(folder))
    if not there.is_dir():
        raise StorageError(f"--out {str(path)!a}: {str(there)!a} is a file, expected a folder; name another")
    if not os.access(there, os.W_OK | os.X_OK):
        raise StorageError(f"--out {str(path)!a}: {str(there)!a} may not be written; name another folder")


def check_via(out: str | AnyPath | None, via: str | None) -> None:
    """Raise before the model is loaded if the store at `--out` was computed with another `--via`.

    A damaged store, and an imported one, are left to `extract`, which says what is wrong with it.

    Raises:
        ResumeMismatch: another `--via`.
        StorageError: `--out` is in an object store that cannot be reached, or there is no such bucket.
    """
    if out is None:
        return
    try:
        body, _ = unseal(as_path(out) / "plan.json")
    except NotReached:
        raise
    except (ProbekitError, OSError):
        return
    identity = body.get("identity")
    if not isinstance(identity, dict) or "kind" in identity:
        return
    stored = identity.get("via", "probekit")
    if via is not None and stored != via:
        raise ResumeMismatch(
            f"{str(as_path(out))!a} was made with other settings (via: {stored!a:.60} there, {via!a} here); "
            "name another folder, or remove it"
        )


def check_results_out(out: Path | None, store: AnyPath) -> None:
    """Raise before anything is loaded if no results can be written at `--out`, or without it where they go by default.

    Raises:
        StorageError: as from `check_out`; or the folder is there and may not be written.
    """
    check_out(out)
    path = out or results_home(store)
    there = next((folder for folder in (path, *path.parents) if folder.is_dir()), Path())
    if not os.access(there, os.W_OK | os.X_OK):
        raise StorageError(f"{str(there)!a} may not be written; name another folder for the results (--out)")


def check_places(path: AnyPath, options: CurveOptions) -> None:
    """Raise, before torch is imported, if a store lacks the point, the layers or the position of a curve.

    A store that cannot be read is left to `load_activations`, which says what is wrong with it.

    Raises:
        DataError: no store there.
        UsageError: a point, layer or position that was not extracted.
    """
    known = stored_places(path)
    if known is None:
        return
    position: Any = options.position  # a list with `by` alone
    if getattr(options, "of_sequences", False):
        check_several_kept(known.positions, position)
    elif getattr(options, "by", None) is None:  # with it, all positions are read
        check_kept(known.positions, position)
    several = kinds.names(options.point or "")
    if len(several) < 2 and options.point != "all":
        places_of(known, options.point, options.layers)
    for point in several if len(several) > 1 else []:
        places_of(known, point, "all")


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


def saved_rows(progress: Callable[[], tuple[int, int] | None], total: int, unit: str, path: AnyPath) -> str:
    """How many rows of a store were saved, and how to resume.

    Args:
        progress: gives (rows there, rows in all); None or an error if the store was not begun.
        total: rows in all.
        unit: "texts" or "rows".
        path: the store.
    """
    if (folder := local_path(path)) is not None and not folder.is_dir():
        return "nothing was written; run the same command again"
    try:
        saved, _ = progress() or (0, 0)
    except ProbekitError:
        saved = 0
    if not saved:
        return f"nothing was complete yet in {path} (a shard is saved every 64 MB); run the same command again"
    return f"saved {saved:,} of {total:,} {unit} in {path}; run the same command again to resume"
