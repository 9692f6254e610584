"""Equal and nearly equal inputs, found exactly: no pair that is near enough is missed, and none is guessed.

Two texts are equal when they are once Unicode forms (NFKC), case, white space and the spacing of punctuation are put
aside. They are near duplicates when the sets of their shingles, three words in a row with the ends of the text
marked, have a Jaccard index of `THRESHOLD` or more: one word in fifteen replaced, or one in twelve added. Pairs are
found by prefix filtering (Bayardo, Ma and Srikant 2007, "Scaling up all pairs similarity search"; Xiao et al. 2008):
two sets that are near share an element among the rarest few of each, so only such pairs are counted out.

Shingles in more than a tenth of the inputs, or in more than 500, belong to a template and are left aside; an input
with fewer than `LEAST_SHINGLES` others is compared as a whole only, since short phrases differ by what they say.

Axes: N inputs, U distinct ones, V kinds of shingles.
"""

import math
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from probekit.tasks.base import SPLITS

SHINGLE = 3  # words in a row
THRESHOLD = 0.7
LEAST_SHINGLES = 10
TEMPLATE_SHARE, TEMPLATE_LEAST, TEMPLATE_MOST = 0.1, 10, 500  # inputs with a template's shingle
RARE = 9  # a shingle of token ids is as long as it takes for one in 10^9 to be met by chance
_WRITTEN_WITHOUT_SPACES = "぀-ヿ㐀-䶿一-鿿豈-﫿"
_WORD = re.compile(rf"[{_WRITTEN_WITHOUT_SPACES}]|[^\W{_WRITTEN_WITHOUT_SPACES}]+|[^\w\s]")
_CHUNK = 1_000_000  # entries of sparse matrices that are held at once


def words_of(text: str) -> list[str]:
    """The words and marks of a text without regard to case, Unicode form and spacing."""
    return _WORD.findall(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()))


@dataclass(frozen=True, eq=False)
class Inputs:
    """N inputs by what they say.

    Attributes:
        number: int64 [N], equal for equal inputs, 0..U-1 in the order of their first rows.
        flat: the words, or token ids, of the distinct inputs one after the other, as numbers from 1, int64.
        offsets: where each distinct input begins in `flat`, and where the last one ends, int64 [U + 1].
        width: words of a shingle.
    """

    number: np.ndarray
    flat: np.ndarray
    offsets: np.ndarray
    width: int

    @classmethod
    def of(cls, inputs: Sequence[Any]) -> "Inputs":
        """From texts, or from lists of token ids, which are equal when every id is."""
        are_texts = isinstance(inputs[0], str)
        known: dict[Any, int] = {}
        numbers: dict[bytes, int] = {}
        number, kept = np.empty(len(inputs), dtype=np.int64), []
        met: dict[str, int] = {}  # texts of several words are repeated
        for row, given in enumerate(inputs):
            if are_texts and given in met:
                number[row] = met[given]
                continue
            parts = words_of(given) if are_texts else [int(i) for i in given]
            words = np.array([known.setdefault(part, len(known) + 1) for part in parts], dtype=np.int64)
            number[row] = numbers.setdefault(words.tobytes(), len(numbers))
            if number[row] == len(kept):
                kept.append(words)
            if are_texts:
                met[given] = int(number[row])
        width = SHINGLE if are_texts else max(SHINGLE, math.ceil(RARE / math.log10(max(2, len(known)))))
        return cls(number, np.concatenate(kept), np.cumsum([0, *map(len, kept)]), width)

    def shingles(self) -> Any:
        """Which shingles stand in which distinct input, sparse [U, V] of ones, the rarest first."""
        U, edge = len(self.offsets) - 1, self.width - 1
        lengths = np.diff(self.offsets)
        starts = np.concatenate([[0], np.cumsum(lengths + 2 * edge)])
        padded = np.zeros(int(starts[-1]), dtype=np.uint64)  # 0 marks both ends
        padded[np.arange(len(self.flat)) + np.repeat(starts[:-1] + edge - self.offsets[:-1], lengths)] = self.flat
        counts = lengths + edge
        first = np.arange(counts.sum()) + np.repeat(starts[:-1] - np.cumsum(counts) + counts, counts)
        base, codes = np.uint64(self.flat.max(initial=0) + 1), np.zeros(len(first), dtype=np.uint64)
        for k in range(self.width):
            codes = codes * base + padded[first + k]  # one number for each shingle, while base ** width < 2 ** 64
        kinds = np.unique(codes, return_inverse=True)[1].ravel()
        rows = np.repeat(np.arange(U), counts)
        found = sparse.csr_array((np.ones(len(rows), dtype=np.int32), (rows, kinds)))
        found.data[:] = 1
        frequency = np.bincount(found.indices)
        order = np.argsort(frequency, kind="stable")
        order = order[frequency[order] <= most_common(U)]
        found = sparse.csr_array(found[:, order])
        found.sort_indices()
        return found


def met_in(train: Sequence[Any], test: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Which of `test` stand in `train` too, and which others only nearly do: two bool arrays, one for each of `test`.

    Both are looked at as one set, as the audit looks at a task's splits; both hold texts, or both token ids.
    """
    inputs, n = Inputs.of([*train, *test]), len(train)
    taught, tested = inputs.number[:n], inputs.number[n:]
    one, other, _ = near_pairs(inputs.shingles(), np.unique(tested))
    exact = np.isin(tested, taught)
    return exact, np.isin(tested, one[np.isin(other, taught)]) & ~exact


def torn_rows(groups: np.ndarray, splits: np.ndarray) -> np.ndarray:
    """Rows [N] whose group stands in a later split too, int64 ascending: without them no group straddles two splits."""
    torn = np.zeros(len(splits), dtype=bool)
    for i, split in enumerate(SPLITS):
        torn |= (splits == split) & np.isin(groups, groups[np.isin(splits, SPLITS[i + 1 :])])
    return np.flatnonzero(torn)


def most_common(n: int) -> float:
    """In how many of n inputs a shingle may stand that belongs to no template."""
    return max(TEMPLATE_LEAST, min(TEMPLATE_SHARE * n, TEMPLATE_MOST))


def near_pairs(shingles: Any, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every input that is a near duplicate of one of `rows`: (of `rows`, the other, Jaccard index), three arrays [P].

    Args:
        shingles: sparse [U, V] of ones, the rarest in the first columns.
        rows: inputs to look for, int64.
    """
    sizes = np.diff(shingles.indptr)
    prefixes = _prefixes(shingles, sizes)
    found = [(np.empty(0, dtype=np.int64),) * 2 + (np.empty(0),)]
    for some in _chunked(rows, _cost(prefixes, rows)):
        met = sparse.coo_array(prefixes[some] @ prefixes.T)
        one, other = some[met.coords[0]], met.coords[1].astype(np.int64)
        less, more = np.minimum(sizes[one], sizes[other]), np.maximum(sizes[one], sizes[other])
        alike = (one != other) & (less >= THRESHOLD * more - 1e-9)
        found += _counted_out(shingles, sizes, one[alike], other[alike])
    one, other, index = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return one, other, index


def _prefixes(shingles: Any, sizes: np.ndarray) -> Any:
    """The rarest shingles of each input, so many that two near ones share one; those that stand nowhere else left out.

    An input of n shingles shares at least t n with any that is near: one of its n - t n + 1 rarest is among them.
    """
    lengths = np.where(sizes < LEAST_SHINGLES, 0, sizes - np.ceil(THRESHOLD * sizes - 1e-9).astype(np.int64) + 1)
    place = np.arange(len(shingles.indices)) - np.repeat(shingles.indptr[:-1], sizes)
    frequency = np.bincount(shingles.indices, minlength=shingles.shape[1])
    kept = (place < np.repeat(lengths, sizes)) & (frequency[shingles.indices] > 1)
    rows = np.repeat(np.arange(shingles.shape[0]), sizes)[kept]
    return sparse.csr_array((np.ones(len(rows), dtype=np.int32), (rows, shingles.indices[kept])), shape=shingles.shape)


def _cost(prefixes: Any, rows: np.ndarray) -> np.ndarray:
    frequency = np.bincount(prefixes.indices, minlength=prefixes.shape[1])
    return prefixes[rows] @ frequency


def _chunked(rows: np.ndarray, cost: np.ndarray) -> Iterator[np.ndarray]:
    """The rows in order, cut so that the cost of each part is little more than `_CHUNK`."""
    return iter(np.split(rows, np.flatnonzero(np.diff(np.cumsum(cost) // _CHUNK)) + 1))


def _counted_out(
    shingles: Any, sizes: np.ndarray, one: np.ndarray, other: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Those of the pairs whose Jaccard index is high enough, with it."""
    for pairs in _chunked(np.arange(len(one)), sizes[one] + sizes[other]):
        a, b = one[pairs], other[pairs]
        shared = (shingles[a] * shingles[b]).sum(axis=1)
        index = shared / (sizes[a] + sizes[b] - shared)
        near = index >= THRESHOLD - 1e-12
        yield a[near], b[near], index[near]
