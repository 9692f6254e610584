"""GPT-NeoX, written by hand (Black et al. 2022, "GPT-NeoX-20B"), the architecture of Pythia (Biderman et al. 2023).

A decoder: token embedding, blocks of causal attention with rotary positions on the first coordinates of each head and
a two-layer MLP, a final norm, and a head that is rarely tied to the token embedding. In most models of this kind
attention and MLP are parallel: both read the block's input. Every point has its name in TransformerLens; its axes are
given where it is made. Exact against `transformers`; the translation of its files is at the end.

Identities:
    parallel    resid_pre + attn_out + mlp_out = resid_post; there is no resid_mid, and ln2 reads resid_pre as ln1 does
    sequential  resid_pre + attn_out = resid_mid; resid_mid + mlp_out = resid_post
    both        resid_post.i = resid_pre.{i+1}

Axes: B batch, L query position, M key position, R position to read, D d_model, H heads, K d_head, F d_mlp, V vocab.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from einops import rearrange
from torch import Tensor, nn

from probekit.errors import DataError
from probekit.hooks import HookPoint
from probekit.models.cache import LayerCache
from probekit.models.config_fields import (
    CAUSAL,
    check_fields,
    check_implemented,
    check_multiple,
    flag,
    one_of,
    read_fields,
    real,
    size,
    token_id,
    token_ids,
    written_fields,
)
from probekit.models.decoder import PRE_NORM, DecoderOnly
from probekit.models.family import Family, HfModel, HfPoint, HfTensor, decoder_twin, weight_points
from probekit.models.layers import (
    ACTIVATIONS,
    Embedding,
    FeedForward,
    LayerNorm,
    Linear,
    Mask,
    at_read,
    attend,
    projected,
)
from probekit.models.positional import RopeScaling, Rotary, rotate_first
from probekit.models.rope_fields import rope_from_hf, rope_to_hf
from probekit.models.shapes import ModelShape, decoder_shape, stack_shape
from probekit.points import PARALLEL


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

    d_model: int = size(768, hf="hidden_size")
    n_heads: int = size(12, hf="num_attention_heads")
    d_mlp: int = size(3072, hf="intermediate_size")
    n_layers: int = size(12, hf="num_hidden_layers")
    n_ctx: int = size(2048, hf="max_position_embeddings")
    d_vocab: int = size(50304, hf="vocab_size")
    activation: str = one_of("gelu", ACTIVATIONS, hf="hidden_act")
    ln_eps: float = real(1e-5, hf="layer_norm_eps")
    parallel_residual: bool = flag(True, hf="use_parallel_residual")
    rotary_pct: float = real(0.25, hf="rotary_pct")
    rope_theta: float = real(10000.0, hf="rotary_emb_base")
    rope_scaling: RopeScaling | None = None
    attention_bias: bool = flag(True, hf="attention_bias")
    tie_embeddings: bool = flag(False, hf="tie_word_embeddings")
    init_std: float = real(0.02, hf="initializer_range")
    bos_token_id: int | None = token_id(0, hf="bos_token_id")
    eos_token_id: int | tuple[int, ...] | None = token_ids(0, hf="eos_token_id")

    def __post_init__(self):
        check_fields(self)
        check_multiple(self, "d_model", "n_heads")
        if not 1 < self.n_rotated <= self.d_head or self.n_rotated % 2:
            raise DataError(
                f"rotary_pct {self.rotary_pct} of the {self.d_head} coordinates of a head rotates {self.n_rotated}; "
                f"correct it, as rotary positions take an even number from 2 to {self.d_head}"
            )

    @property
    def d_head(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.n_heads

    @property
    def n_rotated(self) -> int:
        """How many coordinates of each query and key are rotated."""
        return int(self.d_head * self.rotary_pct)

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> Self:
        """The config in the fields of a Hugging Face `config.json`, from `transformers` 5 or earlier."""
        check_implemented(hf, CAUSAL | {"sliding_window": None, "layer_types": None}, "gpt_neox")
        given = read_fields(cls, hf, ("d_model", "n_heads", "d_mlp", "n_layers", "n_ctx", "d_vocab"))
        if hf.get("head_dim") is not None:  # transformers would rotate so many coordinates, whatever a head's width
            check_implemented(hf, {"head_dim": given["d_model"] // given["n_heads"]}, "gpt_neox")
        rope = rope_from_hf(hf, theta=("rotary_emb_base", 10000.0), share=("rotary_pct", 0.25))
        given |= {"rotary_pct": rope.pop("partial_rotary_factor"), **rope}
        defaults: dict[str, Any] = {"eos_token_id": 2}
        return cls(**defaults | given)  # transformers' default; the released models all have 0

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model; rotations under both names."""
        rope = rope_to_hf(self.rope_theta, self.rope_scaling) | {"partial_rotary_factor": self.rotary_pct}
        classes = {"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"]}
        return classes | written_fields(self) | {"rope_parameters": rope}


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


class GPTNeoX(DecoderOnly):
    """The model; its weights are unset until `init_weights` or a checkpoint fills them.

    `init_weights` fills them as `transformers` does. The published models began smaller: normal of variance 2 / (5 D),
    and 2 / n_layers / sqrt(D) into the stream.
    """

    def __init__(self, cfg: GPTNeoXConfig):
        super().__init__(cfg)
        self.absent = {"resid_mid": PARALLEL} if cfg.parallel_residual else {}
        self.rotary = Rotary(cfg.n_ctx, cfg.n_rotated, cfg.rope_theta, cfg.rope_scaling)
        self.hook_embed = HookPoint("B L D")
        block = ParallelBlock if cfg.parallel_residual else SequentialBlock
        self.blocks = nn.ModuleList(block(cfg) for _ in range(cfg.n_layers))
        self.ln_final = LayerNorm(cfg.d_model, cfg.ln_eps)
        self.unembed = None if cfg.tie_embeddings else Embedding(cfg.d_vocab, cfg.d_model)


# Translation from and to Hugging Face.

_NAMES = {  # our module -> the file's
    "embed": "gpt_neox.embed_in",
    "blocks.{}.ln1": "gpt_neox.layers.{}.input_layernorm",
    "blocks.{}.attn.qkv": "gpt_neox.layers.{}.attention.query_key_value",
    "blocks.{}.attn.out": "gpt_neox.layers.{}.attention.dense",
    "blocks.{}.ln2": "gpt_neox.layers.{}.post_attention_layernorm",
    "blocks.{}.mlp.up": "gpt_neox.layers.{}.mlp.dense_h_to_4h",
    "blocks.{}.mlp.down": "gpt_neox.layers.{}.mlp.dense_4h_to_h",
    "ln_final": "gpt_neox.final_layer_norm",
    "unembed": "embed_out",
}


def hf_renamed(name: str) -> str:
    """The name in files: since 5.14 transformers calls the head lm_head, and writes embed_out all the same."""
    return "embed_out.weight" if name == "lm_head.weight" else name


def shape(cfg: GPTNeoXConfig) -> ModelShape:
    """The sizes of a `GPTNeoXConfig`'s model."""
    biases = {"qkv_bias": cfg.attention_bias, "out_bias": cfg.attention_bias}
    stack = stack_shape(cfg, rotary=True, parallel=cfg.parallel_residual, **biases)
    return decoder_shape("gpt_neox", stack, cfg.d_vocab, cfg.n_ctx, cfg.tie_embeddings)


def _qkv_part(i: int, n_heads: int) -> HfPoint:
    """Queries, keys or values: each head's three lie side by side."""

    def take(_: tuple, output: Tensor) -> Tensor:
        return output.unflatten(-1, (n_heads, 3, -1))[..., i, :]

    return HfPoint("gpt_neox.layers.{layer}.attention.query_key_value", take)


def twin(cfg: GPTNeoXConfig, names: Mapping[str, HfTensor]) -> HfModel:
    """The classes of transformers for this config, and where they compute our points."""
    points = weight_points(names, {} if cfg.parallel_residual else PRE_NORM)
    return decoder_twin("GPTNeoX", points | {point: _qkv_part(i, cfg.n_heads) for i, point in enumerate("qkv")})


FAMILY = Family(
    model_types=("gpt_neox",),
    config=GPTNeoXConfig,
    model=GPTNeoX,
    shape=shape,
    modules=lambda cfg: _NAMES,
    hf_prefix="gpt_neox.",
    twin=twin,
    # causal masks and frequencies, in old files
    hf_buffers=r"gpt_neox\.(layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)|rotary_emb\.inv_freq)",
    hf_renamed=hf_renamed,
    loads="Pythia, GPT-NeoX 20B, RedPajama-INCITE, Dolly 2, StableLM alpha",
    refused="dynamic and longrope rope scaling; quick GELU",
    hub_examples=("EleutherAI/pythia-70m", "EleutherAI/pythia-12b", "EleutherAI/gpt-neox-20b"),
)
