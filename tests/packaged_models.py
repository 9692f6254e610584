"""Tiny models that transformers packages as multimodal, made in code, and where their text models are."""

from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import transformers

TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 99,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MROPE = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 1, 1]}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_DELTA = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
_HYBRID = ["linear_attention", "full_attention", "linear_attention"]
_QWEN = {"depth": 1, "num_heads": 2, "patch_size": 4, "deepstack_visual_indexes": [0], "out_hidden_size": 32}
_WIDE = {"hidden_size": 32}
_VIT = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
_VIT |= {"image_size": 8, "patch_size": 4}


class Packaging(NamedTuple):
    """A published packaging.

    Attributes:
        name: how its classes' names begin.
        text: fields of its text model, besides `TEXT`.
        vision: fields of the vision tower.
        ours: the family of this project that computes the text model; "" where transformers' class does.
        outer: fields of the outer config.
    """

    name: str
    text: dict[str, Any]
    vision: dict[str, Any]
    ours: str = ""
    outer: Any = MappingProxyType({})


PACKAGINGS = {
    "gemma3": Packaging("Gemma3", {"sliding_window": 4}, _VIT, "Gemma", {"mm_tokens_per_image": 4}),
    "gemma4": Packaging(
        "Gemma4",
        {
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 99,
            "global_head_dim": 16,
            "num_kv_shared_layers": 0,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "sliding_window": 4,
        },
        _VIT | {"num_key_value_heads": 2, "head_dim": 8},
        "Gemma4",
    ),
    "mistral3": Packaging("Mistral3", {"model_type": "mistral"}, _VIT, "Llama"),
    "ministral3": Packaging("Mistral3", {"model_type": "ministral3"}, _VIT),
    "llava": Packaging("Llava", {"model_type": "llama"}, _VIT, "Llama"),
    "llama4": Packaging(
        "Llama4", {"intermediate_size_mlp": 48, "num_local_experts": 4, "tie_word_embeddings": False}, _VIT
    ),
    "qwen2_vl": Packaging("Qwen2VL", {"rope_parameters": _MROPE}, _QWEN | {"embed_dim": 16, **_WIDE}, "Llama"),
    "qwen2_5_vl": Packaging("Qwen2_5_VL", {"rope_parameters": _MROPE}, _QWEN | {"hidden_size": 16}, "Llama"),
    "qwen3_vl": Packaging("Qwen3VL", {"rope_parameters": _MROPE}, _QWEN | {"hidden_size": 16}, "Llama"),
    "qwen3_vl_moe": Packaging("Qwen3VLMoe", {"rope_parameters": _MROPE, **_EXPERTS}, _QWEN | {"hidden_size": 16}),
    "qwen3_5": Packaging("Qwen3_5", {"layer_types": _HYBRID, **_DELTA}, _QWEN | {"hidden_size": 16}, "Qwen3Next"),
    "qwen3_5_moe": Packaging(
        "Qwen3_5Moe",
        {"layer_types": _HYBRID, "shared_expert_intermediate_size": 24, **_DELTA, **_EXPERTS},
        _QWEN | {"hidden_size": 16},
        "Qwen3Next",
    ),
    "glm4v_moe": Packaging(
        "Glm4vMoe",
        {
            "rope_parameters": _MROPE | {"mrope_section": [1, 1, 0]},
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
        },
        _QWEN | {"hidden_size": 16},
        "Glm",
    ),
    "glm4v": Packaging("Glm4v", {"rope_parameters": _MROPE}, _QWEN | {"hidden_size": 16}),
}


def in_file(model: Any) -> dict[str, torch.Tensor]:
    """The tensors that a file holds, by name; those that are tied once."""
    stored = model.state_dict()
    return dict(model.named_parameters()) | {name: x for name, x in model.named_buffers() if name in stored}


@cache
def complete(kind: str) -> Any:
    """The complete model of a packaging, its weights large enough that each of them shows."""
    made = PACKAGINGS[kind]
    config = getattr(transformers, f"{made.name}Config")(
        text_config=TEXT | made.text, vision_config=made.vision, **made.outer
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(transformers, f"{made.name}ForConditionalGeneration")._from_config(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in in_file(model).values():
            drawn = torch.randn(weight.shape, generator=generator)
            weight.copy_(drawn * 0.15 if weight.dim() > 1 else weight + drawn * 0.3)
    return model


def text_stack(kind: str) -> Any:
    """What of the complete model computes logits from token ids: in Llama 4 its text model, as transformers 5.24 cannot
    run the whole of it without images."""
    return complete(kind).language_model if kind == "llama4" else complete(kind)
