"""Is a store what it was when it was written? Every file is read, and every broken one is named."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from probekit.activations.store.format import (
    AGAIN,
    MOST_EXAMPLES,
    Examples,
    PlanFile,
    check_layout,
    read_examples,
    read_manifest,
    read_plan,
    read_record,
    record_numbers,
    record_path,
    unfinished_advice,
)
from probekit.activations.store.shard import Record, check_shard, mend
from probekit.activations.sums.statistics import FOLDER as STATISTICS
from probekit.activations.sums.statistics import check_statistics
from probekit.durable import unseal
from probekit.errors import StorageError

THREADS = 4  # they read and hash; both let the others run

Show = Callable[[int, int], object] | None  # called with (bytes read, bytes in all)


@dataclass(frozen=True)
class Broken:
    """A file that is missing or not as it was written; the file as the store names it."""

    file: str
    why: str


@dataclass
class Verification:
    """What `verify` found.

    Attributes:
        path: the store.
        finished: whether a manifest stands there.
        files: how many there are, broken and missing ones included.
        bytes: what was read, or would be.
        rows: examples of the records that are sound.
        total: examples in all; 0 when the plan does not say.
        broken: files that are broken or missing, in the order plan, examples, manifest, records, shards; statistics are
            one entry, the folder.
        shards: numbers of the shards that have to be computed again.
        counted: texts in the statistics; None where there are none.
        command: of the command that makes such a store.
    """

    path: Path
    finished: bool
    files: int = 0
    bytes: int = 0
    rows: int = 0
    total: int = 0
    broken: list[Broken] = field(default_factory=list)
    shards: list[int] = field(default_factory=list)
    counted: int | None = None
    command: str = "extract"

    @property
    def is_sound(self) -> bool:
        """Whether nothing is broken; a store that is unfinished can be sound."""
        return not self.broken

    @property
    def has_sums_alone(self) -> bool:
        """Whether statistics of every text stand there, and no activations."""
        return not self.finished and self.rows == 0 < self.total and self.counted == self.total

    @property
    def advice(self) -> str:
        """What to do; nothing is empty."""
        names = {one.file for one in self.broken}
        if names & {"plan.json", "examples.json"}:
            return AGAIN
        if names == {STATISTICS}:
            return f"remove the folder {str(self.path / STATISTICS)!a}, and the same command makes it anew"
        if names:
            return mend(self.path)
        if self.finished or self.has_sums_alone:
            return ""
        return unfinished_advice(self.path, self.command, self.rows == self.total)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {**asdict(self), "path": str(self.path), "sound": self.is_sound}

    def _add(self, file: Path, why: object) -> None:
        self.broken.append(Broken(str(file.relative_to(self.path)), str(why)))


def verify(path: str | Path, show: Show = None) -> Verification:
    """Read every byte of a store, finished or not, and compare all checksums.

    Args:
        path: the store.
        show: is called with (bytes read, bytes in all).

    Raises:
        DataError: no store there.
    """
    found = Verification(Path(path), (Path(path) / "manifest.json").exists())
    plan = _try(found, found.path / "plan.json", lambda: read_plan(found.path))
    if plan is None:
        records = _loose(found)
    else:
        found.total, found.command = plan.rows, plan.command
        examples = _try(found, found.path / "examples.json", lambda: read_examples(found.path, plan))
        manifest = _manifest(found, plan, examples)
        records = _records(found, plan, examples, manifest)
    found.rows = sum(len(record.rows) for record in records.values())
    _shards(found, records, show)
    if found.finished and not found.broken and found.rows < found.total:
        found._add(found.path / "manifest.json", f"it names records of {found.rows} of {found.total} rows")
    if plan is not None:
        _statistics(found)
    found.shards.sort()
    return found


def _try(found: Verification, file: Path, read: Callable[[], Any]) -> Any:
    """What `read` returns, or None, and then the file is broken."""
    found.files += 1
    try:
        value = read()
        found.bytes += file.stat().st_size
        return value
    except (StorageError, OSError) as error:
        found._add(file, error)
    return None


def _loose(found: Verification) -> dict[int, Record]:
    """What can be checked without a plan: each file for itself; the records that are sound."""
    _try(found, found.path / "examples.json", lambda: unseal(found.path / "examples.json", MOST_EXAMPLES))
    if found.finished:
        _try(found, found.path / "manifest.json", lambda: read_manifest(found.path))
    files = {number: record_path(found.path, number) for number in _numbers(found)}
    read = {number: _try(found, file, lambda file=file: Record.load(file, None)) for number, file in files.items()}
    return {number: record[0] for number, record in read.items() if record}


def _numbers(found: Verification) -> list[int]:
    try:
        return record_numbers(found.path)
    except (StorageError, OSError) as error:
        found._add(found.path / "records", error)
        return []


def _manifest(found: Verification, plan: PlanFile, examples: Examples | None) -> dict[str, Any] | None:
    if not found.finished:
        return None

    def read() -> dict[str, Any]:
        manifest = read_manifest(found.path)
        if manifest["plan"] != plan.seal:
            raise StorageError("it belongs to another plan")
        return manifest

    manifest = _try(found, found.path / "manifest.json", read)
    if manifest and examples and manifest["examples"] != examples.seal:
        found._add(found.path / "examples.json", "it is not the one that the manifest names")
    return manifest


def _records(
    found: Verification, plan: PlanFile, examples: Examples | None, manifest: dict[str, Any] | None
) -> dict[int, Record]:
    """The records that are sound."""
    numbers = _numbers(found)
    seals = manifest["records"] if manifest else None
    n = len(seals) if seals is not None else (plan.shards or 0) if found.finished else 0
    sound: dict[int, Record] = {}
    taken = np.zeros(plan.rows, dtype=bool)
    for number in sorted({*numbers, *range(n)}):

        def read(number: int = number) -> Record:
            record, seal = read_record(found.path, plan, number)
            if seals is not None and (number >= n or seals[number] != seal):
                raise StorageError("it is not the one that the manifest names")
            if examples:
                check_layout(found.path, plan, examples.layout, {number: record})
            if taken[record.rows].any():
                raise StorageError("it holds rows that another record holds")
            taken[record.rows] = True
            return record

        record = _try(found, record_path(found.path, number), read)
        if record is None:
            found.shards.append(number)
        else:
            sound[number] = record
    return sound


def _shards(found: Verification, records: dict[int, Record], show: Show) -> None:
    total = sum(record.n_bytes for record in records.values())
    done = 0
    for (number, record), error in zip(records.items(), _checked(found.path, records.values()), strict=True):
        found.files += 1
        found.bytes += record.n_bytes
        done += record.n_bytes
        if show:
            show(done, total)
        if error:
            found._add(found.path / "shards" / record.file, error)
            found.shards.append(number)


def _checked(path: Path, records: Iterable[Record]) -> Iterable[StorageError | None]:
    def check(record: Record) -> StorageError | None:
        try:
            check_shard(path, record)
        except StorageError as error:
            return error
        return None

    with ThreadPoolExecutor(THREADS) as pool:
        yield from pool.map(check, records)


def _statistics(found: Verification) -> None:
    folder = found.path / STATISTICS
    files = [path for path in folder.glob("[0-9a-f]*") if path.suffix in (".json", ".safetensors")]
    found.files += len(files)
    try:
        counted = check_statistics(found.path)
        found.bytes += sum(path.stat().st_size for path in files)
    except (StorageError, OSError) as error:
        found._add(folder, error)
    else:
        found.counted = None if counted is None else counted[0]
