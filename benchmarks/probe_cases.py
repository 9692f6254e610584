"""The problems of benchmarks/probes.py: features with the spectrum of activations, and labels of several kinds.

Axes: N rows, D features, K score columns (1 for two classes).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from probekit.evaluation.compare.codelength import OnlineCode

FIVE = tuple(10.0**k for k in range(-3, 2))
NINE = tuple(10.0**k for k in range(-4, 5))  # the grid of `train-probe`


class Fit(NamedTuple):
    """One fit as scikit-learn takes it; the features are standardised unless the case is raw."""

    X: np.ndarray
    y: np.ndarray
    C: float


@dataclass(frozen=True)
class Case:
    """A layer of n rows and d features.

    Attributes:
        labels: "follow" the features with noise, "separable" ones without; "control": a random label for each token,
            where tokens are drawn by Zipf's law and a row is its token's vector and noise; "prefixes": the fits of the
            online code, each prefix standardised by itself.
        label_sets: the first as said, the others its shuffles.
        alone: where the others would take many minutes.
        same_gap: whether lbfgs is also run, in float64, until it is as near to the optimum as ours.
    """

    n: int
    d: int = 768
    C: tuple[float, ...] = FIVE
    labels: str = "follow"
    raw: bool = False
    n_classes: int = 2
    label_sets: int = 1
    alone: bool = False
    same_gap: bool = False

    def __str__(self) -> str:
        what = f"{self.n:,} x {self.d:,}" + (", raw" if self.raw else "")
        what += "" if self.labels == "follow" else f", {self.labels}"
        what += f", {self.n_classes:,} classes" if self.n_classes > 2 else ""
        return what + f", {self.label_sets * len(self.C)} C"

    def data(self, seed: int = 0) -> tuple[np.ndarray, list[np.ndarray]]:
        """Float32 features [N, D] and the label sets [N]."""
        rng = np.random.default_rng(seed)
        mix = rng.normal(size=(self.d, self.d)).astype(np.float32) * np.arange(1, self.d + 1, dtype=np.float32) ** -0.7
        X, y = rng.standard_normal((self.n, self.d), dtype=np.float32), None
        if self.labels == "control":
            token = zipf(rng, self.n)
            X = 0.5 * X + rng.standard_normal((self.n, self.d), dtype=np.float32)[token]
            y = rng.integers(2, size=self.n)[token]
        X = X @ mix.T
        if y is None:
            logits = 3 * X / X.std(axis=0) @ rng.normal(size=(self.d, self.n_classes)) / np.sqrt(self.d)
            y = (logits + (self.labels != "separable") * rng.gumbel(size=logits.shape)).argmax(axis=1)
            y = np.unique(y, return_inverse=True)[1]  # of a thousand classes some may not occur
        if self.raw:
            X[:, 7] = X[:, 7] * 100 + 3000 * np.median(np.abs(X))
        else:
            X = (X - X.mean(axis=0)) / X.std(axis=0)
        return X, [y, *(rng.permutation(y) for _ in range(self.label_sets - 1))]


CASES = [
    Case(300, C=NINE),
    Case(2_000, C=NINE),
    Case(2_000, C=NINE, labels="control"),
    Case(2_000, C=NINE, labels="separable"),
    Case(2_000, labels="prefixes"),
    Case(1_000, d=4096, C=NINE),
    Case(1_000),
    Case(6_000, d=512),
    Case(10_000),
    Case(67_000),
    Case(10_000, raw=True),
    Case(10_000, labels="separable"),
    Case(67_000, raw=True, alone=True),
    Case(67_000, labels="separable", alone=True),
    Case(10_000, n_classes=10, same_gap=True),
    Case(5_000, d=1_024, n_classes=100, same_gap=True),
    Case(10_000, d=64, n_classes=1_000, C=(1e-2, 1.0)),
    Case(10_000, n_classes=1_000, C=(1e-2, 1.0)),
    Case(10_000, d=4096, same_gap=True),
]


def zipf(rng: np.random.Generator, n: int) -> np.ndarray:
    """n tokens of as many types, the k-th as likely as 1 / k."""
    likely = 1 / np.arange(1, n + 1)
    return rng.choice(n, size=n, p=likely / likely.sum())


def online_code(case: Case, y: np.ndarray) -> OnlineCode:
    return OnlineCode(y, case.n_classes, np.arange(len(y)), case.C)


def fits(case: Case, X: np.ndarray, ys: list[np.ndarray]) -> Iterator[Fit]:
    """In the order of our problems."""
    if case.labels != "prefixes":
        yield from (Fit(X, y, c) for y in ys for c in case.C)
        return
    code = online_code(case, ys[0])
    for end in code.prefixes:
        rows = code.order[:end]
        yield from (Fit(standardised(X[rows]), ys[0][rows], c) for c in case.C)


def standardised(X: np.ndarray) -> np.ndarray:
    """In float64: what is said about distances of 1e-7 must not depend on how this was rounded."""
    X = X.astype(np.float64)
    return (X - X.mean(axis=0)) / X.std(axis=0)


def objective(fit: Fit, coef: np.ndarray, intercept: np.ndarray) -> float:
    """0.5 |w|^2 + C * (sum of log losses), from its definition, in float64."""
    X, coef, z = fit.X, coef.astype(np.float64), np.empty((len(fit.X), len(coef)))
    for start in range(0, len(X), 8192):
        z[start : start + 8192] = X[start : start + 8192].astype(np.float64) @ coef.T + intercept
    if len(coef) == 1:
        z = z * [-0.5, 0.5]  # the same as two scores that differ by it
    loss = np.logaddexp.reduce(z, axis=1) - z[np.arange(len(X)), fit.y]
    return float(0.5 * (coef**2).sum() + fit.C * loss.sum())
