"""Gemma 4 against `transformers`: layers of two shapes, keys and values that layers share, embeddings of each layer."""

from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_configs import SIZES, new_model
from torch.nn.functional import gelu
from transformers_twins import error, tokens_for, twins

from probekit.errors import DataError, UsageError
from probekit.models.families.gemma4 import Gemma4Config
from probekit.models.load import load_model
from probekit.models.weights import save_hf

FULL, SLIDING = "full_attention", "sliding_attention"
TINY_SIZES: Any = SIZES | {"d_head": 8, "d_global_head": 12, "sliding_window": 4, "n_kv_heads": 4}
TINY_SIZES |= {"layer_types": (SLIDING, FULL, FULL), "norm_eps": 1e-5, "rotary_factor": 0.5}
TINY = {
    "gemma4": Gemma4Config(**TINY_SIZES, n_global_kv_heads=2, output_logits_soft_cap=2.0),
    "gemma4-moe": Gemma4Config(
        **TINY_SIZES | {"d_mlp": 40}, n_global_kv_heads=1, n_experts=6, n_active_experts=3, d_expert=20
    ),
    "gemma4-lent": Gemma4Config(
        **TINY_SIZES | {"d_mlp": 40, "n_layers": 4, "layer_types": (SLIDING, FULL, SLIDING, FULL), "n_kv_heads": 2},
        n_global_kv_heads=2, values_are_keys=False, n_borrowing_layers=2, double_wide_mlp=True, d_per_layer=10,
    ),
}  # fmt: skip
BASE = {
    "model_type": "gemma4_text", "hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 6, "global_head_dim": 8, "vocab_size": 61,
    "max_position_embeddings": 24, "sliding_window": 3, "layer_types": [SLIDING, FULL, FULL], "pad_token_id": 0,
    "hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 2,
    "final_logit_softcapping": 3.0, "rms_norm_eps": 1e-5,
    "rope_parameters": {
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 100.0},
        SLIDING: {"rope_type": "default", "rope_theta": 10.0},
    },
}  # fmt: skip
MOE = BASE | {"enable_moe_block": True, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 12}
SMALL = BASE | {
    "num_hidden_layers": 5, "layer_types": [SLIDING, FULL, SLIDING, SLIDING, FULL], "num_kv_shared_layers": 3,
    "hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 61, "use_double_wide_mlp": True,
    "attention_k_eq_v": False, "final_logit_softcapping": None,
}  # fmt: skip
VARIANTS = {
    "gemma4": BASE,
    "gemma4, experts": MOE,
    "gemma4, lent keys and own embeddings": SMALL,
    "gemma4, keys that are values": SMALL | {"attention_k_eq_v": True, "num_kv_shared_layers": 1},
    "gemma4, default rotations": {name: x for name, x in MOE.items() if name != "rope_parameters"}
    | {"layer_types": None, "tie_word_embeddings": False, "use_bidirectional_attention": "vision"},
}
FEATURES = [
    ("gemma4", {"sliding_window": 2}),
    ("gemma4", {"rotary_factor": 1.0}),
    ("gemma4", {"local_rope_theta": 100.0}),
    ("gemma4", {"output_logits_soft_cap": None}),
    ("gemma4, experts", {"n_active_experts": 1}),
]


@pytest.mark.parametrize("name", ["gemma4, lent keys and own embeddings", "gemma4, keys that are values"])
def test_layers_without_keys_of_their_own_attend_to_those_of_the_last_of_their_type(name):
    _, model = twins(VARIANTS[name])
    cfg, (_, cache) = model.cfg, model.run_with_cache(tokens_for(model))
    lenders = [cfg.lender(i) for i in range(5)]
    assert lenders == ([0, 1, 0, 0, 1] if cfg.n_borrowing_layers == 3 else [0, 1, 2, 3, 1])
    assert model.layers_of("k") == model.layers_of("v") == sorted(set(lenders))
    for i, lender in enumerate(lenders):
        q, k = cache["rot_q", i], cache["rot_k", lender]
        scores = torch.einsum("blhk,bmhk->bhlm", q, k.repeat_interleave(4 // k.shape[2], 2))
        seen = cache["attn_scores", i].isfinite()
        assert error(cache["attn_scores", i][seen], scores[seen]) <= 1e-6
    with pytest.raises(UsageError, match=r"no point k\.4: layers that attend to keys and values of an earlier one"):
        model.resolve(("k", 4))
    assert [len({*map(id, model.empty_cache())}), len(model.empty_cache())] == [len({*lenders}), 5]


def test_heads_and_mlps_have_their_size_in_each_layer():
    _, model = twins(SMALL)
    _, cache = model.run_with_cache(tokens_for(model, 2, 7))
    widths = {SLIDING: 6, FULL: 8}
    for i, kind in enumerate(model.cfg.layer_types):
        assert cache["q", i].shape == (2, 7, 4, widths[kind])
        assert cache["mlp_pre", i].shape[-1] == (48 if i >= 2 else 24)
        assert (model.size_of("K", "z", i), model.size_of("F", "mlp_post", i)) == (widths[kind], 48 if i >= 2 else 24)


@torch.no_grad()
def test_a_block_scales_the_sum_of_the_stream_and_what_is_added():
    model = new_model("gemma4-lent")
    scales = [0.5, -1.5, 0.25, 3.0]
    for block, scale in zip(model.blocks, scales, strict=True):
        block.scale.fill_(scale)
    _, c = model.run_with_cache(tokens_for(model))
    for i, scale in enumerate(scales):
        summed = c["resid_mid", i] + c["mlp_out", i] + c["per_layer_out", i]
        assert error(c["resid_post", i], scale * summed) <= 1e-6
        gate = gelu((c["resid_mid", i] + c["mlp_out", i]) @ model.blocks[i].per_layer.gate.weight.T, approximate="tanh")
        own = model.per_layer(tokens_for(model), c["embed"])[i]
        out = (gate * own) @ model.blocks[i].per_layer.out.weight.T
        out = out * (out.square().mean(-1, keepdim=True) + model.cfg.norm_eps).rsqrt()
        assert error(c["per_layer_out", i], out * model.blocks[i].per_layer.norm.weight) <= 1e-6


def test_files_may_hold_keys_that_no_layer_reads(tmp_path):
    """As the published ones do, beside scales that are not 1; transformers computes the same from them."""
    oracle, model = twins(SMALL)
    save_hf(model, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    unread = {
        f"model.layers.{i}.self_attn.{x}.weight": torch.ones(3, 2) for i in (2, 3, 4) for x in ("k_proj", "v_norm")
    }
    weights |= unread | {f"model.layers.{i}.layer_scalar": torch.tensor([0.5 + i]) for i in range(5)}
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    loaded, again = load_model(tmp_path, device="cpu"), type(oracle).from_pretrained(tmp_path).eval()
    tokens = tokens_for(model)
    with torch.no_grad():
        assert error(loaded(tokens), again(tokens).logits) <= 1e-5
        assert error(loaded(tokens), model(tokens)) > 1e-2
    weights["model.layers.1.self_attn.surprise.weight"] = torch.ones(1)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"unexpected: model\.layers\.1\.self_attn\.surprise"):
        load_model(tmp_path, device="cpu")


def test_experts_are_one_tensor_of_a_layer_as_in_published_files(tmp_path):
    _, model = twins(MOE)
    save_hf(model, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    assert list(weights["model.layers.0.experts.gate_up_proj"].shape) == [5, 24, 32]
    _, cache = model.run_with_cache(tokens_for(model))
    for i, block in enumerate(model.blocks):
        mlp, x = block.mlp, block.mlp.experts_pre(cache["resid_mid", i])
        gate, up = (x @ torch.cat([getattr(each, part).weight for each in mlp.experts]).T for part in ("gate", "up"))
        activated = (gelu(gate, approximate="tanh") * up).unflatten(-1, (5, -1))
        out = torch.einsum("blef,edf->bled", activated, torch.stack([each.down.weight for each in mlp.experts]))
        routed = torch.einsum("ble,bled->bld", cache["expert_weights", i], out)
        dense = mlp.down(cache["mlp_post", i])
        wanted = block.ln2_post(mlp.norm(dense) + mlp.experts_post(routed))
        assert error(cache["mlp_out", i], wanted) <= 1e-5
        chosen = cache["expert_weights", i] / mlp.expert_scale
        assert error(chosen.sum(-1), torch.ones(3, 9)) <= 1e-6
        assert ((chosen != 0).sum(-1) == 2).all()


_ROPE = {
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
    SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
}
_TEXT = {
    "model_type": "gemma4_text", "head_dim": 256, "global_head_dim": 512, "vocab_size": 262144, "dtype": "bfloat16",
    "vocab_size_per_layer_input": 262144, "final_logit_softcapping": 30.0, "rope_parameters": _ROPE, "eos_token_id": 1,
    "attention_bias": False, "attention_dropout": 0.0, "initializer_range": 0.02, "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-06, "pad_token_id": 0, "use_cache": True,
}  # fmt: skip
PUBLISHED = {  # the text models' fields of config.json; parameters with the factor of each layer
    "Gemma 4 E2B": (
        _TEXT | {
            "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35, "num_attention_heads": 8,
            "num_key_value_heads": 1, "max_position_embeddings": 131072, "sliding_window": 512,
            "hidden_size_per_layer_input": 256, "num_kv_shared_layers": 20, "use_double_wide_mlp": True,
            "layer_types": 7 * [*4 * [SLIDING], FULL], "num_global_key_value_heads": None, "attention_k_eq_v": False,
        },
        4_628_569_379,
    ),
    "Gemma 4 26B-A4B": (
        _TEXT | {
            "hidden_size": 2816, "intermediate_size": 2112, "num_hidden_layers": 30, "num_attention_heads": 16,
            "num_key_value_heads": 8, "max_position_embeddings": 262144, "sliding_window": 1024,
            "hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 2,
            "enable_moe_block": True, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704,
            "layer_types": 5 * [*5 * [SLIDING], FULL], "use_bidirectional_attention": "vision",
        },
        25_233_141_790,
    ),
    "Gemma 4 31B": (
        _TEXT | {
            "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 60, "num_attention_heads": 32,
            "num_key_value_heads": 16, "max_position_embeddings": 262144, "sliding_window": 1024, "num_experts": None,
            "hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 4,
            "enable_moe_block": False, "use_bidirectional_attention": "vision",
        },
        30_697_345_340,
    ),
}  # fmt: skip
_REFUSED = [
    (BASE, {"use_bidirectional_attention": "all"}, "use_bidirectional_attention = 'all' is not implemented"),
    (BASE, {"attention_bias": True}, "attention_bias = True is not implemented for model_type gemma4_text"),
    (BASE, {"per_layer_config": {"0": {"head_dim": 8}}}, "per_layer_config = .* is not implemented"),
    (BASE, {"num_key_value_heads": 3}, r"n_heads \(num_attention_heads\) 4 must be a multiple of n_kv_heads"),
    (BASE, {"num_global_key_value_heads": 3}, "must be a multiple of n_global_kv_heads"),
    (BASE, {"global_head_dim": 7}, "d_global_head must be even"),
    (BASE, {"num_kv_shared_layers": 3}, r"n_borrowing_layers \(num_kv_shared_layers\) 3 leaves layers without"),
    (BASE, {"num_kv_shared_layers": -1}, r"\(num_kv_shared_layers\) must be a whole number from 0"),
    (BASE, {"layer_types": [FULL, SLIDING]}, "for each of 3 layers .*; got a list of 2"),
    (BASE, {"sliding_window": None}, "sliding_window must be a whole number"),
    (SMALL, {"vocab_size_per_layer_input": 60}, "vocab_size_per_layer_input = 60 is not implemented"),
    (MOE, {"top_k_experts": 6}, r"\(top_k_experts\) 6 is more than n_experts \(num_experts\) 5"),
    (MOE, {"moe_intermediate_size": None}, "n_active_experts and d_expert; add d_expert"),
    (BASE, {"rope_parameters": {"rope_type": "default"}}, "an object with full_attention and"),
    (BASE, {"rope_parameters": {FULL: {"rope_type": "yarn", "factor": 2.0}}}, "'yarn' is not implemented"),
    (BASE, {"rope_parameters": {FULL: {"rope_type": "proportional", "factor": 2.0}}}, "factor"),
    (BASE, {"rope_parameters": {SLIDING: {"partial_rotary_factor": 0.5}}}, "partial_rotary_factor"),
]  # fmt: skip
IMPOSSIBLE = [(base | change, match) for base, change, match in _REFUSED]
