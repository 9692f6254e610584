"""Latents as the few that are not 0.

Axes: R rows, F latents.
"""

from collections.abc import Callable
from typing import cast

import numpy as np
import torch
from scipy.sparse import csr_array, vstack
from torch import Tensor

from probekit.errors import DataError
from probekit.latents.sae import Sae

ENCODED_BYTES = 1 << 26  # of products that an encoder makes at once
SPARSE_BYTES = 8  # of one latent that is not 0: its value and its number
COPIES_OF_SPARSE = 4  # of them that memory holds while they are put together and selected from


def at_once(n_latents: int) -> int:
    """How many rows are encoded at once."""
    return max(1, ENCODED_BYTES // (4 * n_latents))


def encoded_sparse(sae: Sae, rows: Tensor) -> csr_array:
    """The latents of rows [R, D] that are not 0: float32 [R, F]."""
    return stacked([_sparse(sae.encode(block)) for block in rows.split(at_once(sae.cfg.d_latents))])


def stacked(blocks: list[csr_array]) -> csr_array:
    """The rows of blocks [R, F], one below the other."""
    return csr_array(vstack(blocks, format="csr"))


def dense_size(latents: csr_array) -> int:
    """Bytes of the latents [R, F] with every 0, in float32."""
    rows, width = cast("tuple[int, int]", latents.shape)
    return 4 * rows * width


def _sparse(latents: Tensor) -> csr_array:
    """The values that are not 0 of rows [R, F]."""
    row, column = latents.nonzero(as_tuple=True)
    counts = torch.bincount(row, minlength=len(latents))
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    values = latents[row, column].float()
    parts = (values.cpu().numpy(), column.int().cpu().numpy(), starts.int().cpu().numpy())
    return csr_array(parts, shape=tuple(latents.shape))


def checked_latents(sae: Sae, rows: Tensor, id_of: Callable[[int], str]) -> csr_array:
    """As `encoded_sparse`.

    Args:
        sae: the autoencoder.
        rows: what it reads, [R, D].
        id_of: a row -> the id of its example.

    Raises:
        DataError: a latent is NaN or infinite.
    """
    latents = encoded_sparse(sae, rows)
    bad = np.flatnonzero(~np.isfinite(latents.data))
    if len(bad):
        row = int(np.searchsorted(latents.indptr, bad[0], side="right")) - 1
        raise DataError(
            f"latents of {sae.name!a:.200} hold NaN or infinity, as in example {id_of(row)!a}; check the activations, "
            "or extract them again in float32"
        )
    return latents


def dead_latents(name: str) -> DataError:
    """The error for an autoencoder none of whose latents is alive on these activations."""
    return DataError(
        f"every latent of {name!a:.200} is 0 on all rows: dead, or of another layer or model; check what it was "
        "trained on, and its normalisation (scale=)"
    )
