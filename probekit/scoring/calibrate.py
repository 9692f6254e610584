"""Probabilities from a probe's scores, fitted on validation rows (Platt 1999).

Two classes have one slope and one shift: p = 1 / (1 + exp(-(slope * score + shift))). More classes have one slope, an
inverse temperature (Guo et al. 2017), and a shift for each class, before a softmax. The targets are Platt's, so that
both stay finite where the scores separate the classes.

Axes: N rows, C classes.
"""

from dataclasses import dataclass

import numpy as np

from probekit.evaluation.results.row_scores import RowScores
from probekit.probes.base import probabilities
from probekit.probes.sequence.aggregate import platt_calibration


@dataclass(frozen=True, eq=False)
class Calibration:
    """What turns scores into log odds.

    Attributes:
        slope: of the scores; 0 where they rank the validation rows no better than chance.
        shift: float64 [1] for two classes, [C] for more.
        rows: validation rows that it was fitted on.
    """

    slope: float
    shift: np.ndarray
    rows: int

    @property
    def method(self) -> str:
        """One line for tables and files."""
        what = "Platt scaling" if len(self.shift) == 1 else "one temperature and a shift for each class"
        return f"{what}, fitted on {self.rows:,} validation rows"


def fit_calibration(scores: np.ndarray, labels: np.ndarray) -> Calibration | None:
    """Fit to scores [N] or [N, C] and labels [N]; None where fewer than two classes occur.

    A negative slope would reverse the probe, so it becomes 0, and the shifts the log frequencies of the targets.
    """
    if len(np.unique(labels)) < 2:
        return None
    columns = scores[:, None] if scores.ndim == 1 else scores
    slope, shift, _ = platt_calibration(columns.astype(np.float64), labels.astype(np.int64))
    if slope[0] < 0:
        slope, shift, _ = platt_calibration(np.zeros(columns.shape), labels.astype(np.int64))
        slope = np.zeros(1)
    return Calibration(float(slope[0]), np.asarray(shift, dtype=np.float64), len(labels))


def calibration_of(rows: RowScores | None, place: str) -> Calibration | None:
    """The calibration of a place's probe on the validation rows of results.

    None for a regression, for nested folds, and where the results hold no validation rows or not this place.
    """
    if rows is None or place not in rows.predicted:
        return None
    chosen = rows.splits == "validation"
    return fit_calibration(rows.scores[place][chosen], rows.labels[chosen]) if chosen.any() else None


def calibrated(calibration: Calibration, scores: np.ndarray) -> np.ndarray:
    """Probabilities [N, C] of scores [N] or [N, C]."""
    shift = calibration.shift[0] if scores.ndim == 1 else calibration.shift
    return probabilities(calibration.slope * scores + shift)
