"""RoBERTa and its relatives against `transformers` on the same folders; positions that begin after the padding's."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from encoder_folders import assert_equal_to, hf_folder, load, read_by, rewrite
from tiny_configs import SIZES
from transformers_twins import error

from probekit.errors import UsageError
from probekit.models import load_model
from probekit.models.families.roberta import CLASSES, RobertaConfig

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
SHAPES: list[dict[str, Any]] = [
    {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3, "intermediate_size": 64, "vocab_size": 61,
     "max_position_embeddings": 26, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    {"hidden_size": 48, "num_attention_heads": 3, "num_hidden_layers": 2, "intermediate_size": 40, "vocab_size": 29,
     "max_position_embeddings": 18, "pad_token_id": 4, "hidden_act": "relu", "type_vocab_size": 3},
]  # fmt: skip


def classes(model_type: str) -> tuple[Any, Any, Any]:
    """The classes of transformers: config, model with the head, model without."""
    names = "Config", "ForMaskedLM", "Model"
    config, headed, bare = (getattr(transformers, CLASSES[model_type] + name) for name in names)
    return config, headed, bare


FOLDERS = {  # positions are counted from the ids, with padding; ours from the mask
    f"{model_type} {tied}": (classes(model_type)[1], classes(model_type)[0](**shape, tie_word_embeddings=tied))
    for model_type, shape in zip(CLASSES, [*SHAPES, SHAPES[0]], strict=True)
    for tied in (True, False)
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    config, headed, _ = classes("roberta")
    return hf_folder(tmp_path_factory.mktemp("folders") / "roberta", headed, config(**SHAPES[0]))


def test_a_model_without_a_head_keeps_its_pooler(tmp_path):
    config, _, bare = classes("xlm-roberta")
    hf_folder(tmp_path, bare, config(**SHAPES[1]))
    model, oracle = load(tmp_path), read_by(bare, tmp_path)
    assert_equal_to(oracle, model)
    assert (model.cfg.pooler, model.cfg.mlm_head) == (True, False)
    tokens = torch.tensor([[7, 8, 9]])
    with torch.no_grad():
        pooled = model.pooled(model(tokens, return_logits=False))
        assert error(pooled, oracle(tokens).pooler_output) <= 1e-5
        with pytest.raises(UsageError, match="no head for masked tokens"):
            model(tokens)


def test_files_of_older_programs(folder, tmp_path):
    """Buffers, a pooler that no class uses, and the decoder written out once more; the fields of today left out."""

    def old(weights):
        weights["roberta.embeddings.position_ids"] = torch.arange(26)[None]
        weights["roberta.pooler.dense.weight"], weights["roberta.pooler.dense.bias"] = (
            torch.ones(32, 32),
            torch.ones(32),
        )
        weights["lm_head.decoder.weight"] = weights["roberta.embeddings.word_embeddings.weight"]
        weights["lm_head.decoder.bias"] = weights["lm_head.bias"]
        return weights

    config, headed, _ = classes("roberta")
    hf_folder(tmp_path, headed, config(**SHAPES[0]))
    rewrite(tmp_path, old, tie_word_embeddings=None, architectures=None, pad_token_id=None, hidden_act=None)
    model = load(tmp_path)
    assert model.cfg == replace(load(folder).cfg, pooler=True)
    assert_equal_to(read_by(headed, folder), model)


def test_padding_inside_a_text_is_a_token_like_any_other(folder):
    """Equal to transformers if it is given the same positions; by itself it would count fewer."""
    model, oracle = load(folder), read_by(classes("roberta")[1], folder)
    tokens = torch.tensor([[7, 1, 9, 11]])
    with torch.no_grad():
        ours, theirs = model(tokens), oracle(tokens, position_ids=torch.arange(2, 6)[None]).logits
        assert error(ours, theirs) <= 1e-5
        assert error(ours, oracle(tokens).logits) > 0.01


def test_the_wrapped_class_of_transformers_has_the_same_context(folder):
    """Its config counts the rows of padding too, where no token of a text can be."""
    ours, wrapped = load(folder), load_model(folder, device="cpu", via="transformers")
    assert ours.cfg.n_ctx == wrapped.cfg.n_ctx == 24
    tokens = torch.arange(5, 29)[None]
    with torch.no_grad():
        assert error(ours(tokens), wrapped(tokens)) <= 1e-5


def test_segments_are_those_of_transformers(tmp_path):
    config, headed, _ = classes("roberta")
    hf_folder(tmp_path, headed, config(**SHAPES[1]))
    model, oracle = load(tmp_path), read_by(headed, tmp_path)
    tokens, segments = torch.tensor([[7, 8, 9, 10]]), torch.tensor([[0, 2, 1, 1]])
    with torch.no_grad():
        assert error(model(tokens, token_type_ids=segments), oracle(tokens, token_type_ids=segments).logits) <= 1e-5
    with pytest.raises(UsageError, match=r"token_type_ids lie in 0\.\.2"):
        model(tokens, token_type_ids=segments + 1)


_REFUSED = [
    ({"hidden_size": 30}, r"d_model \(hidden_size\) 30 must be a multiple of n_heads"),
    ({"max_position_embeddings": "8"}, "max_position_embeddings must be a whole number"),
    ({"max_position_embeddings": 2}, r"n_ctx \(max_position_embeddings - pad_token_id - 1\) .*got 0"),
    ({"pad_token_id": None}, "pad_token_id must be a whole number from 0; got None"),
    ({"pad_token_id": -1}, "pad_token_id"),
    ({"pad_token_id": 25}, "n_ctx"),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key' is not implemented"),
    ({"is_decoder": True}, "is_decoder"),
    ({"quantization_config": {}}, "quantization_config"),
    ({"architectures": ["RobertaForSequenceClassification"]}, r"RobertaModel \(model\.roberta\.save_pretrained\)"),
    ({"architectures": ["XLMRobertaForMaskedLM"]}, "only RobertaModel, RobertaForMaskedLM; save"),
    ({"architectures": "RobertaModel"}, "architectures = 'RobertaModel'"),
]
IMPOSSIBLE = [({"model_type": "roberta", **SHAPES[0]} | change, match) for change, match in _REFUSED]
PUBLISHED = {
    "Roberta 1": (RobertaConfig(), 124697433),
    "Roberta 2": (RobertaConfig(d_model=1024, n_heads=16, d_mlp=4096, n_layers=24), 355412057),
    "Roberta 3": (RobertaConfig(d_vocab=250002, model_type="xlm-roberta"), 278295186),
}
