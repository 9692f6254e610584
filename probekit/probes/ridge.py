"""Least squares on standardised features with labels -1 and 1: the ridge classifier."""

import numpy as np
from scipy.linalg import solve
from sklearn.linear_model import RidgeClassifier

from probekit.probes.base import check_positive, scale_of, standardise, unstandardise
from probekit.probes.moments import MomentsProbe, RowMoments


class RidgeProbe(MomentsProbe):
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

    def _solve_moments(self, moments: RowMoments) -> tuple[np.ndarray, np.ndarray]:
        """The normal equations of the standardised features Z and the labels Y: (Z'Z + I / 2C) w = Z'Y."""
        C = check_positive("C", self.C)
        n, counts = moments.count, moments.class_counts
        scale = scale_of(moments.covariance.diagonal(), moments.mean, n)
        ZtZ = n * moments.covariance / scale / scale[:, None]
        ZtY = 2 * (counts[:, None] * (moments.class_means - moments.mean) / scale).T  # Y is -1 or 1, and Z'1 is 0
        coef = solve(ZtZ + np.eye(len(ZtZ)) / (2 * C), ZtY, assume_a="pos").T
        intercept = 2 * counts / n - 1
        own = slice(1, 2) if len(counts) == 2 else slice(None)
        return unstandardise(coef[own], intercept[own], moments.mean, scale)
