"""Text to token ids and back, on the `tokenizers` library; no padding, no cutting, no special tokens unasked."""

import difflib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from probekit.errors import DataError, UsageError
from probekit.models.files import read_json, read_text
from probekit.models.sentencepiece import BLANK, HIDDEN, marian_backend, read_marian_vocabulary, read_sentencepiece

END_OF_TEXT = "<|endoftext|>"
SETTINGS_FILES = ("tokenizer_config.json", "special_tokens_map.json")
FILES = ("tokenizer.json", "vocab.json", "merges.txt", "vocab.txt", "source.spm", *SETTINGS_FILES)


class Tokenizer:
    """The tokenizer of one model.

    Args:
        backend: of the `tokenizers` library.
        bos_token_id: what `bos=True` puts first (BERT's [CLS]); None if nothing stands there.
        d_vocab: how many ids the model knows; None is as many as the tokenizer makes.
        sep_token_id: what `bos=True` puts last (BERT's [SEP], Marian's </s>); None if nothing stands there.
    """

    def __init__(
        self,
        backend: Backend,
        bos_token_id: int | None = None,
        d_vocab: int | None = None,
        sep_token_id: int | None = None,
    ):
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend
        self.bos_token_id = bos_token_id
        self.sep_token_id = sep_token_id
        self.d_vocab = d_vocab

    def encode(self, text: str, bos: bool = False) -> list[int]:
        """The token ids of one text.

        Raises:
            UsageError: bos without a BOS id that the model knows, or not a str.
            DataError: a word outside a word-level vocabulary, a token that the model does not know, a lone surrogate.
        """
        start, end = self._around(bos)
        if not isinstance(text, str):
            raise UsageError(f"text must be a str; got {type(text).__name__}")
        try:
            ids = self._backend.encode(text, add_special_tokens=False).ids
        except Exception as error:  # the library raises nothing narrower
            raise DataError(self._why_not(text, error)) from error
        return [*start, *self._known(ids), *end]

    def encode_batch(self, texts: Sequence[str], bos: bool = False) -> list[list[int]]:
        """The token ids of several texts; errors as in `encode`."""
        start, end = self._around(bos)
        if not all(isinstance(text, str) for text in texts):  # the library would take a pair of texts for one
            raise UsageError("texts must be a sequence of str")
        try:
            encodings = self._backend.encode_batch(list(texts), add_special_tokens=False)
        except Exception:
            return [self.encode(text, bos) for text in texts]  # says which text it was
        return [[*start, *self._known(encoding.ids), *end] for encoding in encodings]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The characters of the text that each token of `encode(text)` stands for: [first, behind the last).

        Blanks at either end of a token are left aside, and a token of nothing else, such as the blank that some
        tokenizers put before the text, has none. Tokens that are bytes of one character have that character, each.
        """
        self.encode(text)  # raises where it cannot be
        encoding = self._backend.encode(text, add_special_tokens=False)
        return [_letters(text, *each) for each in zip(encoding.tokens, encoding.offsets, strict=True)]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids, special tokens included.

        Raises:
            UsageError: an id outside the vocabulary.
        """
        return self._backend.decode(self._in_vocabulary(ids), skip_special_tokens=False)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Each token as a string of its own, with the blanks that belong to it: joined, they are the text.

        A SentencePiece tokenizer puts one more blank before the text. The pieces of a WordPiece tokenizer have no
        blanks: what continues a word shows as the vocabulary spells it, "##s". Bytes that are part of a character show
        as U+FFFD.
        """
        return [self._token(i) for i in self._in_vocabulary(ids)]

    def _token(self, i: int) -> str:
        text = self._backend.decode([i], skip_special_tokens=False)
        piece = (self._backend.id_to_token(i) or "").removeprefix(HIDDEN)
        blanks = len(piece) - len(piece.lstrip(BLANK))  # of which a decoder drops the first of a text
        return text if text.startswith(BLANK) else " " * blanks + text.lstrip(" ") if blanks else text

    def token_id(self, token: str) -> int:
        """The id of one token: as the vocabulary spells it, or a text that is one token.

        Raises:
            UsageError: the text is several tokens, or none.
            DataError: as for `encode`.
        """
        spelled = self._backend.token_to_id(token) if isinstance(token, str) else None
        ids = self._known([spelled]) if spelled is not None else self.encode(token)
        if len(ids) != 1:
            raise UsageError(f"{token!a:.80} is {len(ids)} tokens, not one; give a token of the vocabulary, or its id")
        return ids[0]

    @property
    def fingerprint(self) -> str:
        """Hex sha256 of the serialised tokenizer."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """The content of its `tokenizer.json`."""
        return self._backend.to_str(pretty=True)

    def __len__(self) -> int:
        return self._backend.get_vocab_size()

    def __repr__(self) -> str:
        return f"Tokenizer({len(self)} tokens, bos_token_id={self.bos_token_id})"

    def _around(self, bos: bool) -> tuple[list[int], list[int]]:
        """What stands before each text and what behind it."""
        if not bos:
            return [], []
        if self.bos_token_id is None and self.sep_token_id is None:
            raise UsageError("this model has no BOS token; leave bos out")
        n = len(self) if self.d_vocab is None else self.d_vocab
        start = [] if self.bos_token_id is None else [self.bos_token_id]
        around = start, [] if self.sep_token_id is None else [self.sep_token_id]
        for name, ids in zip(("BOS", "SEP"), around, strict=True):
            if ids and not 0 <= ids[0] < n:
                raise UsageError(f"the {name} id {ids[0]} is not among the model's ids 0..{n - 1}; leave bos out")
        return around

    def _known(self, ids: list[int]) -> list[int]:
        if self.d_vocab is not None and ids and max(ids) >= self.d_vocab:
            token = self._backend.id_to_token(max(ids))
            raise DataError(f"token {token!a} has id {max(ids)}, and the model knows 0..{self.d_vocab - 1} only")
        return ids

    def _in_vocabulary(self, ids: Iterable[int]) -> list[int]:
        ids = [int(i) for i in ids]
        if wrong := [i for i in ids if i < 0 or self._backend.id_to_token(i) is None]:
            raise UsageError(f"id {wrong[0]} is not in the vocabulary of {len(self)} tokens")
        return ids

    def _why_not(self, text: str, error: Exception) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:
            return f"{text[:80]!a} is no valid Unicode (a lone surrogate); mend or leave out this text"
        vocabulary = self._backend.get_vocab()
        pre_tokenizer: Any = self._backend.pre_tokenizer
        words = [word for word, _ in pre_tokenizer.pre_tokenize_str(text)] if pre_tokenizer else [text]
        for word in words:
            if word not in vocabulary:
                close = difflib.get_close_matches(word, vocabulary, n=1)
                hint = f"; did you mean {close[0]!a}?" if close else ""
                return f"{word[:80]!a} is not in the vocabulary of {len(vocabulary)} words{hint}"
        return f"{text[:80]!a} cannot be tokenized: {ascii(str(error))[1:-1]}"


def _letters(text: str, token: str, place: tuple[int, int]) -> tuple[int, int]:
    start, end = place
    piece = text[start:end]
    if not token.strip(BLANK) and BLANK not in piece:
        return start, start
    start += len(piece) - len(piece.lstrip())
    return start, max(start, end - (len(piece) - len(piece.rstrip())))


def load_tokenizer(folder: Path, bos_token_id: int | None = None, d_vocab: int | None = None) -> Tokenizer | None:
    """The tokenizer of a model folder: tokenizer.json, vocab.json with merges.txt or source.spm, or vocab.txt.

    None if none is there.

    Args:
        folder: where the files are.
        bos_token_id: from config.json; None looks it up in the tokenizer's own settings.
        d_vocab: how many ids the model knows.

    Raises:
        DataError: a file is damaged; the message names it.
    """
    settings = _settings(folder)
    if (folder / "tokenizer.json").is_file():
        backend = _whole(folder / "tokenizer.json")
        bos = settings.get("bos_token")
    elif (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        backend = _byte_level_bpe(folder, settings)
        bos = settings.get("bos_token", END_OF_TEXT)
    elif (folder / "vocab.json").is_file() and (folder / "source.spm").is_file():
        backend, bos = _marian(folder, settings), None
        bos_token_id = None  # whatever the config says: Marian's calls </s> a BOS
    elif (folder / "vocab.txt").is_file():
        backend = _wordpiece(folder / "vocab.txt", settings)
        bos = settings.get("bos_token")
    else:
        return None
    if bos_token_id is None and isinstance(bos, str):
        bos_token_id = backend.token_to_id(bos)
    sep_token_id = None
    if bos_token_id is None:
        bos_token_id, sep_token_id = _first_and_last(backend)
    return Tokenizer(backend, bos_token_id, d_vocab, sep_token_id)


def _first_and_last(backend: Backend) -> tuple[int | None, int | None]:
    """What a tokenizer without a BOS puts around a text: BERT's [CLS] and [SEP], or Marian's </s> behind it."""
    ids = backend.encode("", add_special_tokens=True).ids
    if len(ids) == 2:
        return ids[0], ids[1]
    template = (json.loads(backend.to_str()).get("post_processor") or {}).get("single") or [{}]
    return None, ids[0] if len(ids) == 1 and "SpecialToken" in template[-1] else None


def _settings(folder: Path) -> dict[str, Any]:
    """What the two settings files say; a token given as an object is its content."""
    merged: dict[str, Any] = {}
    for name in reversed(SETTINGS_FILES):
        if (folder / name).is_file():
            merged |= {key: value for key, value in read_json(folder / name).items() if value is not None}
    return {key: value["content"] if _is_token(value) else value for key, value in merged.items()}


def _is_token(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("content"), str)


def _whole(path: Path) -> Backend:
    model = read_json(path).get("model")
    if isinstance(model, dict) and model.get("type") == "BPE" and isinstance(model.get("vocab"), dict):
        for merge in model.get("merges") or ():
            _check_merge(str(path), merge.split(" ") if isinstance(merge, str) else merge, model["vocab"])
    with _refused(path, "is no tokenizer"):
        return Backend.from_str(read_text(path))


@contextmanager
def _refused(path: Path, what: str) -> Iterator[None]:
    """Whatever the library raises is a DataError: it knows nothing narrower than Exception, and panics with less."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DataError(f"{str(path)!a} {what}: {ascii(str(error))[1:-1]}") from error


def _check_merge(where: str, merge: Any, vocab: Mapping[str, Any]) -> tuple[str, str]:
    """A merge as a pair; one that does not fit the vocabulary would make the library panic."""
    if not (isinstance(merge, list) and len(merge) == 2 and all(isinstance(token, str) and token for token in merge)):
        raise DataError(f"{where!a}: a merge is two tokens with a blank between; got {merge!a:.80}")
    for token in (*merge, "".join(merge)):
        if token not in vocab:
            raise DataError(f"{where!a}: the merge {' '.join(merge)!a} needs {token!a}, which is not in the vocabulary")
    return merge[0], merge[1]


def _byte_level_bpe(folder: Path, settings: Mapping[str, Any]) -> Backend:
    """GPT-2's kind of tokenizer from its two files, as `transformers` builds it."""
    vocab = read_json(folder / "vocab.json")
    if wrong := [token for token, i in vocab.items() if isinstance(i, bool) or not isinstance(i, int) or i < 0]:
        raise DataError(f"{str(folder / 'vocab.json')!a}: the id of {wrong[0]!a} is no whole number")
    merges = _merges(folder / "merges.txt", vocab)
    with _refused(folder / "vocab.json", "is no vocabulary"):
        backend = Backend(models.BPE(vocab, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=settings.get("add_prefix_space") is True)
    backend.decoder = decoders.ByteLevel()
    special = [settings.get(f"{which}_token", END_OF_TEXT) for which in ("bos", "eos", "unk")]
    backend.add_special_tokens([token for token in dict.fromkeys(special) if token in vocab])
    return backend


def _marian(folder: Path, settings: Mapping[str, Any]) -> Backend:
    spm = read_sentencepiece(folder / "source.spm")
    vocab = read_marian_vocabulary(folder / "vocab.json", settings)
    with _refused(folder / "source.spm", "is no SentencePiece model"):
        return marian_backend(spm, vocab, settings)


def _merges(path: Path, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    lines = enumerate(read_text(path).split("\n"), start=1)
    return [
        _check_merge(f"{path}, line {number}", line.rstrip("\r").split(" "), vocab)
        for number, line in lines
        if line.strip() and not (number == 1 and line.startswith("#version"))
    ]


SPECIAL = {
    name: f"[{name[:-6].upper()}]" for name in ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
}


def _wordpiece(path: Path, settings: Mapping[str, Any]) -> Backend:
    """BERT's kind of tokenizer from its list of pieces, the n-th line being that of id n, as transformers builds it."""
    vocab = {piece: i for i, piece in enumerate(read_text(path).removesuffix("\n").split("\n"))}
    special = SPECIAL | {name: settings[name] for name in SPECIAL if isinstance(settings.get(name), str)}
    if (unknown := special["unk_token"]) not in vocab:
        raise DataError(f"{str(path)!a} has no line {unknown!a:.80}, the token of unknown words; get the file again")
    with _refused(path, "is no vocabulary"):
        backend = Backend(models.WordPiece(vocab, unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=_switch(settings, "tokenize_chinese_chars") is not False,
        strip_accents=_switch(settings, "strip_accents"),
        lowercase=_switch(settings, "do_lower_case") is not False,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens([token for token in special.values() if token in vocab])
    cls, sep = special["cls_token"], special["sep_token"]
    if cls in vocab and sep in vocab:
        ids, single, pair = (
            [(cls, vocab[cls]), (sep, vocab[sep])],
            [f"{cls}:0", "$A:0", f"{sep}:0"],
            ["$B:1", f"{sep}:1"],
        )
        with _refused(path, f"does not go with {cls!a:.80} and {sep!a:.80}"):
            backend.post_processor = processors.TemplateProcessing(single, [*single, *pair], ids)
    return backend


def _switch(settings: Mapping[str, Any], name: str) -> bool | None:
    value = settings.get(name)
    if value is not None and not isinstance(value, bool):
        raise DataError(f"{SETTINGS_FILES[0]}: {name} must be true or false; got {value!a:.60}")
    return value
