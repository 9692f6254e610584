"""A task's inputs as token ids that fit the model, and the token of each that is read.

Positions count the text's own tokens. A BOS is context that stands before them: it is never token 0, never part of a
mean, and moves no index.
"""

from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import numpy as np

from probekit.errors import DataError, UsageError, nearest
from probekit.models.base import LanguageModel
from probekit.tasks.base import POSITIONS, Task

Position = str | int | np.ndarray | None  # "last", "first", "mean", one index for all, one for each; None: the task's
OnLong = Literal["cut", "error"]


@dataclass(frozen=True)
class Sequences:
    """What the model reads: token ids of each example, a BOS (0 or 1 of them) first, and how many had to be cut."""

    tokens: list[list[int]]
    n_bos: int
    n_cut: int

    @property
    def lengths(self) -> np.ndarray:
        """[N] tokens, the BOS included."""
        return np.array([len(tokens) for tokens in self.tokens])


def sequences_of(model: LanguageModel, task: Task, bos: bool, on_long: OnLong) -> Sequences:
    """Tokenise the texts (or check the ids), and cut at the right what is longer than the context.

    Raises:
        DataError: no examples, texts without a tokenizer, an input without tokens, an id outside the vocabulary, or,
            with on_long="error", an input longer than the context; the message names the example.
        UsageError: a BOS for a model that has none; an unknown `on_long`.
    """
    if on_long not in ("cut", "error"):
        raise UsageError(f"on_long is cut or error; got {on_long!r}")
    if not len(task):
        raise DataError(f"task {task.name!a} has no examples")
    tokens = _encode(model, task, bos)
    for row, ids in zip(task.ids, tokens, strict=True):
        if len(ids) <= bos:
            raise DataError(f"example {row!a} has no tokens; leave it out")
    _check_ids(model, task, tokens)
    n_ctx = _config(model).n_ctx
    long = [i for i, ids in enumerate(tokens) if len(ids) > n_ctx]
    if long and on_long == "error":
        first = long[0]
        raise DataError(
            f"{len(long)} of {len(task)} inputs are longer than the context of {n_ctx} tokens, the first is example "
            f"{task.ids[first]!a} with {len(tokens[first])}; shorten them, or cut them with --on-long cut"
        )
    return Sequences([ids[:n_ctx] for ids in tokens], int(bos), len(long))


def has_texts(task: Task) -> bool:
    """Whether the inputs are texts; token ids otherwise."""
    return isinstance(task.inputs[0], str)


def _config(model: LanguageModel) -> Any:
    return model.cfg  # every family has one; its fields are named alike


def _encode(model: LanguageModel, task: Task, bos: bool) -> list[list[int]]:
    if has_texts(task):
        if model.tokenizer is None:
            raise DataError(
                f"task {task.name!a} holds texts and model {model.name!a} has no tokenizer; put a tokenizer.json into "
                "the model's folder, or give a task of token ids"
            )
        texts: Any = task.inputs
        try:
            return model.tokenizer.encode_batch(texts, bos=bos)
        except DataError:
            for row, text in zip(task.ids, texts, strict=True):
                try:
                    model.tokenizer.encode(text, bos=bos)
                except DataError as error:
                    raise DataError(f"example {row!a}: {error}") from error
            raise
    start = _config(model).bos_token_id
    if bos and start is None:
        raise UsageError(f"model {model.name!a} has no BOS token; leave out --bos")
    ids: Any = task.inputs
    return [[start, *row] if bos else list(row) for row in ids]


def _check_ids(model: LanguageModel, task: Task, tokens: list[list[int]]) -> None:
    flat = np.array(list(chain.from_iterable(tokens)))
    d_vocab = _config(model).d_vocab
    if flat.dtype.kind in "iu" and flat.min() >= 0 and flat.max() < d_vocab:
        return
    for row, ids in zip(task.ids, tokens, strict=True):
        for token in ids:
            if not isinstance(token, int | np.integer) or not 0 <= token < d_vocab:
                whose = "; the tokenizer belongs to another model" if has_texts(task) else ""
                raise DataError(
                    f"example {row!a}: token ids of {model.name!a} are 0..{d_vocab - 1}, got {token!r}{whose}"
                )


def check_position(position: Position, task: Task) -> str | int | np.ndarray:
    """The position that is meant: a word, an int, or an int64 [N].

    Raises:
        UsageError: none of these.
        DataError: an array that does not have one index for each example.
    """
    if position is None:
        position = task.position
    if isinstance(position, str):
        if position not in POSITIONS:
            raise UsageError(f"a position is {', '.join(POSITIONS)} or a token's index; {nearest(position, POSITIONS)}")
        return position
    index = np.asarray(position)
    if index.dtype.kind not in "iu":
        raise UsageError(f"a position is {', '.join(POSITIONS)}, an int or an int for each example; got {position!r}")
    if not index.ndim:
        return int(index)
    if index.shape != (len(task),):
        raise DataError(f"expected one position for each of the {len(task)} examples, got {list(index.shape)}")
    return index.astype(np.int64)


def read_at(position: str | int | np.ndarray, sequences: Sequences, task: Task) -> np.ndarray | None:
    """Index into the sequence (BOS counted) of the token that is read in each example, int64 [N]; None for the mean.

    Raises:
        DataError: an example too short for its index.
    """
    if isinstance(position, str):
        if position == "mean":
            return None
        position = -1 if position == "last" else 0
    lengths = sequences.lengths - sequences.n_bos
    index = np.broadcast_to(np.asarray(position, dtype=np.int64), lengths.shape)
    if (outside := (index < -lengths) | (index >= lengths)).any():
        first = int(outside.argmax())
        cut = " (texts longer than the context were cut)" if sequences.n_cut else ""
        raise DataError(
            f"example {task.ids[first]!a} has {lengths[first]} tokens{cut}: there is no token {index[first]} to read; "
            "choose another position, or leave it out"
        )
    return np.where(index < 0, index + lengths, index) + sequences.n_bos
