"""SentencePiece models (Kudo and Richardson 2018), read by hand: the tokenizers of Marian's folders.

A file `source.spm` is one protobuf message: pieces with scores, and how text is normalised before they are sought
(https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto, whose field numbers stand below).
A text becomes the pieces of the largest summed score (Kudo 2018, "Subword Regularization"), found by the `tokenizers`
library. Marian numbers the pieces of source and target together, in `vocab.json`.
"""

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Regex, decoders, models, normalizers, processors
from tokenizers import Tokenizer as Backend

from probekit.errors import DataError
from probekit.models.files import read_json

BLANK = "\u2581"  # how pieces spell it
NORMAL, UNKNOWN, CONTROL, UNUSED = 1, 2, 3, 5  # kinds of pieces; 4 (user-defined) and 6 (bytes) are not read
UNIGRAM = 1
HIDDEN = "\U000f0000"  # before pieces of the target's alone: no text has it, so that they are read but never written
LAST = -1e6  # the score of what stands for itself where the source's pieces have nothing; below any sum of theirs


class Piece(NamedTuple):
    """A piece of text and the logarithm of its probability."""

    text: str
    score: float
    kind: int


class SentencePieceModel(NamedTuple):
    """What a file says: its pieces, and the rules that text is normalised by (a compiled table, or nothing)."""

    pieces: list[Piece]
    charsmap: bytes


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """A unigram model.

    Raises:
        DataError: the file is damaged, or asks for what is not implemented here.
    """
    try:
        return _model(path.read_bytes())
    except OSError as error:
        raise DataError(f"{str(path)!a} cannot be read: {error.strerror}") from error
    except DataError as error:
        raise DataError(f"{str(path)!a}: {error}") from error
    except (ValueError, struct.error) as error:
        raise DataError(f"{str(path)!a} is damaged or no SentencePiece model: {error}; get it again") from error


def _model(data: bytes) -> SentencePieceModel:
    pieces, trainer, normalizer, denormalizer = [], {}, {}, {}
    for number, value in _fields(data):
        if number == 1:
            pieces.append(_piece(dict(_fields(_bytes(value)))))
        elif number in (2, 3, 5):
            {2: trainer, 3: normalizer, 5: denormalizer}[number].update(_fields(_bytes(value)))
    if not pieces:
        raise ValueError("it has no pieces")
    _check(trainer.get(3, UNIGRAM) == UNIGRAM, "a model_type other than unigram")
    _check(not trainer.get(24, 0), "treat_whitespace_as_suffix")
    _check(not trainer.get(35, 0), "byte_fallback")
    for field, name in ((3, "add_dummy_prefix"), (4, "remove_extra_whitespaces"), (5, "escape_whitespaces")):
        _check(normalizer.get(field, 1) == 1, f"{name} = false")
    _check(not denormalizer.get(2), "a denormalizer")
    kinds = {piece.kind for piece in pieces}
    _check(kinds <= {NORMAL, UNKNOWN, CONTROL, UNUSED}, "pieces that are user-defined or bytes")
    return SentencePieceModel(pieces, _bytes(normalizer.get(2, b"")))


def _check(implemented: bool, what: str) -> None:
    if not implemented:
        raise DataError(f"{what} is not implemented; only Marian's kind of SentencePiece model is")


def _piece(fields: Mapping[int, int | bytes]) -> Piece:
    score = fields.get(2, b"\0\0\0\0")
    (value,) = struct.unpack("<f", _bytes(score))
    kind = fields.get(3, NORMAL)
    if not isinstance(kind, int) or not abs(value) < 1e5:
        raise ValueError("a piece has an impossible kind or score")
    return Piece(_bytes(fields.get(1, b"")).decode(), value, kind)


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number stands where bytes belong")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message in order: whole numbers, or the bytes of anything else.

    https://protobuf.dev/programming-guides/encoding/
    """
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire_type == 2:
            size, at = _varint(data, at)
        elif wire_type in (1, 5):
            size = {1: 8, 5: 4}[wire_type]
        else:
            raise ValueError(f"a field of the wire type {wire_type}")
        if at + size > len(data):
            raise ValueError("it ends within a field")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("it ends within a number")
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value, at
    raise ValueError("a number of more than ten bytes")


def read_marian_vocabulary(path: Path, settings: Mapping[str, Any]) -> dict[str, int]:
    """Piece -> id, of source and target together.

    Raises:
        DataError: the ids are not 0, 1, 2, ..., a special token is missing, or there are two vocabularies.
    """
    if settings.get("separate_vocabs"):
        raise DataError(f"{str(path)!a}: separate_vocabs is not implemented; only one vocabulary is")
    vocab = read_json(path)
    if any(type(i) is not int for i in vocab.values()) or sorted(vocab.values()) != list(range(len(vocab))):
        raise DataError(f"{str(path)!a} must number its pieces 0, 1, 2, ..., each once")
    if missing := [token for token in _special(settings)[:2] if token not in vocab]:
        raise DataError(f"{str(path)!a} has no piece {missing[0]!a:.60}, which every vocabulary of Marian's has")
    return vocab


def marian_backend(spm: SentencePieceModel, vocab: Mapping[str, int], settings: Mapping[str, Any]) -> Backend:
    """The source's tokenizer of a Marian folder.

    Equal to `transformers`' MarianTokenizer without sacremoses, but that several characters in a row which the source's
    pieces lack are looked up in the vocabulary one by one, not all as one.
    """
    unk, eos, pad = _special(settings)
    languages = [piece for piece in vocab if piece.startswith(">>") and piece.endswith("<<")]
    special = [token for token in (unk, eos, pad) if token in vocab] + languages
    scores = {piece.text: piece.score for piece in spm.pieces if piece.kind == NORMAL} | dict.fromkeys(special, LAST)
    entries = [_entry(piece, scores) for piece in sorted(vocab, key=vocab.__getitem__)]
    backend = Backend(models.Unigram(entries, vocab[unk]))
    backend.add_special_tokens(special)
    backend.normalizer = _normalizer(spm.charsmap)
    backend.decoder = decoders.Sequence(
        [decoders.Replace(HIDDEN, ""), decoders.Replace(BLANK, " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = processors.TemplateProcessing(f"$A {eos}", None, [(eos, vocab[eos])])
    return backend


def _special(settings: Mapping[str, Any]) -> list[str]:
    named = {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"}
    return [str(settings.get(name, token)) for name, token in named.items()]


def _entry(piece: str, scores: Mapping[str, float]) -> tuple[str, float]:
    """A piece of the vocabulary as the library wants it: one that the source's model lacks is out of its way."""
    if piece in scores:
        return piece, scores[piece]
    return (piece, LAST) if len(piece) == 1 else (HIDDEN + piece, 0.0)


def _normalizer(charsmap: bytes) -> normalizers.Normalizer:
    """The model's own rules; no blanks at the ends and no two in a row; then blanks written, one more in front."""
    rules = [normalizers.Precompiled(charsmap)] if charsmap else []
    return normalizers.Sequence(
        [
            *rules,
            normalizers.Replace(Regex("^ +| +$"), ""),
            normalizers.Replace(Regex(" {2,}"), " "),
            normalizers.Replace(" ", BLANK),
            normalizers.Prepend(BLANK),
        ]
    )
