"""How many token ids a module takes, and how many tokens: from its config, its embeddings, or by trying."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from probekit.errors import DataError, UsageError
from probekit.models.adapter.config import NO_LIMIT
from probekit.models.wrapped.outside import called, running_module

TRIED_LENGTH = 1024
_VOCAB_FIELDS = ("d_vocab", "vocab_size", "n_vocab")
_CONTEXT_FIELDS = ("n_ctx", "block_size", "n_positions", "max_position_embeddings", "context_length", "max_seq_len")


class Extent(NamedTuple):
    """How many token ids there are, and the tokens of the longest text."""

    d_vocab: int
    n_ctx: int


@torch.no_grad()
def extent_of(module: nn.Module, d_vocab: int | None, n_ctx: int | None) -> Extent:
    """The vocabulary and the context: as given, as the module's config says, or as its embeddings have rows.

    Raises:
        UsageError: no vocabulary is found.
        DataError: the module cannot be run on token ids.
    """
    config = getattr(module, "cfg", None) or getattr(module, "config", None)
    d_vocab = d_vocab or _field(config, _VOCAB_FIELDS)
    n_ctx = n_ctx or _field(config, _CONTEXT_FIELDS)
    of_tokens: list[int] = []
    of_positions: list[int] = []
    ids = torch.tensor([[1, 0]], device=next(module.parameters()).device)  # unlike positions, and unlike zeros

    def keep(table: nn.Module, args: tuple, _: Any) -> None:
        assert isinstance(table, nn.Embedding)
        given = args[0].flatten().tolist() if args and isinstance(args[0], Tensor) else []
        if given == [1, 0]:
            of_tokens.append(table.num_embeddings)
        elif given == [0, 1]:
            of_positions.append(table.num_embeddings)

    handles = [part.register_forward_hook(keep) for part in module.modules() if isinstance(part, nn.Embedding)]
    try:
        with running_module(module):
            called(module, ids)
    finally:
        for handle in handles:
            handle.remove()
    d_vocab = d_vocab or next(iter(of_tokens), None)
    if d_vocab is None:
        raise UsageError(f"how many token ids {type(module).__name__} takes is not known; give d_vocab")
    return Extent(d_vocab, n_ctx or min(of_positions, default=0) or _longest(module, ids))


def _longest(module: nn.Module, ids: Tensor) -> int:
    """The longest text that the module takes, where nothing says it; `NO_LIMIT` if `TRIED_LENGTH` tokens fit."""

    def fits(n: int) -> bool:
        try:
            with running_module(module):
                called(module, ids[:, :1].expand(1, n))
        except DataError:
            return False
        return True

    if fits(TRIED_LENGTH):
        return NO_LIMIT
    low, high = 2, TRIED_LENGTH  # the module takes `low`, and not `high`
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _field(config: Any, names: Sequence[str]) -> int | None:
    values = [getattr(config, name, None) for name in names]
    return next((value for value in values if isinstance(value, int) and value > 0), None)
