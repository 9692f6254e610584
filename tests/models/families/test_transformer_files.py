"""Marian's config and folders: what is read, what is refused, and what is written."""

from pathlib import Path

import pytest
import torch
from marian_oracle import IDS, SHAPES, from_hf, ids, oracle_for
from safetensors.torch import save_file
from torch import Tensor
from transformers import MarianMTModel
from transformers_twins import error

from probekit.errors import DataError
from probekit.models.families.transformer import Transformer, TransformerConfig
from probekit.models.load import load_model
from probekit.models.weights import save_hf


def loaded(folder: Path) -> Transformer:
    model = load_model(folder, device="cpu")
    assert isinstance(model, Transformer)
    return model


def same(one: Transformer, two: Transformer) -> None:
    assert one.cfg == two.cfg
    assert one.fingerprint() == two.fingerprint()


@pytest.mark.parametrize(("tied", "learned"), [(True, False), (False, True)])
def test_saved_folders_are_read_back_and_by_transformers(tmp_path: Path, tied, learned):
    model = from_hf(oracle_for(SHAPES[0], tied, learned), learned)
    save_hf(model, tmp_path)
    same(loaded(tmp_path), model)
    theirs = MarianMTModel.from_pretrained(tmp_path).eval()
    source, tokens = ids(model, 2, 6), ids(model, 2, 5, seed=2)
    with torch.no_grad():
        assert error(model(source, tokens), theirs(source, decoder_input_ids=tokens).logits) <= 1e-5
    random = load_model(tmp_path, device="cpu", random_init=True, seed=2)
    assert random.fingerprint() == Transformer(model.cfg).init_weights(2).fingerprint()


def test_the_bare_model_has_no_bias_of_the_head(tmp_path: Path):
    oracle = oracle_for(SHAPES[0])
    oracle.model.save_pretrained(tmp_path)
    model = loaded(tmp_path)
    assert not model.cfg.logits_bias
    source, tokens = ids(model, 2, 6), ids(model, 2, 5, seed=2)
    with torch.no_grad():
        theirs = oracle(source, decoder_input_ids=tokens).logits - oracle.final_logits_bias
        assert error(model(source, tokens), theirs) <= 1e-5


def old_file(folder: Path, oracle: MarianMTModel) -> dict[str, Tensor]:
    """What older programs wrote: every copy of the embedding, and the tables of the positions."""
    oracle.save_pretrained(folder)
    return {name: x.clone().contiguous() for name, x in oracle.state_dict().items()}


def test_copies_and_tables_of_old_files(tmp_path: Path):
    oracle = oracle_for(SHAPES[0])
    weights = old_file(tmp_path, oracle)
    table = weights["model.encoder.embed_positions.weight"]
    table.add_(1)  # transformers uses a table that a file holds, whatever it is
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model, theirs = loaded(tmp_path), MarianMTModel.from_pretrained(tmp_path).eval()
    assert model.cfg.positions == "learned"
    source, tokens = ids(model, 2, 6), ids(model, 2, 5, seed=2)
    with torch.no_grad():
        assert error(model(source, tokens), theirs(source, decoder_input_ids=tokens).logits) <= 1e-5


def test_a_copy_that_differs_is_refused(tmp_path: Path):
    weights = old_file(tmp_path, oracle_for(SHAPES[0]))
    weights["model.decoder.embed_tokens.weight"][0, 0] += 1
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"model\.decoder\.embed_tokens\.weight is not equal to model\.shared\.weight"):
        load_model(tmp_path)


def test_a_config_as_opus_mt_has_it():
    hf = {**SHAPES[0], **IDS, "normalize_before": False, "normalize_embedding": False, "add_final_layer_norm": False,
          "static_position_embeddings": True, "share_encoder_decoder_embeddings": True, "decoder_vocab_size": 31,
          "is_encoder_decoder": True, "bos_token_id": 0, "num_hidden_layers": 3}  # fmt: skip
    cfg = TransformerConfig.from_hf(hf)
    assert (cfg.activation, cfg.positions, cfg.tie_embeddings, cfg.d_head, cfg.d_decoder_head) == (
        "silu", "sinusoidal", True, 8, 16,
    )  # fmt: skip
    assert Transformer.causal is False
    assert Transformer.output_point == "ln2_normalized"


_REFUSED = [
    ({"normalize_before": True}, "normalize_before"),
    ({"normalize_embedding": True}, "normalize_embedding"),
    ({"layernorm_embedding": True}, "layernorm_embedding"),
    ({"add_final_layer_norm": True}, "add_final_layer_norm"),
    ({"is_encoder_decoder": False}, "is_encoder_decoder"),
    ({"is_decoder": True}, "is_decoder"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ({"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings"),
    ({"tie_word_embeddings": False}, "tie_word_embeddings"),
    ({"decoder_vocab_size": 32}, "decoder_vocab_size"),
    ({"static_position_embeddings": "no"}, "static_position_embeddings"),
    ({"encoder_attention_heads": 5}, "encoder_attention_heads"),
    ({"decoder_attention_heads": 3}, "decoder_attention_heads"),
    ({"d_model": 33, "encoder_attention_heads": 3, "decoder_attention_heads": 11}, "even d_model; got 33"),
    ({"pad_token_id": 31}, "pad_token_id"),
]
IMPOSSIBLE = [({"model_type": "marian", **SHAPES[0]} | change, match) for change, match in _REFUSED]
