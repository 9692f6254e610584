"""Results as data: per layer, per baseline, per pair of tasks. Tables, files and pictures are made from these."""

from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from probekit.errors import DataError, UsageError
from probekit.evaluation.results.meta import (
    Code,
    CurveRecord,
    Layer,
    Loss,
    Metrics,
    Penalty,
    PointName,
    Rates,
    SavedPart,
    Scores,
    TransferRecord,
)
from probekit.evaluation.results.row_scores import RowScores
from probekit.evaluation.results.spread import TrainingSpread
from probekit.evaluation.scores.selection import selection_key
from probekit.files.records import As, Ends, Share
from probekit.points import Place

# Selectivity needs at least this share of test rows whose type also occurs in train: a probe that memorised every type
# is at chance on the others, so the control task would measure nothing there.
LEAST_SEEN = 0.5
NOT_SELECTED = "no layer was selected: the task has no validation split"
NO_BEST = (
    f"{NOT_SELECTED}, so there is no best one; name the layer in advance (layers=), read all of them "
    "(results.layers), or carve validation rows (task.with_validation)"
)
FPRS = (0.001, 0.01, 0.05)  # false-positive rates whose thresholds are carried to other tasks
RATE_NAMES = ("tpr_at_fpr_{:g}", "fpr_at_fpr_{:g}")  # of the metrics that they give there
EMBEDDING = "embedding"  # the baseline that is the first place of a curve
ENSEMBLE = "ensemble"  # of the layers of a curve; it is compared with the curve, and is no rival of it
NUISANCE = "nuisance"  # the baseline that sees nothing but the columns of --nuisance


@dataclass(frozen=True)
class BaselineResult:
    """The score of a baseline, which uses no activations, or only those before the first block.

    Attributes:
        name: "majority" ("mean" for a regression), "bag-of-words", "bag-of-bigrams", "length", "word-type", "nuisance"
            or "embedding"; of a black box its own, such as "prompted" (`meta["black_boxes"]` has its cost). "ensemble"
            is the mean of layers that validation chose (`meta["ensemble"]`), which does use activations.
        C: the regularisation selected on validation, if there was a choice.
        converged: whether its solver reached its tolerance.
        metrics: split -> metric -> value; undefined metrics are left out.
        intervals: metric -> (low, high) on test.
    """

    name: str
    C: Penalty | None
    converged: bool
    metrics: Metrics
    intervals: dict[str, Ends]


@dataclass(frozen=True)
class LayerResult:
    """The probe of one place (a point of one layer) and its scores.

    The headline is the metric `meta["headline"]` that selects: the one requested, else accuracy; AUROC where one class
    has more than 80% of the training labels; R2 for a regression.

    Attributes:
        point: short name, such as "resid_pre".
        layer: None for a point that belongs to no layer.
        C: the regularisation, selected on validation where there was a choice; None for a probe without one.
        converged: whether every fit that the numbers depend on converged, including control tasks and codelength.
        metrics: split -> metric -> value; undefined metrics are left out. Without validation rows there is no
            "validation". With nested folds, it is the mean over inner folds, "test" is computed on the pooled
            predictions of the outer folds (their scores standardised within each), and there is no "train".
        intervals: metric -> (low, high) on test.
        tried: (C, headline on validation) of each candidate; empty without validation rows.
        probe: the fitted probe: `probe.predict_labels(X)` gives names of classes, `probe.direction` float64 weights and
            `probe.direction_tensor()` the same for a hook. None where only numbers are kept, as for random weights.
        gap: the worst certificate of these fits: an upper bound on (objective - optimum) / optimum. None if the probe
            gives none, or if a fit that did not converge has no finite one.
        band: (low, high) of the headline on test; the bands of all layers hold the complete curve with 95%.
        in_best_set: whether the layer is statistically tied with the best on test (95%, all layers jointly).
        p_value: of the headline on test, against permuted labels; None with nested folds.
        control: mean headline on test over the control tasks (random labels per type). Their C is that of the label's
            probe where `meta["control"]["C"]` is "label"; each chose its own where it is "own" or missing.
        selectivity: headline on test minus `control`. None for a control task of complete texts, if less than half of
            the test rows have a type seen in train, and if the control R2 of a regression is below 0.
        codelength: of the training labels given the activations: {"bits", "uniform_bits", "prior_bits" (from the class
            frequencies alone), "compression" (uniform_bits / bits), "gain" (prior_bits / bits)}.
        late: which fits did not converge: "probe", "control", "code".
        outputs: R2 on test of each output of a regression of several numbers, whose mean is the metric; None where one
            is undefined. Otherwise empty.
        rates: of a threshold that validation chose for a false-positive rate of 1%, where there are two classes: "fpr",
            "negatives" (rows that it was chosen on), "least" (the rate that so many can hold) and, unless that is more
            than 1%, "threshold" and on test "tpr" and "test_fpr", each with "_low" and "_high" (Clopper-Pearson;
            rows of a group count together).
        loss: on validation, what decides ties of the headline: the mean log loss in nats, of numbers the root mean
            squared error, of a probe without probabilities the share of errors; None without validation rows, and in
            older results.
    """

    point: PointName
    layer: Layer | None
    C: Penalty | None
    converged: bool
    metrics: Metrics
    intervals: dict[str, Ends]
    tried: list[tuple[Penalty | None, float]]
    probe: Annotated[Any, As(SavedPart | None)] = field(default=None, compare=False, repr=False)
    gap: float | None = None
    band: Ends | None = None
    in_best_set: bool | None = None
    p_value: Share | None = None
    control: float | None = None
    selectivity: float | None = None
    codelength: Code | None = None
    late: list[str] = field(default_factory=list)
    outputs: list[float | None] = field(default_factory=list)
    rates: Rates | None = None
    loss: Loss | None = None

    @property
    def place(self) -> str:
        """Point and layer in one word: "resid_pre.5"."""
        return str(Place(self.point, self.layer))

    @property
    def is_at_edge(self) -> bool:
        """Whether the largest of several C was selected for its headline, so that a larger one may be better still."""
        *others, (largest, value) = self.tried or [(None, 0.0)]
        return bool(others) and largest == self.C and all(value > other for _, other in others)


@dataclass(frozen=True)
class Quote:
    """The score to quote, on rows that selected nothing.

    Attributes:
        value: the headline on test or, with nested folds, that of the complete procedure.
        interval: its 95% interval (low, high); None without one.
        layer: whose score it is; None with nested folds, which select a layer of their own in each fold.
    """

    value: float
    interval: tuple[float, float] | None
    layer: LayerResult | None

    @property
    def place(self) -> str:
        """Of the layer: "resid_pre.5"; empty with nested folds."""
        return "" if self.layer is None else self.layer.place


@dataclass(frozen=True)
class ProbeData:
    """A curve: one result per layer, with the baselines.

    Attributes:
        layers: in the order of the curve.
        baselines: what to compare with; empty if none were requested.
        meta: JSON-able: model, task, label, point, position, probe, C (the grid), seed, n, headline, audit, versions
            and more.
        random_init: the same layers of the same architecture with random weights, numbers only; may be empty.
        pooled: the same layers with other features of the same rows, numbers only: of a probe over a sequence "mean"
            of the tokens and "last" token, of latents the "activations"; otherwise empty. `meta["pooled"]` has the
            paired differences on test.
        residual: the same layers after the columns of `nuisance` were regressed out of the activations, numbers only;
            empty if none were named. `meta["nuisance"]` has the paired differences on test.
        rows: the rows that chose and tested, with each place's scores; None in results of older versions.
        spread: mean and covariance of the selected place's training activations, from which `score` says how unusual a
            new text is; None where no place was selected, and in results of older versions.
    """

    layers: list[LayerResult]
    baselines: list[BaselineResult]
    meta: CurveRecord
    random_init: list[LayerResult] = field(default_factory=list)
    pooled: dict[str, list[LayerResult]] = field(default_factory=dict)
    rows: RowScores | None = field(default=None, compare=False, repr=False)
    spread: TrainingSpread | None = field(default=None, compare=False, repr=False)
    residual: list[LayerResult] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.layers:
            raise DataError("expected the results of one place or more, got none; make them with train_probes")

    @property
    def selected(self) -> LayerResult | None:
        """`best`, or None where no layer was selected: there are several, and the task has no validation split."""
        if len(self.layers) == 1:
            return self.layers[0]
        if not all("validation" in layer.metrics for layer in self.layers):
            return None
        return max(self.layers, key=lambda layer: layer_key(layer, self.headline))

    @property
    def best(self) -> LayerResult:
        """The layer with the highest headline on validation. Test plays no part.

        Ties go to the lower log loss (of numbers, squared error), the smaller C, then the earlier layer.

        With nested folds every row took part in the selection, so quote no score of this layer, but `estimate`. A layer
        whose fit did not converge is taken only if none did.

        Raises:
            UsageError: several layers and no validation split, so that none was selected.
        """
        if self.selected is None:
            raise UsageError(NO_BEST)
        return self.selected

    @property
    def headline(self) -> str:
        """The metric that selects: "accuracy", "auroc", "r2", or the one requested."""
        return self.meta["headline"]

    @property
    def procedure(self) -> dict[str, Any] | None:
        """With nested folds, the score of the complete procedure, which selects layer and C inside each fold."""
        return self.meta.get("procedure")

    @property
    def quoted(self) -> Quote | None:
        """The score to quote: the selected layer's on test or, with nested folds, the complete procedure's.

        None where no layer was selected. Tables, pictures, exports and comparisons ask here.
        """
        best = None if self.procedure is not None else self.selected
        if self.procedure is not None:
            metrics, intervals = self.procedure["metrics"], self.procedure["intervals"]
        elif best is not None:
            metrics, intervals = best.metrics["test"], best.intervals
        else:
            return None
        ends = intervals.get(self.headline)
        return Quote(metrics[self.headline], None if ends is None else (ends[0], ends[1]), best)

    @property
    def estimate(self) -> tuple[float, tuple[float, float] | None]:
        """The value and the interval of `quoted`.

        Raises:
            UsageError: no layer was selected.
        """
        if self.quoted is None:
            raise UsageError(NO_BEST)
        return self.quoted.value, self.quoted.interval


def layer_key(layer: LayerResult, headline: str, rows: int = 0) -> tuple[Any, ...]:
    """What selects a layer on its validation rows."""
    return selection_key("probe" not in layer.late, layer.metrics["validation"][headline], layer.loss, layer.C, rows)


def is_output(data: ProbeData, layer: LayerResult) -> bool:
    """Whether this is the output of the last block, at the end of another point's curve."""
    return layer.point != data.meta["point"]


@dataclass(frozen=True)
class TransferCell:
    """A probe of one layer, trained on one task, on the test split of one task.

    Attributes:
        train_task: the task on whose train split it was fitted.
        test_task: the task on whose test split it was scored.
        point: short name, such as "resid_pre".
        layer: None for a point that belongs to no layer.
        C: the regularisation selected on the train task's validation split; None for a probe without one.
        converged: whether the solver reached its tolerance.
        validation: the headline on the train task's validation split; None where it has none and nothing was chosen.
        chosen: whether this is the train task's best layer.
        metrics: metric -> value. Of two classes "tpr_at_fpr_0.01" and "fpr_at_fpr_0.01" are the rates on the test task
            at the threshold that the train task's validation rows chose for 1% false positives; so for 0.1% and 5%.
        intervals: metric -> (low, high).
    """

    train_task: str
    test_task: str
    point: PointName
    layer: Layer | None
    C: Penalty | None
    converged: bool
    validation: float | None
    chosen: bool
    metrics: Scores
    intervals: dict[str, Ends]

    @property
    def place(self) -> str:
        """Point and layer in one word: "resid_pre.5"."""
        return str(Place(self.point, self.layer))


@dataclass(frozen=True)
class TransferData:
    """Scores for every pair of tasks: train on the rows, test on the columns.

    Attributes:
        cells: one per train task, test task and layer, in this order.
        meta: JSON-able: tasks, labels, headline, chance, model, point, position, probe, seed, n, notes and more; of
            `shift_column` the tasks are its values, and "shift" says what is lost between them.
    """

    cells: list[TransferCell]
    meta: TransferRecord

    @property
    def tasks(self) -> list[str]:
        """T names."""
        return self.meta["tasks"]

    @property
    def headline(self) -> str:
        """The metric of the matrix: "accuracy", "auroc" or "r2"."""
        return self.meta["headline"]

    @property
    def rows(self) -> list[str]:
        """What was trained on: the tasks or, of a shift, values of a column and "all others"."""
        return self.meta.get("rows", self.tasks)

    @property
    def chosen(self) -> list[list[TransferCell]]:
        """[rows][T]: train task, test task, at the train task's best layer on its own validation split."""
        cells = {(cell.train_task, cell.test_task): cell for cell in self.cells if cell.chosen}
        return [[cells[train, test] for test in self.tasks] for train in self.rows]

    @property
    def matrix(self) -> np.ndarray:
        """The headline of `chosen`, float64 [rows, T]; nan where it is undefined."""
        return self.matrix_of(self.headline)

    def matrix_of(self, metric: str) -> np.ndarray:
        """A metric of `chosen`, such as "tpr_at_fpr_0.01", float64 [rows, T]; nan where it is undefined."""
        return np.array([[cell.metrics.get(metric, np.nan) for cell in row] for row in self.chosen])
