"""Probes from the class means: their difference, and linear discriminant analysis with a shrunk covariance.

Mean differences: "mass-mean" in Marks and Tegmark 2023, arXiv 2310.06824. Shrinkage: Ledoit and Wolf 2004, "A
well-conditioned estimator for large-dimensional covariance matrices".
"""

import warnings

import numpy as np
import torch

from probekit.errors import DataError, UsageError
from probekit.probes.base import WithProbabilities, scale_of, standardise, unstandardise
from probekit.probes.moments import MomentsProbe, RowMoments, towards_identity, within_classes
from probekit.probes.ridge import eigen
from probekit.probes.stream import Stream


class LDAProbe(WithProbabilities, MomentsProbe):
    """Gaussian classes with one shared covariance: the whitened difference of the means.

    scikit-learn's `LinearDiscriminantAnalysis(solver="lsqr")` on standardised features. The shared covariance is the
    mean of the classes' covariances, weighted by their rows and shrunk towards a multiple of the identity.

    Args:
        shrinkage: "auto" (Ledoit and Wolf), or a number from 0 (none) to 1 (nearly the difference of the means).
        standardise: whether to shrink the covariance of standardised features, or of raw features as scikit-learn does.
            `coef_` applies to raw features in either case.
    """

    def __init__(self, shrinkage: str | float = "auto", standardise: bool = True):
        self.shrinkage = shrinkage
        self.standardise = standardise

    def _solve(self, X: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        from sklearn.discriminant_analysis import LinearDiscriminantAnalysis  # with linear_model 0.15 s, for LDA alone

        check_shrinkage(self.shrinkage)
        _check_counts(np.bincount(labels))
        Z, mean, scale = standardise(X, self.standardise)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Only one sample available", UserWarning)  # its covariance is 0
            fitted = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=self.shrinkage).fit(Z, labels)
        return unstandardise(fitted.coef_, fitted.intercept_, mean, scale)

    def _solve_stream(self, X: Stream, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        check_shrinkage(self.shrinkage)
        if not isinstance(self.shrinkage, str):
            return super()._solve_stream(X, labels)
        _check_counts(np.bincount(labels))
        found = within_classes(X, labels, len(self.classes_), self.standardise)
        means = (found.class_means - found.mean) / found.scale
        weights = _discriminants(means, found.class_counts, found.covariance)
        return unstandardise(*weights, found.mean, found.scale)

    def _solve_moments(self, moments: RowMoments) -> tuple[np.ndarray, np.ndarray]:
        check_shrinkage(self.shrinkage)
        if isinstance(self.shrinkage, str):
            raise UsageError("shrinkage='auto' needs the rows; for statistics give a number from 0 to 1")
        counts = moments.class_counts
        _check_counts(counts)
        scale = scale_of(moments.covariance.diagonal(), moments.mean, moments.count, self.standardise)
        means, within = moments.within_classes(scale)
        weights = _discriminants(means, counts, towards_identity(within, self.shrinkage))
        return unstandardise(*weights, moments.mean, scale)


def check_shrinkage(value: str | float) -> None:
    """Raise a UsageError unless `value` is "auto" or a number from 0 to 1."""
    number = not isinstance(value, (bool, str)) and np.isscalar(value) and 0 <= value <= 1  # pyright: ignore
    if not number and not (isinstance(value, str) and value == "auto"):
        raise UsageError(f"shrinkage must be 'auto' or a number from 0 to 1; got {value!a}")


def _check_counts(counts: np.ndarray) -> None:
    if counts.sum() <= len(counts):
        raise DataError(
            f"LDA needs more rows than classes, got {counts.sum():g} rows of {len(counts)} classes; add rows"
        )


def _discriminants(means: np.ndarray, counts: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights and intercepts that give log odds (two classes) or log posteriors up to a shared constant (more)."""
    values, V = (x.numpy() for x in eigen(torch.from_numpy(covariance), int(counts.sum())))
    coef = means @ V / values @ V.T
    intercept = np.log(counts / counts.sum()) - (means * coef).sum(axis=1) / 2
    return (coef, intercept) if len(counts) > 2 else (coef[1:] - coef[:1], intercept[1:] - intercept[:1])


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
