"""A metric of fixed predictions under permuted labels, for all layers at once.

What depends on the predictions alone (ranks, counts) is computed once, and what depends on the labels alone once for
all layers.

Axes: L layers, N examples, S permutations, C classes, K outputs.
"""

from collections.abc import Callable, Sequence

import numpy as np

from probekit.evaluation.scores.predictions import Predictions, adder, mean_known, ratio
from probekit.evaluation.scores.ranking import log_odds, with_ties

Permuted = Callable[[np.ndarray], np.ndarray]
"""Labels [S, N], or [S, N, K] of a regression -> the metric of each layer [L, S]; nan where it is undefined."""


def under_permutation(layers: Sequence[Predictions], metric: str) -> Permuted:
    """A function that computes this headline for every layer, with each row of labels as the truth."""
    return _KINDS[metric](layers, metric)


def _hits(layers: Sequence[Predictions], metric: str) -> Permuted:
    n_classes = layers[0].n_classes
    by_predicted = [adder(each.predicted, n_classes) for each in layers]

    def values(truths: np.ndarray) -> np.ndarray:
        right = [truths == each.predicted for each in layers]
        if metric == "accuracy":
            return np.stack([each.mean(axis=1) for each in right])
        members = _class_sums(truths, n_classes)
        found = []
        for hits, of_class, each in zip(right, by_predicted, layers, strict=True):
            hits = of_class @ np.ascontiguousarray(hits.T, dtype=np.float64)  # [C, S]
            if metric == "balanced_accuracy":
                found.append(mean_known(ratio(hits, members)))
                continue
            shares = ratio(2 * hits, members + np.bincount(each.predicted, minlength=n_classes)[:, None])
            found.append(shares[1] if n_classes == 2 else mean_known(shares))
        return np.stack(found)

    return values


def _class_sums(truths: np.ndarray, n_classes: int, values: np.ndarray | None = None) -> np.ndarray:
    """The number of examples of each class, or the sum of their values [S, N]: [C, S]."""
    numbers = truths + n_classes * np.arange(len(truths))[:, None]
    given = None if values is None else values.ravel()
    return np.bincount(numbers.ravel(), given, minlength=n_classes * len(truths)).reshape(-1, n_classes).T


def _auroc(layers: Sequence[Predictions], metric: str) -> Permuted:
    """From the ranks of the scores (Mann and Whitney 1947)."""
    ranks = [_ranks(_by_class(each)) for each in layers]  # [N, 1] or [N, C]
    n, n_classes = len(layers[0].truth), layers[0].n_classes

    def values(truths: np.ndarray) -> np.ndarray:
        members = _class_sums(truths, n_classes)
        if ranks[0].shape[1] == 1:
            members = members[1]
            won = np.concatenate(ranks, axis=1).T @ (truths == 1).T - members * (members + 1) / 2
            return ratio(won, np.broadcast_to(members * (n - members), won.shape))
        won = [_class_sums(truths, n_classes, each[np.arange(n), truths]) for each in ranks]
        pairs = members * (n - members)
        return np.stack([mean_known(ratio(each - members * (members + 1) / 2, pairs)) for each in won])

    return values


def _ranks(values: np.ndarray, ties: str = "average") -> np.ndarray:
    """The ranks in each column [N, K]."""
    from scipy.stats import rankdata  # half a second to import, which accuracy does without

    return rankdata(values, method=ties, axis=0)


def _by_class(predictions: Predictions) -> np.ndarray:
    """The scores that rank the examples of each class above the others, [N, C]; of two classes, of class 1: [N, 1]."""
    return with_ties(predictions.scores[:, None] if predictions.scores.ndim == 1 else log_odds(predictions.scores))


def _average_precision(layers: Sequence[Predictions], metric: str) -> Permuted:
    """From the places of a class's examples: the i-th best of them, at place d, adds i / d."""
    places = [_ranks(-_by_class(each), "max").astype(np.int64) for each in layers]
    n, n_classes = len(layers[0].truth), layers[0].n_classes
    two = places[0].shape[1] == 1

    def values(truths: np.ndarray) -> np.ndarray:
        members = _class_sums(truths, n_classes)
        firsts = (np.cumsum(members, axis=0) - members).T  # [S, C], in the labels' order by class
        found = []
        for each in places:
            place = np.broadcast_to(each[:, 0], truths.shape) if two else each[np.arange(n), truths]
            ordered = np.sort(truths * (n + 1) + place, axis=1)
            label = ordered // (n + 1)
            # the examples of the class at this place or above: those at one place count all together
            last = np.diff(ordered, axis=1, append=-1) != 0
            ends = np.where(last, np.arange(n), n)[:, ::-1]
            own = np.minimum.accumulate(ends, axis=1)[:, ::-1] + 1 - np.take_along_axis(firsts, label, axis=1)
            shares = ratio(_class_sums(label, n_classes, own / (ordered - label * (n + 1))), members)
            found.append(shares[1] if two else mean_known(shares))
        return np.stack(found)

    return values


def _of_numbers(layers: Sequence[Predictions], metric: str) -> Permuted:
    """R2 or Spearman's correlation; of several outputs the mean of theirs."""
    several = layers[0].truth.ndim == 2
    of_one = _r2 if metric == "r2" else _spearman
    predicted = np.stack([each.predicted for each in layers])  # [L, N] or [L, N, K]
    outputs = np.moveaxis(predicted, 2, 0) if several else predicted[None]

    def values(truths: np.ndarray) -> np.ndarray:
        columns = np.moveaxis(truths, 2, 0) if several else truths[None]
        each = np.stack([of_one(*pair) for pair in zip(columns, outputs, strict=True)])
        return mean_known(each) if several else each[0]

    return values


def _r2(truths: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """R2 of predictions [L, N] for targets [S, N]: [L, S]."""
    middle = truths[0].mean()  # without it, the squares would lose digits
    truths, predicted = truths - middle, predicted - middle
    squares = (truths**2).sum(axis=1)
    errors = (predicted**2).sum(axis=1)[:, None] - 2 * predicted @ truths.T + squares
    spread = ((truths - truths.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    return 1 - ratio(
        np.maximum(errors, 0), np.broadcast_to(np.where(spread > 1e-12 * squares, spread, 0), errors.shape)
    )


def _spearman(truths: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Spearman's correlation of predictions [L, N] with targets [S, N]: [L, S]; 0 where predictions do not vary."""
    middle = (truths.shape[1] + 1) / 2
    ranks, others = _ranks(truths.T).T - middle, _ranks(predicted.T).T - middle
    spread, other_spread = (ranks**2).sum(axis=1), (others**2).sum(axis=1)[:, None]
    correlation = ratio(others @ ranks.T, np.sqrt(spread * other_spread))
    return np.where((spread > 0) & (other_spread <= 0), 0, correlation)


_KINDS: dict[str, Callable[[Sequence[Predictions], str], Permuted]] = {
    **dict.fromkeys(("accuracy", "balanced_accuracy", "f1"), _hits),
    "auroc": _auroc,
    "average_precision": _average_precision,
    **dict.fromkeys(("r2", "spearman"), _of_numbers),
}
