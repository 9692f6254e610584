"""Sparse probing: rank the features, and fit a probe to the k best.

Gurnee et al. 2023, "Finding neurons in a haystack" (arXiv 2305.01610). The elastic net (Zou and Hastie 2005) ranks by
the order in which features enter its path.

Axes: N examples, D features, C classes.
"""

from typing import Any, NamedTuple

import numpy as np

from probekit.errors import UsageError, nearest
from probekit.options.check import check_whole
from probekit.probes.base import ClassifierProbe, LinearProbe, WithProbabilities, standardise
from probekit.probes.logistic.probe import LogisticProbe

METHODS = ("mean-difference", "elastic-net")
PENALTIES = np.logspace(0, -3, 100)  # of the elastic net, relative to the smallest that keeps every feature out
L1_RATIO = 0.9


class Ranking(NamedTuple):
    """Features from best to worst."""

    neurons: np.ndarray  # int64 [D]
    scores: np.ndarray  # float64 [D], the scores of these neurons, descending


def rank_neurons(X: Any, y: Any, method: str = "mean-difference") -> Ranking:
    """Rank the features [N, D] by how much each says about the labels [N].

    Args:
        X: features [N, D].
        y: labels [N].
        method: "mean-difference" scores |mean of the class - mean of the rest| in standard deviations of the
            feature, the largest over classes. "elastic-net" fits each class against the rest by least squares on
            all features together, and scores the largest penalty at which a feature has a weight: 1 for the first to
            enter, 0 for those that never do. It ranks few of several redundant features highly.

    Raises:
        UsageError: an unknown method.
        ValueError: NaN or infinity, shapes that do not agree, one class only.
    """
    return _rank(*ClassifierProbe()._checked(X, y), method)


class KSparseProbe(WithProbabilities, LinearProbe):
    """Logistic regression on the k best features; every other weight is 0.

    Args:
        k: features to use; all of them if there are fewer.
        C: inverse strength of the regularisation, as in `LogisticProbe`.
        method: how to rank; see `rank_neurons`.

    Attributes:
        neurons_: int64 [k], the features used, best first.
    """

    has_C = certified = fits_in_threads = True
    ARRAYS = ("coef_", "intercept_", "neurons_")
    WHOLE = ("neurons_",)
    FACTS = LogisticProbe.FACTS
    neurons_: np.ndarray

    def __init__(self, k: int = 16, C: float = 1.0, method: str = "mean-difference"):
        self.k = k
        self.C = C
        self.method = method

    def _solve(self, X: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.neurons_ = _rank(X, labels, self.method).neurons[: check_whole("k", self.k)]
        logistic = LogisticProbe(self.C).fit(X[:, self.neurons_], labels)
        for name in ("converged_", "n_iter_", *self.FACTS):
            setattr(self, name, getattr(logistic, name))
        coef = np.zeros((len(logistic.coef_), X.shape[1]))
        coef[:, self.neurons_] = logistic.coef_
        return coef, logistic.intercept_

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {**super()._shapes(), "neurons_": (self.neurons_.size,)}

    def _check_arrays(self) -> None:
        super()._check_arrays()
        elsewhere = np.delete(self.coef_, self.neurons_, axis=1)  # raises IndexError if they are not features
        if elsewhere.any():
            raise ValueError("weights for features that the probe does not use")


def _rank(X: np.ndarray, labels: np.ndarray, method: str) -> Ranking:
    if method not in METHODS:
        raise UsageError(f"unknown method {method!a}; {nearest(str(method), METHODS)}")
    Z, _, _ = standardise(X)
    C = labels.max() + 1
    own = np.arange(1, C) if C == 2 else np.arange(C)  # for two classes, one target is enough
    targets = (labels[:, None] == own).astype(np.float64)
    share = targets.mean(axis=0)
    ZtY = Z.T @ (targets - share)  # [D, C]
    differences = np.abs(ZtY / (len(Z) * share * (1 - share))).max(axis=1)
    if method == "mean-difference":
        order = np.argsort(-differences, kind="stable")
        return Ranking(order, differences[order])
    entered = _entered(Z, targets - share, ZtY)
    order = np.lexsort((-differences, -entered))
    return Ranking(order, entered[order])


def _entered(Z: np.ndarray, targets: np.ndarray, ZtY: np.ndarray) -> np.ndarray:
    """The largest of `PENALTIES` at which each feature has a weight for any of the targets [N, C], else 0: [D]."""
    from sklearn.linear_model import enet_path

    gram = Z.T @ Z
    entered = np.zeros(len(gram))
    largest = np.abs(ZtY).max() / (len(Z) * L1_RATIO)
    if largest == 0:
        return entered
    for target, Zty in zip(targets.T, ZtY.T, strict=True):
        known: Any = {"precompute": gram, "Xy": Zty}
        _, coefs, _ = enet_path(Z, target, l1_ratio=L1_RATIO, alphas=largest * PENALTIES, max_iter=10_000, **known)
        entered = np.maximum(entered, (PENALTIES[:, None] * (coefs.T != 0)).max(axis=0))
    return entered
