"""The tokenizers of Marian's folders: a SentencePiece model (Kudo and Richardson 2018) and a vocabulary.

A text becomes the pieces with the largest summed score (Kudo 2018, "Subword Regularization"), which the `tokenizers`
library finds. The pieces, their scores and the rules that normalise the text come from `source.spm`, a protobuf message
that the `sentencepiece` package describes. Marian numbers the pieces of source and target together, in `vocab.json`.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Regex, decoders, models, normalizers, processors
from tokenizers import Tokenizer as Backend

from probekit.errors import DataError, UsageError
from probekit.files.plain_files import MAX_MODEL_JSON, read_bytes
from probekit.models.files import read_json
from probekit.models.tokenizer import BLANK, HIDDEN

NORMAL, UNKNOWN, CONTROL, UNUSED = 1, 2, 3, 5  # types of pieces; 4 (user-defined) and 6 (bytes) are not implemented
UNIGRAM = 1
LARGEST_SCORE = 1e5  # in size; scores are logarithms of probabilities
LAST = -1e6  # the score of what is used only where the source has no piece; below any sum of the source's scores


class SentencePieceModel(NamedTuple):
    """A unigram model: the score of each normal piece, and the table that normalises text (compiled; empty: none)."""

    scores: dict[str, float]
    charsmap: bytes


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """Read a unigram model.

    Raises:
        UsageError: the packages that read it are not installed.
        DataError: the file is damaged, or needs what is not implemented here.
    """
    parse, damaged = _parser(path)
    try:
        return _checked(path, parse(read_bytes(path, MAX_MODEL_JSON)))
    except OSError as error:
        raise DataError(f"{str(path)!a} cannot be read: {error.strerror}") from None
    except damaged as error:
        raise DataError(_damaged(path, ascii(str(error))[1:-1])) from None


def _checked(path: Path, model: Any) -> SentencePieceModel:
    if not model.pieces:
        raise DataError(_damaged(path, "it has no pieces"))
    if any(not isinstance(piece.piece, str) for piece in model.pieces):  # protobuf leaves such bytes as they are
        raise DataError(_damaged(path, "a piece is not UTF-8"))
    if any(not math.isfinite(piece.score) or abs(piece.score) >= LARGEST_SCORE for piece in model.pieces):
        raise DataError(_damaged(path, "a piece has an impossible score"))
    if missing := _not_implemented(model):
        raise DataError(f"{str(path)!a}: {missing[0]} is not implemented; only SentencePiece models like Marian's are")
    scores = {piece.piece: piece.score for piece in model.pieces if piece.type == NORMAL}
    return SentencePieceModel(scores, model.normalizer_spec.precompiled_charsmap)


def _parser(path: Path) -> tuple[Any, type[Exception]]:
    """The function that parses a file's bytes, and what it raises where they are damaged."""
    try:
        from google.protobuf.message import DecodeError
        from sentencepiece.sentencepiece_model_pb2 import ModelProto  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError:
        raise UsageError(
            f"{str(path)!a} needs the packages sentencepiece and protobuf, which the extra 'marian' installs: "
            "pip install -e '.[marian]', or pip install sentencepiece protobuf"
        ) from None
    return ModelProto.FromString, DecodeError


def _damaged(path: Path, why: str) -> str:
    return f"{str(path)!a} is damaged or not a SentencePiece model: {why}; download it again"


def _not_implemented(model: Any) -> list[str]:
    """What a model needs that is not implemented here."""
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    needed = {
        "a model_type other than unigram": trainer.model_type != UNIGRAM,
        "treat_whitespace_as_suffix": trainer.treat_whitespace_as_suffix,
        "byte_fallback": trainer.byte_fallback,
        "add_dummy_prefix = false": not normalizer.add_dummy_prefix,
        "remove_extra_whitespaces = false": not normalizer.remove_extra_whitespaces,
        "escape_whitespaces = false": not normalizer.escape_whitespaces,
        "a denormalizer": bool(model.denormalizer_spec.precompiled_charsmap),
        "a piece that is user-defined or a byte": any(
            piece.type not in (NORMAL, UNKNOWN, CONTROL, UNUSED) for piece in model.pieces
        ),
    }
    return [what for what, is_needed in needed.items() if is_needed]


def read_marian_vocabulary(path: Path, settings: Mapping[str, Any]) -> dict[str, int]:
    """Piece -> id, for source and target together.

    Raises:
        DataError: the ids are not 0, 1, 2, ..., a special token is missing, or there are two vocabularies.
    """
    if settings.get("separate_vocabs"):
        raise DataError(f"{str(path)!a}: separate_vocabs is not implemented; only a single vocabulary is")
    vocab = read_json(path)
    if any(type(i) is not int for i in vocab.values()) or sorted(vocab.values()) != list(range(len(vocab))):
        raise DataError(f"{str(path)!a} must number its pieces 0, 1, 2, ..., each once; download it again")
    if missing := [token for token in _special(settings)[:2] if token not in vocab]:
        raise DataError(
            f"{str(path)!a} has no piece {missing[0]!a:.60}, which every Marian vocabulary has; download it again"
        )
    return vocab


def marian_backend(spm: SentencePieceModel, vocab: Mapping[str, int], settings: Mapping[str, Any]) -> Backend:
    """The source tokenizer of a Marian folder.

    It equals `transformers`' MarianTokenizer without sacremoses, with one exception: several characters in a row for
    which the source has no piece are looked up in the vocabulary one by one, not as one string.
    """
    unk, eos, pad = _special(settings)
    languages = [piece for piece in vocab if piece.startswith(">>") and piece.endswith("<<")]
    special = [token for token in (unk, eos, pad) if token in vocab] + languages
    scores = spm.scores | dict.fromkeys(special, LAST)
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
    """A piece of the vocabulary as the library wants it. One that the source lacks is hidden from its search."""
    if piece in scores:
        return piece, scores[piece]
    return (piece, LAST) if len(piece) == 1 else (HIDDEN + piece, 0.0)


def _normalizer(charsmap: bytes) -> normalizers.Normalizer:
    """The model's own rules; then single blanks, none at the ends; then each blank spelled, and one before the text."""
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
