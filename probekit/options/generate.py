"""The options of `generate` and of training small models."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from probekit.errors import UsageError
from probekit.options.check import is_real
from probekit.options.kinds import POSITIVE, Kind, number, whole
from probekit.options.option import CHOSEN, CONTINUED, Options, like, option


@dataclass(frozen=True)
class Sampling(Options, heading=CONTINUED):
    """How the next token is chosen."""

    temperature: float = option(
        0.0,
        "0 takes the likeliest token; above 0, tokens are drawn.",
        notes="Logits are divided by the temperature.",
        kind=number("0 (the likeliest token) or above", lambda value: 0 <= value < math.inf, "T"),
    )
    top_k: int | None = option(None, "Draw from the K likeliest tokens.", whole(1, "K"), notes="Without it, from all.")
    top_p: float | None = option(
        None,
        "Draw from the smallest set of likeliest tokens with total probability P.",
        notes="Without it, from all.",
        kind=number("above 0 and at most 1", lambda value: 0 < value <= 1, "P"),
    )
    seed: int = option(0, "Seed of the draws.", notes="Prompt i of several draws with seed + i.", kind=whole(0))


@dataclass(frozen=True)
class _Length(Options, heading=CONTINUED):
    """The option that comes first, so that it may be given by position."""

    max_new_tokens: int = option(50, "Maximum number of new tokens.", kind=whole(1))


@dataclass(frozen=True)
class GenerateOptions(Sampling, _Length, heading=CONTINUED):
    """`Sampling`, where a continuation ends, and what precedes it."""

    stop_tokens: Sequence[int | str] | None = option(
        None,
        "Token to stop at, or its id if the model has no tokenizer; may be repeated.  "
        "[default: the model's end-of-text token]",
        notes="In Python a list.",
        metavar="TOKEN",
        flag="--stop",
        repeats=True,
    )
    use_cache: bool = option(
        True, "Keep the keys and values of earlier tokens instead of computing them again at each step.", flag=None
    )
    bos: bool | None = option(
        None,
        "Put the model's BOS token before the text.  [default: no; Marian's </s> after it: yes]",
        notes="Only for prompts that are texts.",
        flag="--bos/--no-bos",
    )


@dataclass(frozen=True, kw_only=True)
class ContinuationOptions(Options, heading=CONTINUED):
    """How the model continues each text before its activations are kept."""

    generate: int | None = option(
        None,
        "Let the model continue each text by at most N tokens first.",
        notes="Its own tokens are @generated: all@generated, last@generated, mean@generated. Texts and token ids are "
        "kept with the activations; the stop token is not part of them.",
        kind=whole(1),
    )
    temperature: float = like(Sampling, "temperature")
    top_k: int | None = like(Sampling, "top_k")
    top_p: float | None = like(Sampling, "top_p")
    generate_seed: int = like(
        Sampling, "seed", "Seed of the tokens drawn.", notes="Text i of the task draws with this seed + i."
    )
    stop_tokens: Sequence[int | str] | None = like(GenerateOptions, "stop_tokens")


def sampling_of(options: ContinuationOptions) -> Sampling:
    """How the tokens of continuations are chosen."""
    return Sampling(options.temperature, options.top_k, options.top_p, options.generate_seed)


def _betas(_: str, value: Any) -> Any:
    if not isinstance(value, Sequence) or len(value) != 2 or not all(is_real(one) and 0 <= one < 1 for one in value):
        raise UsageError(f"betas are two numbers of at least 0 and below 1; got {value!a:.60}")
    return value


@dataclass(frozen=True)
class TrainingSettings(Options, heading=CHOSEN):
    """How a model is trained: AdamW, with a linear warm-up and then a cosine to zero."""

    steps: int = option(1500, "Number of batches.", whole(1))
    batch_size: int = option(128, "Examples in a batch.", whole(1))
    learning_rate: float = option(2e-3, "Learning rate at its peak.", POSITIVE, metavar="RATE")
    warm_up_steps: int = option(100, "Steps until the peak.", whole(0))
    weight_decay: float = option(
        0.01,
        "Weight decay of AdamW, on every weight.",
        number("a number of at least 0", lambda value: 0 <= value < math.inf, "NUMBER"),
        flag=None,
    )
    betas: tuple[float, float] = option((0.9, 0.95), "Betas of AdamW.", Kind(_betas), flag=None)
    clip_norm: float = option(1.0, "Gradients with a larger norm are scaled down to it.", POSITIVE, flag=None)
    seed: int = option(
        0,
        "Seed of the initial weights and the batches.",
        notes="The training itself draws nothing.",
        kind=whole(0),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warm_up_steps > self.steps:
            raise UsageError(f"warm_up_steps is at most steps, {self.steps}; got {self.warm_up_steps}")
