"""The test rows of a place in two dimensions: along the probe, and along what varies most orthogonal to it.

Two classes: x is the distance to the probe's decision boundary, in units of the activations. A regression: x is the
predicted value. y is the first principal component orthogonal to the probe's direction. More classes: the two
discriminant directions (Fisher 1936; Rao 1948) of the probe's scores. Principal components and discriminants are those
of rows that do not test.

Axes: N test rows, M other rows, D width, C classes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import eigh

from probekit.activations.activations import Activations
from probekit.errors import DataError, UsageError
from probekit.evaluation.fits.stream import features_held
from probekit.evaluation.reading import checked_activations, one_position
from probekit.evaluation.results.data import LayerResult, ProbeData
from probekit.evaluation.surface.values import rows_by_value
from probekit.points import Place, PointSpec
from probekit.selections import Selection
from probekit.tasks.token_labels import unlabelled_rows
from probekit.text import listed

MOST_OTHERS = 2000  # other rows; principal components of more cost seconds and look the same
TOLERANCE = 1e-3  # of the spread of the scores; stores keep float16 at the least, extraction repeats within 1e-5


@dataclass(frozen=True, eq=False)
class Projection:
    """The test rows of one place in two dimensions.

    Attributes:
        place: such as "resid_pre.5".
        x: float64 [N].
        y: float64 [N].
        labels: int64 [N], or float64 [N] of a regression.
        names: of the classes; none for a regression.
        shares: of the variance of the test rows that each axis has.
    """

    place: str
    x: np.ndarray
    y: np.ndarray
    labels: np.ndarray
    names: list[str]
    shares: tuple[float, float]


def project(results: ProbeData, acts: Activations, place: PointSpec | None = None) -> Projection:
    """Project the test rows of a place.

    Args:
        results: of one curve.
        acts: the activations that were probed.
        place: one of the curve.  [default: the layer selected on validation]

    Raises:
        UsageError: no such place; a probe that is not linear, or that predicts several numbers.
        DataError: other activations than those that were probed.
    """
    layer = results.best if place is None else _layer_of(results, checked_activations(acts), place)
    weights = _weights(layer)
    acts = _rows_probed(results, acts)
    X = features_held(acts, Place(layer.point, layer.layer)).double().cpu().numpy()
    if X.shape[1] != weights.shape[-1]:
        raise DataError(f"{layer.place} has {X.shape[1]} numbers here, and the probe takes {weights.shape[-1]}")
    tested, others = _split(results, acts)
    _check_scores(results, layer, X[tested], acts, tested)
    label = results.meta["label"]
    axes = _directions(layer, weights, X[others], np.asarray(acts.labels[label])[others])
    x, y = (X[tested] @ axis for axis in axes)
    total = X[tested].var(axis=0).sum()
    shares = (float(x.var() / total), float(y.var() / total)) if total > 0 else (0.0, 0.0)
    middle = X[others].mean(axis=0)
    x = x - middle @ axes[0] if len(weights.shape) == 2 else _along_probe(layer, weights, X[tested])
    names = list(acts.label_names[label])
    return Projection(layer.place, x, y - middle @ axes[1], np.asarray(acts.labels[label])[tested], names, shares)


def _layer_of(results: ProbeData, acts: Activations, place: PointSpec) -> LayerResult:
    point, number = acts.point_of(place)
    for layer in results.layers:
        if (layer.point, layer.layer) == (point, number):
            return layer
    raise UsageError(f"{place!a:.80} was not probed; there are {listed([layer.place for layer in results.layers])}")


def _weights(layer: LayerResult) -> np.ndarray:
    """The direction [D] of the place's probe, or [C, D]."""
    if layer.probe is None:
        raise UsageError(f"the results have no probe of {layer.place} to project on; train again with a linear probe")
    weights = layer.probe.direction  # raises for probes without one
    if weights.ndim == 2 and not hasattr(layer.probe, "classes_"):
        raise UsageError(
            f"the probe of {layer.place} predicts {len(weights)} numbers, and a projection shows one label"
        )
    if weights.shape[-1] < 2:
        raise UsageError(f"{layer.place} holds one number for each example; a projection needs two or more")
    if not np.abs(weights).max() > 0:
        raise UsageError(f"the probe of {layer.place} has weights of 0, so it has no direction; name another place")
    return weights


def _rows_probed(results: ProbeData, acts: Activations) -> Activations:
    """One row for each example, at the position that was probed."""
    position = Selection.named(results.meta["position"])
    several = acts.layout.is_ragged or len(acts.layout.positions) > 1
    return one_position(acts, position if several else None)


def _split(results: ProbeData, acts: Activations) -> tuple[np.ndarray, np.ndarray]:
    """The rows that tested, in the order of the results, and those that did not (all, if every row tested)."""
    known = {name: row for row, name in enumerate(acts.ids)}
    if results.rows is None:  # results of an earlier version
        tested = np.flatnonzero(acts.splits == "test")
    else:
        names = results.rows.ids[results.rows.splits == "test"].tolist()
        if missing := [name for name in names if name not in known]:
            raise DataError(
                f"{len(missing):,} of {len(names):,} test rows are not in these activations, such as "
                f"{missing[0]!a:.60}; give those that were probed"
            )
        tested = np.array([known[name] for name in names], dtype=np.int64)
    others = np.ones(len(acts.ids), dtype=bool)
    others[tested] = False
    others &= ~unlabelled_rows(acts.task, results.meta["label"])
    if (within := results.meta.get("within")) is not None:
        has_label = ~unlabelled_rows(acts.task, results.meta["label"])
        train = np.flatnonzero(has_label & ((acts.splits == "train") | (results.procedure is not None)))
        others &= rows_by_value(acts, within["column"], results.meta["label"], train)[0] == within["value"]
    found = np.flatnonzero(others) if others.sum() > 1 else np.sort(tested)
    if len(found) > MOST_OTHERS:
        found = np.sort(np.random.default_rng(0).choice(found, MOST_OTHERS, replace=False))
    return tested, found


def _check_scores(results: ProbeData, layer: LayerResult, X: np.ndarray, acts: Activations, tested: np.ndarray) -> None:
    """Check that the probe gives these rows the scores that the results hold.

    With nested folds the saved probe is not the one that tested.
    """
    if results.rows is None or results.procedure is not None or layer.place not in results.rows.scores:
        return
    known = results.rows.scores[layer.place][results.rows.splits == "test"]
    found = _scores(layer, X)
    spread = max(float(np.ptp(known)), 1e-12)
    if known.shape == found.shape and np.abs(known - found).max() > TOLERANCE * spread:
        row = int(np.abs(known - found).reshape(len(known), -1).max(axis=1).argmax())
        raise DataError(
            f"the probe scores example {acts.ids[tested[row]]!a:.60} otherwise than in the results: these are not the "
            "activations that were probed; give those"
        )


def _scores(layer: LayerResult, X: np.ndarray) -> np.ndarray:
    """Decisions [N] or [N, C], or predicted values [N]."""
    probe: Any = layer.probe
    return np.asarray(probe.decision_function(X) if hasattr(probe, "decision_function") else probe.predict(X))


def _along_probe(layer: LayerResult, weights: np.ndarray, X: np.ndarray) -> np.ndarray:
    """The distance to the boundary of two classes, or the predicted value: [N]."""
    scores = _scores(layer, X)
    return scores / np.linalg.norm(weights) if hasattr(layer.probe, "classes_") else scores


def _directions(layer: LayerResult, weights: np.ndarray, X: np.ndarray, labels: np.ndarray) -> list[np.ndarray]:
    """Two orthonormal directions [D]."""
    if weights.ndim == 2:
        first, second = _discriminants(_scores(layer, X), labels).T @ weights
        first = first / np.linalg.norm(first)
        second = second - (second @ first) * first
        return [first, second / np.linalg.norm(second)]
    first = weights / np.linalg.norm(weights)
    return [first, orthogonal_component(X, first)]


def orthogonal_component(X: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """The first principal component of rows [M, D] among the directions orthogonal to a unit vector: unit, [D]."""
    R = X - X.mean(axis=0)
    R = R - np.outer(R @ direction, direction)
    if len(R) < R.shape[1]:  # the smaller of the two Gram matrices
        _, vectors = eigh(R @ R.T, subset_by_index=[len(R) - 1, len(R) - 1])
        found = R.T @ vectors[:, 0]
    else:
        _, vectors = eigh(R.T @ R, subset_by_index=[R.shape[1] - 1, R.shape[1] - 1])
        found = vectors[:, 0]
    found = found - (found @ direction) * direction
    if not np.linalg.norm(found) > 0:  # rows vary along the direction alone: any orthogonal one will do
        found = np.eye(len(direction))[np.abs(direction).argmin()]
        found = found - (found @ direction) * direction
    found = found / np.linalg.norm(found)
    return found * np.sign(found[np.abs(found).argmax()])


def _discriminants(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The two directions [C, 2] along which the class means of scores [M, C] differ most, relative to their spread."""
    means = np.stack([scores[labels == k].mean(axis=0) for k in np.unique(labels)])
    counts = np.unique(labels, return_counts=True)[1]
    centred = scores - means[np.searchsorted(np.unique(labels), labels)]
    within = centred.T @ centred / len(scores)
    between = (means - scores.mean(axis=0)).T @ ((means - scores.mean(axis=0)) * (counts / len(scores))[:, None])
    ridge = 1e-9 * max(np.trace(within) / len(within), 1e-12)  # a softmax's scores may sum to 0, so one has no spread
    _, vectors = eigh(between, within + ridge * np.eye(len(within)))
    return vectors[:, -1:-3:-1]
