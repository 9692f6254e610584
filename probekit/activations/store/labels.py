"""Labels that were joined to a store after it was made: a sealed file for each label set, and one for the splits.

    labels/splits.json               the splits, if the store was made without labels
    labels/<checksum of name>.json   one label set

The examples are never changed: these files name the checksum of examples.json, and hold one value for each example.

Axes: N examples.
"""

import hashlib
import re
from dataclasses import dataclass
from types import NoneType
from typing import Any, NotRequired, TypedDict

import numpy as np

from probekit.activations.store.examples import StoredExamples
from probekit.activations.store.format import MAX_EXAMPLES_BYTES, require, storage_errors
from probekit.errors import ResumeMismatch, StorageError
from probekit.files.durable import TEMPORARY, check_folder, entries, make_folder, remove_stale
from probekit.files.records import read_as
from probekit.files.remote.path import AnyPath
from probekit.files.run import Run
from probekit.tasks.base import SPLITS, Task
from probekit.tasks.join_labels import LabelledSplits, LabelSet, with_label_sets

FOLDER = "labels"
AGAIN = "remove it and label again"
_FILE = re.compile(r"[0-9a-f]{16}\.json")
SPLITS_PIECE = "splits"
SPLITS_FILE = f"{SPLITS_PIECE}.json"


class _Counts(TypedDict):
    labelled: int
    unlabelled: int
    skipped: dict[str, int]


class _Labels(TypedDict):
    name: str
    label_names: list[str]
    labels: list[Any]  # whole numbers, or numbers and null
    info: _Counts
    number: int


class _Splits(TypedDict):
    splits: list[int]
    groups: NotRequired[list[str | int] | None]
    info: dict[str, Any]


@dataclass(frozen=True, eq=False)
class StoredLabels:
    """The labels of a store that were joined later.

    Attributes:
        sets: in the order in which they were joined.
        splits: made with the first of them; None where the store had its own.
    """

    sets: list[LabelSet]
    splits: LabelledSplits | None


def label_files(path: AnyPath, task: Task) -> list[AnyPath]:
    """The label files of the store at `path`; of a task without labels, that of the splits is among them.

    Raises:
        StorageError: the folder is a link, or other files are in it.
    """
    folder = path / FOLDER
    check_folder(folder)
    files = [one.path for one in entries(folder) if not one.path.name.startswith(TEMPORARY)]
    for file in files:
        if file.name != SPLITS_FILE and not _FILE.fullmatch(file.name):
            raise StorageError(f"{str(file)!a} is no file of labels; remove it")
    splits = folder / SPLITS_FILE
    return [*files, splits] if files and not task.target and splits not in files else files


def _run(folder: AnyPath, examples: StoredExamples) -> Run:
    """The label files of a store as the records of a run whose question is its examples."""
    return Run(folder, examples.seal, "examples", "holds labels of other texts", AGAIN, MAX_EXAMPLES_BYTES)


def stored_labels(path: AnyPath, examples: StoredExamples) -> StoredLabels:
    """The labels that were joined to the store at `path`, whose examples these are.

    Raises:
        StorageError: a file is missing, damaged, or of other examples.
    """
    files = label_files(path, examples.task)
    sets = [read_label_file(file, examples) for file in files if file.name != SPLITS_FILE]
    splits = [read_splits(file, examples) for file in files if file.name == SPLITS_FILE]
    sets.sort(key=lambda pair: (pair[0], pair[1].name))
    return StoredLabels([one for _, one in sets], splits[0] if splits else None)


def read_label_file(file: AnyPath, examples: StoredExamples) -> tuple[int, LabelSet]:
    """The number of a label set, in the order in which they were joined, and the set. Errors as `stored_labels`."""
    n = len(examples.task)
    body = _run(file.parent, examples).read(file.stem)
    with storage_errors(file, "file of labels", AGAIN):
        read_as(_Labels, body)
        names, given = body["label_names"], body["labels"]
        require(len(given) == n, file.stem == piece_name(body["name"]), len(set(names)) == len(names))
        require(set(map(type, given)) <= ({int} if names else {int, float, NoneType}))
        if names:
            labels = np.array(given, dtype=np.int64)
            require(bool(((labels >= -1) & (labels < len(names))).all()))
        else:
            labels = np.array([np.nan if one is None else one for one in given], dtype=np.float64)
        missing = int((labels < 0).sum() if names else np.isnan(labels).sum())
        require(missing == body["info"]["unlabelled"] < n, bool(not np.isinf(labels).any()))
        return body["number"], LabelSet(body["name"], labels, names, body["info"])


def read_splits(file: AnyPath, examples: StoredExamples) -> LabelledSplits:
    """The splits that were made with the first labels. Errors as `stored_labels`."""
    n = len(examples.task)
    body = _run(file.parent, examples).read(file.stem)
    with storage_errors(file, "file of splits", AGAIN):
        read_as(_Splits, body)
        numbers, groups = np.array(body["splits"], dtype=np.int64), body.get("groups")
        require(len(numbers) == n, bool(((numbers >= 0) & (numbers < len(SPLITS))).all()))
        require(groups is None or (len(groups) == n and len(set(map(type, groups))) == 1))
        return LabelledSplits(np.array(SPLITS)[numbers], None if groups is None else np.array(groups), body["info"])


def with_stored_labels(task: Task, found: StoredLabels) -> Task:
    """The task of a store with the labels that were joined to it; the first label set is the target."""
    return with_label_sets(task, found.sets, found.splits) if found.sets else task


def write_labels(
    path: AnyPath,
    examples: StoredExamples,
    known: StoredLabels,
    label_set: LabelSet,
    splits: LabelledSplits | None,
    replace: bool,
) -> bool:
    """Add a label set, and splits made with it, to the store at `path`, which has the `known` ones.

    False if it is there already, with the same labels. `splits=None` keeps the splits of the store.

    Raises:
        ResumeMismatch: the store has other labels of this name, and `replace` is False.
        StorageError: the disk refused, or a file there is damaged.
    """
    run = _run(path / FOLDER, examples)
    make_folder(run.folder)
    remove_stale(run.folder)
    if splits is not None:
        number_of = {split: k for k, split in enumerate(SPLITS)}
        body: dict[str, Any] = {"info": splits.info} | ({} if splits.groups is None else {"groups": splits.groups})
        run.write(SPLITS_PIECE, body | {"splits": [number_of[split] for split in splits.splits.tolist()]}, replace=True)
    given, piece = label_set.labels.tolist(), piece_name(label_set.name)
    body = {
        "name": label_set.name,
        "number": next((k for k, one in enumerate(known.sets) if one.name == label_set.name), len(known.sets)),
        "label_names": label_set.names,
        "info": label_set.info,
        "labels": given if label_set.names else [None if np.isnan(one) else one for one in given],
    }
    if run.write(piece, body, replace):
        return True
    _, there = read_label_file(run.file(piece), examples)
    same = there.names == label_set.names
    if not same or not np.array_equal(there.labels, label_set.labels, equal_nan=not there.names):
        raise ResumeMismatch(
            f"{str(path)!a} has other labels {label_set.name!a}, of {there.info['labelled']:,} texts; give these "
            "another name (--name), or replace those (--replace)"
        )
    return False


def piece_name(name: str) -> str:
    """The name of a label set's file, without its suffix."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
