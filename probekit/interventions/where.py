"""Which tokens an edit is done at: positions in the texts that a forward runs, under any padding and with a cache.

Axes: B batch, L position in the row, N rows of the edits' tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from probekit.errors import UsageError, nearest
from probekit.text import counted

Word = Literal["all", "last", "generated"]
Positions = Word | int | slice | Tensor | np.ndarray | Sequence[Any]
"""As people give them; see `check_positions`."""


@dataclass(frozen=True, eq=False)
class Writing:
    """One call of generation, which all of its forwards share.

    Attributes:
        tokens: number of a prompt -> the ids that the model reads: the prompt's, and those generated so far.
        stopped: numbers of the prompts that a hook wants no more tokens for; they end before the next one is chosen.
    """

    tokens: dict[int, list[int]] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)


@dataclass(frozen=True, eq=False)
class TextTokens:
    """The tokens of a forward, as tokens of texts.

    Attributes:
        index_BL: the index of each token in its text, a BOS counted, int64; -1 for padding. Generated tokens go on
            counting.
        length_B: tokens of each text, without generated ones, int64.
        row_B: the row of the edits' tensors that belongs to each text, int64.
        n_rows: how many rows there are in all: of this forward, or of all prompts or examples.
        column_BL: where a mask of positions has its entry for each token.
        writing: the generation that runs the forward; None outside of one.
    """

    index_BL: Tensor
    length_B: Tensor
    row_B: Tensor
    n_rows: int
    column_BL: Tensor
    writing: Writing | None = None


def to_tensor(given: Any) -> Tensor | None:
    """A dense tensor with these values, lists of floats in float64; None for anything that is no array of numbers.

    Tensors are returned as they are. Arrays are copied, so read-only ones and views in any order will do.
    """
    if isinstance(given, Tensor):
        is_dense = given.layout == torch.strided and not given.is_quantized and given.device.type != "meta"
        return given if is_dense else None
    try:
        array = np.array(given)
    except (TypeError, ValueError, RuntimeError):  # rows of different lengths, tensors on a GPU
        return None
    if array.dtype.kind not in "biufc":
        return None
    return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C"))


def in_one_line(given: Any) -> str:
    """What was given, in one short line of a message."""
    return " ".join(f"{given!a:.60}".split())


def texts_in(tokens: Tensor, mask: Tensor | None) -> TextTokens | None:
    """One text in each row of tokens [B, L], padded as the mask [B, L] says; None for a mask of another shape."""
    B, L = tokens.shape
    column_BL = torch.arange(L, device=tokens.device).expand(B, L)
    rows_B = torch.arange(B, device=tokens.device)
    if mask is None:
        return TextTokens(column_BL, torch.full_like(rows_B, L), rows_B, B, column_BL)
    if not isinstance(mask, Tensor) or mask.shape != tokens.shape:
        return None
    real = mask.to(tokens.device).bool()
    index_BL = torch.where(real, real.long().cumsum(1) - 1, -1)
    return TextTokens(index_BL, real.sum(1), rows_B, B, column_BL)


def check_positions(positions: Positions) -> Any:
    """Positions as "all", "last", "generated", an int, a slice, a mask (bool tensor) or one index per row (int64 [N]).

    Raises:
        UsageError: anything else.
    """
    forms = 'positions are "all", "last", "generated", an index, a slice, a mask of bools or one index for each row'
    if isinstance(positions, str):
        if positions not in get_args(Word):
            raise UsageError(f"{forms}; {nearest(positions, get_args(Word))}")
        return positions
    if isinstance(positions, slice):
        try:
            range(0)[positions]
        except (TypeError, ValueError):
            raise UsageError(
                f"a slice of positions has whole numbers, and a step other than 0; got {positions}"
            ) from None
        return positions
    given = None if isinstance(positions, bytes) else to_tensor(positions)
    if given is not None and given.numel():
        whole = not given.is_floating_point() and not given.is_complex() and given.dtype != torch.bool
        if given.dtype == torch.bool and given.dim() in (1, 2):
            return given
        if whole and given.dim() == 1:
            return given.long()
        if whole and given.dim() == 0:
            return int(given)
    raise UsageError(f"{forms}; got {in_one_line(positions)}")


def tokens_at(positions: Any, texts: TextTokens) -> Tensor | None:
    """The tokens at checked positions, bool [B, L]; None for all.

    Raises:
        UsageError: an index outside a text, or a mask or a list for another number of texts.
    """
    if isinstance(positions, str):
        if positions == "all":
            return None
        length_B1 = texts.length_B[:, None]
        return texts.index_BL == length_B1 - 1 if positions == "last" else texts.index_BL >= length_B1
    if isinstance(positions, slice):
        at_BL = torch.zeros_like(texts.index_BL, dtype=torch.bool)
        for row, length in enumerate(texts.length_B.tolist()):
            chosen = torch.tensor([*range(length)[positions]], device=at_BL.device, dtype=torch.long)
            at_BL[row] = torch.isin(texts.index_BL[row], chosen)
        return at_BL
    if isinstance(positions, int):
        return _at_index(torch.full_like(texts.length_B, positions), texts)
    if positions.dtype == torch.bool:
        return _in_mask(positions.to(texts.index_BL.device), texts)
    if len(positions) != texts.n_rows:
        raise UsageError(f"expected one position for each of {counted(texts.n_rows, 'text')}; got {len(positions)}")
    return _at_index(positions.to(texts.row_B.device)[texts.row_B], texts)


def _at_index(index_B: Tensor, texts: TextTokens) -> Tensor:
    outside = (index_B < -texts.length_B) | (index_B >= texts.length_B)
    if outside.any():
        row = int(outside.nonzero()[0])
        raise UsageError(
            f"text {int(texts.row_B[row])} has {counted(int(texts.length_B[row]), 'token')}; got position "
            f"{int(index_B[row])}"
        )
    return texts.index_BL == torch.where(index_B < 0, index_B + texts.length_B, index_B)[:, None]


def _in_mask(mask: Tensor, texts: TextTokens) -> Tensor:
    mask_NL = mask.expand(texts.n_rows, -1) if mask.dim() == 1 else mask
    width = int(texts.length_B.max())
    if len(mask_NL) != texts.n_rows or mask_NL.shape[1] < width:
        raise UsageError(
            f"a mask of positions has an entry for each token of {counted(texts.n_rows, 'text')}; got "
            f"{list(mask.shape)} for texts of up to {counted(width, 'token')}"
        )
    column_BL = texts.column_BL.clamp(0, mask_NL.shape[1] - 1)
    at_BL = mask_NL[texts.row_B].gather(1, column_BL)
    return at_BL & (texts.index_BL >= 0) & (texts.index_BL < texts.length_B[:, None])
