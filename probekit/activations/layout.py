"""Which rows of a place's tensor belong to which example.

One position keeps one row per example, several keep one row each, "all" keeps a row per token, and attention keeps a
row for each pair of tokens. Tensors hold the rows of example 0, then those of example 1, and so on.

Axes: N examples, P positions, L tokens of one example (query), M tokens (key), D width, H heads, R rows in all.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from torch import Tensor

from probekit.files.scratch import on_disk
from probekit.machine.devices import DTYPES
from probekit.points import PAIR_POINTS, Place
from probekit.ragged import ranges
from probekit.selections import ALL, Selection

ROWS = Place("", None)  # any place but attention: all of these have the same rows


@dataclass(frozen=True, eq=False)
class Layout:
    """Rows of each example at each place.

    Attributes:
        positions: what is kept of each: ["last"], ["first", "last"], ["all"].
        lengths: tokens of each example, context included, int64 [N].
        n_bos: context tokens before each text, 0 or 1; only attention has rows for them.
        tokens: id of the token at each row except those of attention, int64 [R], -1 for a mean; None if unknown.
        n_end: context tokens after each text, 0 or 1.
        picked: rows of each example where one selection keeps several tokens of a text, such as all@assistant, int64
            [N]; None for all tokens and for one row at each position.
        token_index: the token of each row but those of attention, counted from the text's first, int64 [R], -1 for a
            mean; None where all tokens are kept, or if unknown.
        characters: the characters [start, end) of the token of each row, int64 [R, 2], where all tokens of texts or
            several are kept; None otherwise, or if unknown.
    """

    positions: list[Selection]
    lengths: np.ndarray
    n_bos: int
    tokens: np.ndarray | None = None
    n_end: int = 0
    picked: np.ndarray | None = None
    token_index: np.ndarray | None = None
    characters: np.ndarray | None = None

    @property
    def own_lengths(self) -> np.ndarray:
        """Tokens of each text without its context, int64 [N]."""
        return self.lengths - self.n_bos - self.n_end

    @property
    def is_ragged(self) -> bool:
        """True if all tokens are kept, or those of a selection, so that texts differ in their number of rows."""
        return self.positions == [ALL] or self.picked is not None

    def counts(self, place: Place = ROWS) -> np.ndarray:
        """Rows of each example at this place, int64 [N]."""
        return self._pair_counts if place[0] in PAIR_POINTS else self._token_counts

    def offsets(self, place: Place = ROWS) -> np.ndarray:
        """Where the rows of each example begin, and where the last ones end, int64 [N + 1]."""
        return self._pair_offsets if place[0] in PAIR_POINTS else self._token_offsets

    @cached_property  # all four: they are needed once per shard and place, and N may be millions
    def _token_counts(self) -> np.ndarray:
        if self.is_ragged:
            return self.own_lengths if self.picked is None else self.picked
        return np.broadcast_to(np.int64(len(self.positions)), len(self.lengths))

    @cached_property
    def _pair_counts(self) -> np.ndarray:
        return on_disk(self.lengths**2)

    @cached_property
    def _token_offsets(self) -> np.ndarray:
        return on_disk(np.concatenate([[0], np.cumsum(self._token_counts)]))

    @cached_property
    def _pair_offsets(self) -> np.ndarray:
        return on_disk(np.concatenate([[0], np.cumsum(self._pair_counts)]))

    def index(self, place: Place, examples: np.ndarray) -> np.ndarray:
        """The rows of these examples, one example after the other, int64."""
        counts, offsets = self.counts(place)[examples], self.offsets(place)[examples]
        return ranges(offsets, counts)

    def of_examples(self, examples: np.ndarray) -> "Layout":
        """The layout of these examples alone, one after the other."""
        every = self.index(ROWS, examples)
        of_rows = {name: getattr(self, name) for name in ("tokens", "token_index", "characters")}
        return replace(
            self,
            lengths=self.lengths[examples],
            picked=None if self.picked is None else self.picked[examples],
            **{name: None if known is None else known[every] for name, known in of_rows.items()},
        )

    def shaped(self, place: Place, x_RD: Tensor) -> Tensor:
        """Rows in the shape that users see: [N, D] for one position, [N, P, D] for several, else [R, D]."""
        several = len(self.positions) > 1 and place[0] not in PAIR_POINTS
        return x_RD.unflatten(0, (-1, len(self.positions))) if several else x_RD

    def split(self, place: Place, x_RD: Tensor) -> list[Tensor]:
        """The rows of each example in x [R, D]: [D], [P, D], [L, D], or [H, L, M] for attention."""
        own = x_RD.split(self.counts(place).tolist())
        if place[0] in PAIR_POINTS:
            return [rows.unflatten(0, (n, n)).permute(2, 0, 1) for rows, n in zip(own, self.lengths, strict=True)]
        return list(own) if self.is_ragged or len(self.positions) > 1 else [rows[0] for rows in own]


def fingerprint_of(index: np.ndarray) -> str:
    """A position with an index for each example, as a store names it."""
    return "sha256:" + hashlib.sha256(index.astype("<i8").tobytes()).hexdigest()


def row_bytes(layout: Layout, places: Iterable[Place], widths: Iterable[int], dtype: str) -> np.ndarray:
    """Bytes of each example's rows at all places, int64 [N]."""
    width_of: Counter[bool] = Counter()  # of all places of one kind: pairs of tokens, or tokens
    for place, width in zip(places, widths, strict=True):
        width_of[place[0] in PAIR_POINTS] += width * DTYPES[dtype].itemsize
    kinds = {place[0] in PAIR_POINTS: place for place in places}
    per_kind = [layout.counts(place) * width_of[are_pairs] for are_pairs, place in kinds.items()]
    return on_disk(per_kind[0] if len(per_kind) == 1 else per_kind[0] + per_kind[1])
