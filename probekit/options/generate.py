"""The options of `generate`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from probekit.errors import UsageError
from probekit.options.check import is_real, is_whole
from probekit.options.option import like, option


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen."""

    temperature: float = option(
        0.0,
        "0 takes the likeliest token; above 0, tokens are drawn.",
        notes="Logits are divided by the temperature.",
        metavar="T",
    )
    top_k: int | None = option(None, "Draw from the K likeliest tokens.", notes="Without it, from all.", metavar="K")
    top_p: float | None = option(
        None,
        "Draw from the smallest set of likeliest tokens with total probability P.",
        notes="Without it, from all.",
        metavar="P",
    )
    seed: int = option(0, "Seed of the draws.", notes="Prompt i of several draws with seed + i.", metavar="N", least=0)

    def __post_init__(self) -> None:
        if not is_real(self.temperature) or not 0 <= self.temperature < math.inf:
            raise UsageError(f"temperature is 0 (the likeliest token) or above; got {self.temperature!a:.60}")
        if self.top_k is not None and (not is_whole(self.top_k) or self.top_k < 1):
            raise UsageError(f"top_k is a whole number of at least 1; got {self.top_k!a:.60}")
        if self.top_p is not None and (not is_real(self.top_p) or not 0 < self.top_p <= 1):
            raise UsageError(f"top_p is above 0 and at most 1; got {self.top_p!a:.60}")
        if not is_whole(self.seed) or self.seed < 0:
            raise UsageError(f"seed is a whole number of at least 0; got {self.seed!a:.60}")
        if self.temperature == 0 and (self.top_k, self.top_p) != (None, None):
            raise UsageError("top_k and top_p choose among tokens to draw; give a temperature above 0 with them")


@dataclass(frozen=True)
class _Length:
    """The option that comes first, so that it may be given by position."""

    max_new_tokens: int = option(50, "Maximum number of new tokens.", metavar="N", least=1)


@dataclass(frozen=True)
class GenerateOptions(Sampling, _Length):
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
class ContinuationOptions:
    """How the model continues each text before its activations are kept."""

    generate: int | None = option(
        None,
        "Let the model continue each text by at most N tokens first.",
        notes="Its own tokens are @generated: all@generated, last@generated, mean@generated. Texts and token ids are "
        "kept with the activations; the stop token is not part of them.",
        metavar="N",
        least=1,
    )
    temperature: float = like(Sampling, "temperature")
    top_k: int | None = like(Sampling, "top_k")
    top_p: float | None = like(Sampling, "top_p")
    generate_seed: int = like(
        Sampling, "seed", "Seed of the tokens drawn.", notes="Text i of the task draws with this seed + i."
    )
    stop_tokens: Sequence[int | str] | None = like(GenerateOptions, "stop_tokens")

    def __post_init__(self) -> None:
        if self.generate is not None and (not is_whole(self.generate) or self.generate < 1):
            raise UsageError(f"generate is a whole number of at least 1; got {self.generate!a:.60}")
        sampling_of(self)
        set_here = [field.name for field in fields(ContinuationOptions) if getattr(self, field.name) != field.default]
        if self.generate is None and set_here:
            raise UsageError(f"{set_here[0]} is for texts that the model continues; give generate (--generate N) too")


def sampling_of(options: ContinuationOptions) -> Sampling:
    """How the tokens of continuations are chosen.

    Raises:
        UsageError: an impossible setting.
    """
    return Sampling(options.temperature, options.top_k, options.top_p, options.generate_seed)
