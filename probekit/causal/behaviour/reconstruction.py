"""The loss that a model has in addition when an autoencoder's reconstruction takes the place of its activations."""

from collections.abc import Sequence
from typing import Any

import torch

from probekit.causal.behaviour.measure import token_losses
from probekit.interventions import through
from probekit.latents import Sae
from probekit.models.base import LanguageModel
from probekit.points import Place

MEASURED_TOKENS = 10_000


def reconstruction_loss(
    model: LanguageModel, sae: Sae, reads: Place, texts: Sequence[Sequence[int]], n_context: int = 0
) -> dict[str, Any]:
    """The loss on texts, and what is added to it where the reconstruction is spliced in; nothing without a token.

    Each token is predicted from those before it. Context tokens keep their activations: autoencoders are rarely trained
    on a BOS, whose activations are far from all others.

    Args:
        model: with a head, not an encoder-decoder.
        sae: the autoencoder.
        reads: the place that it reads.
        texts: token ids, context tokens included; the first `MEASURED_TOKENS` tokens are run.
        n_context: context tokens before each text.

    Returns:
        `loss` and `loss_added`, nats a token, and `tokens`, how many were predicted.
    """
    some, n = list[Sequence[int]](), 0
    for text in texts:
        if n >= MEASURED_TOKENS:
            break
        some.append(text[:MEASURED_TOKENS])
        n += len(some[-1])
    edited = [range(n_context, len(text)) for text in some]
    plain = torch.cat([torch.empty(0), *token_losses(model, some)])
    spliced = torch.cat([torch.empty(0), *token_losses(model, some, {reads: through(sae)}, edited)])
    if not len(plain):
        return {}
    return {"loss": float(plain.mean()), "loss_added": float((spliced - plain).mean()), "tokens": len(plain)}
