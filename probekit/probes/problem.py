"""One fit among many that share their features.

Axes: N rows.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Problem:
    """What one probe is to learn from shared features X [N, D].

    Problems with the same rows share the very same array of weights, and with the same labels the same array of those:
    what depends on them is then computed once.

    Attributes:
        labels: int64 [N] of 0..n_classes-1, or float64 [N] for a regression.
        n_classes: 0 for a regression.
        C: inverse strength of the regularisation; None for a probe that has none.
        weights: float64 [N], not negative; 0 leaves a row out. None weighs every row 1.
    """

    labels: np.ndarray
    n_classes: int = 2
    C: float | None = 1.0
    weights: np.ndarray | None = None
