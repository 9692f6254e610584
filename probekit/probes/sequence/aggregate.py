"""A linear probe of tokens whose scores are aggregated over each text, then calibrated.

The token probe is fitted to all tokens of the training texts, each with its text's label and 1 / L of its weight. The
scores of a text's tokens become one: their mean, the highest, the highest of their moving averages (as in Kramár et al.
2026, arXiv 2601.11516), the mean of the highest few, a softmax-weighted mean whose temperature is given or fitted, or
the last token's. One slope and an intercept per output turn it into log odds. The solvers are those of the probes of
rows: logistic regression takes a weight for each token, and ridge, LDA and mean differences take the weighted moments.

Axes: N texts, L tokens of one text, D features, C classes, K outputs (1 for two classes, else C), n and t texts and
tokens of a part.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
from torch import Tensor

from probekit.errors import DataError, UsageError, nearest
from probekit.machine.threads import one_thread
from probekit.options.check import check_positive, check_strength, check_whole, is_whole
from probekit.options.curve import AGGREGATES
from probekit.probes.base import LinearProbe, scale_of
from probekit.probes.calibration import Scale, fit_scale
from probekit.probes.lda import LDAProbe, MeanDifferenceProbe
from probekit.probes.logistic.probe import LogisticProbe
from probekit.probes.moments import RowMoments, ledoit_wolf
from probekit.probes.problem import Labels, ProblemSet
from probekit.probes.ridge import RidgeProbe
from probekit.probes.scikit_learn import check_is_fitted
from probekit.probes.sequence.base import SequenceProbe, weights_of
from probekit.probes.sequence.ragged import (
    Ragged,
    as_ragged,
    attended,
    by_text,
    text_parts,
    token_moments,
    token_weights,
)
from probekit.probes.stream import Stream
from probekit.ragged import ranges, starts_of

# parameter -> its default, and the aggregates that read it
_READ_BY = {"temperature": (1.0, ("softmax",)), "window": (10, ("rolling-max", "ema-max")), "k": (5, ("top-k",))}
SHARPNESSES = 2.0 ** np.arange(-3, 6)  # of a softmax, per standard deviation of the token scores; searched first
TOKEN_PROBES: dict[str, type[Any]] = {
    "logistic": LogisticProbe,
    "ridge": RidgeProbe,
    "lda": LDAProbe,
    "mean-diff": MeanDifferenceProbe,
}


class AggregateProbe(SequenceProbe):
    """A text scores slope * (aggregate of its tokens' linear scores) + intercept.

    - "mean", "last": of all tokens, and the last token's score.
    - "max": the highest score of a token.
    - "rolling-max": the highest mean of `window` neighbouring tokens; a shorter text is one window.
    - "ema-max": the highest exponential moving average, in which a token has a weight of 2 / (window + 1).
    - "top-k": the mean of the k highest scores, or of all if there are fewer.
    - "softmax": the mean weighted by the softmax of the scores.
    - "fitted-softmax": the same at the temperature that fits the training texts best, together with the slope and the
      intercept.

    All but mean and last look for tokens of one class. For two classes it is the one that fits the training texts
    better once calibrated (`side_`); for more, each class has its own highest score.

    The certificate is of the token probe, for labels that every token inherits from its text; it says nothing about the
    aggregated scores, which no solver has optimised.

    Args:
        probe: of the tokens: "logistic", "ridge", "lda" or "mean-diff".
        aggregate: one of the above.
        C: inverse strength of the token probe's regularisation, where it has one.
        temperature: of the softmax, in standard deviations of the token scores on train; towards 0 it is the maximum,
            towards infinity the mean.
        window: tokens of a moving average.
        k: how many tokens "top-k" takes.

    Attributes:
        coef_: float64 [1, D] for two classes, [C, D] for more; of tokens, applies to raw features.
        intercept_: float64 [1] or [C], of tokens.
        slope_: float64 [1], of the aggregated scores.
        shift_: float64 [1] or [C], added to them.
        side_: float64 [1], 1 where high scores are looked for, -1 where low ones are.
        spread_: float64 [1], standard deviation of the token scores on train.
        sharpness_: float64 [1], of "fitted-softmax": the inverse temperature, in units of 1 / score; 0 is the mean,
            and below 0 low scores weigh most.
        gap_: the token probe's certificate, where it has one.
    """

    coef_: np.ndarray
    intercept_: np.ndarray
    slope_: np.ndarray
    shift_: np.ndarray
    side_: np.ndarray
    spread_: np.ndarray
    sharpness_: np.ndarray

    def __init__(
        self,
        probe: str = "logistic",
        aggregate: str = "mean",
        C: float = 1.0,
        temperature: float = 1.0,
        window: int = 10,
        k: int = 5,
    ) -> None:
        self.probe = probe
        self.aggregate = aggregate
        self.C = C
        self.temperature = temperature
        self.window = window
        self.k = k

    @property
    def ARRAYS(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The names of the fitted arrays."""
        fitted = ("sharpness_",) if self.aggregate == "fitted-softmax" else ()
        return ("coef_", "intercept_", "slope_", "shift_", "side_", "spread_", *fitted)

    @property
    def FACTS(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The certificate, where there is one."""
        return ("gap_",) if self.certified else ()

    @property
    def has_C(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the token probe has a C."""
        return self._token_probe().has_C

    @property
    def without_penalty(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether C may be infinite."""
        return self._token_probe().without_penalty

    @property
    def certified(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the fits of the token probe have a certificate."""
        return self._token_probe().certified

    direction = LinearProbe.direction  # pyright: ignore[reportIncompatibleMethodOverride]

    def token_scores(self, X: Any) -> list[np.ndarray]:
        """The score of each token before it is aggregated: N arrays [L] for two classes, [L, C] for more."""
        check_is_fitted(self)
        X = as_ragged(X, self.n_features_in_)
        found = by_text(X, lambda rows, _: self._of_tokens(rows))
        return [scores[:, 0] if scores.shape[1] == 1 else scores for scores in found]

    def _token_probe(self) -> type[Any]:
        if self.probe not in TOKEN_PROBES:
            raise UsageError(f"unknown probe of tokens {self.probe!a}; {nearest(str(self.probe), TOKEN_PROBES)}")
        return TOKEN_PROBES[self.probe]

    @property
    def sharpness(self) -> np.ndarray:
        """What scores are multiplied by in the softmax that weighs them, [1]; 0 for the mean."""
        if self.aggregate == "mean":
            return np.zeros(1)
        return self.sharpness_ if self.aggregate == "fitted-softmax" else self.side_ / (self.temperature * self.spread_)

    def _of_tokens(self, rows: np.ndarray) -> np.ndarray:
        return rows @ self.coef_.T + self.intercept_

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        K, once = self._n_outputs, dict.fromkeys(("slope_", "side_", "spread_", *self.ARRAYS[6:]), (1,))
        return {"coef_": (K, *self.coef_.shape[-1:]), "intercept_": (K,), "shift_": (K,), **once}

    def _check_arrays(self) -> None:
        super()._check_arrays()
        for name in ("window", "k"):
            if not is_whole(value := getattr(self, name)) or value < 1:
                raise ValueError(f"{name} = {value!a:.40}, expected a whole number from 1 on")

    def _part_scores(self, rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        return self.slope_ * self._aggregated(self._of_tokens(rows), lengths, self.side_) + self.shift_

    def _aggregated(self, scores: np.ndarray, lengths: np.ndarray, side: np.ndarray) -> np.ndarray:
        """Token scores [t, K] as one for each text and output, [n, K]."""
        starts = starts_of(lengths)
        if self.aggregate == "last":
            return scores[starts + lengths - 1]
        if self.aggregate == "mean":
            return np.add.reduceat(scores, starts, axis=0) / lengths[:, None]
        if self.aggregate == "max":
            return side * np.maximum.reduceat(side * scores, starts, axis=0)
        if self.aggregate in _OF_ONE_TEXT:
            texts = np.split(side * scores, starts[1:])
            return side * np.stack([_OF_ONE_TEXT[self.aggregate](text, self) for text in texts])
        if self.aggregate == "softmax":
            return _soft_mean(scores, side / (self.temperature * self.spread_), lengths)
        return _soft_mean(scores, self.sharpness_, lengths)

    def _fit_copies(self, probes: Sequence[Any], X: Ragged, problems: ProblemSet) -> None:
        if self.aggregate not in AGGREGATES:
            raise UsageError(f"unknown aggregate {self.aggregate!a}; {nearest(str(self.aggregate), AGGREGATES)}")
        check_positive("temperature", self.temperature)
        check_whole("window", self.window)
        check_whole("k", self.k)
        for name, (usual, readers) in _READ_BY.items():
            if getattr(self, name) != usual and self.aggregate not in readers:
                raise UsageError(f"{self.aggregate} reads no {name}, as {' and '.join(readers)} do; leave it out")
        strengths = [check_strength("C", probe.C) if self.has_C else 1.0 for probe in probes]
        fitted = token_fits(self.probe, X, problems, strengths)
        for probe, of_tokens in zip(probes, fitted, strict=True):
            probe.coef_, probe.intercept_ = of_tokens.coef_, of_tokens.intercept_
            probe.gap_, probe.converged_ = of_tokens.gap_, bool(of_tokens.converged_)
            probe.n_iter_, probe.side_, probe.spread_ = int(of_tokens.n_iter_), np.ones(1), np.ones(1)
        with one_thread():
            weights = [weights_of(problems, i, len(X)) for i in range(len(probes))]
            if self.aggregate in ("softmax", "fitted-softmax"):
                _set_spreads(probes, X, weights)
            if self.aggregate == "fitted-softmax":
                for i, probe in enumerate(probes):
                    _fit_sharpness(probe, X, problems.labels[problems.problems[i].label].values, weights[i])
            else:
                self._calibrate(probes, X, problems, weights)

    def _calibrate(
        self, probes: Sequence[Self], X: Ragged, problems: ProblemSet, weights: Sequence[np.ndarray]
    ) -> None:
        """Set slope, shift and side; the tokens are read once for all probes."""
        two_sided = self.aggregate not in ("mean", "last")
        sides = [(1.0, -1.0) if two_sided and probe._n_outputs == 1 else (1.0,) for probe in probes]
        found = [[np.empty((len(X), len(probe.coef_))) for _ in own] for probe, own in zip(probes, sides, strict=True)]
        for part in text_parts(X):
            rows = part.doubles()
            for probe, own, into in zip(probes, sides, found, strict=True):
                scores = probe._of_tokens(rows)
                for side, scored in zip(own, into, strict=True):
                    scored[part.texts] = probe._aggregated(scores, part.lengths, np.array([side]))
        for i, (probe, own) in enumerate(zip(probes, sides, strict=True)):
            rows, labels = weights[i] > 0, problems.labels[problems.problems[i].label].values
            fits = [fit_scale(scored[rows], labels[rows], log_odds=False, biased=True) for scored in found[i]]
            best = min(range(len(fits)), key=lambda number: fits[number].loss)
            probe.slope_, probe.shift_ = np.array([fits[best].slope]), fits[best].shift
            probe.side_ = np.array([own[best]])


def _soft_mean(scores: np.ndarray, sharpness: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The mean of scores [t, K] over each text, weighted by the softmax of sharpness * score: [n, K]."""
    return attended(sharpness * scores, scores[:, :, None], lengths)[0][:, :, 0]


def _fit_sharpness(probe: AggregateProbe, X: Ragged, labels: np.ndarray, weights: np.ndarray) -> None:
    """Set sharpness, slope and shift to those of the lowest loss; the scores of all tokens are in memory.

    The loss is not convex in the sharpness, so a grid is searched first, then between the neighbours of its best.
    """
    from scipy.optimize import minimize_scalar

    of_texts = by_text(X, lambda rows, _: probe._of_tokens(rows))
    kept = np.flatnonzero(weights)
    scores, lengths = np.concatenate([of_texts[text] for text in kept]), X.lengths[kept]

    def fit(sharpness: float) -> Scale:
        pooled = _soft_mean(scores, np.array([sharpness]), lengths)
        return fit_scale(pooled, labels[kept], log_odds=False, biased=True)

    one_sided = probe._n_outputs > 1  # of several classes each has its own high scores
    grid = np.array([*(() if one_sided else -SHARPNESSES[::-1]), 0.0, *SHARPNESSES]) / probe.spread_[0]
    losses = [fit(one).loss for one in grid]
    best = int(np.argmin(losses))
    ends = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    found: Any = minimize_scalar(
        lambda x: fit(x).loss, bounds=ends, method="bounded", options={"xatol": 1e-4 / probe.spread_[0]}
    )
    chosen = float(found.x) if found.fun < losses[best] else float(grid[best])
    scale = fit(chosen)
    probe.sharpness_, probe.slope_, probe.shift_ = np.array([chosen]), np.array([scale.slope]), scale.shift


def _rolling_max(scores: np.ndarray, probe: AggregateProbe) -> np.ndarray:
    """The highest mean of neighbouring scores [L, K] of a text: [K]."""
    windows = np.lib.stride_tricks.sliding_window_view(scores, min(probe.window, len(scores)), axis=0)
    return windows.mean(axis=-1).max(axis=0)


def _ema_max(scores: np.ndarray, probe: AggregateProbe) -> np.ndarray:
    """The highest exponential moving average of the scores [L, K] of a text: [K]."""
    from scipy.signal import lfilter

    new = 2 / (probe.window + 1)
    averages: Any = lfilter([new], [1, new - 1], scores, axis=0, zi=(1 - new) * scores[:1])
    return averages[0].max(axis=0)


def _top_mean(scores: np.ndarray, probe: AggregateProbe) -> np.ndarray:
    """The mean of the k highest scores [L, K] of a text: [K]."""
    k = min(probe.k, len(scores))
    return np.partition(scores, len(scores) - k, axis=0)[-k:].mean(axis=0)


_OF_ONE_TEXT = {"rolling-max": _rolling_max, "ema-max": _ema_max, "top-k": _top_mean}


def _set_spreads(probes: Sequence[AggregateProbe], X: Ragged, weights: Sequence[np.ndarray]) -> None:
    """The standard deviation of each probe's token scores over the training texts, each text with its weight."""
    sums = [np.zeros((2, len(probe.coef_))) for probe in probes]
    for part in text_parts(X):
        rows = part.doubles()
        for probe, own, into in zip(probes, weights, sums, strict=True):
            scores, w = probe._of_tokens(rows), token_weights(part, own)
            into += w @ scores, w @ np.square(scores)
    for probe, own, (first, second) in zip(probes, weights, sums, strict=True):
        n = own.sum()
        variance = float(np.mean(np.maximum(second / n - (first / n) ** 2, 0)))
        probe.spread_ = np.array([np.sqrt(variance) or 1.0])


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


def _shrinkage(X: Ragged, labels: np.ndarray, weights: np.ndarray, moments: RowMoments) -> float:
    """Ledoit and Wolf's shrinkage of the standardised covariance within classes, with n the number of texts.

    Tokens of a text depend on one another, so their number would promise a covariance that is known too well.
    """
    n = moments.count
    if n <= len(moments.class_counts):
        raise DataError(f"LDA needs more texts than classes, got {n} of {len(moments.class_counts)} classes; add texts")
    scale = scale_of(moments.covariance.diagonal(), moments.mean, int(X.lengths.sum()))
    _, S = moments.within_classes(scale)
    fourth = 0.0
    for part in text_parts(X):
        w = token_weights(part, weights)
        own = moments.class_means[np.repeat(labels[part.texts], part.lengths)]
        fourth += float(w @ np.square(np.square((part.doubles() - own) / scale).sum(axis=1)))
    return ledoit_wolf(S, fourth / n, n)


def _rows(X: Ragged) -> Tensor | Stream:
    if X.values is not None:
        return X.values

    def read() -> Iterator[Tensor]:
        return (part.rows for part in text_parts(X))

    starts = starts_of(X.lengths)
    order = np.concatenate([ranges(starts[part.texts], part.lengths) for part in text_parts(X)])
    return Stream(int(X.lengths.sum()), X.width, read, order)


def _of_tokens(X: Ragged, problems: ProblemSet) -> ProblemSet:
    """The problems with a label and a weight for each token."""
    share = np.repeat(1 / X.lengths, X.lengths)
    labels = tuple(Labels(np.repeat(each.values, X.lengths), each.n_classes) for each in problems.labels)
    weightings = tuple(share if w is None else np.repeat(w, X.lengths) * share for w in problems.weightings)
    return ProblemSet(labels, weightings, problems.problems)
