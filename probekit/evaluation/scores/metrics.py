"""Metrics of predictions, computed for many example weightings at once.

Every metric takes W, one row of example weights per resample, and returns one value per row. A plain score has a single
row of ones; a weight of 2 counts an example twice. A bootstrap over 1,000 resamples is then a few passes over W. Values
equal scikit-learn's (scipy's for Spearman's correlation) wherever those define one.

Axes: N examples, C classes, S sets of weights.
"""

from collections.abc import Callable, Collection, Iterable

import numpy as np

from probekit.errors import UsageError, nearest
from probekit.evaluation.scores.classification import Weighted, brier, calibration, class_metrics
from probekit.evaluation.scores.predictions import Predictions
from probekit.evaluation.scores.ranking import ranking_metrics
from probekit.evaluation.scores.regression import mae, r2, spearman
from probekit.evaluation.scores.roc import ROC_RATES, roc_metrics
from probekit.tasks.splitting.classes import IMBALANCED
from probekit.text import listed


def default_metric(counts: Iterable[int]) -> str:
    """The default metric that selects layers and is drawn.

    "accuracy"; "auroc" if the largest class has more than 80% (`IMBALANCED`) of the examples, since guessing it would
    look good; "r2" for a regression, which has no counts. A rare class alone does not matter: with many classes one is
    nearly always rare, and the chance level of accuracy is low.

    Args:
        counts: examples per class; empty for a regression.
    """
    counts = np.array(list(counts))
    if not len(counts):
        return "r2"
    return "auroc" if counts.max() > IMBALANCED * counts.sum() else "accuracy"


def check_metric(name: str, n_classes: int) -> str:
    """Return `name` if it is a metric that can select probes for C classes, or for a regression (0).

    Raises:
        UsageError: an unknown metric, one for the other kind of labels, or one where lower is better.
    """
    known = [one for one in (_CLASSIFICATION if n_classes else _REGRESSION) if one in HEADLINES]
    if name in known:
        return name
    if name in METRICS and name in LOWER_IS_BETTER:
        raise UsageError(
            f"lower {name} is better, but the probe of the highest score is selected; take {listed(known)}"
        )
    if name in METRICS:
        kind = "classes" if n_classes else "numbers"
        raise UsageError(f"the metric {name} is not for labels that are {kind}; take {listed(known)}")
    raise UsageError(f"unknown metric {name!a}; {nearest(str(name), known)}")


def metrics_of(predictions: Predictions, names: Iterable[str] | None = None) -> dict[str, float]:
    """Each metric, or each of `names`, that is defined for these predictions: name -> value."""
    if not len(predictions.truth):
        return {}
    once = np.ones((1, len(predictions.truth)))
    values = {name: float(values[0]) for name, values in weighted_metrics(predictions, once, names).items()}
    return {name: value for name, value in values.items() if np.isfinite(value)}


def weighted_metrics(
    predictions: Predictions, W: np.ndarray, names: Iterable[str] | None = None
) -> dict[str, np.ndarray]:
    """Each metric under each row of the weights [S, N]: name -> [S].

    Means over classes skip a class that has no weight in a row; if nothing is left to compare, the value is nan.

    Args:
        predictions: of N examples.
        W: non-negative, [S, N].
        names: which metrics; None for all that apply.
    """
    return weighing(predictions, names)(W)


def weighing(predictions: Predictions, names: Iterable[str] | None = None) -> Weighted:
    """A function that computes `weighted_metrics` for any weights [S, N]; what does not depend on them is done once."""
    wanted = list(names or metric_names(predictions))
    families = [
        prepare(predictions, [name for name in own if name in wanted])
        for own, prepare in _FAMILIES
        if not set(own).isdisjoint(wanted)
    ]

    def metrics(W: np.ndarray) -> dict[str, np.ndarray]:
        V = np.ascontiguousarray(W.T, dtype=np.float64)  # adding up rows of many resamples is fastest
        found = {name: values for family in families for name, values in family(V).items()}
        return {name: found[name] for name in wanted}

    return metrics


def metric_names(predictions: Predictions) -> list[str]:
    """The names in `METRICS` that apply to these predictions."""
    if predictions.n_classes == 0:
        return list(_REGRESSION)
    left = (() if predictions.probabilities is not None else _NEED_PROBABILITIES) + (
        () if predictions.scores.ndim == 1 else tuple(ROC_RATES)
    )
    return [name for name in _CLASSIFICATION if name not in left]


_FAMILIES: list[tuple[tuple[str, ...], Callable[[Predictions, Collection[str]], Weighted]]] = [
    (("accuracy", "balanced_accuracy", "f1"), class_metrics),
    (("auroc", "average_precision"), ranking_metrics),
    (tuple(ROC_RATES), roc_metrics),
    (("brier",), brier),
    (("ece",), calibration),
    (("r2",), r2),
    (("spearman",), spearman),
    (("mae",), mae),
]
_CLASSIFICATION = ("accuracy", "balanced_accuracy", "auroc", "average_precision", "f1", "brier", "ece", *ROC_RATES)
_REGRESSION = ("r2", "spearman", "mae")
_NEED_PROBABILITIES = ("brier", "ece")
METRICS = _CLASSIFICATION + _REGRESSION
LOWER_IS_BETTER = ("brier", "ece", "mae")
HEADLINES = tuple(name for name in METRICS if name not in (*LOWER_IS_BETTER, *ROC_RATES))  # which may select
