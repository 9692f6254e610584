"""A probe with attention: one learned query weighs the tokens of a text, and a linear read-out takes their sum.

The objective is not convex, so no fit is certified. Under a weak penalty, starts end in many minima of different value,
so the fits follow a path from a strong penalty to each C, by factors of ten at most. The first C of the path starts at
the mean of the tokens (query 0) with the read-out of a logistic probe, and at queries along this read-out and against
it; each of the others at the two lowest minima of the one before. Every C also has random starts. After some passes the
lowest go on.

A problem has a query q, weights W and an intercept b on standardised tokens z. A text with the tokens z_t scores

    sum_t softmax_t(q . z_t) (W z_t) + b,

and scores of tokens are two products with the rows, so a pass reads each token once for all problems.

Axes: N texts, L tokens of one text, D features, C classes, K outputs (1 for two classes, else C), P problems,
M = D + K D + K parameters, n and t texts and tokens of a part.
"""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from scipy.special import expit, log_softmax

from probekit.machine.threads import one_thread
from probekit.options.check import check_positive, check_strength, check_whole
from probekit.probes.base import scale_of
from probekit.probes.lbfgs import BatchedLBFGS, Minima, Precondition
from probekit.probes.logistic.probe import LogisticProbe
from probekit.probes.problem import Labels, ProblemSet, by_weighting, every_problem, subset
from probekit.probes.scikit_learn import check_is_fitted
from probekit.probes.sequence.base import SequenceProbe, weights_of
from probekit.probes.sequence.ragged import (
    Ragged,
    TextPart,
    as_ragged,
    attended,
    by_text,
    in_doubles,
    pooled_rows,
    softmax_within,
    take_texts,
    text_parts,
    token_moments,
)

TOLERANCE = 1e-4  # `size` of `honesty` at resid_pre.1, C = 10: objective 195.8; 196.2 at 3e-4, 200.1 at 1e-3
TEN = 10 * (1 + 1e-9)  # the largest factor between one C of the path and the next, but for rounding
FIRST = 3.0  # C * texts where the path of penalties begins
TRIAL, GO_ON = 20, 2  # passes of every start, and how many starts then go on; not tuned
CURVATURE = 0.05  # guess of p (1 - p) in the preconditioner, which is at most 0.25
SAME = 1e-6  # relative difference of objectives at which two minima count as one
SPREAD, SMALL = 2.0, 0.2  # standard deviations over the tokens of a query's scores and of a read-out's, at a start
MOST_DIRECTIONS = 4  # classes whose read-outs are starts


@dataclass(frozen=True, eq=False)
class AttentionProblems:
    """Fits that share their tokens.

    Attributes:
        X: tokens of N texts.
        mean: of the tokens, [D].
        scale: of the tokens, [D]; infinite for a constant feature.
        labels: classes 0..C-1 of each text, int64 [P, N].
        weights: of each text, float64 [P, N].
        C: [P].
        outputs: K.
    """

    X: Ragged
    mean: np.ndarray
    scale: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    C: np.ndarray
    outputs: int


class AttentionProbe(SequenceProbe):
    """A text scores the sum of its tokens' linear scores, weighted by the softmax of query . token over the text.

    The objective is 0.5 (|query|^2 + |weights|^2) + C * (sum of log losses over texts), on standardised tokens; the
    intercept is not penalised. Minimised by L-BFGS in float64, preconditioned by the covariance of the tokens.

    Args:
        C: inverse strength of the regularisation.
        n_random: random starts at each C of the path.
        tol: the fit has converged where the norm of the gradient is at most tol * (1 + C * texts).
        max_iter: passes over the tokens, for each C of the path, after which the fit is returned unconverged.
        random_state: seeds the random starts.

    Attributes:
        query_: float64 [D]; applies to raw tokens.
        coef_: float64 [1, D] for two classes, [C, D] for more; applies to raw tokens.
        intercept_: float64 [1] or [C].
        objective_: the objective at the solution.
        gradient_norm_: the norm of its gradient.
        n_iter_: passes over the tokens, along the path.
    """

    has_C = True
    state = "local minima, converged by the norm of the gradient and not certified"
    strengths = (1e-2, 1e-1, 1.0, 10.0)
    ARRAYS = ("query_", "coef_", "intercept_")
    FACTS = ("objective_", "gradient_norm_")
    query_: np.ndarray
    coef_: np.ndarray
    intercept_: np.ndarray
    objective_: float
    gradient_norm_: float

    def __init__(
        self,
        C: float = 1.0,
        n_random: int = 6,
        tol: float = TOLERANCE,
        max_iter: int = 1000,
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
            from sklearn.exceptions import ConvergenceWarning  # see `probes.scikit_learn`

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
        return by_text(X, lambda rows, lengths: softmax_within(rows @ self.query_, lengths))

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        K, D = self._n_outputs, self.query_.size
        return {"query_": (D,), "coef_": (K, D), "intercept_": (K,)}

    def _part_scores(self, rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        scores = (rows @ self.coef_.T)[:, None]
        return attended((rows @ self.query_)[:, None], scores, lengths)[0][:, 0] + self.intercept_

    def _fit_copies(self, probes: Sequence[Any], X: Ragged, problems: ProblemSet) -> None:
        check_positive("tol", self.tol)
        check_whole("max_iter", self.max_iter)
        check_whole("n_random", self.n_random, 0)
        for probe in probes:
            check_strength("C", probe.C, without_penalty=False)
        with one_thread():
            for which in by_weighting(problems).values():
                by_outputs: dict[int, list[int]] = {}
                for p in which:
                    by_outputs.setdefault(probes[p]._n_outputs, []).append(p)
                for numbers in by_outputs.values():
                    self._fit_path([probes[p] for p in numbers], X, subset(problems, numbers))

    def _fit_path(self, probes: Sequence["AttentionProbe"], X: Ragged, problems: ProblemSet) -> None:
        """Fit problems with the same weights and number of classes, from a strong penalty to each of their C."""
        weights = weights_of(problems, 0, len(X))
        texts = np.flatnonzero(weights)
        X, weights = in_doubles(take_texts(X, texts)), weights[texts]
        columns = [Labels(each.values[texts], each.n_classes) for each in problems.labels]
        moments = token_moments(X, columns[0], weights)
        mean = moments.mean
        scale = scale_of(moments.covariance.diagonal(), mean, int(X.lengths.sum()))
        covariance = moments.covariance / scale / scale[:, None]
        P, n, outputs = len(columns), weights.sum(), probes[0]._n_outputs
        labels = np.stack([each.values for each in columns])
        path = path_to({probe.C for probe in probes}, n)
        shared = AttentionProblems(X, mean, scale, labels, np.tile(weights, (P, 1)), np.full(P, path[0]), outputs)
        linear = LogisticProbe().fit_many(pooled_rows(X, "mean"), every_problem(columns, [path[0]], [weights]))
        rng = np.random.default_rng(self.random_state)
        starts, passes = _linear_starts(linear, shared, covariance), 0  # [P, S, M]
        for C in path:
            small = self.tol * (1 + C * n)
            starts = np.concatenate([starts, _random_starts(self.n_random, rng, shared, covariance)], axis=1)
            found = _minima(replace(shared, C=np.full(P, C)), starts, covariance, small, self.max_iter)
            passes += int(found.passes.max())
            starts = _best_two(found, P)
            for probe, problem in zip(probes, problems.problems, strict=True):
                if probe.C == C:
                    best = problem.label * len(found.value) // P  # of this label's starts
                    own = slice(best, best + len(found.value) // P)
                    probe._take(found, best + int(found.value[own].argmin()), shared, small)
                    probe.n_iter_ = passes

    def _take(self, found: Minima, best: int, shared: AttentionProblems, small: float) -> None:
        q, W, b = (each[0] for each in split_parameters(found.theta[best : best + 1], shared.X.width))
        self.query_, self.coef_ = q / shared.scale, W / shared.scale
        self.intercept_ = b - self.coef_ @ shared.mean
        self.objective_ = float(found.value[best])
        self.gradient_norm_ = float(np.linalg.norm(found.gradient[best]))
        self.converged_ = self.gradient_norm_ <= small


def _linear_starts(linear: Sequence[Any], shared: AttentionProblems, covariance: np.ndarray) -> np.ndarray:
    """Query 0 with the read-outs of linear probes of the mean, and queries along and against these: [P, S, M]."""
    scale = np.where(np.isinf(shared.scale), 0, shared.scale)
    W = np.stack([probe.coef_ for probe in linear]) * scale  # [P, K, D], for standardised tokens
    b = np.stack([probe.intercept_ + probe.coef_ @ shared.mean for probe in linear])
    along = W[:, :MOST_DIRECTIONS]
    queries = _of_spread(np.concatenate([along, -along], axis=1), SPREAD, covariance)
    queries = np.concatenate([np.zeros_like(queries[:, :1]), queries], axis=1)
    return np.stack([joined_parameters(queries[:, s], W, b) for s in range(queries.shape[1])], axis=1)


def _random_starts(
    count: int, rng: np.random.Generator, shared: AttentionProblems, covariance: np.ndarray
) -> np.ndarray:
    """Random queries, with small random read-outs that the first steps can turn: [P, S, M]."""
    P, D, K = len(shared.C), shared.X.width, shared.outputs
    queries = _of_spread(rng.normal(size=(1, count, D)), SPREAD, covariance)
    W = _of_spread(rng.normal(size=(1, count * K, D)), SMALL, covariance)
    start = joined_parameters(queries[0], W.reshape(count, K, D), np.zeros((count, K)))
    return np.broadcast_to(start, (P, *start.shape))


def _of_spread(directions: np.ndarray, spread: float, covariance: np.ndarray) -> np.ndarray:
    """Directions [P, S, D] with a length at which their scores have this standard deviation over the tokens."""
    found = np.sqrt(np.maximum(((directions @ covariance) * directions).sum(axis=2), 0))
    return directions * (spread / np.maximum(found, np.finfo(np.float32).tiny))[:, :, None]


def _preconditioner(covariance: np.ndarray, strength: float, K: int) -> Precondition:
    """The inverse of I + strength * covariance for the query and each output, of the strength for the intercepts.

    It is the inverse Hessian of logistic regression on tokens with these covariances.
    """
    D = len(covariance)
    inverse = np.linalg.inv(np.eye(D) + strength * covariance)

    def times(g: np.ndarray) -> np.ndarray:
        weights = (g[:, :-K].reshape(-1, D) @ inverse).reshape(len(g), (K + 1) * D)
        return np.concatenate([weights, g[:, -K:] / strength], axis=1)

    return times


def path_to(strengths: Iterable[float], n: float) -> list[float]:
    """These C, from one at which the penalty all but decides, and others between them: no step is over ten; rising."""
    wanted = sorted(set(strengths))
    path = [min(FIRST / n, wanted[0])]
    for C in wanted:
        while path[-1] * TEN < C:
            path.append(path[-1] * 10)
        if path[-1] < C:
            path.append(C)
    return path


def _minima(
    shared: AttentionProblems, starts: np.ndarray, covariance: np.ndarray, small: float, max_iter: int
) -> Minima:
    """A minimum of each problem from each of its starts [P, S, M]; problem by problem."""
    P, S, M = starts.shape
    every = some_problems(shared, np.repeat(np.arange(P), S))
    solver = BatchedLBFGS(
        lambda which, at: objective(some_problems(every, which), at),
        starts.reshape(-1, M),
        np.full(P * S, small),
        _preconditioner(covariance, CURVATURE * shared.C[0] * shared.weights[0].sum(), shared.outputs),
    )
    values = solver.run(min(TRIAL, max_iter)).value.reshape(P, S)
    rank = values.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    return solver.run(max_iter - TRIAL, without=(rank >= GO_ON).reshape(-1))


def _best_two(found: Minima, P: int) -> np.ndarray:
    """The lowest minimum of each problem, and the lowest that differs from it, or itself again: [P, 2, M]."""
    values, theta = found.value.reshape(P, -1), found.theta.reshape(P, -1, found.theta.shape[1])
    best = values.argmin(axis=1)
    lowest = values[np.arange(P), best]
    others = np.where(values > lowest[:, None] * (1 + SAME), values, np.inf)
    second = np.where(np.isfinite(others.min(axis=1)), others.argmin(axis=1), best)
    return np.stack([theta[np.arange(P), best], theta[np.arange(P), second]], axis=1)


def some_problems(problems: AttentionProblems, which: np.ndarray) -> AttentionProblems:
    """Some of the problems, by number."""
    own = {name: getattr(problems, name)[which] for name in ("labels", "weights", "C")}
    return AttentionProblems(**{**vars(problems), **own})


def split_parameters(theta: np.ndarray, D: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Parameters [P, M] as queries [P, D], weights [P, K, D] and intercepts [P, K]."""
    K = (theta.shape[1] - D) // (D + 1)
    return theta[:, :D], theta[:, D : D + K * D].reshape(-1, K, D), theta[:, D + K * D :]


def joined_parameters(q_PD: np.ndarray, W_PKD: np.ndarray, b_PK: np.ndarray) -> np.ndarray:
    """Queries, weights and intercepts as parameters [P, M]."""
    return np.concatenate([q_PD, W_PKD.reshape(len(W_PKD), math.prod(W_PKD.shape[1:])), b_PK], axis=1)


def objective(problems: AttentionProblems, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The objective [P] and its gradient [P, M] at parameters [P, M]."""
    D, K = problems.X.width, problems.outputs
    q, W, b = split_parameters(theta, D)
    P = len(q)
    columns = np.concatenate([q, W.reshape(P * K, D)]) / problems.scale  # [P + P K, D], for raw tokens
    shift = b - (columns[P:] @ problems.mean).reshape(P, K)  # since z = (x - mean) / scale
    value, g_b = np.zeros(P), np.zeros((P, K))
    g_raw = np.zeros((P + P * K, D))
    for part in text_parts(problems.X):
        x = part.doubles()
        attended_by, scores = x @ columns[:P].T, (x @ columns[P:].T).reshape(len(x), P, K)
        pooled, attention = attended(attended_by, scores, part.lengths)
        loss, slope = _losses(pooled + shift, problems, part)
        value += loss
        g_b += slope.sum(axis=0)
        share = attention[:, :, None] * np.repeat(slope, part.lengths, axis=0)  # d objective / d score, [t, P, K]
        scores -= np.repeat(pooled, part.lengths, axis=0)
        g_raw[:P] += (share * scores).sum(axis=2).T @ x
        g_raw[P:] += share.reshape(len(x), -1).T @ x
    g_raw[P:] -= g_b.reshape(-1, 1) * problems.mean
    g = g_raw / problems.scale
    g_q, g_W = problems.C[:, None] * g[:P], problems.C[:, None, None] * g[P:].reshape(P, K, D)
    gradient = joined_parameters(g_q + q, g_W + W, problems.C[:, None] * g_b)
    penalty = 0.5 * (np.square(q).sum(axis=1) + np.square(W).sum(axis=(1, 2)))
    return penalty + problems.C * value, gradient


def _losses(z: np.ndarray, problems: AttentionProblems, part: TextPart) -> tuple[np.ndarray, np.ndarray]:
    """The weighted log losses of a part [P], and their derivatives by the scores z [n, P, K]."""
    labels, weights = problems.labels[:, part.texts].T, problems.weights[:, part.texts].T  # [n, P]
    if z.shape[2] == 1:
        sign = 2 * labels - 1
        margin = sign * z[:, :, 0]
        loss, slope = np.logaddexp(0, -margin), (-sign * expit(-margin))[:, :, None]
    else:
        logs = log_softmax(z, axis=2)
        loss = -np.take_along_axis(logs, labels[:, :, None], axis=2)[:, :, 0]
        slope = np.exp(logs)
        at = labels[:, :, None]
        np.put_along_axis(slope, at, np.take_along_axis(slope, at, axis=2) - 1, axis=2)
    return (weights * loss).sum(axis=0), weights[:, :, None] * slope
