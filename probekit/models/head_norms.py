"""RMSNorm of queries and keys before they are rotated (Henry et al. 2020, "Query-key normalization for transformers").

Axes: B batch, L position, H heads, G key/value heads, K d_head.
"""

import torch
from torch import Tensor, nn

from probekit.hooks import HookPoint
from probekit.models.layers import RMSNorm


class HeadNorm(RMSNorm):
    """RMSNorm of each head on its own, with one gain [K] for all heads.

    Args:
        d_head: K.
        eps: as in RMSNorm.
        heads: the axis of the heads, "H" or "G".
    """

    def __init__(self, d_head: int, eps: float, heads: str):
        super().__init__(d_head, eps)
        self.hook_scale = HookPoint(f"B L {heads} 1")
        self.hook_normalized = HookPoint(f"B L {heads} K")


class JointHeadNorm(nn.Module):
    """RMSNorm of all heads together, [B, L, H K], with a gain for each coordinate of each head.

    Args:
        n_heads: H or G.
        d_head: K.
        eps: as in RMSNorm.
        heads: the axis of the heads, "H" or "G".
    """

    def __init__(self, n_heads: int, d_head: int, eps: float, heads: str):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(n_heads * d_head))
        self.hook_scale = HookPoint("B L 1 1")
        self.hook_normalized = HookPoint(f"B L {heads} K")

    def forward(self, x_BLHK: Tensor) -> Tensor:
        x32_BLHK = x_BLHK.to(torch.promote_types(x_BLHK.dtype, torch.float32))
        scale_BL11 = self.hook_scale((x32_BLHK.square().mean((-2, -1), keepdim=True) + self.eps).sqrt())
        gain_HK = self.weight.view(x_BLHK.shape[-2:])
        return self.hook_normalized((x32_BLHK / scale_BL11 * gain_HK).to(x_BLHK.dtype))
