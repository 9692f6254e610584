"""Rows that memory need not hold: a stream of blocks that can be read again and again; and rows that are mostly 0.

Axes: N rows, D features, B rows of a block.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from scipy.sparse import csr_array

COPIES = 6  # of the rows that fits hold at most: as read, the fitted ones, those of the code, and in float64
NUMBER = torch.float32.itemsize  # bytes of a number as fits read it
BLOCK_BYTES = 1 << 25  # of rows at once, and of each copy in float64 twice that
BYTES_OF_A_SCORE = 96  # float64 scores of three points of a descent, and what a step works out of them


@dataclass(frozen=True, eq=False)
class Stream:
    """Features that do not fit in memory.

    Attributes:
        n: N.
        d: D.
        read: called once per pass; yields the rows in blocks [B, D] of some thousands, always in the same order.
        order: int64 [N], the index into the labels of each row; None if rows and labels have the same order.
        room: bytes that fits of these rows may take; rows that fit in it are held. None never holds rows.
    """

    n: int
    d: int
    read: Callable[[], Iterator[Tensor]]
    order: np.ndarray | None = None
    room: int | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(N, D)."""
        return self.n, self.d


@dataclass(frozen=True, eq=False)
class SparseRows(Stream):
    """Features of which few are not 0, in the order of the labels: memory holds these few.

    As a stream, its blocks are dense. Whoever can work with the matrix reads that.

    Attributes:
        matrix: [N, D].
    """

    matrix: "csr_array" = field(kw_only=True)

    @classmethod
    def of(cls, matrix: "csr_array", room: int | None = None) -> "SparseRows":
        """The rows of a matrix."""
        n, d = cast("tuple[int, int]", matrix.shape)
        size = max(1, BLOCK_BYTES // (NUMBER * d))

        def read() -> Iterator[Tensor]:
            return (torch.from_numpy(matrix[start : start + size].toarray()) for start in range(0, n, size))

        return cls(n, d, read, room=room, matrix=matrix)


def bytes_to_fit(n: int, d: int) -> int:
    """The most memory that fits of n rows of d features take, if they are held."""
    return COPIES * NUMBER * n * d


def most_scores(X: Tensor | Stream, most: int) -> int:
    """How many scores a descent may hold: `most`, or fewer where half of the room of a stream has no place for them."""
    return most if isinstance(X, Tensor) or X.room is None else min(most, max(1, X.room // (2 * BYTES_OF_A_SCORE)))


def take_some(X: Tensor | Stream, rows: np.ndarray | None) -> Any:
    """Some rows (None: all), each once, by their index into the labels; numbered in this order.

    Those of a stream are held if its room has place.
    """
    if rows is None:
        return X
    if isinstance(X, Tensor):
        return X[torch.from_numpy(rows).to(X.device)]
    some = some_of(X, rows)
    if isinstance(some, SparseRows):
        return some
    return held(some) if X.room is not None and bytes_to_fit(*some.shape) <= X.room else some


def some_of(X: Stream, rows: np.ndarray) -> Stream:
    """Some rows as `take_some`, never held."""
    if isinstance(X, SparseRows):
        return SparseRows.of(X.matrix[rows], X.room)
    number = np.full(X.n, -1, dtype=np.int64)
    number[rows] = np.arange(len(rows))
    number = number if X.order is None else number[X.order]
    wanted = number >= 0

    def read() -> Iterator[Tensor]:
        start = 0
        for block in X.read():
            mine = wanted[start : start + len(block)]
            start += len(block)
            if mine.all():
                yield block
            elif mine.any():
                yield block[torch.from_numpy(mine)]
            del block  # before the next is read; every loop over blocks does so

    return Stream(len(rows), X.d, read, number[wanted], X.room)


def held(X: Stream) -> Tensor:
    """The rows in the order of the labels: [N, D]."""
    values: Tensor | None = None
    for rows, block in with_numbers(X):
        if values is None:
            values = block.new_empty(X.n, X.d)
        values[torch.from_numpy(rows)] = block
        del block
    return torch.empty(X.n, X.d) if values is None else values


def with_numbers(X: Stream) -> Iterator[tuple[np.ndarray, Tensor]]:
    """One pass: each block [B, D] with the index into the labels of its rows, int64 [B]."""
    start = 0
    for block in X.read():
        stop = start + len(block)
        yield np.arange(start, stop) if X.order is None else X.order[start:stop], block
        start = stop
        del block
