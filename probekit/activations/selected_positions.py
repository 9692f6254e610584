"""Several selections of activations that were kept at more tokens, read as if they had been extracted together.

Axes: N examples, P selections, D width of a place.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from probekit.activations.activations import Activations
from probekit.activations.plan.reading.select_tokens import UNREAD
from probekit.activations.select_rows import SelectedRows, chosen_tokens, select_rows, selected_values
from probekit.points import PAIR_POINTS, Place
from probekit.selections import Selection
from probekit.tasks.base import without_bad_rows


class SelectedPositions(Activations):
    """One row of each text for each selection, [N, P, D]; a place of the source is read once for all of them.

    Args:
        source: all tokens, those of a selection, or several positions.
        positions: selections of one row each; they differ.

    Raises:
        UsageError: a position that was not extracted.
        DataError: a text without such a token.
    """

    def __init__(self, source: Activations, positions: Sequence[Selection]):
        self._source = source
        layout, of_targets = source.layout, source.points[0].startswith("decoder.")
        cut, starts = bool(source.meta.get("cut")), layout.offsets()[:-1]
        self._chosen: list[SelectedRows] = []
        for position in positions:
            chosen, bad = select_rows(layout, source.task, position, of_targets, cut)
            without_bad_rows(source.task, bad, UNREAD, "error")
            self._chosen.append(chosen)
        tokens, index = zip(*(chosen_tokens(layout, chosen, starts) for chosen in self._chosen), strict=True)
        unknown = np.full(len(layout.lengths), -1)
        own = replace(
            layout,
            positions=[*positions],
            tokens=None if layout.tokens is None else _interleaved([unknown if t is None else t for t in tokens]),
            picked=None,
            token_index=_interleaved(index),
            characters=None if layout.characters is None else self._characters(layout.characters),
        )
        places = [place for place in source if place[0] not in PAIR_POINTS]
        points = [point for point in source.points if point not in PAIR_POINTS]
        meta = {**source.meta, "points": points, "position": [one.plain for one in positions]}
        super().__init__(places, source.task, meta, own)

    def _characters(self, known: np.ndarray) -> np.ndarray:
        """The characters of each token that is read, int64 [N * P, 2]; none for a mean."""
        read = [np.zeros((len(c.counts), 2), dtype=known.dtype) if c.is_mean else known[c.index] for c in self._chosen]
        return np.stack(read, axis=1).reshape(-1, 2)

    def _rows(self, place: Place) -> Tensor:
        rows = self._source._rows(place)
        return torch.stack([selected_values(rows, chosen) for chosen in self._chosen], dim=1).flatten(0, 1)

    def _n_bytes(self) -> int:
        return self._source._n_bytes()


def _interleaved(columns: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """One value of each text from P arrays [N] to [N * P]; None if one is unknown."""
    known = [column for column in columns if column is not None]
    return np.stack(known, axis=1).ravel() if len(known) == len(columns) else None
