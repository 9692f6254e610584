"""The tokens of each word, where the examples are words of their texts.

Axes: N examples, W words of one text, T its tokens.
"""

from typing import Any

import numpy as np

from probekit.errors import DataError
from probekit.models.base import LanguageModel
from probekit.tasks.base import Task
from probekit.text import counted


def word_tokens(model: LanguageModel, task: Task, n_bos: int, n_end: int, lengths: np.ndarray) -> np.ndarray:
    """The tokens with a character of each example's span, first to one past the last, int64 [N, 2].

    A word that is only part of a token gets that token; so does each of several words within one token.

    Args:
        model: with a tokenizer.
        task: with spans.
        n_bos: context tokens before the text.
        n_end: context tokens after it.
        lengths: tokens of each example, context included, int64 [N].

    Raises:
        DataError: a word without a token, or outside the context; the message names the example.
    """
    assert model.tokenizer is not None
    assert task.spans is not None
    rows_of: dict[Any, list[int]] = {}
    for row, text in enumerate(task.inputs):
        rows_of.setdefault(text, []).append(row)
    words = np.empty((len(task), 2), dtype=np.int64)
    for text, rows in rows_of.items():
        offsets = np.array(model.tokenizer.offsets(text), dtype=np.int64)
        assert len(offsets) == lengths[rows[0]] - n_bos - n_end, "offsets of other tokens"
        words[rows] = token_spans(offsets, task.spans[rows]) + n_bos
    for row in np.flatnonzero(words[:, 0] == words[:, 1])[:1]:
        start, end = task.spans[row].tolist()
        raise DataError(
            f"example {task.ids[row]!a}: the tokenizer makes no token of the word "
            f"{str(task.inputs[row])[start:end]!a}; "
            "leave the word out"
        )
    if (outside := words[:, 1] > model.cfg.n_ctx - n_end).any():
        row = int(outside.argmax())
        raise DataError(
            f"the word of example {task.ids[row]!a} is outside the context of {model.cfg.n_ctx:,} tokens "
            f"({counted(int(outside.sum()), 'word')} in all); leave such words out, or shorten the texts"
        )
    return words


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
