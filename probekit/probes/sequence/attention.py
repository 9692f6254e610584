"""Probes of several heads, each of which pools the tokens of a text: by attention, or by the maximum.

A problem has H heads with weights W_h, and an intercept b, on standardised tokens z. A text with the tokens z_t scores

    sum_h sum_t softmax_t(q_h . z_t) (W_h z_t) + b      by attention, with a learned query q_h for each head,
    sum_h max_t (W_h z_t) + b                           by the maximum (MultiMax: Kramár et al. 2026, arXiv 2601.11516),

and scores of tokens are one product with the rows, so a pass reads each token once for all problems.

The objective is not convex, so no fit is certified. Under a weak penalty, starts end in many minima of different value,
so the fits follow a path from a strong penalty to each C, by factors of ten at most. The first C of the path starts at
the read-out of a logistic probe of the mean of the tokens, with query 0, along the read-out and against it; each of the
others at the two lowest minima of the one before. Every C also has random starts, and heads after the first always
start at random. After some passes the lowest go on.

A maximum has no derivative where two tokens tie, and minima lie at such ties. So it is fitted as
`SMOOTH` * log sum_t exp(score_t / `SMOOTH`), which is above the maximum by `SMOOTH` * log L at most.

Axes: N texts, L tokens of one text, D features, C classes, K outputs (1 for two classes, else C), H heads, Q queries
(H, or 0 for the maximum), P problems, M = Q D + H K D + K parameters, n and t texts and tokens of a part.
"""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from scipy.special import expit, log_softmax

from probekit.machine.threads import one_thread
from probekit.options.check import check_positive, check_strength, check_whole, is_whole
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
from probekit.ragged import starts_of

TOLERANCE = 1e-4  # `size` of `honesty` at resid_pre.1, C = 10: objective 195.8; 196.2 at 3e-4, 200.1 at 1e-3
TEN = 10 * (1 + 1e-9)  # the largest factor between one C of the path and the next, but for rounding
FIRST = 3.0  # C * texts where the path of penalties begins
TRIAL, GO_ON = 20, 2  # passes of every start, and how many starts then go on; not tuned
CURVATURE = 0.05  # guess of p (1 - p) in the preconditioner, which is at most 0.25
SAME = 1e-6  # relative difference of objectives at which two minima count as one
SPREAD, SMALL = 2.0, 0.2  # standard deviations over the tokens of a query's scores and of a read-out's, at a start
MOST_DIRECTIONS = 4  # classes whose read-outs are starts
SMOOTH = 0.1  # of a maximum, in log odds


@dataclass(frozen=True, eq=False)
class HeadsProblems:
    """Fits that share their tokens.

    Attributes:
        X: tokens of N texts.
        mean: of the tokens, [D].
        scale: of the tokens, [D]; infinite for a constant feature.
        labels: classes 0..C-1 of each text, int64 [P, N].
        weights: of each text, float64 [P, N].
        C: [P].
        outputs: K.
        heads: H.
        pooling: "attention", or "max".
    """

    X: Ragged
    mean: np.ndarray
    scale: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    C: np.ndarray
    outputs: int
    heads: int = 1
    pooling: str = "attention"

    @property
    def queries(self) -> int:
        """Q."""
        return self.heads if self.pooling == "attention" else 0


class HeadsProbe(SequenceProbe):
    """What the probes of heads share: the fit, and the numbers that it reports.

    Subclasses say how a head pools the tokens (`pooling`), take the parameters of a minimum over (`_take`), and score.

    Attributes:
        coef_: the weights of the heads; they apply to raw tokens.
        intercept_: float64 [1] or [C].
        objective_: the objective at the solution.
        gradient_norm_: the norm of its gradient.
        n_iter_: passes over the tokens, along the path.
    """

    pooling = "attention"
    has_C = True
    state = "local minima, converged by the norm of the gradient and not certified"
    strengths = (1e-2, 1e-1, 1.0, 10.0)
    FACTS = ("objective_", "gradient_norm_")
    heads: int
    n_random: int
    tol: float
    max_iter: int
    random_state: int
    coef_: np.ndarray
    intercept_: np.ndarray
    objective_: float
    gradient_norm_: float

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

    def _check_arrays(self) -> None:
        if not is_whole(self.heads) or self.heads < 1:
            raise ValueError(f"heads = {self.heads!a:.40}, expected a whole number from 1 on")
        super()._check_arrays()

    def _fit_copies(self, probes: Sequence[Any], X: Ragged, problems: ProblemSet) -> None:
        check_positive("tol", self.tol)
        check_whole("max_iter", self.max_iter)
        check_whole("n_random", self.n_random, 0)
        check_whole("heads", self.heads)
        for probe in probes:
            check_strength("C", probe.C, without_penalty=False)
        with one_thread():
            for which in by_weighting(problems).values():
                by_outputs: dict[int, list[int]] = {}
                for p in which:
                    by_outputs.setdefault(probes[p]._n_outputs, []).append(p)
                for numbers in by_outputs.values():
                    self._fit_path([probes[p] for p in numbers], X, subset(problems, numbers))

    def _fit_path(self, probes: Sequence[Any], X: Ragged, problems: ProblemSet) -> None:
        """Fit problems with the same weights and number of classes, from a strong penalty to each of their C."""
        weights = weights_of(problems, 0, len(X))
        texts = np.flatnonzero(weights)
        X, weights = in_doubles(take_texts(X, texts)), weights[texts]
        columns = [Labels(each.values[texts], each.n_classes) for each in problems.labels]
        moments = token_moments(X, columns[0], weights)
        mean = moments.mean
        scale = scale_of(moments.covariance.diagonal(), mean, int(X.lengths.sum()))
        covariance = moments.covariance / scale / scale[:, None]
        n, outputs, given = weights.sum(), probes[0]._n_outputs, len(columns)
        if self.pooling == "max" and outputs == 1:  # high scores may be of either class
            columns += [Labels(1 - each.values, 2) for each in columns]
        P, labels = len(columns), np.stack([each.values for each in columns])
        path = path_to({probe.C for probe in probes}, n)
        own = np.tile(weights, (P, 1)), np.full(P, path[0]), outputs, self.heads, self.pooling
        shared = HeadsProblems(X, mean, scale, labels, *own)
        linear = LogisticProbe().fit_many(pooled_rows(X, "mean"), every_problem(columns, [path[0]], [weights]))
        rng = np.random.default_rng(self.random_state)
        starts, passes = _linear_starts(linear, rng, shared, covariance), 0  # [P, S, M]
        for C in path:
            small = self.tol * (1 + C * n)
            starts = np.concatenate([starts, _random_starts(self.n_random, rng, shared, covariance)], axis=1)
            found = _minima(replace(shared, C=np.full(P, C)), starts, covariance, small, self.max_iter)
            passes += int(found.passes.max())
            starts = _best_two(found, P)
            values = found.value.reshape(P, -1)
            for probe, problem in zip(probes, problems.problems, strict=True):
                if probe.C == C:
                    label = min(range(problem.label, P, given), key=lambda p: values[p].min())
                    best = label * values.shape[1] + int(values[label].argmin())
                    q, W, b = (each[0] for each in split_parameters(found.theta[best : best + 1], shared))
                    W = W / shared.scale
                    probe._take(q / shared.scale, W, b - W.sum(axis=0) @ mean, 1.0 if label < given else -1.0)
                    probe.objective_ = float(found.value[best])
                    probe.gradient_norm_ = float(np.linalg.norm(found.gradient[best]))
                    probe.converged_, probe.n_iter_ = probe.gradient_norm_ <= small, passes

    def _take(self, queries: np.ndarray, weights: np.ndarray, intercept: np.ndarray, side: float) -> None:
        """Keep what was found, for raw tokens: queries [Q, D], weights [H, K, D], intercept [K], and the side."""
        raise NotImplementedError


class AttentionProbe(HeadsProbe):
    """A text scores the sum of its tokens' linear scores, weighted by the softmax of query . token over the text.

    With several heads, each has a query and weights of its own, and their sums add up. One query finds one kind of
    token; two heads find two kinds, either of which decides.

    The objective is 0.5 (|queries|^2 + |weights|^2) + C * (sum of log losses over texts), on standardised tokens; the
    intercept is not penalised. Minimised by L-BFGS in float64, preconditioned by the covariance of the tokens.

    Args:
        C: inverse strength of the regularisation.
        n_random: random starts at each C of the path.
        tol: the fit has converged where the norm of the gradient is at most tol * (1 + C * texts).
        max_iter: passes over the tokens, for each C of the path, after which the fit is returned unconverged.
        random_state: seeds the random starts.
        heads: H.

    Attributes:
        query_: float64 [D], or [H, D] of several heads; applies to raw tokens.
        coef_: float64 [1, D] for two classes, [C, D] for more; of several heads [H, 1 or C, D]; applies to raw tokens.
        intercept_: float64 [1] or [C].
        objective_: the objective at the solution.
        gradient_norm_: the norm of its gradient.
        n_iter_: passes over the tokens, along the path.
    """

    ARRAYS = ("query_", "coef_", "intercept_")
    query_: np.ndarray

    def __init__(
        self,
        C: float = 1.0,
        n_random: int = 6,
        tol: float = TOLERANCE,
        max_iter: int = 1000,
        random_state: int = 0,
        heads: int = 1,
    ):
        self.C = C
        self.n_random = n_random
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.heads = heads

    def attention(self, X: Any) -> list[np.ndarray]:
        """The weight of each token in its text, N arrays [L], or [L, H] of several heads, that sum to 1 over tokens."""
        check_is_fitted(self)
        X = as_ragged(X, self.n_features_in_)
        return by_text(X, lambda rows, lengths: softmax_within(rows @ self.query_.T, lengths))

    @property
    def columns(self) -> tuple[np.ndarray, np.ndarray]:
        """Queries [H, D], and weights [H K, D]: the outputs of a head follow one another."""
        D = self.query_.shape[-1]
        return self.query_.reshape(-1, D), self.coef_.reshape(-1, D)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        K, D = self._n_outputs, self.query_.shape[-1]
        of_heads = () if self.heads == 1 else (self.heads,)
        return {"query_": (*of_heads, D), "coef_": (*of_heads, K, D), "intercept_": (K,)}

    def _part_scores(self, rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        queries, weights = self.columns
        scores = (rows @ weights.T).reshape(len(rows), len(queries), -1)
        return attended(rows @ queries.T, scores, lengths)[0].sum(axis=1) + self.intercept_

    def _take(self, queries: np.ndarray, weights: np.ndarray, intercept: np.ndarray, side: float) -> None:
        one = self.heads == 1
        self.query_, self.coef_ = (queries[0], weights[0]) if one else (queries, weights)
        self.intercept_ = intercept


class MultiMaxProbe(HeadsProbe):
    """A text scores the sum over heads of the highest score that a token has under the head's weights.

    The form of Kramár et al. (2026, arXiv 2601.11516), without layers before the heads. A long text with one telling
    token scores as high as that token alone. For two classes the heads look for tokens of one class, the one that
    gives the lower objective (`side_`).

    The objective is 0.5 |weights|^2 + C * (sum of log losses over texts), on standardised tokens, with a smooth maximum
    in place of the sharp one; the intercept is not penalised. Scores are those of the sharp maximum.

    Args:
        C: inverse strength of the regularisation.
        n_random: random starts at each C of the path.
        tol: the fit has converged where the norm of the gradient is at most tol * (1 + C * texts).
        max_iter: passes over the tokens, for each C of the path, after which the fit is returned unconverged.
        random_state: seeds the random starts.
        heads: H.

    Attributes:
        coef_: float64 [H, 1, D] for two classes, [H, C, D] for more; applies to raw tokens.
        intercept_: float64 [1] or [C].
        side_: float64 [1], 1 where the highest scores speak for the second class, -1 where they speak for the first.
        objective_: the objective at the solution.
        gradient_norm_: the norm of its gradient.
        n_iter_: passes over the tokens, along the path.
    """

    pooling = "max"
    ARRAYS = ("coef_", "intercept_", "side_")
    side_: np.ndarray

    def __init__(
        self,
        C: float = 1.0,
        n_random: int = 6,
        tol: float = TOLERANCE,
        max_iter: int = 1000,
        random_state: int = 0,
        heads: int = 4,
    ):
        self.C = C
        self.n_random = n_random
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.heads = heads

    @property
    def columns(self) -> np.ndarray:
        """Weights [H K, D]: the outputs of a head follow one another."""
        return self.coef_.reshape(-1, self.coef_.shape[-1])

    def of_maxima(self, highest: np.ndarray) -> np.ndarray:
        """Decisions [n, K] from the highest score of each row of `columns`, [n, H K]."""
        return self.side_ * highest.reshape(len(highest), self.heads, -1).sum(axis=1) + self.intercept_

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        K = self._n_outputs
        return {"coef_": (self.heads, K, self.coef_.shape[-1]), "intercept_": (K,), "side_": (1,)}

    def _part_scores(self, rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        return self.of_maxima(np.maximum.reduceat(rows @ self.columns.T, starts_of(lengths), axis=0))

    def _take(self, queries: np.ndarray, weights: np.ndarray, intercept: np.ndarray, side: float) -> None:
        self.coef_, self.intercept_, self.side_ = weights, side * intercept, np.array([side])


def _linear_starts(
    linear: Sequence[Any], rng: np.random.Generator, shared: HeadsProblems, covariance: np.ndarray
) -> np.ndarray:
    """The first head at the read-outs of linear probes of the mean, the others at random: [P, S, M].

    The query of the first is 0, or along or against these read-outs; a maximum has none, and starts once.
    """
    scale = np.where(np.isinf(shared.scale), 0, shared.scale)
    W = np.stack([probe.coef_ for probe in linear]) * scale  # [P, K, D], for standardised tokens
    b = np.stack([probe.intercept_ + probe.coef_ @ shared.mean for probe in linear])
    along = W[:, :MOST_DIRECTIONS]
    queries = _of_spread(np.concatenate([along, -along], axis=1), SPREAD, covariance)
    queries = np.concatenate([np.zeros_like(queries[:, :1]), queries], axis=1)  # [P, S, D]
    queries = queries if shared.queries else queries[:, :1]
    P, S = queries.shape[:2]
    others = _random_heads(S, shared.heads - 1, rng, shared, covariance)
    q, V = (np.broadcast_to(each, (P, *each.shape)) for each in others)  # [P, S, Q - 1, D] and [P, S, (H - 1) K, D]
    q = np.concatenate([queries[:, :, None], q], axis=2) if shared.queries else q
    V = np.concatenate([np.broadcast_to(W[:, None], (P, S, *W.shape[1:])), V], axis=2)
    return np.stack([joined_parameters(q[:, s], V[:, s], b) for s in range(S)], axis=1)


def _random_starts(count: int, rng: np.random.Generator, shared: HeadsProblems, covariance: np.ndarray) -> np.ndarray:
    """Random queries, with small random read-outs that the first steps can turn: [P, S, M]."""
    start = joined_parameters(
        *_random_heads(count, shared.heads, rng, shared, covariance), np.zeros((count, shared.outputs))
    )
    return np.broadcast_to(start, (len(shared.C), *start.shape))


def _random_heads(
    count: int, heads: int, rng: np.random.Generator, shared: HeadsProblems, covariance: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Queries [S, Q, D] of so many heads, and weights [S, H K, D]."""
    D, Q, R = shared.X.width, heads if shared.queries else 0, heads * shared.outputs
    q = _of_spread(rng.normal(size=(1, count * Q, D)), SPREAD, covariance)
    W = _of_spread(rng.normal(size=(1, count * R, D)), SMALL, covariance)
    return q.reshape(count, Q, D), W.reshape(count, R, D)


def _of_spread(directions: np.ndarray, spread: float, covariance: np.ndarray) -> np.ndarray:
    """Directions [P, S, D] with a length at which their scores have this standard deviation over the tokens."""
    found = np.sqrt(np.maximum(((directions @ covariance) * directions).sum(axis=2), 0))
    return directions * (spread / np.maximum(found, np.finfo(np.float32).tiny))[:, :, None]


def _preconditioner(covariance: np.ndarray, strength: float, K: int) -> Precondition:
    """The inverse of I + strength * covariance for each query and output, of the strength for the intercepts.

    It is the inverse Hessian of logistic regression on tokens with these covariances.
    """
    D = len(covariance)
    inverse = np.linalg.inv(np.eye(D) + strength * covariance)

    def times(g: np.ndarray) -> np.ndarray:
        weights = (g[:, :-K].reshape(-1, D) @ inverse).reshape(len(g), g.shape[1] - K)
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


def _minima(shared: HeadsProblems, starts: np.ndarray, covariance: np.ndarray, small: float, max_iter: int) -> Minima:
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


def some_problems(problems: HeadsProblems, which: np.ndarray) -> HeadsProblems:
    """Some of the problems, by number."""
    own = {name: getattr(problems, name)[which] for name in ("labels", "weights", "C")}
    return HeadsProblems(**{**vars(problems), **own})


def split_parameters(theta: np.ndarray, of: HeadsProblems) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Parameters [P, M] as queries [P, Q, D], weights [P, H, K, D] and intercepts [P, K]."""
    P, D, K = len(theta), of.X.width, of.outputs
    end = of.queries * D
    return theta[:, :end].reshape(P, of.queries, D), theta[:, end:-K].reshape(P, of.heads, K, D), theta[:, -K:]


def joined_parameters(q: np.ndarray, W: np.ndarray, b_PK: np.ndarray) -> np.ndarray:
    """Queries [P, ...], weights [P, ...] and intercepts as parameters [P, M]."""
    return np.concatenate([q.reshape(len(b_PK), -1), W.reshape(len(b_PK), -1), b_PK], axis=1)


def objective(problems: HeadsProblems, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The objective [P] and its gradient [P, M] at parameters [P, M]."""
    K, H = problems.outputs, problems.heads
    q, W, b = split_parameters(theta, problems)
    P, Q, D = q.shape
    columns = np.concatenate([q.reshape(-1, D), W.reshape(-1, D)]) / problems.scale  # [P Q + P H K, D], for raw tokens
    PQ = P * Q
    shift = b - (columns[PQ:] @ problems.mean).reshape(P, H, K).sum(axis=1)  # since z = (x - mean) / scale
    value, g_b = np.zeros(P), np.zeros((P, K))
    g_raw = np.zeros_like(columns)
    for part in text_parts(problems.X):
        x = part.doubles()
        attended_by, scores = x @ columns[:PQ].T, (x @ columns[PQ:].T).reshape(len(x), P * H, K)
        if Q:
            pooled, attention = attended(attended_by, scores, part.lengths)
            attention = attention[:, :, None]
        else:
            pooled, attention = smooth_maximum(scores, part.lengths)
        loss, slope = _losses(pooled.reshape(-1, P, H, K).sum(axis=2) + shift, problems, part)
        value += loss
        g_b += slope.sum(axis=0)
        slope = np.repeat(slope, H, axis=1)  # of each head: [n, P H, K]
        share = attention * np.repeat(slope, part.lengths, axis=0)  # d objective / d score, [t, P H, K]
        if Q:
            scores -= np.repeat(pooled, part.lengths, axis=0)
            g_raw[:PQ] += (share * scores).sum(axis=2).T @ x
        g_raw[PQ:] += share.reshape(len(x), -1).T @ x
    g_raw[PQ:] -= np.repeat(g_b, H, axis=0).reshape(-1, 1) * problems.mean
    g = g_raw / problems.scale
    g = joined_parameters(g[:PQ].reshape(P, -1), g[PQ:].reshape(P, -1), g_b)
    gradient = problems.C[:, None] * g
    gradient[:, :-K] += theta[:, :-K]
    return 0.5 * np.square(theta[:, :-K]).sum(axis=1) + problems.C * value, gradient


def smooth_maximum(scores: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A smooth maximum of scores [t, ...] over each text, [n, ...], and its derivatives by the scores [t, ...]."""
    starts = starts_of(lengths)
    highest = np.maximum.reduceat(scores, starts, axis=0)
    likely = np.exp((scores - np.repeat(highest, lengths, axis=0)) / SMOOTH)
    total = np.add.reduceat(likely, starts, axis=0)
    return highest + SMOOTH * np.log(total), likely / np.repeat(total, lengths, axis=0)


def _losses(z: np.ndarray, problems: HeadsProblems, part: TextPart) -> tuple[np.ndarray, np.ndarray]:
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
