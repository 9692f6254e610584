"""The tokens of each text of a place, in memory or streamed from a store, for probes over a sequence.

Axes: N texts, T tokens of all texts, D width.
"""

import copy
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from probekit.activations.activations import Activations
from probekit.errors import DataError, UsageError
from probekit.machine.devices import free_bytes, where_float64
from probekit.options.task import OnBadRow
from probekit.points import Place
from probekit.probes.base import check_size
from probekit.probes.sequence.ragged import Ragged, in_memory, pooled_rows
from probekit.selections import ALL, Selection, check_several_kept

SHARE = 8  # a place is streamed unless its rows take less than this part of the free memory


def all_tokens(acts: Activations, position: Selection | None, on_bad_row: OnBadRow = "error") -> Activations:
    """The tokens of each text.

    Args:
        acts: with several tokens of each text.
        position: None, what was extracted, or a selection of several of its tokens.
        on_bad_row: "skip" leaves out the texts without such tokens.

    Raises:
        UsageError: one token of each text was kept, or is named.
    """
    check_several_kept(acts.layout.positions, position)
    return acts if position in (None, ALL, *acts.layout.positions) else acts.at(position, on_bad_row)


def labels_of_texts(acts: Activations) -> Activations:
    """The same without labels of tokens.

    Raises:
        UsageError: labels of tokens alone, or several label sets of texts of which none is the task's target.
    """
    if not acts.task.token_labels:
        return acts
    if not acts.labels:
        raise UsageError(
            "a probe over a sequence predicts a label of each text, and this task has labels of tokens alone; give "
            "Task(labels=...), or take a probe of tokens (--position all)"
        )
    view, own = copy.copy(acts), acts.task
    names = {name: own.label_names[name] for name in own.labels}
    target = own.target if own.target in own.labels else ""
    view.task = replace(own, token_labels={}, label_names=names, target=target)
    return view


def tokens_of_texts(acts: Activations, place: Place) -> Ragged:
    """The tokens of each text at a place, in float32 or more.

    Rows that take more than an eighth of the free memory are read from the store again in every pass, two shards at a
    time. Any other activations are in memory already.

    Raises:
        DataError: NaN or infinity, with the example; a text without tokens; float64 that cannot be squared.
    """
    lengths = acts.layout.counts(place)
    if not lengths.all():
        row = int((lengths == 0).argmax())
        raise DataError(f"no token of example {acts.ids[row]!a} was kept; leave it out, or read other tokens")
    if acts.in_shards and not _fits(acts, place, int(lengths.sum())):
        return _streamed(acts, place, lengths)
    return in_memory(_sound(acts, place, np.arange(len(lengths)), acts[place]), lengths)


def _fits(acts: Activations, place: Place, rows: int) -> bool:
    free = free_bytes(torch.device("cpu"))
    return free is None or rows * acts.width(place) * torch.float32.itemsize * SHARE <= free


def _streamed(acts: Activations, place: Place, lengths: np.ndarray) -> Ragged:
    def read() -> Iterator[tuple[np.ndarray, Tensor]]:
        for texts, rows in acts.shards(place):
            yield texts, _sound(acts, place, texts, rows)

    return Ragged(lengths, acts.width(place), read)


def _sound(acts: Activations, place: Place, texts: np.ndarray, rows: Tensor) -> Tensor:
    """The rows of these texts in float32 or more; raises a DataError where they are not finite."""
    X = where_float64(rows)
    bad = ~torch.isfinite(X).all(dim=1)
    if bad.any():
        first = int(bad.nonzero()[0])
        ends = np.cumsum(acts.layout.counts(place)[texts])
        example = acts.ids[int(texts[np.searchsorted(ends, first, side="right")])]
        what = "NaN" if bool(X[first].isnan().any()) else "infinity"
        raise DataError(
            f"activations of {place} hold {what}, first in example {example!a} ({int(bad.sum())} tokens in "
            "all); extract again, in float32 if they were kept in less"
        )
    if X.dtype == torch.float64:
        low, high = torch.aminmax(X)
        check_size(max(float(high), -float(low)))
    return X.to(torch.promote_types(X.dtype, torch.float32))


class PooledTokens(Activations):
    """One row for each text: the "mean" of its tokens, or the "last" one; read as `tokens_of_texts` reads them."""

    def __init__(self, source: Activations, how: str):
        self._source, self._how = source, how
        layout = replace(source.layout, positions=[Selection.named(how)], tokens=None, picked=None, token_index=None)
        super().__init__(list(source), source.task, {**source.meta, "position": how}, layout)

    def _rows(self, place: Place) -> Tensor:
        return pooled_rows(tokens_of_texts(self._source, place), self._how)

    def width(self, place: Place) -> int:
        """D of a place."""
        return self._source.width(place)

    def _n_bytes(self) -> int:
        return self._source._n_bytes()
