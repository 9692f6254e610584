"""The objective of attention probes and its gradient, for many problems in one pass over the tokens.

A problem has a query q, weights W and an intercept b on standardised tokens z. A text with the tokens z_t scores

    sum_t softmax_t(q . z_t) (W z_t) + b,

and the objective is 0.5 (|q|^2 + |W|^2) + C * (sum of log losses), each text with its weight.

Scores of tokens are two products with the rows, so a pass reads each token once for all problems.

Axes: P problems, N texts, D features, K outputs (1 for two classes), M = D + K D + K parameters, n and t texts and
tokens of a part.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, log_softmax

from probekit.probes.sequence.ragged import Ragged, TextPart, text_parts


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
        x = part.rows.double().cpu().numpy()
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


def attended(a: np.ndarray, s: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scores s [t, P, K] summed over each text with softmax weights of a [t, P]: [n, P, K], and the weights [t, P]."""
    attention = softmax_within(a, lengths)
    starts = np.cumsum(lengths) - lengths
    return np.add.reduceat(attention[:, :, None] * s, starts, axis=0), attention


def softmax_within(a: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The softmax of a [t, ...] over the tokens of each text."""
    starts = np.cumsum(lengths) - lengths
    likely = np.exp(a - np.repeat(np.maximum.reduceat(a, starts, axis=0), lengths, axis=0))
    return likely / np.repeat(np.add.reduceat(likely, starts, axis=0), lengths, axis=0)


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
