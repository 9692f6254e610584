"""The settings of the training loop for small models."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from probekit.errors import UsageError
from probekit.options.check import is_real
from probekit.options.option import option


@dataclass(frozen=True)
class TrainingSettings:
    """How a model is trained: AdamW, with a linear warm-up and then a cosine to zero."""

    steps: int = option(1500, "Number of batches.", metavar="N")
    batch_size: int = option(128, "Examples in a batch.", metavar="N")
    learning_rate: float = option(2e-3, "Learning rate at its peak.", metavar="RATE")
    warm_up_steps: int = option(100, "Steps until the peak.", metavar="N")
    weight_decay: float = option(0.01, "Weight decay of AdamW, on every weight.", flag=None)
    betas: tuple[float, float] = option((0.9, 0.95), "Betas of AdamW.", flag=None)
    clip_norm: float = option(1.0, "Gradients with a larger norm are scaled down to it.", flag=None)
    seed: int = option(
        0,
        "Seed of the initial weights and the batches.",
        notes="The training itself draws nothing.",
        metavar="N",
    )

    def __post_init__(self) -> None:
        for name, least in {"steps": 1, "batch_size": 1, "warm_up_steps": 0, "seed": 0}.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UsageError(f"{name} is a whole number of at least {least}; got {value!a:.60}")
        if self.warm_up_steps > self.steps:
            raise UsageError(f"warm_up_steps is at most steps, {self.steps}; got {self.warm_up_steps}")
        for name in ("learning_rate", "clip_norm"):
            value = getattr(self, name)
            if not is_real(value) or not 0 < value < math.inf:
                raise UsageError(f"{name} is a positive number; got {value!a:.60}")
        if not is_real(self.weight_decay) or not 0 <= self.weight_decay < math.inf:
            raise UsageError(f"weight_decay is not negative; got {self.weight_decay!a:.60}")
        if not _are_betas(self.betas):
            raise UsageError(f"betas are two numbers of at least 0 and below 1; got {self.betas!a:.60}")


def _are_betas(value: Any) -> bool:
    return isinstance(value, Sequence) and len(value) == 2 and all(is_real(beta) and 0 <= beta < 1 for beta in value)
