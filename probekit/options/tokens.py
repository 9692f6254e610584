"""The options of the token by layer view."""

from dataclasses import dataclass

from probekit.options.check import check_fpr, check_whole
from probekit.options.option import option


@dataclass(frozen=True, kw_only=True)
class TokenOptions:
    """Whether the score of every token is shown, and of which texts."""

    tokens: bool = option(
        True,
        "Show the score of every token at every layer, of some test texts.",
        flag="--no-tokens",
        off="Leave out the view of every token's score by layer.",
        notes="Unless the store has all tokens, the model is run over the texts.",
    )
    texts: int = option(
        100,
        "Test texts whose tokens are shown: mistakes, the least and the most confident, others at random.",
        metavar="N",
        least=1,
    )
    model: str | None = option(
        None,
        "Model that reads these texts.  [default: the one that made the store, if it needs no download]",
        metavar="NAME",
    )

    fpr: float | None = option(
        None,
        "Centre the token colours on the threshold chosen on validation for this false-positive rate, such as 0.01.",
        notes="Mistakes are then those at this threshold.  [default: even odds]",
        metavar="RATE",
    )

    def __post_init__(self) -> None:
        check_whole("texts", self.texts, least=1)
        check_fpr(self.fpr)
