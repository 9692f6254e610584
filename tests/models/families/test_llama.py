"""Llama and its relatives, written by hand, against `transformers`, against a trained model, and against themselves."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_configs import SIZES
from torch.nn.functional import cross_entropy
from transformers_twins import twins

from probekit.errors import DataError
from probekit.models.config_fields import deciding_fields
from probekit.models.families.llama import Llama, LlamaConfig
from probekit.models.load import load_model
from probekit.models.positional import RopeScaling
from probekit.models.weights import save_hf

TINY = {
    "llama": LlamaConfig(**SIZES, n_kv_heads=4, d_head=8),
    "llama-grouped": LlamaConfig(**SIZES, n_kv_heads=2, d_head=6, tie_embeddings=True),
    "llama-biases": LlamaConfig(**SIZES, n_kv_heads=1, d_head=10, qkv_bias=True, out_bias=True, mlp_bias=True),
    "mistral": LlamaConfig(**SIZES, n_kv_heads=2, d_head=8, model_type="mistral"),
    "mistral-window": LlamaConfig(**SIZES, n_kv_heads=2, d_head=8, sliding_window=5, model_type="mistral"),
    "qwen2": LlamaConfig(**SIZES, n_kv_heads=2, d_head=8, qkv_bias=True, model_type="qwen2"),
    "qwen3": LlamaConfig(
        **SIZES, n_kv_heads=2, d_head=10, sliding_window=4, n_full_layers=1, bos_token_id=None, model_type="qwen3"
    ),
    "phi3": LlamaConfig(**SIZES, n_kv_heads=2, d_head=8, sliding_window=5, rotary_factor=0.5, model_type="phi3"),
    "phi3-long": LlamaConfig(
        **SIZES,
        n_kv_heads=4,
        d_head=8,
        rope_scaling=RopeScaling(
            "longrope",
            4.0,
            original_n_ctx=24,
            attention_factor=1.2,
            short_factors=(1.0, 1.5, 2.0, 3.0),
            long_factors=(2.0, 9.0, 20.0, 60.0),
        ),
        model_type="phi3",
    ),
}
BASE = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 61, "max_position_embeddings": 24,
}  # fmt: skip
MISTRAL = BASE | {"model_type": "mistral", "sliding_window": None}
QWEN2 = BASE | {"model_type": "qwen2", "rms_norm_eps": 1e-5}
QWEN3 = QWEN2 | {"model_type": "qwen3", "head_dim": 10}
PHI3 = BASE | {"model_type": "phi3", "rms_norm_eps": 1e-5, "pad_token_id": None}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 6}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.3, 2.0, 5.0], "long_factor": [2.0, 7.0, 30.0, 60.0]}
LONG_OF_2024 = {"type": "su", "short_factor": LONG["short_factor"], "long_factor": LONG["long_factor"]}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}  # fmt: skip
VARIANTS = {
    "grouped": BASE,
    "tied": BASE | {"tie_word_embeddings": True},
    "one kv head": BASE | {"num_key_value_heads": 1, "num_hidden_layers": 2},
    "wide heads": BASE | {"head_dim": 12},
    "narrow heads": BASE | {"head_dim": 2, "hidden_act": "gelu_pytorch_tanh"},
    "biases": BASE | {"attention_bias": True, "mlp_bias": True},
    "theta": BASE | {"rope_parameters": {"rope_theta": 123.0, "rope_type": "default"}},
    "linear": BASE | {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 3.0}},
    "llama3": BASE | {"rope_parameters": {"rope_theta": 5e5} | LLAMA3},
    "mistral": MISTRAL,
    "mistral with a window": MISTRAL | {"sliding_window": 4, "head_dim": 6},
    "qwen2": QWEN2,
    "qwen2 with a window": QWEN2 | {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    "qwen2 whose window is off": QWEN2 | {"use_sliding_window": False, "sliding_window": 3},
    "yarn": BASE | {"rope_parameters": {"rope_theta": 300.0} | YARN},
    "qwen3": QWEN3,
    "qwen3, tied, with biases": QWEN3 | {"tie_word_embeddings": True, "attention_bias": True, "num_key_value_heads": 1},
    "qwen3 with yarn": QWEN3 | {"rope_parameters": {"rope_theta": 1e6} | YARN},
    "qwen3 with a window": QWEN3 | {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 2},
    "qwen3 with a window by layer_types": QWEN3
    | {"use_sliding_window": True, "sliding_window": 4, "layer_types": ["full_attention", *["sliding_attention"] * 2]},
    "phi3": PHI3,
    "phi3 with a window": PHI3 | {"sliding_window": 4, "num_key_value_heads": 4},
    "phi3, rotated in part": PHI3 | {"partial_rotary_factor": 0.5, "tie_word_embeddings": True},
    "phi3 with longrope": PHI3 | {"original_max_position_embeddings": 12, "rope_parameters": LONG},
    "phi3 with longrope, rotated in part": PHI3
    | {
        "original_max_position_embeddings": 12,
        "partial_rotary_factor": 0.75,
        "rope_parameters": LONG | {"short_factor": [1.0, 1.3, 2.0], "long_factor": [2.0, 7.0, 30.0]},
    },
}


FEATURES = [
    ("qwen3 with a window", {"sliding_window": None}),
    ("qwen3 with a window", {"n_full_layers": 0}),
    ("qwen3", {"model_type": "llama"}),
    ("yarn", {"rope_scaling": None}),
    ("phi3 with a window", {"sliding_window": None}),
    ("phi3, rotated in part", {"rotary_factor": 1.0}),
    ("phi3 with longrope", {"rope_scaling": None}),
]


@pytest.fixture(scope="module")
def model() -> Llama:
    return twins(BASE)[1]


@pytest.mark.parametrize("init_std", [0.02, None])
@pytest.mark.parametrize("tied", [True, False])
def test_initial_weights(init_std, tied):
    cfg = LlamaConfig(64, 4, 2, 16, 128, 2, 8, 50, init_std=init_std, tie_embeddings=tied, qkv_bias=True)
    one, two, other = (Llama(cfg).init_weights(seed) for seed in (3, 3, 4))
    assert one.fingerprint() == two.fingerprint() != other.fingerprint()
    embedding = (2 / (50 + 64)) ** 0.5 if tied else 1.0
    expected = {
        "embed.weight": init_std or embedding,
        "blocks.1.mlp.gate.weight": init_std or (2 / 192) ** 0.5,
        "blocks.0.attn.k.weight": init_std or (2 / 96) ** 0.5,
    }
    for name, std in expected.items():
        assert one.get_parameter(name).std().item() == pytest.approx(std, rel=0.1), name
    assert torch.equal(one.get_parameter("blocks.0.attn.q.bias"), torch.zeros(64))
    assert torch.equal(one.state_dict()["ln_final.weight"], torch.ones(64))


_REFUSED = [
    ({"num_attention_heads": 5}, r"d_model \(hidden_size\) 32 must be a multiple of n_heads \(num_attention_heads\) 5"),
    ({"num_key_value_heads": 3}, r"n_heads \(num_attention_heads\) 4 must be a multiple of n_kv_heads .* 3"),
    ({"head_dim": 7}, r"d_head \(head_dim\) must be even"),
    ({"hidden_size": 12}, r"d_head \(head_dim\) must be even.*; got 3"),
    ({"hidden_act": "swish"}, "silu"),
    ({"attention_bias": 1}, "qkv_bias"),
    ({"sliding_window": 8}, "sliding_window = 8 is not implemented for model_type llama"),
    ({"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "layer_types"),
    ({"model_type": "mistral", "attention_bias": True}, "attention_bias = True is not implemented"),
    ({"model_type": "mistral", "sliding_window": 0}, "sliding_window"),
    ({"model_type": "mistral", "sliding_window": 4, "layer_types": ["full_attention"] * 3}, "layer_types"),
    ({"model_type": "qwen2", "attention_bias": False}, "attention_bias = False is not implemented"),
    ({"model_type": "qwen2", "use_sliding_window": "yes"}, "use_sliding_window"),
    ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": -1}, "max_window_layers"),
    (
        {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 0, "layer_types": ["x"] * 3},
        "layer_types",
    ),
    (
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        "'dynamic' is not implemented; only default, linear, ",
    ),
    ({"rope_parameters": YARN | {"truncate": None}}, "yarn: truncate must be true or false; got None"),
    ({"rope_parameters": YARN | {"rope_theta": 1}}, "rope_theta must be above 1 for rope scaling yarn"),
    ({"rope_parameters": YARN | {"mscale": "2", "mscale_all_dim": 1}}, "yarn: mscale must be a positive number"),
    ({"rope_parameters": YARN | {"beta_fast": 0.5}}, "low_freq_factor 1 must be below high_freq_factor 0.5"),
    ({"rope_parameters": YARN | {"short_factor": [1]}}, "'yarn' with 'short_factor' is not implemented"),
    ({"rope_parameters": YARN, "original_max_position_embeddings": 7}, "is 7, but 6 in rope_parameters; leave one out"),
    ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0]}}, "'longrope'"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 32}}, "'linear' with 'beta_fast'"),
    ({"rope_scaling": LLAMA3 | {"high_freq_factor": None}}, "high_freq_factor must be a positive number"),
    ({"rope_scaling": ["linear"]}, "rope_parameters and rope_scaling must be objects"),
    ({"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": LLAMA3}, "they differ"),
    ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, "leave one out"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    (
        {
            "model_type": "qwen3",
            "sliding_window": 4,
            "use_sliding_window": True,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
        "layer_types .* are not implemented",
    ),
    ({"model_type": "qwen3", "layer_types": ["sliding_attention"] * 3}, "layer_types"),
    ({"model_type": "qwen3", "layer_types": ["full_attention"] * 5}, "for each of 3 layers .*; got a list of 5"),
    ({"model_type": "phi3", "original_max_position_embeddings": -1}, "original_max_position_embeddings must be a pos"),
    ({"rope_parameters": {"rope_type": "default", "original_max_position_embeddings": 0}}, "must be a positive number"),
    (
        {"model_type": "phi3", "rope_parameters": {"partial_rotary_factor": -0.5}, "partial_rotary_factor": 1.0},
        "partial_rotary_factor must be a positive number",
    ),
    (
        {"model_type": "phi3", "partial_rotary_factor": 0.4},
        "an even number of coordinates in 2..8 .* gives 3",
    ),
    (
        {"model_type": "phi3", "partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 1.0}},
        "leave one",
    ),
    (  # transformers reads rope_scaling alone
        {"model_type": "phi3", "rope_parameters": {"partial_rotary_factor": 0.5}, "rope_scaling": {"rope_theta": 1e4}},
        "they differ",
    ),
    ({"model_type": "phi3", "rope_scaling": LLAMA3}, "'llama3' is not implemented; only default and longrope are"),
    ({"model_type": "phi3", "rope_scaling": LONG | {"short_factor": 2.0}}, "must be lists of numbers"),
    (
        {"model_type": "phi3", "rope_scaling": LONG | {"long_factor": ["a"]}},
        "each short_factor and long_factor must",
    ),
    ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    (
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "default"},
                "sliding_attention": {"rope_type": "default"},
            }
        },
        "full_attention",
    ),
]
_SILENT = {key: value for key, value in BASE.items() if key != "num_key_value_heads"}
IMPOSSIBLE = [
    *((BASE | change, match) for change, match in _REFUSED),
    *((_SILENT | {"model_type": kind}, "n_kv_heads .* is missing") for kind in ("mistral", "qwen2")),
]


_SAME = [
    ({"rope_theta": 5e5}, {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}),
    ({"rope_theta": 5e5, "rope_scaling": None}, {"rope_parameters": {"rope_theta": 5e5}}),
    ({}, {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}, "pretraining_tp": 2}),
    (
        {"rope_theta": 5e5, "rope_scaling": LLAMA3},
        {"rope_theta": 5e5, "rope_parameters": LLAMA3 | {"rope_theta": 5e5}},
    ),
    ({"rope_scaling": {"type": "linear", "factor": 2}}, {"rope_parameters": {"rope_type": "linear", "factor": 2}}),
    (PHI3, PHI3 | {"partial_rotary_factor": None}),
    (
        PHI3 | {"partial_rotary_factor": 0.5},
        PHI3
        | {"rope_parameters": {"rope_type": "default"}}
        | {"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}},
    ),
    (
        PHI3 | {"original_max_position_embeddings": 12, "partial_rotary_factor": 1.0, "rope_scaling": LONG_OF_2024},
        PHI3
        | {
            "rope_parameters": LONG | {"original_max_position_embeddings": 12, "partial_rotary_factor": 1.0},
            "original_max_position_embeddings": 12,
        },
    ),
]
OLD_AND_NEW = [(BASE | old, BASE | new) for old, new in _SAME]


def test_new_fields_leave_the_identity_of_older_stores_as_it_was():
    cfg = LlamaConfig.from_hf(BASE | {"rope_scaling": LLAMA3})
    fields = deciding_fields(cfg)
    assert fields["rope_scaling"] == {"kind": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                      "original_n_ctx": 16}  # fmt: skip
    assert not fields.keys() & {"rotary_factor", "head_bias"}
    phi3 = deciding_fields(LlamaConfig.from_hf(VARIANTS["phi3 with longrope, rotated in part"]))
    assert phi3["rotary_factor"] == 0.75
    assert phi3["rope_scaling"].keys() == {*fields["rope_scaling"], "attention_factor", "short_factors", "long_factors"}


PUBLISHED = {  # what their config.json says, as transformers wrote it then, and how many parameters they have
    "Llama 3.1 8B": (
        {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
         "rope_theta": 500000.0, "rope_scaling": LLAMA3 | {"original_max_position_embeddings": 8192},
         "attention_bias": False, "mlp_bias": False, "eos_token_id": [128001, 128008, 128009]},
        8_030_261_248,
    ),
    "Mistral 7B v0.1": (
        {"model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768,
         "sliding_window": 4096, "rope_theta": 10000.0},
        7_241_732_096,
    ),
    "Qwen2 0.5B": (
        {"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
         "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 131072,
         "max_window_layers": 24, "sliding_window": 131072, "use_sliding_window": False, "tie_word_embeddings": True,
         "rope_theta": 1000000.0},
        494_032_768,
    ),
    "Phi-3.5 mini": (
        {"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32064, "max_position_embeddings": 131072,
         "original_max_position_embeddings": 4096, "rope_theta": 10000.0, "sliding_window": 262144, "rope_scaling": {
             "type": "longrope", "short_factor": [1.0 + i / 50 for i in range(48)],
             "long_factor": [1.0 + i for i in range(48)]}},
        3_821_079_552,
    ),
    "Phi-4 mini": (
        {"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
         "num_attention_heads": 24, "num_key_value_heads": 8, "vocab_size": 200064, "max_position_embeddings": 131072,
         "original_max_position_embeddings": 4096, "rope_theta": 10000.0, "sliding_window": 262144,
         "partial_rotary_factor": 0.75, "tie_word_embeddings": True, "rope_scaling": {
             "type": "longrope", "short_factor": [1.0] * 48, "long_factor": [1.0 + i for i in range(48)]}},
        3_836_021_760,
    ),
}  # fmt: skip


def test_a_fused_tensor_that_does_not_fit_is_named(tmp_path):
    save_hf(twins(VARIANTS["phi3"])[1], tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    fused = {i: f"model.layers.{i}.self_attn.qkv_proj.weight" for i in range(3)}
    weights[fused[1]] = weights[fused[1]][:-1]
    weights["model.layers.0.self_attn.q_proj.weight"] = torch.ones(32, 32)
    del weights[fused[2]]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError) as caught:
        load_model(tmp_path, device="cpu")
    assert f"missing: {fused[2]} [64, 32]; unexpected: model.layers.0.self_attn.q_proj.weight; " in str(caught.value)
    assert f"misshapen: {fused[1]} (expected [64, 32], found [63, 32])" in str(caught.value)


@pytest.mark.shared
def test_stories_model(shared_dir: Path):
    """1.509 nats a token on TinyStories, each paragraph after a BOS; greedy text is of a girl named Lily."""
    model = load_model(shared_dir / "models/stories260k-llama", device="cpu")
    assert sum(p.numel() for p in model.parameters()) < 300_000
    text = (shared_dir / "data/text/tinystories_2MiB.txt").read_text()
    paragraphs = [p for p in text.split("\n") if len(p) > 100][:40]
    losses = []
    with torch.no_grad():
        for paragraph in paragraphs:
            tokens = model.to_tokens(paragraph, bos=True)[:, :256]
            losses.append(cross_entropy(model(tokens)[0, :-1], tokens[0, 1:], reduction="none"))
        greedy = model.to_tokens("Once upon a time", bos=True)
        for _ in range(20):
            greedy = torch.cat([greedy, model(greedy)[:, -1:].argmax(-1)], 1)
    assert len(torch.cat(losses)) == 4103
    assert torch.cat(losses).mean().item() == pytest.approx(1.509, abs=5e-4)
    assert model.tokenizer is not None
    assert "there was a little girl named Lily" in model.tokenizer.decode(greedy[0].tolist())
