"""Tiny random configs of transformers' classes, and the wrapped models of them, each made once."""

from functools import cache
from pathlib import Path
from typing import Any

import torch

from probekit.models.adapter.config import checked_fields
from probekit.models.adapter.load import load_adapted

SIZES: dict[str, Any] = {"vocab_size": 60, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
NEW = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 40}
NEW |= SIZES
GATED = NEW | {"intermediate_size": 48, "num_key_value_heads": 2}
OLD = SIZES | {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 40}
STATE_SPACE = {"mamba_d_state": 4, "mamba_d_conv": 4, "mamba_expand": 2, "use_mamba_kernels": False}

CONFIGS: dict[str, dict[str, Any]] = {
    "gptj": OLD | {"rotary_dim": 4, "n_inner": 48},
    "codegen": OLD | {"rotary_dim": 4, "n_inner": 48},
    "bloom": SIZES | {"hidden_size": 32, "n_layer": 3, "n_head": 4},
    "opt": NEW | {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "falcon": NEW | {"new_decoder_architecture": False, "multi_query": True, "parallel_attn": True},
    "mpt": SIZES | {"d_model": 32, "n_layers": 3, "n_heads": 4, "max_seq_len": 40},
    "gpt_neo": SIZES
    | {"hidden_size": 32, "num_layers": 4, "num_heads": 4, "max_position_embeddings": 40, "window_size": 4}
    | {"attention_types": [[["global", "local"], 2]], "intermediate_size": 48},
    "starcoder2": GATED | {"sliding_window": 5},
    "cohere": GATED,
    "cohere2": GATED
    | {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "stablelm": GATED,
    "phi": GATED | {"partial_rotary_factor": 0.5},
    "granite": GATED | {"residual_multiplier": 0.3},
    "glm4": GATED | {"head_dim": 8},
    "olmo": GATED,
    "gpt_oss": GATED
    | {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 5}
    | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
    | {"rope_parameters": {"rope_type": "default"}},
    "vaultgemma": GATED | {"head_dim": 8, "sliding_window": 4},
    "gemma2": GATED | {"head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8},
    "deberta-v2": NEW | {"intermediate_size": 48, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "electra": NEW | {"intermediate_size": 48, "embedding_size": 16},
    "albert": NEW | {"intermediate_size": 48, "embedding_size": 16, "num_hidden_groups": 1},
    "mamba": SIZES | {"hidden_size": 32, "num_hidden_layers": 3, "state_size": 4, "use_mambapy": False},
    "jamba": GATED
    | STATE_SPACE
    | {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "num_experts": 2}
    | {"num_experts_per_tok": 1, "mamba_dt_rank": 4},
    "recurrent_gemma": GATED
    | {"head_dim": 8, "lru_width": 32, "attention_window_size": 8, "conv1d_width": 4}
    | {"block_types": ["recurrent", "attention"]},
    "gemma3n_text": GATED
    | {"num_hidden_layers": 4, "head_dim": 8, "vocab_size_per_layer_input": 60, "hidden_size_per_layer_input": 8}
    | {"layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2, "sliding_window": 4}
    | {"activation_sparsity_pattern": [0.5, 0.5, 0.0, 0.0], "laurel_rank": 4},
    "nemotron_h": GATED
    | {"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"], "num_hidden_layers": 4, "head_dim": 8}
    | {"mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 1, "ssm_state_size": 4, "chunk_size": 8}
    | {"n_routed_experts": 4, "moe_intermediate_size": 16, "moe_shared_expert_intermediate_size": 16},
}


def config_of(kind: str) -> dict[str, Any]:
    """The fields of a tiny config.json."""
    return {"model_type": kind, **CONFIGS[kind]}


def load(hf: dict[str, Any], folder: Path = Path("nowhere"), seed: int | None = 0, dtype=torch.float32) -> Any:
    """`load_adapted` of a config.json with these fields, on the CPU."""
    return load_adapted(folder, checked_fields(hf), device=torch.device("cpu"), dtype=dtype, seed=seed)


@cache
def wrapped(kind: str) -> Any:
    """The wrapped model with weights that are large enough to show every error."""
    model = load(config_of(kind))
    model.name = kind
    assert sum(p.numel() for p in model.parameters()) < 80_000
    return model
