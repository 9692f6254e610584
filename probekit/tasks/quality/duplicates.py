"""Exact and near duplicates among inputs, computed exactly: no pair is missed, and none is estimated.

Two inputs are exact duplicates if they are the same text (`tasks.splitting.splits`). They are near-duplicates if the
Jaccard similarity of their word trigrams is >= 0.7 (`THRESHOLD`), which one word in fifteen replaced, or one in twelve
added, still reaches; the ends of a text count as words. Pairs are found by prefix filtering (Bayardo, Ma and Srikant
2007, "Scaling up all pairs similarity search"; Xiao et al. 2008): two similar sets share an element among the rarest
few of each, so only such pairs are compared.

Trigrams in more than a tenth of the inputs, or in more than 500, belong to a template and are ignored. An input with
fewer than `LEAST_SHINGLES` others is compared for equality only, since short phrases differ by a single word.

Axes: N inputs, U distinct ones, V kinds of shingles.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from probekit.tasks.base import SPLITS
from probekit.tasks.splitting.splits import components, normalised_words, plain_ids, text_numbers

SHINGLE = 3  # words in a row: trigrams
THRESHOLD = 0.7  # Jaccard similarity
LEAST_SHINGLES = 10
TEMPLATE_SHARE, TEMPLATE_LEAST, TEMPLATE_MOST = 0.1, 10, 500  # a shingle in more inputs belongs to a template
RARE = 9  # shingles of token ids are so long that two are equal by chance once in 10^9
_CHUNK = 1_000_000  # entries of sparse matrices held at once


@dataclass(frozen=True, eq=False)
class Inputs:
    """N inputs, normalised and numbered so that duplicates share a number.

    Attributes:
        number: int64 [N], equal for exact duplicates, 0..U-1 in order of first occurrence.
        flat: int64, the words or token ids of the distinct inputs, concatenated, as numbers from 1.
        offsets: int64 [U + 1], the start of each distinct input in `flat`, and the end of the last one.
        are_texts: whether they are texts, or else lists of token ids.
    """

    number: np.ndarray
    flat: np.ndarray
    offsets: np.ndarray
    are_texts: bool

    @classmethod
    def of(cls, inputs: Sequence[Any]) -> "Inputs":
        """From texts, or from lists of token ids, which are equal if all ids are."""
        are_texts = isinstance(inputs[0], str)
        number = text_numbers(inputs)
        known: dict[Any, int] = defaultdict(itertools.count(1).__next__)  # a new part gets the next number
        kept = []
        for row in np.unique(number, return_index=True)[1].tolist():
            parts = normalised_words(inputs[row]) if are_texts else plain_ids(inputs[row])
            kept.append(np.fromiter(map(known.__getitem__, parts), np.int64))
        return cls(number, np.concatenate(kept), np.cumsum([0, *map(len, kept)]), are_texts)

    def of_rows(self, rows: np.ndarray) -> "Inputs":
        """Those of some of the inputs, as if there were no others."""
        kept, first, back = np.unique(self.number[rows], return_index=True, return_inverse=True)
        order = np.argsort(first)
        kept, place = kept[order], np.argsort(order)
        lengths = np.diff(self.offsets)[kept]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        taken = np.arange(offsets[-1]) + np.repeat(self.offsets[kept] - offsets[:-1], lengths)
        parts = np.unique(self.flat[taken], return_inverse=True)[1].ravel() + 1
        return Inputs(place[back.ravel()], parts, offsets, self.are_texts)

    @property
    def width(self) -> int:
        """Words, or token ids, per shingle."""
        known = int(self.flat.max(initial=0))
        return SHINGLE if self.are_texts else max(SHINGLE, math.ceil(RARE / math.log10(max(2, known))))

    def shingles(self) -> Any:
        """The shingles of each distinct input: sparse [U, V] of ones, the rarest shingles first."""
        width = self.width
        U, edge = len(self.offsets) - 1, width - 1
        lengths = np.diff(self.offsets)
        starts = np.concatenate([[0], np.cumsum(lengths + 2 * edge)])
        padded = np.zeros(int(starts[-1]), dtype=np.uint64)  # 0 marks both ends
        padded[np.arange(len(self.flat)) + np.repeat(starts[:-1] + edge - self.offsets[:-1], lengths)] = self.flat
        counts = lengths + edge
        first = np.arange(counts.sum()) + np.repeat(starts[:-1] - np.cumsum(counts) + counts, counts)
        base, codes = np.uint64(self.flat.max(initial=0) + 1), np.zeros(len(first), dtype=np.uint64)
        for k in range(width):
            codes = codes * base + padded[first + k]  # one number for each shingle, while base ** width < 2 ** 64
        kinds = np.unique(codes, return_inverse=True)[1].ravel()
        rows = np.repeat(np.arange(U), counts)
        occurs = sparse.csr_array((np.ones(len(rows), dtype=np.int32), (rows, kinds)))
        occurs.data[:] = 1  # repeated shingles were summed
        frequency = np.bincount(occurs.indices)
        order = np.argsort(frequency, kind="stable")
        order = order[frequency[order] <= most_common(U)]
        occurs = sparse.csr_array(occurs[:, order])
        occurs.sort_indices()
        return occurs


def duplicates_in(train: Sequence[Any], test: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Which of `test` are exact duplicates of one of `train`, and which are only near ones: two bool arrays [N test].

    Templates are looked for in both together, as the audit does. Both hold texts, or both hold token ids.
    """
    inputs, n = Inputs.of([*train, *test]), len(train)
    taught, tested = inputs.number[:n], inputs.number[n:]
    one, other, _ = near_pairs(inputs.shingles(), np.unique(tested))
    exact = np.isin(tested, taught)
    return exact, np.isin(tested, one[np.isin(other, taught)]) & ~exact


def linked_texts(inputs: Sequence[Any]) -> np.ndarray:
    """Equal numbers for texts that are linked by exact or near duplicates, in the order of their first rows: int64 [N].

    Links are followed: if b is a near-duplicate of a, and c of b, all three have one number.
    """
    found = Inputs.of(inputs)
    shingles = found.shingles()
    one, other, _ = near_pairs(shingles, np.arange(shingles.shape[0]))
    links = sparse.coo_array((np.ones(len(one)), (one, other)), shape=(shingles.shape[0],) * 2)
    return components(connected_components(links, directed=False)[1][found.number].tolist())


def rows_spanning_splits(groups: np.ndarray, splits: np.ndarray) -> np.ndarray:
    """Rows whose group also occurs in a later split, int64 ascending: without them no group spans splits."""
    spanning = np.zeros(len(splits), dtype=bool)
    for i, split in enumerate(SPLITS):
        spanning |= (splits == split) & np.isin(groups, groups[np.isin(splits, SPLITS[i + 1 :])])
    return np.flatnonzero(spanning)


def most_common(n: int) -> float:
    """The largest number of n inputs in which a shingle may occur without counting as a template."""
    return max(TEMPLATE_LEAST, min(TEMPLATE_SHARE * n, TEMPLATE_MOST))


def near_pairs(shingles: Any, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every pair of near-duplicates with one of `rows`: (of `rows`, the other, Jaccard similarity), three arrays [P].

    Args:
        shingles: sparse [U, V] of ones, the rarest in the first columns (`Inputs.shingles`).
        rows: int64, the inputs whose near-duplicates are wanted.
    """
    sizes = np.diff(shingles.indptr)
    prefixes = _prefixes(shingles, sizes)
    found = [(np.empty(0, dtype=np.int64),) * 2 + (np.empty(0),)]
    frequency = np.bincount(prefixes.indices, minlength=prefixes.shape[1])
    for some in _chunked(rows, prefixes[rows] @ frequency):
        common = sparse.coo_array(prefixes[some] @ prefixes.T)
        one, other = some[common.coords[0]], common.coords[1].astype(np.int64)
        less, more = np.minimum(sizes[one], sizes[other]), np.maximum(sizes[one], sizes[other])
        possible = (one != other) & (less >= THRESHOLD * more - 1e-9)  # set sizes alone rule out the others
        found += _compared(shingles, sizes, one[possible], other[possible])
    one, other, index = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return one, other, index


def _prefixes(shingles: Any, sizes: np.ndarray) -> Any:
    """The rarest shingles of each input, enough that any two near-duplicates share one; unique ones are left out.

    An input of n shingles shares at least t n with a near-duplicate, so one of its n - t n + 1 rarest is shared.
    """
    lengths = np.where(sizes < LEAST_SHINGLES, 0, sizes - np.ceil(THRESHOLD * sizes - 1e-9).astype(np.int64) + 1)
    place = np.arange(len(shingles.indices)) - np.repeat(shingles.indptr[:-1], sizes)
    frequency = np.bincount(shingles.indices, minlength=shingles.shape[1])
    kept = (place < np.repeat(lengths, sizes)) & (frequency[shingles.indices] > 1)
    rows = np.repeat(np.arange(shingles.shape[0]), sizes)[kept]
    return sparse.csr_array((np.ones(len(rows), dtype=np.int32), (rows, shingles.indices[kept])), shape=shingles.shape)


def _chunked(rows: np.ndarray, cost: np.ndarray) -> Iterator[np.ndarray]:
    """The rows in order, cut into parts that cost little more than `_CHUNK` each."""
    return iter(np.split(rows, np.flatnonzero(np.diff(np.cumsum(cost) // _CHUNK)) + 1))


def _compared(
    shingles: Any, sizes: np.ndarray, one: np.ndarray, other: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The pairs whose Jaccard similarity reaches the threshold, with the similarity."""
    for pairs in _chunked(np.arange(len(one)), sizes[one] + sizes[other]):
        a, b = one[pairs], other[pairs]
        shared = (shingles[a] * shingles[b]).sum(axis=1)
        index = shared / (sizes[a] + sizes[b] - shared)
        near = index >= THRESHOLD - 1e-12
        yield a[near], b[near], index[near]
