"""What the decoders of one stack share: the loop over their blocks, the head, and Llama's names.

Axes: B batch, L query position, M key position, R position to read, D d_model, V vocab.
"""

from typing import Any

import torch
from torch import Tensor, nn

from probekit.hooks import HookPoint
from probekit.models.base import LanguageModel, stopped
from probekit.models.cache import KeyValueCache
from probekit.models.layers import Embedding, Mask, causal_mask, in_window, linear
from probekit.models.positional import Rotary

LLAMA_NAMES = {  # our module -> its name in files that are laid out like Llama's
    "embed": "model.embed_tokens",
    "blocks.{}.attn.q": "model.layers.{}.self_attn.q_proj",
    "blocks.{}.attn.k": "model.layers.{}.self_attn.k_proj",
    "blocks.{}.attn.v": "model.layers.{}.self_attn.v_proj",
    "blocks.{}.attn.q_norm": "model.layers.{}.self_attn.q_norm",
    "blocks.{}.attn.k_norm": "model.layers.{}.self_attn.k_norm",
    "blocks.{}.attn.out": "model.layers.{}.self_attn.o_proj",
    "blocks.{}.mlp.gate": "model.layers.{}.mlp.gate_proj",
    "blocks.{}.mlp.up": "model.layers.{}.mlp.up_proj",
    "blocks.{}.mlp.down": "model.layers.{}.mlp.down_proj",
    "blocks.{}.ln1": "model.layers.{}.input_layernorm",
    "blocks.{}.ln2": "model.layers.{}.post_attention_layernorm",
    "ln_final": "model.norm",
    "unembed": "lm_head",
    "unembed_bias": "lm_head.bias",
}
LLAMA_BUFFERS = r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"  # frequencies, in old files
PRE_NORM = {"resid_mid": "ln2"}  # point of a pre-norm block -> our module whose input it is


class DecoderOnly(LanguageModel):
    """A token embedding, blocks of causal attention, a final norm, and a head that may be tied to the embedding.

    A family's `__init__` makes the rest: `hook_embed`, `blocks`, `ln_final`, `unembed` (None where it is tied), and
    `rotary` or what it has instead. Its weights are unset until `init_weights` or a checkpoint fills them.

    Attributes:
        local_rotary: rotations of layers with a window, where they are others than `rotary`.
    """

    hook_embed: HookPoint
    blocks: nn.ModuleList
    ln_final: nn.Module
    unembed: Embedding | None
    rotary: Rotary
    local_rotary: Rotary | None

    def __init__(self, cfg: Any):
        super().__init__()
        self.cfg = cfg
        self.embed = Embedding(cfg.d_vocab, cfg.d_model)
        has_bias = getattr(cfg, "head_bias", False)
        self.local_rotary = None
        self.unembed_bias = nn.Parameter(torch.empty(cfg.d_vocab)) if has_bias else None

    def forward(
        self,
        tokens: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        stop_at_layer: int | None = None,
        return_logits: bool = True,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Logits [B, L, V] of tokens [B, L].

        Args:
            tokens: int ids [B, L].
            position_ids: [B, L]; by default counted from the mask, so padding on either side changes nothing.
            attention_mask: [B, L], true at real tokens; or [B, L, M], true where L may attend to M (used unchanged,
                except for a sliding window). None: no padding, or right padding whose outputs are ignored. With
                position_ids and a mask [B, L, M], L may exceed the context: several texts in one row.
            stop_at_layer: run the blocks before this one and return its input, `resid_pre`, [B, L, D]; n_layers gives
                the last block's output, before the final norm.
            return_logits: False skips the head and returns the final norm's output, [B, L, D].
            cache: keys and values of earlier tokens; those of `tokens` are added. Requires position_ids and a mask
                [B, L, M] over all M tokens so far, in which each text's tokens are adjacent.

        Raises:
            UsageError: an invalid shape, id, length or layer.
        """
        tokens = self.check_tokens(tokens, position_ids, attention_mask)
        stop = self.check_stop(stop_at_layer, self.cfg.n_layers)
        mask, position_ids = self.mask_and_positions(tokens, attention_mask, position_ids, cache)
        reads = self.reads(tokens, position_ids, mask, stop)
        seen = self.seen_by_layer(mask, position_ids, cache)
        embedded_BLD = self.entered(tokens, position_ids)
        told = self.told_by_layer(tokens, embedded_BLD)
        if stop and reads[-1] is not None and isinstance(mask, str):  # the last block's queries are not its keys
            seen[stop - 1] = self.seen_by_layer(causal_mask(torch.ones_like(tokens)), position_ids, cache)[stop - 1]
        start, resid_BLD = self.started(embedded_BLD)
        for i, block in enumerate(self.blocks[start:stop], start):
            resid_BLD = block(resid_BLD, *seen[i], *told[i], None if cache is None else cache[i], reads[i])
        if stop_at_layer is not None:
            return stopped(self.blocks, resid_BLD, stop)
        normalized_BLD = self.ln_final(resid_BLD)
        return self.head(normalized_BLD) if return_logits else normalized_BLD

    def entered(self, tokens: Tensor, position_ids: Tensor) -> Tensor:
        """The input of the first block, [B, L, D]."""
        return self.hook_embed(self.embed(tokens))

    def seen_by_layer(self, mask: Mask, position_ids: Tensor, cache: KeyValueCache | None) -> list[tuple]:
        """What each block takes besides the stream: the rotations, and the mask narrowed to its window."""
        rotation = self.rotary(position_ids)
        local = rotation if self.local_rotary is None else self.local_rotary(position_ids)
        windowed = in_window(mask, getattr(self.cfg, "sliding_window", None), position_ids, cache)
        layers = range(self.cfg.n_layers)
        return [(rotation, mask) if self.window_of(i) is None else (local, windowed) for i in layers]

    def told_by_layer(self, tokens: Tensor, embedded_BLD: Tensor) -> list[tuple]:
        """What each block takes besides these; nothing."""
        return [()] * self.cfg.n_layers

    def head(self, normalized_BLD: Tensor) -> Tensor:
        """Logits [B, L, V] of the final norm's output."""
        return linear(normalized_BLD, (self.unembed or self.embed).weight, self.unembed_bias)
