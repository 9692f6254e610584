"""Folders of results: which files belong to them, and how they are replaced."""

import re
from pathlib import Path

from probekit.errors import StorageError
from probekit.files.durable import refused

# the files of a folder of results; any other file belongs to somebody else and is never touched
PROBE_RESULTS = re.compile(
    r"results\.(json|csv)|projection\.(png|svg|pdf)|\w+_by_layer\.(png|svg|pdf)|predictions\.parquet|"
    r"training_activations\.safetensors|report\.html|probes"
)
TRANSFER_RESULTS = re.compile(r"transfer\.(json|csv|png|svg|pdf)|report\.html")
POSITION_RESULTS = re.compile(r"positions\.(json|png|svg|pdf)|results\.csv|report\.html|probes")
HEAD_RESULTS = re.compile(r"heads\.(json|png|svg|pdf)|results\.csv|report\.html|probes")
CURVES = re.compile(r"curves\.(json|png|svg|pdf)|results\.csv|report\.html")
_PROBES = re.compile(r"\w+(\.\w+)*\.(json|safetensors)")


def check_results_folder(folder: str | Path, own: re.Pattern[str] = PROBE_RESULTS) -> None:
    """Check that results may be written to `folder`: it does not exist, is empty or holds only results.

    Args:
        folder: where results would be written.
        own: names of the files that belong to this kind of results.

    Raises:
        StorageError: it is a file, or holds a file that is not of results and would be in danger.
    """
    folder = Path(folder)
    if not folder.exists():
        return
    if not folder.is_dir():
        raise StorageError(f"{str(folder)!a} is a file; results need a folder, give another one (--out)")
    _refuse_foreign(folder, [path for path in _entries(folder) if not _is_own(path, own)])


def check_transfer_folder(folder: str | Path) -> None:
    """Check that results of transfer may be written to `folder`, as `check_results_folder` does.

    Raises:
        StorageError: it is a file, or holds a file that is not of transfer results.
    """
    check_results_folder(folder, TRANSFER_RESULTS)


def check_position_folder(folder: str | Path) -> None:
    """Check that results by position may be written to `folder`, as `check_results_folder` does.

    Raises:
        StorageError: it is a file, or holds a file that is not of results by position.
    """
    check_results_folder(folder, POSITION_RESULTS)


def check_head_folder(folder: str | Path) -> None:
    """Check that results by head may be written to `folder`, as `check_results_folder` does.

    Raises:
        StorageError: it is a file, or holds a file that is not of results by head.
    """
    check_results_folder(folder, HEAD_RESULTS)


def check_curves(folder: str | Path) -> None:
    """Check that curves may be written to `folder`: as `check_results_folder`, each in a folder of its own.

    Raises:
        StorageError: it is a file, or holds something that is not of curves.
    """
    folder = Path(folder)
    if not folder.is_dir():
        check_results_folder(folder)
        return
    _refuse_foreign(folder, [path for path in _entries(folder) if not _is_own(path, CURVES) and not _is_curve(path)])


def clear_curves(folder: Path) -> None:
    """Delete the curves in `folder`, curves.json first, so that a half-deleted folder cannot be loaded.

    Raises:
        StorageError: the disk refused, or the folder holds something else.
    """
    check_curves(folder)
    files = [path for path in _entries(folder) if path.is_file()]
    try:
        for path in sorted(files, key=lambda path: path.suffix != ".json"):
            path.unlink()
        for own in (path for path in _entries(folder) if _entries(path)):
            clear_folder(own)
            for emptied in (own / "probes", own):
                if emptied.is_dir() and not any(emptied.iterdir()):
                    emptied.rmdir()
    except OSError as error:
        raise refused(folder, error) from error


def clear_folder(folder: Path, own: re.Pattern[str] = PROBE_RESULTS) -> None:
    """Delete the results in `folder`, its .json first, so that a half-deleted folder cannot be loaded.

    Args:
        folder: where the results are.
        own: as for `check_results_folder`.

    Raises:
        StorageError: the disk refused, or the folder holds something else.
    """
    check_results_folder(folder, own)
    files = [path for path in _entries(folder) if path.is_file()]
    files = [*sorted(files, key=lambda path: path.suffix != ".json"), *_entries(folder / "probes")]
    try:
        for path in files:
            path.unlink()
    except OSError as error:
        raise refused(folder, error) from error


def _entries(folder: Path) -> list[Path]:
    """The entries of a folder, without hidden files, which other programs leave (such as .DS_Store)."""
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if not path.name.startswith(".")]


def _refuse_foreign(folder: Path, foreign: list[Path]) -> None:
    if foreign:
        name = min(path.name for path in foreign)
        raise StorageError(
            f"{str(folder)!a} holds {name!a}, which is not a file of results; give a new or empty folder (--out)"
        )


def _is_curve(path: Path) -> bool:
    """Whether this is a folder that holds nothing but the results of a curve."""
    return path.is_dir() and not path.is_symlink() and all(_is_own(inner, PROBE_RESULTS) for inner in _entries(path))


def _is_own(path: Path, own: re.Pattern[str]) -> bool:
    if own.fullmatch(path.name) is None:
        return False
    if path.name != "probes":
        return path.is_file()
    inside = (_PROBES.fullmatch(inner.name) and inner.is_file() for inner in _entries(path))
    return path.is_dir() and not path.is_symlink() and all(inside)
