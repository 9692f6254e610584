"""Features of texts that differ in their number of tokens, in memory or read part by part, and sums over each text.

Axes: N texts, T tokens of all texts, D features, n and t those of one part.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from probekit.errors import DataError, UsageError
from probekit.machine.devices import free_bytes
from probekit.probes.base import as_numpy, check_size, rows_of
from probekit.probes.moments import RowMoments
from probekit.probes.problem import Labels
from probekit.ragged import ranges, starts_of
from probekit.text import kind_of

TOKENS_AT_ONCE = 2048  # of a part; its float64 copy is 12 MB at D = 768


class TextPart(NamedTuple):
    """Some complete texts.

    Attributes:
        texts: their numbers, int64 [n].
        rows: their tokens, one text after the other, [t, D].
        lengths: tokens of each, int64 [n].
    """

    texts: np.ndarray
    rows: Tensor
    lengths: np.ndarray

    def doubles(self) -> np.ndarray:
        """The tokens, float64 [t, D]."""
        return self.rows.double().cpu().numpy()


@dataclass(frozen=True, eq=False)
class Ragged:
    """The tokens of N texts.

    Attributes:
        lengths: tokens of each text, int64 [N], at least 1.
        width: D.
        read: yields (texts, their rows [t, D]); each text once, in an order that stays the same.
        values: all rows [T, D] in the order of the texts, where they are in memory; else None.
    """

    lengths: np.ndarray
    width: int
    read: Callable[[], Iterator[tuple[np.ndarray, Tensor]]]
    values: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(N, D)."""
        return len(self.lengths), self.width

    @property
    def device(self) -> torch.device:
        """The device of the rows; that of streamed ones is the CPU."""
        return torch.device("cpu") if self.values is None else self.values.device

    @property
    def nbytes(self) -> int:
        """Bytes that the rows take in memory; 0 where they are streamed."""
        return 0 if self.values is None else self.values.nbytes

    def __len__(self) -> int:
        return len(self.lengths)


def in_memory(values: Tensor, lengths: np.ndarray) -> Ragged:
    """The rows [T, D] of texts, one text after the other."""
    ends = np.cumsum(lengths)

    def read() -> Iterator[tuple[np.ndarray, Tensor]]:
        start = 0
        while start < len(lengths):
            before = ends[start - 1] if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + TOKENS_AT_ONCE, side="right")))
            yield np.arange(start, stop), values[int(before) : int(ends[stop - 1])]
            start = stop

    return Ragged(lengths, values.shape[1], read, values)


def in_doubles(X: Ragged) -> Ragged:
    """The same on the CPU in float64, so that no pass converts it, where the free memory has room for several of it."""
    if X.values is None or X.values.dtype == torch.float64:
        return X
    free = free_bytes(torch.device("cpu"))
    needed = X.values.numel() * torch.float64.itemsize
    return in_memory(X.values.double().cpu(), X.lengths) if free is None or 8 * needed <= free else X


def take_texts(X: Ragged, texts: np.ndarray) -> Ragged:
    """Some of the texts, each once, numbered in this order."""
    if len(texts) == len(X) and (texts == np.arange(len(X))).all():
        return X
    lengths = X.lengths[texts]
    if X.values is not None:
        index = ranges(starts_of(X.lengths)[texts], lengths)
        return in_memory(X.values[torch.from_numpy(index).to(X.device)], lengths)
    number = np.full(len(X), -1)
    number[texts] = np.arange(len(texts))

    def read() -> Iterator[tuple[np.ndarray, Tensor]]:
        for own, rows in X.read():
            kept = number[own] >= 0
            if kept.any():
                inside = torch.from_numpy(np.repeat(kept, X.lengths[own]))
                yield number[own[kept]], rows if kept.all() else rows[inside]

    return Ragged(lengths, X.width, read)


def text_parts(X: Ragged) -> Iterator[TextPart]:
    """All texts, some thousand tokens at a time: long parts of a stream are cut between texts."""
    for texts, rows in X.read():
        for part in in_memory(rows, X.lengths[texts]).read():
            numbers, tokens = part
            own = texts[numbers]
            yield TextPart(own, tokens, X.lengths[own])


def by_text(X: Ragged, of_tokens: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> list[np.ndarray]:
    """Arrays [L, ...], one for each text, of what a function of tokens float64 [t, D] and lengths [n] gives."""
    found: list[np.ndarray] = [np.empty(0)] * len(X)
    for part in text_parts(X):
        values = of_tokens(part.doubles(), part.lengths)
        for text, own in zip(part.texts, np.split(values, np.cumsum(part.lengths)[:-1]), strict=True):
            found[text] = own
    return found


def as_ragged(X: Any, width: int | None = None) -> Ragged:
    """Features of texts as users pass them: a list of [L, D], an array [N, L, D], or `Ragged` as it is.

    Args:
        X: numpy or torch, of any float type.
        width: D that is expected.

    Raises:
        UsageError: something else, such as one array [N, D].
        DataError: a text without tokens or with another D, NaN or infinity, with its number; features out of range.
    """
    if isinstance(X, Ragged):
        return X
    if not isinstance(X, Sequence) and not (hasattr(X, "shape") and len(X.shape) == 3):
        found = list(X.shape) if hasattr(X, "shape") else kind_of(X)
        raise UsageError(
            f"a probe over a sequence takes a list of arrays [L, D], one for each text (acts.per_text(place)); got "
            f"{found}"
        )
    texts = [torch.from_numpy(np.asarray(as_numpy(one))) for one in X]
    if not texts:
        raise DataError("expected the tokens of one text or more, got none; give a list of arrays [L, D]")
    D = next((one.shape[1] for one in texts if one.dim() == 2), 0) if width is None else width
    for number, one in enumerate(texts):
        if one.dim() != 2 or not len(one) or one.shape[1] != D or not D:
            raise DataError(
                f"text {number} must have the tokens [L, {D}], L at least 1; got {list(one.shape)}; leave it out"
            )
        if not torch.isfinite(one).all():
            raise DataError(f"text {number} holds NaN or infinity; leave it out, or extract again in float32")
    values = torch.cat([one if one.is_floating_point() else one.double() for one in texts])
    low, high = torch.aminmax(values)
    check_size(max(float(high), -float(low)), fitting=width is None)
    return in_memory(values, np.array([len(one) for one in texts], dtype=np.int64))


def pooled_rows(X: Ragged, how: str) -> Tensor:
    """One row for each text, [N, D]: the "mean" of its tokens, or the "last" one."""
    found = torch.empty(X.shape, dtype=torch.float32 if X.values is None else X.values.dtype, device=X.device)
    for part in text_parts(X):
        if how == "last":
            rows = part.rows[torch.from_numpy(np.cumsum(part.lengths) - 1).to(X.device)]
        else:
            lengths = torch.from_numpy(part.lengths).to(X.device)
            rows = torch.segment_reduce(part.rows.double(), "mean", lengths=lengths, axis=0)
        found[torch.from_numpy(part.texts).to(X.device)] = rows.to(found.dtype)
    return found


def token_weights(part: TextPart, weights: np.ndarray) -> np.ndarray:
    """The weight of each token of a part, [t]."""
    return np.repeat(weights[part.texts] / part.lengths, part.lengths)


def token_moments(X: Ragged, labels: Labels, weights: np.ndarray) -> RowMoments:
    """The moments of tokens whose weights sum to that of their text, which is 0 or 1."""
    rows_of(weights)
    counts = np.bincount(labels.values, weights, minlength=labels.n_classes)
    mean = sum((token_weights(part, weights) @ part.doubles() for part in text_parts(X)), np.zeros(X.width))
    mean /= weights.sum()
    sums, products = np.zeros((labels.n_classes, X.width)), np.zeros((X.width, X.width))
    for part in text_parts(X):
        w = token_weights(part, weights)
        if w.any():
            centred = part.doubles() - mean
            products += centred.T @ (w[:, None] * centred)
            each = np.repeat(labels.values[part.texts], part.lengths)
            sums += ((each == np.arange(labels.n_classes)[:, None]) * w) @ centred
    n = weights.sum()
    return RowMoments(int(n), mean, products / n, counts, mean + sums / np.maximum(counts, 1)[:, None])


def attended(a: np.ndarray, s: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores s [t, P, K] summed over each text with softmax weights of a [t, P]: [n, P, K], and the weights [t, P]."""
    attention = softmax_within(a, lengths)
    return np.add.reduceat(attention[:, :, None] * s, starts_of(lengths), axis=0), attention


def softmax_within(a: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The softmax of a [t, ...] over the tokens of each text."""
    likely = np.exp(a - np.repeat(np.maximum.reduceat(a, starts_of(lengths), axis=0), lengths, axis=0))
    return likely / np.repeat(np.add.reduceat(likely, starts_of(lengths), axis=0), lengths, axis=0)
