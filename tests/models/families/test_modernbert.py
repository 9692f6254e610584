from tiny_configs import SIZES

from probekit.models.families.modernbert import ModernBertConfig

MIXED: dict = {"layer_types": ("full_attention", "sliding_attention", "sliding_attention"), "sliding_window": 3}
SMALL: dict = {**SIZES, "init_std": 0.3, "pad_token_id": 0, "rope_theta": 1000.0, "local_rope_theta": 10.0}
BIASES: dict = {"attn_bias": True, "mlp_bias": True, "norm_bias": True, "head_bias": True}
TINY = {
    "modernbert": ModernBertConfig(**SMALL, **MIXED),
    "modernbert-biased": ModernBertConfig(
        **SMALL, **MIXED, **BIASES, unembed_bias=False, tie_embeddings=False, head_activation="relu", activation="silu"
    ),
    "modernbert-headless": ModernBertConfig(
        **SMALL, layer_types=("sliding_attention", "full_attention", "full_attention"), sliding_window=2, mlm_head=False
    ),
}
