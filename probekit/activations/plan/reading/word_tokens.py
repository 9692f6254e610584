"""The tokens of each word, where the examples are words of their texts.

Axes: N examples, W words of one text, T its tokens.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from probekit.tasks.base import Task


def word_tokens(task: Task, offsets: Sequence[np.ndarray], cut: np.ndarray) -> tuple[np.ndarray, dict[int, str]]:
    """The tokens with a character of each example's span, first to one past the last, int64 [N, 2].

    A word that is only part of a token gets that token; so does each of several words within one token.

    Args:
        task: with spans.
        offsets: the characters of the tokens of each text, context tokens left out, N arrays int64 [L, 2].
        cut: whether the text fills the context, and may have been cut, bool [N].

    Returns:
        The tokens; and the rows whose word has none or is cut off, with why.
    """
    assert task.spans is not None
    rows_of: dict[Any, list[int]] = {}
    for row, text in enumerate(task.inputs):
        rows_of.setdefault(text, []).append(row)
    words = np.empty((len(task), 2), dtype=np.int64)
    for text, rows in rows_of.items():
        words[rows] = token_spans(offsets[rows[0]], _without_blanks(str(text), task.spans[rows]))
    bad = {}
    ends = np.fromiter((each[:, 1].max(initial=0) for each in offsets), np.int64, len(offsets))
    for row in np.flatnonzero((words[:, 0] == words[:, 1]) | (cut & (task.spans[:, 1] > ends))).tolist():
        start, end = task.spans[row].tolist()
        word = str(task.inputs[row])[start:end]
        if cut[row] and end > ends[row]:
            bad[row] = f"the word {word!a} is outside the model's context; shorten the text, or leave the word out"
        else:
            bad[row] = f"the tokenizer makes no token of the word {word!a}; leave the word out"
    return words, bad


def _without_blanks(text: str, spans: np.ndarray) -> np.ndarray:
    """The spans without the blanks at either end, int64 [W, 2]."""
    found = []
    for start, end in spans.tolist():
        word = text[start:end]
        found.append((start + len(word) - len(word.lstrip()), end - (len(word) - len(word.rstrip()))))
    return np.array(found, dtype=np.int64)


def token_spans(offsets: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """The first token with a character of each span, and one past the last, int64 [W, 2]; equal if there is none.

    Args:
        offsets: characters of each token, int64 [T, 2], as from `Tokenizer.offsets`.
        spans: characters of each word, int64 [W, 2].
    """
    starts, ends = offsets.T
    meets_WT = (starts < spans[:, 1:]) & (ends > spans[:, :1]) & (starts < ends)
    first, last = meets_WT.argmax(axis=1), offsets.shape[0] - 1 - meets_WT[:, ::-1].argmax(axis=1)
    return np.stack([first, np.where(meets_WT.any(axis=1), last + 1, first)], axis=1)
