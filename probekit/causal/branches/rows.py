"""How the tokens of branches are laid out in the rows of a forward.

A branch computes the tokens of its text from its first edited one on; in a bidirectional model, all of them. Branches
of one text share a row, and see the keys and values of the unedited text before them.

Axes: V branches, B rows, L token of a row, R branch of a row, P token of the unedited prefix.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# A row's attention takes memory and time with the square of its tokens, and a row for each branch copies the prefix as
# many times. A choice between the two, not measured.
ROW_TOKENS = 128


@dataclass(frozen=True, eq=False)
class BranchRows:
    """One batch of rows.

    Attributes:
        text_B: the text of each row.
        branch_BL: the branch of each token; -1 for padding.
        place_BL: its place in the text; 0 for padding.
        first_BL: the place of its branch's first token, before which the branch sees the unedited text.
        read_BR: where the branches' answer tokens are in the row; the last repeats to fill.
        branch_BR: their branches; -1 where `read_BR` repeats.
    """

    text_B: Tensor
    branch_BL: Tensor
    place_BL: Tensor
    first_BL: Tensor
    read_BR: Tensor
    branch_BR: Tensor

    @property
    def n_prefix(self) -> int:
        """How many tokens of the unedited texts are seen."""
        return int(self.first_BL.max())

    def mask(self, causal: bool) -> Tensor:
        """Who may attend to whom, bool [B, L, P + L]: each token to its branch's, and to the prefix before these."""
        branch, place = self.branch_BL, self.place_BL
        own_BLL = branch[:, :, None] == branch[:, None, :]
        if causal:
            own_BLL &= torch.ones(own_BLL.shape[1:], dtype=torch.bool).tril()
        prefix_BLP = torch.arange(self.n_prefix) < self.first_BL[:, :, None]
        return torch.cat([prefix_BLP.expand(*place.shape, -1), own_BLL], 2)


def branch_rows(
    text_V: np.ndarray, first_V: np.ndarray, last_V: np.ndarray, answer_V: np.ndarray, tokens: int
) -> Iterator[BranchRows]:
    """Batches of rows of about one width.

    Args:
        text_V: the text of each branch.
        first_V: the place of its first token.
        last_V: of its last.
        answer_V: of the one that is read.
        tokens: how many a batch may have; a branch may exceed it alone.
    """
    rows = _rows(text_V, last_V - first_V + 1)
    batch: list[list[int]] = []
    for row in sorted(rows, key=lambda row: int((last_V[row] - first_V[row] + 1).sum()), reverse=True):
        width = int((last_V[(batch or [row])[0]] - first_V[(batch or [row])[0]] + 1).sum())  # the first is the widest
        if batch and width * (len(batch) + 1) > tokens:
            yield _batch(batch, text_V, first_V, last_V, answer_V)
            batch = []
        batch.append(row)
    if batch:
        yield _batch(batch, text_V, first_V, last_V, answer_V)


def _rows(text_V: np.ndarray, length_V: np.ndarray) -> list[list[int]]:
    """Branches of one text in rows of up to `ROW_TOKENS`, longest branches first."""
    rows: list[list[int]] = []
    used, text = 0, -1
    for v in np.lexsort((-length_V, text_V)).tolist():
        if text_V[v] != text or used + length_V[v] > ROW_TOKENS:
            rows.append([])
            used, text = 0, text_V[v]
        rows[-1].append(v)
        used += length_V[v]
    return rows


def _batch(
    rows: list[list[int]], text_V: np.ndarray, first_V: np.ndarray, last_V: np.ndarray, answer_V: np.ndarray
) -> BranchRows:
    lengths = [last_V[row] - first_V[row] + 1 for row in rows]
    width, most = max(int(n.sum()) for n in lengths), max(map(len, rows))
    branch_BL = np.full((len(rows), width), -1)
    place_BL, first_BL = np.zeros_like(branch_BL), np.zeros_like(branch_BL)
    read_BR, branch_BR = np.zeros((len(rows), most), int), np.full((len(rows), most), -1)
    for b, (row, n) in enumerate(zip(rows, lengths, strict=True)):
        starts, used = n.cumsum() - n, int(n.sum())
        branch_BL[b, :used] = np.repeat(row, n)
        first_BL[b, :used] = np.repeat(first_V[row], n)
        place_BL[b, :used] = np.arange(used) + np.repeat(first_V[row] - starts, n)
        read_BR[b] = starts[-1] + answer_V[row[-1]] - first_V[row[-1]]
        read_BR[b, : len(row)] = starts + answer_V[row] - first_V[row]
        branch_BR[b, : len(row)] = row
    text_B = text_V[[row[0] for row in rows]]
    return BranchRows(*(torch.from_numpy(x) for x in (text_B, branch_BL, place_BL, first_BL, read_BR, branch_BR)))
