"""Tiny configs of the classes of transformers: their models with random weights take milliseconds.

A config class keeps its defaults, and the fields that are sizes are shrunk by their names. So a new class needs no line
here, as long as it calls its sizes as others do; `SPECIAL` has what names do not say.
"""

import re
from collections.abc import Mapping
from typing import Any

N_HEADS, N_LAYERS, VOCABULARY = 4, 4, 64
# What a field's whole name looks like -> its value, or less if the default is less; the first that fits decides.
# Windows and chunks are narrower than the texts of a self-test, so that they take part.
SIZES: dict[str, int] = {
    ".*vocab_size(_per_layer_input)?": VOCABULARY,
    "(.*_)?hidden_size|codebook_dim|d_model|n_embd|dim|emb_dim|.*embed(ding)?_dim|(entity_)?emb(edding)?_size"
    "|word_embed_proj_dim|lru_width|neurons": 32,
    "num_hidden_layers|n_layers?|num_layers|num_blocks|decoder_layers|encoder_layers|depth": N_LAYERS,
    "(.*_)?(num_(attention_|key_|value_)?|n_|attention_)heads?|num_heads|n_head": N_HEADS,
    "max_position_embeddings|n_positions|max_seq_len|n_ctx|model_max_length|context_length": 160,
    "mamba_(d_head|head_?dim)": 16,
    "(?!qk_head_dim).*(head_?dim|dim_head|d_head|kv_channels|headdim)": 8,
    ".*intermediate_size.*|.*(ffn_dim|ffn_hidden_size)|d_inner|dff|dim_ff|hidden_dim|feed_forward_size": 48,
    ".*_rank": 8,
    "(n_routed_|num_|num_local_|moe_num_|zero_)expert(s|_num)": 4,
    "num_experts_per_tok(en)?|moe_topk|moe_k|moe_top_k": 2,
    "n_group|topk_group|num_expert_group": 1,
    "sliding_window(_size)?|window_size|local_attention|attention_window_size|attention_chunk_size|keep_window_size": 6,
    ".*(d_state|state_size)": 8,
    "(mamba_)?chunk_size|block_size|index_block_size": 8,
    "index_topk": 16,
    "rotary_dim": 4,
    "num_filters": 2,
    ".*token_id": VOCABULARY - 1,
}
SECTIONS = [2, 1, 1]  # of the pairs of a head's rotations: time, height, width
KINDS = re.compile("(.*layer_types|layers?_block_types?|indexer_types)")  # lists with a kind for each layer
PER_LAYER = re.compile("num_attention_heads_per_layer|no_rope_layers|layer_rope_theta|activation_sparsity_pattern")
# Fields whose default is none although the class needs one, that depend on others, or that leave out a kind of layer.
_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
_BY_KIND = {"full_attention": _ROPE, "sliding_attention": _ROPE}
_TOWER = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 4}
_PLACES = {"rope_parameters": _ROPE | {"mrope_section": SECTIONS}}
SPECIAL: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {"layer_types": ["sliding_attention", "full_attention"] * 2, "rope_parameters": _BY_KIND},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10_000.0, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"] * 2, "num_experts_per_tok": 2},
    "diffusion_gemma_text": {
        "per_layer_config": {1: {"head_dim": 16}, 3: {"head_dim": 16}},
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 48,
    },
    "emu3": {"vocabulary_map": {"<image>": 5}},
    "ernie4_5_vl_moe_text": {"rope_parameters": _ROPE | {"mrope_section": [1, 1, 2]}},
    "esm": {"vocab_size": VOCABULARY, "pad_token_id": 1, "mask_token_id": 3, "position_embedding_type": "rotary"},
    "falcon_h1": {"mamba_d_ssm": 64},
    "fun_asr_nano": {"adaptor_config": {"hidden_size": 32, "intermediate_size": 8, "num_attention_heads": 4}},
    "gemma3n_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "intermediate_size": 48,
        "activation_sparsity_pattern": [0.5, 0.5, 0.0, 0.0],
    },
    "gemma4": {"vision_config": {**_TOWER, "num_key_value_heads": 2, "head_dim": 8}},
    "gemma4_text": {"per_layer_config": {1: {"head_dim": 16}, 3: {"head_dim": 16}}},
    "gemma4_unified_text": {"per_layer_config": {1: {"head_dim": 16}, 3: {"head_dim": 16}}},
    "glm4v_moe_text": {"rope_parameters": _ROPE | {"mrope_section": [1, 1, 0]}},
    "glm4v_text": _PLACES,
    "glm_ocr_text": _PLACES,
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "attention_layers": ["global", "local"] * 2},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "hunyuan_vl_text": {"head_dim": 8, **_PLACES},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2, "full_attn_idxs": None},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"head_dim": 16, "n_groups": 1},
    "ministral": {"head_dim": 8},
    "mistral_large4_text": {"kv_source_layers": [0, 1, 2, 3]},
    "molmo2_adapter": {"vision_feature_layer": [2, 1]},
    "mobilebert": {"intra_bottleneck_size": 32},
    "nemotron": {"num_key_value_heads": 2},
    "nemotron_h": {"n_groups": 1},
    "neomme": {"head_dim": 16},
    "paddleocr_vl_text": _PLACES,
    "qwen2_5_omni_text": _PLACES,
    "qwen2_5_vl_text": _PLACES,
    "qwen2_vl_text": _PLACES,
    "step3p5": {"sliding_window": 6},
    "timm_wrapper": {"model_args": {"embed_dim": 32}},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"attention_hidden_size": 64, "attention_head_dim": 16},
    "zamba2": {"attention_hidden_size": 64, "attention_head_dim": 16, "mamba_headdim": 8, "hybrid_layer_ids": [1, 3]},
}


def tiny_config(config_class: Any) -> Any:
    """A small config of this class that keeps its kinds of layers; whatever the class raises goes through."""
    default = config_class()
    fields = _shrunk(vars(default)) | SPECIAL.get(default.model_type, {})
    return config_class(**fields)


def _shrunk(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are sizes, or that hold one for each layer, or more fields, with their smaller values."""
    small: dict[str, Any] = {}
    for name, value in fields.items():
        if name.startswith("_"):
            continue
        if isinstance(value, int) and not isinstance(value, bool):
            size = next((size for pattern, size in SIZES.items() if re.fullmatch(pattern, name)), value)
            if size < value:
                small[name] = size
        elif isinstance(value, list) and KINDS.fullmatch(name):
            kinds = list(dict.fromkeys(value))
            small[name] = [kinds[i % len(kinds)] for i in range(max(N_LAYERS, len(kinds)))]
        elif isinstance(value, list) and PER_LAYER.fullmatch(name):
            small[name] = value[:N_LAYERS]
        elif isinstance(value, Mapping) and "mrope_section" in value:
            small[name] = {**value, "mrope_section": SECTIONS}
        elif to_dict := getattr(value, "to_dict", None):
            small[name] = to_dict() | _shrunk(vars(value)) | SPECIAL.get(getattr(value, "model_type", ""), {})
    for name in ("num_key_value_heads", "num_kv_heads", "swa_num_key_value_heads"):
        if isinstance(grouped := fields.get(name), int):  # as many queries share keys as before, or two
            small[name] = N_HEADS if grouped == fields.get("num_attention_heads") else min(grouped, 2)
    return small
