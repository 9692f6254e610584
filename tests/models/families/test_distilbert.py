"""DistilBERT against `transformers` on the same folders."""

from typing import Any

import torch
from encoder_folders import assert_equal_to, hf_folder, load, read_by, rewrite
from tiny_configs import SIZES
from transformers import DistilBertConfig as HfConfig
from transformers import DistilBertForMaskedLM, DistilBertModel

from probekit.models.families.distilbert import DistilBert, DistilBertConfig

TINY = {
    "distilbert": DistilBertConfig(**SIZES, init_std=0.3),
    "distilbert-untied": DistilBertConfig(
        **SIZES, init_std=0.3, tie_embeddings=False, sinusoidal_init=True, activation="relu"
    ),
    "distilbert-headless": DistilBertConfig(**SIZES, init_std=0.3, mlm_head=False),
}
SHAPES: list[dict[str, Any]] = [
    {"dim": 32, "n_heads": 4, "n_layers": 3, "hidden_dim": 64, "vocab_size": 61, "max_position_embeddings": 24},
    {"dim": 48, "n_heads": 3, "n_layers": 2, "hidden_dim": 40, "vocab_size": 29, "max_position_embeddings": 16,
     "activation": "relu"},
]  # fmt: skip


FOLDERS = {
    f"distilbert {i} {tied}": (DistilBertForMaskedLM, HfConfig(**shape, tie_word_embeddings=tied))
    for i, shape in enumerate(SHAPES)
    for tied in (True, False)
}
BARE_FOLDERS = {"distilbert": (DistilBertModel, HfConfig(**SHAPES[0]))}


def test_the_file_says_whether_there_is_a_head(tmp_path):
    """config.json may say otherwise, as in models that were saved by other programs; the projector once more."""
    hf_folder(tmp_path, DistilBertForMaskedLM, HfConfig(**SHAPES[0]))
    oracle = read_by(DistilBertForMaskedLM, tmp_path)
    words = "distilbert.embeddings.word_embeddings.weight"
    old = {"architectures": ["DistilBertModel"], "tie_word_embeddings": None, "tie_weights_": True}
    rewrite(tmp_path, lambda w: w | {"vocab_projector.weight": w[words]}, **old)
    assert_equal_to(oracle, load(tmp_path))
    assert load(tmp_path).has_logits
    rewrite(tmp_path, lambda w: {name: x for name, x in w.items() if not name.startswith("vocab")})
    assert not load(tmp_path).has_logits
    rewrite(tmp_path, lambda w: {name.removeprefix("distilbert."): x for name, x in w.items()})
    assert_equal_to(oracle, load(tmp_path))


def test_sinusoids_are_where_training_starts():
    """They are initial weights as in transformers, not a formula: a file's own table counts."""
    cfg = DistilBertConfig(**SIZES, sinusoidal_init=True)
    theirs = DistilBertModel(HfConfig(**cfg.to_hf())).embeddings.position_embeddings.weight
    torch.testing.assert_close(DistilBert(cfg).init_weights().pos_embed.weight, theirs)


_REFUSED = [
    ({"dim": 30}, r"d_model \(dim\) 30 must be a multiple of n_heads"),
    ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
    ({"architectures": ["DistilBertForSequenceClassification"]}, r"model\.distilbert\.save_pretrained"),
]
IMPOSSIBLE = [({"model_type": "distilbert", **SHAPES[0]} | change, match) for change, match in _REFUSED]
PUBLISHED = {
    "DistilBert 1": (DistilBertConfig(), 66985530),
    "DistilBert 2": (DistilBertConfig(mlm_head=False), 66362880),
}
