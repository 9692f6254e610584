"""Whether any of a curve is chance: its predictions against permuted test labels.

Axes: L layers, N examples, S permutations, C classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from probekit.errors import UsageError
from probekit.evaluation.scores.bootstrap import LEVEL, too_few_groups
from probekit.evaluation.scores.joint import ROUNDING
from probekit.evaluation.scores.metrics import LOWER_IS_BETTER, METRICS, metrics_of
from probekit.evaluation.scores.permuted import under_permutation
from probekit.evaluation.scores.predictions import Predictions, mean_known, ratio

PERMUTATIONS = 1000  # the smallest p-value is 1 / 1001
Permuter = Callable[[np.random.Generator, int], np.ndarray]
"""(generator, S) -> labels permuted S times: [S, N] or [S, N, K]."""
_CHUNK = 250_000  # labels drawn at once: 2 MB, which stay in the processor's cache


@dataclass(frozen=True)
class Permutation:
    """How a curve compares with the same predictions under permuted test labels.

    Attributes:
        p_values: [L], of each layer on its own.
        p_max: of the best layer against the best layer under the null, which pays for picking the best of L.
        null_mean: [L], each layer's mean under the null: its chance level.
        null_high: the 95% quantile of the best layer under the null; a curve below it shows nothing. -inf where the
            metric is undefined.
    """

    p_values: np.ndarray
    p_max: float
    null_mean: np.ndarray
    null_high: float


def permutation_test(
    predictions: Sequence[Predictions],
    metric: str,
    seed: int = 0,
    groups: np.ndarray | None = None,
    permutations: int = PERMUTATIONS,
) -> Permutation:
    """Test whether the predictions of each layer, and of the best layer, are related to the labels at all.

    The null hypothesis is no association; the alternative is not "better than a constant". Under the null, predictions
    that vary have an R2 below 0 and an accuracy below the majority's, so a small p-value goes with an R2 of about 0.

    The test labels are permuted against fixed predictions (Ojala and Garriga 2010, their first test), with the same
    permutation for all layers; the best layer is compared with the maximum over layers (Westfall and Young 1993). The
    p-value is (1 + permutations that do as well) / (1 + permutations), which is exact (Phipson and Smyth 2010).

    Args:
        predictions: one per layer, of the same N examples.
        metric: a name of `METRICS` where higher is better.
        seed: of the permutations.
        groups: [N]; classes are permuted within groups that hold several classes, and between groups that hold one. The
            test is then of the relation within groups, or between groups. Regression targets are permuted in the same
            way, unless they vary more between groups than within: then each is split into its group's mean and the
            rest, means are permuted between groups and the rest within, and both relations are tested. The numbers of a
            row stay together; of several, the shares of variance are averaged.
        permutations: how many.

    Raises:
        UsageError: a metric where lower is better.
    """
    if metric not in METRICS or metric in LOWER_IS_BETTER:
        better = ", ".join(name for name in METRICS if name not in LOWER_IS_BETTER)
        raise UsageError(f"a permutation test needs a metric where higher is better, {better}; got {metric!a}")
    observed = np.array([metrics_of(p, [metric]).get(metric, -np.inf) for p in predictions])
    rng, truth = np.random.default_rng(seed), predictions[0].truth
    draw, values = permuter(truth, groups), under_permutation(predictions, metric)
    null = np.concatenate([values(draw(rng, size)) for size in _chunks(permutations, truth.size)], axis=1)
    null[np.isnan(null)] = -np.inf
    best = null.max(axis=0)
    as_good = null >= observed[:, None] - ROUNDING
    return Permutation(
        p_values=(1 + as_good.sum(axis=1)) / (1 + permutations),
        p_max=float((1 + (best >= observed.max() - ROUNDING).sum()) / (1 + permutations)),
        null_mean=np.ma.masked_invalid(null).mean(axis=1).filled(np.nan),
        null_high=float(np.quantile(best, LEVEL, method="higher")),
    )


def permuted_texts(n_groups: int | None) -> tuple[str, str]:
    """How groups limit the permutations, to follow "test labels", and a sentence on what that leaves untested."""
    if n_groups is None:
        return "", ""
    beyond = f" It says nothing about other groups than these {n_groups}." if too_few_groups(n_groups) else ""
    return ", permuted within groups or by complete groups", beyond


def permuter(truth: np.ndarray, groups: np.ndarray | None) -> Permuter:
    """A function that permutes these labels [N] or [N, K], with groups as `permutation_test` describes.

    What depends on labels and groups alone is computed once, in O(N log N). The K numbers of a row stay together.
    """
    if groups is None:
        every = np.arange(len(truth))
        return lambda rng, permutations: truth[rng.permuted(np.tile(every, (permutations, 1)), axis=1)]
    member, sizes = np.unique(groups, return_inverse=True, return_counts=True)[1:]
    member = member.ravel()
    if truth.dtype.kind == "f":
        columns = truth.reshape(len(truth), -1).T
        means = np.stack([np.bincount(member, column) / sizes for column in columns], axis=1)
        means = means.reshape(-1, *truth.shape[1:])
        rest = truth - means[member]
        if _is_of_groups(means, rest):
            among, within = permuter(means, None), _by_group(rest, member)
            return lambda rng, permutations: among(rng, permutations)[:, member] + within(rng, permutations)
    return _by_group(truth, member)


def _is_of_groups(means: np.ndarray, rest: np.ndarray) -> bool:
    """Whether targets vary more between groups than within; of several, on average, each in its own units."""
    between, within = np.atleast_1d(means.var(axis=0)), np.atleast_1d(rest.var(axis=0))
    return bool(mean_known(ratio(between, between + within)) > 0.5)


def _by_group(truth: np.ndarray, member: np.ndarray) -> Permuter:
    """Permutes labels [N] or [N, K] within groups where they differ, and between groups where they do not."""
    order, sizes = np.argsort(member, kind="stable"), np.bincount(member)
    starts = np.cumsum(sizes) - sizes
    firsts = order[starts]  # the first row of each group
    equal = (truth[order] == truth[firsts[member[order]]]).reshape(len(truth), -1).all(axis=1)
    constant = np.logical_and.reduceat(equal, starts)
    among, place = constant[member], (np.cumsum(constant) - 1)[member]
    # the rows of the groups that differ, [groups, size] for each size: all groups of a size are one call
    blocks = [
        order[starts[~constant & (sizes == size), None] + np.arange(size)] for size in np.unique(sizes[~constant])
    ]

    def draw(rng: np.random.Generator, permutations: int) -> np.ndarray:
        shuffled = np.empty((permutations, len(truth)), dtype=np.int64)  # rows whose labels are taken
        if among.any():
            groups = np.tile(firsts[constant], (permutations, 1))
            shuffled[:, among] = rng.permuted(groups, axis=1)[:, place[among]]
        for rows in blocks:
            own = np.repeat(rows[:, None], permutations, axis=1)  # [groups, S, size]
            shuffled[:, rows] = rng.permuted(own, axis=2).swapaxes(0, 1)
        return truth[shuffled]

    return draw


def _chunks(total: int, width: int) -> list[int]:
    """How many rows of this width to take at a time."""
    step = max(1, _CHUNK // width)
    return [min(step, total - start) for start in range(0, total, step)]
