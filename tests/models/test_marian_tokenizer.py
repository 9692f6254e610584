"""Marian's SentencePiece files, against an independent encoder of the format and search for the best pieces."""

import json
import math
import random
import struct
import sys
from pathlib import Path

import pytest
from marian_oracle import SHAPES, from_hf, oracle_for

from probekit.errors import DataError, UsageError
from probekit.models.load import load_model
from probekit.models.marian_tokenizer import read_sentencepiece
from probekit.models.tokenizer import Tokenizer
from probekit.models.tokenizer_files import read_tokenizer
from probekit.models.weights import save_hf

SCORES = {  # in steps of 1/1024, so that no two ways to cut a text tie and float32 holds them
    piece: -round(1024 * score) / 1024
    for piece, score in {
        "▁": 2.017, "a": 2.513, "b": 3.037, "c": 3.271, "l": 3.533, "o": 3.761, "!": 6.019, "ab": 4.111, "▁a": 3.163,
        "bc": 5.179, "abc": 6.251, "▁lo": 4.519, "lo": 5.557, "o!": 9.091, "▁abc": 7.307, "cab": 6.541,
    }.items()
}  # fmt: skip
TARGET_ONLY = ["ß", "▁z", "zu", "é"]


def varint(n: int) -> bytes:
    return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)


def field(number: int, value: int | float | bytes) -> bytes:
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def piece(text: str, score: float, kind: int | None = None) -> bytes:
    return field(1, field(1, text.encode()) + field(2, score) + (b"" if kind is None else field(3, kind)))


def spm(trainer: bytes = b"", normalizer: bytes = b"", extra: bytes = b"") -> bytes:
    pieces = piece("<unk>", 0.0, 2) + piece("</s>", 0.0, 3) + b"".join(piece(*item) for item in SCORES.items())
    return pieces + field(2, field(1, b"corpus.txt") + field(3, 1) + trainer) + field(3, normalizer) + extra


def vocabulary() -> dict[str, int]:
    return {t: i for i, t in enumerate(["</s>", "<unk>", *reversed(SCORES), *TARGET_ONLY, ">>fra<<", "<pad>"])}


def folder_with(folder: Path, model: bytes, vocab: dict | None = None) -> Path:
    (folder / "source.spm").write_bytes(model)
    (folder / "vocab.json").write_text(json.dumps(vocabulary() if vocab is None else vocab))
    return folder


def tokenizer_in(folder: Path) -> Tokenizer:
    tokenizer = read_tokenizer(folder)
    assert tokenizer is not None
    return tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenizer_in(folder_with(tmp_path_factory.mktemp("marian"), spm()))


def best_pieces(text: str) -> list[str]:
    """The pieces of the largest sum, from all ways to cut a text; an unknown character costs 10 more than the worst."""
    words = [word for word in text.split(" ") if word]
    text = "".join("▁" + word for word in words)
    unknown = min(SCORES.values()) - 10
    best: list[tuple[float, list[str]]] = [(0.0, [])]
    for end in range(1, len(text) + 1):
        ways = [
            (best[start][0] + SCORES[text[start:end]], [*best[start][1], text[start:end]])
            for start in range(end)
            if text[start:end] in SCORES
        ]
        if text[end - 1] not in SCORES:
            ways.append((best[end - 1][0] + unknown, [*best[end - 1][1], text[end - 1]]))
        best.append(max(ways, default=(-math.inf, [])))
    return best[-1][1]


def test_a_text_becomes_its_best_pieces(tokenizer):
    """Two thousand texts of known and unknown letters, with blanks at will; unknown ones in a row are one unknown."""
    vocab, rng = vocabulary(), random.Random(0)
    for _ in range(2000):
        text = "".join(rng.choice("aabbcclo!  ß☃") for _ in range(rng.randint(0, 24)))
        ids = [vocab.get(p, vocab["<unk>"]) for p in best_pieces(text)]
        unknown = vocab["<unk>"]
        fused = [i for at, i in enumerate(ids) if i != unknown or at == 0 or ids[at - 1] != unknown]
        assert tokenizer.encode(text) == fused, text


def test_text_and_ids_and_back(tokenizer):
    vocab = vocabulary()
    assert tokenizer.tokens(tokenizer.encode("abc lo!")) == [" abc", " lo", "!"]
    assert tokenizer.tokens([vocab["▁z"], vocab["zu"], vocab["</s>"]]) == [" z", "zu", "</s>"]
    assert tokenizer.decode(tokenizer.encode("  abc   lo! ")) == "abc lo!"
    assert tokenizer.encode("") == tokenizer.encode("   ") == []
    assert tokenizer.encode("abc</s>")[-1] == vocab["</s>"]
    assert tokenizer.encode(">>fra<< abc") == [vocab[">>fra<<"], *tokenizer.encode("abc")]
    assert len(tokenizer) == len(vocab)
    assert tokenizer.offsets("abc  lo!") == [(0, 3), (5, 7), (7, 8)]


def test_pieces_of_the_target_are_read_but_written_only_alone(tokenizer):
    vocab = vocabulary()
    assert tokenizer.decode([vocab["▁z"], vocab["zu"], vocab["▁a"]]) == "zzu a"
    assert not {vocab["▁z"], vocab["zu"]} & set(tokenizer.encode("z zu azu"))
    assert tokenizer.encode("aß") == [vocab["▁a"], vocab["ß"]]


def test_the_end_of_a_sentence_is_the_context_of_a_text(tokenizer):
    assert tokenizer.bos_token_id is None
    assert tokenizer.encode("abc", bos=True) == [*tokenizer.encode("abc"), vocabulary()["</s>"]]


def test_a_model_is_saved_with_it(tmp_path: Path):
    """Our tokenizer.json says the same as source.spm and vocab.json; Marian's config calls </s> a BOS as well."""
    model = from_hf(oracle_for(SHAPES[0] | {"vocab_size": len(vocabulary())}))
    source, ours = tmp_path / "source", tmp_path / "ours"
    save_hf(model, source)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"eos_token_id": 0, "bos_token_id": 0}))
    folder_with(source, spm())
    first = load_model(source, device="cpu")
    save_hf(first, ours)
    second = load_model(ours, device="cpu")
    assert (ours / "tokenizer.json").is_file()
    assert first.tokenizer is not None
    assert second.tokenizer is not None
    for text in ("abc lo!", "aß ☃ zu", ">>fra<< ab</s>"):
        assert first.tokenizer.encode(text) == second.tokenizer.encode(text)
        assert first.to_tokens(text).shape[0] == 1
    assert first.tokenizer.bos_token_id is second.tokenizer.bos_token_id is None
    assert first.tokenizer.sep_token_id == second.tokenizer.sep_token_id == vocabulary()["</s>"]
    assert first.tokenizer.fingerprint == second.tokenizer.fingerprint


def test_what_a_file_says(tmp_path: Path):
    (tmp_path / "x.spm").write_bytes(spm(extra=field(4, b"self test") + varint(99 << 3 | 1) + bytes(8)))
    model = read_sentencepiece(tmp_path / "x.spm")
    assert model.scores == SCORES
    assert model.charsmap == b""


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (spm(trainer=field(3, 2)), "model_type other than unigram"),
        (spm(trainer=field(24, 1)), "treat_whitespace_as_suffix"),
        (spm(trainer=field(35, 1)), "byte_fallback"),
        (spm(normalizer=field(3, 0)), "add_dummy_prefix"),
        (spm(normalizer=field(4, 0)), "remove_extra_whitespaces"),
        (spm(normalizer=field(5, 0)), "escape_whitespaces"),
        (spm(extra=field(5, field(2, b"rules"))), "denormalizer"),
        (spm(extra=piece("<0x0A>", 0.0, 6)), "user-defined or a byte"),
        (spm(extra=piece("<sep>", 0.0, 4)), "user-defined or a byte"),
        (b"", "no pieces"),
        (b"\xff" * 20, "source.spm' is damaged"),
        (b"\x0b", "source.spm' is damaged"),
        (field(1, 7), "no pieces"),
        (piece("a", math.nan), "impossible score"),
        (field(1, field(1, b"\xff")), "not UTF-8"),
        (spm(normalizer=field(2, b"no table")), "not a SentencePiece model"),
    ],
)
def test_what_is_not_implemented_or_damaged_is_refused(tmp_path: Path, model, what):
    with pytest.raises(DataError, match=what) as refused:
        read_tokenizer(folder_with(tmp_path, model))
    assert "source.spm" in str(refused.value)


def test_a_file_cut_anywhere_is_refused_or_whole(tmp_path: Path):
    """Cut between two fields it is a smaller model; anywhere else the error says that it is damaged."""
    whole, path = spm(), tmp_path / "x.spm"
    refused = 0
    for end in range(len(whole)):
        path.write_bytes(whole[:end])
        try:
            read_sentencepiece(path)
        except DataError as error:
            refused += "damaged" in str(error)
    assert refused > 0.8 * len(whole)


@pytest.mark.parametrize(
    ("vocab", "what"),
    [
        ({"</s>": 0, "<unk>": 2}, "0, 1, 2"),
        ({"</s>": 0, "<unk>": 0}, "0, 1, 2"),
        ({"</s>": 0, "<unk>": True}, "0, 1, 2"),
        ({"</s>": 0, "a": 1}, "no piece '<unk>'"),
    ],
)
def test_impossible_vocabularies(tmp_path: Path, vocab, what):
    with pytest.raises(DataError, match=what):
        read_tokenizer(folder_with(tmp_path, spm(), vocab))


def test_two_vocabularies_are_refused(tmp_path: Path):
    folder_with(tmp_path, spm())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"separate_vocabs": True}))
    with pytest.raises(DataError, match="separate_vocabs"):
        read_tokenizer(tmp_path)


def test_missing_packages_are_named_with_the_extra_that_installs_them(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece.sentencepiece_model_pb2", None)
    with pytest.raises(UsageError, match=r"sentencepiece and protobuf, .* pip install -e '\.\[marian\]'"):
        read_tokenizer(folder_with(tmp_path, spm()))
