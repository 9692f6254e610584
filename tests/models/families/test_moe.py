"""Mixtral, Qwen2-MoE, Qwen3-MoE and OLMoE against `transformers`; router and experts against their definition."""

from typing import Any

import pytest
import torch
from models.families import test_deepseek, test_glm
from safetensors.torch import load_file, save_file
from tiny_configs import SIZES
from torch import Tensor
from torch.nn.functional import silu
from transformers_twins import error, tokens_for, twins

from probekit.errors import DataError, UsageError
from probekit.models.experts import SparseMLP
from probekit.models.families.moe import Moe, MoeConfig
from probekit.models.load import load_model
from probekit.points import Place

MOE_SIZES: dict[str, Any] = SIZES | {"d_mlp": 24, "n_kv_heads": 2, "d_head": 8, "n_experts": 6}
QWEN3: dict[str, Any] = {"model_type": "qwen3_moe", "norm_top_k": False, "dense_layers": (1,), "d_dense_mlp": 40}
OLMOE: dict[str, Any] = {"model_type": "olmoe", "norm_top_k": False}
QWEN2: dict[str, Any] = {"model_type": "qwen2_moe", "norm_top_k": False, "d_shared_mlp": 28, "attention_bias": True}
TINY = {
    "mixtral": MoeConfig(**MOE_SIZES, sliding_window=4),
    "qwen3-moe": MoeConfig(**MOE_SIZES | {"d_head": 6}, **QWEN3, n_active_experts=3, tie_embeddings=True),
    "qwen2-moe": MoeConfig(**MOE_SIZES, **QWEN2, dense_layers=(0,), d_dense_mlp=36),
    "olmoe": MoeConfig(**MOE_SIZES, **OLMOE, n_active_experts=3, clip_qkv=1.5),
}
BASE = {
    "model_type": "mixtral", "hidden_size": 32, "intermediate_size": 20, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 61, "max_position_embeddings": 24,
    "num_local_experts": 5, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5,
}  # fmt: skip
MIXTRAL = BASE | {"num_hidden_layers": 2}
OLMOE_HF = {name: value for name, value in MIXTRAL.items() if name != "num_local_experts"}
OLMOE_HF |= {"model_type": "olmoe", "num_experts": 5, "eos_token_id": 2, "pad_token_id": None}
QWEN3_HF = OLMOE_HF | {"model_type": "qwen3_moe", "moe_intermediate_size": 12, "head_dim": 6}
QWEN2_HF = {name: value for name, value in QWEN3_HF.items() if name != "head_dim"}
QWEN2_HF |= {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 28}
LINEAR = {"rope_theta": 1e4, "rope_type": "linear", "factor": 3.0}
VARIANTS = {
    "mixtral": MIXTRAL,
    "mixtral with a window": MIXTRAL | {"sliding_window": 4, "head_dim": 6, "tie_word_embeddings": True},
    "mixtral, one of one expert": MIXTRAL | {"num_local_experts": 1, "num_experts_per_tok": 1, "hidden_act": "gelu"},
    "mixtral, all experts": MIXTRAL | {"num_experts_per_tok": 5, "rope_parameters": LINEAR},
    "qwen3_moe": QWEN3_HF,
    "qwen3_moe, stretched": QWEN3_HF
    | {
        "rope_parameters": {
            "rope_theta": 1e4,
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 6,
        }
    },
    "qwen3_moe, weights of sum 1": QWEN3_HF | {"norm_topk_prob": True, "tie_word_embeddings": True},
    "qwen3_moe with dense layers": QWEN3_HF
    | {"num_hidden_layers": 3, "decoder_sparse_step": 2, "attention_bias": True, "num_experts_per_tok": 3},
    "qwen3_moe with one dense layer and a window": QWEN3_HF
    | {"num_hidden_layers": 3, "mlp_only_layers": [1], "use_sliding_window": True, "sliding_window": 3},
    "qwen3_moe whose window is off": QWEN3_HF | {"use_sliding_window": False, "sliding_window": 3},
    "qwen2_moe": QWEN2_HF,
    "qwen2_moe, no biases, a dense layer": QWEN2_HF
    | {"qkv_bias": False, "norm_topk_prob": True, "mlp_only_layers": [0], "tie_word_embeddings": True, "head_dim": 6},
    "olmoe": OLMOE_HF | {"num_key_value_heads": None},
    "olmoe, clipped": OLMOE_HF | {"clip_qkv": 0.7, "norm_topk_prob": True, "attention_bias": True},
}


FEATURES = [
    ("mixtral with a window", {"sliding_window": None}),
    ("qwen3_moe, weights of sum 1", {"norm_top_k": False}),
    ("qwen3_moe with one dense layer and a window", {"sliding_window": None}),
    ("olmoe, clipped", {"clip_qkv": None}),
    ("qwen2_moe", {"norm_top_k": True}),
    ("mixtral", {"n_active_experts": 1}),
]


@pytest.fixture(
    scope="module", params=["mixtral with a window", "qwen3_moe with dense layers", "olmoe, clipped", "qwen2_moe"]
)
def pair(request) -> tuple[Any, Moe]:
    return twins(VARIANTS[request.param])


@pytest.fixture(scope="module")
def each(pair) -> Moe:
    return pair[1]


def mlps_of(model: Moe) -> dict[int, SparseMLP]:
    """The sparse layers' mixtures."""
    return {i: block.mlp for i, block in enumerate(model.blocks) if isinstance(block.mlp, SparseMLP)}


def beside(mlp: Any, x: Tensor) -> Tensor:
    """What an expert beside the others adds; 0 without one."""
    if not hasattr(mlp, "shared"):
        return torch.zeros_like(x)
    gate = torch.sigmoid(x @ mlp.shared_gate.weight.T)
    return gate * ((silu(x @ mlp.shared.gate.weight.T) * (x @ mlp.shared.up.weight.T)) @ mlp.shared.down.weight.T)


def test_the_weights_are_the_largest_entries_of_the_softmax(each):
    _, cache = each.run_with_cache(tokens_for(each))
    for i, mlp in mlps_of(each).items():
        weights, shares = cache["expert_weights", i], cache["router_logits", i].softmax(-1)
        chosen = weights > 0
        assert (chosen.sum(-1) == each.cfg.n_active_experts).all()
        assert shares.masked_fill(~chosen, 2).amin(-1).gt(shares.masked_fill(chosen, -1).amax(-1)).all()
        kept = shares * chosen
        wanted = kept / kept.sum(-1, keepdim=True) if each.cfg.norm_top_k else kept
        assert error(weights, wanted) <= 1e-6
        assert error(cache["router_logits", i], cache["ln2_normalized", i] @ mlp.router.weight.T) <= 1e-6


def test_the_output_is_the_weighted_sum_over_all_experts(each):
    _, cache = each.run_with_cache(tokens_for(each))
    for i, mlp in mlps_of(each).items():
        x = cache["ln2_normalized", i]
        experts: list[Any] = list(mlp.experts)
        outputs = [(silu(x @ e.gate.weight.T) * (x @ e.up.weight.T)) @ e.down.weight.T for e in experts]
        wanted = torch.einsum("ble,bled->bld", cache["expert_weights", i], torch.stack(outputs, 2))
        assert error(cache["mlp_out", i], wanted + beside(mlp, x)) <= 1e-6


def test_each_expert_computes_its_own_tokens_once(each):
    rows: dict[Any, list[int]] = {}
    handles = [
        expert.register_forward_hook(lambda e, args, _: rows.setdefault(e, []).append(len(args[0])))
        for mlp in mlps_of(each).values()
        for expert in mlp.experts
    ]
    _, cache = each.run_with_cache(tokens_for(each, 1, 2))  # so few tokens that some expert has none
    for handle in handles:
        handle.remove()
    called = [[rows.get(expert, []) for expert in mlp.experts] for mlp in mlps_of(each).values()]
    counts = [(cache["expert_weights", i] > 0).sum((0, 1)).tolist() for i in mlps_of(each)]
    assert called == [[[n] if n else [] for n in layer] for layer in counts]
    assert any(n == 0 for layer in counts for n in layer)


def test_a_hook_on_the_weights_says_which_experts_compute(each):
    tokens = tokens_for(each)
    i, mlp = next(iter(mlps_of(each).items()))

    def only_last(weights: Tensor, _: Any) -> Tensor:
        return torch.zeros_like(weights).index_fill(-1, torch.tensor([each.cfg.n_experts - 1]), 0.5)

    with torch.no_grad(), each.hooks([(("expert_weights", i), only_last)]):
        _, cache = each.run_with_cache(tokens)
        x = cache["ln2_normalized", i]
        assert error(cache["mlp_out", i], 0.5 * mlp.experts[-1](x) + beside(mlp, x)) <= 1e-6
    with torch.no_grad(), each.hooks([(("expert_weights", i), lambda x, _: 0 * x)]):
        _, cache = each.run_with_cache(tokens)
        torch.testing.assert_close(cache["mlp_out", i], beside(mlp, cache["ln2_normalized", i]), rtol=1e-6, atol=1e-6)
    with torch.no_grad(), each.hooks([(("router_logits", i), lambda x, _: x.flip(-1))]):
        _, flipped = each.run_with_cache(tokens)
    _, plain = each.run_with_cache(tokens)
    assert error(flipped["expert_weights", i], plain["expert_weights", i].flip(-1)) <= 1e-6


def test_ties_are_decided_as_transformers_does_and_not_by_the_batch(pair):
    """With a router of zeros every expert is as likely."""
    oracle, model = pair
    tied = Moe(model.cfg)
    tied.load_state_dict(model.state_dict())
    with torch.no_grad():
        for mlp in mlps_of(tied).values():
            mlp.router.weight.zero_()
        state = {name: 0 * w if name.endswith("mlp.gate.weight") else w for name, w in oracle.state_dict().items()}
        twin = type(oracle)(oracle.config).eval()
        twin.load_state_dict(state)
        tokens = tokens_for(tied, 40)
        logits, cache = tied.run_with_cache(tokens)
        assert error(logits, twin(tokens).logits) <= 1e-5
        for i in mlps_of(tied):
            assert not cache["router_logits", i].any()
            assert (cache["expert_weights", i] == cache["expert_weights", i][0, 0]).all()
            _, single = tied.run_with_cache(tokens[:1, :1])
            assert torch.equal(single["expert_weights", i][0, 0], cache["expert_weights", i][0, 0])


def test_the_batch_changes_neither_the_choice_nor_the_values(each):
    """Rounding moves a choice only where two logits agree to about 1e-6; of 400 tokens the nearest differ by 1e-4."""
    tokens = tokens_for(each, 40, 10)
    with torch.no_grad():
        _, batch = each.run_with_cache(tokens)
        singles = [each.run_with_cache(row[None])[1] for row in tokens]
    for name, x in batch.items():
        alone = torch.cat([single[name] for single in singles])
        finite = alone.isfinite()
        assert torch.equal(x.isfinite(), finite)
        assert error(x[finite], alone[finite]) <= 5e-6, name
    for i in mlps_of(each):
        alone = torch.cat([single["expert_weights", i] for single in singles])
        assert torch.equal(alone > 0, batch["expert_weights", i] > 0)
        top = batch["router_logits", i].topk(each.cfg.n_active_experts + 1).values
        assert 1e-5 < (top[..., -2] - top[..., -1]).min() < 0.03


def test_the_router_computes_in_float32_under_bfloat16(each):
    narrow = Moe(each.cfg)
    narrow.load_state_dict(each.state_dict())
    narrow.bfloat16()
    with torch.no_grad():
        logits, cache = narrow.run_with_cache(tokens_for(each, 8))
    assert logits.dtype == cache["mlp_out", 0].dtype == torch.bfloat16
    for i, mlp in mlps_of(narrow).items():
        wanted = cache["ln2_normalized", i].double() @ mlp.router.weight.double().T
        assert cache["router_logits", i].dtype == cache["expert_weights", i].dtype == torch.float32
        assert error(cache["router_logits", i].double(), wanted) <= 1e-6
        assert (cache["router_logits", i].diff(dim=-1) != 0).all()  # bfloat16 has 256 numbers between 1 and 2


def test_sparse_layers_have_a_router_and_dense_ones_an_mlp():
    _, model = twins(VARIANTS["qwen3_moe with one dense layer and a window"])
    having = {point: {Place.of(name)[1] for name in model.points if Place.of(name)[0] == point}
              for point in ("router_logits", "expert_weights", "mlp_pre", "mlp_pre_linear", "mlp_post")}  # fmt: skip
    sparse, dense = {0, 2}, {1}
    assert list(having.values()) == [sparse, sparse, dense, dense, dense]
    assert model.resolve("router_logits") == [f"blocks.{i}.mlp.hook_router_logits" for i in (0, 2)]
    assert model.size_of("F", "mlp_pre") == 20
    with pytest.raises(UsageError, match=r"no point router_logits\.1.* router_logits 0,2"):
        model.resolve(("router_logits", 1))
    with pytest.raises(UsageError, match=r"no point mlp_pre\.0.*each token has its own.*mlp_pre 1"):
        model.resolve(("mlp_pre", 0))


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", "olmoe", "glm4_moe", "deepseek_v3"])
def test_a_folder_of_fused_experts_loads(tmp_path, name):
    """What transformers 5 keeps in memory, written as it is."""
    oracle, model = twins((VARIANTS | {"glm4_moe": test_glm.BASE, "deepseek_v3": test_deepseek.BASE})[name])
    oracle.save_pretrained(tmp_path, save_original_format=False)
    weights = load_file(tmp_path / "model.safetensors")
    stacked = next(name for name in weights if name.endswith(".experts.gate_up_proj"))
    assert load_model(tmp_path, device="cpu").fingerprint() == model.fingerprint()
    weights[stacked] = weights[stacked][:-1]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=rf"misshapen: {stacked} \(expected"):
        load_model(tmp_path, device="cpu")


_HUB = {  # the arithmetic's fields of config.json on the Hub
    "mixtral": {
        "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
        "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
        "intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32,
        "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
        "output_router_logits": False, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02,
        "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 32000,
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False,
        "attention_dropout": 0.0, "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151645,
        "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
        "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [],
        "moe_intermediate_size": 768, "norm_topk_prob": True, "num_attention_heads": 32, "num_experts": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": False,
        "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
        "sliding_window": None, "tie_word_embeddings": False, "use_sliding_window": False, "vocab_size": 151936,
    },
    "qwen2_moe": {
        "model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"], "attention_dropout": 0.0,
        "bos_token_id": 151643, "decoder_sparse_step": 1, "eos_token_id": 151643, "hidden_act": "silu",
        "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 5632, "max_position_embeddings": 8192,
        "max_window_layers": 21, "moe_intermediate_size": 1408, "norm_topk_prob": False, "num_attention_heads": 16,
        "num_experts": 60, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 16,
        "output_router_logits": False, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": 5632, "sliding_window": 32768, "tie_word_embeddings": False,
        "use_sliding_window": False, "vocab_size": 151936,
    },
    "olmoe": {
        "model_type": "olmoe", "architectures": ["OlmoeForCausalLM"], "attention_bias": False, "clip_qkv": None,
        "eos_token_id": 50279, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
        "intermediate_size": 1024, "max_position_embeddings": 4096, "norm_topk_prob": False, "num_attention_heads": 16,
        "num_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 16, "num_key_value_heads": 16,
        "output_router_logits": False, "pad_token_id": 1, "rms_norm_eps": 1e-05, "rope_scaling": None,
        "rope_theta": 10000.0, "router_aux_loss_coef": 0.01, "tie_word_embeddings": False, "vocab_size": 50304,
    },
}  # fmt: skip
_COUNTS = {  # as the files' index says
    "mixtral": 46_702_792_704,
    "qwen2_moe": 14_315_784_192,
    "qwen3_moe": 30_532_122_624,
    "olmoe": 6_919_161_856,
}
PUBLISHED = {model_type: (hf, _COUNTS[model_type]) for model_type, hf in _HUB.items()}


IMPOSSIBLE = [
    (OLMOE_HF | {"num_local_experts": 4}, "num_experts is 5, but num_local_experts is 4; leave one out"),
    (QWEN3_HF | {"num_experts_per_tok": 6}, r"\(num_experts_per_tok\) 6 is more than n_experts \(num_experts\) 5"),
    (QWEN3_HF | {"num_experts": 4096, "num_hidden_layers": 1000}, "are more than 65536 experts; correct one of them"),
    (QWEN3_HF | {"mlp_only_layers": [2]}, r"mlp_only_layers must lie in 0\.\.1; got 2"),
    (QWEN3_HF | {"mlp_only_layers": [-1]}, r"mlp_only_layers must lie in 0\.\.1; got -1"),
    (QWEN3_HF | {"mlp_only_layers": [True]}, "mlp_only_layers must lie"),
    (QWEN3_HF | {"mlp_only_layers": 1}, "mlp_only_layers must be a list of layers; got 1"),
    (QWEN3_HF | {"decoder_sparse_step": 0}, "decoder_sparse_step must be a whole number from 1; got 0"),
    (QWEN3_HF | {"mlp_only_layers": [0], "intermediate_size": None}, r"d_dense_mlp \(intermediate_size\) must be"),
    (QWEN3_HF | {"use_sliding_window": "yes"}, "use_sliding_window must be true or false"),
    (QWEN3_HF | {"use_sliding_window": True, "sliding_window": 0}, "sliding_window must be a whole number in 1"),
    (QWEN3_HF | {"layer_types": ["full_attention"] * 3}, "for each of 2 layers .*; got a list of 3"),
    (QWEN3_HF | {"layer_types": ["sliding_attention"] * 2}, "layer_types .* not implemented"),
    (QWEN3_HF | {"shared_expert_intermediate_size": 8}, "shared_expert_intermediate_size = 8 is not implemented"),
    (QWEN3_HF | {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "rope scaling 'dynamic' is not implemented"),
    (QWEN2_HF | {"use_sliding_window": True}, "use_sliding_window = True is not implemented for model_type qwen2_moe"),
    (QWEN2_HF | {"shared_expert_intermediate_size": 0}, r"d_shared_mlp \(shared_expert_intermediate_size\) must be a"),
    (MIXTRAL | {"sliding_window": -4}, "sliding_window must be a whole number in 1"),
    (MIXTRAL | {"attention_bias": True}, "attention_bias = True is not implemented for model_type mixtral"),
    (MIXTRAL | {"norm_topk_prob": False}, "norm_topk_prob = False is not implemented for model_type mixtral"),
    (MIXTRAL | {"num_key_value_heads": 3}, "must be a multiple of n_kv_heads"),
    (MIXTRAL | {"quantization_config": {"bits": 4}}, "quantization_config"),
    (OLMOE_HF | {"sliding_window": 4}, "sliding_window = 4 is not implemented for model_type olmoe; only None is"),
    (OLMOE_HF | {"head_dim": 6}, "head_dim = 6 is not implemented for model_type olmoe; only 8 is"),
]
