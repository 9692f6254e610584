"""What selects among fits: the headline on validation, and what decides where several have the same.

C, layer, position and the C of baselines are all selected by `selection_key`.

Axes: N examples.
"""

import math

import numpy as np

from probekit.evaluation.scores.predictions import Predictions

DIGITS = 12  # of the headline; differences beyond are rounding
_LEAST = 1e-300  # of a probability, so that one that underflowed has a finite loss


def selection_key(
    converged: bool | float, headline: float, loss: float | None, C: float | None, rows: int = 0
) -> tuple[bool | float, float, int, float, float]:
    """What `max` takes to select a fit: of equal keys it takes the first, such as the earlier layer.

    A fit that converged is before one that did not; then the higher headline, more validation rows (where fits have
    rows of their own), the lower loss, and the smaller C decide. The loss sees what a ranking does not: where all C
    separate the classes, the smallest may predict the majority class for every row.

    Args:
        converged: whether its solver reached its tolerance.
        headline: on validation.
        loss: `tie_loss` on validation; None where no rows choose.
        C: inverse strength of regularisation; None for a probe without one.
        rows: of validation.
    """
    least_loss = -math.inf if loss is None or math.isnan(loss) else -loss
    return converged, round(headline, DIGITS), rows, least_loss, 0.0 if C is None else -C


def tie_loss(predictions: Predictions) -> float:
    """The mean log loss in nats; of numbers the root mean squared error; without probabilities the share of errors."""
    if predictions.n_classes == 0:  # the root, as results hold no number as large as the square of a target may be
        return float(np.sqrt(np.mean((predictions.predicted - predictions.truth) ** 2)))
    if predictions.probabilities is None:
        return float(np.mean(predictions.predicted != predictions.truth))
    own = predictions.probabilities[np.arange(len(predictions.truth)), predictions.truth]
    return float(-np.log(np.maximum(own, _LEAST)).mean())
