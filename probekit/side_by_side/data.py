"""A comparison as data: the runs with their curves, the differences between them, and the means over seeds."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Required, TypedDict

import numpy as np

from probekit.errors import DataError
from probekit.evaluation.results.meta import MOST_LAYERS, Headline, Layer, LayerCount, Penalty, PointName
from probekit.files.records import As, Count, Ends, Must, Share
from probekit.points import Place

PAIRED, UNPAIRED = "paired", "unpaired"
MCNEMAR, BOOTSTRAP, INDEPENDENT = "McNemar", "bootstrap", "independent"

Column = Annotated[int, Must("the number of a layer, or -1 before all", lambda x: -1 <= x <= MOST_LAYERS)]


class _ComparisonAsked(TypedDict, total=False):
    """What `probekit compare` was asked."""

    runs: Required[list[str]]
    axis: Literal["layer", "depth"]
    by: Literal["run", "step"]
    pairs: Literal["first", "previous", "all"] | None
    seed: Count


class ComparisonMeta(TypedDict, total=False):
    """What a comparison records."""

    headline: Required[Headline]
    n_classes: Required[Count]
    axis: Required[Literal["layer", "depth"]]
    by: Required[Literal["run", "step"]]
    pairs: Required[Literal["first", "previous", "all"]]
    shared: Required[dict[str, str]]
    notes: Required[list[str]]
    asked: _ComparisonAsked


@dataclass(frozen=True)
class ComparedPlace:
    """One place of a run's curve, on test.

    Attributes:
        point: short name, such as "resid_pre".
        layer: None for a point that belongs to no layer.
        x: where it is on the layer axis: the layer; of the output the number of layers.
        depth: the share of the model's blocks that come before it, 0 to 1.
        value: the headline on test.
        low: lower end of its 95% interval; None where there is none.
        high: upper end.
        band: (low, high) of the band of the complete curve; None where there is none.
        above_chance: of checkpoints, the p-value against chance, corrected for all cells of the grid; else None.
        C: of the probe; None for a probe without one, and in comparisons of older versions.
        in_best_set: whether the place is statistically tied with the best of the run on test.
        is_at_edge: whether C is the largest of the grid, so that a larger one may be better still.
    """

    point: PointName
    layer: Layer | None
    x: Column
    depth: Share
    value: float
    low: float | None
    high: float | None
    band: Ends | None
    above_chance: Share | None = None
    C: Penalty | None = None
    in_best_set: bool | None = None
    is_at_edge: bool = False

    @property
    def place(self) -> str:
        """Point and layer in one word: "resid_pre.5"."""
        return str(Place(self.point, self.layer))


@dataclass(frozen=True)
class ComparedRun:
    """A run: what it is of, its curve, and the score to quote.

    Attributes:
        name: the facts in which it differs from the other runs, or the name that was given.
        path: of the folder of results, or its address on the Hub; None for results that were passed in Python.
        facts: model, task, label, point, position, probe, seed, revision and more, as text.
        step: of a checkpoint; None for any other model.
        headline: the metric.
        n_layers: of the model.
        n_test: rows of the test split.
        places: the curve.
        best: number of the place that is quoted; None where no layer was selected, and with nested folds.
        given: whether that place was named rather than selected on validation.
        estimate: the headline to quote, on rows that selected nothing; None where no layer was selected.
        interval: its 95% interval.
        chance: the headline on test of the majority class of train (the mean, for a regression); None if unknown.
        converged: whether the fits of the quoted place converged.
    """

    name: str
    path: str | None
    facts: dict[str, str]
    step: Count | None
    headline: Headline
    n_layers: LayerCount
    n_test: Count
    places: list[ComparedPlace]
    best: Count | None
    given: bool
    estimate: float | None
    interval: Ends | None
    chance: float | None
    converged: bool

    @property
    def quoted(self) -> ComparedPlace | None:
        """The place of the estimate, if it is of one place."""
        return None if self.best is None else self.places[self.best]


@dataclass(frozen=True)
class RunDifference:
    """The estimate of one run minus that of another.

    Attributes:
        run: number of the run.
        minus: number of the run that is subtracted.
        difference: on the rows in common if it is paired, else the difference of the two estimates.
        interval: with 95%.
        p_value: of no difference; None where there is no interval.
        corrected: the same, corrected for all differences of the comparison (Holm 1979).
        kind: "paired" on the same test rows, or "unpaired".
        test: that the p-value is of: "McNemar", "bootstrap" or "independent".
        n: test rows in common.
        why: why it is not paired; or that only a part of the rows are in common.
        few: the sentence that says so where the rows have few groups or few of a class, or too few for an interval.
    """

    run: Count
    minus: Count
    difference: float
    interval: Ends | None
    p_value: Share | None
    corrected: Share | None
    kind: Literal["paired", "unpaired"]
    test: Literal["McNemar", "bootstrap", "independent"]
    n: Count
    why: str = ""
    few: str = ""


@dataclass(frozen=True)
class SeedGroup:
    """Runs that differ in their seeds alone.

    Attributes:
        name: the facts in which it differs from the other groups.
        runs: their numbers.
        mean: of their estimates.
        spread: standard deviation of their estimates over the seeds; None for a single run.
        difference: mean minus the first group's mean; None for the first.
        interval: of the difference over seeds, with 95% (Welch 1947); None with a single run in either group.
    """

    name: str
    runs: list[Count]
    mean: float
    spread: float | None
    difference: float | None = None
    interval: Ends | None = None


@dataclass(frozen=True)
class ComparisonData:
    """Runs side by side.

    Attributes:
        runs: in the order in which they were given; checkpoints in the order of their steps.
        differences: as many as `meta["pairs"]` says.
        groups: of seeds; empty where no two runs differ in their seeds alone.
        meta: JSON-able: headline, label, n_classes, axis, by, pairs, seed, notes, onset (of checkpoints), versions,
            and of the command line what was asked.
    """

    runs: list[ComparedRun]
    differences: list[RunDifference]
    groups: list[SeedGroup]
    meta: Annotated[dict[str, Any], As(ComparisonMeta)]

    def __post_init__(self) -> None:
        if not self.runs:
            raise DataError("expected two runs or more, got none; make them with train_probes")

    @property
    def headline(self) -> str:
        """The metric of all runs."""
        return self.meta["headline"]

    @property
    def steps(self) -> list[int]:
        """The steps of checkpoints; empty for other runs."""
        return [run.step for run in self.runs if run.step is not None]

    @property
    def matrix(self) -> np.ndarray:
        """The headline on test of every place of every run, float64 [places, runs]; nan where a run lacks a place."""
        values = [{place.place: place.value for place in run.places} for run in self.runs]
        return np.array([[own.get(name, np.nan) for own in values] for name in self.place_names], dtype=np.float64)

    @property
    def place_names(self) -> list[str]:
        """The places of all runs, in the order of the layers."""
        ranks = {place.place: (place.depth, place.x) for run in self.runs for place in run.places}
        return sorted(ranks, key=lambda name: ranks[name])
