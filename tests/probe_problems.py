"""Features and labels for tests of probes, and optima of logistic regressions by newton-cholesky."""

import warnings

import numpy as np
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression


def problem(n=300, d=12, n_classes=2, seed=0, names=None):
    """Features of very different scales, one constant and one doubled, with labels that depend on them noisily."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = (X @ rng.normal(size=(d, n_classes)) + 2 * rng.gumbel(size=(n, n_classes))).argmax(axis=1)
    X = X * np.logspace(-3, 3, d) + rng.normal(size=d)
    X[:, 3], X[:, 5] = 0.1, X[:, 4]
    return X, y if names is None else np.array(names)[y]


def world(n=300, d=12, n_classes=2, seed=0, noise=1.0):
    """Correlated features of several scales, which float32 holds, and labels that depend on them; no class is empty."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) / np.sqrt(d) * np.logspace(-1, 1, d)
    logits = X / X.std(axis=0) @ rng.normal(size=(d, n_classes))
    y = (logits + noise * rng.gumbel(size=logits.shape)).argmax(axis=1)
    for missing in np.setdiff1d(np.arange(n_classes), y):
        y[np.flatnonzero(y == np.bincount(y).argmax())[0]] = missing  # of the largest class, which keeps some
    return X.astype(np.float32).astype(np.float64), y


def standardised(X, weights=None):
    """Centred, and divided by the standard deviation; a column that does not vary becomes 0."""
    mean = np.average(X, axis=0, weights=weights)
    scale = np.sqrt(np.average((X - mean) ** 2, axis=0, weights=weights))
    return (X - mean) / np.where(scale > 1e-12, scale, 1)


def objective(X, y, C, coef, intercept, weights=1.0):
    """0.5 |w|^2 + C * (weighted sum of log losses), in float64 and from its definition."""
    z = X @ coef.T + intercept
    loss = logsumexp(z, axis=1) - z[np.arange(len(y)), y] if len(coef) > 1 else np.logaddexp(0, -z[:, 0] * (2 * y - 1))
    return 0.5 * (coef**2).sum() + C * (weights * loss).sum()


def oracle(X, y, C, weights=None):
    """The model of newton-cholesky at its sharpest, and its objective."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says so when it can go no further down
        model = LogisticRegression(C=C, solver="newton-cholesky", tol=1e-12, max_iter=500).fit(X, y, weights)
    return model, objective(X, y, C, model.coef_, model.intercept_, 1.0 if weights is None else weights)
