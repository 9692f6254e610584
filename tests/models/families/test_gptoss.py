"""GPT-OSS against `transformers`: sinks, clamped experts, and experts that share a tensor in files."""

from typing import Any

import pytest
import torch
from tiny_configs import SIZES
from transformers_twins import error, tokens_for, twins

from probekit.models.config_fields import FULL, SLIDING
from probekit.models.families import families
from probekit.models.families.gptoss import GptOssConfig, attended_by_kernel, attended_in_parts, kernel_gives_sums
from probekit.models.layers import attention
from probekit.models.positional import RopeScaling

YARN = {
    "rope_theta": 150000.0, "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
    "truncate": False, "original_max_position_embeddings": 4096,
}  # fmt: skip
GPTOSS_SIZES: dict[str, Any] = SIZES | {
    "d_mlp": 24, "n_kv_heads": 2, "d_head": 8, "n_experts": 5, "n_active_experts": 2,
    "sliding_window": 4, "layer_types": (SLIDING, FULL, SLIDING), "limit": 0.5,
}  # fmt: skip
TINY = {
    "gpt-oss": GptOssConfig(
        **GPTOSS_SIZES, rope_scaling=RopeScaling("yarn", 4.0, 1, 32, 8, 1.2, truncate=False), init_std=0.2
    ),
}
BASE: dict[str, Any] = {
    "model_type": "gpt_oss", "hidden_size": 32, "intermediate_size": 20, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 61, "max_position_embeddings": 24,
    "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 4, "rope_parameters": YARN,
}  # fmt: skip
VARIANTS = {
    "gpt_oss": BASE,
    "gpt_oss, clamped": BASE | {"swiglu_limit": 0.3, "swiglu_alpha": 3.0, "head_dim": 6, "layer_types": [FULL] * 3},
    "gpt_oss without biases": BASE
    | {
        "rope_parameters": None,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "num_hidden_layers": 2,
        "num_experts_per_tok": 5,
    },
}
FEATURES = [
    ("gpt_oss", {"sliding_window": None, "layer_types": (FULL,) * 3}),
    ("gpt_oss", {"rope_scaling": None}),
    ("gpt_oss, clamped", {"limit": 7.0}),
    ("gpt_oss, clamped", {"gate_factor": 1.702}),
    ("gpt_oss", {"n_active_experts": 1}),
]
OLD = {"rope_theta": 150000.0, "rope_scaling": {name: x for name, x in YARN.items() if name != "rope_theta"}}
OLD_AND_NEW = [
    ({name: x for name, x in BASE.items() if name != "rope_parameters"}, BASE),
    ({name: x for name, x in BASE.items() if name != "rope_parameters"} | OLD, BASE),
]
IMPOSSIBLE = [
    (BASE | {"num_experts_per_tok": 6}, r"\(num_experts_per_tok\) 6 is more than n_experts \(num_local_experts\) 5"),
    (BASE | {"num_local_experts": 4096, "num_hidden_layers": 1000}, "are more than 65536 experts; correct one of them"),
    (BASE | {"layer_types": [FULL] * 2}, "one type for each of 3 layers .*; got a list of 2"),
    (BASE | {"layer_types": ["chunked_attention"] * 3}, "layer_types must be full_attention or sliding_attention"),
    (BASE | {"sliding_window": None}, "sliding_window must be a whole number"),
    (BASE | {"hidden_act": "gelu"}, "hidden_act = 'gelu' is not implemented for model_type gpt_oss"),
    (BASE | {"swiglu_limit": 0}, r"limit \(swiglu_limit\) must be a positive number"),
    (BASE | {"rope_parameters": YARN | {"truncate": "no"}}, "truncate must be true or false; got 'no'"),
    (BASE | {"head_dim": 7}, "d_head .* must be even"),
]
_HUB = {  # the arithmetic's fields of config.json on the Hub
    "model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0,
    "eos_token_id": 200002, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
    "initial_context_length": 4096, "initializer_range": 0.02, "intermediate_size": 2880,
    "layer_types": [SLIDING, FULL] * 12, "max_position_embeddings": 131072, "num_attention_heads": 64,
    "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32,
    "output_router_logits": False, "pad_token_id": 199999, "rms_norm_eps": 1e-05, "rope_scaling": OLD["rope_scaling"],
    "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
    "tie_word_embeddings": False, "vocab_size": 201088,
}  # fmt: skip
PUBLISHED = {  # 20.9 and 116.8 billion in the model card
    "gpt-oss-20b": (_HUB, 20_914_757_184),
    "gpt-oss-120b": (
        _HUB | {"num_hidden_layers": 36, "num_local_experts": 128, "layer_types": [SLIDING, FULL] * 18},
        116_829_156_672,
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_the_kernel_and_the_steps_give_the_softmax_with_a_sink(dtype, masked, monkeypatch):
    """Against attention to one more key whose value is 0; also where the steps see a few queries at once."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 9, n, 8, generator=generator) for n in (6, 2, 2))
    sinks = torch.randn(6, generator=generator)
    lower = torch.ones(9, 9, dtype=torch.bool).tril()
    allowed = lower & (torch.rand(2, 9, 9, generator=generator) < 0.7) if masked else lower.expand(2, 9, 9)
    if masked:
        allowed[1, 4] = False  # a query that may attend to nothing but the sink
    scores = torch.einsum("blhk,bmhk->bhlm", q, k.repeat_interleave(3, 2)) / 8**0.5
    scores = scores.masked_fill(~allowed[:, None], -torch.inf)
    rows = torch.cat([scores, sinks[:, None, None].expand(2, 6, 9, 1)], -1).softmax(-1)[..., :-1]
    wanted = torch.einsum("bhlm,bmhk->blhk", rows, v.repeat_interleave(3, 2))
    q, k, v = (x.to(dtype) for x in (q, k, v))
    mask: Any = allowed if masked else "causal"
    monkeypatch.setattr("probekit.models.families.gptoss.SCORES", 2 * 6 * 9 * 2)
    assert kernel_gives_sums()
    with torch.no_grad():
        for attended in (attended_by_kernel, attended_in_parts):
            found = attended(q, k, v, mask, sinks.to(dtype))
            assert found.dtype == dtype
            assert error(found.float(), wanted) <= (1e-5 if dtype == torch.float32 else 2e-2)
        far_below = attended_by_kernel(q, k, v, mask, torch.full((6,), -1e4))
        torch.testing.assert_close(far_below, attention(q, k, v, mask), rtol=1e-2, atol=1e-5)


def test_what_computes_without_hooks_is_the_same_with_gradients_and_without():
    _, model = twins(BASE)
    tokens = tokens_for(model)
    with torch.no_grad():
        by_kernel = model(tokens)
    assert error(model(tokens).detach(), by_kernel) <= 1e-5


def test_weights_of_all_experts_are_one_tensor_by_turns():
    family, model = families()["gpt_oss"], twins(BASE)[1]
    places = family.hf_names(model.cfg)
    gate, up, down = (places[f"blocks.2.mlp.experts.3.{part}.weight"] for part in ("gate", "up", "down"))
    assert gate.name == up.name == "model.layers.2.mlp.experts.gate_up_proj"
    assert (gate.entry, gate.rows, gate.transposed) == (3, slice(0, None, 2), True)
    assert (up.entry, up.rows) == (3, slice(1, None, 2))
    assert (down.name, down.entry, down.rows) == ("model.layers.2.mlp.experts.down_proj", 3, None)
    bias = places["blocks.2.mlp.experts.3.up.bias"]
    assert (bias.name, bias.entry, bias.rows) == ("model.layers.2.mlp.experts.gate_up_proj_bias", 3, slice(1, None, 2))
    assert not bias.transposed
