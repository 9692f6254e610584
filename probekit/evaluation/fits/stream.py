"""A place as a stream of rows, where memory cannot hold what its fits take, or where few of its values are not 0.

Axes: N examples, R rows of the store's place, D width.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from probekit.activations.activations import Activations, ActivationSet, RowsOf, _At, _EachToken
from probekit.activations.latents import Latents, Unencoded, before_encoding, has_means, latents_under
from probekit.activations.select_rows import SelectedRows, selected_values
from probekit.activations.store.reader import Store
from probekit.errors import DataError
from probekit.evaluation.fits.layer import checked_features, features_of
from probekit.evaluation.fits.predict import take_rows
from probekit.latents.sparse import at_once, checked_latents
from probekit.machine.devices import free_bytes
from probekit.points import Place, PointSpec
from probekit.probes.stream import BLOCK_BYTES, NUMBER, SparseRows, Stream, bytes_to_fit, held, some_of, with_numbers

OnPass = Callable[[Place, int], None]
LEAST = 2  # copies of the rows that any fit in memory takes: as read, and the fitted ones


def features_to_fit(
    acts: Activations, place: Place, streams: bool = True, on_pass: OnPass | None = None, sparse: bool = False
) -> Tensor | Stream:
    """The rows of a place, [N, D]: in memory if all that its fits take has room there, or else a stream.

    Args:
        acts: one row for each example.
        place: one of its places.
        streams: whether the fits take a stream; otherwise rows are in memory if there is any room for them.
        on_pass: called with the place and a number as each pass over the stream begins.
        sparse: whether the fits keep `SparseRows` sparse, which latents then are.

    Raises:
        DataError: as `features_of`; rows without room for fits that take no stream, with the arithmetic.
    """
    room = free_bytes(torch.device("cpu"))
    if sparse and isinstance(found := stream_of(acts, place, room, sparse=True), SparseRows):
        return found
    stream = None if room is None else stream_of(acts, place, room)
    if stream is None or room is None:
        return features_of(acts, place)
    need, read = bytes_to_fit(*stream.shape), NUMBER * _rows_read(acts, place) * stream.d
    if need + (read if read > NUMBER * stream.n * stream.d else 0) <= room:
        return features_of(acts, place)
    if need <= room or (not streams and _least(stream) <= room):
        return held(stream)
    if not streams:
        raise DataError(_too_large(stream, place, room))
    return stream if on_pass is None else _counted(stream, place, on_pass)


def features_held(acts: Activations, place: Place) -> Tensor:
    """The rows of a place in memory, [N, D]; errors as `features_to_fit`."""
    X = features_to_fit(acts, place, streams=False)
    assert isinstance(X, Tensor)
    return X


def _counted(stream: Stream, place: Place, on_pass: OnPass) -> Stream:
    passes = count(1)

    def read() -> Iterator[Tensor]:
        on_pass(place, next(passes))
        return stream.read()

    return replace(stream, read=read)


def check_room(acts: Activations, place: Place) -> None:
    """Refuse a place that has no room in memory for fits that take no stream; nothing is read.

    Raises:
        DataError: with the arithmetic.
    """
    room = free_bytes(torch.device("cpu"))
    stream = None if room is None else stream_of(acts, place, room)
    if stream is not None and room is not None and _least(stream) > room:
        raise DataError(_too_large(stream, place, room))


def rows_held(X: Tensor | Stream, rows: np.ndarray) -> Tensor:
    """Some rows, which memory has room for: [n, D]."""
    return held(some_of(X, rows)) if isinstance(X, Stream) else take_rows(X, rows)


def _least(stream: Stream) -> int:
    return LEAST * NUMBER * stream.n * stream.d


def _too_large(stream: Stream, place: Place, room: int) -> str:
    n, d = stream.shape
    return (
        f"the {n:,} rows x {d:,} of {place} take {_least(stream) / 1e9:,.1f} GB in memory (float32, "
        f"{LEAST} copies), and {room / 1e9:,.1f} GB are free: give more memory (--memory, memory=), fewer rows "
        "(extract --limit), or a probe that reads them from disk (--probe logistic, ridge, lda, mean-diff or k-sparse)"
    )


def stream_of(acts: Activations, key: PointSpec, room: int | None = None, sparse: bool = False) -> Stream | None:
    """The rows of one place, shard by shard; every pass reads them again, and two shards are in memory at a time.

    Labels and weights of a problem are in the order of `acts[key]`: one row per example, or, where several or all
    positions were kept, the rows of example 0 first.

    Args:
        acts: a store, or one position, all tokens or some examples of one.
        key: the place.
        room: as in `Stream`.
        sparse: give latents as `SparseRows`, where few enough are not 0.

    Returns:
        The stream; None where the activations are in memory, or are worked out of several places.

    Raises:
        UnknownPoint: there is no such place.
        StorageError: a shard is missing or damaged.
    """
    place = acts._known(key)
    if sparse and (found := _sparse_rows(acts, place, room)) is not None:
        return found
    if isinstance(acts, Store):
        return _of_store(acts, place, room)
    if isinstance(acts, _EachToken):
        return stream_of(acts._source, place, room)
    if isinstance(acts, Latents):
        if acts.is_kept(place):
            matrix = acts.sparse(place)
            assert matrix is not None
            return SparseRows.of(matrix, room)
        source, reads = acts._source, acts.reads(place)
        rows = int(source.layout.counts(reads).sum())
        inner = stream_of(source, reads) or Stream(rows, source.width(reads), lambda: iter([source._rows(reads)]))
        return replace(inner, d=acts.width(place), read=lambda: acts.encoded(place, inner.read()), room=room)
    if isinstance(acts, Unencoded):
        return stream_of(acts._source, acts.reads(place), room)
    if isinstance(acts, RowsOf):
        inner, rows = stream_of(acts.source, place), acts.source.layout.index(place, acts._index)
    elif isinstance(acts, _At):
        inner, rows = stream_of(acts._source, place), acts._chosen.index
    else:
        return None
    if inner is None:
        return None
    some = some_of(inner, rows)
    return replace(_means(some, acts._chosen) if isinstance(acts, _At) and acts._chosen.is_mean else some, room=room)


def _sparse_rows(acts: Activations, place: Place, room: int | None) -> SparseRows | None:
    """Rows of latents, encoded once, where few enough are not 0; None elsewhere, and for means of latents.

    Only the rows that were selected are encoded. Rows of latents that are kept are selected from all, as of any stream.
    """
    under = latents_under(acts)
    if under is None or under.is_kept(place):
        return None
    if isinstance(acts, Latents):
        matrix = under.sparse(place, room)
        return None if matrix is None else SparseRows.of(matrix, room)
    source, sae = before_encoding(acts), under.sae(place)
    if source is None or has_means(acts):
        return None
    inner = stream_of(source, place)
    if inner is None:
        rows = source._rows(place)
        inner = Stream(len(rows), rows.shape[1], lambda: iter([rows]))
    size = at_once(sae.cfg.d_latents)
    blocks = (
        (numbers[start : start + size], block[start : start + size])
        for numbers, block in with_numbers(inner)
        for start in range(0, len(block), size)
    )
    ends = np.cumsum(acts.layout.counts(place))
    encoded = (
        (numbers, checked_latents(sae, part, lambda row, numbers=numbers: _id_at(acts, ends, int(numbers[row]))))
        for numbers, part in blocks
    )
    matrix = under.joined(acts, place, encoded, room)
    return None if matrix is None else SparseRows.of(matrix, room)


def _id_at(acts: Activations, ends: np.ndarray, row: int) -> str:
    return acts.ids[int(np.searchsorted(ends, row, side="right"))]


def _sparse_means(X: SparseRows, chosen: SelectedRows) -> SparseRows:
    """The mean of the rows of each example, which are next to one another."""
    ends = np.append(0, np.cumsum(chosen.counts))
    ones = np.repeat(1 / chosen.counts, chosen.counts).astype(np.float32)
    return SparseRows.of(csr_array((ones, np.arange(len(ones)), ends), shape=(len(ends) - 1, X.n)) @ X.matrix, X.room)


def _rows_read(acts: Any, place: Place) -> int:
    """R of the activations that the rows are read from."""
    while not isinstance(acts, Store | ActivationSet):
        acts = acts.source if isinstance(acts, RowsOf) else acts._source
    return int(acts.layout.counts(place).sum())


def _of_store(store: Store, place: Place, room: int | None) -> Stream:
    order = np.concatenate([store.layout.index(place, examples) for examples in store.shard_examples()])
    ends = np.cumsum(store.layout.counts(place))
    width = store.width(place)
    size, sound = max(1, BLOCK_BYTES // (NUMBER * width)), False

    def id_of(row: int) -> str:
        return store.ids[int(np.searchsorted(ends, row, side="right"))]

    def read() -> Iterator[Tensor]:
        nonlocal sound
        start = 0
        for _, shard in store.shards(place):
            for values in shard.split(size):
                if sound:
                    yield values.to(torch.promote_types(values.dtype, torch.float32))
                else:
                    yield checked_features(values, place, id_of, order[start : start + len(values)])
                start += len(values)
                del values
            del shard  # or memory would hold them while the next is read: three shards, and not two
        sound = True

    return Stream(len(order), width, read, order, room)


def _means(X: Stream, chosen: SelectedRows) -> Stream:
    """The mean of the rows of each example, which are next to one another in X."""
    if isinstance(X, SparseRows):
        return _sparse_means(X, chosen)
    assert X.order is not None
    example = np.repeat(np.arange(len(chosen.counts)), chosen.counts)[X.order]
    first = np.append(True, np.diff(example) != 0)

    def mean(rows: Tensor, starts: np.ndarray) -> Tensor:
        counts = np.diff(np.append(starts, len(rows)))
        return selected_values(rows, SelectedRows(np.arange(len(rows)), counts, is_mean=True))

    def read() -> Iterator[Tensor]:
        start, left = 0, torch.empty(0, X.d)  # rows of the last example, which may go on in the next block
        for block in X.read():
            rows = torch.cat([left.to(block.dtype), block])
            starts = np.flatnonzero(first[start : start + len(rows)])
            if len(starts) > 1:
                yield mean(rows[: starts[-1]], starts[:-1])
            left, start = rows[starts[-1] :], start + int(starts[-1])
        yield mean(left, np.zeros(1, dtype=np.int64))

    return Stream(len(chosen.counts), X.d, read, example[first])
