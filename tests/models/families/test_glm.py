"""GLM-4.5 against `transformers`: groups of experts, a correction of the choice, an expert beside the others."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_configs import SIZES
from transformers_twins import error, tokens_for, twins

from probekit.activations import describe_plan, plan_extraction
from probekit.errors import DataError, UsageError
from probekit.models.families.glm import Glm, GlmConfig
from probekit.models.load import load_model
from probekit.models.weights import save_hf
from probekit.options import ExtractOptions
from probekit.tasks.base import Task

GLM_SIZES: dict[str, Any] = SIZES | {
    "d_mlp": 12, "d_dense_mlp": 40, "n_kv_heads": 2, "d_head": 8, "n_experts": 6, "n_active_experts": 3,
    "n_groups": 3, "n_active_groups": 2, "routed_factor": 1.7,
}  # fmt: skip
TINY = {
    "glm-4.5": GlmConfig(**GLM_SIZES, n_shared_experts=2, init_std=0.3),
    "glm-4.5-normed": GlmConfig(**GLM_SIZES, qk_norm=True, norm_top_k=False, qkv_bias=False, tie_embeddings=True),
}
BASE: dict[str, Any] = {
    "model_type": "glm4_moe", "hidden_size": 32, "intermediate_size": 40, "moe_intermediate_size": 12,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 61,
    "max_position_embeddings": 24, "n_routed_experts": 6, "num_experts_per_tok": 3, "n_shared_experts": 1,
    "n_group": 3, "topk_group": 2, "routed_scaling_factor": 1.7, "attention_bias": True,
    "rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5},
}  # fmt: skip
VARIANTS = {
    "glm4_moe": BASE,
    "glm4_moe, normed, in one group": BASE
    | {"use_qk_norm": True, "n_group": 1, "topk_group": 1, "n_shared_experts": 2, "attention_bias": False},
    "glm4_moe, weights of any sum": BASE
    | {"norm_topk_prob": False, "first_k_dense_replace": 0, "tie_word_embeddings": True, "num_hidden_layers": 2},
}
FEATURES = [
    ("glm4_moe", {"routed_factor": 1.0}),
    ("glm4_moe", {"n_active_groups": 3}),
    ("glm4_moe", {"rope_theta": 100.0}),
    ("glm4_moe, weights of any sum", {"norm_top_k": True}),
]
_OLD = {name: value for name, value in BASE.items() if name != "rope_parameters"}
OLD_AND_NEW = [
    (_OLD | {"rope_theta": 1e4, "partial_rotary_factor": 0.5, "rope_scaling": None}, BASE),
    (_OLD | {"num_nextn_predict_layers": 1}, BASE),
]
IMPOSSIBLE = [
    (BASE | {"n_group": 4}, r"n_experts \(n_routed_experts\) 6 must be a multiple of n_groups \(n_group\) 4"),
    (BASE | {"n_group": 6}, "leaves 1 expert in a group; expected 2 or more"),
    (BASE | {"topk_group": 4}, r"n_active_groups \(topk_group\) 4 of n_groups \(n_group\) 3 must have at least"),
    (BASE | {"topk_group": 1}, "must have at least n_active_experts .* 3 experts, 2 in each; correct one of them"),
    (BASE | {"num_experts_per_tok": 7}, "is more than n_experts"),
    (BASE | {"first_k_dense_replace": -1}, r"n_dense_layers \(first_k_dense_replace\) must be a whole number from 0"),
    (BASE | {"first_k_dense_replace": True}, r"n_dense_layers \(first_k_dense_replace\) must be a whole number from 0"),
    (BASE | {"n_shared_experts": 0}, r"n_shared_experts must be a whole number in 1"),
    (BASE | {"partial_rotary_factor": 0.3}, r"partial_rotary_factor is 0.3, but partial_rotary_factor in rope_param"),
    (_OLD | {"partial_rotary_factor": 0.3, "head_dim": 10}, "must give an even number of coordinates in 2..10"),
    (BASE | {"sliding_window": 4}, "sliding_window = 4 is not implemented for model_type glm4_moe"),
]
_HUB = {  # the arithmetic's fields of config.json on the Hub
    "model_type": "glm4_moe", "architectures": ["Glm4MoeForCausalLM"], "attention_bias": True,
    "attention_dropout": 0.0, "eos_token_id": [151329, 151336, 151338], "first_k_dense_replace": 1, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 10944,
    "max_position_embeddings": 131072, "moe_intermediate_size": 1408, "n_group": 1, "n_routed_experts": 128,
    "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 96, "num_experts_per_tok": 8,
    "num_hidden_layers": 46, "num_key_value_heads": 8, "num_nextn_predict_layers": 1, "pad_token_id": 151329,
    "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 1000000,
    "routed_scaling_factor": 1.0, "tie_word_embeddings": False, "topk_group": 1, "use_qk_norm": False,
    "vocab_size": 151552,
}  # fmt: skip
PUBLISHED = {"glm-4.5-air": (_HUB, 106_852_245_504)}  # 106 billion in the report


@pytest.fixture(scope="module")
def model() -> Any:
    return twins(BASE)[1]


def test_the_choice_is_by_corrected_scores_in_the_best_groups(model):
    """Token by token in Python; the correction decides some choices and multiplies nothing."""
    _, cache = model.run_with_cache(tokens_for(model))
    changed = 0
    for layer in (1, 2):
        correction = model.blocks[layer].mlp.correction_bias
        assert correction.any()
        logits, weights = (cache[point, layer].flatten(0, 1) for point in ("router_logits", "expert_weights"))
        for scores, found in zip(logits.sigmoid(), weights, strict=True):
            corrected = (scores + correction).tolist()
            groups = [corrected[i : i + 2] for i in (0, 2, 4)]
            best = sorted(range(3), key=lambda i: -sum(groups[i]))[:2]
            chosen = sorted((e for e in range(6) if e // 2 in best), key=lambda e: -corrected[e])[:3]
            wanted = torch.zeros(6)
            wanted[chosen] = 1.7 * scores[chosen] / scores[chosen].sum()
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
            changed += set(chosen) != set(scores.topk(3).indices.tolist())
    assert changed > 5


def test_the_correction_stays_float32_in_bfloat16(model, tmp_path):
    save_hf(model, tmp_path)
    loaded: Any = load_model(tmp_path, device="cpu", dtype="bfloat16")
    moved: Any = load_model(tmp_path, device="cpu", dtype="float32").to(torch.bfloat16)
    for each in (loaded, moved):
        for layer in (1, 2):
            mlp = each.blocks[layer].mlp
            assert mlp.router.weight.dtype == torch.bfloat16
            assert torch.equal(mlp.correction_bias, model.blocks[layer].mlp.correction_bias)
    save_hf(loaded, tmp_path / "narrow")
    again: Any = load_model(tmp_path / "narrow", device="cpu", dtype="bfloat16")
    assert again.fingerprint() == loaded.fingerprint()
    assert moved.double().blocks[1].mlp.correction_bias.dtype == torch.float64


def test_the_layer_that_predicts_one_more_token_is_not_read(model, tmp_path):
    """As published files have it after the last layer; a layer that is missing is still missed."""
    save_hf(model, tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    further = {"model.layers.3.eh_proj.weight": torch.ones(2), "model.layers.3.shared_head.norm.weight": torch.ones(2)}
    further |= {name.replace("layers.2.", "layers.3."): x.clone() for name, x in weights.items() if "layers.2." in name}
    save_file(weights | further, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text()) | {"num_nextn_predict_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for via in ("probekit", "transformers"):
        loaded = load_model(tmp_path, device="cpu", via=via)
        assert loaded.left_out == ("a multi-token prediction head",)
        assert error(loaded(tokens_for(model)), model(tokens_for(model))) <= 1e-5
        with pytest.raises(UsageError, match="layer"):
            loaded.run_with_cache(tokens_for(model), points="resid_pre.3")
    loaded = load_model(tmp_path, device="cpu")
    assert loaded.fingerprint() == model.fingerprint()
    task = Task("ids", [[5], [6]], {"label": np.arange(2)}, splits=np.array(["train"] * 2))
    assert "; without a multi-token prediction head\n" in describe_plan(
        plan_extraction(loaded, task, ExtractOptions(points="resid_pre"))
    )
    less = {name: x for name, x in (weights | further).items() if "layers.2." not in name}
    save_file(less, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"missing: .*model\.layers\.2\.input_layernorm"):
        load_model(tmp_path, device="cpu")


@pytest.mark.parametrize("via", ["probekit", "transformers"])
@pytest.mark.parametrize("counted", [1, 46])
def test_ordinary_layers_after_the_last_are_refused(via, counted, tmp_path):
    """Whatever config.json says of further heads; transformers is silent about a layer 46, whose number GLM-4.5 has."""
    cfg = GlmConfig(**GLM_SIZES | {"n_layers": counted + 1}, n_dense_layers=counted)
    save_hf(Glm(cfg).init_weights(0), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"num_hidden_layers": counted, "num_nextn_predict_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match=rf"layers\.{counted}\.input_layernorm"):
        load_model(tmp_path, device="cpu", via=via)
