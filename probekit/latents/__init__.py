"""Sparse autoencoders and transcoders that others trained: their files, and the latents that they read."""

from probekit.latents.files import load_sae
from probekit.latents.sae import Sae

__all__ = ["Sae", "load_sae"]
