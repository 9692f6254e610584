"""When two inputs are the same text: one rule for carved splits, folds, control tasks and the audit.

Texts are the same if they are equal apart from Unicode form (NFKC), case, white space and the spacing of punctuation:
if their `normalised_words` are equal. Lists of token ids are the same if all ids are equal.

Axes: N inputs.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

_WRITTEN_WITHOUT_SPACES = "぀-ヿ㐀-䶿一-鿿豈-﫿"
_WORD = re.compile(rf"[{_WRITTEN_WITHOUT_SPACES}]|[^\W{_WRITTEN_WITHOUT_SPACES}]+|[^\w\s]")

_SPACES = bytes(code for code in range(128) if chr(code).isspace())


def normalised_words(text: str) -> list[str]:
    """The words and punctuation marks of a text, with case, Unicode form and spacing normalised."""
    return _WORD.findall(folded(text))


def text_numbers(inputs: Sequence[Any]) -> np.ndarray:
    """Equal numbers for the same texts, 0..U-1 in the order of first occurrence: int64 [N].

    All inputs are texts, or all are lists of token ids.
    """
    known: dict[Hashable, int] = {}
    keys = _text_keys(inputs) if len(inputs) and isinstance(inputs[0], str) else map(plain_ids, inputs)
    return np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)


def _text_keys(texts: Sequence[str]) -> list[Hashable]:
    """Finding words takes most of the time, and only texts that are equal without any white space need it."""
    rough = {text: _without_spaces(text) for text in dict.fromkeys(texts)}
    alike = Counter(rough.values())
    exact = {text: tuple(normalised_words(text)) if alike[key] > 1 else key for text, key in rough.items()}
    return [exact[text] for text in texts]


def _without_spaces(text: str) -> str:
    if text.isascii():  # several times as fast as splitting and joining
        return text.encode().lower().translate(None, _SPACES).decode()
    return "".join(folded(text).split())


def folded(text: str) -> str:
    """A text in one case and one Unicode form (NFKC)."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def plain_ids(given: Any) -> tuple[int, ...]:
    """Token ids as numbers that compare and hash as integers do, which those of a tensor do not."""
    return tuple(given.tolist() if hasattr(given, "tolist") else given)
