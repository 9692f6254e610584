"""Find the files of a dataset's splits, by their names.

A folder holds a table for each split (train.csv, dev.csv, test.csv). Or it holds text files named after classes
(neg.txt, pos.txt), with a text in each line; such files may be in subfolders named after splits.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from probekit.errors import DataError, UsageError
from probekit.tasks.splitting.split_names import WHOLE, splits_of_names
from probekit.tasks.tables.readers import BESIDE, READERS, TXT, check_format
from probekit.text import listed

ABOUT = ("readme", "license", "licence", "copying")  # text files that hold no texts of a class


def split_files(path: Path, data_format: str | None = None) -> dict[str, Path]:
    """Split -> its file, or the folder of its class files; {"all": path} for a single file or folder of classes.

    Files with a split's name may have any ending where the format is given.

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
    found = _files_of_splits(_files(path))
    tables = {file: split for file, split in found.items() if file.suffix.lower() in READERS}
    named = {file: split for file, split in tables.items() if is_table(file)} or tables
    named = named or (found if data_format is not None else {})
    if not named:
        folders = [one for one in sorted(path.iterdir()) if one.is_dir() and class_files(one)]
        splits = splits_of_names(one.name for one in folders)
        named = {one: splits[one.name] for one in folders if one.name in splits}
    if not named and len(class_files(path)) > 1:
        return {WHOLE: path}
    return _by_split(path, named)


def class_files(folder: Path) -> list[Path]:
    """The text files of a folder that are named after classes, in order."""
    files = [file for file in _files(folder) if file.suffix.lower() == TXT]
    splits = _files_of_splits(files)
    return [file for file in files if file not in splits]


def is_one_task(folder: Path) -> bool:
    """Whether a folder is one task: all of its tables are splits, or it holds text files, of classes or splits."""
    files = _files(folder)
    if tables := [one for one in files if is_table(one)]:
        return len(_files_of_splits(tables)) == len(tables)
    return sum(one.suffix.lower() == TXT for one in files) > 1


def is_table(file: Path) -> bool:
    """Whether a file among others is a table by its ending; a .txt or .json may also be something else."""
    return file.suffix.lower() in READERS and file.suffix.lower() not in BESIDE


def _files(folder: Path) -> list[Path]:
    """The files that may be data, in order."""
    files = [one for one in sorted(folder.iterdir()) if one.is_file() and not one.name.startswith(".")]
    return [one for one in files if one.stem.lower() not in ABOUT]


def _files_of_splits(files: Sequence[Path]) -> dict[Path, str]:
    """File -> its split, of those that are named after one among the files of the same ending."""
    endings: dict[str, list[Path]] = defaultdict(list)
    for file in files:
        endings[file.suffix.lower()].append(file)
    found = {}
    for alike in endings.values():
        splits = splits_of_names(map(_name_of_split, alike))
        found |= {file: splits[name] for file in alike if (name := _name_of_split(file)) in splits}
    return {file: found[file] for file in files if file in found}


def _by_split(path: Path, named: dict[Path, str]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for file, split in named.items():
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


def _name_of_split(file: Path) -> str:
    """What may name a split in a file's name; Universal Dependencies names files like en_ewt-ud-dev.conllu."""
    return file.stem.rsplit("-", 1)[-1] if file.suffix.lower() == ".conllu" else file.stem
