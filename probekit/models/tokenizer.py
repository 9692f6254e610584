"""Text to token ids and back, on the `tokenizers` library: no padding, no cutting, special tokens only on request."""

import difflib
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer as Backend

from probekit.errors import DataError, UsageError

BLANK = "\u2581"  # how SentencePiece spells a blank
HIDDEN = "\U000f0000"  # marks Marian's target-only pieces (see `marian_tokenizer`); no text contains it


def is_library_error(error: BaseException) -> bool:
    """True for what the `tokenizers` library raises: plain Exception, or a panic, which is a BaseException."""
    return type(error).__name__ == "PanicException" or (
        isinstance(error, Exception) and not isinstance(error, MemoryError)
    )


@contextmanager
def library_errors(why: Callable[[BaseException], str]) -> Iterator[None]:
    """Turn what the `tokenizers` library raises into a DataError with the text that `why` gives."""
    try:
        yield
    except BaseException as error:
        if not is_library_error(error):
            raise
        raise DataError(why(error)) from None


class Tokenizer:
    """The tokenizer of one model.

    Args:
        backend: of the `tokenizers` library.
        bos_token_id: the id that `bos=True` puts first (BERT's [CLS]), if any.
        d_vocab: size of the model's vocabulary; None means the tokenizer's.
        sep_token_id: the id that `bos=True` puts last (BERT's [SEP], Marian's </s>), if any.
        chat_templates: name -> a template that makes a text of a chat, in Jinja; most have one, "default".
        special_texts: name, such as "bos_token", -> the text of a special token, for these templates.
    """

    def __init__(
        self,
        backend: Backend,
        bos_token_id: int | None = None,
        d_vocab: int | None = None,
        sep_token_id: int | None = None,
        chat_templates: Mapping[str, str] | None = None,
        special_texts: Mapping[str, str] | None = None,
    ):
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend
        self.bos_token_id = bos_token_id
        self.sep_token_id = sep_token_id
        self.d_vocab = d_vocab
        self.chat_templates = dict(chat_templates or {})
        self.special_texts = dict(special_texts or {})

    def encode(self, text: str, bos: bool = False) -> list[int]:
        """The token ids of one text.

        Raises:
            UsageError: `bos` without a BOS id that the model knows, or not a str.
            DataError: a word outside a word-level vocabulary, a token that the model does not know, a lone surrogate.
        """
        start, end = self._around(bos)
        if not isinstance(text, str):
            raise UsageError(f"text must be a str; got {type(text).__name__}")
        with library_errors(lambda error: self._why_not(text, error)):
            ids = self._backend.encode(text, add_special_tokens=False).ids
        return [*start, *self._known(ids), *end]

    def encode_batch(self, texts: Sequence[str], bos: bool = False) -> list[list[int]]:
        """The token ids of several texts; errors as in `encode`."""
        start, end = self._around(bos)
        if not all(isinstance(text, str) for text in texts):  # the library would read a pair of texts as one
            raise UsageError("texts must be a sequence of str; give a list of texts")
        try:
            encodings = self._backend.encode_batch(list(texts), add_special_tokens=False)
        except BaseException as error:
            if not is_library_error(error):
                raise
            return [self.encode(text, bos) for text in texts]  # the error names the text
        return [[*start, *self._known(encoding.ids), *end] for encoding in encodings]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The characters [start, end) of the text that each token of `encode(text)` covers.

        Blanks at either end of a token are not counted. A token of blanks alone, such as the one that some tokenizers
        put before the text, covers nothing. Tokens that are bytes of one character all cover that character.
        """
        return [(a, b) if text[a:b].strip() else (b, b) for a, b in self.offsets_batch([text])[0]]

    def offsets_batch(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """As `offsets`, of several texts; but a token of blanks alone, such as a line feed, covers them.

        Only the blank that some tokenizers put before the text covers nothing. Errors as in `encode`.
        """
        try:
            encodings = self._backend.encode_batch(list(texts), add_special_tokens=False)
        except BaseException as error:
            if not is_library_error(error):
                raise
            self.encode_batch(texts)  # raises the error that names the text
            raise
        return [
            [_letters(text, *each) for each in zip(encoding.tokens, encoding.offsets, strict=True)]
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids that the tokenizer lists as special, such as <|im_end|>, and those of context tokens."""
        listed = {i for i, token in self._backend.get_added_tokens_decoder().items() if token.special}
        return frozenset(listed | {i for i in (self.bos_token_id, self.sep_token_id) if i is not None})

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids, special tokens included.

        Raises:
            UsageError: an id outside the vocabulary.
        """
        return self._decoded(self._in_vocabulary(ids))

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Each token as a string, with its blanks, so that the strings joined are the text.

        A SentencePiece tokenizer puts one more blank before the text. WordPiece tokens have no blanks; the continuation
        of a word is spelled as in the vocabulary, "##s". Bytes that are part of a character appear as U+FFFD.
        """
        return [self._token(i) for i in self._in_vocabulary(ids)]

    def _decoded(self, ids: list[int]) -> str:
        what = f"the tokenizer cannot decode the ids {ids[:10]}"
        with library_errors(lambda error: f"{what}: {ascii(str(error))[1:-1]:.200}"):
            return self._backend.decode(ids, skip_special_tokens=False)

    def _token(self, i: int) -> str:
        text = self._decoded([i])
        piece = (self._backend.id_to_token(i) or "").removeprefix(HIDDEN)
        blanks = len(piece) - len(piece.lstrip(BLANK))  # a decoder drops the first one of a text
        return text if text.startswith(BLANK) else " " * blanks + text.lstrip(" ") if blanks else text

    def token_id(self, token: str) -> int:
        """The id of one token, given as the vocabulary spells it or as a text that is one token.

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
        """The sha256 of the serialised tokenizer, in hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """The content of its `tokenizer.json`."""
        return self._backend.to_str(pretty=True)

    def __len__(self) -> int:
        return self._backend.get_vocab_size()

    def __repr__(self) -> str:
        return f"Tokenizer({len(self)} tokens, bos_token_id={self.bos_token_id})"

    def _around(self, bos: bool) -> tuple[list[int], list[int]]:
        """The ids before each text and after it."""
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

    def _why_not(self, text: str, error: BaseException) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:
            return f"{text[:80]!a} is not valid Unicode (a lone surrogate); correct this text or leave it out"
        if not isinstance(error, Exception):
            return (
                f"the tokenizer gave up on {text[:80]!a} ({ascii(str(error))[1:-1]:.200}); leave this text out, or use "
                "the model's published tokenizer files"
            )
        vocabulary = self._backend.get_vocab()
        pre_tokenizer: Any = self._backend.pre_tokenizer
        pieces = self._without_added_tokens(text)
        if pre_tokenizer:
            words = [word for piece in pieces for word, _ in pre_tokenizer.pre_tokenize_str(piece)]
        else:
            words = pieces
        for word in words:
            if word not in vocabulary:
                close = difflib.get_close_matches(word, vocabulary, n=1)
                hint = f"; did you mean {close[0]!a}?" if close else ""
                return f"{word[:80]!a} is not in the vocabulary of {len(vocabulary)} words{hint}"
        return f"{text[:80]!a} cannot be tokenized: {ascii(str(error))[1:-1]}"

    def _without_added_tokens(self, text: str) -> list[str]:
        """The pieces of a text between its added tokens, such as <|im_start|>, which need no blanks around them."""
        added = [re.escape(token.content) for token in self._backend.get_added_tokens_decoder().values()]
        added.sort(key=len, reverse=True)  # the longest match wins
        return [piece for piece in re.split("|".join(added), text) if piece] if added else [text]


def _letters(text: str, token: str, place: tuple[int, int]) -> tuple[int, int]:
    start, end = place
    piece = text[start:end]
    if piece.isspace():
        return start, end
    if not token.strip(BLANK) and BLANK not in piece:
        return start, start
    return start + len(piece) - len(piece.lstrip()), end - (len(piece) - len(piece.rstrip()))
