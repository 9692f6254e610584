"""Keys and values of the tokens that a model has read, so that the next token costs one token.

Axes: B batch, L new tokens, M all tokens so far, G key/value heads, K d_head.
"""

import torch
from torch import Tensor


class LayerCache:
    """What one attention layer has seen."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    @property
    def length(self) -> int:
        """M."""
        return 0 if self.keys is None else self.keys.shape[1]

    def append(self, k_BLGK: Tensor, v_BLGK: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of all tokens so far, [B, M, G, K] each, the new ones last."""
        self.keys = k_BLGK if self.keys is None else torch.cat([self.keys, k_BLGK], 1)
        self.values = v_BLGK if self.values is None else torch.cat([self.values, v_BLGK], 1)
        return self.keys, self.values


class Cache(list[LayerCache]):
    """A `LayerCache` for each of `n_layers` blocks."""

    def __init__(self, n_layers: int):
        super().__init__(LayerCache() for _ in range(n_layers))

    @property
    def length(self) -> int:
        """Tokens that every layer has seen."""
        return self[0].length
