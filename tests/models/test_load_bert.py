"""BERT folders in every form in which they are found, against `transformers` on the same files; and broken ones."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig as HfConfig
from transformers import BertForMaskedLM, BertForNextSentencePrediction, BertForPreTraining, BertModel

from probekit.errors import DataError
from probekit.models import load_model
from probekit.models.families.bert import Bert, BertConfig
from probekit.models.weights import save_hf

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "key", "##s", "to", "cabinet", "be", "##en", "are", "."]
SHAPE: dict[str, Any] = {
    "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48,
    "vocab_size": len(VOCAB), "max_position_embeddings": 16,
}  # fmt: skip
CLASSES: list[Any] = [BertModel, BertForMaskedLM, BertForNextSentencePrediction, BertForPreTraining]
TEXT = "The keys to the cabinet have been [MASK]."


def hf_folder(folder: Path, kind: Any = BertForPreTraining, **changes: Any) -> Path:
    """What transformers saves, with a tokenizer as in the first of BERT's checkpoints: vocab.txt alone."""
    torch.manual_seed(0)
    oracle = kind(HfConfig(**{**SHAPE, **changes}))
    with torch.no_grad():
        for p in oracle.parameters():
            p.add_(torch.randn_like(p) * 0.2)
        if hasattr(oracle, "cls") and hasattr(oracle.cls, "predictions"):
            oracle.cls.predictions.bias.copy_(oracle.cls.predictions.decoder.bias)
    oracle.save_pretrained(folder)
    assert sum(p.numel() for p in oracle.parameters()) < 50_000
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    return folder


def rewrite(folder: Path, change: Any = dict, **fields: Any) -> Path:
    """The folder with `change(weights)` as weights, and other fields in its config.json; None takes one out."""
    weights = load_file(folder / "model.safetensors")
    save_file({name: x.clone() for name, x in change(weights).items()}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps({key: x for key, x in config.items() if x is not None}))
    return folder


def load(folder: Path, **how: Any) -> Bert:
    model = load_model(folder, device="cpu", **how)
    assert isinstance(model, Bert)
    return model


def assert_equal_to(oracle: BertForPreTraining, model: Bert) -> None:
    tokens = model.to_tokens(TEXT, bos=True)
    assert tokens[0, 0] == 2
    assert tokens[0, -1] == 3
    with torch.no_grad():
        theirs = oracle.eval()(tokens, output_hidden_states=True)
        output = model(tokens, return_logits=False)
        torch.testing.assert_close(output, theirs.hidden_states[-1], atol=1e-5, rtol=1e-5)
        if model.cfg.mlm_head:
            torch.testing.assert_close(model.logits(output), theirs.prediction_logits, atol=1e-5, rtol=1e-5)
        if model.cfg.seq_head:
            torch.testing.assert_close(model.classify(output), theirs.seq_relationship_logits, atol=1e-5, rtol=1e-5)


@pytest.fixture
def folder(tmp_path) -> Path:
    return hf_folder(tmp_path / "my-bert")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", CLASSES)
def test_what_transformers_saves_is_what_it_is(tmp_path, kind, tied):
    hf_folder(tmp_path, kind, tie_word_embeddings=tied)
    model = load(tmp_path)
    n = kind.from_pretrained(tmp_path).num_parameters()
    own = sum(p.numel() for p in model.parameters())
    assert n - own in (0, len(VOCAB))  # of an untied model theirs counts a bias that nothing reads
    assert_equal_to(BertForPreTraining.from_pretrained(tmp_path), model)
    assert (model.name, model.cfg.mlm_head) == (tmp_path.name, kind in (BertForMaskedLM, BertForPreTraining))


def test_old_names_buffers_and_copies(folder):
    """As the first checkpoints were saved: gamma and beta, positions as a tensor, the decoder written out once more."""
    oracle = BertForPreTraining.from_pretrained(folder)

    def old(weights):
        weights = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): x
            for name, x in weights.items()
        }
        weights["bert.embeddings.position_ids"] = torch.arange(16)[None]
        weights["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"]
        weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"]
        return weights

    rewrite(folder, old, layer_norm_eps=None, type_vocab_size=None, tie_word_embeddings=None, architectures=None)
    assert_equal_to(oracle, load(folder))


def test_more_and_less_than_the_config_says(folder):
    """Bert-base says BertForMaskedLM and holds everything; others say so and hold no head, or no pooler."""
    oracle = BertForPreTraining.from_pretrained(folder)
    rewrite(folder, architectures=["BertForMaskedLM"])
    assert load(folder).cfg.pooler
    assert_equal_to(oracle, load(folder))
    rewrite(folder, architectures=["BertModel"])
    assert_equal_to(oracle, load(folder))
    assert load(folder).cfg == BertConfig.from_hf(SHAPE)
    rewrite(folder, lambda w: {name: x for name, x in w.items() if "seq_relationship" not in name})
    assert not load(folder).cfg.seq_head
    rewrite(folder, lambda w: {name: x for name, x in w.items() if "pooler" not in name})
    assert not load(folder).cfg.pooler
    assert_equal_to(oracle, load(folder))
    rewrite(folder, lambda w: {name.removeprefix("bert."): x for name, x in w.items() if not name.startswith("cls")})
    model = load(folder)
    assert model.head is None
    assert_equal_to(oracle, model)


def test_buffers_of_a_bare_model(tmp_path):
    hf_folder(tmp_path, BertModel)
    oracle = BertForPreTraining.from_pretrained(tmp_path)
    rewrite(tmp_path, lambda w: {**w, "embeddings.position_ids": torch.arange(16)[None]})
    assert_equal_to(oracle, load(tmp_path))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", CLASSES)
def test_saved_and_loaded_it_is_the_same(tmp_path, kind, tied):
    model = load(hf_folder(tmp_path / "theirs", kind, tie_word_embeddings=tied))
    save_hf(model, tmp_path / "ours")
    again = load(tmp_path / "ours")
    assert (again.fingerprint(), again.cfg) == (model.fingerprint(), model.cfg)
    assert again.to_tokens(TEXT, bos=True).tolist() == model.to_tokens(TEXT, bos=True).tolist()
    assert_equal_to(BertForPreTraining.from_pretrained(tmp_path / "ours"), model)


def test_random_weights_need_the_config_alone(folder):
    (folder / "model.safetensors").unlink()
    one, two, other = (load(folder, random_init=True, seed=seed) for seed in (1, 1, 2))
    assert one.fingerprint() == two.fingerprint() != other.fingerprint()
    assert one.name == "my-bert-random1"
    assert one(one.to_tokens(TEXT, bos=True)).isfinite().all()


def test_the_bias_that_an_untied_decoder_does_not_use_may_be_anything(tmp_path):
    folder = hf_folder(tmp_path / "theirs", BertForPreTraining, tie_word_embeddings=False)
    rewrite(folder, lambda w: w | {"cls.predictions.bias": w["cls.predictions.decoder.bias"] + 1})
    assert_equal_to(BertForPreTraining.from_pretrained(folder), load(folder))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_types_are_near(folder, dtype):
    wide, narrow = load(folder), load(folder, dtype=dtype)
    tokens = wide.to_tokens(TEXT, bos=True)
    with torch.no_grad():
        expected, found = wide(tokens, return_logits=False), narrow(tokens, return_logits=False)
    assert found.dtype == getattr(torch, dtype)
    assert (found.float() - expected).abs().max() <= 0.05 * expected.abs().max()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w | {"cls.predictions.decoder.weight": w["bert.embeddings.word_embeddings.weight"] + 1},
         r"decoder\.weight is not equal to .*word_embeddings\.weight"),
        (lambda w: w | {"cls.predictions.decoder.bias": w["cls.predictions.bias"] + 1}, r"decoder\.bias is not equal"),
        (lambda w: {name: x for name, x in w.items() if name != "cls.predictions.transform.dense.weight"},
         r"missing: cls\.predictions\.transform\.dense\.weight \[32, 32\]"),
        (lambda w: {name: x for name, x in w.items() if "layer.1.output.LayerNorm.bias" not in name},
         r"missing: bert\.encoder\.layer\.1\.output\.LayerNorm\.bias"),
        (lambda w: w | {"bert.encoder.layer.0.attention.self.distance_embedding.weight": torch.zeros(31, 8)},
         "unexpected: .*distance_embedding"),
        (lambda w: w | {"classifier.weight": torch.zeros(2, 32)}, r"unexpected: classifier\.weight"),
        (lambda w: w | {"bert.embeddings.LayerNorm.gamma": torch.ones(32)}, "twice"),
        (lambda w: {name: x for name, x in w.items() if "pooler" not in name}, "reads the pooler"),
        (lambda w: w | {"bert.embeddings.token_type_embeddings.weight": torch.zeros(3, 32)}, r"misshapen.*\[2, 32\]"),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit(folder, change, message):
    with pytest.raises(DataError, match=message):
        load(rewrite(folder, change))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"is_decoder": True}, r"config\.json': is_decoder = True is not implemented"),
        ({"position_embedding_type": "relative_key_query"}, "position_embedding_type"),
        ({"architectures": ["BertForQuestionAnswering"]}, "BertForQuestionAnswering"),
        ({"num_attention_heads": 3}, "a multiple"),
    ],
)
def test_configs_that_are_not_implemented(folder, fields, message):
    with pytest.raises(DataError, match=message):
        load(rewrite(folder, **fields))


def test_a_tokenizer_of_more_words_than_the_model_knows(folder):
    (folder / "vocab.txt").write_text("\n".join([*VOCAB, "film"]) + "\n")
    model = load(folder)
    assert model.to_tokens("the key").tolist() == [[5, 6]]
    with pytest.raises(DataError, match=r"'film' has id 14, and the model knows 0\.\.13 only"):
        model.to_tokens("the film")
