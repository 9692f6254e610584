"""Activations on disk: immutable shards, one small record each, the manifest last.

    STORE/plan.json                    what decides the bits, and the source of the model; another plan is refused
          examples.json                inputs (spans, targets), labels, splits, ids, positions, lengths
          shards/<sha256>.safetensors  rows of every place, named by their content
          records/00000.json           which rows, which file, and the checksum of each tensor
          manifest.json                provenance; it is there when the store is complete

A shard stands on disk before its record, and every record before the manifest (`durable` has the order of each write).
All of it but the shards is written before the first of them, so that each file except plan and examples can be made
again (`repair`). Readers trust records only, read with read(2) and never map a file: one that is cut short under a map
kills the process. JSON files carry a checksum of themselves; the manifest names the checksums of all others.

Axes: N examples, R rows of a place, D width of a place.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.activations import Activations
from probekit.activations.store.format import (
    FORMAT,
    FORMAT_VERSION,
    PlanFile,
    check_layout,
    kept_rows,
    read_examples,
    read_manifest,
    read_plan,
    read_records,
    record_path,
    unfinished_advice,
)
from probekit.activations.store.shard import Record, check_size, chunks, mend, read_tensor
from probekit.activations.store.verify import verify
from probekit.activations.store.writer import StoreWriter
from probekit.activations.sums.statistics import Statistics, load_statistics, statistics_progress
from probekit.devices import DTYPES
from probekit.errors import DataError, ProbekitError, StorageError, UsageError
from probekit.points import Place, PointSpec, place_name

__all__ = ["FORMAT", "FORMAT_VERSION", "Store", "StoreWriter", "load_activations"]

THREADS = 2  # that read and hash; both let the others run, and more do not help while the copies share the memory


class Store(Activations):
    """A complete store on disk: place -> [N, D], read and checked when it is asked for.

    Args:
        path: what `extract(..., out=path)` wrote.

    Raises:
        DataError: no store there.
        StorageError: it is unfinished, or a file is missing or altered; the message names the file.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._plan = read_plan(self.path)
        if not (self.path / "manifest.json").exists():
            raise _unfinished(self.path, self._plan)
        manifest = read_manifest(self.path)
        examples = read_examples(self.path, self._plan)
        numbered = read_records(self.path, self._plan)
        self._records = [record for record, _ in numbered.values()]
        if list(numbered) != list(range(len(manifest["records"]))):
            odd = sorted(set(numbered) ^ set(range(len(manifest["records"]))))
            names = ", ".join(record_path(self.path, number).name for number in odd)
            raise StorageError(f"{str(self.path)!a} is damaged: {names} missing or too many; {mend(self.path)}")
        seals = [self._plan.seal, examples.seal, *(seal for _, seal in numbered.values())]
        if seals != [manifest["plan"], manifest["examples"], *manifest["records"]]:
            raise StorageError(f"{str(self.path)!a} is damaged: its files do not belong together; {mend(self.path)}")
        meta = {key: value for key, value in manifest.items() if key not in ("examples", "records")}
        meta |= {key: self._plan.identity[key] for key in ("places", "widths", "dtype", "rows")}
        super().__init__(self._plan.places, examples.task, meta, examples.layout)
        self._check_rows()
        check_layout(self.path, self._plan, self.layout, {n: record for n, (record, _) in numbered.items()})
        for record in self._records:
            check_size(self.path, record)

    def _check_rows(self) -> None:
        rows = np.concatenate([record.rows for record in self._records])
        if not np.array_equal(np.sort(rows), np.arange(self.n_examples)):
            problem = "its records do not hold every row once"
            raise StorageError(f"{str(self.path)!a} is damaged: {problem}; {mend(self.path)}")

    def _rows(self, place: Place) -> Tensor:
        every = [np.arange(record.tensors[place_name(place)].shape[0]) for record in self._records]
        counts = self.layout.counts(place)
        targets = [_spread(self.layout.offsets(place)[:-1], counts, record.rows) for record in self._records]
        return self._gather(place, list(zip(self._records, every, targets, strict=True)), int(counts.sum()))

    def _gather(self, place: Place, parts: list[tuple[Record, np.ndarray, np.ndarray]], n_rows: int) -> Tensor:
        """Rows out of shards, [n_rows, D]; parts are (record, rows of its tensor, ascending, and where each goes)."""
        name, width = place_name(place), self._plan.widths[self._places.index(place)]
        dtype = DTYPES[self._plan.dtype]
        values = np.empty((n_rows, width * dtype.itemsize), dtype=np.uint8)  # numpy's memory comes in large pages

        def fill(part: tuple[Record, np.ndarray, np.ndarray]) -> None:
            record, sources, targets = part
            whole = len(sources) == record.tensors[name].shape[0]
            for first, rows in chunks(self.path, record, name):
                here = slice(*np.searchsorted(sources, [first, first + len(rows)]))
                _place_rows(values, targets[here], rows if whole else rows[sources[here] - first])

        with ThreadPoolExecutor(THREADS) as pool:
            deque(pool.map(fill, parts), maxlen=0)
        return torch.from_numpy(values.reshape(-1)).view(dtype).view(n_rows, width)

    def read(self, key: PointSpec, rows: slice | np.ndarray | list[int]) -> Tensor:
        """Some examples' rows of one place, out of the shards that hold them.

        Args:
            key: the place.
            rows: a slice, indices (also negative ones, in any order) or a boolean mask of the N examples.

        Returns:
            What `acts[key][rows]` would be: [n, D], or [n, P, D] of several positions; of all tokens, and of pairs of
            tokens, the rows of these examples one after the other, [R, D] and [R, H].

        Raises:
            UnknownPoint: nothing of this place is here.
            UsageError: an index out of range.
            StorageError: a shard is missing or damaged.
        """
        place = self._known(key)
        try:
            wanted = np.arange(self.n_examples)[rows]
        except IndexError as error:
            raise UsageError(f"rows are a slice, indices or a mask of {self.n_examples} examples: {error}") from None
        distinct, back = np.unique(wanted, return_inverse=True)
        counts = self.layout.counts(place)
        starts = np.zeros(self.n_examples, dtype=np.int64)
        starts[distinct] = np.cumsum(counts[distinct]) - counts[distinct]
        parts = [self._part(record, distinct, starts, counts) for record in self._records]
        values = self._gather(place, [part for part in parts if len(part[1])], int(counts[distinct].sum()))
        if not np.array_equal(back, np.arange(len(distinct))):
            values = values[torch.from_numpy(_spread(starts, counts, wanted))]
        return self.layout.shaped(place, values)

    @staticmethod
    def _part(
        record: Record, wanted: np.ndarray, starts: np.ndarray, counts: np.ndarray
    ) -> tuple[Record, np.ndarray, np.ndarray]:
        held = np.isin(record.rows, wanted)
        inside = np.repeat(held, counts[record.rows])
        return record, np.flatnonzero(inside), _spread(starts, counts, record.rows[held])

    def shard_examples(self) -> list[np.ndarray]:
        """The examples of each shard, int64, in the order in which `shards` gives them."""
        return [record.rows for record in self._records]

    def shards(self, key: PointSpec) -> Iterator[tuple[np.ndarray, Tensor]]:
        """One place shard by shard, in the order of the shards: (its examples int64, their rows [R, D]).

        Two shards are held at a time: the next is read while one is at work.

        Raises:
            UnknownPoint: nothing of this place is here.
            StorageError: a shard is missing or damaged.
        """
        return self._shards(place_name(self._known(key)))

    def _shards(self, name: str) -> Iterator[tuple[np.ndarray, Tensor]]:
        waiting: deque[tuple[np.ndarray, Future[Tensor]]] = deque()
        with ThreadPoolExecutor(1) as pool:
            for record in self._records:
                waiting.append((record.rows, pool.submit(read_tensor, self.path, record, name)))
                if len(waiting) > 1:
                    rows, tensor = waiting.popleft()
                    yield rows, tensor.result()
                    del tensor
            for rows, tensor in waiting:
                yield rows, tensor.result()

    @property
    def source(self) -> dict[str, Any] | None:
        """What `load_model` takes to load the model again; None where nobody said."""
        return self._plan.source

    def _n_bytes(self) -> int:
        return sum(record.n_bytes for record in self._records)

    @cached_property
    def n_bytes(self) -> int:
        """Bytes of the shards on disk."""
        return self._n_bytes()

    @property
    def statistics(self) -> Statistics:
        """The sums that ridge, LDA and mean differences need, read from disk.

        Raises:
            DataError: there are none; the same extract with stats=True adds them.
            StorageError: they are unfinished or damaged.
        """
        return load_statistics(self.path)

    def verify(self) -> None:
        """Read every byte of the store and compare checksums, as `probekit.activations.store.verify` does.

        Raises:
            StorageError: naming each file that is missing or altered.
        """
        found = verify(self.path)
        if found.broken:
            raise StorageError("; ".join(f"{one.file}: {one.why}" for one in found.broken))

    @staticmethod
    def progress(path: str | Path) -> tuple[int, int]:
        """(rows kept, rows in all) of a store, finished or not.

        Raises:
            DataError: no store there.
            StorageError: the plan or a record is damaged.
        """
        plan = read_plan(Path(path))
        return kept_rows(Path(path), plan), plan.rows


def load_activations(path: str | Path) -> Store:
    """Open a complete store; errors as in `Store`."""
    return Store(path)


def _unfinished(path: Path, plan: PlanFile) -> ProbekitError:
    kept, total = Store.progress(path)
    if not kept and statistics_progress(path) == (total, total):
        return DataError(
            f"{str(path)!a} holds statistics and no activations: read them with pk.load_statistics, fit ridge and "
            "mean-diff on them with fit_statistics, or run its extract command without --stats-only"
        )
    state = f"{str(path)!a} is unfinished, {kept} of {total} rows are there"
    return StorageError(f"{state}: {unfinished_advice(path, plan.command, kept == total)}")


def _spread(starts: np.ndarray, counts: np.ndarray, examples: np.ndarray) -> np.ndarray:
    """Where the rows of these examples stand, one example after the other, int64; `starts` and `counts` are of all."""
    counts = counts[examples]
    if (counts == 1).all():
        return starts[examples]
    before = np.cumsum(counts) - counts
    return np.repeat(starts[examples] - before, counts) + np.arange(counts.sum())


def _place_rows(values: np.ndarray, targets: np.ndarray, rows: np.ndarray) -> None:
    """values[targets] = rows, a row being one item to numpy: several times faster than byte by byte."""
    kind = np.dtype((np.void, values.shape[1]))
    values.view(kind)[targets] = np.ascontiguousarray(rows).view(kind)
