"""The kinds of results on disk: which files belong to each, and how they are replaced. Imports no library."""

import re
from dataclasses import dataclass
from pathlib import Path

from probekit.errors import DataError, ResumeMismatch, StorageError
from probekit.files.durable import refused

TABLE = "results.csv"
AGAIN = "train again"


@dataclass(frozen=True)
class ResultsKind:
    """A kind of results on disk.

    Attributes:
        what: the results in words, as messages have them.
        file: the JSON that is written last, and without which nothing is there.
        also: a pattern of the names of the other files; files with other names are never deleted.
        form: what the JSON says of its format.
        plural: the results without an article, as in "no results here".
        maker: the command that writes them.
        again: what to do without them.
        inner: of several results, the kinds of which each may be, in a folder of its own.
    """

    what: str
    file: str
    also: str
    form: str
    plural: str = "results"
    maker: str = "train-probe"
    again: str = AGAIN
    inner: tuple[str, ...] = ()

    def has(self, path: Path) -> bool:
        """Whether this path is a file of these results, or their folder of probes."""
        if path.name != self.file and not re.fullmatch(self.also, path.name):
            return False
        if path.name != "probes":
            return path.is_file()
        inside = (_PROBES.fullmatch(inner.name) and inner.is_file() for inner in _entries(path))
        return path.is_dir() and not path.is_symlink() and all(inside)


_PROBES = re.compile(r"\w+(\.\w+)*\.(json|safetensors)")
_PICTURE = r"\.(png|svg|pdf)"
_ANY = r"results\.csv|report\.html"  # of every kind
_CURVE = rf"{_ANY}|(projection|\w+_by_layer){_PICTURE}|probes|predictions\.parquet|training_activations\.safetensors"
# Tables had other names once; they are deleted with the results that they are of.
_CAUSAL = rf"{_ANY}|(causal_by_layer|patching){_PICTURE}|(effects|layers|patching)\.csv"
_COMPARISON = rf"{_ANY}|comparison{_PICTURE}|(comparison|differences|places)\.csv"
_GRIDS = ("positions", "heads", "transfer")
KINDS = {
    "curve": ResultsKind("a curve", "results.json", _CURVE, "probekit.results/2"),
    "positions": ResultsKind(
        "results by position",
        "positions.json",
        rf"{_ANY}|positions{_PICTURE}|probes",
        "probekit.positions/1",
        "results by position",
    ),
    "heads": ResultsKind(
        "results by head", "heads.json", rf"{_ANY}|heads{_PICTURE}|probes", "probekit.heads/1", "results by head"
    ),
    "transfer": ResultsKind(
        "a transfer or shift",
        "transfer.json",
        rf"{_ANY}|transfer{_PICTURE}|transfer\.csv",
        "probekit.transfer/1",
        "results of transfer",
        "transfer",
    ),
    "causal": ResultsKind(
        "causal results",
        "causal.json",
        _CAUSAL,
        "probekit.causal/2",
        "causal results",
        "probekit causal",
        "run probekit causal again",
    ),
    "comparison": ResultsKind(
        "a comparison",
        "comparison.json",
        _COMPARISON,
        "probekit.comparison/1",
        "comparison",
        "compare",
        "compare again",
    ),
    "curves": ResultsKind(
        "several curves",
        "curves.json",
        rf"{_ANY}|curves{_PICTURE}",
        "probekit.curves/1",
        "curves",
        inner=("curve",),
    ),
    "grids": ResultsKind(
        "several grids", "grids.json", rf"{_ANY}|grids{_PICTURE}", "probekit.grids/1", "grids", inner=_GRIDS
    ),
}


def kind_in(folder: Path) -> str | None:
    """The kind of the results in a folder, a key of `KINDS`; None where there are none."""
    return next((kind for kind, each in KINDS.items() if (folder / each.file).is_file()), None)


def refuse_other_kind(folder: Path) -> None:
    """Refuse results that are of no curve.

    Raises:
        DataError: a folder of results by position or head, of a transfer, or of another such kind.
    """
    kind = kind_in(folder)
    if kind not in (None, "curve", "curves"):
        raise DataError(
            f"{str(folder)!a} holds {KINDS[kind].what}; give results of a curve (train-probe without --by and "
            "--shift-column)"
        )


def check_results_folder(folder: str | Path, kind: str = "curve") -> None:
    """Check that results may be written to `folder`: it does not exist, is empty or holds only such results.

    Args:
        folder: where results would be written.
        kind: of the results, a key of `KINDS`.

    Raises:
        StorageError: it is a file, or holds a file that is not of results and would be in danger.
        ResumeMismatch: it holds results of another kind.
    """
    folder, own = Path(folder), KINDS[kind]
    if not folder.exists():
        return
    if not folder.is_dir():
        raise StorageError(f"{str(folder)!a} is a file; results need a folder, give another one (--out)")
    foreign = _foreign(folder, own)
    other = kind_in(folder)
    if foreign and other not in (None, kind) and not _foreign(folder, KINDS[other]):
        raise ResumeMismatch(
            f"{str(folder)!a} holds {KINDS[other].what}, and this makes {own.what}; give another folder (--out), or "
            "remove that one"
        )
    if foreign:
        raise StorageError(
            f"{str(folder)!a} holds {min(foreign)!a}, which is not a file of results; give a new or empty folder "
            "(--out)"
        )


def _foreign(folder: Path, kind: ResultsKind) -> list[str]:
    """The names of what is in a folder and not of such results."""
    return [path.name for path in _entries(folder) if not kind.has(path) and not _is_inner(path, kind)]


def clear_folder(folder: Path, kind: str = "curve") -> None:
    """Delete the results in `folder`, its .json first, so that a half-deleted folder cannot be loaded.

    Args:
        folder: where the results are.
        kind: as for `check_results_folder`.

    Raises:
        StorageError: the disk refused, or the folder holds something else.
        ResumeMismatch: it holds results of another kind.
    """
    check_results_folder(folder, kind)
    try:
        _remove_files(folder)
        for inner in (path for path in _entries(folder) if KINDS[kind].inner and _entries(path)):
            _remove_files(inner)
            for emptied in (inner / "probes", inner):
                if emptied.is_dir() and not any(emptied.iterdir()):
                    emptied.rmdir()
    except OSError as error:
        raise refused(folder, error) from error


def _remove_files(folder: Path) -> None:
    files = [path for path in _entries(folder) if path.is_file()]
    for path in [*sorted(files, key=lambda path: path.suffix != ".json"), *_entries(folder / "probes")]:
        path.unlink()


def _entries(folder: Path) -> list[Path]:
    """The entries of a folder, without hidden files, which other programs leave (such as .DS_Store)."""
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if not path.name.startswith(".")]


def _is_inner(path: Path, several: ResultsKind) -> bool:
    """Whether this is a folder that holds nothing but one of several results."""
    if not several.inner or not path.is_dir() or path.is_symlink():
        return False
    return any(all(KINDS[kind].has(inner) for inner in _entries(path)) for kind in several.inner)
