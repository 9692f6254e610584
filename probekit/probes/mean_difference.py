"""The difference of the class means ("mass-mean" in Marks and Tegmark 2023, arXiv 2310.06824)."""

import numpy as np

from probekit.probes.moments import MomentsProbe
from probekit.probes.row_moments import RowMoments


class MeanDifferenceProbe(MomentsProbe):
    """The nearest class mean as a linear classifier; no parameters.

    Two classes: the direction is mu_1 - mu_0 and the threshold is midway. More: class c scores
    (mu_c - m) . (x - m) - |mu_c - m|^2 / 2 with m the mean of the class means, so the highest score is the nearest
    mean and a shift of the features changes nothing.
    """

    fits_in_threads = of_means = True

    def _solve(self, X: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return _nearest(np.stack([X[labels == c].mean(axis=0) for c in range(len(self.classes_))]))

    def _solve_moments(self, moments: RowMoments) -> tuple[np.ndarray, np.ndarray]:
        return _nearest(moments.class_means)


def _nearest(means: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights and intercepts whose highest score is the nearest of C points [C, D]."""
    middle = means.mean(axis=0)
    if len(means) == 2:
        direction = means[1] - means[0]
        return direction[None], np.array([-direction @ middle])
    coef = means - middle
    return coef, -(coef @ middle) - (coef**2).sum(axis=1) / 2
