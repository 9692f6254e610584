"""Replace the broken shards of a store, each only by the bits that were recorded."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probekit.activations.store.format import AGAIN, PlanFile, read_manifest, read_record, record_path
from probekit.activations.store.shard import Record, bytes_of, record_body, record_of
from probekit.activations.store.tensors import check_shard
from probekit.activations.store.writer import StoreWriter
from probekit.errors import StorageError
from probekit.files.durable import remove, seal, write_first, write_named
from probekit.files.remote.path import AnyPath
from probekit.points import Place, place_name


@dataclass(frozen=True, eq=False)
class Expected:
    """What is known about a broken shard.

    Attributes:
        record: its record, if that is sound.
        seal: checksum of the record, if the manifest has it.
    """

    record: Record | None
    seal: str | None


class ReplacingWriter(StoreWriter):
    """Writes the broken shards of a store, and takes all others as sound; unfinished stores stay so.

    Args:
        path: the store.
        plan: its plan.
        broken: numbers of the broken shards.
        advance: called with (shards written, broken shards).
    """

    def __init__(
        self, path: AnyPath, plan: PlanFile, broken: Iterable[int], advance: Callable[[int, int], object] | None = None
    ):
        super().__init__(path, plan)
        self._expected = {number: _expected(path, plan, number) for number in broken}
        self._advance = advance
        self._written = 0

    def has(self, number: int, rows: np.ndarray) -> bool:
        """True unless the shard is one of the broken ones."""
        return number not in self._expected

    def write(self, number: int, rows: np.ndarray, tensors: dict[Place, Tensor]) -> Future[bool]:
        """Replace one shard.

        Raises:
            StorageError: the disk refused, or a shard before came out with other bits than recorded.
        """
        written = super().write(number, rows, tensors)
        self._written += 1
        if self._advance:
            self._advance(self._written, len(self._expected))
        return written

    def _put(
        self, number: int, rows: np.ndarray, tensors: dict[Place, Tensor], before: Future[bool] | None = None
    ) -> bool:
        if before is not None:
            before.result()
        named = {place_name(place): x.contiguous() for place, x in tensors.items()}
        record, expected = record_of(rows, named), self._expected[number]
        data, sealed = seal(record_body(record, self._plan.seal))
        if not _agrees(record, sealed, expected):
            raise StorageError(_other_bits(self.path, self._plan, number))
        try:
            check_shard(self.path, record)
        except StorageError:
            write_named(self.path / "shards", [record.header, *map(bytes_of, named.values())], lambda: record.file)
        if expected.record is None:
            remove(record_path(self.path, number))
            write_first(record_path(self.path, number), data)
        return True


def _expected(path: AnyPath, plan: PlanFile, number: int) -> Expected:
    try:
        manifest = read_manifest(path)
        recorded = manifest["records"][number] if manifest["plan"] == plan.seal else None
    except (StorageError, IndexError):
        recorded = None
    try:
        record, seal_ = read_record(path, plan, number)
    except StorageError:
        return Expected(None, recorded)
    return Expected(record if recorded in (None, seal_) else None, recorded)


def _agrees(record: Record, sealed: str, expected: Expected) -> bool:
    """True if the computed record is the expected one, or nothing is known of it."""
    if expected.record is not None:
        return record.file == expected.record.file and np.array_equal(record.rows, expected.record.rows)
    return expected.seal in (None, sealed)


def _other_bits(path: AnyPath, plan: PlanFile, number: int) -> str:
    versions = plan.meta.get("versions")
    version = versions.get("torch") if isinstance(versions, dict) else None
    return (
        f"shard {number} of {str(path)!a} came out with other bits than were recorded (torch {version!a} there, "
        f"{torch.__version__} here): repair it on the machine that made it, or {AGAIN}"
    )
