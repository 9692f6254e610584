from tiny_configs import SIZES

from probekit.models.families.distilbert import DistilBertConfig

TINY = {
    "distilbert": DistilBertConfig(**SIZES, init_std=0.3),
    "distilbert-untied": DistilBertConfig(
        **SIZES, init_std=0.3, tie_embeddings=False, sinusoidal_init=True, activation="relu"
    ),
    "distilbert-headless": DistilBertConfig(**SIZES, init_std=0.3, mlm_head=False),
}
