"""A model's head as numbers: the logits of a few tokens without those of the whole vocabulary.

    logits = cap(before(h) W' + b)

with h the final norm's output; `before` is the transform of a masked-token head, and `cap` Gemma 2's soft cap.

Axes: N rows, K tokens of a row, D d_model, V vocab.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from probekit.errors import UsageError
from probekit.models.base import LanguageModel
from probekit.models.masked_lm import MaskedLM

LOGITS = 2**23  # how many logits are in memory at once, 32 MB in float32


@dataclass(frozen=True, eq=False)
class Unembedding:
    """The head of a family.

    Attributes:
        weight_VD: a row for each token.
        bias_V: None without a bias.
        cap: logits approach plus and minus this number; None without a soft cap.
        before: what is done to the final norm's output first; None if nothing is.
    """

    weight_VD: Tensor
    bias_V: Tensor | None = None
    cap: float | None = None
    before: Callable[[Tensor], Tensor] | None = None


def unembedding(model: LanguageModel) -> Unembedding | None:
    """The head of a model of probekit's own families; None for a wrapped one, whose code alone knows its head.

    Raises:
        UsageError: the model has no head.
    """
    check_head(model)
    if not model.is_ours:
        return None
    own: Any = model
    weight_VD = (own.unembed or own.embed).weight
    if isinstance(model, MaskedLM):
        return Unembedding(weight_VD, model.head.bias, before=model.head.transform)
    if hasattr(model, "decode"):
        return Unembedding(weight_VD, None if own.logits_bias is None else own.logits_bias[0])
    cap = getattr(model.cfg, "output_logits_soft_cap", None)
    return Unembedding(weight_VD, getattr(model, "unembed_bias", None), cap)


def check_head(model: LanguageModel) -> None:
    """Raise a UsageError unless this is a model with a head, which gives logits."""
    if not isinstance(model, LanguageModel):
        raise UsageError(f"expected a model from load_model, got {model!a:.60}; call load_model first")
    if not model.has_logits:
        raise UsageError(
            f"{model.name} has no head, so it has no logits; take a checkpoint that was saved with its head"
        )


def chosen_logits(model: LanguageModel, hidden_ND: Tensor, tokens_NK: Tensor) -> Tensor:
    """The logits [N, K] of these tokens, in float32 at least; differentiable in the final norm's output."""
    head, tokens_NK = unembedding(model), tokens_NK.to(hidden_ND.device)
    if head is None:
        return logits_of(model, hidden_ND).gather(1, tokens_NK)
    logits_NK = uncapped(head, hidden_ND, tokens_NK)
    return logits_NK if head.cap is None else head.cap * torch.tanh(logits_NK / head.cap)


def uncapped(head: Unembedding, hidden_ND: Tensor, tokens_NK: Tensor) -> Tensor:
    """The logits [N, K] of these tokens before the soft cap."""
    x_ND = hidden_ND if head.before is None else head.before(hidden_ND[:, None])[:, 0]
    wide = torch.promote_types(x_ND.dtype, torch.float32)
    logits_NK = torch.einsum("nd,nkd->nk", x_ND.to(wide), head.weight_VD[tokens_NK].to(wide))
    return logits_NK if head.bias_V is None else logits_NK + head.bias_V[tokens_NK].to(wide)


def logits_of(model: LanguageModel, hidden_ND: Tensor) -> Tensor:
    """The logits [N, V] of the final norm's output, in float32 at least.

    Raises:
        UsageError: the model has no head.
    """
    check_head(model)
    logits_NV = model.logits(hidden_ND[:, None])[:, 0]
    return logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))


def rows_at_once(model: LanguageModel) -> int:
    """How many rows of logits are in memory at once."""
    return max(1, LOGITS // model.cfg.d_vocab)
