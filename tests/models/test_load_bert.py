"""BERT folders in every form in which they are found, against `transformers` on the same files; and broken ones."""

from pathlib import Path
from typing import Any

import pytest
import torch
from encoder_folders import hf_folder, load, rewrite
from transformers import BertConfig as HfConfig
from transformers import BertForMaskedLM, BertForNextSentencePrediction, BertForPreTraining, BertModel

from probekit.errors import DataError
from probekit.models.families.bert import Bert, BertConfig
from probekit.models.weights import save_hf

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "key", "##s", "to", "cabinet", "be", "##en", "are", "."]
SHAPE: dict[str, Any] = {
    "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48,
    "vocab_size": len(VOCAB), "max_position_embeddings": 16,
}  # fmt: skip
CLASSES: list[Any] = [BertModel, BertForMaskedLM, BertForNextSentencePrediction, BertForPreTraining]
TEXT = "The keys to the cabinet have been [MASK]."


def bert_folder(folder: Path, kind: Any = BertForPreTraining, **changes: Any) -> Path:
    """What transformers saves, with a tokenizer as in the first of BERT's checkpoints: vocab.txt alone."""
    hf_folder(folder, kind, HfConfig(**SHAPE | changes))
    if kind in (BertForMaskedLM, BertForPreTraining):  # one bias under two names

        def with_one_bias(weights: dict[str, Any]) -> dict[str, Any]:
            copy = weights.get("cls.predictions.decoder.bias")
            return weights if copy is None else weights | {"cls.predictions.bias": copy}

        rewrite(folder, with_one_bias)
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    return folder


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
    return bert_folder(tmp_path / "my-bert")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", CLASSES)
def test_what_transformers_saves_is_what_it_is(tmp_path, kind, tied):
    bert_folder(tmp_path, kind, tie_word_embeddings=tied)
    model = load(tmp_path)
    n = kind.from_pretrained(tmp_path).num_parameters()
    own = sum(p.numel() for p in model.parameters())
    assert n - own in (0, len(VOCAB))  # of an untied model theirs counts a bias that nothing reads
    assert_equal_to(BertForPreTraining.from_pretrained(tmp_path), model)
    assert (model.name, model.cfg.mlm_head) == (tmp_path.name, kind in (BertForMaskedLM, BertForPreTraining))
    save_hf(model, tmp_path / "ours")
    again = load(tmp_path / "ours")
    assert (again.fingerprint(), again.cfg) == (model.fingerprint(), model.cfg)
    assert again.to_tokens(TEXT, bos=True).tolist() == model.to_tokens(TEXT, bos=True).tolist()
    assert_equal_to(BertForPreTraining.from_pretrained(tmp_path / "ours"), model)


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


def test_the_bias_that_an_untied_decoder_does_not_use_may_be_anything(tmp_path):
    folder = bert_folder(tmp_path / "theirs", BertForPreTraining, tie_word_embeddings=False)
    rewrite(folder, lambda w: w | {"cls.predictions.bias": w["cls.predictions.decoder.bias"] + 1})
    assert_equal_to(BertForPreTraining.from_pretrained(folder), load(folder))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w | {"cls.predictions.decoder.weight": w["bert.embeddings.word_embeddings.weight"] + 1},
         r"decoder\.weight is not equal to .*word_embeddings\.weight"),
        (lambda w: w | {"cls.predictions.decoder.bias": w["cls.predictions.bias"] + 1}, r"decoder\.bias is not equal"),
        (lambda w: {name: x for name, x in w.items() if name != "cls.predictions.transform.dense.weight"},
         r"missing: cls\.predictions\.transform\.dense\.weight \[32, 32\]"),
        (lambda w: w | {"bert.encoder.layer.0.attention.self.distance_embedding.weight": torch.zeros(31, 8)},
         "unexpected: .*distance_embedding"),
        (lambda w: w | {"bert.embeddings.LayerNorm.gamma": torch.ones(32)}, "twice"),
        (lambda w: {name: x for name, x in w.items() if "pooler" not in name}, "reads the pooler"),
        (lambda w: w | {"bert.embeddings.token_type_embeddings.weight": torch.zeros(3, 32)}, r"misshapen.*\[2, 32\]"),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit(folder, change, message):
    with pytest.raises(DataError, match=message):
        load(rewrite(folder, change))
