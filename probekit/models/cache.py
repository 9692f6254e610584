"""Keys and values of earlier tokens, kept so that generating a token costs a forward of one token.

Axes: B batch, L new tokens, M all tokens so far, S source position, G key/value heads, K d_head.
"""

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


class KeyValueCache(list[LayerCache]):
    """One `LayerCache` for each of `n_layers` blocks."""

    def __init__(self, n_layers: int):
        super().__init__(LayerCache() for _ in range(n_layers))

    @property
    def length(self) -> int:
        """How many tokens the cache holds."""
        return self[0].length
