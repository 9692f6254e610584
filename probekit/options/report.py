"""The options of what results become: `write_report`, the view of tokens by layer, and `compare`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from probekit.options.engine import PartsOptions
from probekit.options.kinds import RATE, choice, whole
from probekit.options.option import OUTPUT, Options, option

LayerAxis = Literal["layer", "depth"]
CompareBy = Literal["run", "step"]
ComparedPairs = Literal["first", "previous", "all"]


@dataclass(frozen=True, kw_only=True)
class TokenOptions(Options, heading=OUTPUT):
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
        kind=whole(1),
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
        kind=RATE,
    )


@dataclass(frozen=True, kw_only=True)
class ReportOptions(TokenOptions, PartsOptions, heading=OUTPUT):
    """What the page shows."""

    title: str | None = option(None, "Title of the page.  [default: label, point, probe and model]", metavar="TEXT")
    store: Path | None = option(
        None,
        "The store that the results are of, where they are in another folder (train-probe --out).  [default: the store "
        "that holds them]",
        metavar="STORE",
    )


@dataclass(frozen=True, kw_only=True)
class CompareOptions(Options, heading=OUTPUT):
    """How runs are put side by side."""

    axis: LayerAxis = option(
        "layer",
        "x axis: layer, or depth, the share of the model's blocks that come before (0 to 1).",
        choice("layer", "depth"),
        notes="Depth makes models with different numbers of layers comparable.",
    )
    by: CompareBy = option(
        "run",
        "run: a curve for each run; step: a heatmap of layers and training steps, for checkpoints of one model.",
        choice("run", "step"),
        notes='The step is the number in the name of the revision, such as "step1000".',
    )
    pairs: ComparedPairs | None = option(
        None,
        "Compare each run with the first, with the previous one, or all with one another.  [default: first; with --by "
        "step previous]",
        choice("first", "previous", "all"),
        notes="P-values are corrected over all differences that are made.",
    )
    seed: int = option(0, "Seed of the resamples and permutations.", kind=whole(0))
