"""OLMo 2 and 3, written by hand, against `transformers` and against themselves."""

from dataclasses import replace
from typing import Any

from tiny_configs import SIZES

from probekit.models.families.olmo import FULL, SLIDING, OlmoConfig
from probekit.models.positional import RopeScaling

YARN = RopeScaling("yarn", 4.0, 1.0, 32.0, 6, 1.2)
TINY = {
    "olmo2": OlmoConfig(**SIZES, n_kv_heads=2, d_head=8, attention_bias=True),
    "olmo3": OlmoConfig(
        **SIZES, n_kv_heads=2, d_head=8, rope_theta=300.0, rope_scaling=YARN, local_rope_theta=100.0, sliding_window=4,
        layer_types=(SLIDING, FULL, SLIDING), model_type="olmo3",
    ),
}  # fmt: skip
OLMO2 = {
    "model_type": "olmo2", "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 61, "max_position_embeddings": 24,
}  # fmt: skip
OLMO3 = OLMO2 | {"model_type": "olmo3", "sliding_window": 4, "layer_types": [SLIDING, FULL, SLIDING]}
HF_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 6, "attention_factor": 1.2,
           "beta_fast": 32.0, "beta_slow": 1.0}  # fmt: skip
VARIANTS = {
    "olmo2": OLMO2,
    "olmo2, tied, all heads": OLMO2 | {"tie_word_embeddings": True, "num_key_value_heads": 4, "rms_norm_eps": 1e-2},
    "olmo2, one kv head": OLMO2 | {"num_key_value_heads": 1, "attention_bias": True},
    "olmo2 with llama3": OLMO2 | {
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
                            "high_freq_factor": 4.0, "original_max_position_embeddings": 16}},
    "olmo3": OLMO3,
    "olmo3 with yarn": OLMO3 | {"rope_theta": 300.0, "rope_scaling": HF_YARN},
    "olmo3 with two thetas": OLMO3 | {
        "rope_parameters": {FULL: {"rope_type": "default", "rope_theta": 50.0},
                            SLIDING: {"rope_type": "default", "rope_theta": 700.0}}},
    "olmo3, every fourth layer full": OLMO2 | {"model_type": "olmo3", "sliding_window": 3, "num_hidden_layers": 4},
    "olmo3 without a window": OLMO2 | {"model_type": "olmo3", "layer_types": [FULL] * 3},
}  # fmt: skip


PUBLISHED = {  # what their config.json says, and how many parameters they have
    "OLMo 2 1B": (
        {"model_type": "olmo2", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
         "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 100352, "rms_norm_eps": 1e-6,
         "max_position_embeddings": 4096, "rope_theta": 500000, "rope_scaling": None, "eos_token_id": 100257,
         "tie_word_embeddings": False, "attention_bias": False, "hidden_act": "silu", "pad_token_id": 100277},
        1_484_916_736,
    ),
    "Olmo 3 7B": (
        {"model_type": "olmo3", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 100278, "rms_norm_eps": 1e-6,
         "max_position_embeddings": 65536, "rope_theta": 500000, "sliding_window": 4096,
         "layer_types": [*[SLIDING] * 3, FULL] * 8, "rope_scaling": {
             "attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0,
             "original_max_position_embeddings": 8192, "rope_type": "yarn"}},
        7_298_011_136,
    ),
}  # fmt: skip


def test_layer_types_may_be_a_list():
    types: Any = [SLIDING, FULL, SLIDING]
    assert replace(TINY["olmo3"], layer_types=types) == TINY["olmo3"]
    assert replace(TINY["olmo2"], layer_types=types[:0]) == TINY["olmo2"]


_REFUSED = [
    (OLMO2, {"num_key_value_heads": 3}, "must be a multiple of n_kv_heads"),
    (OLMO2, {"head_dim": 7}, r"d_head \(head_dim\) must be even"),
    (OLMO2, {"hidden_act": "swish"}, "silu"),
    (OLMO2, {"sliding_window": 4}, "sliding_window = 4 is not implemented for model_type olmo2"),
    (OLMO2, {"layer_types": [SLIDING] * 3}, "layer_types .* are not implemented for model_type olmo2"),
    (OLMO2, {"quantization_config": {"bits": 4}}, "quantization_config"),
    (
        OLMO2,
        {"rope_scaling": {"type": "longrope"}},
        "'longrope' is not implemented; only default, linear, ",
    ),
    (OLMO3, {"sliding_window": None}, "sliding_window must be a whole number"),
    (OLMO3, {"sliding_window": 0}, "sliding_window must be a whole number"),
    (OLMO3, {"layer_types": [FULL] * 2}, "for each of 3 layers .*; got a list of 2"),
    (OLMO3, {"layer_types": []}, "for each of 3 layers .*; got a list of 0"),
    (OLMO3, {"rope_parameters": {SLIDING: {"rope_theta": float("nan")}}}, "local_rope_theta must be a positive number"),
    (OLMO3, {"layer_types": "full"}, "layer_types must be a list"),
    (OLMO3, {"layer_types": [FULL, SLIDING, "chunked"]}, "must be full_attention or sliding_attention for"),
    (OLMO3, {"layer_types": [FULL, SLIDING, ["x"]]}, "must be full_attention or sliding_attention for"),
    (OLMO3, {"rope_parameters": {SLIDING: HF_YARN}}, "'yarn' is not implemented; only default is"),
    (OLMO3, {"rope_theta": "5"}, "rope_theta must be a positive number"),
    (OLMO3, {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not implemented"),
]


OLD_AND_NEW = [(OLMO3, OLMO3 | {"": 3.0})]  # no field outside of rope_parameters gives the base of windowed layers
IMPOSSIBLE = [(hf | change, match) for hf, change, match in _REFUSED]
FEATURES = [
    ("olmo3", {"sliding_window": 3}),
    ("olmo3", {"layer_types": (FULL, SLIDING, SLIDING)}),
    ("olmo3 with yarn", {"rope_scaling": None}),
    ("olmo3 with yarn", {"rope_theta": 500000.0}),
    ("olmo3 with two thetas", {"local_rope_theta": 50.0}),
]
