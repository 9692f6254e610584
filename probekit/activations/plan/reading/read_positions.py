"""The tokens to read in each example: selections applied to the token ids of a plan.

Positions count a text's own tokens. Context tokens (a BOS, BERT's [CLS] and [SEP], Marian's </s>) are never token 0,
never the last token, never part of a mean, and shift no index. Where the examples are words of their texts, a selection
without a part is of the tokens of the word.

Axes: N examples, R tokens that are read, L (or T) tokens of one text, W words of one text.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from probekit.activations.layout import Layout
from probekit.activations.plan.reading.offsets import offsets_of, stripped
from probekit.activations.plan.reading.select_tokens import Bad, ReadableTokens, TokenSet, needs_offsets, select_tokens
from probekit.activations.plan.token_ids import Sequences, has_texts
from probekit.errors import DataError, UsageError
from probekit.files.scratch import on_disk
from probekit.models.base import LanguageModel
from probekit.ragged import ranges
from probekit.selections import Selection, check_together, not_a_selection
from probekit.tasks.base import Task


@dataclass(frozen=True, eq=False)
class ReadTokens:
    """The tokens that one position reads.

    Attributes:
        index: of each token in its sequence (BOS counted), one example after the other, int64 [R]; None is every token
            of each text, without context tokens.
        counts: how many tokens of each example, int64 [N]; None is one of each.
        is_mean: whether their mean is kept, and not they.
    """

    index: np.ndarray | None
    counts: np.ndarray | None
    is_mean: bool = False

    def of_rows(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where the tokens of some examples are in `index`, and how many each has; where `index` is given."""
        if self.counts is None:
            return rows, np.ones_like(rows)
        return ranges(self._starts[rows], self.counts[rows]), self.counts[rows]

    @cached_property
    def _starts(self) -> np.ndarray:  # needed once for each batch, and N may be millions
        assert self.counts is not None
        return np.cumsum(self.counts) - self.counts


@dataclass(frozen=True, eq=False)
class Reading:
    """The tokens to read in each example.

    Attributes:
        positions: one, or several with a row of each text.
        reads: the tokens of each position.
        characters: the characters of each kept token, int64 [R, 2], where all tokens of texts or several are kept; None
            otherwise.
        skip_special: whether special tokens are never read.
    """

    positions: list[Selection]
    reads: list[ReadTokens]
    characters: np.ndarray | None = None
    skip_special: bool = False


def read_positions(
    model: LanguageModel, task: Task, sequences: Sequences, position: Any = None, skip_special: bool = False
) -> tuple[Reading, Bad]:
    """Find the tokens at `position` in each example.

    Args:
        model: with the tokenizer of texts.
        task: with the texts of these sequences as its inputs.
        sequences: the token ids.
        position: as `Selection.of` takes it, or a list of several; None is the task's own.
        skip_special: whether special tokens of the texts are left out.

    Returns:
        The tokens; and the rows that cannot be read, with why. The reading is of use if there are none.

    Raises:
        UsageError: an unknown position, the same one twice, or a part that the texts cannot have.
        DataError: an array without exactly one index for each example.
    """
    given: Any = task.position if position is None else position
    several = [Selection.of(one) for one in (given if isinstance(given, list | tuple) else [given])]
    check_together(several)
    for one in several:
        if one.each is not None and task.spans is not None:  # words have no tokens of their own number
            raise not_a_selection(one.each, " or an int")
        if one.each is not None and one.each.shape != (len(task),):
            raise DataError(f"expected one position for each of the {len(task)} examples, got {list(one.each.shape)}")
    tokens, bad = _text_tokens(model, task, sequences, several, skip_special)
    found = [select_tokens(one, tokens) for one in several]
    reads = []
    for one, (chosen, unread) in zip(several, found, strict=True):
        index = None if chosen.index is None else on_disk(chosen.index + sequences.n_bos)
        is_mean = one.pick == "mean"
        reads.append(ReadTokens(index, chosen.counts if is_mean or one.several else None, is_mean))
        bad = unread | bad
    characters = None
    if several[0].several and tokens.offsets is not None and not bad:
        characters = _characters(found[0][0], tokens.offsets)
    return Reading(several, reads, characters, skip_special), bad


def layout_of(reading: Reading, sequences: Sequences) -> Layout:
    """How many rows each example has, and of which tokens."""
    first, keeps_rows = reading.reads[0], reading.positions[0].several
    picked = first.counts if keeps_rows and first.index is not None else None
    flat = [_flat(read, sequences) for read in reading.reads]
    if keeps_rows:
        ids = sequences.own if flat[0] is None else sequences.flat[flat[0]]
        own = None if first.index is None else first.index - sequences.n_bos
    else:
        none = np.full(len(sequences), -1)
        ids = _stacked([none if one is None else sequences.flat[one] for one in flat]).astype(np.int64)
        starts = sequences.offsets[:-1] + sequences.n_bos
        own = _stacked([none if one is None else one - starts for one in flat])
    return Layout(
        positions=reading.positions,
        lengths=sequences.lengths,
        n_bos=sequences.n_bos,
        tokens=on_disk(ids.astype(np.int64, copy=False)),
        n_end=sequences.n_end,
        picked=picked,
        token_index=None if own is None else on_disk(own.astype(np.int64, copy=False)),
        characters=reading.characters,
    )


def needed_tokens(reading: Reading, lengths: np.ndarray) -> np.ndarray:
    """Leading tokens of each example that a causal model must compute, int64 [N]."""
    ends = []
    for read in reading.reads:
        if read.index is None:
            return lengths
        ends.append(1 + (read.index if read.counts is None else read.index[np.cumsum(read.counts) - 1]))
    return np.max(ends, axis=0)


def _stacked(columns: list[np.ndarray]) -> np.ndarray:
    """One row of each column at a time, [N * columns]."""
    return columns[0] if len(columns) == 1 else np.stack(columns, axis=1).ravel()


def _flat(read: ReadTokens, sequences: Sequences) -> np.ndarray | None:
    """Where the tokens whose rows are kept are among those of all sequences; None for means, and for all."""
    if read.index is None or read.is_mean:
        return None
    starts = sequences.offsets[:-1]
    return (starts if read.counts is None else np.repeat(starts, read.counts)) + read.index


def _text_tokens(
    model: LanguageModel, task: Task, sequences: Sequences, positions: Iterable[Selection], skip_special: bool
) -> tuple[ReadableTokens, Bad]:
    """What the selections choose among; the characters of tokens only if they are needed."""
    with_texts = has_texts(task) and model.tokenizer is not None
    wanted = task.spans is not None or any(needs_offsets(one) or one.several for one in positions)
    offsets = offsets_of(model, task, sequences) if with_texts and wanted else None
    lengths = sequences.own_lengths
    spans, bad = None, {}
    if task.spans is not None and offsets is not None:
        spans, bad = _word_tokens(task, offsets, sequences.lengths >= model.cfg.n_ctx)
    tokens = ReadableTokens(
        lengths=lengths,
        usable=_without_special(model, sequences) if skip_special else None,
        texts=task.inputs if offsets is not None else None,  # pyright: ignore[reportArgumentType]
        offsets=offsets,
        regions=task.regions,
        generated=task.generated,
        totals=None if task.token_ids is None else np.array([len(ids) for ids in task.token_ids], dtype=np.int64),
        spans=spans,
        cut=sequences.lengths >= model.cfg.n_ctx,
    )
    return tokens, bad


def _without_special(model: LanguageModel, sequences: Sequences) -> TokenSet:
    """The own tokens that are not special."""
    if model.tokenizer is None:
        raise UsageError(f"model {model.name!a} has no tokenizer that lists special tokens; leave out --skip-special")
    usable = ~np.isin(sequences.own, list(model.tokenizer.special_ids))
    lengths = sequences.own_lengths
    starts = np.cumsum(lengths) - lengths
    flat, of = np.flatnonzero(usable), np.repeat(np.arange(len(lengths)), lengths)[usable]
    return TokenSet(np.bincount(of, minlength=len(lengths)), flat - starts[of])


def _characters(chosen: TokenSet, offsets: Sequence[np.ndarray]) -> np.ndarray:
    """The characters of the chosen tokens, int64 [R, 2]."""
    flat = np.concatenate(offsets)
    if chosen.index is None:
        return flat
    lengths = np.fromiter(map(len, offsets), np.int64, len(offsets))
    return flat[np.repeat(np.cumsum(lengths) - lengths, chosen.counts) + chosen.index]


def _word_tokens(task: Task, offsets: Sequence[np.ndarray], cut: np.ndarray) -> tuple[np.ndarray, Bad]:
    """The tokens with a character of each example's span, first to one past the last, int64 [N, 2].

    A word that is only part of a token gets that token; so does each of several words within one token. The bad rows
    are those whose word has no token, or is cut off where the text fills the context (`cut`, bool [N]).
    """
    assert task.spans is not None
    rows_of: dict[Any, list[int]] = {}
    for row, text in enumerate(task.inputs):
        rows_of.setdefault(text, []).append(row)
    words = np.empty((len(task), 2), dtype=np.int64)
    for text, rows in rows_of.items():
        spans = [stripped(str(text), *span) for span in task.spans[rows].tolist()]
        words[rows] = token_spans(offsets[rows[0]], np.array(spans, dtype=np.int64))
    bad: Bad = {}
    ends = np.fromiter((each[:, 1].max(initial=0) for each in offsets), np.int64, len(offsets))
    for row in np.flatnonzero((words[:, 0] == words[:, 1]) | (cut & (task.spans[:, 1] > ends))).tolist():
        start, end = task.spans[row].tolist()
        word = str(task.inputs[row])[start:end]
        if cut[row] and end > ends[row]:
            bad[row] = f"the word {word!a} is outside the model's context; shorten the text, or leave the word out"
        else:
            bad[row] = f"the tokenizer makes no token of the word {word!a}; leave the word out"
    return words, bad


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
