"""Keys and values of the tokens that a model has read, so that the next token costs one token.

Axes: B batch, L new tokens, M all tokens so far, G key/value heads, K d_head.
"""

from torch import Tensor


class LayerCache:
    """What one attention layer has seen; a decoder's layer keeps the keys and values of the encoder's output too.

    Its memory doubles when it is full: a token is written once and copied about once more, and up to half of the memory
    is spare. A token is written beside what earlier calls read, so autograd refuses to go back through those.

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
        """Of all tokens so far, [B, M, G, K]; None before the first."""
        return None if self._keys is None else self._keys[:, : self.length]

    @property
    def values(self) -> Tensor | None:
        """Of all tokens so far, [B, M, G, K]; None before the first."""
        return None if self._values is None else self._values[:, : self.length]

    def append(self, k_BLGK: Tensor, v_BLGK: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of all tokens so far, [B, M, G, K] each, the new ones last."""
        self._keys = _with(self._keys, k_BLGK, self.length)
        self._values = _with(self._values, v_BLGK, self.length)
        self.length += k_BLGK.shape[1]
        return self._keys[:, : self.length], self._values[:, : self.length]


def _with(old: Tensor | None, new: Tensor, start: int) -> Tensor:
    """The old tensor, in which the new one stands from `start` on; made longer where it has no room for it."""
    end = start + new.shape[1]
    if old is None or end > old.shape[1]:
        longer = new.new_empty(len(new), max(end, 2 * start), *new.shape[2:])
        if old is not None:
            longer[:, :start] = old[:, :start]
        old = longer
    old[:, start:end] = new
    return old


class Cache(list[LayerCache]):
    """A `LayerCache` for each of `n_layers` blocks."""

    def __init__(self, n_layers: int):
        super().__init__(LayerCache() for _ in range(n_layers))

    @property
    def length(self) -> int:
        """Tokens that every layer has seen."""
        return self[0].length
