"""Directions in activation space: a probe's, the difference of class means, and LDA's.

A direction goes from one class to another. It has length 1, and the standard deviation of the activations along it is
its unit: steering by 2 adds 2 standard deviations.

Axes: N rows, D width of the place, C classes, R rows of an edit.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.sums.moments import SplitMoments
from probekit.errors import DataError, UsageError
from probekit.interventions import Add, ProjectOut, add, project_out
from probekit.options.check import is_whole
from probekit.probes.base import Probe, scale_of
from probekit.probes.lda import LDAProbe

Classes = tuple[int, int]  # from, to


@dataclass(frozen=True, eq=False)
class Direction:
    """A direction at one place.

    Attributes:
        name: "probe", "mean-difference", "lda", "das", or a placebo's.
        vector_D: of length 1, float64 [D], on the CPU.
        std: standard deviation of the activations along it, on the rows that it was fitted to.
    """

    name: str
    vector_D: Tensor
    std: float

    def __post_init__(self) -> None:
        if not isinstance(self.vector_D, Tensor):
            raise UsageError("vector_D is a tensor [D]; make one of an array with torch.from_numpy")
        length = float(self.vector_D.norm())
        if self.vector_D.dim() != 1 or abs(length - 1) > 1e-9:
            raise UsageError(
                f"a direction is a vector [D] of length 1; got {list(self.vector_D.shape)} of length {length:.6g}, "
                "divide it by its length"
            )

    @property
    def step_D(self) -> Tensor:
        """One standard deviation along the direction, float64 [D]."""
        return self.vector_D * self.std

    def steering(self, scale: float | Tensor = 1.0) -> Add:
        """The edit that adds `scale` standard deviations, one number or one for each row [R]."""
        return add(self.step_D, scale)

    def erasing(self, mean_D: Tensor | None = None) -> ProjectOut:
        """The edit that sets the coordinate along the direction to that of `mean_D` [D], by default to 0."""
        return project_out(self.vector_D, mean_D)


def moments_of_rows(x_ND: Any, labels: dict[str, np.ndarray], n_classes: dict[str, int] | None = None) -> SplitMoments:
    """The moments of rows that are in memory, as `extract(stats=True)` sums them.

    Args:
        x_ND: activations, torch or numpy.
        labels: label set -> int64 [N].
        n_classes: label set -> C; None counts those that occur.

    Raises:
        DataError: no rows, NaN or infinity, or labels that are not one class number for each row.
    """
    rows = torch.as_tensor(x_ND)
    if rows.dim() != 2 or not len(rows) or not bool(rows.isfinite().all()):
        raise DataError(f"expected finite activations [N, D], one row or more; got {list(rows.shape)}, NaN or infinity")
    for name, y in labels.items():
        if y.shape != (len(rows),) or y.dtype.kind not in "iu" or y.min() < 0:
            raise DataError(
                f"labels {name!a} must be class numbers, 0 or more, of the {len(rows)} rows; leave others out"
            )
    classes = n_classes or {name: int(y.max()) + 1 for name, y in labels.items()}
    return SplitMoments.zero(rows[:1000].double().mean(dim=0), classes).including(rows, labels)


def unit_direction(name: str, vector_D: Any, moments: SplitMoments) -> Direction:
    """A vector divided by its length, with the standard deviation of the rows of `moments` along it.

    Raises:
        DataError: a vector of length 0, or not finite.
    """
    vector = torch.as_tensor(vector_D).double().cpu()
    length = float(vector.norm())
    if not 0 < length < float("inf"):
        raise DataError(f"the direction {name!a} has length {length:g}: the classes do not differ here; leave it out")
    vector = vector / length
    variance = float(vector @ moments.covariance.to(vector) @ vector)
    return Direction(name, vector, max(variance, 0.0) ** 0.5)


def probe_direction(probe: Probe, moments: SplitMoments, classes: Classes = (0, 1)) -> Direction:
    """The weights of a linear probe: along them its decision moves from the first of `classes` to the second.

    Args:
        probe: fitted.
        moments: of the rows that it was fitted to.
        classes: numbers of two classes.

    Raises:
        NoDirection: the probe is not linear.
        UsageError: classes that the probe does not have.
    """
    vectors_CD = class_vectors(probe)
    first, second = _checked(classes, len(vectors_CD))
    return unit_direction("probe", vectors_CD[second] - vectors_CD[first], moments)


def class_vectors(probe: Probe) -> Tensor:
    """A vector for each class, float64 [C, D]; the difference of two is the probe's direction between them.

    A probe of two classes, or of numbers, has one weight vector: here that of class 1, and zeros are class 0's.

    Raises:
        NoDirection: the probe is not linear.
    """
    weights = torch.from_numpy(np.atleast_2d(probe.direction)).double()
    return weights if len(weights) > 1 else torch.cat([torch.zeros_like(weights), weights])


def mean_difference_direction(moments: SplitMoments, label: str, classes: Classes = (0, 1)) -> Direction:
    """From the mean activation of the first class to that of the second (Marks and Tegmark 2023).

    Raises:
        DataError: a class without rows, or equal means.
        UsageError: an unknown label set or class.
    """
    first, second = _with_rows(moments, label, classes)
    means_CD = moments.class_means(label)
    return unit_direction("mean-difference", means_CD[second] - means_CD[first], moments)


def lda_direction(
    moments: SplitMoments, label: str, classes: Classes = (0, 1), shrinkage: float | None = None
) -> Direction:
    """Fisher's direction: the difference of means, whitened by the covariance within classes.

    Args:
        moments: of the rows to fit.
        label: label set.
        classes: numbers of two classes.
        shrinkage: of the covariance of standardised features towards a multiple of the identity, 0 to 1; None
            estimates it (`oas_shrinkage`).

    Raises:
        DataError: a class without rows, or equal means.
        UsageError: an unknown label set or class, or a shrinkage out of range.
    """
    first, second = _with_rows(moments, label, classes)
    fitted = fit_lda(moments, label, shrinkage)
    numbers = fitted.classes_.tolist()
    direction = probe_direction(fitted, moments, (numbers.index(first), numbers.index(second)))
    return replace(direction, name="lda")


def fit_lda(moments: SplitMoments, label: str, shrinkage: float | None = None) -> LDAProbe:
    """LDA's probe of all classes that have rows; `shrinkage` as in `lda_direction`."""
    amount = oas_shrinkage(moments, label) if shrinkage is None else shrinkage
    return LDAProbe(shrinkage=amount).fit_statistics(**moments.for_probe(label))


def oas_shrinkage(moments: SplitMoments, label: str) -> float:
    """How far to shrink the standardised covariance within classes, from the covariance and the number of rows alone.

    Chen, Wiesel, Eldar and Hero 2010, "Shrinkage algorithms for MMSE covariance estimation", in the form of
    scikit-learn's `oas`, without the terms in 2 / D. (Ledoit and Wolf's estimate needs the rows.)
    """
    diagonal = moments.covariance.diagonal().cpu().numpy()
    scale = torch.from_numpy(scale_of(diagonal, moments.mean.cpu().numpy(), moments.count, True))
    within = moments.within_class_covariance(label).cpu() / scale / scale[:, None]
    square, squared_trace = float((within**2).sum()), float(within.trace()) ** 2
    spread = (moments.count + 1) * (square - squared_trace / len(within))
    return 1.0 if spread <= 0 else min(1.0, (square + squared_trace) / spread)


def _checked(classes: Classes, n_classes: int) -> Classes:
    whole = isinstance(classes, tuple | list) and len(classes) == 2 and all(map(is_whole, classes))
    if not whole or classes[0] == classes[1] or not all(0 <= one < n_classes for one in classes):
        raise UsageError(f"classes must be two different numbers of 0..{n_classes - 1}; got {classes!a:.60}")
    return int(classes[0]), int(classes[1])


def _with_rows(moments: SplitMoments, label: str, classes: Classes) -> Classes:
    first, second = _checked(classes, len(moments.for_probe(label)["class_counts"]))
    counts = moments.class_counts[label]
    if missing := [one for one in (first, second) if not counts[one]]:
        raise DataError(
            f"no row of class {missing[0]} of {label!a} to fit a direction to; add rows or take another class"
        )
    return first, second
