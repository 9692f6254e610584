"""Keys and values of earlier tokens, kept so that generating a token costs a forward of one token.

Axes: B batch, N texts, L new tokens, M all tokens so far, S source position, G key/value heads, K d_head.
"""

from collections.abc import Iterable

import torch
from torch import Tensor


class LayerCache:
    """The keys and values of one layer; in a decoder with cross-attention also those of the encoder's output.

    The buffer doubles when it is full, so each token is copied about once more, and up to half of the memory is spare.
    New tokens are written into a buffer that earlier calls have read, so autograd refuses to go back through those.

    Attributes:
        length: M.
        memory: keys and values of the encoder's output, [B, S, H, K] each.
    """

    def __init__(self) -> None:
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self.memory: tuple[Tensor, Tensor] | None = None

    @property
    def keys(self) -> Tensor | None:
        """The keys of all tokens so far, [B, M, G, K]; None before the first."""
        return None if self._keys is None else self._keys[:, : self.length]

    @property
    def values(self) -> Tensor | None:
        """The values of all tokens so far, [B, M, G, K]; None before the first."""
        return None if self._values is None else self._values[:, : self.length]

    def append(self, k_BLGK: Tensor, v_BLGK: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of all tokens so far, [B, M, G, K] each, the new ones last."""
        self._keys = _written(self._keys, k_BLGK, self.length)
        self._values = _written(self._values, v_BLGK, self.length)
        self.length += k_BLGK.shape[1]
        return self._keys[:, : self.length], self._values[:, : self.length]

    def keep(self, rows: list[int]) -> None:
        """Forget all rows but these; the memory of the others is free when the cache is."""
        if self._keys is not None and self._values is not None:
            self._keys, self._values = _kept(self._keys, rows), _kept(self._values, rows)
        if self.memory is not None:
            self.memory = _kept(self.memory[0], rows), _kept(self.memory[1], rows)


def _written(buffer: Tensor | None, new: Tensor, start: int) -> Tensor:
    """The buffer with `new` written from `start` on; a longer copy where it has no room."""
    end = start + new.shape[1]
    if buffer is None or end > buffer.shape[1]:
        longer = new.new_empty(len(new), max(end, 2 * start), *new.shape[2:])
        if buffer is not None:
            longer[:, :start] = buffer[:, :start]
        buffer = longer
    buffer[:, start:end] = new
    return buffer


def _kept(buffer: Tensor, rows: list[int]) -> Tensor:
    """Some rows of the buffer; row i is row i of the buffer, or lies behind the last that is returned.

    Only those behind are copied, in place: texts that end one after the other cost a row each, not the whole buffer.
    """
    moved = [(i, row) for i, row in enumerate(rows) if i != row]
    assert all(row >= len(rows) for _, row in moved)
    if moved:
        to, source = map(list, zip(*moved, strict=True))
        buffer[to] = buffer[source]
    return buffer[: len(rows)]


class SharedPrefix(LayerCache):
    """The keys and values of texts that rows continue, several rows the same text; nothing is added to it.

    Args:
        keys_NMGK: of the texts.
        values_NMGK: of the texts.
        text_B: the text of each row.
        length: how many of the texts' first tokens the rows may see.
    """

    def __init__(self, keys_NMGK: Tensor, values_NMGK: Tensor, text_B: Tensor, length: int):
        super().__init__()
        self.length = length
        self._of_texts = keys_NMGK, values_NMGK
        self._text_B = text_B

    def append(self, k_BLGK: Tensor, v_BLGK: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the prefix and of these tokens, [B, M, G, K] each."""
        k_NMGK, v_NMGK = (x[:, : self.length] for x in self._of_texts)
        text_B = self._text_B.to(k_BLGK.device)
        return torch.cat([k_NMGK[text_B], k_BLGK], 1), torch.cat([v_NMGK[text_B], v_BLGK], 1)


class RecurrentCache:
    """What a recurrent layer keeps of earlier tokens: its memory, and the last inputs of its convolution.

    Attributes:
        length: M.
        recent: the last inputs of the convolution, one fewer than it sees, [B, L, D]; None before the first token.
        memory: of each head, [B, N, K, V]; None before the first token.
    """

    def __init__(self) -> None:
        self.length = 0
        self.recent: Tensor | None = None
        self.memory: Tensor | None = None

    def keep(self, rows: list[int]) -> None:
        """Forget all rows but these."""
        if self.recent is not None and self.memory is not None:
            self.recent, self.memory = _kept(self.recent, rows), _kept(self.memory, rows)


class KeyValueCache(list[LayerCache | RecurrentCache]):
    """One `LayerCache` for each of `n_layers` blocks, or those given.

    Attributes:
        positions_BM: the position of each cached token in its text; None where a row's tokens are in order.
    """

    def __init__(self, layers: int | Iterable[LayerCache | RecurrentCache], positions_BM: Tensor | None = None):
        super().__init__((LayerCache() for _ in range(layers)) if isinstance(layers, int) else layers)
        self.positions_BM = positions_BM

    @property
    def length(self) -> int:
        """How many tokens the cache holds."""
        return self[0].length

    def keep(self, rows: list[int]) -> None:
        """Forget all rows but these, of which each is where it was, or lies behind the last that stays."""
        for layer in dict.fromkeys(self):  # layers that share keys and values have one cache
            layer.keep(rows)
        if self.positions_BM is not None:
            self.positions_BM = self.positions_BM[rows]
