"""Placebo directions: what an edit does that has nothing to do with the label.

An edit along a probe's direction means something only next to the same edit, of the same size, along directions that
know nothing of the label: drawn uniformly, drawn with the activations' own covariance (which puts them where the
activations vary), and fitted to shuffled labels (which adds what fitting finds in noise).

Axes: N rows, D width of the place, k directions.
"""

from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from torch import Tensor

from probekit.causal.directions.directions import class_vectors
from probekit.errors import DataError, UsageError
from probekit.interventions.given import to_tensor
from probekit.options.check import check_whole
from probekit.probes.base import Probe
from probekit.text import kind_of


def random_directions(k: int, D: int, seed: int = 0) -> Tensor:
    """Draw k directions uniformly from the sphere: float64 [k, D] of length 1."""
    check_whole("k", k)
    check_whole("D", D)
    check_whole("seed", seed, 0)
    return _unit(torch.from_numpy(np.random.default_rng(seed).standard_normal((k, D))))


def covariance_directions(k: int, covariance: Any, seed: int = 0) -> Tensor:
    """Draw k directions from N(0, covariance [D, D]) and divide each by its length: float64 [k, D].

    Raises:
        DataError: a covariance that is not finite, or 0: the activations do not vary.
        UsageError: not a square matrix.
    """
    check_whole("k", k)
    check_whole("seed", seed, 0)
    matrix = to_tensor(covariance)
    if matrix is None or matrix.dim() != 2 or matrix.shape[0] != matrix.shape[1]:
        got = kind_of(covariance) if matrix is None else list(matrix.shape)
        raise UsageError(f"covariance must be [D, D]; got {got}")
    matrix = matrix.double().cpu()
    if not bool(matrix.isfinite().all()) or not float(matrix.diagonal().max()) > 0:
        raise DataError(
            "the activations do not vary or are not finite, so that no direction can be drawn; leave it out"
        )
    values, vectors = torch.linalg.eigh(matrix)
    # the symmetric root: it does not depend on the signs of the eigenvectors, which differ between LAPACKs
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    return _unit(torch.from_numpy(np.random.default_rng(seed).standard_normal((k, len(matrix)))) @ root)


def shuffled_direction(probe: Probe, x_ND: Any, labels_N: np.ndarray, seed: int = 0, k: int = 1) -> Tensor:
    """The directions of k probes fitted to shuffled labels, float64 [k, D] of length 1.

    With more than two classes, the contrast of the second class with the first.

    Args:
        probe: linear, with the parameters of the real one (its C above all); it is cloned.
        x_ND: the rows that the real probe was fitted to, torch or numpy.
        labels_N: their labels.
        seed: of the shuffles.
        k: how many.

    Raises:
        NoDirection: the probe is not linear.
        DataError: the activations do not vary.
    """
    check_whole("k", k)
    rng = np.random.default_rng(check_whole("seed", seed, 0))
    vectors = [class_vectors(fitted_to_shuffled(probe, x_ND, labels_N, rng)) for _ in range(k)]
    return _unit(torch.stack([vectors_CD[1] - vectors_CD[0] for vectors_CD in vectors]))


def fitted_to_shuffled(probe: Probe, x_ND: Any, labels_N: np.ndarray, rng: np.random.Generator) -> Probe:
    """A probe with the same parameters, fitted to the rows [N, D] and a permutation of their labels [N]."""
    copy: Any = clone(probe)
    return copy.fit(x_ND, rng.permutation(labels_N))


def _unit(vectors_kD: Tensor) -> Tensor:
    lengths_k1 = vectors_kD.norm(dim=1, keepdim=True)
    if not bool((lengths_k1 > 0).all()):
        raise DataError("a placebo has length 0: the activations do not vary; leave this place out")
    return vectors_kD / lengths_k1
