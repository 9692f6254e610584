"""Least squares on standardised features with labels -1 and 1: the ridge classifier."""

import numpy as np
from sklearn.linear_model import RidgeClassifier

from probekit.probes.base import LinearProbe, check_positive, standardise, unstandardise


class RidgeProbe(LinearProbe):
    """Ridge regression of the class (-1 or 1; one against the rest for several) on standardised features.

    Args:
        C: inverse strength of the regularisation; scikit-learn's alpha is 1 / (2 C).
    """

    def __init__(self, C: float = 1.0):
        self.C = C

    def _solve(self, X: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        C = check_positive("C", self.C)
        Z, mean, scale = standardise(X)
        model = RidgeClassifier(alpha=1 / (2 * C)).fit(Z, labels)
        return unstandardise(np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_), mean, scale)
