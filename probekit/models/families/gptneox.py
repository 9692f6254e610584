"""GPT-NeoX, written by hand (Black et al. 2022, "GPT-NeoX-20B"), the architecture of Pythia (Biderman et al. 2023).

A decoder: token embedding, blocks of causal attention with rotary positions on the first coordinates of each head and
a two-layer MLP, a final norm, and a head that is rarely tied to the token embedding. In most models of this kind
attention and MLP are parallel: both read the block's input. Every point has its name in TransformerLens; its axes are
given where it is made. Exact against `transformers`; `gptneox_hf.py` translates its files.

Identities:
    parallel    resid_pre + attn_out + mlp_out = resid_post; there is no resid_mid, and ln2 reads resid_pre as ln1 does
    sequential  resid_pre + attn_out = resid_mid; resid_mid + mlp_out = resid_post
    both        resid_post.i = resid_pre.{i+1}

Axes: B batch, L query position, M key position, R position to read, D d_model, H heads, K d_head, F d_mlp, V vocab.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from einops import rearrange
from torch import Tensor, nn

from probekit.errors import DataError
from probekit.hooks import HookPoint
from probekit.models.base import LanguageModel, fill_normal, stopped
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
from probekit.models.families import gptneox_hf
from probekit.models.family import Family
from probekit.models.layers import (
    ACTIVATIONS,
    Embedding,
    FeedForward,
    LayerNorm,
    Linear,
    Mask,
    at_read,
    attend,
    linear,
    projected,
)
from probekit.models.positional import RopeScaling, Rotary, rotate_first
from probekit.points import PARALLEL

SIZES = ("d_model", "n_heads", "d_mlp", "n_layers", "n_ctx", "d_vocab")
_named = partial(hf_field, gptneox_hf.OURS)


@dataclass(frozen=True)
class GPTNeoXConfig:
    """The sizes and options of a GPT-NeoX; the defaults are those of Pythia 160M.

    Attributes:
        parallel_residual: whether attention and MLP read the same stream, so that no block has a `resid_mid`.
        rotary_pct: the share of each head's coordinates that are rotated, the first ones.
        rope_scaling: how rotations are stretched to a longer context; None for no stretching.
        attention_bias: whether queries, keys, values and the attention's output projection have biases.
        eos_token_id: an id, or several that each end a text.
    """

    d_model: int = 768
    n_heads: int = 12
    d_mlp: int = 3072
    n_layers: int = 12
    n_ctx: int = 2048
    d_vocab: int = 50304
    activation: str = "gelu"
    ln_eps: float = 1e-5
    parallel_residual: bool = True
    rotary_pct: float = 0.25
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    attention_bias: bool = True
    tie_embeddings: bool = False
    init_std: float = 0.02
    bos_token_id: int | None = 0
    eos_token_id: int | tuple[int, ...] | None = 0

    def __post_init__(self):
        for field in SIZES:
            check_dimension(field, getattr(self, field), _named(field))
        check_multiple(self.d_model, _named("d_model"), self.n_heads, _named("n_heads"))
        check_choice(self.activation, ACTIVATIONS, _named("activation"))
        for field in ("ln_eps", "init_std", "rope_theta", "rotary_pct"):
            check_positive_number(getattr(self, field), _named(field))
        if not 1 < self.n_rotated <= self.d_head or self.n_rotated % 2:
            raise DataError(
                f"rotary_pct {self.rotary_pct} of the {self.d_head} coordinates of a head rotates {self.n_rotated}; "
                f"correct it, as rotary positions take an even number from 2 to {self.d_head}"
            )
        for field in ("parallel_residual", "attention_bias", "tie_embeddings"):
            check_flag(getattr(self, field), _named(field))
        check_id(self.bos_token_id, "bos_token_id")
        check_ids(self.eos_token_id, "eos_token_id")

    @property
    def d_head(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.n_heads

    @property
    def n_rotated(self) -> int:
        """How many coordinates of each query and key are rotated."""
        return int(self.d_head * self.rotary_pct)

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> "GPTNeoXConfig":
        """The config in the fields of a Hugging Face `config.json`, from `transformers` 5 or earlier.

        Raises:
            DataError: a size is missing or out of range, or a field requires arithmetic that is not implemented here;
                the message names the field.
        """
        return cls(**gptneox_hf.fields_from_hf(hf))

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model."""
        return gptneox_hf.fields_to_hf(self)


class Attention(nn.Module):
    """Causal multi-head self-attention; the first coordinates of queries and keys are rotated (Su et al. 2021)."""

    def __init__(self, cfg: GPTNeoXConfig):
        super().__init__()
        self.n_heads = cfg.n_heads
        self.qkv = Linear(cfg.d_model, 3 * cfg.d_model, cfg.attention_bias)  # each head's q, k, v side by side
        self.out = Linear(cfg.d_model, cfg.d_model, cfg.attention_bias)
        self.hook_q = HookPoint("B L H K")
        self.hook_k = HookPoint("B L H K")
        self.hook_v = HookPoint("B L H K")
        self.hook_rot_q = HookPoint("B L H K")
        self.hook_rot_k = HookPoint("B L H K")
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
        q, k, v = rearrange(self.qkv(x_BLD), "b l (h qkv k) -> qkv b l h k", qkv=3, h=self.n_heads)
        # queries that are not read cost D^2 of a block's 12 D^2; to leave them out would copy the weights each time
        q_BLHK, k_BMHK, v_BMHK = self.hook_q(at_read(q, read_BR)), self.hook_k(k), self.hook_v(v)
        cos, sin = rotation
        q_BLHK = self.hook_rot_q(rotate_first(q_BLHK, (at_read(cos, read_BR), at_read(sin, read_BR))))
        k_BMHK = self.hook_rot_k(rotate_first(k_BMHK, rotation))
        if cache is not None:
            k_BMHK, v_BMHK = cache.append(k_BMHK, v_BMHK)
        z_BLHK = self.hook_z(attend(q_BLHK, k_BMHK, v_BMHK, mask, self.hook_attn_scores, self.hook_pattern))
        return projected(z_BLHK, self.out, self.hook_result)


class ParallelBlock(nn.Module):
    """x + attn(ln1(x)) + mlp(ln2(x)) (Wang and Komatsuzaki 2021, GPT-J)."""

    def __init__(self, cfg: GPTNeoXConfig):
        super().__init__()
        self.hook_resid_pre = HookPoint("B L D")
        self.ln1 = LayerNorm(cfg.d_model, cfg.ln_eps)
        self.attn = Attention(cfg)
        self.hook_attn_out = HookPoint("B L D")
        self.ln2 = LayerNorm(cfg.d_model, cfg.ln_eps)
        self.mlp = FeedForward(cfg.d_model, cfg.d_mlp, cfg.activation)
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
        resid_pre = at_read(resid_pre, read_BR)
        mlp_out = self.hook_mlp_out(self.mlp(self.ln2(resid_pre)))
        return self.hook_resid_post(resid_pre + (attn_out + mlp_out))  # the order of transformers, bit for bit


class SequentialBlock(nn.Module):
    """x + attn(ln1(x)), then x + mlp(ln2(x))."""

    def __init__(self, cfg: GPTNeoXConfig):
        super().__init__()
        self.hook_resid_pre = HookPoint("B L D")
        self.ln1 = LayerNorm(cfg.d_model, cfg.ln_eps)
        self.attn = Attention(cfg)
        self.hook_attn_out = HookPoint("B L D")
        self.hook_resid_mid = HookPoint("B L D")
        self.ln2 = LayerNorm(cfg.d_model, cfg.ln_eps)
        self.mlp = FeedForward(cfg.d_model, cfg.d_mlp, cfg.activation)
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


class GPTNeoX(LanguageModel):
    """The model; its weights are unset until `init_weights` or a checkpoint fills them."""

    def __init__(self, cfg: GPTNeoXConfig):
        super().__init__()
        self.cfg = cfg
        self.absent = {"resid_mid": PARALLEL} if cfg.parallel_residual else {}
        self.embed = Embedding(cfg.d_vocab, cfg.d_model)
        self.rotary = Rotary(cfg.n_ctx, cfg.n_rotated, cfg.rope_theta, cfg.rope_scaling)
        self.hook_embed = HookPoint("B L D")
        block = ParallelBlock if cfg.parallel_residual else SequentialBlock
        self.blocks = nn.ModuleList(block(cfg) for _ in range(cfg.n_layers))
        self.ln_final = LayerNorm(cfg.d_model, cfg.ln_eps)
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
        """Logits [B, L, V] of tokens [B, L].

        Args:
            tokens: int ids [B, L].
            position_ids: [B, L]; by default counted from the mask, so padding on either side changes nothing.
            attention_mask: [B, L], true at real tokens; or [B, L, M], true where L may attend to M (used unchanged).
                None: no padding, or right padding whose outputs are ignored. With position_ids and a mask [B, L, M],
                L may exceed the context: several texts in one row.
            stop_at_layer: run the blocks before this one and return its input, `resid_pre`, [B, L, D]; n_layers gives
                the last block's output, before the final norm.
            return_logits: False skips the head and returns the final norm's output, [B, L, D].
            cache: keys and values of earlier tokens; those of `tokens` are added. Requires position_ids and a mask
                [B, L, M] over all M tokens so far.

        Raises:
            UsageError: an invalid shape, id, length or layer.
        """
        tokens = self.check_tokens(tokens, position_ids, attention_mask)
        stop = self.check_stop(stop_at_layer, self.cfg.n_layers)
        mask, position_ids = self.mask_and_positions(tokens, attention_mask, position_ids, cache)
        reads = self.reads(tokens, position_ids, mask, stop)
        rotation = self.rotary(position_ids)
        start, resid_BLD = self.started(self.hook_embed(self.embed(tokens)))
        for i, block in enumerate(self.blocks[start:stop], start):
            resid_BLD = block(resid_BLD, rotation, mask, None if cache is None else cache[i], reads[i])
        if stop_at_layer is not None:
            return stopped(self.blocks, resid_BLD, stop)
        normalized_BLD = self.ln_final(resid_BLD)
        return self.head(normalized_BLD) if return_logits else normalized_BLD

    def head(self, normalized_BLD: Tensor) -> Tensor:
        """Logits [B, L, V] of the final norm's output."""
        return linear(normalized_BLD, (self.unembed or self.embed).weight, None)

    def init_weights(self, seed: int = 0) -> Self:
        """Fill the weights as `transformers` does: normal of `init_std`, biases 0, gains 1.

        The published models began smaller: normal of variance 2 / (5 D), and 2 / n_layers / sqrt(D) into the stream.
        """
        fill_normal(self, self.cfg.init_std, seed)
        return self


FAMILY = Family(
    model_types=("gpt_neox",),
    config=GPTNeoXConfig,
    model=GPTNeoX,
    shape=gptneox_hf.shape,
    hf_names=gptneox_hf.hf_names,
    hf_prefix=gptneox_hf.HF_PREFIX,
    hf_model=gptneox_hf.hf_model,
    hf_ties=gptneox_hf.hf_ties,
    hf_buffers=gptneox_hf.HF_BUFFERS,
    hf_renamed=gptneox_hf.hf_renamed,
    loads="Pythia, GPT-NeoX 20B, RedPajama-INCITE, Dolly 2, StableLM alpha",
    refused="dynamic and longrope rope scaling; quick GELU",
    hub_examples=("EleutherAI/pythia-70m", "EleutherAI/pythia-12b", "EleutherAI/gpt-neox-20b"),
)
