"""WordPiece tokenizers from vocab.txt against `transformers`, their [CLS] and [SEP], and what broken files are told."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertTokenizer

from probekit.errors import DataError, UsageError
from probekit.models.tokenizer import Tokenizer
from probekit.models.tokenizer_files import read_tokenizer

PIECES = "[PAD] [unused0] [UNK] [CLS] [SEP] [MASK] the The key keys un ##un ##lock ##ed naive naïve é 日 本 , . ! ' - 1"
VOCAB = [*PIECES.split(), *"abcdefghijklmnopqrstuvwxyzABC", *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz0")]
TRICKY = [
    "",
    " ",
    "The keys, unlocked!",
    "THE KEY\tthe\n\nkeys  ",
    "naïve NAÏVE e\u0301 É",
    "日本語 the日本key",
    "[CLS] the [SEP] [MASK]s [cls] [UNK] [PAD][unused0]",
    "\x00\x01\x1b[31m\x7f\u200b\u202e\u2028\ufeff\ufffd key",
    "don't un-lock 1,000.1",
    "x" * 99 + " " + "x" * 101,
    "👩‍👩‍👧‍👦 א Å ﬁ",
]
SETTINGS = [
    None,
    {},
    {"do_lower_case": False},
    {"do_lower_case": True, "strip_accents": False},
    {"do_lower_case": False, "strip_accents": True},
    {"tokenize_chinese_chars": False, "do_lower_case": False},
]


def write(folder: Path, config: dict | None, vocab: list[str] = VOCAB) -> Path:
    (folder / "vocab.txt").write_text("\n".join(vocab) + "\n", encoding="utf-8")
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def load(folder: Path, **kwargs) -> Tokenizer:
    tokenizer = read_tokenizer(folder, **kwargs)
    assert tokenizer is not None
    return tokenizer


def oracle_of(folder: Path) -> BertTokenizer:
    return BertTokenizer.from_pretrained(folder, local_files_only=True)


@pytest.fixture(scope="module")
def twins(tmp_path_factory) -> tuple[Tokenizer, BertTokenizer]:
    folder = write(tmp_path_factory.mktemp("wordpiece"), {})
    return load(folder), oracle_of(folder)


@pytest.mark.parametrize("config", SETTINGS)
def test_a_list_of_pieces_equals_transformers(tmp_path, config):
    ours, theirs = load(write(tmp_path, config)), oracle_of(tmp_path)
    assert ours.encode_batch(TRICKY, bos=True) == theirs(TRICKY)["input_ids"]
    assert ours.encode_batch(TRICKY) == theirs(TRICKY, add_special_tokens=False)["input_ids"]
    assert [ours.encode(text, bos=True) for text in TRICKY] == theirs(TRICKY)["input_ids"]
    for ids in ours.encode_batch(TRICKY, bos=True):
        assert ours.tokens(ids) == theirs.convert_ids_to_tokens(ids)
    assert (ours.bos_token_id, ours.sep_token_id, len(ours)) == (3, 4, len(VOCAB))


@settings(max_examples=100)
@given(text=st.text(max_size=40))
def test_any_text_equals_transformers(text, twins):
    ours, theirs = twins
    assert ours.encode(text, bos=True) == theirs(text)["input_ids"]


def test_the_two_formats_are_one_tokenizer(tmp_path):
    ours = load(write(tmp_path, {}))
    (tmp_path / "tokenizer.json").write_text(ours.to_json())
    (tmp_path / "vocab.txt").unlink()
    (tmp_path / "tokenizer_config.json").unlink()
    again = load(tmp_path)
    assert again.encode_batch(TRICKY, bos=True) == ours.encode_batch(TRICKY, bos=True)
    assert (again.fingerprint, again.sep_token_id) == (ours.fingerprint, 4)


def test_lines_end_as_they_may(tmp_path):
    """A last line without an end, and the line ends of other systems."""
    plain = load(write(tmp_path, None)).encode_batch(TRICKY)
    for content in ("\n".join(VOCAB), "\r\n".join(VOCAB) + "\r\n"):
        (tmp_path / "vocab.txt").write_bytes(content.encode())
        assert load(tmp_path).encode_batch(TRICKY) == plain


def test_without_cls_and_sep_there_is_no_context(tmp_path):
    ours = load(write(tmp_path, None, [piece for piece in VOCAB if piece != "[SEP]"]))
    assert (ours.bos_token_id, ours.sep_token_id) == (None, None)
    with pytest.raises(UsageError, match="no BOS"):
        ours.encode("the key", bos=True)


def test_a_vocabulary_that_does_not_fit_the_model_is_named(tmp_path):
    write(tmp_path, None)
    with pytest.raises(DataError, match=r"'key' has id 8, and the model knows 0\.\.7 only"):
        load(tmp_path, d_vocab=8).encode("the key")
    with pytest.raises(UsageError, match=r"the SEP id 4 is not among the model's ids 0\.\.3"):
        load(tmp_path, d_vocab=4).encode("", bos=True)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"do_lower_case": "yes"}, "do_lower_case must be true or false; got 'yes'"),
        ({"strip_accents": 1}, "strip_accents must be true or false; got 1"),
        ({"tokenize_chinese_chars": []}, "tokenize_chinese_chars must be true or false"),
        ({"unk_token": "<unk>"}, r"vocab\.txt' has no line '<unk>'"),
    ],
)
def test_impossible_settings(tmp_path, config, message):
    with pytest.raises(DataError, match=message):
        load(write(tmp_path, config))


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"the\nkey\n", b"\n\n\n"])
def test_a_broken_list_of_pieces_is_named(tmp_path, content):
    (tmp_path / "vocab.txt").write_bytes(content)
    with pytest.raises(DataError, match=r"vocab\.txt"):
        load(tmp_path)
