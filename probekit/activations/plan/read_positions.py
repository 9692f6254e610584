"""The tokens to read in each example.

Positions count a text's own tokens. Context tokens (a BOS, BERT's [CLS] and [SEP], Marian's </s>) are never token 0,
never the last token, never part of a mean, and shift no index. Where the examples are words of their texts, "first",
"last" and "mean" refer to the tokens of the word.

Axes: N examples.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from probekit.activations.layout import ALL, position_text
from probekit.activations.plan.token_ids import Sequences
from probekit.errors import DataError, UsageError, nearest
from probekit.tasks.base import Task
from probekit.text import counted, listed

POSITIONS = ("last", "first", "mean")
OnePosition = str | int | np.ndarray  # "last", "first", "mean", "all", one index for every text, an array of one each
Position = OnePosition | Sequence[OnePosition] | None  # or several at once; None is the task's own


@dataclass(frozen=True, eq=False)
class Reading:
    """The tokens to read in each example.

    Attributes:
        positions: one or several of "last", "first", "mean", an int, an int64 [N]; or "all" by itself.
        names: each position in words, for files and people.
        index: for each position, the index of its token in each sequence (BOS counted), int64 [N]; None where every
            token is read, for the mean or for "all".
        words: the tokens of each example's word, over which the mean is taken, int64 [N, 2]; None: all of the text's.
    """

    positions: list[OnePosition]
    names: list[str]
    index: list[np.ndarray | None]
    words: np.ndarray | None = None

    def needed(self, lengths: np.ndarray) -> np.ndarray:
        """Leading tokens of each example that a causal model must compute, int64 [N]."""
        if self.words is not None:
            return self.words[:, 1]
        index = [i for i in self.index if i is not None]
        return lengths if len(index) < len(self.index) else np.max(index, axis=0) + 1

    def token_ids(self, sequences: Sequences) -> np.ndarray:
        """Id of each token that is read, those of example 0 first, -1 for a mean: int64 [R]."""
        if self.names == [ALL]:
            return sequences.own.astype(np.int64)
        starts = sequences.offsets[:-1]
        ids = [np.full(len(starts), -1) if i is None else sequences.flat[starts + i] for i in self.index]
        return np.stack(ids, axis=1).ravel().astype(np.int64)


def read_positions(position: Position, sequences: Sequences, task: Task) -> Reading:
    """Find the tokens at `position` in each example.

    Raises:
        UsageError: an unknown position, or the same one twice.
        DataError: an array without exactly one index for each example, or an example too short for its index.
    """
    given: Any = task.position if position is None else position
    several = [_check_position(one, task) for one in (given if isinstance(given, list | tuple) else [given])]
    if sequences.words is not None:
        return _read_words(several, sequences.words)
    names = [position_text(one) for one in several]
    if not several or len(set(names)) < len(names) or (ALL in names and len(names) > 1):
        raise UsageError(
            f"several positions must all differ, and all is not one of several; got {listed(names) or '[]'}"
        )
    index = [
        None if name in (ALL, "mean") else _token_index(one, sequences, task)
        for name, one in zip(names, several, strict=True)
    ]
    return Reading(several, names, index)


def _read_words(positions: list[OnePosition], words: np.ndarray) -> Reading:
    """First, last and mean of each word's tokens, first to one past the last, int64 [N, 2]."""
    names = [position_text(one) for one in positions]
    if not set(names) <= set(POSITIONS) or len(set(names)) < len(names) or not names:
        raise UsageError(f"words are read at {', '.join(POSITIONS)}, or several of these; got {listed(names) or '[]'}")
    index = {"first": words[:, 0], "last": words[:, 1] - 1, "mean": None}
    return Reading(positions, names, [index[name] for name in names], words)


def _check_position(position: Any, task: Task) -> OnePosition:
    """One position: a word, an int, or an int64 [N].

    Raises:
        UsageError: anything else.
        DataError: an array without exactly one index for each example.
    """
    words = [*POSITIONS, ALL]
    if isinstance(position, str):
        if position not in words:
            hint = "give several as a list" if "," in position else nearest(position, words)
            raise UsageError(f"a position is {listed(words)} or a token's index; {hint}")
        return position
    index = np.asarray(position)
    if index.dtype.kind not in "iu":
        raise UsageError(f"a position is {listed(words)}, an int or an int for each example; got {position!r}")
    if not index.ndim:
        return int(index)
    if index.shape != (len(task),):
        raise DataError(f"expected one position for each of the {len(task)} examples, got {list(index.shape)}")
    return index.astype(np.int64)


def _token_index(position: OnePosition, sequences: Sequences, task: Task) -> np.ndarray:
    """Index in each sequence (BOS counted) of the token at a position, int64 [N].

    Raises:
        DataError: an example too short for its index.
    """
    if isinstance(position, str):
        position = -1 if position == "last" else 0
    lengths = sequences.own_lengths
    index = np.broadcast_to(np.asarray(position, dtype=np.int64), lengths.shape)
    if (outside := (index < -lengths) | (index >= lengths)).any():
        first = int(outside.argmax())
        cut = " (texts longer than the context were cut)" if sequences.n_cut else ""
        raise DataError(
            f"example {task.ids[first]!a} has {counted(int(lengths[first]), 'token')}{cut}, and token {index[first]} "
            "is to be read; "
            "choose another position, or leave the example out"
        )
    return np.where(index < 0, index + lengths, index) + sequences.n_bos
