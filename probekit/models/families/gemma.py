"""Gemma 1, 2 and 3, written by hand (Gemma Team 2024a, 2024b, 2025): the text model, without the vision tower.

A decoder: token embedding times sqrt(D), pre-norm blocks of causal attention with rotary positions and fewer key/value
heads than query heads, a gated MLP (GeGLU), a final norm, and a head tied to the token embedding. Norms multiply with
1 + w. Gemma 2 adds norms after either sublayer, a window in every other layer, and soft caps of scores and logits.
Gemma 3 has norms of queries and keys in place of the caps, and another base of rotations in the layers with a window.

`embed` is the embedding after its factor, so it equals `resid_pre.0`. `attn_out` and `mlp_out` are after the
sublayer's norm, so `resid_pre + attn_out = resid_mid`, `resid_mid + mlp_out = resid_post` and
`resid_post.i = resid_pre.{i+1}` hold; the heads' `result`s sum to the input of that norm. `q` and `k` are before their
norms. `attn_scores` are after the soft cap: their softmax is `attn_pattern`. Every point has its name in
TransformerLens; its axes are given where it is made. Exact against `transformers`; `gemma_hf.py` translates its files.

Axes: B batch, L query position, M key position, R position to read, D d_model, H heads, G key/value heads,
K d_head, F d_mlp, V vocab.
"""

import math
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
from probekit.models.config_fields import FULL, SLIDING
from probekit.models.families import gemma_hf
from probekit.models.family import Family
from probekit.models.layers import (
    ACTIVATIONS,
    Embedding,
    Linear,
    Mask,
    SwiGLU,
    at_read,
    attend,
    causal_mask,
    linear,
    projected,
    softmax,
)
from probekit.models.positional import RopeScaling, Rotary, rotate_half
from probekit.models.windows import in_window

SIZES = ("d_model", "n_heads", "n_kv_heads", "d_head", "d_mlp", "n_layers", "n_ctx", "d_vocab")
# How many scores capped attention holds at once (16 MB) where no hook reads them. With 2,048 tokens and 8 heads of 256:
# 0.53 of the time of transformers' eager attention; 0.64 without a limit, 1.24 with a limit of 100,000.
SCORES = 4_000_000
_named = partial(hf_field, gemma_hf.OURS)


@dataclass(frozen=True)
class GemmaConfig:
    """The sizes and options of a Gemma; the defaults are those of Gemma 2 2B.

    Attributes:
        n_kv_heads: heads of keys and values; each serves n_heads / n_kv_heads heads of queries.
        rope_theta: base of the rotations, in layers without a window alone if there is a `local_rope_theta`.
        rope_scaling: how rotations are stretched to a longer context, in the same layers; None for no stretching.
        local_rope_theta: base of the rotations in layers with a window; None for that of the others.
        query_pre_attn_scalar: scores are divided by its root, whatever the width of a head.
        attn_scores_soft_cap: scores approach plus and minus this number; None for no cap.
        output_logits_soft_cap: logits do; None for no cap.
        sliding_window: how many tokens a token sees, itself included, in layers with a window.
        layer_types: "sliding_attention" (with a window) or "full_attention" for each layer.
        init_std: standard deviation of normal initial weights.
        eos_token_id: an id, or several that each end a text.
    """

    d_model: int = 2304
    n_heads: int = 8
    n_kv_heads: int = 4
    d_head: int = 256
    d_mlp: int = 9216
    n_layers: int = 26
    n_ctx: int = 8192
    d_vocab: int = 256000
    activation: str = "gelu_pytorch_tanh"
    norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    local_rope_theta: float | None = None
    query_pre_attn_scalar: float = 256
    attn_scores_soft_cap: float | None = 50.0
    output_logits_soft_cap: float | None = 30.0
    sliding_window: int | None = 4096
    layer_types: tuple[str, ...] = 13 * (SLIDING, FULL)
    tie_embeddings: bool = True
    init_std: float = 0.02
    bos_token_id: int | None = 2
    eos_token_id: int | tuple[int, ...] | None = 1
    model_type: str = "gemma2"

    def __post_init__(self):
        check_choice(self.model_type, gemma_hf.VARIANTS, "model_type")
        for field in SIZES:
            check_dimension(field, getattr(self, field), _named(field))
        check_multiple(self.n_heads, _named("n_heads"), self.n_kv_heads, _named("n_kv_heads"))
        if self.d_head % 2:
            raise DataError(f"{_named('d_head')} must be even, as rotary positions rotate pairs; got {self.d_head}")
        check_choice(self.activation, ACTIVATIONS, _named("activation"))
        for field in ("norm_eps", "init_std", "rope_theta", "query_pre_attn_scalar"):
            check_positive_number(getattr(self, field), _named(field))
        for field in ("local_rope_theta", "attn_scores_soft_cap", "output_logits_soft_cap"):
            if getattr(self, field) is not None:
                check_positive_number(getattr(self, field), _named(field))
        check_flag(self.tie_embeddings, _named("tie_embeddings"))
        self._check_layers()
        check_id(self.bos_token_id, "bos_token_id")
        check_ids(self.eos_token_id, "eos_token_id")
        self._check_generation()

    def _check_layers(self) -> None:
        types = self.layer_types
        if not isinstance(types, tuple) or len(types) != self.n_layers or not {*map(str, types)} <= {FULL, SLIDING}:
            raise DataError(
                f"layer_types must be {FULL} or {SLIDING} for each of the {self.n_layers} layers; got {types!a:.200}"
            )
        if self.sliding_window is not None or SLIDING in types:
            check_dimension("n_ctx", self.sliding_window, "sliding_window")

    def _check_generation(self) -> None:
        """Refuse what a generation has not, such as soft caps of scores in Gemma 3: its config.json cannot say it."""
        said = gemma_hf.fields_from_hf(self.to_hf())
        if wrong := [name for name, value in vars(self).items() if said[name] != value]:
            got = f"{getattr(self, wrong[0])!a:.60}"
            raise DataError(f"{_named(wrong[0])} of {self.model_type} can only be {said[wrong[0]]!a:.60}; got {got}")

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> "GemmaConfig":
        """The config in the fields of a Hugging Face `config.json`, from `transformers` 5 or earlier.

        Of a model with a vision tower (gemma3) it is that of the text model, gemma3_text.

        Raises:
            DataError: a size is missing or out of range, or a field requires arithmetic that is not implemented here;
                the message names the field.
        """
        return cls(**gemma_hf.fields_from_hf(hf))

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model."""
        return gemma_hf.fields_to_hf(self)


class OnePlusRMSNorm(nn.Module):
    """Divide by the root of (mean square + eps), then multiply with 1 + w; in float32 inside.

    `hook_scale` is that root; `hook_normalized` is the output, gain included.
    """

    def __init__(self, width: int, eps: float, axes: str = "B L D"):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))
        self.hook_scale = HookPoint(f"{axes[:-1]}1")
        self.hook_normalized = HookPoint(axes)

    def forward(self, x: Tensor) -> Tensor:
        x32 = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = self.hook_scale((x32.square().mean(-1, keepdim=True) + self.eps).sqrt())
        return self.hook_normalized((x32 / scale * (1 + self.weight.to(x32.dtype))).to(x.dtype))


def soft_cap(x: Tensor, cap: float | None) -> Tensor:
    """The soft cap, cap tanh(x / cap), which overwrites x where no gradient needs it; x itself without a cap."""
    if cap is None:
        return x
    return cap * torch.tanh(x / cap) if torch.is_grad_enabled() else x.div_(cap).tanh_().mul_(cap)


def capped_attend(
    q_BLHK: Tensor,
    k_BMGK: Tensor,
    v_BMGK: Tensor,
    mask: Mask,
    hook_scores: HookPoint,
    hook_pattern: HookPoint,
    cap: float,
) -> Tensor:
    """`layers.attend` with a soft cap of the scores before the mask, [B, L, H, K]: no fused kernel has one.

    Heads of queries that share keys are one product, so keys and values are not repeated. Without hooks on scores and
    pattern, only those of some queries are in memory at once.
    """
    assert mask is not None, "every model with a cap is causal"
    batch, length, n_heads, d_head = q_BLHK.shape
    k_BGKM, v_BGMK = k_BMGK.permute(0, 2, 3, 1), v_BMGK.transpose(1, 2)
    unseen_BLM = ~(mask if isinstance(mask, Tensor) else causal_mask(q_BLHK.new_ones(1, length)))
    hooked = hook_scores.hooked or hook_pattern.hooked
    rows = length if hooked else max(1, SCORES // (batch * n_heads * k_BMGK.shape[1]))
    parts = []
    for q_BNHK, unseen_BNM in zip(q_BLHK.split(rows, 1), unseen_BLM.split(rows, 1), strict=True):
        q = rearrange(q_BNHK / math.sqrt(d_head), "b n (g r) k -> b g (r n) k", g=k_BMGK.shape[2])
        scores = rearrange(q @ k_BGKM, "b g (r n) m -> b (g r) n m", n=q_BNHK.shape[1])
        scores_BHNM = hook_scores(soft_cap(scores, cap).masked_fill_(unseen_BNM[:, None], -math.inf))
        pattern_BHNM = hook_pattern(softmax(scores_BHNM).to(v_BMGK.dtype))
        z = rearrange(pattern_BHNM, "b (g r) n m -> b g (r n) m", g=k_BMGK.shape[2]) @ v_BGMK
        parts.append(rearrange(z, "b g (r n) k -> b n (g r) k", n=q_BNHK.shape[1]))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


class Attention(nn.Module):
    """Causal grouped-query self-attention over rotated queries and keys, normalised before in Gemma 3."""

    def __init__(self, cfg: GemmaConfig):
        super().__init__()
        self.d_head = cfg.d_head
        self.q = Linear(cfg.d_model, cfg.n_heads * cfg.d_head, bias=False)
        self.k = Linear(cfg.d_model, cfg.n_kv_heads * cfg.d_head, bias=False)
        self.v = Linear(cfg.d_model, cfg.n_kv_heads * cfg.d_head, bias=False)
        self.out = Linear(cfg.n_heads * cfg.d_head, cfg.d_model, bias=False)
        normed = gemma_hf.VARIANTS[cfg.model_type].qk_norm
        self.q_norm = OnePlusRMSNorm(cfg.d_head, cfg.norm_eps, "B L H K") if normed else nn.Identity()
        self.k_norm = OnePlusRMSNorm(cfg.d_head, cfg.norm_eps, "B L G K") if normed else nn.Identity()
        self.factor = math.sqrt(cfg.d_head / cfg.query_pre_attn_scalar)  # of queries: attention divides them by sqrt(K)
        cap = cfg.attn_scores_soft_cap
        self.attend = attend if cap is None else partial(capped_attend, cap=cap)
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
        parts = self.q(at_read(x_BLD, read_BR)), self.k(x_BLD), self.v(x_BLD)
        q, k, v = (rearrange(part, "b l (h k) -> b l h k", k=self.d_head) for part in parts)
        q_BLHK, k_BMGK, v_BMGK = self.q_norm(self.hook_q(q)), self.k_norm(self.hook_k(k)), self.hook_v(v)
        cos, sin = rotation
        q_BLHK = self.hook_rot_q(rotate_half(q_BLHK, (at_read(cos, read_BR), at_read(sin, read_BR))))
        k_BMGK = self.hook_rot_k(rotate_half(k_BMGK, rotation))
        if cache is not None:
            k_BMGK, v_BMGK = cache.append(k_BMGK, v_BMGK)
        q_BLHK = q_BLHK * self.factor
        z_BLHK = self.hook_z(self.attend(q_BLHK, k_BMGK, v_BMGK, mask, self.hook_attn_scores, self.hook_pattern))
        return projected(z_BLHK, self.out, self.hook_result)


class Block(nn.Module):
    """x + ln1_post(attn(ln1(x))), then x + ln2_post(mlp(ln2(x))); Gemma 1 has no norms after the sublayers."""

    def __init__(self, cfg: GemmaConfig):
        super().__init__()
        norms = gemma_hf.VARIANTS[cfg.model_type].norms

        def norm(name: str) -> nn.Module:
            return OnePlusRMSNorm(cfg.d_model, cfg.norm_eps) if name in norms else nn.Identity()

        self.hook_resid_pre = HookPoint("B L D")
        self.ln1 = norm("ln1")
        self.attn = Attention(cfg)
        self.ln1_post = norm("ln1_post")
        self.hook_attn_out = HookPoint("B L D")
        self.hook_resid_mid = HookPoint("B L D")
        self.ln2 = norm("ln2")
        self.mlp = SwiGLU(cfg.d_model, cfg.d_mlp, activation=cfg.activation)
        self.ln2_post = norm("ln2_post")
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
        attn = self.attn(self.ln1(resid_pre), rotation, at_read(mask, read_BR), cache, read_BR)
        attn_out = self.hook_attn_out(self.ln1_post(attn))
        resid_mid = self.hook_resid_mid(at_read(resid_pre, read_BR) + attn_out)
        mlp_out = self.hook_mlp_out(self.ln2_post(self.mlp(self.ln2(resid_mid))))
        return self.hook_resid_post(resid_mid + mlp_out)


class Gemma(LanguageModel):
    """The model; its weights are unset until `init_weights` or a checkpoint fills them."""

    def __init__(self, cfg: GemmaConfig):
        super().__init__()
        self.cfg = cfg
        self.embed = Embedding(cfg.d_vocab, cfg.d_model)
        self.rotary = Rotary(cfg.n_ctx, cfg.d_head, cfg.rope_theta, cfg.rope_scaling)
        local = cfg.local_rope_theta
        self.local_rotary = self.rotary if local is None else Rotary(cfg.n_ctx, cfg.d_head, local)
        self.hook_embed = HookPoint("B L D")
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.n_layers))
        self.ln_final = OnePlusRMSNorm(cfg.d_model, cfg.norm_eps)
        self.unembed = None if cfg.tie_embeddings else Embedding(cfg.d_vocab, cfg.d_model)

    def forward(
        self,
        tokens: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        stop_at_layer: int | None = None,
        return_logits: bool = True,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Logits [B, L, V] of tokens [B, L], soft-capped where the config says so.

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
        seen = {FULL: (self.rotary(position_ids), mask), SLIDING: (self.local_rotary(position_ids), windowed)}
        start, resid_BLD = self.started(self.hook_embed(self.embedded(tokens)))
        for i, block in enumerate(self.blocks[start:stop], start):
            rotation_and_mask = seen[self.cfg.layer_types[i]]
            resid_BLD = block(resid_BLD, *rotation_and_mask, None if cache is None else cache[i], reads[i])
        if stop_at_layer is not None:
            return stopped(self.blocks, resid_BLD, stop)
        normalized_BLD = self.ln_final(resid_BLD)
        return self.head(normalized_BLD) if return_logits else normalized_BLD

    def embedded(self, tokens: Tensor) -> Tensor:
        """The tokens' rows of the table times sqrt(D), a factor first rounded to the weights' type, [B, L, D]."""
        factor = torch.tensor(self.cfg.d_model**0.5, dtype=torch.float32)  # in bfloat16 sqrt(3072) becomes 55.5
        return self.embed(tokens) * factor.to(self.embed.weight.dtype)

    def window_of(self, layer: int) -> int | None:
        """`sliding_window` in the layers that have one."""
        return self.cfg.sliding_window if self.cfg.layer_types[layer] == SLIDING else None

    def head(self, normalized_BLD: Tensor) -> Tensor:
        """Logits [B, L, V] of the final norm's output."""
        logits_BLV = linear(normalized_BLD, (self.unembed or self.embed).weight, None)
        return soft_cap(logits_BLV, self.cfg.output_logits_soft_cap)

    @torch.no_grad()
    def init_weights(self, seed: int = 0) -> Self:
        """Fill the weights as `transformers` does before training: normal of `init_std`; norms are gains of 1."""
        generator = torch.Generator().manual_seed(seed)
        for weight in self.parameters():
            if weight.dim() == 1:
                weight.zero_()  # the gain is 1 + w
            else:
                weight.copy_(torch.randn(weight.shape, generator=generator) * self.cfg.init_std)
        return self


FAMILY = Family(
    model_types=(*gemma_hf.VARIANTS, gemma_hf.WITH_VISION),
    config=GemmaConfig,
    model=Gemma,
    shape=gemma_hf.shape,
    hf_names=gemma_hf.hf_names,
    hf_prefix=gemma_hf.HF_PREFIX,
    hf_model=gemma_hf.hf_model,
    hf_ties=gemma_hf.hf_ties,
    hf_buffers=gemma_hf.HF_BUFFERS,
    hf_renamed=gemma_hf.hf_renamed,
    loads="Gemma, Gemma 2, Gemma 3 (text)",
    refused="bidirectional attention (EmbeddingGemma); the vision tower is ignored",
    hub_examples=("google/gemma-2-2b", "google/gemma-2-9b", "google/gemma-3-1b-pt", "google/gemma-3-4b-it"),
)
