"""A task's inputs as token ids that fit the model's context, and the prefixes that they share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from probekit.errors import DataError, UsageError
from probekit.files.scratch import ArrayWriter, on_disk, pieces
from probekit.models.base import LanguageModel
from probekit.options.extract import OnLong
from probekit.ragged import ranges
from probekit.tasks.base import Task

CHUNK = 4096  # examples whose ids are Python lists at one time
SORTED_AT_ONCE = 1 << 16  # texts


@dataclass(frozen=True, eq=False)
class Sequences:
    """The token ids of each example, with its context tokens: a BOS, BERT's [CLS] and [SEP], Marian's </s>.

    Attributes:
        flat: the ids of all examples one after the other, int32.
        offsets: where each example begins in `flat`, and where the last one ends, int64 [N + 1].
        n_bos: context tokens before each text: 0 or 1.
        n_cut: how many texts were cut to fit the context; a text that several words share counts once per split.
        n_end: context tokens after each text: 0 or 1.
    """

    flat: np.ndarray
    offsets: np.ndarray
    n_bos: int
    n_cut: int
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
        """Tokens of each example, context included, int64 [N]."""
        return on_disk(np.diff(self.offsets))

    @property
    def own_lengths(self) -> np.ndarray:
        """Tokens of each text without its context, int64 [N]."""
        return self.lengths - self.n_bos - self.n_end

    @property
    def own(self) -> np.ndarray:
        """The ids of the texts without their context, one after the other."""
        return without_context(self.flat, self.offsets[:-1], self.offsets[1:], self.n_bos, self.n_end)

    def subset(self, rows: np.ndarray) -> "Sequences":
        """These examples, in this order."""
        some = Sequences.of([self[row].tolist() for row in rows], self.n_bos, self.n_cut)
        return replace(some, n_end=self.n_end)

    def first(self, lengths: np.ndarray) -> "Sequences":
        """The first `lengths` [N] tokens of each example, int64."""
        if (lengths >= self.lengths).all():
            return self
        flat = ArrayWriter()
        for rows in pieces(len(self)):
            flat.add(self.flat[ranges(self.offsets[rows], lengths[rows])])
        return replace(self, flat=flat.array(), offsets=on_disk(np.concatenate([[0], np.cumsum(lengths)])))

    @cached_property
    def order(self) -> np.ndarray:
        """The examples sorted by their tokens, int64 [N]; a prefix comes before the texts that it begins."""
        return on_disk(_sorted_texts(self.flat, self.offsets[:-1], self.lengths))

    @cached_property
    def shared(self) -> np.ndarray:
        """Leading tokens that each example of `order` shares with the one before it, int64 [N]."""
        made = ArrayWriter()
        for rows in pieces(len(self)):
            before = max(rows.start - 1, 0)  # the text before the first of these
            made.add(self._shared(self.order[before : rows.stop])[rows.start - before :])
        return made.array()

    def _shared(self, order: np.ndarray) -> np.ndarray:
        """`shared` of some neighbours in `order`; 0 for the first of them."""
        starts, lengths = self.offsets[order], self.lengths[order]
        shared, shorter = np.zeros(len(order), dtype=np.int64), np.minimum(lengths[1:], lengths[:-1])
        alike = np.arange(1, len(order))  # whose first `depth` tokens are those of the text before
        for depth in range(int(shorter.max(initial=0))):
            alike = alike[shorter[alike - 1] > depth]
            alike = alike[self.flat[starts[alike] + depth] == self.flat[starts[alike - 1] + depth]]
            if not len(alike):
                break
            shared[alike] = depth + 1
        return shared


def _sorted_texts(flat: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The texts sorted by their tokens, equal ones in the order given, int64 [N].

    First by as many tokens as fit into 64 bits. Then some neighbours at a time, cut between texts that differ in these
    tokens, so that memory holds the keys of all texts and a few arrays of the neighbours.
    """
    bits = (int(flat.max(initial=0)) + 1).bit_length()  # of a token plus 1; 0 is the end of a text
    count, order = 64 // bits, np.arange(len(lengths))
    todo = [(0, len(order), 0)] if len(flat) else []  # texts of `order` that begin with the same `depth` tokens
    while todo:
        begin, end, depth = todo.pop()
        if end - begin <= SORTED_AT_ONCE:
            order[begin:end] = _sorted_few(flat, starts, lengths, order[begin:end], bits, depth)
            continue
        keys = np.empty(end - begin, dtype=np.uint64)
        for rows in pieces(end - begin):
            keys[rows] = _keys(flat, starts, lengths, order[begin:end][rows], bits, depth, count)
        by_key = np.argsort(keys, kind="stable")
        keys = keys[by_key]
        order[begin:end] = order[begin:end][by_key]
        del by_key
        cuts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1], [True]]))  # between texts that differ
        start = 0
        while start < len(cuts) - 1:
            stop = int(np.searchsorted(cuts, cuts[start] + SORTED_AT_ONCE, side="right")) - 1
            is_alone = stop <= start  # more texts than can be sorted at once begin with these tokens
            stop = start + 1 if is_alone else stop
            goes_on = bool(keys[cuts[start]] & np.uint64(2**bits - 1)) if is_alone else True
            if goes_on:
                todo.append((begin + int(cuts[start]), begin + int(cuts[stop]), depth + count if is_alone else depth))
            start = stop
    return order


def _keys(
    flat: np.ndarray, starts: np.ndarray, lengths: np.ndarray, texts: np.ndarray, bits: int, depth: int, count: int
) -> np.ndarray:
    """`count` tokens of each text from `depth` on as one number, uint64."""
    at, left, keys = starts[texts] + depth, lengths[texts] - depth, np.zeros(len(texts), dtype=np.uint64)
    for i in range(count):
        there = left > i
        tokens = np.where(there, flat[np.where(there, at + i, 0)].astype(np.int64) + 1, 0).view(np.uint64)
        keys = (keys << np.uint64(bits)) | tokens
    return keys


def _sorted_few(
    flat: np.ndarray, starts: np.ndarray, lengths: np.ndarray, order: np.ndarray, bits: int, depth: int
) -> np.ndarray:
    """Some texts sorted by their tokens from `depth` on; equal ones stay in order.

    As many tokens as fit into 64 bits are compared at once. Then those texts go on that are still equal to another.
    """
    order, groups = order.copy(), np.zeros(len(order), dtype=np.uint64)
    places = np.arange(len(order))  # in `order`: texts that go on; those of one group begin with the same tokens
    while len(places):
        texts, count = order[places], max(1, (64 - int(groups[-1]).bit_length()) // bits)
        keys = (groups << np.uint64(min(63, count * bits))) | _keys(flat, starts, lengths, texts, bits, depth, count)
        if (keys[1:] < keys[:-1]).any():
            by_key = np.argsort(keys, kind="stable")
            order[places], keys = texts[by_key], keys[by_key]
        begins = np.concatenate([[True], keys[1:] != keys[:-1]])
        alone = begins & np.concatenate([begins[1:], [True]])
        go_on = np.flatnonzero(~alone & (keys & np.uint64(2**bits - 1) > 0))
        group = np.cumsum(begins)[go_on]
        groups = np.cumsum(np.diff(group, prepend=group[:1]) > 0, dtype=np.uint64)
        places, depth = places[go_on], depth + count
    return order


def without_context(x: np.ndarray, starts: np.ndarray, ends: np.ndarray, n_bos: int, n_end: int) -> np.ndarray:
    """The entries of x that belong to the texts' own tokens.

    Args:
        x: one entry for each token, [T], the examples one after the other.
        starts: where each example begins, int64 [N].
        ends: where each example ends, int64 [N].
        n_bos: context tokens before each text, 0 or 1.
        n_end: context tokens after each text, 0 or 1.
    """
    context = ([starts] if n_bos else []) + ([ends - 1] if n_end else [])
    return np.delete(x, np.concatenate(context)) if context else x


def tokenise_inputs(model: LanguageModel, task: Task, bos: bool | None, on_long: OnLong) -> Sequences:
    """Tokenise the texts, or check the ids that the task has, and cut at the right what is longer than the context.

    Args:
        model: the model that will run on them.
        task: the examples.
        bos: whether each text gets context tokens: a BOS before it, [CLS] before and [SEP] after it, or </s> after it.
            None: only for models that were never trained without, such as BERT and Marian's encoder.
        on_long: "cut" or "error".

    Raises:
        DataError: no examples, texts without a tokenizer, an input without tokens, an id outside the vocabulary, or,
            with on_long="error", an input longer than the context; the message names the example.
        UsageError: a BOS for a model that has none.
    """
    if not len(task):
        raise DataError(f"task {task.name!a} has no examples; give one or more")
    around = sep_of(model) is not None
    bos = around and not model.causal and has_texts(task) if bos is None else bos
    only_ends = around and model.tokenizer is not None and model.tokenizer.bos_token_id is None  # Marian's </s>
    n_ctx, n_bos, n_end = model.cfg.n_ctx, int(bos and not only_ends), int(bos and around)
    flat, lengths = ArrayWriter(), np.empty(len(task), dtype=np.int64)
    for rows in pieces(len(task), CHUNK):
        tokens = _checked(model, task, rows, bos, n_bos + n_end)
        lengths[rows] = np.fromiter(map(len, tokens), np.int64, len(tokens))
        cut = [ids if len(ids) <= n_ctx else [*ids[: n_ctx - n_end], *ids[len(ids) - n_end :]] for ids in tokens]
        flat.add(Sequences.of(cut).flat)
    long = np.flatnonzero(lengths > n_ctx)
    if len(long) and on_long == "error":
        first = int(long[0])
        raise DataError(
            f"example {task.ids[first]!a} has {lengths[first]:,} tokens, more than the context of {n_ctx:,} "
            f"(as have {len(long):,} of {len(task):,} inputs); shorten them, or cut them with --on-long cut"
        )
    offsets = np.concatenate([[0], np.cumsum(np.minimum(lengths, n_ctx))])
    n_cut = len(np.intersect1d(long, task.texts()[0])) if len(long) else 0
    return Sequences(flat.array(), on_disk(offsets), n_bos, n_cut, n_end)


def tokenise_targets(model: LanguageModel, task: Task, on_long: OnLong) -> Sequences:
    """The token ids that the decoder of an encoder-decoder takes: the task's targets after the decoder's start token.

    The start token is prepended where it is missing. Like a BOS it is context and never token 0.

    Raises:
        DataError: as `tokenise_inputs`; no targets, or only some of them with the start token.
    """
    if task.targets is None:
        raise DataError(
            f"task {task.name!a} has no targets, and the decoder of {model.name!a} needs them; give Task(targets=...), "
            "or extract points of the encoder"
        )
    side = targets_task(task)
    given, start = tokenise_inputs(model, side, False, on_long), model.cfg.decoder_start_token_id
    begun = given.flat[given.offsets[:-1]] == start
    if begun.all():
        return given
    if begun.any():
        raise DataError(
            f"only {begun.sum():,} of {len(task):,} targets begin with the decoder's start token {start}; put it "
            "before all of them, or before none"
        )
    with_start = replace(side, inputs=[[start, *given[i].tolist()] for i in range(len(task))])
    return replace(tokenise_inputs(model, with_start, False, on_long), n_bos=1)


def targets_task(task: Task) -> Task:
    """The targets of a task, as the inputs of another one."""
    assert task.targets is not None
    return replace(task, inputs=task.targets, spans=None, targets=None, regions=None, token_ids=None)


def sep_of(model: LanguageModel) -> int | None:
    """The id of the context token after a text (BERT's [SEP], Marian's </s>); None if the model has none."""
    return None if model.tokenizer is None else model.tokenizer.sep_token_id


def has_texts(task: Task) -> bool:
    """True if the inputs are texts, False if they are token ids."""
    return isinstance(task.inputs[0], str)


def _checked(model: LanguageModel, task: Task, rows: slice, bos: bool, n_context: int) -> list[list[int]]:
    """The ids of some examples, none of them empty, all in the vocabulary."""
    tokens, d_vocab = _encode(model, task, rows, bos), model.cfg.d_vocab
    for row, ids in zip(task.ids[rows], tokens, strict=True):
        if len(ids) <= n_context:
            raise DataError(f"example {row!a} has no tokens; leave it out")
    flat = np.array(list(chain.from_iterable(tokens)))
    if flat.dtype.kind in "iu" and flat.min() >= 0 and flat.max() < d_vocab:
        return tokens
    hint = "; the tokenizer belongs to another model" if has_texts(task) and task.token_ids is None else ""
    for row, ids in zip(task.ids[rows], tokens, strict=True):
        for token in ids:
            if not isinstance(token, int | np.integer) or not 0 <= token < d_vocab:
                raise DataError(
                    f"example {row!a}: token ids of {model.name!a} are 0..{d_vocab - 1}, got {token!r}{hint}"
                )
    return tokens


def _encode(model: LanguageModel, task: Task, rows: slice, bos: bool) -> list[list[int]]:
    if has_texts(task) and task.token_ids is None:
        if model.tokenizer is None:
            raise DataError(
                f"task {task.name!a} holds texts and model {model.name!a} has no tokenizer; put a tokenizer.json into "
                "the model's folder, or give a task of token ids"
            )
        texts: Any = task.inputs[rows]
        try:
            if task.spans is None:
                return model.tokenizer.encode_batch(texts, bos=bos)
            distinct = list(dict.fromkeys(texts))  # the words of a text repeat it
            encoded = dict(zip(distinct, model.tokenizer.encode_batch(distinct, bos=bos), strict=True))
            return [encoded[text] for text in texts]
        except DataError:
            for row, text in zip(task.ids[rows], texts, strict=True):
                try:
                    model.tokenizer.encode(text, bos=bos)
                except DataError as error:
                    raise DataError(f"example {row!a}: {error}") from None
            raise
    ids: Any = task.inputs[rows] if task.token_ids is None else task.token_ids[rows]
    if not bos:
        return [list(row) for row in ids]
    tokenizer, sep = model.tokenizer, sep_of(model)
    start = getattr(model.cfg, "bos_token_id", None) if tokenizer is None or sep is None else tokenizer.bos_token_id
    if start is None and sep is None:
        raise UsageError(f"model {model.name!a} has no BOS token; leave out --bos")
    return [[*([] if start is None else [start]), *row, *([] if sep is None else [sep])] for row in ids]
