"""The mean and the shrunk covariance of a place's training rows, and the distances of its validation rows.

Axes: N rows, D width, K directions.
"""

from dataclasses import replace

import numpy as np

from probekit.activations.activations import Activations
from probekit.evaluation.fits.protocol import Protocol
from probekit.evaluation.fits.sequences import tokens_of_texts
from probekit.evaluation.fits.stream import features_to_fit, rows_held
from probekit.evaluation.results.spread import TrainingSpread, distances
from probekit.points import Place, place_name
from probekit.probes.base import as_numpy
from probekit.probes.sequence.ragged import pooled_rows

DIRECTIONS = 256  # 0.8 MB at D = 768
WIDE = 2048  # the smaller side of the rows is at most this, whose eigenvectors take two seconds of one core
MOST_ROWS = 8192
SMALLEST = 1e-12  # of the mean variance: rows without any variance have a distance all the same


def training_spread(acts: Activations, place: Place, protocol: Protocol, seed: int) -> TrainingSpread:
    """The spread of a place's training rows; of a probe over a sequence, of the mean token of each text.

    At most `MOST_ROWS` training rows take part, drawn with the seed (`WIDE` of them for wider places), and as many
    validation rows. With nested folds all rows are training rows, and none are held out.
    """
    is_ragged = acts.layout.is_ragged
    X = pooled_rows(tokens_of_texts(acts, place), "mean") if is_ragged else features_to_fit(acts, place)
    rng = np.random.default_rng(seed)
    parts = []
    for rows in (protocol.train, protocol.rows.get("validation", np.empty(0, dtype=np.int64))):
        most = MOST_ROWS if X.shape[1] <= WIDE else WIDE
        some = rows if len(rows) <= most else np.sort(rng.choice(rows, most, replace=False))
        parts.append(np.asarray(as_numpy(rows_held(X, some)), dtype=np.float64))
    made = spread_of(parts[0], place_name(place))
    return replace(made, held_out=np.sort(distances(made, parts[1])))


def spread_of(X: np.ndarray, place: str) -> TrainingSpread:
    """The spread of rows [N, D], with no held-out distances."""
    N, D = X.shape
    mean = X.mean(axis=0)
    centred = X - mean
    small = centred @ centred.T if N < D else centred.T @ centred
    values, vectors = np.linalg.eigh(small)
    K = min(DIRECTIONS, D, len(values))
    values, vectors = np.maximum(values[::-1] / N, 0), vectors[:, ::-1][:, :K]
    if N < D:  # the vectors of the rows' products give those of the covariance, but for directions without variance
        varied = values[:K] > SMALLEST * max(values[0], np.finfo(float).tiny)
        vectors = centred.T @ (vectors[:, : varied.sum()] / np.sqrt(N * values[:K][varied]))
    variances, rest = _shrunk(values, vectors.shape[1], centred)
    return TrainingSpread(place, N, mean, vectors.T.astype(np.float32), variances, rest, np.empty(0))


def _shrunk(values: np.ndarray, K: int, centred: np.ndarray) -> tuple[np.ndarray, float]:
    """The first K eigenvalues of the covariance, shrunk towards their mean, and the mean of the others.

    The weight of the mean is that of Ledoit and Wolf (2004, lemma 3.2 ff.): the squared error of the covariance over
    its squared distance from a multiple of the identity.
    """
    N, D = centred.shape
    squares, average = float((values**2).sum()), float(values.sum() / D)
    off_identity = squares - D * average**2
    error = (float((np.einsum("nd,nd->n", centred, centred) ** 2).sum()) / N - squares) / N
    weight = 1.0 if off_identity <= 0 else min(1.0, max(0.0, error) / off_identity)
    least = max(SMALLEST * average, np.finfo(float).tiny)
    shrunk = np.maximum((1 - weight) * values[:K] + weight * average, least)
    others = D - K
    rest = (1 - weight) * float(values[K:].sum()) / others + weight * average if others else average
    return shrunk, max(rest, least)
