"""What a self-test compares, and the errors it finds."""

from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor

from probekit.models.base import LanguageModel
from probekit.verification.near_ties import NearTies

TextActivations = Mapping[str, Tensor]  # full name of a point -> one text's activations there


class Errors:
    """For every check and point, the largest difference and the largest reference value over all texts.

    Attributes:
        largest_score: of attention in any layer, for models that have no point for scores.
    """

    def __init__(self) -> None:
        self.largest_score = 0.0
        self._difference: dict[tuple[str, str], float] = defaultdict(float)
        self._size: dict[tuple[str, str], float] = defaultdict(float)
        self._skipped: set[tuple[str, str]] = set()

    def add(self, check: str, name: str, got: Tensor, wanted: Tensor) -> None:
        """Add one text's values; equal infinities (masked scores) count as equal, NaN as infinitely different."""
        dtype = torch.promote_types(got.dtype, wanted.dtype)
        got, wanted = got.to(wanted.device, dtype), wanted.to(dtype)
        difference = torch.where(got == wanted, 0, (got - wanted).abs()).nan_to_num(nan=torch.inf).max().item()
        size = wanted.abs().masked_fill(~wanted.isfinite(), 0).max().item()
        self._difference[check, name] = max(self._difference[check, name], difference)
        self._size[check, name] = max(self._size[check, name], size)

    def fail(self, check: str, name: str) -> None:
        """Record a check that could not be computed."""
        self._difference[check, name] = torch.inf

    def skip(self, check: str, name: str) -> None:
        """Record that a check compared no token of some text at a point."""
        self._skipped.add((check, name))

    def is_unchecked(self, check: str, name: str) -> bool:
        """Whether a check compared no token of any text at a point that it reaches."""
        return (check, name) in self._skipped and (check, name) not in self._difference

    def has(self, name: str) -> bool:
        """Whether a point was compared with its reference."""
        return ("reference", name) in self._size

    def size(self, name: str) -> float:
        """The largest reference value of a point."""
        return self._size["reference", name]

    def relative(self, check: str, name: str) -> float | None:
        """The relative error; None if the check does not cover the point."""
        if (check, name) not in self._difference:
            return None
        difference, size = self._difference[check, name], self._size[check, name]
        return difference and (difference / size if size else torch.inf)


class ComparedRuns:
    """Runs of one kind compared with others, each text in the order of the forward.

    Args:
        check: one of `CHECKS`.
        model: the one under test.
        errors: takes the figures.
    """

    def __init__(self, check: str, model: LanguageModel, errors: Errors) -> None:
        self.check, self.errors, self.ties = check, errors, NearTies(model)

    def add(self, text: int, name: str, got: Tensor, wanted: TextActivations, last: bool = False) -> None:
        """Compare one text at one point, up to the token from which rounding chose other experts.

        Args:
            text: which.
            name: full name of the point.
            got: [L, D], or [H, L, M] for scores and patterns; [D] with `last`.
            wanted: the other run's activations of all tokens, by point.
            last: whether `got` is of the last token alone.
        """
        length = wanted[name].shape[-2]
        first, got = (length - 1, got.reshape(1, -1)) if last else (0, got)
        self.ties.see(text, name, got, wanted, first)
        n = self.ties.comparable(text, name, length) - first
        if n > 0:
            self.errors.add(self.check, name, got.narrow(-2, 0, n), wanted[name].narrow(-2, first, n))
        else:
            self.errors.skip(self.check, name)
