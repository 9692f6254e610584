"""The options of `compare` and `probekit compare`."""

from dataclasses import dataclass
from typing import Literal, get_args

from probekit.options.check import check_among, check_whole
from probekit.options.option import option

LayerAxis = Literal["layer", "depth"]
CompareBy = Literal["run", "step"]
ComparedPairs = Literal["first", "previous", "all"]


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """How runs are put side by side."""

    axis: LayerAxis = option(
        "layer",
        "x axis: layer, or depth, the share of the model's blocks that come before (0 to 1).",
        notes="Depth makes models with different numbers of layers comparable.",
    )
    by: CompareBy = option(
        "run",
        "run: a curve for each run; step: a heatmap of layers and training steps, for checkpoints of one model.",
        notes='The step is the number in the name of the revision, such as "step1000".',
    )
    pairs: ComparedPairs | None = option(
        None,
        "Compare each run with the first, with the previous one, or all with one another.  [default: first; with --by "
        "step previous]",
        notes="P-values are corrected over all differences that are made.",
    )
    seed: int = option(0, "Seed of the resamples and permutations.", metavar="N", least=0)

    def __post_init__(self) -> None:
        check_among("axis", self.axis, get_args(LayerAxis))
        check_among("by", self.by, get_args(CompareBy))
        check_among("pairs", self.pairs, (None, *get_args(ComparedPairs)))
        object.__setattr__(self, "seed", check_whole("seed", self.seed, 0))
