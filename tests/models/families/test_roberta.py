"""RoBERTa and its relatives against `transformers`; positions that begin after the padding's."""

from tiny_configs import SIZES

from probekit.models.families.roberta import RobertaConfig

TINY = {
    "roberta": RobertaConfig(**SIZES, init_std=0.3),
    "xlm-roberta-untied": RobertaConfig(
        **SIZES,
        init_std=0.3,
        model_type="xlm-roberta",
        tie_embeddings=False,
        n_segments=2,
        first_position=6,
        pooler=True,
    ),
    "camembert-headless": RobertaConfig(
        **SIZES, init_std=0.3, model_type="camembert", mlm_head=False, pooler=True, activation="relu"
    ),
}
