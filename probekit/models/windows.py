"""Sliding windows: which tokens near it a token may attend to.

A window counts positions, not places in a row, so it is right in packed blocks and in forests of shared prefixes. A
causal window of W holds the token itself and the W - 1 before it; a two-sided one the W - 1 after it as well.

Axes: B batch, L query position, M key position.
"""

import torch
from torch import Tensor

from probekit.models.cache import KeyValueCache
from probekit.models.layers import Mask, causal_mask


def within(window: int, queries_BL: Tensor, keys_BM: Tensor) -> Tensor:
    """True where a key is one of the last `window` positions up to the query, or after it: [B, L, M]."""
    return queries_BL[:, :, None] - keys_BM[:, None, :] < window


def in_window(mask: Mask, window: int | None, position_ids: Tensor, cache: KeyValueCache | None) -> Mask:
    """A causal mask narrowed to the window; unchanged without a window, or if every token is within it.

    Args:
        mask: as the blocks take it.
        window: how many tokens a token sees, itself included.
        position_ids: [B, L].
        cache: holds the earlier tokens; without positions of their own, places in the cache count as positions.
    """
    length = position_ids.shape[1]
    is_tensor = isinstance(mask, Tensor)
    if window is None or (not is_tensor and length <= window):
        return mask
    mask_BLM = mask if is_tensor else causal_mask(position_ids.new_ones(1, length))
    if cache is None:
        return mask_BLM & within(window, position_ids, position_ids)
    if cache.positions_BM is not None:
        return mask_BLM & within(window, position_ids, torch.cat([cache.positions_BM, position_ids], 1))
    places = torch.arange(mask_BLM.shape[2], device=mask_BLM.device)[None]
    return mask_BLM & within(window, places[:, -length:], places)


def in_two_sided_window(mask: Mask, window: int, position_ids: Tensor) -> Mask:
    """A bidirectional model's mask narrowed to the window on either side; unchanged if every token is within it.

    Args:
        mask: as the blocks take it; None lets every token see all of its row.
        window: how many tokens a token sees on either side, itself included.
        position_ids: [B, L].
    """
    is_tensor = isinstance(mask, Tensor)
    if not is_tensor and position_ids.shape[1] <= window:
        return mask
    places = position_ids.int()  # half the memory of int64, of which 8,192 tokens need 0.5 GB
    near_BLM = (places[:, :, None] - places[:, None, :]).abs_() < window
    return mask & near_BLM if is_tensor else near_BLM
