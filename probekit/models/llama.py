"""Llama, written by hand (Touvron et al. 2023; Grattafiori et al. 2024), and its kin Mistral and Qwen2.

A decoder: token embedding, pre-norm blocks (RMSNorm) of causal attention with rotary positions and few key/value heads,
and a gated MLP (SwiGLU), a final norm, and a head that may be the token embedding again. Mistral's tokens (Jiang et al.
2023) see a window of the last ones alone; Qwen2 (Yang et al. 2024) has biases on queries, keys and values. Every point
is named as in TransformerLens; its axes stand where it is made. Exact against `transformers`, whose fields and tensor
names `LlamaConfig.from_hf` and `hf_names` read.

Axes: B batch, L query position, M key position, D d_model, H heads, G key/value heads, K d_head, F d_mlp, V vocab.
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
from probekit.models.cache import Cache, LayerCache
from probekit.models.checks import (
    check_choice,
    check_flag,
    check_id,
    check_ids,
    check_implemented,
    check_multiple,
    check_positive,
    check_size,
    named,
)
from probekit.models.layers import (
    ACTIVATIONS,
    Embedding,
    Linear,
    RMSNorm,
    SwiGLU,
    attention,
    attention_scores,
    causal_attention,
    causal_mask,
    heads_for,
    init_embedding,
    init_linear,
    linear,
    projected,
    softmax,
)
from probekit.models.positions import RopeScaling, Rotary, rope_from_hf, rope_to_hf, rotate_half
from probekit.models.weights import HfTensor

MODEL_TYPES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"}

OURS = {  # field of a Hugging Face config.json -> ours
    "hidden_size": "d_model",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "head_dim": "d_head",
    "intermediate_size": "d_mlp",
    "num_hidden_layers": "n_layers",
    "max_position_embeddings": "n_ctx",
    "vocab_size": "d_vocab",
    "hidden_act": "activation",
    "rms_norm_eps": "norm_eps",
    "tie_word_embeddings": "tie_embeddings",
    "initializer_range": "init_std",
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
}
_named = partial(named, OURS)
SIZES = ("d_model", "n_heads", "n_kv_heads", "d_head", "d_mlp", "n_layers", "n_ctx", "d_vocab")


@dataclass(frozen=True)
class LlamaConfig:
    """The shape of a Llama, Mistral or Qwen2; the fields of Llama 2 7B are the defaults.

    Attributes:
        n_kv_heads: heads of keys and values; each serves n_heads / n_kv_heads heads of queries.
        rope_scaling: how rotations are stretched to a longer context; None: not.
        out_bias: whether the attention's output projection has a bias.
        sliding_window: how many tokens, itself included, a token sees; None: all before it.
        n_full_layers: the first layers, in which all is seen whatever the window.
        init_std: of normal weights before training; None: the truncated normal of `layers.init_linear`.
        eos_token_id: an id, or several that each end a text.
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
    model_type: str = "llama"

    def __post_init__(self):
        check_choice(self.model_type, MODEL_TYPES, "model_type")
        for field in SIZES:
            check_size(field, getattr(self, field), _named(field))
        check_multiple(self.n_heads, _named("n_heads"), self.n_kv_heads, _named("n_kv_heads"))
        if self.d_head % 2:
            raise DataError(f"{_named('d_head')} must be even, as rotary positions turn pairs; got {self.d_head}")
        check_choice(self.activation, ACTIVATIONS, _named("activation"))
        check_positive(self.norm_eps, _named("norm_eps"))
        check_positive(self.rope_theta, "rope_theta")
        if self.init_std is not None:
            check_positive(self.init_std, _named("init_std"))
        for field in ("qkv_bias", "out_bias", "mlp_bias", "tie_embeddings"):
            check_flag(getattr(self, field), _named(field))
        if self.sliding_window is not None:
            check_size("n_ctx", self.sliding_window, "sliding_window")
        check_id(self.bos_token_id, "bos_token_id")
        check_ids(self.eos_token_id, "eos_token_id")

    def window_of(self, layer: int) -> int | None:
        """How many tokens a token of this layer sees; None: all before it."""
        return None if layer < self.n_full_layers else self.sliding_window

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> "LlamaConfig":
        """From the fields of a Hugging Face `config.json`, of today's `transformers` or of an older one.

        `pretraining_tp` is not read: it splits sums, and changes no number that they have.

        Raises:
            DataError: a size is missing or impossible, or a field asks for arithmetic that is not implemented here;
                the message names the field.
        """
        model_type = hf.get("model_type", "llama")
        check_choice(model_type, MODEL_TYPES, "model_type")
        check_implemented(hf, {"quantization_config": None}, model_type)
        given = {ours: hf[theirs] for theirs, ours in OURS.items() if theirs in hf}
        for size in ("d_model", "n_heads", "d_mlp", "n_layers", "n_ctx", "d_vocab"):
            check_size(size, given.get(size), _named(size))
        fields = {"norm_eps": 1e-6, "init_std": None} | given  # what transformers has where a file is silent
        if isinstance(fields.get("eos_token_id"), list):
            fields["eos_token_id"] = tuple(fields["eos_token_id"]) or None
        fields |= _heads(hf, model_type) | _biases(hf, model_type) | _window(hf, model_type) | rope_from_hf(hf)
        return cls(**fields, model_type=model_type)

    def to_hf(self) -> dict[str, Any]:
        """The fields of the Hugging Face `config.json` that describes this model."""
        fields = {theirs: getattr(self, ours) for theirs, ours in OURS.items()}
        if self.init_std is None:
            del fields["initializer_range"]
        if isinstance(self.eos_token_id, tuple):
            fields["eos_token_id"] = list(self.eos_token_id)
        if self.model_type == "llama":
            fields |= {"attention_bias": self.qkv_bias, "mlp_bias": self.mlp_bias}
        else:
            fields["sliding_window"] = self.sliding_window
        if self.model_type == "qwen2":
            fields |= {"use_sliding_window": self.sliding_window is not None, "max_window_layers": self.n_full_layers}
        about = {"model_type": self.model_type, "architectures": [MODEL_TYPES[self.model_type]]}
        return about | fields | {"rope_parameters": rope_to_hf(self.rope_theta, self.rope_scaling)}


def _heads(hf: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    n_heads, n_kv_heads, d_head = hf["num_attention_heads"], hf.get("num_key_value_heads"), hf.get("head_dim")
    if n_kv_heads is None and "num_key_value_heads" not in hf and model_type != "llama":
        raise DataError(f"{_named('n_kv_heads')} is missing")  # transformers would assume 8 or 32
    if d_head is None:
        check_multiple(hf["hidden_size"], _named("d_model"), n_heads, _named("n_heads"))
    return {
        "n_kv_heads": n_heads if n_kv_heads is None else n_kv_heads,
        "d_head": hf["hidden_size"] // n_heads if d_head is None else d_head,
    }


def _biases(hf: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    if model_type == "llama":
        attention_bias = hf.get("attention_bias", False)
        return {"qkv_bias": attention_bias, "out_bias": attention_bias, "mlp_bias": hf.get("mlp_bias", False)}
    qkv_bias = model_type == "qwen2"
    check_implemented(hf, {"attention_bias": qkv_bias, "mlp_bias": False}, model_type)
    return {"qkv_bias": qkv_bias, "out_bias": False, "mlp_bias": False}


def _window(hf: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """Mistral slides in every layer, Qwen2 (where it is told to) in those after the first max_window_layers."""
    n_layers = hf["num_hidden_layers"]
    if model_type == "llama":
        check_implemented(hf, {"sliding_window": None}, model_type)
        window, n_full = None, 0
    elif model_type == "mistral":
        window, n_full = hf.get("sliding_window", 4096), 0
    else:
        check_flag(hf.get("use_sliding_window", False), "use_sliding_window")
        window = hf.get("sliding_window", 4096) if hf.get("use_sliding_window", False) else None
        n_full = 0 if window is None else hf.get("max_window_layers", 28)
        if isinstance(n_full, bool) or not isinstance(n_full, int) or n_full < 0:
            raise DataError(f"max_window_layers must be a whole number from 0; got {n_full!a:.60}")
    full = n_layers if window is None else min(n_full, n_layers)
    types = ["full_attention"] * full + ["sliding_attention"] * (n_layers - full)
    if hf.get("layer_types") not in (None, types):
        raise DataError(f"layer_types {hf['layer_types']!a:.200} are not implemented; only {types!a:.200} are")
    return {"sliding_window": window, "n_full_layers": n_full}


def within(window: int, queries_BL: Tensor, keys_BM: Tensor) -> Tensor:
    """Whether a key's position lies among the last `window` ones that a query's ends, [B, L, M]."""
    return queries_BL[:, :, None] - keys_BM[:, None, :] < window


class Attention(nn.Module):
    """Causal grouped-query self-attention over rotated queries and keys (Ainslie et al. 2023; Su et al. 2021).

    Scores and pattern become tensors only where someone listens to them.
    """

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
        mask_BLM: Tensor | None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        q, k, v = (rearrange(part(x_BLD), "b l (h k) -> b l h k", k=self.d_head) for part in (self.q, self.k, self.v))
        q_BLHK, k_BMGK, v_BMGK = self.hook_q(q), self.hook_k(k), self.hook_v(v)
        q_BLHK = self.hook_rot_q(rotate_half(q_BLHK, rotation))
        k_BMGK = self.hook_rot_k(rotate_half(k_BMGK, rotation))
        if cache is not None:
            k_BMGK, v_BMGK = cache.append(k_BMGK, v_BMGK)
        z_BLHK = self.hook_z(self.weighted_sum(q_BLHK, k_BMGK, v_BMGK, mask_BLM))
        return projected(z_BLHK, self.out, self.hook_result)

    def weighted_sum(self, q_BLHK: Tensor, k_BMGK: Tensor, v_BMGK: Tensor, mask_BLM: Tensor | None) -> Tensor:
        """The values as each query weighs them, [B, L, H, K]; without a mask it sees itself and all before."""
        if self.hook_attn_scores.hooked or self.hook_pattern.hooked:
            mask_BLM = causal_mask(q_BLHK.new_ones(1, q_BLHK.shape[1])) if mask_BLM is None else mask_BLM
            scores_BHLM = self.hook_attn_scores(attention_scores(q_BLHK, k_BMGK, mask_BLM))
            pattern_BHLM = self.hook_pattern(softmax(scores_BHLM))
            return torch.einsum("bhlm,bmhk->blhk", pattern_BHLM, heads_for(q_BLHK, v_BMGK))
        if mask_BLM is None:
            return causal_attention(q_BLHK, k_BMGK, v_BMGK)
        return attention(q_BLHK, k_BMGK, v_BMGK, mask_BLM)


class Block(nn.Module):
    """Pre-norm: x + attn(ln1(x)), then x + mlp(ln2(x))."""

    def __init__(self, cfg: LlamaConfig):
        super().__init__()
        self.hook_resid_pre = HookPoint("B L D")
        self.ln1 = RMSNorm(cfg.d_model, cfg.norm_eps)
        self.attn = Attention(cfg)
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
        mask_BLM: Tensor | None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        resid_pre = self.hook_resid_pre(resid_BLD)
        attn_out = self.hook_attn_out(self.attn(self.ln1(resid_pre), rotation, mask_BLM, cache))
        resid_mid = self.hook_resid_mid(resid_pre + attn_out)
        mlp_out = self.hook_mlp_out(self.mlp(self.ln2(resid_mid)))
        return self.hook_resid_post(resid_mid + mlp_out)


class Llama(LanguageModel):
    """The whole model; weights are unset until `init_weights` or a checkpoint fills them."""

    def __init__(self, cfg: LlamaConfig):
        super().__init__()
        self.cfg = cfg
        self.embed = Embedding(cfg.d_vocab, cfg.d_model)
        self.rotary = Rotary(cfg.n_ctx, cfg.d_head, cfg.rope_theta, cfg.rope_scaling)
        self.hook_embed = HookPoint("B L D")
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.n_layers))
        self.ln_final = RMSNorm(cfg.d_model, cfg.norm_eps)
        self.unembed = None if cfg.tie_embeddings else Embedding(cfg.d_vocab, cfg.d_model)

    def forward(
        self,
        tokens: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        stop_at_layer: int | None = None,
        return_logits: bool = True,
        cache: Cache | None = None,
    ) -> Tensor:
        """Logits [B, L, V] of tokens [B, L].

        Args:
            tokens: int ids [B, L].
            position_ids: [B, L]; by default counted from the mask, so that padding on either side changes nothing.
            attention_mask: [B, L], true at real tokens; or [B, L, M], true where L may attend to M (used as it is, but
                for a sliding window). None: no padding, or padding on the right whose outputs are not read. With
                position_ids and a mask [B, L, M], L may be longer than the context: several texts in a row.
            stop_at_layer: run the blocks before this one and return its input, `resid_pre`, [B, L, D]; with n_layers,
                the output of the last block, before the final norm.
            return_logits: False leaves out the head and returns the final norm's output, [B, L, D].
            cache: keys and values of earlier tokens; these tokens' are added. It needs position_ids and a mask
                [B, L, M] over all tokens so far; a text's tokens stand side by side there.

        Raises:
            UsageError: a shape, an id, a length or a layer that cannot be.
        """
        tokens = self.check_tokens(tokens, position_ids, attention_mask)
        stop = self.check_stop(stop_at_layer, self.cfg.n_layers)
        mask_BLM, position_ids = self.mask_and_positions(tokens, attention_mask, position_ids, cache)
        window_BLM = self.in_window(mask_BLM, position_ids, cache)
        rotation = self.rotary(position_ids)
        resid_BLD = self.hook_embed(self.embed(tokens))
        for i, block in enumerate(self.blocks[:stop]):
            seen_BLM = mask_BLM if self.cfg.window_of(i) is None else window_BLM
            resid_BLD = block(resid_BLD, rotation, seen_BLM, None if cache is None else cache[i])
        if stop_at_layer is not None:
            return stopped(self.blocks, resid_BLD, stop)
        normalized_BLD = self.ln_final(resid_BLD)
        return self.head(normalized_BLD) if return_logits else normalized_BLD

    def window_of(self, layer: int) -> int | None:
        """As in every model; `sliding_window`, in the layers that have it."""
        return self.cfg.window_of(layer)

    def in_window(self, mask_BLM: Tensor | None, position_ids: Tensor, cache: Cache | None) -> Tensor | None:
        """The mask, narrowed to the window; None where the model has none, or all that is seen lies in it."""
        window, length = self.cfg.sliding_window, position_ids.shape[1]
        if window is None or (mask_BLM is None and length <= window):
            return mask_BLM
        if mask_BLM is None:
            mask_BLM = causal_mask(position_ids.new_ones(1, length))
        if cache is None:
            return mask_BLM & within(window, position_ids, position_ids)
        places = torch.arange(mask_BLM.shape[2], device=mask_BLM.device)[None]
        return mask_BLM & within(window, places[:, -length:], places)

    def head(self, normalized_BLD: Tensor) -> Tensor:
        """Logits [B, L, V] of the final norm's output."""
        return linear(normalized_BLD, (self.unembed or self.embed).weight, None)

    @torch.no_grad()
    def init_weights(self, seed: int = 0) -> Self:
        """Fill the weights as before training: normal of `init_std`, or else truncated normal.

        The papers publish none. With `init_std` it is what `transformers` does; without, `layers.init_linear` for the
        matrices, among them a tied embedding, which is the head too, and `layers.init_embedding` for one that is not.
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


_BLOCK_NAMES = {
    "ln1": "input_layernorm",
    "attn.q": "self_attn.q_proj",
    "attn.k": "self_attn.k_proj",
    "attn.v": "self_attn.v_proj",
    "attn.out": "self_attn.o_proj",
    "ln2": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}
HF_PREFIX = "model."
HF_BUFFERS = r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"  # frequencies that old files carry


def _biased(cfg: LlamaConfig, part: str) -> bool:
    kind = "mlp" if part.startswith("mlp") else "out" if part == "attn.out" else "qkv"
    return not part.startswith("ln") and getattr(cfg, f"{kind}_bias")


def hf_names(cfg: LlamaConfig) -> dict[str, HfTensor]:
    """Our name of every weight -> its name in a Hugging Face file of Llama, Mistral or Qwen2."""
    theirs = {"embed.weight": "embed_tokens.weight", "ln_final.weight": "norm.weight"}
    for i in range(cfg.n_layers):
        for ours, name in _BLOCK_NAMES.items():
            for part in ("weight", "bias") if _biased(cfg, ours) else ("weight",):
                theirs[f"blocks.{i}.{ours}.{part}"] = f"layers.{i}.{name}.{part}"
    names = {ours: HfTensor(HF_PREFIX + name) for ours, name in theirs.items()}
    return names if cfg.tie_embeddings else names | {"unembed.weight": HfTensor("lm_head.weight")}


def hf_ties(cfg: LlamaConfig) -> dict[str, str]:
    """A name that a file may hold besides -> the weight that it is a copy of."""
    return {"lm_head.weight": HF_PREFIX + "embed_tokens.weight"} if cfg.tie_embeddings else {}
