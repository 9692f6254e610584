"""Training examples: token ids and their targets. Nothing here needs torch."""

from dataclasses import dataclass

IGNORE = -100  # a target that is not learned; the default of torch's cross-entropy


@dataclass
class Example:
    """One training text.

    Args:
        tokens: ids that the model reads; the decoder's input where there is a source.
        targets: the id to predict at each token, or IGNORE; as many as tokens.
        label: the class of the text, for models that classify.
        source: the encoder's input, for an encoder-decoder.
    """

    tokens: list[int]
    targets: list[int]
    label: int | None = None
    source: list[int] | None = None
