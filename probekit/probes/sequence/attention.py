"""A probe with attention: one learned query weighs the tokens of a text, and a linear read-out takes their sum.

The objective is not convex, so no fit is certified. Every fit starts at several places: at the mean of the tokens
(query 0) with the read-out of a logistic probe, at queries along this read-out and against it, and at random queries.
The lowest objective is taken.

Axes: N texts, L tokens of one text, D features, C classes, K outputs (1 for two classes, else C), P problems.
"""

import warnings
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from probekit.options.check import check_positive, check_strength, check_whole
from probekit.probes.base import scale_of
from probekit.probes.logistic.probe import LogisticProbe
from probekit.probes.problem import ProblemSet, by_weighting, subset
from probekit.probes.sequence.base import SequenceProbe, weights_of
from probekit.probes.sequence.lbfgs import BatchedLBFGS
from probekit.probes.sequence.objective import (
    AttentionProblems,
    attended,
    objective,
    packed,
    softmax_within,
    some_problems,
    unpacked,
)
from probekit.probes.sequence.ragged import Ragged, as_ragged, mean_and_variance, pooled_rows, text_parts
from probekit.threads import one_thread

TOLERANCE = 1e-5
FIRST = 30  # passes of every start; then the best `CONTINUED` of each problem go on
CONTINUED = 2
SPREAD = 2.0  # standard deviations of a query's scores over the tokens at the start
MOST_DIRECTIONS = 4  # classes whose read-outs are starts


class AttentionProbe(SequenceProbe):
    """A text scores the sum of its tokens' linear scores, weighted by the softmax of query . token over the text.

    The objective is 0.5 (|query|^2 + |weights|^2) + C * (sum of log losses over texts), on standardised tokens; the
    intercept is not penalised. Minimised by L-BFGS in float64.

    Args:
        C: inverse strength of the regularisation.
        n_random: random starts, besides those at and around the mean.
        tol: the fit has converged where the norm of the gradient is at most tol * (1 + C * texts).
        max_iter: passes over the tokens after which the fit is returned unconverged.
        random_state: seeds the random starts.

    Attributes:
        query_: float64 [D]; applies to raw tokens.
        coef_: float64 [1, D] for two classes, [C, D] for more; applies to raw tokens.
        intercept_: float64 [1] or [C].
        objective_: the objective at the solution.
        gradient_norm_: the norm of its gradient.
        starts_: how many starts there were.
        n_iter_: passes over the tokens.
    """

    has_C = True
    strengths = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
    ARRAYS = ("query_", "coef_", "intercept_")
    FACTS = ("objective_", "gradient_norm_", "starts_")
    query_: np.ndarray
    coef_: np.ndarray
    intercept_: np.ndarray
    objective_: float
    gradient_norm_: float
    starts_: float

    def __init__(
        self,
        C: float = 1.0,
        n_random: int = 2,
        tol: float = TOLERANCE,
        max_iter: int = 500,
        random_state: int = 0,
    ):
        self.C = C
        self.n_random = n_random
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """As `SequenceProbe.fit`; warns if the solver did not converge."""
        super().fit(X, y)
        if not self.converged_:
            warnings.warn(
                f"not converged after {self.n_iter_} passes: the norm of the gradient is {self.gradient_norm_:.1e}; "
                "take a smaller C or a larger max_iter",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def attention(self, X: Any) -> list[np.ndarray]:
        """The weight of each token in its text, N arrays [L] that sum to 1."""
        check_is_fitted(self)
        X = as_ragged(X, self.n_features_in_)
        found: list[np.ndarray] = [np.empty(0)] * len(X)
        for part in text_parts(X):
            weights = softmax_within(part.rows.double().cpu().numpy() @ self.query_, part.lengths)
            for text, own in zip(part.texts, np.split(weights, np.cumsum(part.lengths)[:-1]), strict=True):
                found[text] = own
        return found

    def _part_scores(self, rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        scores = (rows @ self.coef_.T)[:, None]
        return attended((rows @ self.query_)[:, None], scores, lengths)[0][:, 0] + self.intercept_

    def _fit_copies(self, probes: Sequence[Self], X: Ragged, problems: ProblemSet) -> None:
        check_positive("tol", self.tol)
        check_whole("max_iter", self.max_iter)
        check_whole("n_random", self.n_random, 0)
        for probe in probes:
            check_strength("C", probe.C, without_penalty=False)
        means = pooled_rows(X, "mean")
        with one_thread():
            for which in by_weighting(problems).values():
                by_outputs: dict[int, list[int]] = {}
                for p in which:
                    by_outputs.setdefault(len(probes[p].classes_), []).append(p)
                for numbers in by_outputs.values():
                    self._fit_group([probes[p] for p in numbers], X, subset(problems, numbers), means)

    def _fit_group(
        self, probes: Sequence["AttentionProbe"], X: Ragged, problems: ProblemSet, means: torch.Tensor
    ) -> None:
        """Fit problems with the same weights and number of classes."""
        weights = weights_of(problems, 0, len(X))
        mean, variance = mean_and_variance(X, weights)
        scale = scale_of(variance, mean, int(X.lengths.sum()))
        labels = np.stack([problems.labels[problem.label].values for problem in problems.problems])
        P, C = len(probes), np.array([probe.C for probe in probes])
        outputs = 1 if len(probes[0].classes_) == 2 else len(probes[0].classes_)
        shared = AttentionProblems(X, mean, scale, labels, np.tile(weights, (P, 1)), C, outputs)
        linear = LogisticProbe().fit_many(means, problems)
        starts = self._starts(linear, shared)  # [P, S, M]
        S, M = starts.shape[1:]
        every = some_problems(shared, np.repeat(np.arange(P), S))
        small = self.tol * (1 + every.C * weights.sum())
        solver = BatchedLBFGS(
            lambda which, at: objective(some_problems(every, which), at), starts.reshape(-1, M), small
        )
        first = min(FIRST, self.max_iter)
        values = solver.run(first).value.reshape(P, S)
        rank = np.argsort(np.argsort(values, axis=1, kind="stable"), axis=1)
        found = solver.run(self.max_iter - first, drop=(rank >= CONTINUED).reshape(-1))
        for p, probe in enumerate(probes):
            best = p * S + int(found.value[p * S : (p + 1) * S].argmin())
            q, W, b = (each[0] for each in unpacked(found.theta[best : best + 1], X.width))
            probe.query_, probe.coef_ = q / scale, W / scale
            probe.intercept_ = b - probe.coef_ @ mean
            probe.objective_, probe.n_iter_ = float(found.value[best]), int(found.passes[best])
            probe.gradient_norm_ = float(np.linalg.norm(found.gradient[best]))
            probe.starts_, probe.converged_ = float(S), probe.gradient_norm_ <= small[best]

    def _starts(self, linear: Sequence[Any], shared: AttentionProblems) -> np.ndarray:
        """The starts of each problem, [P, S, M]: query 0, queries along the read-outs, and random ones."""
        D, scale = shared.X.width, np.where(np.isinf(shared.scale), 0, shared.scale)
        W = np.stack([probe.coef_ for probe in linear]) * scale  # [P, K, D], for standardised tokens
        b = np.stack([probe.intercept_ + probe.coef_ @ shared.mean for probe in linear])
        along = W[:, :MOST_DIRECTIONS]
        rng = np.random.default_rng(self.random_state)
        drawn = np.broadcast_to(rng.normal(size=(self.n_random, D)), (len(W), self.n_random, D))
        queries = np.concatenate([along, -along, drawn], axis=1)  # [P, S - 1, D]
        queries = queries * (SPREAD / np.maximum(_spread(queries, shared), 1e-12))[:, :, None]
        queries = np.concatenate([np.zeros((len(W), 1, D)), queries], axis=1)
        return np.stack([packed(queries[:, s], W, b) for s in range(queries.shape[1])], axis=1)


def _spread(queries: np.ndarray, shared: AttentionProblems) -> np.ndarray:
    """The standard deviation of the scores of queries [P, S, D] over the tokens, [P, S]."""
    P, S, D = queries.shape
    columns = np.ascontiguousarray((queries / shared.scale).reshape(P * S, D).T)
    total, n = np.zeros(P * S), 0
    for part in text_parts(shared.X):
        scores = (part.rows.double().cpu().numpy() - shared.mean) @ columns
        total, n = total + np.square(scores).sum(axis=0), n + len(scores)
    return np.sqrt(total / n).reshape(P, S)
