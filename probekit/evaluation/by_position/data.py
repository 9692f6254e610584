"""Results by position or head as data: a curve over the layers for each place in the text, or for each head."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from probekit.errors import DataError, UsageError
from probekit.evaluation.results.data import LayerResult, Quote, layer_key
from probekit.evaluation.results.meta import GridRecord
from probekit.files.records import Count, Share
from probekit.options.probe import BY_HEAD, BY_POSITION

SAME_TOKEN = 0.9  # share of the texts, from which a position is named by its token, as in a template


@dataclass(frozen=True)
class PositionCurve:
    """The probes of one place in the text, or of one head, one for each layer, all on the texts that have the place.

    Attributes:
        position: "0", "1", ... from the first token, "-1", "-2", ... from the last, or a selection such as "last";
            by head, the number of the head.
        n: split -> how many texts have the place.
        chance: the headline on test of the majority class of train (of the mean, for a regression).
        layers: in the order of the curve; `p_value` is of each cell on its own.
        corrected: for each layer, the p-value corrected for all cells of the grid; None where none were computed.
        token: the text of the token there, if it is the same in `SAME_TOKEN` of the texts; None if not, or unknown.
        left_out: classes that have too few texts there; the probes are of the other classes, in their order.
        random_init: the same layers of the same architecture with random weights, numbers only; may be empty.
    """

    position: str
    n: dict[str, Count]
    chance: float | None
    layers: list[LayerResult]
    corrected: list[Share | None]
    token: str | None = None
    left_out: tuple[str, ...] = ()
    random_init: list[LayerResult] = field(default_factory=list)


@dataclass(frozen=True)
class GridQuote(Quote):
    """The score of a grid to quote, on texts that selected nothing.

    Attributes:
        column: the position or head whose score it is; None with nested folds, which select one in each fold.
        chance: what the majority class of train (the mean, for a regression) scores there.
    """

    column: PositionCurve | None = None
    chance: float | None = None


@dataclass(frozen=True)
class PositionData:
    """A grid of probes: a curve for each place in the text, or for each head.

    Attributes:
        positions: in the order of the text, or of the heads.
        meta: JSON-able: model, task, label, point, probe, C (the grid), seed, headline, by, least_texts, left_out,
            few_texts (position -> what it has too few of), audit, versions and more; with random weights
            "over_random", how far the quoted score is ahead of theirs; with nested folds "procedure", whose "n" is how
            many texts had the positions that the folds selected.
    """

    positions: list[PositionCurve]
    meta: GridRecord

    def __post_init__(self) -> None:
        if not self.positions:
            raise DataError("expected the results of one position or more, got none; make them with train_probes")

    @property
    def headline(self) -> str:
        """The metric that selects: "accuracy", "auroc", "r2", or the one requested."""
        return self.meta["headline"]

    @property
    def places(self) -> list[str]:
        """The layers of every curve: "resid_pre.0", "resid_pre.1", ..."""
        return [layer.place for layer in self.positions[0].layers]

    @property
    def matrix(self) -> np.ndarray:
        """The headline on test, float64 [layers, positions]."""
        return np.array([[layer.metrics["test"][self.headline] for layer in one.layers] for one in self.positions]).T

    @property
    def selected(self) -> tuple[PositionCurve, LayerResult] | None:
        """The cell with the highest headline on validation; None without a validation split, unless it is the only one.

        Ties go to the position with more validation texts, then to the lower loss, the smaller C, and the earlier
        position and layer. A cell whose fit did not converge is taken only if none did. Test plays no part.
        """
        cells = [(one, layer) for one in self.positions for layer in one.layers]
        if len(cells) == 1:
            return cells[0]
        if not all("validation" in layer.metrics for _, layer in cells):
            return None
        return max(cells, key=lambda cell: layer_key(cell[1], self.headline, _choosing(cell[0])))

    @property
    def procedure(self) -> dict[str, Any] | None:
        """With nested folds, the score of the complete procedure, which selects cell and C inside each fold."""
        return self.meta.get("procedure")

    @property
    def best(self) -> tuple[PositionCurve, LayerResult]:
        """`selected`: the position, and the layer with its probe.

        With nested folds every text took part in the selection, so quote no score of this cell, but `estimate`.

        Raises:
            UsageError: no cell was selected.
        """
        if self.selected is None:
            raise UsageError(_no_best(self))
        return self.selected

    @property
    def estimate(self) -> tuple[float, tuple[float, float] | None]:
        """The value and the interval of `quoted`.

        Raises:
            UsageError: no cell was selected.
        """
        quoted = self.quoted
        if quoted is None:
            raise UsageError(_no_best(self))
        return quoted.value, quoted.interval

    @property
    def quoted(self) -> GridQuote | None:
        """The score to quote: the selected cell's on test or, with nested folds, the complete procedure's.

        None where no cell was selected. Tables, pictures and files ask here.
        """
        if self.procedure is not None:
            metrics, intervals = self.procedure["metrics"], self.procedure["intervals"]
            column, layer, chance = None, None, self.procedure.get("chance")
        elif self.selected is not None:
            column, layer = self.selected
            metrics, intervals, chance = layer.metrics["test"], layer.intervals, column.chance
        else:
            return None
        ends = intervals.get(self.headline)
        return GridQuote(metrics[self.headline], None if ends is None else (ends[0], ends[1]), layer, column, chance)


def _no_best(data: "PositionData") -> str:
    return (
        f"{nothing_selected(data)}; read all of them (results.positions), or carve validation rows "
        "(task.with_validation)"
    )


def _choosing(one: PositionCurve) -> int:
    """How many texts of a position choose; with folds all of them take turns."""
    return one.n.get("validation", one.n["test"])


def noun_of(data: PositionData) -> str:
    """What a curve of these results is of: "position" or "head"."""
    return BY_HEAD if data.meta["by"] == BY_HEAD else BY_POSITION


def nothing_selected(data: PositionData) -> str:
    """That no cell was selected, and why."""
    return f"no {noun_of(data)} and layer were selected: the task has no validation split"


def best_layer(data: PositionData, one: PositionCurve) -> int | None:
    """The number of the layer that validation selects at one position; None without validation."""
    if len(one.layers) == 1:
        return 0
    if not all("validation" in layer.metrics for layer in one.layers):
        return None
    return max(range(len(one.layers)), key=lambda i: layer_key(one.layers[i], data.headline))


def is_above_chance(one: PositionCurve, layer: int, level: float) -> bool | None:
    """Whether a cell's corrected p-value is at most `level`; None where there is none."""
    value = one.corrected[layer]
    return None if value is None else value <= level
