"""A probe's score of each token as the tokens come, and what it needs to remember of a text between them.

Every probe of this package but the MLP is affine in the tokens, so a forward costs one matrix product for all probes
of a place. A probe over a sequence then folds the products of a text's tokens into one score, of the text so far. A new
token costs the same however long the text is.

Axes: T tokens, D features, K outputs (1 for two classes, else C), R rows of weights.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from probekit.errors import UsageError, nearest
from probekit.probes import AggregateProbe, AttentionProbe, MultiMaxProbe, Probe
from probekit.probes.base import ClassifierProbe


@dataclass(eq=False)
class Fold:
    """What is remembered of the tokens of one text.

    Attributes:
        best: the largest logit so far, float64 [K]; of a maximum, the largest score.
        weight: the sum of exp(logit - best), float64 [K].
        total: the sum of exp(logit - best) * score, float64 [K].
        kept: the scores that an aggregate still needs, float64 [n, K]: the last of a window, the highest, or the moving
            average; None before the first token.
    """

    best: np.ndarray = field(default_factory=lambda: np.array(-np.inf))
    weight: np.ndarray = field(default_factory=lambda: np.zeros(()))
    total: np.ndarray = field(default_factory=lambda: np.zeros(()))
    kept: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class TokenRule:
    """How the activations of tokens become scores.

    Attributes:
        weights: float64 [R, D]; None for a probe that is not affine in the tokens.
        shift: float64 [R].
        fold: takes the products [T, R] of the next tokens and what is remembered of their text, and returns the
            decisions [T, K] of the text so far; None where the products are the decisions.
        decide: takes activations [T, D] and returns the decisions; None where there are weights.
        output: takes decisions [T, K] and returns the score of each token, [T].
        sign: 1 or -1 where the score is the decision of two classes or its negative; 0 otherwise.
    """

    weights: np.ndarray | None
    shift: np.ndarray | None
    fold: Callable[[np.ndarray, Fold], np.ndarray] | None
    decide: Callable[[np.ndarray], np.ndarray] | None
    output: Callable[[np.ndarray], np.ndarray]
    sign: int = 0


def token_rule(probe: Probe, target: object = None) -> TokenRule:
    """The rule of a fitted probe.

    Args:
        probe: of classes or of one number.
        target: the class for which scores are high, by name; by default the second of two. Of more than two, the score
            is the class's own minus the highest of the others.

    Raises:
        UsageError: a probe of several numbers, an unknown class, or none given where there are more than two.
    """
    output = _output(probe, target)
    signs: dict[Any, int] = {_only: 1, _opposite: -1}
    sign = signs.get(output, 0) if isinstance(probe, ClassifierProbe) else 0
    if isinstance(probe, AttentionProbe):
        return TokenRule(*_attention(probe), None, output, sign)
    if isinstance(probe, MultiMaxProbe):
        return TokenRule(probe.columns, np.zeros(len(probe.columns)), _multimax(probe), None, output, sign)
    if isinstance(probe, AggregateProbe):
        return TokenRule(probe.coef_, probe.intercept_, _aggregate(probe), None, output, sign)
    if hasattr(probe, "coef_"):
        coef: Any = getattr(probe, "coef_")  # noqa: B009  (set by the subclass)
        shift: Any = getattr(probe, "intercept_")  # noqa: B009
        return TokenRule(np.atleast_2d(coef), np.atleast_1d(shift), None, None, output, sign)
    return TokenRule(None, None, None, lambda x_TD: _decisions(probe, x_TD), output, sign)


def _decisions(probe: Any, x_TD: np.ndarray) -> np.ndarray:
    decided = probe.decision_function(x_TD) if isinstance(probe, ClassifierProbe) else probe.predict(x_TD)
    return np.asarray(decided, dtype=np.float64).reshape(len(x_TD), -1)


def _output(probe: Probe, target: object) -> Callable[[np.ndarray], np.ndarray]:
    """Decisions [T, K] as one score for each token."""
    if not isinstance(probe, ClassifierProbe):
        if np.ndim(getattr(probe, "coef_", np.zeros(1))) > 1:
            raise UsageError("a monitor takes a probe of one number, got one of several; train one for each of them")
        if target is not None:
            raise UsageError(f"a probe of numbers has no class {target!a:.60}; leave target out")
        return _only
    names = [str(name) for name in probe.label_names_]
    if target is None and len(names) > 2:
        raise UsageError(f"name the class to watch for (target=): {nearest('', names)}")
    if target is not None and str(target) not in names:
        raise UsageError(f"the probe has no class {target!a:.60}; {ascii(nearest(str(target), names))[1:-1]}")
    k = 1 if target is None else names.index(str(target))
    if len(names) == 2:
        return _only if k else _opposite
    return lambda decided_TC: decided_TC[:, k] - np.delete(decided_TC, k, axis=1).max(axis=1)


def _only(decided_T1: np.ndarray) -> np.ndarray:
    return decided_T1[:, 0]


def _opposite(decided_T1: np.ndarray) -> np.ndarray:
    return -decided_T1[:, 0]


def _attention(probe: AttentionProbe) -> tuple[np.ndarray, np.ndarray, Callable[[np.ndarray, Fold], np.ndarray]]:
    """The queries and the read-outs as rows of weights, and their fold."""
    queries, weights = probe.columns
    H, K = len(queries), len(probe.intercept_)

    def fold(products_TR: np.ndarray, so_far: Fold) -> np.ndarray:
        of_heads = _weighted(products_TR[:, :H].repeat(K, axis=1), products_TR[:, H:], so_far)
        return of_heads.reshape(-1, H, K).sum(axis=1) + probe.intercept_

    return np.concatenate([queries, weights]), np.zeros(H + H * K), fold


def _multimax(probe: MultiMaxProbe) -> Callable[[np.ndarray, Fold], np.ndarray]:
    """The fold of the highest scores of heads."""

    def fold(scores_TR: np.ndarray, so_far: Fold) -> np.ndarray:
        return probe.of_maxima(_highest(scores_TR, so_far))

    return fold


def _highest(scores_TR: np.ndarray, so_far: Fold) -> np.ndarray:
    """The highest score so far, after each token."""
    best_TR = np.maximum(np.maximum.accumulate(scores_TR, axis=0), so_far.best)
    so_far.best = best_TR[-1]
    return best_TR


def _aggregate(probe: AggregateProbe) -> Callable[[np.ndarray, Fold], np.ndarray]:
    """The fold of a probe that aggregates the scores of tokens, and calibrates the aggregate."""

    def fold(scores_TK: np.ndarray, so_far: Fold) -> np.ndarray:
        return probe.slope_ * aggregated(scores_TK, so_far) + probe.shift_

    def aggregated(scores_TK: np.ndarray, so_far: Fold) -> np.ndarray:
        if probe.aggregate == "last":
            return scores_TK
        if probe.aggregate in _KEPT:
            step = _KEPT[probe.aggregate]
            return probe.side_ * np.stack([step(probe.side_ * score_K, so_far, probe) for score_K in scores_TK])
        if probe.aggregate == "max":
            return probe.side_ * _highest(probe.side_ * scores_TK, so_far)
        return _weighted(probe.sharpness * scores_TK, scores_TK, so_far)

    return fold


def _next_window(score_K: np.ndarray, so_far: Fold, probe: AggregateProbe) -> np.ndarray:
    """The highest mean of a complete window; of all tokens, before there is one."""
    last = score_K[None] if so_far.kept is None else np.concatenate([so_far.kept, score_K[None]])
    mean_K = last.mean(axis=0)
    if len(last) < probe.window:
        so_far.kept = last
        return mean_K
    so_far.kept, so_far.best = last[1:], np.maximum(so_far.best, mean_K)
    return so_far.best


def _next_average(score_K: np.ndarray, so_far: Fold, probe: AggregateProbe) -> np.ndarray:
    """The highest exponential moving average."""
    new = 2 / (probe.window + 1)
    average_K = score_K if so_far.kept is None else new * score_K + (1 - new) * so_far.kept[0]
    so_far.kept, so_far.best = average_K[None], np.maximum(so_far.best, average_K)
    return so_far.best


def _next_highest(score_K: np.ndarray, so_far: Fold, probe: AggregateProbe) -> np.ndarray:
    """The mean of the k highest scores."""
    every = score_K[None] if so_far.kept is None else np.concatenate([so_far.kept, score_K[None]])
    so_far.kept = np.sort(every, axis=0)[-probe.k :]
    return so_far.kept.mean(axis=0)


_KEPT = {"rolling-max": _next_window, "ema-max": _next_average, "top-k": _next_highest}


def _weighted(logits_TK: np.ndarray, scores_TK: np.ndarray, so_far: Fold) -> np.ndarray:
    """The mean of the scores so far with weights softmax(logits), after each token.

    Sums are relative to the largest logit so far, so that no exponential overflows (as in online softmax).
    """
    found_TK = np.empty_like(scores_TK)
    for t, (logit_K, score_K) in enumerate(zip(logits_TK, scores_TK, strict=True)):
        best_K = np.maximum(so_far.best, logit_K)
        before_K, now_K = np.exp(so_far.best - best_K), np.exp(logit_K - best_K)
        so_far.weight = so_far.weight * before_K + now_K
        so_far.total = so_far.total * before_K + now_K * score_K
        so_far.best = best_K
        found_TK[t] = so_far.total / so_far.weight
    return found_TK
