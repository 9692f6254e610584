"""The characters of each token: by the tokenizer, or by alignment where a task holds the exact token ids of its texts.

Axes: L tokens of one text, N examples.
"""

import numpy as np

from probekit.activations.plan.token_ids import CHUNK, Sequences
from probekit.errors import DataError
from probekit.models.base import LanguageModel
from probekit.models.tokenizer import Tokenizer
from probekit.tasks.base import Task

PARTIAL = "\ufffd"  # how a decoder shows bytes that are not yet a character


def offsets_of(model: LanguageModel, task: Task, sequences: Sequences) -> list[np.ndarray]:
    """The characters [start, end) of each own token of each example: N arrays, int64 [L, 2].

    Tokens beyond the model's context are left out, as in `sequences`. See `Tokenizer.offsets_batch`.

    Args:
        model: with a tokenizer.
        task: of texts; its `token_ids`, if any, are what the texts are run as.
        sequences: the token ids of these texts.

    Raises:
        DataError: inputs that are token ids.
    """
    if model.tokenizer is None or not isinstance(task.inputs[0], str):
        raise DataError(
            f"task {task.name!a} holds token ids, and characters of a text are to be found; give the texts, or "
            "read tokens by their number"
        )
    texts, found = [str(text) for text in task.inputs], []
    for start in range(0, len(texts), CHUNK):
        some = texts[start : start + CHUNK]
        distinct = list(dict.fromkeys(some))  # the words of a text repeat it
        known = dict(zip(distinct, map(_array, model.tokenizer.offsets_batch(distinct)), strict=True))
        found += [known[text] for text in some]
    if task.token_ids is not None:
        rows = zip(texts, model.tokenizer.encode_batch(texts), task.token_ids, found, strict=True)
        found = [_aligned(model.tokenizer, text, own, list(ids), offsets) for text, own, ids, offsets in rows]
    return [offsets[:n] for offsets, n in zip(found, sequences.own_lengths.tolist(), strict=True)]


def _array(offsets: list[tuple[int, int]]) -> np.ndarray:
    return np.array(offsets, dtype=np.int64).reshape(-1, 2)


def _aligned(tokenizer: Tokenizer, text: str, own: list[int], ids: list[int], offsets: np.ndarray) -> np.ndarray:
    """The characters of each of `ids`, which decode to the text but need not be how the tokenizer cuts it.

    Where they agree with the tokenizer's `own`, at either end, its offsets hold. Those between are decoded one by one.
    """
    if own == ids:
        return offsets
    most, head = min(len(own), len(ids)), 0
    while head < most and own[head] == ids[head]:
        head += 1
    tail = 0
    while tail < most - head and own[-1 - tail] == ids[-1 - tail]:
        tail += 1
    is_within = offsets[1:, 0] < offsets[:-1, 1]  # the token begins within a character
    while 0 < head < len(own) and is_within[head - 1]:
        head -= 1
    while 0 < tail < len(own) and is_within[len(own) - tail - 1]:
        tail -= 1
    start = int(offsets[head - 1, 1]) if head else 0
    end = int(offsets[len(own) - tail, 0]) if tail else len(text)
    between = _decoded(tokenizer, text, ids[head : len(ids) - tail], start, max(start, end))
    return np.concatenate([offsets[:head], between, offsets[len(own) - tail :]])


def _decoded(tokenizer: Tokenizer, text: str, ids: list[int], start: int, end: int) -> np.ndarray:
    """The characters of tokens that decode to text[start:end]; all of these for each token if they do not."""
    complete = tokenizer.decode(ids) if ids else ""
    at = text.find(complete.strip(), start, end)
    base = at - (len(complete) - len(complete.lstrip()))
    ends, starts, done = [], [], 0
    for k in range(1, len(ids) + 1):
        part = tokenizer.decode(ids[:k])
        known = part.rstrip(PARTIAL) if k < len(ids) else complete
        starts.append(base + done)
        ends.append(base + len(known) + (len(part) > len(known)))
        if at < 0 or not complete.startswith(known):
            return np.tile(np.array([[start, end]], dtype=np.int64), (len(ids), 1))
        done = max(done, len(known))
    return np.array([stripped(text, *each) for each in zip(starts, ends, strict=True)], np.int64).reshape(-1, 2)


def stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """The span without blanks at either end; one of blanks alone as it is."""
    start, end = max(start, 0), min(end, len(text))
    piece = text[start:end]
    if not piece.strip():
        return start, max(start, end)
    return start + len(piece) - len(piece.lstrip()), end - (len(piece) - len(piece.rstrip()))
