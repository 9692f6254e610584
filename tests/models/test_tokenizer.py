"""Tokenizers against `transformers`, on real and on hostile text, and what broken files are told."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoTokenizer, GPT2Tokenizer

from probekit.errors import DataError, UsageError
from probekit.models.tokenizer import Tokenizer
from probekit.models.tokenizer_files import (
    BOUNDS,
    CLASSES,
    DEFAULTS,
    END_OF_TEXT,
    SPECIAL,
    read_tokenizer,
    template_files,
)

TRICKY = [
    "",
    " ",
    "a",
    "the dog\n\n  barks\t\t!  ",
    "naïve café — “quotes” … ﬁ Å Å",
    "日本語 العربية עברית ไทย",
    "👩‍👩‍👧‍👦 👍🏽 🏳️‍🌈",
    "\x00\x01\x1b[31m\x7f\u200b\u202e\u2028\ufeff\ufffd",
    "I'm you're he'll WE'VE don't 3.14 1,000",
    f"one{END_OF_TEXT}two {END_OF_TEXT}{END_OF_TEXT} <|endoftext",
    "x" * 2000,
]


@pytest.fixture(scope="module")
def bpe_folder(hub, tmp_path_factory) -> Path:
    """The served GPT-2's vocab.json and merges.txt."""
    folder = tmp_path_factory.mktemp("bpe")
    for name in ("vocab.json", "merges.txt"):
        (folder / name).write_bytes(hub.repos["models/openai-community/gpt2"][name])
    return folder


def load(folder: Path, **kwargs) -> Tokenizer:
    tokenizer = read_tokenizer(folder, **kwargs)
    assert tokenizer is not None
    return tokenizer


def words(**kwargs) -> Tokenizer:
    backend = Backend(models.WordLevel({"the": 0, "key": 1, "keys": 2, "<eos>": 3}))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer(backend, **kwargs)


def assert_equal_to_oracle(folder: Path, texts: list[str]) -> None:
    ours = load(folder)
    oracle = GPT2Tokenizer(vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"))
    theirs = oracle(texts)["input_ids"]
    assert ours.encode_batch(texts) == theirs
    assert [ours.encode(text) for text in texts[:100]] == theirs[:100]
    assert [ours.decode(ids) for ids in theirs] == [
        oracle.decode(ids, clean_up_tokenization_spaces=False) for ids in theirs
    ]
    assert ours.bos_token_id == oracle.bos_token_id


def test_vocab_and_merges_equal_transformers(bpe_folder):
    assert_equal_to_oracle(bpe_folder, TRICKY)


def test_vocab_and_merges_with_a_leading_blank_equal_transformers(bpe_folder, tmp_path):
    folder = shutil.copytree(bpe_folder, tmp_path / "model")
    (folder / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
    oracle = GPT2Tokenizer(vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"), add_prefix_space=True)
    assert load(folder).encode_batch(TRICKY) == oracle(TRICKY)["input_ids"]


@pytest.mark.shared
def test_gpt2s_own_files_equal_transformers_on_real_text(shared_dir):
    lines = [
        line
        for name in ("tinyshakespeare.txt", "wikitext2_test.txt", "tinystories_2MiB.txt")
        for line in (shared_dir / "data/text" / name).read_text(encoding="utf-8").splitlines()[:2000]
    ]
    lines += (shared_dir / "data/sst2/dev.tsv").read_text(encoding="utf-8").splitlines()[:2000]
    lines += (shared_dir / "data/ud-english-ewt/en_ewt-ud-dev.conllu").read_text(encoding="utf-8").splitlines()[:2000]
    assert_equal_to_oracle(shared_dir / "models/gpt2-tokenizer", [*TRICKY, *lines])


@pytest.fixture(scope="module")
def bpe(bpe_folder):
    return load(bpe_folder)


@settings(max_examples=200)
@given(text=st.text(max_size=60))
def test_bytes_come_back_as_they_were(text, bpe):
    ids = bpe.encode(text)
    assert bpe.decode(ids) == text
    assert len(bpe.tokens(ids)) == len(ids)


@pytest.mark.parametrize("text", ["the dog", "  the  dog", "a\n b ", " ", "▁", ""])
@pytest.mark.parametrize(
    ("normalizer", "splits", "decoder"),
    [
        (normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None,
         decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])),
        (None, pre_tokenizers.Metaspace(prepend_scheme="always"), decoders.Metaspace(prepend_scheme="always")),
    ],
)  # fmt: skip
def test_joined_the_strings_of_pieces_are_the_text_after_one_blank(normalizer, splits, decoder, text):
    """As Llama 2's tokenizer.json spells its rules, and as transformers' Metaspace does."""
    pieces = ["▁", "▁▁", "▁the", "▁d", "o", "g", "▁a", "\n", "▁b", "<unk>"]
    backend = Backend(models.Unigram([(piece, -1.0) for piece in pieces], 9, False))
    if normalizer is not None:
        backend.normalizer = normalizer
    if splits is not None:
        backend.pre_tokenizer = splits
    backend.decoder = decoder
    tokenizer = Tokenizer(backend)
    joined = "".join(tokenizer.tokens(tokenizer.encode(text)))
    assert joined == joined[:1] + tokenizer.decode(tokenizer.encode(text))
    assert joined == (" " + text.replace("▁", " ") if text else "") or (splits and text.startswith((" ", "▁")))


@settings(max_examples=100)
@given(text=st.text(alphabet="the cold film\n", max_size=40))
def test_joined_the_strings_of_byte_level_tokens_are_the_text(text, bpe_folder):
    tokenizer = load(bpe_folder)
    assert "".join(tokenizer.tokens(tokenizer.encode(text))) == text


def test_the_two_formats_are_one_tokenizer(bpe_folder, tmp_path):
    ours = load(bpe_folder)
    (tmp_path / "tokenizer.json").write_text(ours.to_json())
    again = load(tmp_path)
    assert again.encode_batch(TRICKY) == ours.encode_batch(TRICKY)
    assert again.fingerprint == ours.fingerprint
    assert again.fingerprint != words().fingerprint


def test_a_folder_without_a_tokenizer_gives_none(tmp_path, bpe_folder):
    assert read_tokenizer(tmp_path) is None
    shutil.copy(bpe_folder / "vocab.json", tmp_path)
    assert read_tokenizer(tmp_path) is None


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"tokenizer_config.json": {"bos_token": "keys"}}, 2),
        ({"special_tokens_map.json": {"bos_token": {"content": "key", "lstrip": False}}}, 1),
        ({"special_tokens_map.json": {"bos_token": "key"}, "tokenizer_config.json": {"bos_token": "keys"}}, 2),
        ({"special_tokens_map.json": {"bos_token": "key"}, "tokenizer_config.json": {"bos_token": None}}, 1),
        ({"tokenizer_config.json": {"bos_token": "no such"}}, None),
    ],
)
def test_the_bos_id_comes_from_config_json_and_then_from_the_settings(tmp_path, files, expected):
    (tmp_path / "tokenizer.json").write_text(words().to_json())
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert load(tmp_path).bos_token_id == expected
    assert load(tmp_path, bos_token_id=3).bos_token_id == 3


@pytest.mark.parametrize(
    ("template", "first", "last"),
    [("the $A", 0, None), ("$A keys", None, 2), ("the $A keys", 0, 2), ("$A", None, None)],
)
def test_what_a_tokenizer_puts_around_a_text(tmp_path, template, first, last):
    """One token before a text is its BOS, where no file says another; one behind ends every text."""
    backend = Backend.from_str(words().to_json())
    ids = {word: i for word, i in backend.get_vocab().items() if word in template}
    backend.post_processor = processors.TemplateProcessing(template, None, list(ids.items()))
    (tmp_path / "tokenizer.json").write_text(backend.to_str())
    found = load(tmp_path)
    assert (found.bos_token_id, found.sep_token_id) == (first, last)


@pytest.mark.parametrize("made", [words(), words(bos_token_id=50256, d_vocab=4), words(bos_token_id=-1)])
def test_a_bos_outside_the_vocabulary_is_harmless_until_used(made):
    assert made.encode("the key") == [0, 1]
    for encode in (made.encode, made.encode_batch):
        with pytest.raises(UsageError, match="BOS"):
            encode("the key", bos=True)


def test_a_word_outside_the_vocabulary_is_named():
    for encode in (words().encode, lambda text: words().encode_batch(["the", text])):
        with pytest.raises(DataError, match=r"'kez' is not in the vocabulary of 4 words; did you mean 'key'\?"):
            encode("the kez")
        with pytest.raises(DataError, match=r"'\\x1b\[31m' is not in the vocabulary of 4 words$"):
            encode("the \x1b[31m")


def test_an_added_token_without_blanks_around_it_is_not_the_word_outside_the_vocabulary():
    made = words()
    made._backend.add_special_tokens(["<|turn|>"])
    assert len(made.encode("<|turn|>the key")) == 3
    with pytest.raises(DataError, match=r"^'kez' is not in the vocabulary of 5 words; did you mean 'key'\?"):
        made.encode("<|turn|>the kez<|turn|>")


def test_what_is_no_text_is_refused(bpe_folder):
    tokenizer = load(bpe_folder)
    for wrong in (5, None, b"the", ("the", "key")):
        with pytest.raises(UsageError, match="str"):
            tokenizer.encode(wrong)  # pyright: ignore[reportArgumentType]
        with pytest.raises(UsageError, match="str"):
            tokenizer.encode_batch(["the", wrong])  # pyright: ignore[reportArgumentType]
    with pytest.raises(DataError, match="lone surrogate"):
        tokenizer.encode("a \ud800 b")


@pytest.mark.parametrize("ids", [[-1], [4], [0, 99]])
def test_ids_outside_the_vocabulary_are_refused(ids):
    for read in (words().decode, words().tokens):
        with pytest.raises(UsageError, match="not in the vocabulary of 4"):
            read(ids)


NO_MERGE = b'{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a b"]}}'
BROKEN_WHOLE = [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"model": {"type": "No"}}', b"[" * 100_000, NO_MERGE]


@pytest.mark.parametrize("content", BROKEN_WHOLE, ids=range(len(BROKEN_WHOLE)))
def test_a_broken_tokenizer_json_is_named(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        read_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("vocab", "merges", "match"),
    [
        ("", "", r"vocab\.json"),
        ("[1]", "", r"vocab\.json"),
        ("[" * 100_000, "", r"vocab\.json"),
        ('{"a": "b"}', "", r"vocab\.json.*'a'"),
        ('{"a": -1}', "", r"vocab\.json.*'a'"),
        ('{"a": 1e99}', "", r"vocab\.json.*'a'"),
        ('{"a": 99999999999}', "", r"vocab\.json' is not a vocabulary"),
        ('{"a": 0, "b": 1}', "#version: 0.2\na b\n", r"merges\.txt, line 2': the merge 'a b' needs 'ab'"),
        ('{"a": 0, "b": 1, "ab": 2}', "#version: 0.2\na b\na\n", r"merges\.txt, line 3'"),
        ('{"a": 0, "b": 1, "ab": 2}', "a b c\n", r"merges\.txt, line 1'"),
    ],
)
def test_broken_vocab_or_merges_are_named(tmp_path, vocab, merges, match):
    (tmp_path / "vocab.json").write_text(vocab)
    (tmp_path / "merges.txt").write_text(merges)
    with pytest.raises(DataError, match=match):
        read_tokenizer(tmp_path)


def test_broken_settings_are_named(tmp_path):
    (tmp_path / "tokenizer.json").write_text(words().to_json())
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(DataError, match=r"tokenizer_config\.json.* is not JSON"):
        read_tokenizer(tmp_path)


def test_the_merges_of_windows_read_the_same(bpe_folder, tmp_path):
    folder = shutil.copytree(bpe_folder, tmp_path / "model")
    merges = folder / "merges.txt"
    merges.write_bytes(merges.read_bytes().replace(b"\n", b"\r\n"))
    assert load(folder).encode_batch(TRICKY) == load(bpe_folder).encode_batch(TRICKY)


@pytest.mark.parametrize("kind", [*CLASSES, *DEFAULTS])
def test_special_tokens_without_settings_are_those_of_transformers(kind, tmp_path):
    """A chat template may write them."""
    names = [END_OF_TEXT, "<|padding|>", "<bos>", "<eos>", *BOUNDS.values(), *SPECIAL.values()]
    vocab = {token: i for i, token in enumerate(dict.fromkeys(["a", "b", *names]))}
    backend = Backend(models.BPE(vocab, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel()
    backend.save(str(tmp_path / "tokenizer.json"))
    named = {"tokenizer_class": kind} if kind in DEFAULTS else {}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "a", **named}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2" if named else kind}))
    ours = read_tokenizer(tmp_path)
    assert ours is not None
    assert ours.special_texts == AutoTokenizer.from_pretrained(tmp_path).special_tokens_map


def test_named_chat_templates_of_a_repository_are_found():
    files = ["a.jinja", "additional_chat_templates/b.jinja", "additional_chat_templates/c.txt", "config.json"]
    assert template_files([*files, "x/additional_chat_templates/d.jinja"]) == ["additional_chat_templates/b.jinja"]
