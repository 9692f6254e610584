"""Logits for generation: each prompt by itself, with transformers' own cache where the class has one.

Axes: B batch, L new tokens, V vocab.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from probekit.interventions import TextTokens
from probekit.models.adapter.quiet import quiet

CACHES = ("past_key_values", "cache_params")  # the argument and the field of the output


class RowReader:
    """The rows so far, and the logits after them; `used` is the context that each row's prompt takes.

    A row by itself needs no padding, so every class can generate. With the cache a token costs a forward of one token.
    """

    def __init__(self, model: Any, prompts: list[list[int]], use_cache: bool, among: tuple[Sequence[int], int, Any]):
        self.model = model
        self.numbers, self.n, self.writing = among  # which of how many prompts these are, and their generation
        self.rows = [list(ids) for ids in prompts]
        self.used = [len(ids) for ids in prompts]
        self.new = [list(ids) for ids in prompts]
        self.caches: list[dict[str, Any]] = [{} for _ in prompts]
        self.use_cache = use_cache

    def logits(self, next_B: Tensor | None) -> Tensor:
        """Append `next_B` [B] to the rows, and return the logits [B, V] of the next token."""
        if next_B is not None:
            for row, token in enumerate(next_B.tolist()):
                self.rows[row].append(token)
                self.new[row] = [token]
        with quiet():  # a class says once which kernels it falls back to
            return torch.stack([self._row(row) for row in range(len(self.rows))])

    def keep(self, rows: list[int]) -> None:
        """Go on with these rows alone."""
        for name in ("numbers", "rows", "used", "new", "caches"):
            setattr(self, name, [getattr(self, name)[row] for row in rows])

    def _row(self, row: int) -> Tensor:
        ids = self.new[row] if self.use_cache and self.caches[row] else self.rows[row]
        start = len(self.rows[row]) - len(ids)
        try:
            cache = self.caches[row] if self.use_cache else None
            with self.model.telling(self._tokens(row, start)):
                logits_V, self.caches[row] = self.model.next_logits(ids, start, cache)
        except (RuntimeError, ValueError, TypeError, KeyError, AttributeError, IndexError):
            if not self.use_cache:
                raise
            self.use_cache = False  # some classes' caches do not work for every config; a token then costs more
            return self._row(row)
        return logits_V.cpu()

    def _tokens(self, row: int, start: int) -> TextTokens:
        """The tokens of a row from `start` on, as those of its prompt."""
        index_1L = torch.arange(start, len(self.rows[row]))[None]
        number = torch.tensor([self.numbers[row]])
        return TextTokens(index_1L, torch.tensor([self.used[row]]), number, self.n, index_1L, self.writing)
