"""What the encoders share: the head that predicts masked tokens, and the model around it.

Axes: B batch, L position, D d_model, V vocab.
"""

from typing import Any

import torch
from torch import Tensor, nn

from probekit.errors import UsageError
from probekit.models.base import LanguageModel
from probekit.models.layers import Embedding, LayerNorm, Linear, linear


class MLMHead(nn.Module):
    """The product of ln(act(x W + b)) with each token's embedding, plus a bias for each token."""

    def __init__(self, d_model: int, d_vocab: int, activation: str, ln_eps: float):
        super().__init__()
        self.activation = activation
        self.dense = Linear(d_model, d_model)
        self.ln = LayerNorm(d_model, ln_eps)
        self.bias = nn.Parameter(torch.empty(d_vocab))

    def forward(self, x_BLD: Tensor, embedding_VD: Tensor) -> Tensor:
        return linear(self.transform(x_BLD), embedding_VD, self.bias)

    def transform(self, x_BLD: Tensor) -> Tensor:
        """ln(act(x W + b)), [B, L, D]."""
        return self.ln(self.dense.activated(x_BLD, self.activation))

    @property
    def hooked(self) -> bool:
        """True if a hook is attached to a point of the head."""
        return self.ln.hook_scale.hooked or self.ln.hook_normalized.hooked


class MaskedLM(LanguageModel):
    """An encoder, with or without a head for masked tokens: a checkpoint below the head has none.

    Attributes:
        embed: the token embedding, which is also the head's matrix unless there is `unembed`.
        head: None without a head.
        unembed: the head's own matrix, or None.
    """

    causal = False
    embed: Embedding
    head: Any
    unembed: Embedding | None

    def logits(self, output_BLD: Tensor) -> Tensor:
        """The masked-token head's logits [B, L, V] of the model's output without it.

        Raises:
            UsageError: the checkpoint has no such head.
        """
        if self.head is None:
            raise UsageError(f"the checkpoint of {self.name} has no head for masked tokens; set return_logits=False")
        return self.head(output_BLD, (self.unembed or self.embed).weight)

    @property
    def has_logits(self) -> bool:
        """False for a checkpoint without the head for masked tokens."""
        return self.head is not None

    def headed(self, output_BLD: Tensor, return_logits: bool) -> Tensor:
        """The logits, or the output itself; the head's points fire all the same where a hook reads them."""
        if return_logits:
            return self.logits(output_BLD)
        if self.head is not None and self.head.hooked:
            self.head.transform(output_BLD)
        return output_BLD

    def check_segments(self, tokens: Tensor, segments: Tensor | None) -> Tensor:
        """The segment of each token, [B, L]; segment 0 if none are given.

        Raises:
            UsageError: another shape or type, or a segment that the model does not have.
        """
        if segments is None:
            return torch.zeros_like(tokens)
        if not isinstance(segments, Tensor) or segments.shape != tokens.shape or segments.is_floating_point():
            got = (
                f"{segments.dtype} {list(segments.shape)}" if isinstance(segments, Tensor) else type(segments).__name__
            )
            raise UsageError(f"token_type_ids are int64 {list(tokens.shape)}, like the tokens; got {got}")
        if segments.device.type == "cpu" and not 0 <= int(segments.min()) <= int(segments.max()) < self.cfg.n_segments:
            raise UsageError(
                f"token_type_ids lie in 0..{self.cfg.n_segments - 1}; got {int(segments.min())}..{int(segments.max())}"
            )
        return segments.to(tokens.device).long()

    @torch.no_grad()
    def fill_normal(self, seed: int) -> None:
        """Fill the weights as `transformers` does: normal of `init_std`, biases 0, gains of norms 1."""
        generator = torch.Generator().manual_seed(seed)
        for name, weight in self.named_parameters():
            if weight.dim() == 1:
                weight.fill_(0 if name.endswith("bias") else 1)
            else:
                weight.copy_(torch.randn(weight.shape, generator=generator) * self.cfg.init_std)
