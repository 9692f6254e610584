"""Features and labels for tests of probes."""

import numpy as np


def problem(n=300, d=12, n_classes=2, seed=0, names=None):
    """Features of very different scales, one constant and one doubled, with labels that depend on them noisily."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = (X @ rng.normal(size=(d, n_classes)) + 2 * rng.gumbel(size=(n, n_classes))).argmax(axis=1)
    X = X * np.logspace(-3, 3, d) + rng.normal(size=d)
    X[:, 3], X[:, 5] = 0.1, X[:, 4]
    return X, y if names is None else np.array(names)[y]
