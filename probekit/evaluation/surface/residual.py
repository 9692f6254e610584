"""Activations after nuisance columns are regressed out of them, in closed form, on the fitted rows alone.

X - mean - Z B with B = Z_train^+ (X_train - mean): what is left has no linear relation to the columns Z on train. With
an orthonormal basis P of the columns on train, B needs one product with X. What a nonlinear probe could still find of
the columns, or a linear one outside of train, stays.

Axes: N examples, D width, V columns, R their rank on train.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from probekit.activations.activations import Activations
from probekit.evaluation.fits.layer import checked_features
from probekit.evaluation.fits.predict import ByMask
from probekit.machine.devices import where_float64
from probekit.points import Place

ROWS = 16_384  # at a time, which bounds the float64 copy
# Singular values below this share of the largest are those of columns that depend on one another, up to the rounding of
# float32 (6e-8), in which files hold numbers. A smaller share would fit that rounding; a larger one would leave more
# than 1e-6 of a column.
RANK = 1e-7
# A feature whose residual is within a few roundings of its own size on train holds nothing but rounding. That noise is
# a function of the columns, and standardised it would give them back to the probe.
ROUNDINGS = 16


class Residualised(Activations):
    """The rows of `source` without what a linear regression on nuisance columns predicts of them.

    Args:
        source: one row for each example.
        columns: float64 [N, V], of about the same size.
        masks: float64 [N] each, 1 for the rows that are fitted: the regression is on these rows alone.
        final: number of the mask whose residuals are the rows of these activations.
    """

    def __init__(self, source: Activations, columns: np.ndarray, masks: Sequence[np.ndarray], final: int = 0):
        super().__init__(list(source), source.task, source.meta, source.layout)
        self._source, self._final = source, final
        self._train = [np.flatnonzero(mask) for mask in masks]
        self._basis = [basis_of(columns, train) for train in self._train]

    def features(self, place: Place) -> Tensor | ByMask:
        """The rows of a place, in float32 or more; with several masks those of each. The source is read once.

        Raises:
            DataError: NaN or infinity.
        """
        given = self._source._rows(place)

        @lru_cache(maxsize=1)  # a mask is fitted, then validated, then tested
        def of(mask: int) -> Tensor:
            return checked_features(self._without(given, mask), place, self.ids.__getitem__)

        return of(self._final) if len(self._train) == 1 else ByMask(of, of(self._final))

    def _rows(self, place: Place) -> Tensor:
        return self._without(self._source._rows(place), self._final)

    def _without(self, given: Tensor, mask: int) -> Tensor:
        """The residuals of a regression on the rows of one mask."""
        X = where_float64(given)
        if not torch.isfinite(X).all():
            return given  # refused later, with the example's name
        basis, train = (torch.from_numpy(each[mask]).to(X.device) for each in (self._basis, self._train))
        mean, B = _regression(X, basis, train)
        out = torch.empty_like(X, dtype=torch.promote_types(X.dtype, torch.float32))
        for start in range(0, len(X), ROWS):
            rows = slice(start, start + ROWS)
            out[rows] = X[rows].double() - mean - basis[rows] @ B
        out[:, _only_rounding(X, out, train, torch.finfo(given.dtype).eps)] = 0
        return out

    def _n_bytes(self) -> int:
        return self._source._n_bytes()


def basis_of(columns: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Columns [N, R] that span those given, orthonormal and of mean 0 on the training rows."""
    centred = columns - columns[train].mean(axis=0)
    _, sizes, directions = np.linalg.svd(centred[train], full_matrices=False)
    kept = sizes > RANK * max(sizes.max(initial=0), np.finfo(float).tiny)
    return centred @ (directions[kept].T / sizes[kept])


def _regression(X: Tensor, basis: Tensor, train: Tensor) -> tuple[Tensor, Tensor]:
    """The mean [D] and the coefficients [R, D] of the training rows, float64."""
    parts = train.split(ROWS)
    mean = torch.stack([X[rows].double().sum(dim=0) for rows in parts]).sum(dim=0) / len(train)
    B = torch.stack([basis[rows].T @ (X[rows].double() - mean) for rows in parts]).sum(dim=0)
    return mean, B


def _only_rounding(X: Tensor, residual: Tensor, train: Tensor, eps: float) -> Tensor:
    """The features whose residual on train is no larger than rounding of their own values: bool [D]."""
    parts = train.split(ROWS)
    size, left = (
        torch.stack([each[rows].double().square().sum(dim=0) for rows in parts]).sum(0) for each in (X, residual)
    )
    return left <= (ROUNDINGS * eps) ** 2 * size
