"""What only the model can say of the texts that are shown: its logit lens, and its attention patterns.

Axes: N texts, L tokens of one text, P places, K tokens that are listed, H heads.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from probekit.causal.readouts import spelled, top_of_layers
from probekit.errors import ProbekitError
from probekit.machine.progress import SILENT, Steps
from probekit.models.base import LanguageModel
from probekit.report.tokens.data import Attention, Lens, TokenScores

LENS_TOKENS = 2_000  # of the texts that get a logit lens: 3 tokens at 13 places are then 250 kB in the page
# Of the head for all of them: GPT-2's is 1 GFLOP a token for its 13 places, 150 to 350 GFLOP/s on a core, and 2,000
# tokens of it took most of the time of a report.
LENS_FLOPS = {"cpu": 5e11}
LENS_FLOPS_ELSEWHERE = 1e13
LISTED = 3
PATTERN_BYTES = 600_000  # of all patterns, a byte a weight; 12 x 12 heads of 40 tokens are 230 kB
MOST_PATTERNS = 8


def with_model_views(
    view: TokenScores, model: LanguageModel, token_ids: Sequence[Sequence[int]], parts: Steps = SILENT
) -> TokenScores:
    """The view with a logit lens and attention patterns of its first texts, where the model has them.

    Args:
        view: the view.
        model: that reads the texts.
        token_ids: of each text, context tokens included.
        parts: says what is being done.
    """
    parts.begin("logit lens")
    lens = lens_of(model, token_ids, progress=parts.advance)
    parts.begin("attention patterns")
    attention = patterns_of(model, token_ids)
    said = [why for why in (lens, attention) if isinstance(why, str)]
    return replace(
        view,
        lens=lens if isinstance(lens, Lens) else None,
        attention=attention if isinstance(attention, Attention) else None,
        meta={**view.meta, "notes": [*view.meta["notes"], *said]},
    )


def lens_of(
    model: LanguageModel,
    token_ids: Sequence[Sequence[int]],
    most: int = LENS_TOKENS,
    progress: Callable[[int, int], None] | None = None,
) -> Lens | str:
    """The logit lens of as many of the first texts as have `most` tokens in all; a sentence where there is none."""
    if not model.causal or hasattr(model, "decode"):
        return "No logit lens: the model does not predict the next token of these texts."
    if not token_ids:
        return "No logit lens: there are no texts."
    flops = LENS_FLOPS.get(model.device.type, LENS_FLOPS_ELSEWHERE)
    of_token = 2 * model.cfg.d_model * model.cfg.d_vocab * (model.n_layers + 1)
    lengths = np.cumsum([len(ids) for ids in token_ids])
    n = max(1, int((lengths <= min(most, flops / of_token)).sum()))
    try:
        places, top, probability = top_of_layers(model, token_ids[:n], LISTED, progress)
    except ProbekitError as error:
        return f"No logit lens: {error}."
    listed = np.unique(top).tolist()
    return Lens(
        texts=n,
        places=places,
        top=top,
        probability=probability,
        spelled=dict(zip(listed, spelled(model, listed), strict=True)),
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
