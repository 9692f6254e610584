"""A complete store as a mapping from places to tensors, read and checked on access.

Axes: N examples, R rows of a place, D width of a place.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from probekit.activations.activations import Activations
from probekit.activations.latents import encoded_rows
from probekit.activations.parts.cut import missing_parts, parts_in_words
from probekit.activations.store.check import verify
from probekit.activations.store.examples import read_examples
from probekit.activations.store.format import (
    PlanFile,
    check_layout,
    has_manifest,
    read_manifest,
    read_plan,
    read_records,
    record_path,
    stored_rows,
    unfinished_advice,
)
from probekit.activations.store.kept_latents import (
    StoredLatents,
    drop_damaged,
    every_stored,
    latents_folder,
    stored_latents,
    write_latents,
)
from probekit.activations.store.labels import stored_labels, with_stored_labels
from probekit.activations.store.shard import Record, repair_advice
from probekit.activations.store.tensors import ONCE, SIZE, check_shard_sizes, chunks, prefetch, read_tensor
from probekit.activations.sums.statistics import Statistics, load_statistics, statistics_progress
from probekit.errors import DataError, ProbekitError, StorageError, UsageError
from probekit.files.durable import readers_of
from probekit.files.remote.path import AnyPath
from probekit.latents.sae import Sae
from probekit.machine.devices import DTYPES
from probekit.options.check import check_any_path
from probekit.options.kinds import READING
from probekit.points import Place, PointSpec
from probekit.tasks.join_labels import labels_record
from probekit.text import listed

AHEAD = 8  # shards that the disk is asked for before they are read


class Store(Activations):
    """A complete store on disk: place -> [N, D], read and checked on access.

    Args:
        path: the folder that `extract(..., out=path)` wrote.
        check: "hash" compares the bytes of a place with their checksums when this process first reads them; "size"
            compares the sizes of files only.

    Raises:
        UsageError: another word for `check`.
        DataError: no store there.
        StorageError: unfinished, or a file is missing or altered; the message names the file.
    """

    def __init__(self, path: str | AnyPath, check: str = ONCE):
        self.path = check_any_path("the store", path)
        self._check = READING.check("check", check)
        self._plan = read_plan(self.path)
        if not has_manifest(self.path):
            raise _unfinished(self.path, self._plan)
        manifest = read_manifest(self.path, self._plan)
        examples = read_examples(self.path, self._plan)
        numbered = read_records(self.path, self._plan)
        seals = {number: seal for number, (_, seal) in numbered.items()}
        _check_seals(self.path, manifest, examples.seal, seals)
        self._records = [record for record, _ in numbered.values()]
        meta = {key: value for key, value in manifest.items() if key not in ("examples", "records")}
        meta |= {key: self._plan.identity[key] for key in ("places", "widths", "dtype", "rows")}
        meta |= {"check": SIZE} if check == SIZE else {}
        task = with_stored_labels(examples.task, stored_labels(self.path, examples))
        meta |= labels_record(task)
        super().__init__(self._plan.places, task, meta, examples.layout)
        _check_rows(self.path, self._records, self.n_examples)
        check_layout(self.path, self._plan, self.layout, dict(enumerate(self._records)))
        check_shard_sizes(self.path, self._records)

    def _rows(self, place: Place) -> Tensor:
        every = [np.arange(record.tensors[str(place)].shape[0]) for record in self._records]
        counts = self.layout.counts(place)
        targets = [_spread(self.layout.offsets(place)[:-1], counts, record.rows) for record in self._records]
        return self._gather(place, list(zip(self._records, every, targets, strict=True)), int(counts.sum()))

    def _gather(self, place: Place, parts: list[tuple[Record, np.ndarray, np.ndarray]], n_rows: int) -> Tensor:
        """Rows from shards, [n_rows, D]; parts are (record, rows of its tensor, ascending, and the target of each)."""
        name, width = str(place), self._plan.widths[self._places.index(place)]
        dtype = DTYPES[self._plan.dtype]
        values = np.empty((n_rows, width * dtype.itemsize), dtype=np.uint8)  # numpy allocates large pages

        def fill(number: int) -> None:
            for record, *_ in parts[number + AHEAD : number + AHEAD + 1] if number else parts[: AHEAD + 1]:
                prefetch(self.path, record, name)
            record, sources, targets = parts[number]
            all_rows = len(sources) == record.tensors[name].shape[0]
            for first, rows in chunks(self.path, record, name, self._check):
                here = slice(*np.searchsorted(sources, [first, first + len(rows)]))
                _place_rows(values, targets[here], rows if all_rows else rows[sources[here] - first])

        with ThreadPoolExecutor(readers_of(self.path)) as pool:
            deque(pool.map(fill, range(len(parts))), maxlen=0)
        return torch.from_numpy(values.reshape(-1)).view(dtype).view(n_rows, width)

    def read(self, key: PointSpec, rows: slice | np.ndarray | list[int]) -> Tensor:
        """Some examples' rows of one place; only the shards that hold them are read.

        Args:
            key: the place.
            rows: a slice, indices (also negative ones, in any order) or a boolean mask of the N examples.

        Returns:
            The same as `acts[key][rows]`: [n, D], or [n, P, D] with several positions. With all tokens, or pairs of
            tokens, the rows of these examples concatenated, [R, D] and [R, H].

        Raises:
            UnknownPoint: the store does not have this place.
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
        """The examples of each shard, int64, in the order of `shards`."""
        return [record.rows for record in self._records]

    in_shards = True

    def width(self, place: Place) -> int:
        """D of a place."""
        return int(self.meta["widths"][self._places.index(place)])

    def shards(self, key: PointSpec) -> Iterator[tuple[np.ndarray, Tensor]]:
        """One place shard by shard: (examples of the shard int64, their rows [R, D]).

        Memory holds two shards: the next is read while you use one.

        Raises:
            UnknownPoint: the store does not have this place.
            StorageError: a shard is missing or damaged.
        """
        return self._shards(str(self._known(key)))

    def _shards(self, name: str) -> Iterator[tuple[np.ndarray, Tensor]]:
        waiting: deque[tuple[np.ndarray, Future[Tensor]]] = deque()
        with ThreadPoolExecutor(1) as pool:
            for record in self._records:
                waiting.append((record.rows, pool.submit(read_tensor, self.path, record, name, self._check)))
                if len(waiting) > 1:
                    rows, tensor = waiting.popleft()
                    yield rows, tensor.result()
                    del tensor
            for rows, tensor in waiting:
                yield rows, tensor.result()

    def kept_latents(self, fingerprint: str | None = None, reads: Place | None = None) -> list[StoredLatents]:
        """The latents that `encode(..., keep=True)` wrote here: all, or those of one autoencoder at a place.

        Raises:
            StorageError: they are damaged.
        """
        if fingerprint is None or reads is None:
            return every_stored(self.path, self._plan.seal, self._check)
        found = stored_latents(self.path, latents_folder(fingerprint, reads), self._plan.seal, self._check)
        return [] if found is None else [found]

    def drop_damaged(self, fingerprint: str, reads: Place) -> None:
        """Remove the latents of an autoencoder that are not as they were written."""
        drop_damaged(self.path, latents_folder(fingerprint, reads), self._plan.seal)

    def keep(self, sae: Sae, reads: Place, about: dict[str, Any], progress: bool | None = None) -> None:
        """Write the latents of an autoencoder that reads a place, and what was measured of it; see `encode`."""

        def shard(number: int) -> tuple[np.ndarray, csr_array]:
            record = self._records[number]
            x = read_tensor(self.path, record, str(reads), self._check)
            return record.rows, encoded_rows(self, sae, reads, record.rows, x)

        write_latents(self.path, self._plan.seal, sae, reads, range(len(self._records)), shard, about, progress)

    def some_rows(self, place: Place, rows: np.ndarray) -> Tensor:
        """Some rows of a place, [n, D], of the shards that hold them."""
        ends = np.cumsum(self.layout.counts(place))
        examples, which = np.unique(np.searchsorted(ends, rows, side="right"), return_inverse=True)
        counts = self.layout.counts(place)[examples]
        starts = np.cumsum(counts) - counts
        inside = rows - (ends - self.layout.counts(place))[examples][which]
        return self.read(place, examples).reshape(-1, self.width(place))[torch.from_numpy(starts[which] + inside)]

    @property
    def source(self) -> dict[str, Any] | None:
        """Arguments with which `load_model` loads the model again; None where they are unknown."""
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
        """Read every byte of the store and compare checksums, as `probekit.activations.verify` does.

        Raises:
            StorageError: naming each file that is missing or altered.
        """
        found = verify(self.path)
        if found.broken:
            raise StorageError(listed([f"{one.file}: {one.why}" for one in found.broken], between="; "))

    @staticmethod
    def progress(path: str | AnyPath) -> tuple[int, int]:
        """(rows on disk, rows in all) of a store, complete or not.

        Raises:
            DataError: no store there.
            StorageError: the plan or a record is damaged.
        """
        place = check_any_path("the store", path)
        plan = read_plan(place)
        return stored_rows(place, plan), plan.rows


def load_activations(path: str | AnyPath, check: str = ONCE) -> Store:
    """Open a complete store; `check` and errors as in `Store`."""
    return Store(path, check)


def _check_seals(path: AnyPath, manifest: dict[str, Any], examples: str, records: dict[int, str]) -> None:
    """Raise a StorageError unless the manifest names the examples and records with these seals."""
    expected = range(len(manifest["records"]))
    if odd := sorted(set(records) ^ set(expected)):
        names = listed([record_path(path, number).name for number in odd])
        raise StorageError(f"{str(path)!a} is damaged: missing or not its own: {names}; {repair_advice(path)}")
    if [examples, *records.values()] != [manifest["examples"], *manifest["records"]]:
        raise StorageError(f"{str(path)!a} is damaged: its files do not belong together; {repair_advice(path)}")


def _check_rows(path: AnyPath, records: list[Record], n: int) -> None:
    is_held, n_held = np.zeros(n, dtype=bool), sum(len(record.rows) for record in records)
    for record in records:
        is_held[record.rows] = True
    if n_held != n or not is_held.all():
        problem = "its records do not hold every row once"
        raise StorageError(f"{str(path)!a} is damaged: {problem}; {repair_advice(path)}")


def _unfinished(path: AnyPath, plan: PlanFile) -> ProbekitError:
    stored, total = Store.progress(path)
    if not stored and statistics_progress(path) == (total, total):
        return DataError(
            f"{str(path)!a} holds statistics and no activations: load them with pk.load_statistics, fit ridge and "
            "mean-diff on them with fit_statistics, or run its extract command without --stats-only"
        )
    state = f"{str(path)!a} is unfinished, with {stored:,} of {total:,} rows"
    if missing := missing_parts(path, plan):
        names = parts_in_words(missing)
        return StorageError(f"{state}: missing in {names}; run these parts, or the extract command in full")
    return StorageError(f"{state}: {unfinished_advice(path, plan.command, stored == total)}")


def _spread(starts: np.ndarray, counts: np.ndarray, examples: np.ndarray) -> np.ndarray:
    """Row indices of these examples, one example after the other, int64; `starts` and `counts` are of all examples."""
    counts = counts[examples]
    if (counts == 1).all():
        return starts[examples]
    before = np.cumsum(counts) - counts
    return np.repeat(starts[examples] - before, counts) + np.arange(counts.sum())


def _place_rows(values: np.ndarray, targets: np.ndarray, rows: np.ndarray) -> None:
    """values[targets] = rows, with a row as one numpy item: several times faster than byte by byte."""
    row = np.dtype((np.void, values.shape[1]))
    values.view(row)[targets] = np.ascontiguousarray(rows).view(row)
