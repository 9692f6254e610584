"""DeepSeek V2 and V3 and Kimi K2 against `transformers`: latents, parts that are rotated, groups of experts."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny_configs import SIZES, new_model
from transformers_twins import error, tokens_for, twins

from probekit.models.families.deepseek import Deepseek, DeepseekConfig
from probekit.models.positional import RopeScaling

YARN = {
    "rope_theta": 1e4, "rope_type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
    "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
}  # fmt: skip
DEEPSEEK_SIZES: dict[str, Any] = SIZES | {
    "d_mlp": 12, "d_dense_mlp": 40, "q_rank": 14, "kv_rank": 10, "d_nope": 6, "d_rope": 4, "d_value": 7,
    "n_experts": 6, "n_active_experts": 3, "n_groups": 3, "n_active_groups": 2, "n_dense_layers": 1,
}  # fmt: skip
STRETCHED = RopeScaling("yarn", 4.0, 1, 32, 8, 1.1)
V2: dict[str, Any] = {"model_type": "deepseek_v2", "norm_top_k": False}
KIMI: dict[str, Any] = {"n_groups": 1, "n_active_groups": 1, "model_type": "kimi_k2", "interleaved": False}
TINY = {
    "deepseek-v3": DeepseekConfig(
        **DEEPSEEK_SIZES, rope_scaling=STRETCHED, mscale_all_dim=0.7, attention_bias=True, init_std=0.3
    ),
    "deepseek-v2": DeepseekConfig(**DEEPSEEK_SIZES, **V2, n_shared_experts=2, rope_scaling=STRETCHED),
    "deepseek-v2-lite": DeepseekConfig(
        **DEEPSEEK_SIZES | {"q_rank": None, "n_groups": 1, "n_active_groups": 1, "d_value": 12, "n_dense_layers": 0},
        **V2,
    ),
    "kimi-k2": DeepseekConfig(**DEEPSEEK_SIZES | KIMI),
}  # fmt: skip
BASE: dict[str, Any] = {
    "model_type": "deepseek_v3", "hidden_size": 32, "intermediate_size": 40, "moe_intermediate_size": 12,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 14, "kv_lora_rank": 10,
    "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 7, "vocab_size": 61, "max_position_embeddings": 24,
    "n_routed_experts": 6, "num_experts_per_tok": 3, "n_group": 3, "topk_group": 2, "first_k_dense_replace": 1,
    "rope_parameters": YARN,
}  # fmt: skip
BASE_V2 = BASE | {"model_type": "deepseek_v2", "topk_method": "group_limited_greedy", "routed_scaling_factor": 4.0}
PLAIN = {"rope_theta": 1e4, "rope_type": "default"}
VARIANTS = {
    "deepseek_v3": BASE,
    "deepseek_v3 with biases": BASE
    | {"attention_bias": True, "rope_parameters": YARN | {"factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.9}},
    "deepseek_v3, halves rotated": BASE
    | {"rope_interleave": False, "rope_parameters": PLAIN, "norm_topk_prob": False, "tie_word_embeddings": True},
    "deepseek_v3 without a latent of queries": BASE | {"q_lora_rank": None, "v_head_dim": 12, "n_shared_experts": 2},
    "deepseek_v2": BASE_V2,
    "deepseek_v2, lite": BASE_V2
    | {"q_lora_rank": None, "topk_method": "greedy", "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0},
    "deepseek_v2 in groups of one": BASE_V2 | {"n_group": 6, "topk_group": 3, "attention_bias": True},
}
FEATURES = [
    ("deepseek_v3", {"mscale_all_dim": None}),
    ("deepseek_v3", {"interleaved": False}),
    ("deepseek_v3", {"n_active_groups": 3}),
    ("deepseek_v3", {"routed_factor": 1.0}),
    ("deepseek_v2", {"n_active_groups": 3}),
    ("deepseek_v2", {"routed_factor": 1.0}),
]
_LAYERS = {name: value for name, value in BASE.items() if name != "rope_parameters"}
OLD_AND_NEW = [
    (
        _LAYERS
        | {"rope_theta": 1e4, "rope_scaling": {"type" if x == "rope_type" else x: y for x, y in YARN.items()}}
        | {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "num_nextn_predict_layers": 1, "moe_layer_freq": 1},
        BASE,
    ),
    (BASE_V2 | {"topk_method": "greedy"}, BASE_V2 | {"n_group": 1, "topk_group": 1}),
]
IMPOSSIBLE = [
    (BASE | {"n_group": 6}, "leaves 1 expert in a group; expected 2 or more"),
    (BASE | {"topk_group": 1}, "must have at least n_active_experts .* 3 experts, 2 in each; correct one of them"),
    (
        BASE | {"num_key_value_heads": 2},
        "num_key_value_heads = 2 is not implemented for model_type deepseek_v3; only 4",
    ),
    (BASE | {"head_dim": 6}, "head_dim = 6 is not implemented for model_type deepseek_v3; only 4 is"),
    (BASE | {"qk_rope_head_dim": 5}, r"d_rope \(qk_rope_head_dim\) must be even"),
    (BASE | {"q_lora_rank": 0}, r"q_rank \(q_lora_rank\) must be a whole number in 1"),
    (BASE | {"scoring_func": "softmax"}, "scoring_func = 'softmax' is not implemented for model_type deepseek_v3"),
    (BASE | {"topk_method": "greedy"}, "topk_method = 'greedy' is not implemented for model_type deepseek_v3"),
    (BASE | {"moe_layer_freq": 2}, "moe_layer_freq = 2 is not implemented"),
    (BASE | {"rope_parameters": YARN | {"mscale_all_dim": -1}}, "mscale_all_dim must be a positive number"),
    (BASE_V2 | {"norm_topk_prob": True}, "norm_topk_prob = True is not implemented for model_type deepseek_v2"),
    (BASE_V2 | {"topk_method": "best"}, "unknown topk_method 'best'"),
    (BASE_V2 | {"num_experts_per_tok": None}, r"n_active_experts \(num_experts_per_tok\) is missing; add it"),
    (BASE_V2 | {"n_routed_experts": 7}, "must be a multiple of n_groups"),
]
_HUB_V3 = {  # the arithmetic's fields of config.json on the Hub
    "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False,
    "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3,
    "hidden_act": "silu", "hidden_size": 7168, "initializer_range": 0.02, "intermediate_size": 18432,
    "kv_lora_rank": 512, "max_position_embeddings": 163840, "moe_intermediate_size": 2048, "moe_layer_freq": 1,
    "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
    "rope_scaling": {"type" if name == "rope_type" else name: x for name, x in YARN.items() if name != "rope_theta"},
    "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "tie_word_embeddings": False,
    "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 129280,
}  # fmt: skip
_HUB_LITE = {
    "model_type": "deepseek_v2", "architectures": ["DeepseekV2ForCausalLM"], "attention_bias": False,
    "attention_dropout": 0.0, "aux_loss_alpha": 0.001, "bos_token_id": 100000, "eos_token_id": 100001,
    "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 10944, "kv_lora_rank": 512, "max_position_embeddings": 163840,
    "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2,
    "norm_topk_prob": False, "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27,
    "num_key_value_heads": 16, "pretraining_tp": 1, "q_lora_rank": None, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
    "rope_scaling": _HUB_V3["rope_scaling"] | {"mscale": 0.707, "mscale_all_dim": 0.707}, "rope_theta": 10000,
    "routed_scaling_factor": 1.0, "scoring_func": "softmax", "seq_aux": True, "tie_word_embeddings": False,
    "topk_group": 1, "topk_method": "greedy", "v_head_dim": 128, "vocab_size": 102400,
}  # fmt: skip
_KIMI = {  # what differs from V3
    "model_type": "kimi_k2", "first_k_dense_replace": 1, "max_position_embeddings": 131072, "n_group": 1,
    "n_routed_experts": 384, "num_attention_heads": 64, "num_key_value_heads": 64, "num_nextn_predict_layers": 0,
    "rope_theta": 50000.0, "routed_scaling_factor": 2.827, "topk_group": 1, "vocab_size": 163840,
    "rope_scaling": _HUB_V3["rope_scaling"] | {"factor": 32.0, "beta_fast": 1.0, "beta_slow": 1.0},
}  # fmt: skip
PUBLISHED = {  # 671, 15.7 and 1,026 billion; the index of the files counts the corrections besides
    "deepseek-v3": (_HUB_V3, 671_026_419_200 - 58 * 256),
    "deepseek-v2-lite": (_HUB_LITE, 15_706_484_224),
    "kimi-k2": (_HUB_V3 | _KIMI, 1_026_408_232_448 - 60 * 384),
}


@pytest.fixture(scope="module", params=["deepseek_v3", "deepseek_v2, lite"])
def model(request) -> Any:
    return twins(VARIANTS[request.param])[1]


def test_keys_and_values_are_products_of_the_latent_and_of_a_common_part(model):
    cfg = model.cfg
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens_for(model))
    for i, block in enumerate(model.blocks):
        by_head = block.attn.kv.weight.unflatten(0, (cfg.n_heads, -1))
        made = torch.einsum("blc,hwc->blhw", cache["kv_latent", i], by_head)
        assert error(cache["v", i], made[..., cfg.d_nope :]) <= 1e-6
        assert error(cache["k", i][..., : cfg.d_nope], made[..., : cfg.d_nope]) <= 1e-6
        common = cache["k", i][..., cfg.d_nope :]
        assert torch.equal(common, common[:, :, :1].expand_as(common))
        assert (("q_latent", i) in cache) == (cfg.q_rank is not None)
    assert model.size_of("C", "kv_latent") == 10
    assert (model.size_of("W", "v"), model.size_of("K", "q")) == (7, 10)


def test_a_hook_on_the_keys_before_their_rotation_is_followed(model):
    """One that changes nothing changes nothing; one that takes the common part away leaves scores without it."""
    tokens, d_nope = tokens_for(model), model.cfg.d_nope
    with torch.no_grad():
        plain = model(tokens)
        with model.hooks([("blocks.1.attn.hook_k", lambda x, _: x)]):
            assert error(model(tokens), plain) <= 1e-6

        def without(x: torch.Tensor, _: Any) -> torch.Tensor:
            return torch.cat([x[..., :d_nope], torch.zeros_like(x[..., d_nope:])], -1)

        with model.hooks([(("k", 1), without)]):
            _, cache = model.run_with_cache(tokens)
    assert not cache["rot_k", 1][..., d_nope:].any()
    assert error(cache["k", 1][..., :d_nope], cache["rot_k", 1][..., :d_nope]) == 0


def test_the_best_groups_are_those_of_the_best_expert_in_v2():
    model = twins(BASE_V2)[1]
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens_for(model))
    for layer in (1, 2):
        logits, weights = (cache[point, layer].flatten(0, 1) for point in ("router_logits", "expert_weights"))
        for shares, found in zip(logits.softmax(-1), weights, strict=True):
            best = sorted(range(3), key=lambda i: -float(shares[2 * i : 2 * i + 2].max()))[:2]
            chosen = sorted((e for e in range(6) if e // 2 in best), key=lambda e: -float(shares[e]))[:3]
            wanted = torch.zeros(6)
            wanted[chosen] = 4.0 * shares[chosen]
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_kimi_k2_computes_what_v3_does():
    kimi = new_model("kimi-k2")
    cfg = replace(kimi.cfg, model_type="deepseek_v3")
    assert DeepseekConfig.from_hf(kimi.cfg.to_hf() | {"model_type": "deepseek_v3"}) == cfg
    same = Deepseek(cfg).eval()
    same.load_state_dict(kimi.state_dict())
    tokens = torch.arange(1, 10)[None]
    assert torch.equal(same(tokens), kimi(tokens))


def test_values_with_zeros_are_those_without():
    """By the kernel without gradients, and step by step with them."""
    model = twins(BASE)[1]
    tokens = tokens_for(model)
    with torch.no_grad():
        by_kernel = model(tokens)
    assert error(model(tokens).detach(), by_kernel) <= 1e-5
