"""The test rows that two runs have in common, and each run's predictions for them.

Rows are the same where id, text (or tokens) and label are the same. Rows that are resampled together in either run are
resampled together here.

Axes: N rows.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probekit.evaluation.results.data import LayerResult, ProbeData
from probekit.evaluation.results.row_scores import RowScores
from probekit.evaluation.scores.metrics import Predictions
from probekit.evaluation.scores.score import value_of
from probekit.tasks.splitting.splits import components

CLOSE = 1e-6  # the headline of the rows and the one in the results; they are the same sums in another order
Key = tuple[object, ...]


@dataclass(frozen=True, eq=False)
class RunRows:
    """The test rows of a run, with the predictions of its quoted place.

    Attributes:
        keys: id, text, label and a count that tells equal rows from one another: [N].
        groups: int64 [N], rows that are resampled together.
        predictions: of N rows; classes are numbered as in the first run.
    """

    keys: list[Key]
    groups: np.ndarray
    predictions: Predictions


def run_rows(data: ProbeData, place: LayerResult | None, classes: Sequence[str]) -> tuple[RunRows | None, str]:
    """The test rows of a run; or None, and why they cannot be paired.

    Args:
        data: the run.
        place: the quoted one; None with nested folds.
        classes: of the first run, in its order.
    """
    if place is None:
        return None, "nested folds choose another layer in each fold"
    rows = data.rows
    if rows is None or place.place not in rows.scores:
        return None, "the results hold no scores of their test rows; train again"
    test = np.flatnonzero(rows.splits == "test")
    order = class_order(data, classes)
    predictions = _predictions(rows, place.place, test, order)
    found = value_of(predictions, data.headline)
    if not abs(found - place.metrics["test"][data.headline]) <= CLOSE:
        return None, "the scores of the test rows do not give the estimate"
    return RunRows(_keys(rows, test, classes, order), rows.groups[test], predictions), ""


def class_order(data: ProbeData, classes: Sequence[str]) -> np.ndarray:
    """For each class of a run, its number in the first run: int64 [C]."""
    return np.array([list(classes).index(name) for name in data.meta["classes"]], dtype=np.int64)


def _predictions(rows: RowScores, place: str, test: np.ndarray, order: np.ndarray) -> Predictions:
    scores, truth = np.asarray(rows.scores[place])[test], np.asarray(rows.labels)[test]
    if not len(order):
        return Predictions(truth, scores, scores, 0)
    if scores.ndim == 2:
        scores = scores[:, np.argsort(order)]
    elif order[0] == 1:  # the two classes are in the other order
        scores = -scores
    return Predictions(order[truth], order[np.asarray(rows.predicted[place])[test]], scores, len(order))


def _keys(rows: RowScores, test: np.ndarray, classes: Sequence[str], order: np.ndarray) -> list[Key]:
    """One for each row; rows that are equal are numbered in their order."""
    seen: Counter[Key] = Counter()
    keys = []
    for i in test:
        label = rows.labels[i]
        named: object = classes[int(order[label])] if len(order) else tuple(np.atleast_1d(label).tolist())
        key = (str(rows.ids[i]), str(rows.digests[i]), named)
        keys.append((*key, seen[key]))
        seen[key] += 1
    return keys


def in_common(one: RunRows, other: RunRows) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the rows that both have, in the order of the first: two int64 [N]."""
    if one.keys == other.keys:
        every = np.arange(len(one.keys))
        return every, every
    there = {key: i for i, key in enumerate(other.keys)}
    pairs = [(i, there[key]) for i, key in enumerate(one.keys) if key in there]
    found = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def joint_groups(one: np.ndarray, other: np.ndarray) -> np.ndarray | None:
    """Rows that share a group in either run have equal numbers: [N]; None where every row is its own."""
    if len(np.unique(one)) == len(one) and len(np.unique(other)) == len(other):
        return None
    return np.asarray(one if np.array_equal(one, other) else components(one.tolist(), other.tolist()))


def some_rows(predictions: Predictions, which: np.ndarray) -> Predictions:
    """The predictions of some rows; the same object for all of them, whose resamples are known."""
    if len(which) == len(predictions.truth) and np.array_equal(which, np.arange(len(which))):
        return predictions
    return Predictions(
        predictions.truth[which], predictions.predicted[which], predictions.scores[which], predictions.n_classes
    )


def rows_digest(groups: np.ndarray | None, which: np.ndarray) -> str:
    """Equal for the same rows in the same order and groups, so that their resamples are drawn once."""
    text = which.tobytes() + (b"" if groups is None else np.ascontiguousarray(groups).tobytes())
    return hashlib.sha256(text).hexdigest()
