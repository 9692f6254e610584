"""How the rows of a place's tensor belong to the examples.

One position keeps one row an example; several keep that many; "all" keeps a row a token; attention keeps a row for each
pair of tokens. Tensors hold the rows of example 0, then those of example 1, and so on.

Axes: N examples, P positions, L tokens of one example (query), M tokens (key), D width, H heads, R rows in all.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from probekit.activations.sets import Place

PAIR_POINTS = ("attn_scores", "attn_pattern")  # a row for each (query, key); the width is the number of heads


@dataclass(frozen=True, eq=False)
class Layout:
    """Rows of each example at each place.

    Attributes:
        positions: what is read: ["last"], ["first", "last"], ["all"].
        lengths: tokens that the model reads of each example, BOS included, int64 [N].
        n_bos: 0 or 1; a BOS has a row in patterns only.
    """

    positions: list[str]
    lengths: np.ndarray
    n_bos: int

    @property
    def is_ragged(self) -> bool:
        """Whether every token of a text is kept, so that texts differ in rows."""
        return self.positions == ["all"]

    def counts(self, place: Place) -> np.ndarray:
        """Rows of each example at this place, int64 [N]."""
        if place[0] in PAIR_POINTS:
            return self.lengths**2
        if self.is_ragged:
            return self.lengths - self.n_bos
        return np.full(len(self.lengths), len(self.positions), dtype=np.int64)

    def offsets(self, place: Place) -> np.ndarray:
        """Where each example's rows begin, and where the last one's end, int64 [N + 1]."""
        return np.concatenate([[0], np.cumsum(self.counts(place))])

    def shaped(self, place: Place, x_RD: Tensor) -> Tensor:
        """Rows as people read them: [N, D] for one position, [N, P, D] for several, else as they are."""
        several = len(self.positions) > 1 and place[0] not in PAIR_POINTS
        return x_RD.unflatten(0, (-1, len(self.positions))) if several else x_RD

    def of_example(self, place: Place, x_RD: Tensor, example: int) -> Tensor:
        """What one example has in x [R, D]: [D], [P, D], [L, D], or [H, L, M] of attention."""
        count = int(self.counts(place)[example])
        start = int(self.offsets(place)[example])
        rows = x_RD[start : start + count]
        if place[0] in PAIR_POINTS:
            length = int(self.lengths[example])
            return rows.unflatten(0, (length, length)).permute(2, 0, 1)
        return rows if self.is_ragged or len(self.positions) > 1 else rows[0]
