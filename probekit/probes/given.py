"""What is wrong with the features that a fitted probe is given, in words.

Axes: N examples, D features.
"""

from typing import Any

import numpy as np

OTHER_NAMES = "The feature names should match"  # how scikit-learn's own list of wrong columns begins


def flaw_of_features(probe: Any, X: Any, error: ValueError) -> str | None:
    """What to say of features that scikit-learn refused for a fitted probe; None where its own words are best.

    The words that scikit-learn's `check_estimator` looks for are in them.

    Args:
        probe: fitted to `n_features_in_` features.
        X: what it was given, not [N, D] or not finite.
        error: what scikit-learn says.
    """
    try:
        array = X if hasattr(X, "ndim") else np.asarray(X)
        if str(error).startswith(OTHER_NAMES) or not array.ndim:
            return None
    except ValueError:  # lists of several lengths
        return None
    name, D, found = type(probe).__name__, probe.n_features_in_, list(array.shape)
    wanted = f"expected activations [rows, {D}], as {name} was fitted to, got {found}"
    if array.ndim != 2:
        return f"{wanted}. Reshape your data: {'X[None] is one row' if array.ndim == 1 else f'X.reshape(-1, {D})'}"
    if array.shape[1] != D:
        return (
            f"{wanted}: X has {found[1]} features, but {name} is expecting {D} features as input; give activations of "
            "the model and the place that it was fitted to"
        )
    try:
        finite = np.isfinite(np.asarray(array, dtype=np.float64)).all(axis=1)
    except (TypeError, ValueError):  # sparse, or no numbers
        return None
    if finite.all():
        return None
    return (
        f"expected finite activations, got NaN or inf in row {int(finite.argmin())} ({int((~finite).sum())} of "
        f"{found[0]} rows); leave these rows out, or extract them again in float32"
    )
