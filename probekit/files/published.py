"""Models that people name: a short name, the name on the Hub, and the fields of `config.json` that the sizes depend on.

So a model is found by its short name (`--model pythia-70m`) and counted without a file or a network
(`probekit params qwen3-8b`). Of models that see pictures, the fields are those of the text model.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Published(NamedTuple):
    """A model on the Hub.

    Attributes:
        hub_id: owner/name.
        fields: of its config.json.
    """

    hub_id: str
    fields: Mapping[str, Any]


_DECODER = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "max_position_embeddings",
)
_ENCODER = tuple(field for field in _DECODER if field != "num_key_value_heads")
_GEMMA_2 = {"head_dim": 256, "query_pre_attn_scalar": 256, "tie_word_embeddings": True}
_GEMMA_3 = {**_GEMMA_2, "sliding_window": 1024}
_MOE = {"head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True}
_TIED: Mapping[str, Any] = {"tie_word_embeddings": True}
_UNTIED: Mapping[str, Any] = {"tie_word_embeddings": False}
_GEMMA_4: Mapping[str, Any] = {"head_dim": 256, "global_head_dim": 512, "final_logit_softcapping": 30.0, **_TIED}

# model_type -> fields that its models share, the names of the sizes, and for each model its short name, its name on the
# Hub, its sizes, and what else is its own.
_Row = tuple[Any, ...]
_TABLES: dict[str, tuple[Mapping[str, Any], tuple[str, ...], tuple[_Row, ...]]] = {
    "gpt2": (
        {"vocab_size": 50257, "n_positions": 1024},
        ("n_embd", "n_layer", "n_head"),
        (
            ("gpt2", "openai-community/gpt2", (768, 12, 12)),
            ("gpt2-medium", "openai-community/gpt2-medium", (1024, 24, 16)),
            ("gpt2-large", "openai-community/gpt2-large", (1280, 36, 20)),
            ("gpt2-xl", "openai-community/gpt2-xl", (1600, 48, 25)),
            ("distilgpt2", "distilbert/distilgpt2", (768, 6, 12)),
        ),
    ),
    "gpt_neox": (
        _UNTIED,
        _ENCODER,
        (
            ("pythia-14m", "EleutherAI/pythia-14m", (128, 512, 6, 4, 50304, 2048)),
            ("pythia-31m", "EleutherAI/pythia-31m", (256, 1024, 6, 8, 50304, 2048)),
            ("pythia-70m", "EleutherAI/pythia-70m", (512, 2048, 6, 8, 50304, 2048)),
            ("pythia-160m", "EleutherAI/pythia-160m", (768, 3072, 12, 12, 50304, 2048)),
            ("pythia-410m", "EleutherAI/pythia-410m", (1024, 4096, 24, 16, 50304, 2048)),
            ("pythia-1b", "EleutherAI/pythia-1b", (2048, 8192, 16, 8, 50304, 2048)),
            ("pythia-1.4b", "EleutherAI/pythia-1.4b", (2048, 8192, 24, 16, 50304, 2048)),
            ("pythia-2.8b", "EleutherAI/pythia-2.8b", (2560, 10240, 32, 32, 50304, 2048)),
            ("pythia-6.9b", "EleutherAI/pythia-6.9b", (4096, 16384, 32, 32, 50432, 2048)),
            ("pythia-12b", "EleutherAI/pythia-12b", (5120, 20480, 36, 40, 50688, 2048)),
        ),
    ),
    "llama": (
        _UNTIED,
        _DECODER,
        (
            ("llama-2-7b", "meta-llama/Llama-2-7b-hf", (4096, 11008, 32, 32, 32, 32000, 4096)),
            ("llama-2-13b", "meta-llama/Llama-2-13b-hf", (5120, 13824, 40, 40, 40, 32000, 4096)),
            ("llama-2-70b", "meta-llama/Llama-2-70b-hf", (8192, 28672, 80, 64, 8, 32000, 4096)),
            ("llama-3-8b", "meta-llama/Meta-Llama-3-8B", (4096, 14336, 32, 32, 8, 128256, 8192)),
            ("llama-3-70b", "meta-llama/Meta-Llama-3-70B", (8192, 28672, 80, 64, 8, 128256, 8192)),
            ("llama-3.1-8b", "meta-llama/Llama-3.1-8B", (4096, 14336, 32, 32, 8, 128256, 131072)),
            ("llama-3.1-70b", "meta-llama/Llama-3.1-70B", (8192, 28672, 80, 64, 8, 128256, 131072)),
            ("llama-3.1-405b", "meta-llama/Llama-3.1-405B", (16384, 53248, 126, 128, 8, 128256, 131072)),
            ("llama-3.2-1b", "meta-llama/Llama-3.2-1B", (2048, 8192, 16, 32, 8, 128256, 131072), _TIED),
            ("llama-3.2-3b", "meta-llama/Llama-3.2-3B", (3072, 8192, 28, 24, 8, 128256, 131072), _TIED),
        ),
    ),
    "mistral": (
        {**_UNTIED, "sliding_window": 4096},
        _DECODER,
        (("mistral-7b", "mistralai/Mistral-7B-v0.1", (4096, 14336, 32, 32, 8, 32000, 32768)),),
    ),
    "mixtral": (
        {**_UNTIED, "num_local_experts": 8, "num_experts_per_tok": 2},
        _DECODER,
        (
            ("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1", (4096, 14336, 32, 32, 8, 32000, 32768)),
            ("mixtral-8x22b", "mistralai/Mixtral-8x22B-v0.1", (6144, 16384, 56, 48, 8, 32000, 65536)),
        ),
    ),
    "qwen2": (
        _UNTIED,
        _DECODER,
        (
            ("qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B", (896, 4864, 24, 14, 2, 151936, 32768), _TIED),
            ("qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B", (1536, 8960, 28, 12, 2, 151936, 131072), _TIED),
            ("qwen2.5-3b", "Qwen/Qwen2.5-3B", (2048, 11008, 36, 16, 2, 151936, 32768), _TIED),
            ("qwen2.5-7b", "Qwen/Qwen2.5-7B", (3584, 18944, 28, 28, 4, 152064, 131072)),
            ("qwen2.5-14b", "Qwen/Qwen2.5-14B", (5120, 13824, 48, 40, 8, 152064, 131072)),
            ("qwen2.5-32b", "Qwen/Qwen2.5-32B", (5120, 27648, 64, 40, 8, 152064, 131072)),
            ("qwen2.5-72b", "Qwen/Qwen2.5-72B", (8192, 29568, 80, 64, 8, 152064, 131072)),
        ),
    ),
    "qwen3": (
        {**_UNTIED, "head_dim": 128},
        _DECODER,
        (
            ("qwen3-0.6b", "Qwen/Qwen3-0.6B", (1024, 3072, 28, 16, 8, 151936, 40960), _TIED),
            ("qwen3-1.7b", "Qwen/Qwen3-1.7B", (2048, 6144, 28, 16, 8, 151936, 40960), _TIED),
            ("qwen3-4b", "Qwen/Qwen3-4B", (2560, 9728, 36, 32, 8, 151936, 40960), _TIED),
            ("qwen3-8b", "Qwen/Qwen3-8B", (4096, 12288, 36, 32, 8, 151936, 40960)),
            ("qwen3-14b", "Qwen/Qwen3-14B", (5120, 17408, 40, 40, 8, 151936, 40960)),
            ("qwen3-32b", "Qwen/Qwen3-32B", (5120, 25600, 64, 64, 8, 151936, 40960)),
        ),
    ),
    "qwen2_moe": (
        {**_UNTIED, "num_experts": 60, "num_experts_per_tok": 4, "shared_expert_intermediate_size": 5632},
        (*_DECODER, "moe_intermediate_size"),
        (("qwen1.5-moe-a2.7b", "Qwen/Qwen1.5-MoE-A2.7B", (2048, 5632, 24, 16, 16, 151936, 8192, 1408)),),
    ),
    "qwen3_moe": (
        {**_UNTIED, **_MOE},
        (*_DECODER, "moe_intermediate_size"),
        (
            ("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B", (2048, 6144, 48, 32, 4, 151936, 40960, 768)),
            ("qwen3-235b-a22b", "Qwen/Qwen3-235B-A22B", (4096, 12288, 94, 64, 4, 151936, 40960, 1536)),
        ),
    ),
    "qwen3_next": (
        {**_UNTIED, "head_dim": 256, "num_experts": 512, "num_experts_per_tok": 10, "norm_topk_prob": True},
        (*_DECODER, "moe_intermediate_size"),
        (("qwen3-next-80b-a3b", "Qwen/Qwen3-Next-80B-A3B-Instruct", (2048, 5120, 48, 16, 2, 151936, 262144, 512)),),
    ),
    "qwen3_5_text": (
        {**_UNTIED, "head_dim": 256},
        (*_DECODER, "linear_num_value_heads"),
        (
            ("qwen3.5-0.8b", "Qwen/Qwen3.5-0.8B", (1024, 3584, 24, 8, 2, 248320, 262144, 16), _TIED),
            ("qwen3.5-2b", "Qwen/Qwen3.5-2B", (2048, 6144, 24, 8, 2, 248320, 262144, 16), _TIED),
            ("qwen3.5-4b", "Qwen/Qwen3.5-4B", (2560, 9216, 32, 16, 4, 248320, 262144, 32), _TIED),
            ("qwen3.5-9b", "Qwen/Qwen3.5-9B", (4096, 12288, 32, 16, 4, 248320, 262144, 32)),
            ("qwen3.5-27b", "Qwen/Qwen3.5-27B", (5120, 17408, 64, 24, 4, 248320, 262144, 48)),
        ),
    ),
    "qwen3_5_moe_text": (
        {**_UNTIED, "head_dim": 256, "num_experts": 256, "num_experts_per_tok": 8},
        ("moe_intermediate_size", *(field for field in _DECODER if field != "intermediate_size")),
        (("qwen3.5-35b-a3b", "Qwen/Qwen3.5-35B-A3B", (512, 2048, 40, 16, 2, 248320, 262144)),),
    ),
    "gemma2": (
        _GEMMA_2,
        _DECODER,
        (
            ("gemma-2-2b", "google/gemma-2-2b", (2304, 9216, 26, 8, 4, 256000, 8192)),
            ("gemma-2-9b", "google/gemma-2-9b", (3584, 14336, 42, 16, 8, 256000, 8192)),
            (
                "gemma-2-27b",
                "google/gemma-2-27b",
                (4608, 36864, 46, 32, 16, 256000, 8192),
                {"head_dim": 128, "query_pre_attn_scalar": 144},
            ),
        ),
    ),
    "gemma3_text": (
        _GEMMA_3,
        _DECODER,
        (
            ("gemma-3-270m", "google/gemma-3-270m", (640, 2048, 18, 4, 1, 262144, 32768), {"sliding_window": 512}),
            ("gemma-3-1b", "google/gemma-3-1b-pt", (1152, 6912, 26, 4, 1, 262144, 32768), {"sliding_window": 512}),
            ("gemma-3-4b", "google/gemma-3-4b-pt", (2560, 10240, 34, 8, 4, 262208, 131072)),
            ("gemma-3-12b", "google/gemma-3-12b-pt", (3840, 15360, 48, 16, 8, 262208, 131072)),
            (
                "gemma-3-27b",
                "google/gemma-3-27b-pt",
                (5376, 21504, 62, 32, 16, 262208, 131072),
                {"head_dim": 128, "query_pre_attn_scalar": 168},
            ),
        ),
    ),
    "gemma4_text": (
        _GEMMA_4,
        (*_DECODER, "sliding_window", "hidden_size_per_layer_input"),
        (
            (
                "gemma-4-e2b",
                "google/gemma-4-E2B",
                (1536, 6144, 35, 8, 1, 262144, 131072, 512, 256),
                {
                    "num_kv_shared_layers": 20,
                    "use_double_wide_mlp": True,
                    "layer_types": 7 * [*4 * ["sliding_attention"], "full_attention"],
                },
            ),
            (
                "gemma-4-e4b",
                "google/gemma-4-E4B",
                (2560, 10240, 42, 8, 2, 262144, 131072, 512, 256),
                {"num_kv_shared_layers": 18},
            ),
            (
                "gemma-4-26b-a4b",
                "google/gemma-4-26B-A4B-it",
                (2816, 2112, 30, 16, 8, 262144, 262144, 1024, 0),
                {
                    "attention_k_eq_v": True,
                    "num_global_key_value_heads": 2,
                    "enable_moe_block": True,
                    "num_experts": 128,
                    "top_k_experts": 8,
                    "moe_intermediate_size": 704,
                },
            ),
            (
                "gemma-4-31b",
                "google/gemma-4-31B-it",
                (5376, 21504, 60, 32, 16, 262144, 262144, 1024, 0),
                {"attention_k_eq_v": True, "num_global_key_value_heads": 4},
            ),
        ),
    ),
    "olmo2": (
        _UNTIED,
        _DECODER,
        (
            ("olmo-2-1b", "allenai/OLMo-2-0425-1B", (2048, 8192, 16, 16, 16, 100352, 4096)),
            ("olmo-2-7b", "allenai/OLMo-2-1124-7B", (4096, 11008, 32, 32, 32, 100352, 4096)),
            ("olmo-2-13b", "allenai/OLMo-2-1124-13B", (5120, 13824, 40, 40, 40, 100352, 4096)),
            ("olmo-2-32b", "allenai/OLMo-2-0325-32B", (5120, 27648, 64, 40, 8, 100352, 4096)),
        ),
    ),
    "olmo3": (
        {**_UNTIED, "sliding_window": 4096},
        _DECODER,
        (
            ("olmo-3-7b", "allenai/Olmo-3-1025-7B", (4096, 11008, 32, 32, 32, 100278, 65536)),
            ("olmo-3-32b", "allenai/Olmo-3-1125-32B", (5120, 27648, 64, 40, 8, 100278, 65536)),
        ),
    ),
    "olmoe": (
        {**_UNTIED, "num_experts": 64, "num_experts_per_tok": 8},
        _DECODER,
        (("olmoe-1b-7b", "allenai/OLMoE-1B-7B-0924", (2048, 1024, 16, 16, 16, 50304, 4096)),),
    ),
    "gpt_oss": (
        {**_UNTIED, "head_dim": 64, "num_experts_per_tok": 4},
        (*_DECODER, "num_local_experts"),
        (
            ("gpt-oss-20b", "openai/gpt-oss-20b", (2880, 2880, 24, 64, 8, 201088, 131072, 32)),
            ("gpt-oss-120b", "openai/gpt-oss-120b", (2880, 2880, 36, 64, 8, 201088, 131072, 128)),
        ),
    ),
    "deepseek_v2": (
        {
            **_UNTIED,
            "num_experts_per_tok": 6,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "q_lora_rank": None,
        },
        (*_DECODER, "moe_intermediate_size", "n_routed_experts"),
        (("deepseek-v2-lite", "deepseek-ai/DeepSeek-V2-Lite", (2048, 10944, 27, 16, 16, 102400, 163840, 1408, 64)),),
    ),
    "deepseek_v3": (
        {**_UNTIED, "n_shared_experts": 1},
        (*_DECODER, "moe_intermediate_size", "n_routed_experts"),
        (("deepseek-v3", "deepseek-ai/DeepSeek-V3", (7168, 18432, 61, 128, 128, 129280, 163840, 2048, 256)),),
    ),
    "glm4_moe": (
        {
            **_UNTIED,
            "head_dim": 128,
            "attention_bias": True,
            "num_experts_per_tok": 8,
            "first_k_dense_replace": 1,
            "n_shared_experts": 1,
        },
        (*_DECODER, "moe_intermediate_size", "n_routed_experts"),
        (("glm-4.5-air", "zai-org/GLM-4.5-Air", (4096, 10944, 46, 96, 8, 151552, 131072, 1408, 128)),),
    ),
    "phi3": (
        _UNTIED,
        _DECODER,
        (
            ("phi-3-mini-4k", "microsoft/Phi-3-mini-4k-instruct", (3072, 8192, 32, 32, 32, 32064, 4096)),
            ("phi-3-medium-4k", "microsoft/Phi-3-medium-4k-instruct", (5120, 17920, 40, 40, 10, 32064, 4096)),
            ("phi-4", "microsoft/phi-4", (5120, 17920, 40, 40, 10, 100352, 16384)),
        ),
    ),
    "bert": (
        {"type_vocab_size": 2, "architectures": ["BertForMaskedLM"]},
        _ENCODER,
        (
            ("bert-base-uncased", "google-bert/bert-base-uncased", (768, 3072, 12, 12, 30522, 512)),
            ("bert-base-cased", "google-bert/bert-base-cased", (768, 3072, 12, 12, 28996, 512)),
            ("bert-large-uncased", "google-bert/bert-large-uncased", (1024, 4096, 24, 16, 30522, 512)),
            ("bert-large-cased", "google-bert/bert-large-cased", (1024, 4096, 24, 16, 28996, 512)),
        ),
    ),
    "roberta": (
        {"type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1, "architectures": ["RobertaForMaskedLM"]},
        _ENCODER,
        (
            ("roberta-base", "FacebookAI/roberta-base", (768, 3072, 12, 12, 50265, 514)),
            ("roberta-large", "FacebookAI/roberta-large", (1024, 4096, 24, 16, 50265, 514)),
            ("distilroberta-base", "distilbert/distilroberta-base", (768, 3072, 6, 12, 50265, 514)),
        ),
    ),
    "distilbert": (
        {"pad_token_id": 0, "architectures": ["DistilBertForMaskedLM"]},
        ("dim", "hidden_dim", "n_layers", "n_heads", "vocab_size", "max_position_embeddings"),
        (
            ("distilbert-base-uncased", "distilbert/distilbert-base-uncased", (768, 3072, 6, 12, 30522, 512)),
            ("distilbert-base-cased", "distilbert/distilbert-base-cased", (768, 3072, 6, 12, 28996, 512)),
        ),
    ),
    "modernbert": (
        {"architectures": ["ModernBertForMaskedLM"]},
        _ENCODER,
        (
            ("modernbert-base", "answerdotai/ModernBERT-base", (768, 1152, 22, 12, 50368, 8192)),
            ("modernbert-large", "answerdotai/ModernBERT-large", (1024, 2624, 28, 16, 50368, 8192)),
        ),
    ),
}

PUBLISHED: dict[str, Published] = {
    name: Published(
        hub_id,
        {"model_type": model_type, **shared, **dict(zip(fields, sizes, strict=True)), **(own[0] if own else {})},
    )
    for model_type, (shared, fields, rows) in _TABLES.items()
    for name, hub_id, sizes, *own in rows
}
"""The published models by short name."""
