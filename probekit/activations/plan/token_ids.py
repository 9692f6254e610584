"""A task's inputs as token ids that fit the model, and what they have in common at their beginning."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import numpy as np

from probekit.errors import DataError, UsageError
from probekit.models.base import LanguageModel
from probekit.options.extract import OnLong
from probekit.tasks.base import Task

CHUNK = 4096  # examples whose ids stand in memory as lists


@dataclass(frozen=True, eq=False)
class Sequences:
    """What the model reads: the token ids of each example, with those of its context.

    That is a BOS, BERT's [CLS] and [SEP], or the </s> behind what Marian's encoder reads.

    Attributes:
        flat: the ids of all examples one after the other, int32.
        offsets: where each example begins in `flat`, and where the last one ends, int64 [N + 1].
        n_bos: tokens of context before each text's own: 0 or 1.
        n_cut: how many examples had to be cut to fit the context.
        words: the tokens of each example's word, from the first to behind the last, int64 [N, 2]; counted as in the
            sequence, the BOS included. None where the examples are whole texts.
        n_end: tokens of context behind each text's own: 0 or 1.
    """

    flat: np.ndarray
    offsets: np.ndarray
    n_bos: int
    n_cut: int
    words: np.ndarray | None = None
    n_end: int = 0

    @classmethod
    def of(cls, tokens: Sequence[Sequence[int]], n_bos: int = 0, n_cut: int = 0) -> "Sequences":
        """From one list of ids for each example."""
        offsets = np.cumsum([0, *map(len, tokens)], dtype=np.int64)
        flat = np.fromiter(chain.from_iterable(tokens), dtype=np.int32, count=int(offsets[-1]))
        return cls(flat, offsets, n_bos, n_cut)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, example: int) -> np.ndarray:
        return self.flat[self.offsets[example] : self.offsets[example + 1]]

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each example, those of the context included, int64 [N]."""
        return np.diff(self.offsets)

    @property
    def own_lengths(self) -> np.ndarray:
        """Tokens of each text itself, int64 [N]."""
        return self.lengths - self.n_bos - self.n_end

    @property
    def own(self) -> np.ndarray:
        """The ids of the texts themselves, one after the other."""
        return without_context(self.flat, self.offsets[:-1], self.offsets[1:], self.n_bos, self.n_end)

    def subset(self, rows: np.ndarray) -> "Sequences":
        """These examples, in this order."""
        some = Sequences.of([self[row].tolist() for row in rows], self.n_bos, self.n_cut)
        return replace(some, words=None if self.words is None else self.words[rows], n_end=self.n_end)

    def first(self, lengths: np.ndarray) -> "Sequences":
        """The first so many tokens of each example; `lengths` int64 [N]."""
        if (lengths >= self.lengths).all():
            return self
        index = np.repeat(self.offsets[:-1], lengths) + np.arange(lengths.sum())
        index -= np.repeat(np.cumsum(lengths) - lengths, lengths)
        return replace(self, flat=self.flat[index], offsets=np.concatenate([[0], np.cumsum(lengths)]))

    @cached_property
    def order(self) -> np.ndarray:
        """The examples sorted by their tokens, a prefix before what it begins, int64 [N]."""
        data = self.flat.astype(">i4").tobytes()  # big-endian: bytes compare as the ids do
        keys = [data[4 * start : 4 * end] for start, end in pairwise(self.offsets.tolist())]
        return np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)

    @cached_property
    def shared(self) -> np.ndarray:
        """Leading tokens that each example of `order` has in common with the one before it, int64 [N]."""
        return np.array([0, *(_in_common(self[a], self[b]) for a, b in pairwise(self.order))], dtype=np.int64)


def without_context(x: np.ndarray, starts: np.ndarray, ends: np.ndarray, n_bos: int, n_end: int) -> np.ndarray:
    """What x has for each token of some examples, without the tokens before and behind each text's own.

    Args:
        x: [T], the examples one after the other.
        starts: where each begins, int64 [N].
        ends: where each ends, int64 [N].
        n_bos: tokens before each text's own, 0 or 1.
        n_end: tokens behind them, 0 or 1.
    """
    return np.delete(x, [*(starts if n_bos else ()), *(ends - 1 if n_end else ())]) if n_bos or n_end else x


def _in_common(a: np.ndarray, b: np.ndarray) -> int:
    differ = a[: len(b)] != b[: len(a)]
    return int(differ.argmax()) if differ.any() else len(differ)


def sequences_of(model: LanguageModel, task: Task, bos: bool | None, on_long: OnLong) -> Sequences:
    """Tokenise the texts (or check the ids), and cut at the right what is longer than the context.

    Args:
        model: that reads them.
        task: whose inputs they are.
        bos: whether each text stands in its context: a BOS before it, [CLS] before and [SEP] behind it, or </s> behind
            it. None: where the model knows no text without, which is so of BERT and of Marian's encoder.
        on_long: "cut" or "error".

    Raises:
        DataError: no examples, texts without a tokenizer, an input without tokens, an id outside the vocabulary, or,
            with on_long="error", an input longer than the context; the message names the example.
        UsageError: a BOS for a model that has none.
    """
    if not len(task):
        raise DataError(f"task {task.name!a} has no examples")
    around = sep_of(model) is not None
    bos = around and not model.causal and has_texts(task) if bos is None else bos
    n_ctx, n_bos, n_end = model.cfg.n_ctx, int(bos and not _ends_alone(model)), int(bos and around)
    parts, lengths = [], []
    for start in range(0, len(task), CHUNK):
        tokens = _checked(model, task, slice(start, start + CHUNK), bos, n_bos + n_end)
        lengths += map(len, tokens)
        parts.append(Sequences.of([_cut(ids, n_ctx, n_end) for ids in tokens]).flat)
    long = np.flatnonzero(np.array(lengths) > n_ctx)
    if len(long) and on_long == "error":
        first = int(long[0])
        raise DataError(
            f"{len(long)} of {len(task)} inputs are longer than the context of {n_ctx} tokens, the first is example "
            f"{task.ids[first]!a} with {lengths[first]}; shorten them, or cut them with --on-long cut"
        )
    offsets = np.concatenate([[0], np.cumsum(np.minimum(lengths, n_ctx))])
    words = None if task.spans is None else words_of(model, task, n_bos, n_end, np.array(lengths))
    return Sequences(np.concatenate(parts), offsets, n_bos, len(long), words, n_end)


def sep_of(model: LanguageModel) -> int | None:
    """The id that stands behind a text in its context (BERT's [SEP], Marian's </s>); None where there is none."""
    return None if model.tokenizer is None else model.tokenizer.sep_token_id


def _ends_alone(model: LanguageModel) -> bool:
    """Whether something stands behind a text, and nothing before it: Marian's </s>."""
    return model.tokenizer is not None and sep_of(model) is not None and model.tokenizer.bos_token_id is None


def _cut(ids: list[int], n_ctx: int, n_end: int) -> list[int]:
    return ids if len(ids) <= n_ctx else [*ids[: n_ctx - n_end], *ids[len(ids) - n_end :]]


def targets_of(model: LanguageModel, task: Task, on_long: OnLong) -> Sequences:
    """What the decoder of an encoder-decoder reads: the task's targets, from the decoder's start token on.

    Targets that do not begin with it get it put before them, as a BOS: context, and never token 0.

    Raises:
        DataError: as `sequences_of`; no targets, or some with and some without the start token.
    """
    if task.targets is None:
        raise DataError(
            f"task {task.name!a} has no targets, which the decoder of {model.name!a} reads; give Task(targets=...), or "
            "extract points of the encoder"
        )
    side = replace(task, inputs=task.targets, spans=None, targets=None)
    given, start = sequences_of(model, side, False, on_long), model.cfg.decoder_start_token_id
    begun = given.flat[given.offsets[:-1]] == start
    if begun.all():
        return given
    if begun.any():
        raise DataError(
            f"{begun.sum()} of {len(task)} targets begin with the decoder's start token {start}; all or none"
        )
    whole = replace(side, inputs=[[start, *given[i].tolist()] for i in range(len(task))])
    return replace(sequences_of(model, whole, False, on_long), n_bos=1)


def has_texts(task: Task) -> bool:
    """Whether the inputs are texts; token ids otherwise."""
    return isinstance(task.inputs[0], str)


def words_of(model: LanguageModel, task: Task, n_bos: int, n_end: int, lengths: np.ndarray) -> np.ndarray:
    """The tokens that hold a character of each example's span, from the first to behind the last, int64 [N, 2].

    A word that is a part of one token has that token; so has each of several words in one.

    Args:
        model: with a tokenizer.
        task: with spans.
        n_bos: tokens before the text's own.
        n_end: tokens behind them.
        lengths: tokens of each example, those of the context included, int64 [N].

    Raises:
        DataError: a word of which the tokenizer makes no token, or that lies behind the context; names the example.
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
            f"example {task.ids[row]!a}: the tokenizer makes no token of {str(task.inputs[row])[start:end]!a}; leave "
            "it out"
        )
    if (behind := words[:, 1] > model.cfg.n_ctx - n_end).any():
        row = int(behind.argmax())
        raise DataError(
            f"{behind.sum()} words lie behind the context of {model.cfg.n_ctx} tokens, the first is example "
            f"{task.ids[row]!a}; leave them out, or shorten the texts"
        )
    return words


def token_spans(offsets: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """The first token with a character of each span, and the one behind the last, int64 [W, 2]; equal: there is none.

    Args:
        offsets: characters of each token, int64 [T, 2], as `Tokenizer.offsets` gives them.
        spans: characters of each word, int64 [W, 2].
    """
    starts, ends = offsets.T
    meets_WT = (starts < spans[:, 1:]) & (ends > spans[:, :1]) & (starts < ends)
    first, last = meets_WT.argmax(axis=1), offsets.shape[0] - 1 - meets_WT[:, ::-1].argmax(axis=1)
    return np.stack([first, np.where(meets_WT.any(axis=1), last + 1, first)], axis=1)


def _checked(model: LanguageModel, task: Task, rows: slice, bos: bool, n_context: int) -> list[list[int]]:
    """The ids of some examples, none of them empty, all in the vocabulary."""
    tokens = _encode(model, task, rows, bos)
    for row, ids in zip(task.ids[rows], tokens, strict=True):
        if len(ids) <= n_context:
            raise DataError(f"example {row!a} has no tokens; leave it out")
    _check_ids(model, task, rows, tokens)
    return tokens


def _encode(model: LanguageModel, task: Task, rows: slice, bos: bool) -> list[list[int]]:
    if has_texts(task):
        if model.tokenizer is None:
            raise DataError(
                f"task {task.name!a} holds texts and model {model.name!a} has no tokenizer; put a tokenizer.json into "
                "the model's folder, or give a task of token ids"
            )
        texts: Any = task.inputs[rows]
        try:
            if task.spans is None:
                return model.tokenizer.encode_batch(texts, bos=bos)
            known = list(dict.fromkeys(texts))  # words repeat their text
            encoded = dict(zip(known, model.tokenizer.encode_batch(known, bos=bos), strict=True))
            return [encoded[text] for text in texts]
        except DataError:
            for row, text in zip(task.ids[rows], texts, strict=True):
                try:
                    model.tokenizer.encode(text, bos=bos)
                except DataError as error:
                    raise DataError(f"example {row!a}: {error}") from error
            raise
    start, end = _around(model) if bos else ([], [])
    ids: Any = task.inputs[rows]
    return [[*start, *row, *end] for row in ids]


def _around(model: LanguageModel) -> tuple[list[int], list[int]]:
    """The ids of the context, before and behind a text's own."""
    tokenizer, sep = model.tokenizer, sep_of(model)
    start = getattr(model.cfg, "bos_token_id", None) if tokenizer is None or sep is None else tokenizer.bos_token_id
    if start is None and sep is None:
        raise UsageError(f"model {model.name!a} has no BOS token; leave out --bos")
    return [] if start is None else [start], [] if sep is None else [sep]


def _check_ids(model: LanguageModel, task: Task, rows: slice, tokens: list[list[int]]) -> None:
    flat = np.array(list(chain.from_iterable(tokens)))
    d_vocab = model.cfg.d_vocab
    if flat.dtype.kind in "iu" and flat.min() >= 0 and flat.max() < d_vocab:
        return
    for row, ids in zip(task.ids[rows], tokens, strict=True):
        for token in ids:
            if not isinstance(token, int | np.integer) or not 0 <= token < d_vocab:
                whose = "; the tokenizer belongs to another model" if has_texts(task) else ""
                raise DataError(
                    f"example {row!a}: token ids of {model.name!a} are 0..{d_vocab - 1}, got {token!r}{whose}"
                )
