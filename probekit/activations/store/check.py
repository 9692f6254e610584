"""Check that a store is as it was written: read every file and name each broken one."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from probekit.activations.store.examples import StoredExamples, joined, piece_path, read_head, read_piece
from probekit.activations.store.format import (
    AGAIN,
    PlanFile,
    check_layout,
    has_manifest,
    read_manifest,
    read_plan,
    read_record,
    record_numbers,
    record_path,
    record_piece,
    unfinished_advice,
)
from probekit.activations.store.kept_latents import ANEW, stored_latents
from probekit.activations.store.labels import FOLDER as LABELS
from probekit.activations.store.labels import SPLITS_FILE, label_files, read_label_file, read_splits
from probekit.activations.store.shard import Record, load_record, repair_advice
from probekit.activations.store.tensors import check_shard
from probekit.activations.sums.statistics import FOLDER as STATISTICS
from probekit.activations.sums.statistics import statistics_progress
from probekit.errors import StorageError
from probekit.files.durable import TEMPORARY, each_of, entries
from probekit.files.remote.attempts import NotReached
from probekit.files.remote.path import AnyPath
from probekit.options.check import check_any_path
from probekit.points import LATENTS
from probekit.text import counted as how_many

THREADS = 4  # reading and hashing release the GIL

T = TypeVar("T")
Advance = Callable[[int, int], object] | None  # called with (bytes read, bytes in all)


@dataclass(frozen=True)
class Broken:
    """A file that is missing or altered; its path in the store."""

    file: str
    why: str


def cannot_be_made_again(file: str) -> bool:
    """True for the plan and the examples, from which everything else can be made."""
    return file in ("plan.json", "examples.json") or file.startswith("examples/")


def is_of_labels(file: str) -> bool:
    """True for labels that were joined later, which `probekit label` writes again."""
    return file.partition("/")[0] == LABELS


def is_of_latents(file: str) -> bool:
    """True for kept latents, which `extract --sae` writes again."""
    return file.partition("/")[0] == LATENTS


@dataclass(frozen=True)
class Verification:
    """The result of `verify`.

    Attributes:
        path: the store.
        finished: True if it has a manifest.
        files: number of files, including broken and missing ones.
        bytes: bytes of all files that could be read.
        rows: examples of the sound records.
        total: examples in all; 0 when the plan cannot be read.
        broken: files that are broken or missing, in the order plan, examples, labels, manifest, records, shards;
            statistics are one entry, the folder.
        shards: numbers of the shards that must be computed again.
        counted: texts in the statistics; None where there are none.
        command: name of the command that makes such a store.
    """

    path: AnyPath
    finished: bool
    files: int
    bytes: int
    rows: int
    total: int
    broken: list[Broken]
    shards: list[int]
    counted: int | None
    command: str

    @property
    def is_sound(self) -> bool:
        """True if nothing is broken; an unfinished store can be sound."""
        return not self.broken

    @property
    def has_only_statistics(self) -> bool:
        """True if the store holds statistics of every text, and no activations."""
        return not self.finished and self.rows == 0 < self.total and self.counted == self.total

    @property
    def advice(self) -> str:
        """What to do; empty if there is nothing to do."""
        names = {one.file for one in self.broken}
        if any(map(cannot_be_made_again, names)):
            return AGAIN
        if all(is_of_labels(name) for name in names) and names:
            return f"remove what is broken in {str(self.path / LABELS)!a} and label again"
        if all(is_of_latents(name) for name in names) and names:
            return ANEW
        if names == {STATISTICS}:
            return f"remove what is broken in {str(self.path / STATISTICS)!a} and run the same command again"
        if names:
            return repair_advice(self.path)
        if self.finished or self.has_only_statistics:
            return ""
        return unfinished_advice(self.path, self.command, self.rows == self.total)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {**asdict(self), "path": str(self.path), "sound": self.is_sound}


def verify(path: str | AnyPath, advance: Advance = None) -> Verification:
    """Read every byte of a store, finished or not, and compare all checksums; `advance` takes (bytes read, in all).

    Raises:
        DataError: no store there.
        StorageError: an object store refused a request or did not answer.
    """
    check = _Check(check_any_path("the store", path))
    plan = check.attempt("plan.json", lambda: read_plan(check.path))
    records = _loose_records(check) if plan is None else _planned_records(check, plan)
    rows, total = sum(len(record.rows) for record in records.values()), plan.rows if plan else 0
    _check_shards(check, records, advance)
    if check.finished and not check.broken and rows < total:
        check.add("manifest.json", f"it names records of {rows} of {total} rows")
    counted = None if plan is None else _check_statistics(check)
    if plan is not None:
        _check_latents(check, plan)
    return Verification(
        path=check.path,
        finished=check.finished,
        files=check.files,
        bytes=check.bytes,
        rows=rows,
        total=total,
        broken=check.broken,
        shards=sorted(check.shards),
        counted=counted,
        command=plan.command if plan else "extract",
    )


class _Check:
    """Counts the files of a store, and lists the broken ones."""

    def __init__(self, path: AnyPath):
        self.path = path
        self.finished = has_manifest(path)
        self.files = self.bytes = 0
        self.broken: list[Broken] = []
        self.shards: list[int] = []
        self._sizes = {f"records/{one.path.name}": one.st_size for one in entries(path / "records")}

    def add(self, file: str, why: object) -> None:
        """Note a broken file, named by its path in the store; raise an error that does not say that it is broken."""
        if isinstance(why, NotReached):
            raise why
        self.broken.append(Broken(file, str(why)))

    def attempt(self, file: str, read: Callable[[], T]) -> T | None:
        """The value that `read` returns; None if it fails, and then the file is broken."""
        self.files += 1
        try:
            value = read()
            self.bytes += self._sizes.get(file) or (self.path / file).stat().st_size
            return value
        except (StorageError, OSError) as error:
            self.add(file, error)
        return None


def _loose_records(check: _Check) -> dict[int, Record]:
    """The sound records where the plan is broken; each file is checked by itself."""
    path = check.path
    _checked_examples(check, None)
    if check.finished:
        check.attempt("manifest.json", lambda: read_manifest(path))
    loaded = {
        number: check.attempt(
            f"records/{record_piece(number)}.json", lambda number=number: load_record(record_path(path, number), None)
        )
        for number in _record_numbers(check)
    }
    return {number: one[0] for number, one in loaded.items() if one}


def _planned_records(check: _Check, plan: PlanFile) -> dict[int, Record]:
    """The sound records; those that are missing or broken are noted in `check.shards`."""
    examples = _checked_examples(check, plan)
    if examples:
        _check_labels(check, examples)
    manifest = check.attempt("manifest.json", lambda: read_manifest(check.path, plan)) if check.finished else None
    if manifest and examples and manifest["examples"] != examples.seal:
        check.add("examples.json", "it is not the one that the manifest names")
    seals: list[str] | None = manifest["records"] if manifest else None
    n = len(seals) if seals is not None else (plan.shards or 0) if check.finished else 0
    sound: dict[int, Record] = {}
    taken = np.zeros(plan.rows, dtype=bool)
    numbers = sorted({*_record_numbers(check), *range(n)})
    read = each_of(check.path, lambda number: _tried(lambda: read_record(check.path, plan, number)), numbers)
    for number, found in zip(numbers, read, strict=True):
        record = check.attempt(
            f"records/{record_piece(number)}.json",
            lambda number=number, found=found: _checked_record(check.path, plan, found, examples, seals, number, taken),
        )
        if record is None:
            check.shards.append(number)
        else:
            sound[number] = record
            taken[record.rows] = True
    return sound


def _checked_examples(check: _Check, plan: PlanFile | None) -> StoredExamples | None:
    """The examples, if examples.json and all of its pieces are sound; without a plan the files are only checked."""
    path, head = check.path, check.attempt("examples.json", lambda: read_head(check.path))
    if head is None:
        return None
    pieces = [
        check.attempt(str(piece_path(Path(), head, one)), lambda one=one, head=head: read_piece(path, head, one))
        for one in head.pieces
    ]
    sound = [piece for piece in pieces if piece is not None]
    if plan is None or len(sound) < len(pieces):
        return None
    try:
        return joined(path, plan, head, sound)
    except StorageError as error:
        check.add("examples.json", error)
    return None


def _check_labels(check: _Check, examples: StoredExamples) -> None:
    """Note the broken files of labels that were joined later."""
    try:
        files = label_files(check.path, examples.task)
    except StorageError as error:
        check.add(LABELS, error)
        return
    for file in files:
        read = read_splits if file.name == SPLITS_FILE else read_label_file
        check.attempt(f"{LABELS}/{file.name}", lambda read=read, file=file: read(file, examples))


def _tried(read: Callable[[], T]) -> T | Exception:
    """What `read` returns, or why the file is broken."""
    try:
        return read()
    except (StorageError, OSError) as error:
        return error


def _checked_record(
    path: AnyPath,
    plan: PlanFile,
    found: tuple[Record, str] | Exception,
    examples: StoredExamples | None,
    seals: list[str] | None,
    number: int,
    taken: np.ndarray,
) -> Record:
    """One record as it was read, if it agrees with examples, manifest, and the rows that earlier records hold."""
    if isinstance(found, Exception):
        raise found
    record, seal = found
    if seals is not None and (number >= len(seals) or seals[number] != seal):
        raise StorageError("it is not the one that the manifest names")
    if examples:
        check_layout(path, plan, examples.layout, {number: record})
    if taken[record.rows].any():
        raise StorageError("it holds rows that another record holds")
    return record


def _record_numbers(check: _Check) -> list[int]:
    try:
        return record_numbers(check.path)
    except (StorageError, OSError) as error:
        check.add("records", error)
        return []


def _check_shards(check: _Check, records: dict[int, Record], advance: Advance) -> None:
    total, done = sum(record.n_bytes for record in records.values()), 0
    with ThreadPoolExecutor(THREADS) as pool, ExitStack() as begun:
        errors: Any = pool.map(lambda record: _tried(lambda: check_shard(check.path, record)), records.values())
        begun.callback(errors.close)  # if `add` or `advance` raises, nothing waits for shards that have not begun
        for (number, record), error in zip(records.items(), errors, strict=True):
            check.files += 1
            check.bytes += record.n_bytes
            done += record.n_bytes
            if advance:
                advance(done, total)
            if error:
                check.add(f"shards/{record.file}", error)
                check.shards.append(number)


def _check_latents(check: _Check, plan: PlanFile) -> None:
    """Note the folders of kept latents that are broken; those that are not complete are left out."""
    for one in entries(check.path / LATENTS):
        folder = f"{LATENTS}/{one.path.name}"
        try:
            kept = stored_latents(check.path, folder, plan.seal)
            if kept is not None:
                kept.check_files()
                files = [file for file in (check.path / folder).glob("*") if not file.name.startswith(TEMPORARY)]
                check.files += len(files)
                check.bytes += sum(file.stat().st_size for file in files)
        except (StorageError, OSError) as error:
            check.add(folder, error)


def _check_statistics(check: _Check) -> int | None:
    """Texts that are counted; None where there are no statistics, or broken ones."""
    folder = check.path / STATISTICS
    files = [path for path in folder.glob("[0-9a-f]*") if path.suffix in (".json", ".safetensors")]
    check.files += len(files)
    try:
        counted = statistics_progress(check.path, check=True)
        check.bytes += sum(path.stat().st_size for path in files)
    except (StorageError, OSError) as error:
        check.add(STATISTICS, error)
        return None
    if counted is None and files:
        check.add(STATISTICS, f"no record names its {how_many(len(files), 'file')}")
    return None if counted is None else counted[0]
