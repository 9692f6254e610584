"""What only the model can say of the texts that are shown: its logit lens, and its attention patterns.

Axes: N texts, L tokens of one text, P places, K tokens that are listed, H heads.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from probekit.causal.readouts import logit_lens
from probekit.errors import ProbekitError
from probekit.models.base import LanguageModel
from probekit.report.tokens.data import Attention, Lens, TokenScores

LENS_TOKENS = 2_000  # of the texts that get a logit lens: 3 tokens at 13 places are then 250 kB in the page
LISTED = 3
PATTERN_BYTES = 600_000  # of all patterns, a byte a weight; 12 x 12 heads of 40 tokens are 230 kB
MOST_PATTERNS = 8


def with_model_views(view: TokenScores, model: LanguageModel, token_ids: Sequence[Sequence[int]]) -> TokenScores:
    """The view with a logit lens and attention patterns of its first texts, where the model has them.

    Args:
        view: the view.
        model: that reads the texts.
        token_ids: of each text, context tokens included.
    """
    lens, attention = lens_of(model, token_ids), patterns_of(model, token_ids)
    said = [why for why in (lens, attention) if isinstance(why, str)]
    return replace(
        view,
        lens=lens if isinstance(lens, Lens) else None,
        attention=attention if isinstance(attention, Attention) else None,
        meta={**view.meta, "notes": [*view.meta["notes"], *said]},
    )


def lens_of(model: LanguageModel, token_ids: Sequence[Sequence[int]], most: int = LENS_TOKENS) -> Lens | str:
    """The logit lens of as many of the first texts as have `most` tokens in all; a sentence where there is none."""
    if not model.causal or hasattr(model, "decode"):
        return "No logit lens: the model does not predict the next token of these texts."
    found, total = [], 0
    try:
        for ids in token_ids:
            total += len(ids)
            if total > most and found:
                break
            found.append(logit_lens(model, [int(i) for i in ids], k=LISTED))
    except ProbekitError as error:
        return f"No logit lens: {error}."
    if not found:
        return "No logit lens: there are no texts."
    spelled = {i: text for one in found for i, text in one.spelled.items()}
    return Lens(
        texts=len(found),
        places=found[0].places,
        top=np.concatenate([one.top for one in found], axis=1),
        probability=np.concatenate([one.probability for one in found], axis=1),
        spelled=spelled,
    )


@torch.no_grad()
def patterns_of(model: LanguageModel, token_ids: Sequence[Sequence[int]], most: int = PATTERN_BYTES) -> Attention | str:
    """The attention patterns of the first texts that fit into `most` bytes; a sentence where there are none."""
    try:
        layers = model.layers_of("attn_pattern")
    except KeyError:
        layers = []
    if not layers or hasattr(model, "decode"):
        return "No attention patterns: this model does not give them."
    texts, patterns, size = [], [], 0
    for i, ids in enumerate(token_ids):
        n_bytes = len(layers) * model.cfg.n_heads * len(ids) ** 2
        if size + n_bytes > most or len(texts) == MOST_PATTERNS:
            continue
        tokens = torch.tensor([[int(t) for t in ids]], device=model.device)
        _, cache = model.run_with_cache(tokens, points="attn_pattern", return_logits=False)
        patterns.append(np.stack([cache["attn_pattern", layer][0].float().cpu().numpy() for layer in layers]))
        texts.append(i)
        size += n_bytes
    return Attention(layers, texts, patterns) if texts else "No attention patterns: the texts are too long."
