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
from probekit.probes.base import ClassifierProbe, Probe
from probekit.probes.sequence.aggregate import AggregateProbe
from probekit.probes.sequence.attention import AttentionProbe, MultiMaxProbe
from probekit.probes.sequence.base import SequenceProbe
from probekit.probes.sequence.ragged import Ragged, text_parts


@dataclass(eq=False)
class Fold:
    """What is remembered of the tokens of one text.

    Attributes:
        best: the largest score so far, float64 [K] or of each row of weights.
        sums: the logarithms of three sums over the tokens so far, float64 [3, K]: of exp(logit), and of its products
            with the scores above 0 and with the size of those below; None before the first token.
        kept: the scores that an aggregate still needs, float64 [n, K]: the last of a window, the highest, or the moving
            average; None before the first token.
    """

    best: np.ndarray = field(default_factory=lambda: np.array(-np.inf))
    sums: np.ndarray | None = None
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
            return probe.side_ * _KEPT[probe.aggregate](probe.side_ * scores_TK, so_far, probe)
        if probe.aggregate == "max":
            return probe.side_ * _highest(probe.side_ * scores_TK, so_far)
        return _weighted(probe.sharpness * scores_TK, scores_TK, so_far)

    return fold


def _highest_window(scores_TK: np.ndarray, so_far: Fold, probe: AggregateProbe) -> np.ndarray:
    """The highest mean of a complete window; of all tokens, before there is one."""
    old, w = 0 if so_far.kept is None else len(so_far.kept), probe.window
    last = scores_TK if so_far.kept is None else np.concatenate([so_far.kept, scores_TK])  # at most w - 1 are old
    so_far.kept = last[len(last) - min(w - 1, len(last)) :]
    if len(last) < w:
        return (np.cumsum(last, axis=0) / np.arange(1, len(last) + 1)[:, None])[old:]
    means = np.lib.stride_tricks.sliding_window_view(last, w, axis=0).mean(axis=-1)  # of complete windows
    complete = _highest(means, so_far)
    early = w - 1 - old  # new tokens that complete no window
    if early <= 0:
        return complete
    means = np.cumsum(last[: w - 1], axis=0) / np.arange(1, w)[:, None]
    return np.concatenate([means[old:], complete])


def _highest_average(scores_TK: np.ndarray, so_far: Fold, probe: AggregateProbe) -> np.ndarray:
    """The highest exponential moving average."""
    new, averages = 2 / (probe.window + 1), np.empty_like(scores_TK)
    average_K = scores_TK[0] if so_far.kept is None else so_far.kept[0]
    for t, score_K in enumerate(scores_TK):
        average_K = averages[t] = average_K + new * (score_K - average_K)
    so_far.kept = averages[-1:]
    return _highest(averages, so_far)


def _mean_of_highest(scores_TK: np.ndarray, so_far: Fold, probe: AggregateProbe) -> np.ndarray:
    """The mean of the k highest scores."""
    found, kept = np.empty_like(scores_TK), so_far.kept
    mean_K = None
    for t, score_K in enumerate(scores_TK):
        if kept is None or mean_K is None or len(kept) < probe.k or (score_K > kept[0]).any():
            every = score_K[None] if kept is None else np.concatenate([kept, score_K[None]])
            kept = np.sort(every, axis=0)[-probe.k :]
            mean_K = kept.mean(axis=0)
        found[t] = mean_K
    so_far.kept = kept
    return found


_KEPT = {"rolling-max": _highest_window, "ema-max": _highest_average, "top-k": _mean_of_highest}


def _weighted(logits_TK: np.ndarray, scores_TK: np.ndarray, so_far: Fold) -> np.ndarray:
    """The mean of the scores so far with weights softmax(logits), after each token.

    Sums are kept as logarithms, so that no exponential overflows, those of scores above and below 0 apart.
    """
    with np.errstate(divide="ignore"):  # the logarithm of 0
        sizes = np.log(np.stack([np.maximum(scores_TK, 0), np.maximum(-scores_TK, 0)]))
    terms = logits_TK + np.concatenate([np.zeros_like(sizes[:1]), sizes])  # [3, T, K]
    if so_far.sums is not None:
        terms = np.concatenate([so_far.sums[:, None], terms], axis=1)
    sums = np.logaddexp.accumulate(terms, axis=1)[:, -len(scores_TK) :]
    so_far.sums = sums[:, -1]
    return np.exp(sums[1] - sums[0]) - np.exp(sums[2] - sums[0])


def running_scores(probe: SequenceProbe, X: Ragged) -> list[np.ndarray]:
    """The decision of a probe of two classes for each text up to each of its tokens: N arrays [L]."""
    rule, found = token_rule(probe), [np.empty(0)] * len(X)
    weights: Any = rule.weights
    fold: Any = rule.fold
    for part in text_parts(X):
        products = part.doubles() @ weights.T + rule.shift
        for text, own in zip(part.texts, np.split(products, np.cumsum(part.lengths)[:-1]), strict=True):
            found[text] = fold(own, Fold())[:, 0]
    return found
