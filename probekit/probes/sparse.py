"""Sparse probing: rank the features, and fit a probe to the k best.

Gurnee et al. 2023, "Finding neurons in a haystack" (arXiv 2305.01610). The elastic net (Zou and Hastie 2005) ranks by
the order in which features enter its path.

Axes: N examples, D features, C classes.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from probekit.errors import UsageError, nearest
from probekit.options.check import check_strength, check_whole
from probekit.probes.base import ClassifierProbe, LinearProbe, WithProbabilities, scale_of
from probekit.probes.logistic.probe import LogisticProbe
from probekit.probes.moments import class_means, squares_around
from probekit.probes.problem import Labels, ProblemSet, every_problem
from probekit.probes.stream import SparseRows, Stream, held, take_some, with_numbers

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
        X: features [N, D], or a `Stream` of them.
        y: labels [N]; of a stream 0..C-1, of which each occurs.
        method: "mean-difference" scores |mean of the class - mean of the rest| in standard deviations of the
            feature, the largest over classes. "elastic-net" fits each class against the rest by least squares on
            all features together, and scores the largest penalty at which a feature has a weight: 1 for the first to
            enter, 0 for those that never do. It ranks few of several redundant features highly.

    Raises:
        UsageError: an unknown method.
        ValueError: NaN or infinity, shapes that do not agree, one class only.
    """
    if isinstance(X, Stream):
        return _rank(X, Labels(np.asarray(y), int(np.max(y)) + 1), method)[0]
    X, labels = ClassifierProbe()._checked(X, y)
    return _rank(torch.from_numpy(X), Labels(labels, int(labels.max()) + 1), method)[0]


class KSparseProbe(WithProbabilities, LinearProbe):
    """Logistic regression on the k best features; every other weight is 0.

    Args:
        k: features to use; all that vary if these are fewer.
        C: inverse strength of the regularisation, as in `LogisticProbe`.
        method: how to rank; see `rank_neurons`.

    Attributes:
        neurons_: int64 [k] or fewer, the features used, best first.
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

    @property
    def streams(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether features may be more than memory holds: ranking by means takes three passes over them."""
        return self.method == "mean-difference"

    @property
    def reads_sparse(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether features that are mostly 0 stay sparse: only the chosen ones are made dense."""
        return self.streams

    def _fit(self, X: np.ndarray, labels: np.ndarray) -> None:
        self._fit_best(torch.from_numpy(X), Labels(labels, len(self.classes_)), [self])

    def fit_many(self, X: Tensor | Stream, problems: ProblemSet) -> list[Self]:
        """See `Probe.fit_many`; features are ranked once for all C."""
        probes = self._copies(problems)
        for label, weighting in dict.fromkeys((p.label, p.weighting) for p in problems.problems):
            labels = problems.labels[label]
            rows = self._rows(labels, problems.weightings[weighting])
            own = [p for p, one in enumerate(problems.problems) if (one.label, one.weighting) == (label, weighting)]
            labels = Labels(labels.of(rows), labels.n_classes)
            self._fit_best(take_some(X, rows), labels, [probes[p] for p in own])
        return probes

    def _fit_best(self, X: Tensor | Stream, labels: Labels, probes: Sequence[Self]) -> None:
        """Fit probes that differ in C alone."""
        for probe in probes:
            check_strength("C", probe.C, without_penalty=False)
        ranking, varying = _rank(X, labels, self.method)
        neurons = ranking.neurons[: min(check_whole("k", self.k), varying or self.k)]
        of_best = LogisticProbe().fit_many(
            feature_columns(X, neurons), every_problem([labels], [probe.C for probe in probes])
        )
        for probe, logistic in zip(probes, of_best, strict=True):
            for name in ("converged_", "n_iter_", *self.FACTS):
                setattr(probe, name, getattr(logistic, name))
            probe.classes_ = getattr(probe, "classes_", logistic.classes_)
            probe.neurons_, probe.n_features_in_ = neurons, X.shape[1]
            probe.coef_, probe.intercept_ = np.zeros((len(logistic.coef_), X.shape[1])), logistic.intercept_
            probe.coef_[:, neurons] = logistic.coef_

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {**super()._shapes(), "neurons_": (self.neurons_.size,)}

    def _check_arrays(self) -> None:
        super()._check_arrays()
        elsewhere = np.delete(self.coef_, self.neurons_, axis=1)  # raises IndexError if they are not features
        if elsewhere.any():
            raise ValueError("weights for features that the probe does not use")


def _rank(X: Tensor | Stream, labels: Labels, method: str) -> tuple[Ranking, int]:
    """The ranking, and how many features vary: the others come last."""
    if method not in METHODS:
        raise UsageError(f"unknown method {method!a}; {nearest(str(method), METHODS)}")
    stream = X if isinstance(X, Stream) else Stream(len(X), X.shape[1], lambda: iter([X]))
    counts, means = class_means(stream, labels.values, labels.n_classes)
    mean = counts @ means / stream.n
    scale = scale_of(squares_around(stream, mean) / stream.n, mean, stream.n)
    varying = int(np.isfinite(scale).sum())
    own = slice(1, None) if labels.n_classes == 2 else slice(None)  # for two classes, one target is enough
    share = counts[own] / stream.n
    differences = np.abs((means[own] - mean) / (1 - share)[:, None] / scale).max(axis=0)
    if method == "mean-difference":
        order = np.lexsort((-differences, ~np.isfinite(scale)))
        return Ranking(order, differences[order]), varying
    Z = (held(X) if isinstance(X, Stream) else X).double().numpy()
    Z = (Z - mean) / scale
    targets = (labels.values[:, None] == np.arange(labels.n_classes)[own]) - share
    entered = _entered(Z, targets, Z.T @ targets)
    order = np.lexsort((-differences, -entered, ~np.isfinite(scale)))
    return Ranking(order, entered[order]), varying


def feature_columns(X: Tensor | Stream, columns: np.ndarray) -> Tensor:
    """Some of the features of all rows, in the order of the labels: float64 [N, k]."""
    which = torch.from_numpy(columns)
    if isinstance(X, Tensor):
        return X[:, which.to(X.device)].cpu().double()
    if isinstance(X, SparseRows):
        return torch.from_numpy(X.matrix[:, columns].toarray()).double()
    found = torch.empty(X.n, len(columns), dtype=torch.float64)
    for rows, block in with_numbers(X):
        found[torch.from_numpy(rows)] = block[:, which].double()
        del block
    return found


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
