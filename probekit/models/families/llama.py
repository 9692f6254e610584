"""Llama, written by hand (Touvron et al. 2023; Grattafiori et al. 2024); its relatives Mistral, Qwen2, Qwen3 and Phi-3.

A decoder: token embedding, pre-norm blocks (RMSNorm) of causal attention with rotary positions and fewer key/value
heads than query heads, a gated MLP (SwiGLU), a final norm, and a head that may be tied to the token embedding. In
Mistral (Jiang et al. 2023) each token sees a sliding window only; Qwen2 (Yang et al. 2024) has biases on queries, keys
and values; Qwen3 (Yang et al. 2025) normalises queries and keys instead; Phi-3 (Abdin et al. 2024) may rotate a part of
each head only. Every point has its name in TransformerLens; its axes are given where it is made. Exact against
`transformers`; `llama_hf.py` translates its files.

Identities: resid_pre + attn_out = resid_mid, resid_mid + mlp_out = resid_post, resid_post.i = resid_pre.{i + 1}.

Axes: B batch, L query position, M key position, R position to read, D d_model, H heads, G key/value heads,
K d_head, F d_mlp, V vocab.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from einops import rearrange
from torch import Tensor, nn

from probekit.errors import DataError
from probekit.hooks import HookPoint
from probekit.models.base import LanguageModel, stopped
from probekit.models.cache import KeyValueCache, LayerCache
from probekit.models.config_checks import (
    check_choice,
    check_dimension,
    check_flag,
    check_id,
    check_ids,
    check_multiple,
    check_positive_number,
    hf_field,
)
from probekit.models.config_fields import later
from probekit.models.families import llama_hf
from probekit.models.family import Family, with_head_bias
from probekit.models.layers import (
    ACTIVATIONS,
    Embedding,
    Linear,
    Mask,
    RMSNorm,
    SwiGLU,
    at_read,
    attend,
    init_embedding,
    init_linear,
    linear,
    projected,
)
from probekit.models.positional import RopeScaling, Rotary, rotate_first
from probekit.models.windows import in_window

SIZES = ("d_model", "n_heads", "n_kv_heads", "d_head", "d_mlp", "n_layers", "n_ctx", "d_vocab")
_named = partial(hf_field, llama_hf.OURS)


@dataclass(frozen=True)
class LlamaConfig:
    """The sizes and options of a Llama or one of its relatives; the defaults are those of Llama 2 7B.

    Attributes:
        n_kv_heads: heads of keys and values; each serves n_heads / n_kv_heads heads of queries.
        rope_scaling: how rotations are stretched to a longer context; None for no stretching.
        out_bias: whether the attention's output projection has a bias.
        sliding_window: how many tokens a token sees, itself included; None for all before it.
        n_full_layers: how many of the first layers ignore the window.
        init_std: standard deviation of normal initial weights; None for the truncated normal of `layers.init_linear`.
        eos_token_id: an id, or several that each end a text.
        head_bias: whether the head has a bias (lm_head.bias), as in compiled models and files of some other programs.
        rotary_factor: how much of each head is rotated; the first coordinates are.
    """

    d_model: int = 4096
    n_heads: int = 32
    n_kv_heads: int = 32
    d_head: int = 128
    d_mlp: int = 11008
    n_layers: int = 32
    n_ctx: int = 4096
    d_vocab: int = 32000
    activation: str = "silu"
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None
    n_full_layers: int = 0
    tie_embeddings: bool = False
    init_std: float | None = None
    bos_token_id: int | None = 1
    eos_token_id: int | tuple[int, ...] | None = 2
    head_bias: bool = later(False)
    rotary_factor: float = later(1.0)
    model_type: str = "llama"

    def __post_init__(self):
        check_choice(self.model_type, llama_hf.CLASSES, "model_type")
        for field in SIZES:
            check_dimension(field, getattr(self, field), _named(field))
        check_multiple(self.n_heads, _named("n_heads"), self.n_kv_heads, _named("n_kv_heads"))
        if self.rotary_factor == 1 and self.d_head % 2:
            raise DataError(f"{_named('d_head')} must be even, as rotary positions rotate pairs; got {self.d_head}")
        check_positive_number(self.rotary_factor, "rotary_factor (partial_rotary_factor)")
        if self.rotary_factor > 1 or self.n_rotated % 2 or not self.n_rotated:
            raise DataError(
                f"rotary_factor (partial_rotary_factor) must give an even number of coordinates in 2..{self.d_head} to "
                f"rotate; {self.rotary_factor} gives {self.n_rotated}"
            )
        check_choice(self.activation, ACTIVATIONS, _named("activation"))
        check_positive_number(self.norm_eps, _named("norm_eps"))
        check_positive_number(self.rope_theta, "rope_theta")
        if self.init_std is not None:
            check_positive_number(self.init_std, _named("init_std"))
        for field in ("qkv_bias", "out_bias", "mlp_bias", "tie_embeddings", "head_bias"):
            check_flag(getattr(self, field), _named(field))
        if self.sliding_window is not None:
            check_dimension("n_ctx", self.sliding_window, "sliding_window")
        check_id(self.bos_token_id, "bos_token_id")
        check_ids(self.eos_token_id, "eos_token_id")

    @property
    def n_rotated(self) -> int:
        """How many coordinates of each head are rotated."""
        return int(self.d_head * self.rotary_factor)

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> "LlamaConfig":
        """The config in the fields of a Hugging Face `config.json`, from `transformers` 5 or earlier.

        `pretraining_tp` is ignored: it splits sums without changing their values.

        Raises:
            DataError: a size is missing or out of range, or a field requires arithmetic that is not implemented here;
                the message names the field.
        """
        return cls(**llama_hf.fields_from_hf(hf))

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model."""
        return llama_hf.fields_to_hf(self)


class Attention(nn.Module):
    """Causal grouped-query self-attention over rotated queries and keys (Ainslie et al. 2023; Su et al. 2021)."""

    def __init__(self, cfg: LlamaConfig):
        super().__init__()
        self.n_heads, self.d_head = cfg.n_heads, cfg.d_head
        self.q = Linear(cfg.d_model, cfg.n_heads * cfg.d_head, cfg.qkv_bias)
        self.k = Linear(cfg.d_model, cfg.n_kv_heads * cfg.d_head, cfg.qkv_bias)
        self.v = Linear(cfg.d_model, cfg.n_kv_heads * cfg.d_head, cfg.qkv_bias)
        self.out = Linear(cfg.n_heads * cfg.d_head, cfg.d_model, cfg.out_bias)
        self.hook_q = HookPoint("B L H K")
        self.hook_k = HookPoint("B L G K")
        self.hook_v = HookPoint("B L G K")
        self.hook_rot_q = HookPoint("B L H K")
        self.hook_rot_k = HookPoint("B L G K")
        self.hook_attn_scores = HookPoint("B H L M")
        self.hook_pattern = HookPoint("B H L M")
        self.hook_z = HookPoint("B L H K")
        self.hook_result = HookPoint("B L H D")

    def forward(
        self,
        x_BLD: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Mask,
        cache: LayerCache | None = None,
        read_BR: Tensor | None = None,
    ) -> Tensor:
        q_BLHK, k_BMGK, v_BMGK = self.heads(x_BLD, read_BR)
        cos, sin = rotation
        q_BLHK = self.hook_rot_q(rotate_first(q_BLHK, (at_read(cos, read_BR), at_read(sin, read_BR))))
        k_BMGK = self.hook_rot_k(rotate_first(k_BMGK, rotation))
        if cache is not None:
            k_BMGK, v_BMGK = cache.append(k_BMGK, v_BMGK)
        z_BLHK = self.hook_z(attend(q_BLHK, k_BMGK, v_BMGK, mask, self.hook_attn_scores, self.hook_pattern))
        return projected(z_BLHK, self.out, self.hook_result)

    def heads(self, x_BLD: Tensor, read_BR: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries at the positions to read, keys and values at all; before the rotation."""
        parts = self.q(at_read(x_BLD, read_BR)), self.k(x_BLD), self.v(x_BLD)
        q, k, v = (rearrange(part, "b l (h k) -> b l h k", k=self.d_head) for part in parts)
        return self.hook_q(q), self.hook_k(k), self.hook_v(v)


class NormedAttention(Attention):
    """Qwen3's: queries and keys are normalised in each head, then rotated."""

    def __init__(self, cfg: LlamaConfig):
        super().__init__(cfg)
        self.q_norm = RMSNorm(cfg.d_head, cfg.norm_eps, "B L H K")
        self.k_norm = RMSNorm(cfg.d_head, cfg.norm_eps, "B L G K")

    def heads(self, x_BLD: Tensor, read_BR: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        q_BLHK, k_BMGK, v_BMGK = super().heads(x_BLD, read_BR)
        return self.q_norm(q_BLHK), self.k_norm(k_BMGK), v_BMGK


class Block(nn.Module):
    """Pre-norm: x + attn(ln1(x)), then x + mlp(ln2(x))."""

    def __init__(self, cfg: LlamaConfig):
        super().__init__()
        self.hook_resid_pre = HookPoint("B L D")
        self.ln1 = RMSNorm(cfg.d_model, cfg.norm_eps)
        self.attn = (NormedAttention if cfg.model_type == "qwen3" else Attention)(cfg)
        self.hook_attn_out = HookPoint("B L D")
        self.hook_resid_mid = HookPoint("B L D")
        self.ln2 = RMSNorm(cfg.d_model, cfg.norm_eps)
        self.mlp = SwiGLU(cfg.d_model, cfg.d_mlp, cfg.mlp_bias, cfg.activation)
        self.hook_mlp_out = HookPoint("B L D")
        self.hook_resid_post = HookPoint("B L D")

    def forward(
        self,
        resid_BLD: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Mask,
        cache: LayerCache | None = None,
        read_BR: Tensor | None = None,
    ) -> Tensor:
        resid_pre = self.hook_resid_pre(resid_BLD)
        attn_out = self.hook_attn_out(self.attn(self.ln1(resid_pre), rotation, at_read(mask, read_BR), cache, read_BR))
        resid_mid = self.hook_resid_mid(at_read(resid_pre, read_BR) + attn_out)
        mlp_out = self.hook_mlp_out(self.mlp(self.ln2(resid_mid)))
        return self.hook_resid_post(resid_mid + mlp_out)


class Llama(LanguageModel):
    """The model; its weights are unset until `init_weights` or a checkpoint fills them."""

    def __init__(self, cfg: LlamaConfig):
        super().__init__()
        self.cfg = cfg
        self.embed = Embedding(cfg.d_vocab, cfg.d_model)
        self.rotary = Rotary(cfg.n_ctx, cfg.n_rotated, cfg.rope_theta, cfg.rope_scaling)
        self.hook_embed = HookPoint("B L D")
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.n_layers))
        self.ln_final = RMSNorm(cfg.d_model, cfg.norm_eps)
        self.unembed = None if cfg.tie_embeddings else Embedding(cfg.d_vocab, cfg.d_model)
        self.unembed_bias = nn.Parameter(torch.empty(cfg.d_vocab)) if cfg.head_bias else None

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
        windowed = in_window(mask, self.cfg.sliding_window, position_ids, cache)
        rotation = self.rotary(position_ids)
        start, resid_BLD = self.started(self.hook_embed(self.embed(tokens)))
        for i, block in enumerate(self.blocks[start:stop], start):
            seen = mask if self.window_of(i) is None else windowed
            resid_BLD = block(resid_BLD, rotation, seen, None if cache is None else cache[i], reads[i])
        if stop_at_layer is not None:
            return stopped(self.blocks, resid_BLD, stop)
        normalized_BLD = self.ln_final(resid_BLD)
        return self.head(normalized_BLD) if return_logits else normalized_BLD

    def window_of(self, layer: int) -> int | None:
        """`sliding_window` in the layers that have one."""
        return None if layer < self.cfg.n_full_layers else self.cfg.sliding_window

    def head(self, normalized_BLD: Tensor) -> Tensor:
        """Logits [B, L, V] of the final norm's output."""
        return linear(normalized_BLD, (self.unembed or self.embed).weight, self.unembed_bias)

    @torch.no_grad()
    def init_weights(self, seed: int = 0) -> Self:
        """Fill the weights as before training: normal of `init_std`, or else truncated normal.

        The papers do not publish their initialisation. With `init_std` it is that of `transformers`. Without it,
        matrices are filled by `layers.init_linear`, a tied embedding too, since it is also the head; an untied
        embedding by `layers.init_embedding`.
        """
        generator = torch.Generator().manual_seed(seed)
        for name, weight in self.named_parameters():
            if name.endswith("bias"):
                weight.zero_()
            elif weight.dim() == 1:
                weight.fill_(1)
            elif self.cfg.init_std is not None:
                weight.copy_(torch.randn(weight.shape, generator=generator) * self.cfg.init_std)
            elif name == "embed.weight" and not self.cfg.tie_embeddings:
                init_embedding(weight, generator)
            else:
                init_linear(weight, generator)
        return self


FAMILY = Family(
    model_types=tuple(llama_hf.CLASSES),
    config=LlamaConfig,
    model=Llama,
    shape=llama_hf.shape,
    hf_names=llama_hf.hf_names,
    hf_prefix=llama_hf.HF_PREFIX,
    hf_model=llama_hf.hf_model,
    hf_ties=llama_hf.hf_ties,
    hf_parts=with_head_bias,
    hf_buffers=llama_hf.HF_BUFFERS,
    loads="Llama, Mistral, Qwen2, Qwen3, Phi-3",
    refused="longrope above the original context; layers with a window before layers without",
    hub_examples=(
        "meta-llama/Llama-3.2-1B",
        "mistralai/Mistral-7B-v0.1",
        "Qwen/Qwen2.5-0.5B",
        "Qwen/Qwen3-0.6B",
        "microsoft/Phi-3-mini-4k-instruct",
    ),
)
