"""What a whole curve shows: a band around all of it, the layers that may be best, and whether any of it is chance.

Layers are judged on the same test examples, so all three use the joint distribution of the layers: resamples or
permutations that every layer shares. Higher values are better throughout.

Axes: L layers, N examples, S resamples, C classes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import norm, rankdata, t

from probekit.errors import UsageError
from probekit.evaluation.scores.bootstrap import LEVEL, Bootstrap, satterthwaite
from probekit.evaluation.scores.metrics import (
    LOWER_IS_BETTER,
    METRICS,
    Predictions,
    log_odds,
    mean_known,
    measure,
    ratio,
    weighted_metrics,
)

PERMUTATIONS = 1000
MANY = 50  # units; with fewer, the error under equality is so large that hardly anything could differ
_SAME = 1e-12  # a standard error below it is rounding
_CHUNK = 250_000  # weights held at once


@dataclass(frozen=True)
class Permutation:
    """How a curve compares with those of the same predictions when the test labels are permuted.

    Attributes:
        p_values: [L], of each layer by itself.
        p_max: of the best of all layers against the best of all layers under the null, so picking it costs nothing.
        null_mean: [L], the mean of each layer under the null: its chance level.
        null_high: the 95% quantile of the best layer under the null; a curve below it shows nothing. -inf where the
            metric is undefined.
    """

    p_values: np.ndarray
    p_max: float
    null_mean: np.ndarray
    null_high: float


def curve_band(
    bootstrap: Bootstrap,
    predictions: Sequence[Predictions],
    metric: str,
    resampled: np.ndarray,
    level: float = LEVEL,
) -> np.ndarray:
    """A band that holds the true values of all layers at once with probability `level`: [L, 2].

    Each layer's own interval, at the higher level whose normal quantile is that of the largest studentised deviation of
    all layers (sup-t: Montiel Olea and Plagborg-Moller 2019; of R2 on the logarithmic scale of its intervals), or
    Bonferroni's over the layers that vary in no resample, if that is more. So the band is wider than every interval,
    exact for perfect layers and fit for few groups, as they are; so far out the accuracy of a layer with few errors has
    its exact interval (`Bootstrap.intervals`). A layer for which the metric is undefined has nan.

    Args:
        bootstrap: of the test examples.
        predictions: one a layer.
        metric: a name of `METRICS`.
        resampled: [L, S], what `bootstrap.resampled` says of the layers.
        level: of the band.
    """
    values = np.array([measure(p, [metric]).get(metric, np.nan) for p in predictions])
    _, values, resampled = _known(values, resampled)
    on_scale = _deviations_of_r2 if metric == "r2" else _deviations
    quantile = _largest_deviation(on_scale(values, resampled), resampled, level, bootstrap.n_units)
    pointwise = max(level, float(2 * norm.cdf(quantile) - 1))
    ends = [bootstrap.intervals(p, pointwise, [metric], exact=True).get(metric, (np.nan, np.nan)) for p in predictions]
    return np.array(ends)


def best_set(
    values: np.ndarray, resampled: np.ndarray, level: float = LEVEL, without: np.ndarray | None = None
) -> np.ndarray:
    """The layers that cannot be told from the best: bool [L]; it holds the truly best one with probability `level`.

    Multiple comparisons with the best (Hsu 1981), each layer in turn against all others as Dunnett (1955) does with a
    control: a layer is out when some other exceeds it by more than its standard error times a critical value.
    Differences are taken within resamples, which is what makes close layers comparable. The critical value is Student's
    t, of the degrees of freedom of each difference (Satterthwaite 1946), at the level that the largest of all
    differences needs. With `MANY` units or more the standard error is that of layers that are equal, as Wilson's is of
    one accuracy: the difference adds its square over G to the variance. From fewer than two units nothing can be told,
    so then every layer is in.

    Args:
        values: [L]; higher is better.
        resampled: [L, S] over shared resamples; those in which a layer is nan are left out.
        level: of the set.
        without: [L, G], what `Bootstrap.without_each` says of the layers; None is for G without end.
    """
    known, values, resampled = _known(values, resampled)
    chosen = known.copy()
    if without is not None and np.shape(without)[1] < 2:
        return chosen
    left = None if without is None else np.asarray(without, dtype=np.float64)[known]
    chosen[known] = [_may_be_best(values, resampled, layer, level, left) for layer in range(len(values))]
    return chosen


def permutation_test(
    predictions: Sequence[Predictions],
    metric: str,
    seed: int = 0,
    groups: np.ndarray | None = None,
    permutations: int = PERMUTATIONS,
) -> Permutation:
    """Whether the predictions of each layer, and of the best of them, have anything to do with the labels.

    The test labels are permuted against the fixed predictions (Ojala and Garriga 2010, their first test), the same
    permutation for all layers; the best is compared with the maximum over layers (Westfall and Young 1993). A p-value
    is (1 + how many permutations do as well) / (1 + permutations), which is exact (Phipson and Smyth 2010).

    Args:
        predictions: one a layer, of the same N examples.
        metric: a name of `METRICS` of which higher is better.
        seed: of the permutations.
        groups: [N]; classes are permuted within a group where they differ, and among groups where they do not: what is
            tested is then the relation within groups, or that of groups. Values of a regression are permuted in the
            same way, unless they vary more between groups than within: then each is its group's mean and what it is
            off by, the means are permuted among groups and the rest within, and both relations are tested.
        permutations: how many.

    Raises:
        UsageError: a metric of which lower is better.
    """
    if metric not in METRICS or metric in LOWER_IS_BETTER:
        better = ", ".join(name for name in METRICS if name not in LOWER_IS_BETTER)
        raise UsageError(f"a permutation test needs a metric of which higher is better, {better}; got {metric!a}")
    observed = np.array([measure(p).get(metric, -np.inf) for p in predictions])
    rng, truth = np.random.default_rng(seed), predictions[0].truth
    chunks = []
    for size in _steps(permutations, len(truth)):
        truths = permuted(truth, rng, groups, size)
        chunks.append(np.stack([_under(p, truths, metric) for p in predictions]))
    null = np.concatenate(chunks, axis=1)
    null[np.isnan(null)] = -np.inf
    best = null.max(axis=0)
    at_least = null >= observed[:, None] - _SAME  # sums in another order differ by rounding
    return Permutation(
        p_values=(1 + at_least.sum(axis=1)) / (1 + permutations),
        p_max=float((1 + (best >= observed.max() - _SAME).sum()) / (1 + permutations)),
        null_mean=np.ma.masked_invalid(null).mean(axis=1).filled(np.nan),
        null_high=float(np.quantile(best, LEVEL, method="higher")),
    )


def permuted(truth: np.ndarray, rng: np.random.Generator, groups: np.ndarray | None, permutations: int) -> np.ndarray:
    """Labels [N] shuffled `permutations` times, as `permutation_test` says of groups: [S, N]."""
    if groups is None:
        return rng.permuted(np.tile(truth, (permutations, 1)), axis=1)
    member = np.unique(groups, return_inverse=True)[1].ravel()
    if np.issubdtype(truth.dtype, np.floating):
        means = np.bincount(member, truth) / np.bincount(member)
        off = truth - means[member]
        if means.var() > off.var():
            moved = rng.permuted(np.tile(means, (permutations, 1)), axis=1)[:, member]
            return moved + _shuffled(off, member, rng, permutations)
    return _shuffled(truth, member, rng, permutations)


def _shuffled(truth: np.ndarray, member: np.ndarray, rng: np.random.Generator, permutations: int) -> np.ndarray:
    """Values [N] shuffled within the groups where they differ, and among those where they do not: [S, N]."""
    rows = [np.flatnonzero(member == g) for g in range(member.max() + 1)]
    constant = np.array([bool((truth[r] == truth[r[0]]).all()) for r in rows])
    shuffled = np.tile(truth, (permutations, 1))
    of_group = np.array([truth[r[0]] for r, same in zip(rows, constant, strict=True) if same])
    if len(of_group):
        place = np.cumsum(constant)[member] - 1
        among = constant[member]
        shuffled[:, among] = rng.permuted(np.tile(of_group, (permutations, 1)), axis=1)[:, place[among]]
    for r in (r for r, same in zip(rows, constant, strict=True) if not same):
        shuffled[:, r] = rng.permuted(shuffled[:, r], axis=1)
    return shuffled


def _known(values: np.ndarray, resampled: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which layers have a value [L], these values, and their resamples, less those in which one is nan."""
    values, resampled = np.asarray(values, dtype=np.float64), np.asarray(resampled, dtype=np.float64)
    if resampled.ndim != 2 or values.shape != resampled.shape[:1]:
        raise UsageError(f"expected values [L] and resampled [L, S]; got {values.shape} and {resampled.shape}")
    known = np.isfinite(values)
    values, resampled = values[known], resampled[known]
    resampled = resampled[:, np.isfinite(resampled).all(axis=0)]
    return known, values, resampled if resampled.shape[1] else values[:, None]


def _deviations(values: np.ndarray, resampled: np.ndarray) -> np.ndarray:
    return resampled - values[:, None]


def _deviations_of_r2(values: np.ndarray, resampled: np.ndarray) -> np.ndarray:
    """On the scale log(1 - R2), where a heavy tail below is none, in the units of R2 around the value: [L, S]."""
    left = 1 - values[:, None]
    return np.where(left > 0, -left * np.log(np.maximum(1 - resampled, 1e-300) / np.where(left > 0, left, 1)), 0)


def _largest_deviation(apart: np.ndarray, resampled: np.ndarray, level: float, n_units: int) -> float:
    """The `level` quantile of the largest studentised deviation, Bonferroni's at least over what does not vary.

    As the normal quantile at whose level each layer's own Student's t is to be taken.
    """
    errors = resampled.std(axis=1)
    varies = errors > _SAME
    unseen = float(norm.ppf(1 - (1 - level) / (2 * max(1, int((~varies).sum())))))
    if not varies.any() or n_units < 2:
        return unseen
    deviation = np.abs(apart)[varies] / errors[varies, None]
    return max(unseen, -float(norm.ppf(t.sf(_largest(deviation, n_units, level), n_units - 1))))


def _may_be_best(
    values: np.ndarray, resampled: np.ndarray, layer: int, level: float, without: np.ndarray | None
) -> bool:
    ahead = values - values[layer]
    deviation = resampled - resampled[layer] - ahead[:, None]
    errors = deviation.std(axis=1)
    varies = errors > _SAME
    if (ahead[~varies] > _SAME).any():
        return False
    if not varies.any():
        return True
    studentised, errors = deviation[varies] / errors[varies, None], errors[varies]
    if without is None:
        critical = np.quantile(studentised.max(axis=0), level)
    else:
        n_units = without.shape[1]
        unequal = ahead[varies] if n_units >= MANY else 0.0
        errors = np.sqrt(errors**2 * n_units / (n_units - 1) + unequal**2 / n_units)
        critical = _critical(studentised, (without - without[layer])[varies], level)
    return bool((ahead[varies] <= critical * errors + _SAME).all())


def _critical(studentised: np.ndarray, without: np.ndarray, level: float) -> np.ndarray:
    """What each of the deviations [L, S] may reach, their errors being estimates from G units: [L]."""
    most = without.shape[1] - 1
    largest = _largest(studentised, most + 1, level)
    freedom = [satterthwaite(each, most + 1) if np.isfinite(each).all() else most for each in without]
    return t.isf(t.sf(largest, most), freedom)


def _largest(studentised: np.ndarray, n_units: int, level: float) -> float:
    """The `level` quantile of the largest of the deviations [L, S] over errors that are estimates from G units.

    As if the errors were independent of one another, which they are less than that: rather too much than too little.
    """
    drawn = np.random.default_rng(0).chisquare(n_units - 1, size=studentised.shape) / (n_units - 1)
    return float(np.quantile((studentised / np.sqrt(drawn)).max(axis=0), level))


def _under(predictions: Predictions, truths: np.ndarray, metric: str) -> np.ndarray:
    """The metric with each row of `truths` [S, N] as the truth: [S]."""
    if predictions.n_classes == 0:
        once = np.ones((1, len(predictions.truth)))
        return np.array([METRICS[metric](replace(predictions, truth=truth), once)[0] for truth in truths])
    if metric == "auroc":
        return _auroc_under(predictions, truths)
    stacked = _with_every_label(predictions)
    return np.concatenate(
        [weighted_metrics(stacked, W, [metric])[metric] for W in _one_label_each(predictions, truths)]
    )


def _auroc_under(predictions: Predictions, truths: np.ndarray) -> np.ndarray:
    """The AUROC by the ranks of the examples (Mann and Whitney 1947), which do not depend on the labels: [S]."""
    scores, n = predictions.scores, truths.shape[1]
    two = scores.ndim == 1
    each = []
    for c in [1] if two else range(predictions.n_classes):
        positive = (truths == c).astype(np.float64)
        members = positive.sum(axis=1)
        won = positive @ rankdata(scores if two else log_odds(scores, c)) - members * (members + 1) / 2
        each.append(ratio(won, members * (n - members)))
    return each[0] if two else mean_known(np.stack(each))


def _with_every_label(predictions: Predictions) -> Predictions:
    """C copies of the examples, the c-th with the label c: a labelling is then a choice of weights."""
    n_classes = predictions.n_classes
    rows = np.tile(np.arange(len(predictions.truth)), n_classes)
    truth = np.repeat(np.arange(n_classes), len(predictions.truth))
    return Predictions(truth, predictions.predicted[rows], predictions.scores[rows], n_classes)


def _one_label_each(predictions: Predictions, truths: np.ndarray) -> Iterator[np.ndarray]:
    start = 0
    for size in _steps(len(truths), predictions.n_classes * truths.shape[1]):
        part = truths[start : start + size]
        start += size
        yield np.concatenate([part == c for c in range(predictions.n_classes)], axis=1).astype(np.float64)


def _steps(total: int, width: int) -> list[int]:
    """How many rows of this width to take at a time."""
    step = max(1, _CHUNK // width)
    return [min(step, total - start) for start in range(0, total, step)]
