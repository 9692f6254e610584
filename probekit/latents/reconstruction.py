"""How much of the activations an autoencoder keeps.

Axes: N rows, D features.
"""

import torch
from torch import Tensor

from probekit.latents.sae import Sae
from probekit.latents.sparse import at_once


@torch.no_grad()
def explained_variance(sae: Sae, x: Tensor) -> float:
    """The share of the variance of rows [N, D] that the reconstruction keeps; nan where they do not vary.

    1 - sum |x - sae(x)|^2 / sum |x - mean|^2: 1 for a perfect reconstruction, 0 for the mean of the rows.
    """
    blocks = x.split(at_once(sae.cfg.d_latents))
    left = sum(float((rows - sae(rows).to(rows)).double().square().sum()) for rows in blocks)
    spread = float((x.double() - x.double().mean(0)).square().sum())
    return 1 - left / spread if spread else float("nan")
