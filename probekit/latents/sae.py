"""Sparse autoencoders and transcoders: latents of activations, and activations of latents.

Axes: N rows, D what is read, F latents, O what is reconstructed.
"""

import hashlib

import torch
from torch import Tensor, nn

from probekit.errors import UsageError
from probekit.latents.config import SaeConfig
from probekit.text import printable

EPSILON = 1e-5  # of SAELens's layer_norm; added to the standard deviation


class Sae(nn.Module):
    """A sparse autoencoder, or a transcoder; `load_sae` reads one.

        latents = sae.encode(x)      # [N, F], few of them not 0
        sae.decode(latents), sae(x)  # the reconstruction

    Attributes:
        cfg: sizes, activation, and the place that it reads.
        name: where it was loaded from.
        W_enc: [D, F].
        W_dec: [F, O]; row f is the direction of latent f.
    """

    W_enc: Tensor
    W_dec: Tensor
    b_enc: Tensor
    b_dec: Tensor
    W_skip: Tensor
    b_gate: Tensor
    b_mag: Tensor
    r_mag: Tensor
    threshold: Tensor

    def __init__(self, cfg: SaeConfig, weights: dict[str, Tensor], name: str):
        super().__init__()
        self.cfg, self.name = cfg, name
        for key, weight in weights.items():
            self.register_buffer(key, weight)

    @torch.no_grad()
    def encode(self, x: Tensor) -> Tensor:
        """The latents [..., F] of activations [..., D]; heads side by side, [..., H, K], are read as one width.

        Raises:
            UsageError: another width.
        """
        rows, _, _ = self._normalised(self._rows(x))
        return self._latents(rows - self.b_dec if self.cfg.subtracts_bias else rows)

    @torch.no_grad()
    def decode(self, latents: Tensor, like: Tensor | None = None) -> Tensor:
        """The reconstruction [..., O] from latents [..., F].

        Args:
            latents: as `encode` gives them.
            like: the activations [..., D] that they are of: where the autoencoder normalises what it reads, this gives
                the mean and the length to undo it, and where it has a skip connection, what is added.

        Raises:
            UsageError: no `like` where it is needed; another width.
        """
        if latents.shape[-1] != self.cfg.d_latents:
            raise UsageError(f"the {self.kind} has {self.cfg.d_latents} latents; got {latents.shape[-1]}")
        normalised = self.cfg.norm != "none" and not self.cfg.is_transcoder
        if like is None and (self.cfg.skip or normalised):
            raise UsageError(f"this {self.kind} needs the activations that the latents are of; give like=x")
        latents = latents.to(self.W_dec)
        if self.cfg.by_decoder_norm:
            latents = latents / self.W_dec.norm(dim=-1)
        out = latents @ self.W_dec + self.b_dec
        if like is None:
            return out / self.cfg.scale
        x = self._rows(like)
        if normalised:
            _, mean, length = self._normalised(x)
            out = out * length + mean
        out = out / self.cfg.scale
        return out + x @ self.W_skip.T if self.cfg.skip else out

    def forward(self, x: Tensor) -> Tensor:
        """The reconstruction [..., O] of activations [..., D], or of what a transcoder gives for them."""
        return self.decode(self.encode(x), x)

    def _rows(self, x: Tensor) -> Tensor:
        """Activations as rows [..., D] in the type and on the device of the weights."""
        if x.dim() > 2 and x.shape[-1] != self.cfg.d_in == x.shape[-1] * x.shape[-2]:
            x = x.flatten(-2)
        if x.shape[-1] != self.cfg.d_in:
            raise UsageError(
                f"the {self.kind} {printable(self.name)!r} reads a width of {self.cfg.d_in}; got activations "
                f"{list(x.shape)}; take the model and the point that it was trained on"
            )
        return x.to(self.W_enc)

    def _normalised(self, x: Tensor) -> tuple[Tensor, Tensor | float, Tensor | float]:
        """Rows as they are read, and the mean and the length that were taken out of each."""
        rows = x * self.cfg.scale
        if self.cfg.norm == "centred":
            mean = rows.mean(-1, keepdim=True)
            return rows - mean, mean, 1.0
        if self.cfg.norm == "layer_norm":
            mean = rows.mean(-1, keepdim=True)
            length = (rows - mean).std(-1, keepdim=True)
            return (rows - mean) / (length + EPSILON), mean, length
        if self.cfg.norm == "constant_norm_rescale":
            length = rows.norm(dim=-1, keepdim=True) / self.cfg.d_in**0.5
            return rows / length, 0.0, length
        return rows, 0.0, 1.0

    def _latents(self, rows: Tensor) -> Tensor:
        products = rows @ self.W_enc
        if self.cfg.activation == "gated":
            magnitudes = products * self.r_mag.exp() + self.b_mag
            return magnitudes.relu() * (products + self.b_gate > 0)
        products = products + self.b_enc
        if self.cfg.by_decoder_norm:
            products = products * self.W_dec.norm(dim=-1)
        if self.cfg.activation == "jumprelu":
            return products.relu() * (products > self.threshold)
        if self.cfg.activation == "relu":
            return products.relu()
        if self.cfg.activation == "topk":
            values, chosen = products.topk(self.cfg.k, dim=-1)
        else:
            values, chosen = products.unflatten(-1, (self.cfg.k, -1)).max(-1)
            width = self.cfg.d_latents // self.cfg.k
            chosen = chosen + torch.arange(0, self.cfg.d_latents, width, device=chosen.device)
        return torch.zeros_like(products).scatter(-1, chosen, values.relu())

    @property
    def kind(self) -> str:
        """What it is called: "autoencoder" or "transcoder"."""
        return "transcoder" if self.cfg.is_transcoder else "autoencoder"

    def fingerprint(self) -> str:
        """A hash of how it computes and of its weights, in hexadecimal."""
        digest = hashlib.sha256(repr(self.cfg).encode())
        for name, weight in sorted(self.named_buffers()):
            digest.update(f"{name} {list(weight.shape)} {weight.dtype}".encode())
            digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def __repr__(self) -> str:
        cfg = self.cfg
        where = str(cfg.place or "?") + (f" to {cfg.place_out or '?'}" if cfg.is_transcoder else "")
        return f"Sae({printable(self.name)!r}: {cfg.activation} {self.kind}, {cfg.d_in} x {cfg.d_latents}, at {where})"
