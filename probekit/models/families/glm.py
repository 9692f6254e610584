"""GLM-4.5, written by hand (GLM-4.5 Team 2025), and its relatives of the same `model_type`.

A decoder like Llama, which rotates a part of each head, and may normalise queries and keys head by head. Its first
layers are dense; the others have experts, of which sigmoids and a correction choose a few for each token
(`experts.SigmoidSparse`), and a shared expert, which computes every token. The shared one has no points, and
`expert_weights` are of the routed ones: scores divided by their sum, times a factor. `router_logits` are before
sigmoid and correction. What else differs in layers with experts is in `moe.py`. Every point has its name in
TransformerLens; its axes are given where it is made. Exact against `transformers`; the translation of its files is at
the end. The layer after the last, which files hold to predict one more token, is not read.

In every layer resid_pre + attn_out = resid_mid, resid_mid + mlp_out = resid_post, and resid_post is the next resid_pre.

Axes: B batch, L position, D d_model, H heads, G key/value heads, K d_head, F width of a dense layer's MLP, E experts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

from torch import nn

from probekit.errors import DataError
from probekit.hooks import HookPoint
from probekit.models.config_fields import (
    CAUSAL,
    check_count,
    check_fields,
    check_implemented,
    check_multiple,
    flag,
    grouped_heads,
    named,
    one_of,
    read_fields,
    real,
    size,
    token_id,
    token_ids,
    unchecked,
    written_fields,
)
from probekit.models.decoder import LLAMA_BUFFERS, LLAMA_NAMES, DecoderOnly
from probekit.models.experts import SigmoidSparse
from probekit.models.families.deepseek import SPARSE_NAMES, check_groups, sparse_twin
from probekit.models.families.llama import Attention, NormedAttention
from probekit.models.families.moe import ABSENT, FUSED, Block, check_experts
from probekit.models.family import Family, HfModel, HfTensor
from probekit.models.layers import ACTIVATIONS, Embedding, RMSNorm, SwiGLU
from probekit.models.positional import RopeScaling, Rotary
from probekit.models.rope_fields import rope_from_hf, rope_to_hf
from probekit.models.shapes import ModelShape, decoder_shape, stack_shape


@dataclass(frozen=True)
class GlmConfig:
    """The sizes and options of a GLM-4.5; the defaults are those of GLM-4.5-Air.

    Attributes:
        n_kv_heads: heads of keys and values; each serves n_heads / n_kv_heads heads of queries.
        d_mlp: width of one expert.
        d_dense_mlp: width of the MLP of dense layers.
        n_dense_layers: how many of the first layers are dense.
        n_experts: experts in each of the others.
        n_active_experts: how many of them compute a token.
        n_shared_experts: how many times as wide as one of them the expert is that computes every token.
        n_groups: groups of experts.
        n_active_groups: how many of them a token's experts are in.
        routed_factor: what the weights of a token's experts are multiplied with.
        norm_top_k: whether they are divided by their sum before.
        rope_scaling: how rotations are stretched to a longer context; None for no stretching.
        rotary_factor: how much of each head is rotated; the first coordinates are.
        qkv_bias: whether queries, keys and values have biases.
        qk_norm: whether queries and keys are normalised.
        init_std: standard deviation of normal initial weights.
        eos_token_id: an id, or several that each end a text.
    """

    d_model: int = size(4096, hf="hidden_size")
    n_heads: int = size(96, hf="num_attention_heads")
    n_kv_heads: int = size(8, hf="num_key_value_heads")
    d_head: int = size(128, hf="head_dim")
    d_mlp: int = size(1408, hf="moe_intermediate_size")
    d_dense_mlp: int = size(10944, hf="intermediate_size")
    n_layers: int = size(46, hf="num_hidden_layers")
    n_dense_layers: int = unchecked(1, hf="first_k_dense_replace")
    n_ctx: int = size(131072, hf="max_position_embeddings")
    d_vocab: int = size(151552, hf="vocab_size")
    n_experts: int = size(128, hf="n_routed_experts")
    n_active_experts: int = size(8, hf="num_experts_per_tok")
    n_shared_experts: int = size(1, hf="n_shared_experts")
    n_groups: int = size(1, hf="n_group")
    n_active_groups: int = size(1, hf="topk_group")
    routed_factor: float = real(1.0, hf="routed_scaling_factor")
    norm_top_k: bool = flag(True, hf="norm_topk_prob")
    activation: str = one_of("silu", ACTIVATIONS, hf="hidden_act")
    norm_eps: float = real(1e-5, hf="rms_norm_eps")
    rope_theta: float = real(1000000.0)
    rope_scaling: RopeScaling | None = None
    rotary_factor: float = real(0.5, formula="partial_rotary_factor")
    qkv_bias: bool = flag(True, hf="attention_bias")
    qk_norm: bool = flag(False, hf="use_qk_norm")
    tie_embeddings: bool = flag(False, hf="tie_word_embeddings")
    init_std: float = real(0.02, hf="initializer_range")
    bos_token_id: int | None = token_id(None, hf="bos_token_id")
    eos_token_id: int | tuple[int, ...] | None = token_ids(None, hf="eos_token_id")
    model_type: str = one_of("glm4_moe", ("glm4_moe",))

    def __post_init__(self):
        check_fields(self)
        check_multiple(self, "n_heads", "n_kv_heads")
        check_experts(self)
        check_groups(self, least=2)
        check_count(self.n_dense_layers, named(self, "n_dense_layers"))
        if self.rotary_factor > 1 or self.n_rotated % 2 or not self.n_rotated:
            raise DataError(
                f"{named(self, 'rotary_factor')} must give an even number of coordinates in 2..{self.d_head} to "
                f"rotate; {self.rotary_factor} gives {self.n_rotated}"
            )

    @property
    def n_rotated(self) -> int:
        """How many coordinates of each head are rotated."""
        return int(self.d_head * self.rotary_factor)

    @property
    def d_shared_mlp(self) -> int:
        """Width of the expert that computes every token."""
        return self.n_shared_experts * self.d_mlp

    @property
    def out_bias(self) -> bool:
        """Whether the attention's output projection has a bias: never."""
        return False

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> Self:
        """The config in the fields of a Hugging Face `config.json`, from `transformers` 5 or earlier.

        `num_nextn_predict_layers` is ignored: the layers that predict further tokens are not read, and known by their
        tensors.
        """
        check_implemented(hf, CAUSAL | {"sliding_window": None, "layer_types": None, "mlp_bias": False}, "glm4_moe")
        required = ("d_model", "n_heads", "n_kv_heads", "d_mlp", "d_dense_mlp", "n_layers", "n_ctx", "d_vocab")
        given: dict[str, Any] = read_fields(cls, hf, (*required, "n_experts"))
        rope = rope_from_hf(hf, theta=("rope_theta", 10000.0), share=("partial_rotary_factor", 0.5))
        fields = {"qkv_bias": False, **given, **grouped_heads(cls, hf, given), **rope}
        return cls(**{"rotary_factor" if name == "partial_rotary_factor" else name: x for name, x in fields.items()})

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model."""
        rope = rope_to_hf(self.rope_theta, self.rope_scaling) | {"partial_rotary_factor": self.rotary_factor}
        classes = {"model_type": "glm4_moe", "architectures": ["Glm4MoeForCausalLM"]}
        return classes | written_fields(self) | {"rope_parameters": rope}


class Glm(DecoderOnly):
    """The model; its weights are unset until `init_weights` or a checkpoint fills them."""

    absent = MappingProxyType(dict.fromkeys(("mlp_pre", "mlp_pre_linear", "mlp_post"), ABSENT))
    in_float32 = ("correction_bias",)

    def __init__(self, cfg: GlmConfig):
        super().__init__(cfg)
        self.rotary = Rotary(cfg.n_ctx, cfg.n_rotated, cfg.rope_theta, cfg.rope_scaling)
        self.hook_embed = HookPoint("B L D")
        attention: Any = NormedAttention if cfg.qk_norm else Attention
        self.blocks = nn.ModuleList(
            Block(cfg, attention(cfg), SwiGLU(cfg.d_model, cfg.d_dense_mlp, False, cfg.activation))
            if layer < cfg.n_dense_layers
            else Block(cfg, attention(cfg), SigmoidSparse(cfg))
            for layer in range(cfg.n_layers)
        )
        self.ln_final = RMSNorm(cfg.d_model, cfg.norm_eps)
        self.unembed = None if cfg.tie_embeddings else Embedding(cfg.d_vocab, cfg.d_model)

    def size_of(self, axis: str, short: str, layer: int | None = None) -> int | None:
        """The size of an axis of this point; F, the width of an MLP with points, is that of dense layers."""
        return self.cfg.d_dense_mlp if axis == "F" else super().size_of(axis, short)


# Translation from and to Hugging Face.


def shape(cfg: GlmConfig) -> ModelShape:
    """The sizes of a `GlmConfig`'s model."""
    none = dict.fromkeys(("out_bias", "mlp_bias", "norm_shift"), False)
    stack = stack_shape(
        cfg,
        gated=True,
        rotary=True,
        qkv_bias=cfg.qkv_bias,
        qk_norm="K" if cfg.qk_norm else "",
        n_experts=cfg.n_experts,
        n_active_experts=cfg.n_active_experts,
        n_dense_layers=min(cfg.n_dense_layers, cfg.n_layers),
        d_dense_mlp=cfg.d_dense_mlp,
        d_shared_mlp=cfg.d_shared_mlp,
        **none,
    )
    return decoder_shape(cfg.model_type, stack, cfg.d_vocab, cfg.n_ctx, cfg.tie_embeddings)


def twin(cfg: GlmConfig, names: Mapping[str, HfTensor]) -> HfModel:
    """The classes of transformers for this config, and where they compute our points."""
    return sparse_twin("Glm4Moe", names)


FAMILY = Family(
    model_types=("glm4_moe",),
    config=GlmConfig,
    model=Glm,
    shape=shape,
    modules=lambda cfg: LLAMA_NAMES | SPARSE_NAMES,
    fused=FUSED,
    hf_prefix="model.",
    twin=twin,
    hf_buffers=LLAMA_BUFFERS,
    loads="GLM-4.5",
    refused="sliding windows; the layer that predicts one more token is ignored",
    hub_examples=("zai-org/GLM-4.5-Air-Base", "zai-org/GLM-4.5-Base"),
)
