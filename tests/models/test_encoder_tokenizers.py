"""Tokenizers of RoBERTa, DistilBERT and ModernBERT against `transformers`, and which of their tokens are read."""

import json
from collections.abc import Sized
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tiny_configs import SIZES
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertTokenizer, RobertaTokenizer, XLMRobertaTokenizer

import probekit as pk
from probekit.models.families import family_of
from probekit.models.families.distilbert import DistilBertConfig
from probekit.models.families.modernbert import ModernBertConfig
from probekit.models.families.roberta import RobertaConfig
from probekit.models.tokenizer_files import read_tokenizer
from probekit.models.weights import save_hf

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = [("t", "h"), ("th", "e"), ("\u0120", "the"), ("k", "e"), ("ke", "y"), ("\u0120", "k"), ("\u0120", "\u0120")]
WORDS = [*BYTES, *map("".join, MERGES)]
ROBERTA = {piece: i for i, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *WORDS, "<mask>"])}
MODERN = {piece: i for i, piece in enumerate([*WORDS, "[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"])}
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "key", "##s", ",", "caf", "##e", *"abchy"]
STRIPS = {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "rstrip": False, "normalized": True}
TEXTS = [
    "the key",
    " the  key\n",
    "the <mask> key <s>",
    "caf\u00e9 \u6771\u4eac, e\u0301",
    "[CLS] the [MASK].",
    "keys",
    "",
]


def write_roberta(folder: Path, settings: dict[str, Any] | None = None) -> None:
    (folder / "vocab.json").write_text(json.dumps(ROBERTA))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in MERGES))
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_modernbert(folder: Path) -> None:
    """The parts of the published tokenizer.json."""
    backend = Backend(models.BPE(MODERN, MERGES, unk_token="[UNK]"))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"])
    ids = [(name, MODERN[name]) for name in ("[CLS]", "[SEP]")]
    backend.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ids)
    backend.save(str(folder / "tokenizer.json"))
    special = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]", "pad_token": "[PAD]"}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "[UNK]",
        "clean_up_tokenization_spaces": True,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | special))


def write_distilbert(folder: Path) -> None:
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")


@pytest.mark.parametrize(
    "settings", [None, {"add_prefix_space": True}, {"mask_token": STRIPS}, {"cls_token": "<pad>", "sep_token": "<unk>"}]
)
def test_robertas_two_files_equal_transformers(tmp_path, settings):
    write_roberta(tmp_path, settings)
    ours, theirs = read_tokenizer(tmp_path, bos_token_id=0, causal=False), RobertaTokenizer.from_pretrained(tmp_path)
    assert ours is not None
    assert ours.encode_batch(TEXTS, bos=True) == theirs(TEXTS)["input_ids"]
    assert ours.encode_batch(TEXTS) == theirs(TEXTS, add_special_tokens=False)["input_ids"]
    assert (ours.bos_token_id, ours.sep_token_id) == (theirs.cls_token_id, theirs.sep_token_id)
    spans = theirs("the  key", add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    assert [ours.offsets("the  key")[i] for i in (0, -1)] == [spans[0], spans[-1]] == [(0, 3), (5, 8)]


SPM = [
    ("<s>", 0.0),
    ("<pad>", 0.0),
    ("</s>", 0.0),
    ("<unk>", 0.0),
    ("\u2581the", -1.0),
    ("\u2581", -2.0),
    ("key", -3.0),
]
SAVED: dict[str, Any] = {
    "roberta": lambda: RobertaTokenizer(ROBERTA, cast(Any, MERGES), add_prefix_space=True),
    "xlm-roberta": lambda: XLMRobertaTokenizer([*SPM, ("s", -3.0), ("<mask>", 0.0)]),
    "distilbert": lambda: BertTokenizer({piece: i for i, piece in enumerate(PIECES)}),
}


@pytest.mark.parametrize("name", SAVED)
def test_what_transformers_saves_is_the_same_tokenizer(name, tmp_path):
    theirs = SAVED[name]()
    theirs.save_pretrained(tmp_path)
    assert (tmp_path / "tokenizer.json").is_file()
    ours = read_tokenizer(tmp_path, bos_token_id=0, causal=False)
    assert ours is not None
    assert ours.encode_batch(TEXTS, bos=True) == theirs(TEXTS)["input_ids"]
    assert (ours.bos_token_id, ours.sep_token_id) == (theirs.cls_token_id, theirs.sep_token_id)


def test_without_the_two_tokens_there_is_no_context(tmp_path):
    write_roberta(tmp_path, {"sep_token": "<end>"})
    tokenizer = read_tokenizer(tmp_path, bos_token_id=0, causal=False)
    assert tokenizer is not None
    assert (tokenizer.bos_token_id, tokenizer.sep_token_id) == (None, None)


def sizes(vocabulary: Sized) -> dict[str, Any]:
    return SIZES | {"d_vocab": len(vocabulary), "init_std": 0.3}


MODELS: dict[str, tuple[Any, Any]] = {
    "roberta": (RobertaConfig(**sizes(ROBERTA)), write_roberta),
    "distilbert": (DistilBertConfig(**sizes(PIECES)), write_distilbert),
    "modernbert": (
        ModernBertConfig(
            **sizes(MODERN),
            layer_types=("full_attention", *["sliding_attention"] * 2),
            sliding_window=2,
            pad_token_id=MODERN["[PAD]"],
        ),
        write_modernbert,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_positions_are_those_of_the_text_between_its_two_tokens(name, tmp_path):
    """first, last and mean leave out what the tokenizer puts around a text; `transformers` reads the same folder."""
    cfg, write = MODELS[name]
    save_hf(family_of(cfg).model(cfg).init_weights(3), tmp_path)
    write(tmp_path)
    ours, texts = pk.load_model(tmp_path, device="cpu"), ["the key", "the key, caf\u00e9", "keys the key"]
    task = pk.Task("texts", texts)
    rows = {
        position: pk.extract(ours, task, points="resid_pre", layers=[0, 2], position=position, progress=False)
        for position in ("first", "last", "mean")
    }
    tokenizer, theirs = AutoTokenizer.from_pretrained(tmp_path), AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    for i, text in enumerate(texts):
        batch = tokenizer(text, return_tensors="pt")
        assert ours.to_tokens(text, bos=True).tolist() == batch["input_ids"].tolist()
        with torch.no_grad():
            states = theirs(**batch, output_hidden_states=True).hidden_states
        for layer in (0, 2):
            own = states[layer][0, 1:-1]
            for position, wanted in (("first", own[0]), ("last", own[-1]), ("mean", own.mean(0))):
                got = torch.as_tensor(rows[position]["resid_pre", layer][i])
                assert (got - wanted).abs().max() <= 1e-5 * own.abs().max(), (position, layer)
