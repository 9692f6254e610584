"""The settings of generation and training, checked where they are made; nothing here needs torch.

So a command that asks for the impossible is answered at once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from probekit.errors import UsageError


def is_whole(value: Any) -> bool:
    """Whether it is a whole number, of Python or NumPy."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether it is a real number, of Python or NumPy."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _are_betas(value: Any) -> bool:
    return isinstance(value, Sequence) and len(value) == 2 and all(is_number(beta) and 0 <= beta < 1 for beta in value)


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Args:
        temperature: 0 takes the likeliest token; above, logits are divided by it and a token is drawn.
        top_k: draw from the k likeliest tokens; None from all.
        top_p: draw from the smallest set of likeliest tokens that holds this probability; None from all.
        seed: of what is drawn.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self):
        if not is_number(self.temperature) or not 0 <= self.temperature < math.inf:
            raise UsageError(f"temperature is 0 (the likeliest token) or above; got {self.temperature!a:.60}")
        if self.top_k is not None and (not is_whole(self.top_k) or self.top_k < 1):
            raise UsageError(f"top_k is a whole number of at least 1; got {self.top_k!a:.60}")
        if self.top_p is not None and (not is_number(self.top_p) or not 0 < self.top_p <= 1):
            raise UsageError(f"top_p is above 0 and at most 1; got {self.top_p!a:.60}")
        if not is_whole(self.seed) or self.seed < 0:
            raise UsageError(f"seed is a whole number of at least 0; got {self.seed!a:.60}")
        if self.temperature == 0 and (self.top_k, self.top_p) != (None, None):
            raise UsageError("top_k and top_p choose among tokens to draw; give a temperature above 0 with them")


@dataclass(frozen=True)
class TrainingSettings:
    """How a model is trained.

    Args:
        steps: batches in all.
        batch_size: examples a batch.
        learning_rate: of AdamW, at the schedule's peak.
        warm_up_steps: steps until the peak, linear from zero; then a cosine to zero at the end.
        weight_decay: of AdamW, on every weight.
        betas: of AdamW.
        clip_norm: gradients of a larger norm are scaled down to it.
        seed: of the first weights and of the batches, for whoever makes them; the loop itself draws nothing.
    """

    steps: int = 1500
    batch_size: int = 128
    learning_rate: float = 2e-3
    warm_up_steps: int = 100
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.95)
    clip_norm: float = 1.0
    seed: int = 0

    def __post_init__(self):
        for name, least in {"steps": 1, "batch_size": 1, "warm_up_steps": 0, "seed": 0}.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UsageError(f"{name} is a whole number of at least {least}; got {value!a:.60}")
        if self.warm_up_steps > self.steps:
            raise UsageError(f"warm_up_steps is at most steps, {self.steps}; got {self.warm_up_steps}")
        for name in ("learning_rate", "clip_norm"):
            value = getattr(self, name)
            if not is_number(value) or not 0 < value < math.inf:
                raise UsageError(f"{name} is a positive number; got {value!a:.60}")
        if not is_number(self.weight_decay) or not 0 <= self.weight_decay < math.inf:
            raise UsageError(f"weight_decay is not negative; got {self.weight_decay!a:.60}")
        if not _are_betas(self.betas):
            raise UsageError(f"betas are two numbers of at least 0 and below 1; got {self.betas!a:.60}")

    def learning_rate_at(self, step: int) -> float:
        """The rate of a step, counted from 0: linear up to the peak, then half a cosine down to zero."""
        if step < self.warm_up_steps:
            return self.learning_rate * ((step + 1) / self.warm_up_steps)
        done = (step - self.warm_up_steps) / (self.steps - self.warm_up_steps)
        return self.learning_rate * ((1 + math.cos(math.pi * done)) / 2)
