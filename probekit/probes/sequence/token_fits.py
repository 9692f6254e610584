"""Linear probes of tokens that have their text's label; each text counts once, whatever its length.

The solvers are those of the probes of rows: logistic regression takes a weight 1 / L for each token of a text of L, and
ridge, LDA and mean differences take the weighted moments.

Axes: N texts, T tokens, D features, C classes.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from probekit.errors import DataError
from probekit.probes.base import rows_of, scale_of
from probekit.probes.lda import LDAProbe
from probekit.probes.logistic.probe import LogisticProbe
from probekit.probes.mean_difference import MeanDifferenceProbe
from probekit.probes.problem import Labels, ProblemSet
from probekit.probes.ridge import RidgeProbe
from probekit.probes.row_moments import RowMoments
from probekit.probes.sequence.base import weights_of
from probekit.probes.sequence.ragged import Ragged, mean_token, text_parts, token_weights
from probekit.probes.stream import Stream

TOKEN_PROBES: dict[str, type[Any]] = {
    "logistic": LogisticProbe,
    "ridge": RidgeProbe,
    "lda": LDAProbe,
    "mean-diff": MeanDifferenceProbe,
}


def token_fits(name: str, X: Ragged, problems: ProblemSet, strengths: Sequence[float]) -> Sequence[Any]:
    """The linear probe of each problem, fitted to tokens; labels and weights of the problems are of texts."""
    own = tuple(p._replace(C=C) for p, C in zip(problems.problems, strengths, strict=True))
    if name == "logistic":
        return LogisticProbe().fit_many(_rows(X), _of_tokens(X, ProblemSet(problems.labels, problems.weightings, own)))
    known: dict[tuple[int, int], RowMoments] = {}
    found = []
    for number, problem in enumerate(own):
        key, labels = problem[:2], problems.labels[problem.label]
        weights = weights_of(problems, number, len(X))
        if key not in known:
            known[key] = token_moments(X, labels, weights)
        moments = known[key]
        probe = RidgeProbe(problem.C) if name == "ridge" else TOKEN_PROBES[name]()  # pyright: ignore
        if name == "lda":
            probe = LDAProbe(_shrinkage(X, labels.values, weights, moments))
        found.append(probe.fit_statistics(*vars(moments).values()))
    return found


def token_moments(X: Ragged, labels: Labels, weights: np.ndarray) -> RowMoments:
    """The moments of tokens whose weights sum to that of their text, which is 0 or 1."""
    rows_of(weights)
    counts = np.bincount(labels.values, weights, minlength=labels.n_classes)
    mean = mean_token(X, weights)
    sums, products = np.zeros((labels.n_classes, X.width)), np.zeros((X.width, X.width))
    for part in text_parts(X):
        w = token_weights(part, weights)
        if w.any():
            centred = part.rows.double().cpu().numpy() - mean
            products += centred.T @ (w[:, None] * centred)
            each = np.repeat(labels.values[part.texts], part.lengths)
            sums += ((each == np.arange(labels.n_classes)[:, None]) * w) @ centred
    n = weights.sum()
    return RowMoments(int(n), mean, products / n, counts, mean + sums / np.maximum(counts, 1)[:, None])


def _shrinkage(X: Ragged, labels: np.ndarray, weights: np.ndarray, moments: RowMoments) -> float:
    """Ledoit and Wolf's shrinkage of the standardised covariance within classes, with n the number of texts.

    Tokens of a text depend on one another, so their number would promise a covariance that is known too well.
    """
    n, D = moments.count, len(moments.mean)
    if n <= len(moments.class_counts):
        raise DataError(f"LDA needs more texts than classes, got {n} of {len(moments.class_counts)} classes; add texts")
    scale = scale_of(moments.covariance.diagonal(), moments.mean, int(X.lengths.sum()))
    means = (moments.class_means - moments.mean) / scale
    S = moments.covariance / scale / scale[:, None] - (moments.class_counts * means.T) @ means / n
    fourth = 0.0
    for part in text_parts(X):
        w = token_weights(part, weights)
        own = moments.class_means[np.repeat(labels[part.texts], part.lengths)]
        fourth += float(w @ np.square(np.square((part.rows.double().cpu().numpy() - own) / scale).sum(axis=1)))
    size, trace = float(np.square(S).sum()), float(np.trace(S))
    distance = (size - trace**2 / D) / D
    noise = min((fourth / n - size) / (n * D), distance)
    return float(np.clip(noise / distance, 0, 1)) if distance > 0 else 1.0


def _rows(X: Ragged) -> Tensor | Stream:
    if X.values is not None:
        return X.values

    def read() -> Iterator[Tensor]:
        return (part.rows for part in text_parts(X))

    starts = np.cumsum(X.lengths) - X.lengths
    order = [
        np.repeat(starts[part.texts] - np.cumsum(part.lengths) + part.lengths, part.lengths) + np.arange(len(part.rows))
        for part in text_parts(X)
    ]
    return Stream(int(X.lengths.sum()), X.width, read, np.concatenate(order))


def _of_tokens(X: Ragged, problems: ProblemSet) -> ProblemSet:
    """The problems with a label and a weight for each token."""
    share = np.repeat(1 / X.lengths, X.lengths)
    labels = tuple(Labels(np.repeat(each.values, X.lengths), each.n_classes) for each in problems.labels)
    weightings = tuple(share if w is None else np.repeat(w, X.lengths) * share for w in problems.weightings)
    return ProblemSet(labels, weightings, problems.problems)
