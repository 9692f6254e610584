"""Minimal pairs: a clean and a corrupted text, and the answer of each.

A file has a row for each pair, in one of two forms:

    clean, corrupted, clean_answer, corrupted_answer    the texts end before the answer, or have a [MASK]
    sentence_good, sentence_bad                         BLiMP's (Warstadt et al. 2020): the text is what the sentences
                                                        share, the answers are the first tokens that differ

Axes: N pairs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from probekit.causal.behaviour.answers import answer_ids, answer_tokens
from probekit.errors import DataError, UsageError
from probekit.models.base import LanguageModel
from probekit.options.check import check_among
from probekit.tasks.tables.data_table import DataTable
from probekit.tasks.tables.readers import read_table
from probekit.text import counted, listed

Align = Literal["tokens", "last"]
TEXTS = ("clean", "corrupted", "clean_answer", "corrupted_answer")
SENTENCES = ("sentence_good", "sentence_bad")


@dataclass(frozen=True, eq=False)
class MinimalPairs:
    """Pairs of texts as token ids, context tokens included.

    Attributes:
        clean: ids of each clean text.
        corrupted: ids of each corrupted text; those of BLiMP's form equal the clean ones.
        own_N: the token that answers the clean text, int64 [N].
        other_N: the token that answers the corrupted text.
        clean_answer_N: index of the clean text's answer token.
        corrupted_answer_N: index of the corrupted text's answer token.
        names: of each pair, for errors: "pairs.csv, line 3".
        align: "tokens": the texts of a pair are equally long, and their tokens correspond one by one; "last": only the
            answer tokens correspond.
        groups: of each pair, [N]; complete groups are resampled for intervals. None where each pair is a unit.
        left_out: why each row was left out, "pairs.csv, line 3: ...".
    """

    clean: list[list[int]]
    corrupted: list[list[int]]
    own_N: Tensor
    other_N: Tensor
    clean_answer_N: Tensor
    corrupted_answer_N: Tensor
    names: list[str]
    align: Align = "tokens"
    groups: np.ndarray | None = None
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.clean)

    @property
    def varied(self) -> int:
        """How many positions, counted from the last, have different tokens in different clean texts."""
        if self.align == "last":
            return 0  # the answer token alone is patched
        columns = zip_longest(*(reversed(text) for text in self.clean))
        return sum(len(set(column)) > 1 for column in columns)

    @property
    def can_patch(self) -> bool:
        """Whether the texts of each pair differ; those of BLiMP's form share one text."""
        return all(clean != corrupted for clean, corrupted in zip(self.clean, self.corrupted, strict=True))


def load_pairs(
    path: str | Path,
    model: LanguageModel,
    align: Align = "tokens",
    bos: bool | None = None,
    on_bad_row: Literal["error", "skip"] = "error",
) -> MinimalPairs:
    """Read a file of minimal pairs: CSV, TSV, JSONL or Parquet; see above.

    Args:
        path: the file.
        model: the model that will read the texts.
        align: "tokens" refuses pairs whose texts have different numbers of tokens; "last" takes them.
        bos: whether texts get context tokens; None: only for models that were never trained without, such as BERT.
        on_bad_row: "skip" leaves out the rows that are no pairs, and says why in `left_out`.

    Raises:
        UsageError: an unknown `align` or `on_bad_row`, or a file of an unknown format.
        DataError: the file cannot be read, lacks a column, or a row is not a pair (with "skip": no row is); the
            message names the row.
    """
    if align not in ("tokens", "last"):
        raise UsageError(f"align is tokens or last, got {align!a}")
    check_among("on_bad_row", on_bad_row, ("error", "skip"))
    path, tokenizer = Path(path), model.need_tokenizer()
    if bos is None:
        bos = tokenizer.sep_token_id is not None and not model.causal
    table = read_table(path)
    if table.bad and on_bad_row == "error":
        row = min(table.bad)
        raise DataError(f"{table.where(row)}: {table.bad[row][1]}")
    read = _with_answers if set(TEXTS) <= set(table.columns) else _of_sentences
    columns = TEXTS if read is _with_answers else SENTENCES
    if not set(columns) <= set(table.columns):
        raise DataError(
            f"{table.name} has the columns {listed(table.columns)}; expected {', '.join(TEXTS)}, or "
            f"{' and '.join(SENTENCES)}"
        )
    names = [table.where(row) for row in range(len(table.lines))]
    given = [*zip(*map(table.column, columns), strict=True)]
    if on_bad_row == "skip":
        kept, left_out = _pairs_among(table, given, lambda cells, name: read(model, [cells], [name], align, bos))
        found = read(model, [list(given[row]) for row in kept], [names[row] for row in kept], align, bos)
        return replace(found, left_out=tuple(left_out))
    return read(model, [_texts_of(table, row, cells) for row, cells in enumerate(given)], names, align, bos)


def _pairs_among(
    table: DataTable, given: list[tuple[Any, ...]], read: Callable[[list[str], str], Any]
) -> tuple[list[int], list[str]]:
    """The rows that are pairs, and why each other row is none."""
    kept: list[int] = []
    left_out: list[str] = []
    for row, cells in enumerate(given):
        try:
            if row in table.bad:
                raise DataError(f"{table.where(row)}: {table.bad[row][1]}")
            read(_texts_of(table, row, cells), table.where(row))
            kept.append(row)
        except DataError as error:
            left_out.append(str(error))
    if left_out and not kept:
        raise DataError(f"no row of {table.name} is a pair; the first: {left_out[0]}")
    return kept, left_out


def _texts_of(table: DataTable, row: int, cells: Sequence[Any]) -> list[str]:
    """The cells of a row, none of them empty."""
    for cell in cells:
        if not isinstance(cell, str) or not cell.strip():
            raise DataError(f"{table.where(row)}: expected a text in every column of a pair, got {cell!a:.60}")
    return list(cells)


def _with_answers(
    model: LanguageModel, cells: list[list[str]], names: list[str], align: Align, bos: bool
) -> MinimalPairs:
    texts = [_encoded(model, [row[i] for row in cells], names, bos) for i in (0, 1)]
    at = answer_tokens(model, texts[0], names), answer_tokens(model, texts[1], names)
    own, other = [], []
    for name, (clean, corrupted, *answers) in zip(names, cells, strict=True):
        try:
            first, second = answer_ids(model, answers, [clean, corrupted])
        except (DataError, UsageError) as error:
            raise DataError(f"{name}: {error}") from None
        own.append(first)
        other.append(second)
    for name, clean, corrupted in zip(names, *texts, strict=True):
        if clean == corrupted:
            raise DataError(f"{name}: the clean and the corrupted text are the same; give texts that differ")
    _check_aligned(texts[0], texts[1], names, align)
    return MinimalPairs(texts[0], texts[1], torch.tensor(own), torch.tensor(other), *at, names, align)


def _of_sentences(
    model: LanguageModel, cells: list[list[str]], names: list[str], align: Align, bos: bool
) -> MinimalPairs:
    """BLiMP's form: the shared tokens are both texts."""
    if not model.causal:
        raise DataError(
            f"pairs of {' and '.join(SENTENCES)} are for models that predict the next token; give {model.name} a file "
            f"with {', '.join(TEXTS)}"
        )
    prefixes, own, other = [], [], []
    for name, good, bad in zip(
        names, *(_encoded(model, [row[i] for row in cells], names, bos) for i in (0, 1)), strict=True
    ):
        n = next((i for i, (a, b) in enumerate(zip(good, bad, strict=False)) if a != b), None)
        if n is None:
            raise DataError(
                f"{name}: expected two sentences that differ in a token, got one that begins with the other"
            )
        if not n:
            raise DataError(f"{name}: the sentences differ in their first token; expected a beginning that they share")
        prefixes.append(good[:n])
        own.append(good[n])
        other.append(bad[n])
    at = answer_tokens(model, prefixes)
    return MinimalPairs(prefixes, prefixes, torch.tensor(own), torch.tensor(other), at, at, names, align)


def _encoded(model: LanguageModel, texts: list[str], names: list[str], bos: bool) -> list[list[int]]:
    """The ids of each text, not longer than the context."""
    tokenizer, n_ctx = model.need_tokenizer(), model.cfg.n_ctx
    try:
        ids = tokenizer.encode_batch(texts, bos=bos)
    except DataError:
        for name, text in zip(names, texts, strict=True):
            try:
                tokenizer.encode(text, bos=bos)
            except DataError as error:
                raise DataError(f"{name}: {error}") from None
        raise
    for name, each in zip(names, ids, strict=True):
        if len(each) > n_ctx:
            raise DataError(f"{name}: the text has {len(each):,} tokens and the context {n_ctx:,}; shorten it")
    return ids


def _check_aligned(clean: list[list[int]], corrupted: list[list[int]], names: list[str], align: Align) -> None:
    """Raise a DataError unless the texts of each pair have as many tokens, or only the answers need to align."""
    unequal = [i for i, pair in enumerate(zip(clean, corrupted, strict=True)) if len(pair[0]) != len(pair[1])]
    if not unequal or align == "last":
        return
    i = unequal[0]
    more = f" (as have {len(unequal):,} of {counted(len(names), 'pair')})" if len(unequal) > 1 else ""
    raise DataError(
        f"{names[i]}: the clean text has {counted(len(clean[i]), 'token')} and the corrupted one "
        f"{len(corrupted[i])}, so they do not align{more}; correct them, or take --align last"
    )
