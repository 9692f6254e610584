"""Placebo directions: what an edit does that has nothing to do with the label.

An edit along a probe's direction means something only next to the same edit, of the same size, along directions that
know nothing of the label: drawn uniformly, drawn with the activations' own covariance (which puts them where the
activations vary), and fitted to shuffled labels (which adds what fitting finds in noise).

Angles between directions are compared with those of random ones (the Haar measure of the sphere): in D dimensions cos^2
of the angle between a fixed line and a random one has the distribution Beta(1/2, (D - 1)/2).

Axes: N rows, D width of the place, k directions.
"""

import math
from typing import Any

import numpy as np
import torch
from scipy.special import betainc, betaincinv
from torch import Tensor

from probekit.causal.directions.directions import class_vectors
from probekit.errors import DataError, UsageError
from probekit.interventions.where import to_tensor
from probekit.options.check import check_whole, is_real
from probekit.probes.base import Probe
from probekit.probes.scikit_learn import clone
from probekit.text import kind_of


def angle(a: Any, b: Any) -> float:
    """The angle between the lines along two vectors [D], 0 to 90 degrees; signs and lengths do not matter.

    Raises:
        DataError: a vector of length 0, or not finite.
        UsageError: vectors of different widths.
    """
    first, second = to_tensor(a), to_tensor(b)
    if first is None or second is None:
        raise UsageError(f"angles are between two vectors [D] of numbers; got {kind_of(a)} and {kind_of(b)}")
    first, second = (x.detach().double().cpu() for x in (first, second))
    if first.dim() != 1 or first.shape != second.shape:
        raise UsageError(f"angles are between two vectors [D]; got {list(first.shape)} and {list(second.shape)}")
    for x in (first, second):
        if not 0 < float(x.norm()) < math.inf:
            raise DataError(f"a vector of length {float(x.norm()):g} has no direction; leave it out")
    first, second = first / first.norm(), second / second.norm()
    second = second if float(first @ second) >= 0 else -second
    # not acos: it loses half of the digits near 0 degrees (Kahan 2006)
    return math.degrees(2 * math.atan2(float((first - second).norm()), float((first + second).norm())))


def haar_angle(D: int, share: float) -> float:
    """The angle in degrees within which a share of random directions lies to any fixed one.

    `haar_angle(768, 0.05)` is 85.9: only 5% of random directions of 768 dimensions are that near.

    Raises:
        UsageError: fewer than two dimensions, or a share that is not between 0 and 1.
    """
    if not is_real(share) or not 0 < share < 1:
        raise UsageError(f"share must be between 0 and 1; got {share!a:.60}")
    return math.degrees(math.asin(math.sqrt(betaincinv((check_whole("D", D, 2) - 1) / 2, 0.5, share))))


def haar_share(D: int, degrees: float) -> float:
    """The share of random directions that lie within this angle to a fixed one: the p-value of an angle.

    Raises:
        UsageError: fewer than two dimensions, or an angle that is not in 0..90.
    """
    if not is_real(degrees) or not 0 <= degrees <= 90:
        raise UsageError(f"degrees must be in 0..90; got {degrees!a:.60}")
    return float(betainc((check_whole("D", D, 2) - 1) / 2, 0.5, math.sin(math.radians(degrees)) ** 2))


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
