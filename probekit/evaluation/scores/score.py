"""The metrics of predictions that may be pooled from several rounds, and their intervals.

Between rounds, only the standardised scores of a regression can be ranked (see `fits.predict.pooled`), so Spearman's
correlation is that of the scores; all other metrics use what was predicted.
"""

from dataclasses import replace

import numpy as np

from probekit.evaluation.scores.bootstrap import Bootstrap
from probekit.evaluation.scores.metrics import Predictions, metrics_of


def score(predictions: Predictions) -> dict[str, float]:
    """Every metric that is defined: name -> value."""
    ranked = metrics_of(_by_score(predictions), ["spearman"]) if _is_pooled(predictions) else {}
    return {name: ranked.get(name, value) for name, value in metrics_of(predictions).items()}


def score_intervals(bootstrap: Bootstrap | None, predictions: Predictions) -> dict[str, tuple[float, float]]:
    """The 95% interval of each metric of `score`; none without resamples."""
    if bootstrap is None:
        return {}
    intervals = bootstrap.intervals(predictions)
    if _is_pooled(predictions):
        intervals |= bootstrap.intervals(_by_score(predictions), names=["spearman"])
    return intervals


def value_of(predictions: Predictions, metric: str) -> float:
    """One metric; nan where it is undefined."""
    return metrics_of(for_metric(predictions, metric), [metric]).get(metric, float("nan"))


def for_metric(predictions: Predictions, metric: str) -> Predictions:
    """The predictions that this metric is computed from: the same object where it can be, whose resamples are known."""
    return _by_score(predictions) if metric == "spearman" and _is_pooled(predictions) else predictions


def _is_pooled(predictions: Predictions) -> bool:
    """Whether these are of a regression whose rounds were standardised, so that scores differ from predictions."""
    return predictions.n_classes == 0 and not np.array_equal(predictions.scores, predictions.predicted)


def _by_score(predictions: Predictions) -> Predictions:
    return replace(predictions, predicted=predictions.scores)
