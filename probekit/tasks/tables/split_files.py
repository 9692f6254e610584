"""Find the files of a dataset's splits, by their names.

A folder holds a table for each split (train.csv, dev.csv, test.csv). Or it holds text files named after classes
(neg.txt, pos.txt), with a text in each line; such files may be in subfolders named after splits.
"""

from pathlib import Path

from probekit.errors import DataError, UsageError
from probekit.tasks.splitting.split_names import WHOLE, split_of_name
from probekit.tasks.tables.readers import READERS, TXT, check_format
from probekit.text import listed

ABOUT = ("readme", "license", "licence", "copying")  # text files that hold no texts of a class


def split_files(path: Path, data_format: str | None = None) -> dict[str, Path]:
    """Split -> its file, or the folder of its class files; {"all": path} for a single file or folder of classes.

    Raises:
        DataError: the folder has no such files, or two for one split.
        UsageError: the path does not exist, is neither file nor folder, or the file's format is unknown.
    """
    if path.is_file():
        check_format(path.name, data_format)
        return {WHOLE: path}
    if not path.is_dir():
        if path.exists():
            raise UsageError(f"{str(path)!a} is neither a file nor a folder; pipe data in with --dataset -")
        raise UsageError(f"no file or folder {str(path)!a}; correct the path")
    tables = [file for file in sorted(path.iterdir()) if _split_of(file) and file.suffix.lower() in READERS]
    files = [file for file in tables if file.is_file()]
    named = [file for file in files if file.suffix.lower() != TXT] or files
    named = named or [one for one in sorted(path.iterdir()) if one.is_dir() and _split_of(one) and class_files(one)]
    if not named and len(class_files(path)) > 1:
        return {WHOLE: path}
    return _by_split(path, named)


def class_files(folder: Path) -> list[Path]:
    """The text files of a folder that are named after classes, in order."""
    files = [file for file in sorted(folder.iterdir()) if file.suffix.lower() == TXT and file.is_file()]
    return [file for file in files if file.stem.lower() not in ABOUT and _split_of(file) is None]


def _by_split(path: Path, named: list[Path]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for file in named:
        split = _split_of(file) or ""
        if split in found:
            raise DataError(
                f"{str(path)!a} has two files for {split}: {found[split].name!a} and {file.name!a}; keep one"
            )
        found[split] = file
    if not found:
        there = listed([ascii(file.name) for file in sorted(path.iterdir())]) or "nothing"
        raise DataError(
            f"{str(path)!a} has no train, validation (dev) or test file ending in {', '.join(READERS)}; "
            f"it has {there}; rename its files, or give the path of one of them"
        )
    return found


def _split_of(file: Path) -> str | None:
    """The split in a file's name; Universal Dependencies names files like en_ewt-ud-dev.conllu."""
    return split_of_name(file.stem.rsplit("-", 1)[-1] if file.suffix.lower() == ".conllu" else file.stem)
