"""Erase a label from activations: LEACE (Belrose et al. 2023, arXiv 2306.03819).

    x - L R (x - mean),    R L = 1

takes from x all that a linear probe could use, and changes x as little as any affine map that does. L spans the
cross-covariance A = cov(x, z) of the activations and the label's indicators (or numbers) z, and R L is the identity:
so the cross-covariance afterwards is A - L R A = 0 whatever R is. The change is least where R is A's pseudo-inverse in
the metric of the inverse covariance.

Two choices differ from the package `concept-erasure` 0.2.4. It leaves in whatever has a singular value of 0.01 or less
(`svd_tol`), so a weak concept stays; here nothing stays by default. It shrinks the covariance by default; here the sums
are taken as they are.

Axes: N rows, D width, Z columns of the label (a class each, or a number each), k rank.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations import Activations, SplitMoments, Statistics
from probekit.errors import DataError, UsageError
from probekit.interventions import Affine
from probekit.machine.devices import where_float64
from probekit.points import Place, PointSpec
from probekit.probes.base import as_numpy, scale_of
from probekit.tasks.token_labels import unlabelled_rows
from probekit.text import listed

# Canonical correlations up to this count as none: their square is below the rounding of an R2 in float64.
LEAST_CORRELATION = float(np.sqrt(np.finfo(np.float64).eps))
ROWS_AT_ONCE = 8192  # rows that are held in float64
# With N = D = 128 a cut-off of 0.01 took the change of other rows from 50-500% of their variance to 2-5% (five draws);
# from N = 2 D on it made no difference (docs/how-to/erase-a-concept.md).
FEW_ROWS = 2  # times D
FEW_ROWS_TOL = 0.01


@dataclass(frozen=True, eq=False)
class Eraser:
    """The map x - left right (x - mean), and what it did to the rows it was fitted on.

    Attributes:
        left: float64 [D, k].
        right: float64 [k, D]; `right @ left` is the identity.
        mean: of the rows, float64 [D]; the map keeps it.
        change: mean squared change of a row, as a share of the rows' total variance.
        remaining: the largest correlation that is left between a feature and the label, in standard deviations of the
            feature before; 0 but for rounding where the erasure is exact.
    """

    left: Tensor
    right: Tensor
    mean: Tensor
    change: float
    remaining: float

    @property
    def rank(self) -> int:
        """How many dimensions are removed: at most C - 1 for C classes, 0 where no feature varies with the label."""
        return self.left.shape[1]

    @cached_property
    def matrix(self) -> Tensor:
        """The matrix P of the map P x + b, float64 [D, D]."""
        return torch.eye(len(self.left), dtype=torch.float64) - self.left @ self.right

    @property
    def bias(self) -> Tensor:
        """The constant b of the map P x + b, float64 [D]."""
        return self.left @ (self.right @ self.mean)

    @property
    def edit(self) -> Affine:
        """The map for `model.edited({place: eraser.edit})`."""
        return Affine(self.matrix, self.bias)

    def __call__(self, x: Tensor) -> Tensor:
        """Rows x [..., D] after the map, of the type of x; computed in float64."""
        wide = where_float64(x).double()
        left, right, mean = (own.to(wide.device) for own in (self.left, self.right, self.mean))
        return (wide - (wide - mean) @ right.T @ left.T).to(x)

    def __repr__(self) -> str:
        return f"Eraser(rank {self.rank} of width {len(self.left)}; changes {self.change:.2%} of the variance)"


def fit_leace(moments: SplitMoments, label: str, tol: float = 0.0) -> Eraser:
    """Fit to the sums of rows, such as `load_statistics(path)["resid_pre.5", "train"]`.

    Args:
        moments: of the rows.
        label: a label set of the moments.
        tol: directions with less than this share of the largest variance (of standardised features) are not used to
            find the label. The erasure stays exact unless only they hold the label. With about as many rows as columns
            take 0.01: without it other rows change by up to a hundred times as much. 0 uses all that vary.

    Raises:
        UsageError: no such label set; `tol` out of range.
        DataError: fewer than two classes with rows; NaN or infinity.
    """
    sums = moments.to("cpu")
    counts = sums.class_counts[sums._known(label)].double()
    if int((counts > 0).sum()) < 2:
        raise DataError(f"erasing {label!a} needs rows of two classes or more, got {int((counts > 0).sum())}; add rows")
    share_Z = counts / sums.count
    offset = sums.shifted_sum / sums.count
    cross_DZ = (sums.shifted_class_sums[label] / sums.count - share_Z[:, None] * offset).T
    spread_Z = (share_Z * (1 - share_Z)).sqrt()
    return _leace(sums, cross_DZ, spread_Z, tol)


def tol_of_few_rows(moments: SplitMoments) -> float:
    """The cut-off for an eraser that is applied to rows other than those of `moments`: 0 unless there are few rows."""
    return FEW_ROWS_TOL if moments.count < FEW_ROWS * len(moments.mean) else 0.0


def fit_leace_rows(x: Any, z: Any, tol: float = 0.0) -> Eraser:
    """Fit to rows [N, D] with classes, integers or names [N], or numbers, float [N] or [N, Z] (as of a regression).

    Raises:
        UsageError: shapes that do not agree; `tol` out of range.
        DataError: a label that does not vary; NaN or infinity.
    """
    rows = x if isinstance(x, Tensor) else torch.from_numpy(as_numpy(x))
    columns_NZ = _columns(np.atleast_1d(as_numpy(z)))
    if rows.dim() != 2 or len(rows) != len(columns_NZ) or not len(rows):
        raise UsageError(f"expected rows [N, D] and N labels, got {list(rows.shape)} and {len(columns_NZ)}")
    middle_Z = columns_NZ.mean(dim=0)
    centred_NZ = columns_NZ - middle_Z
    spread_Z = centred_NZ.square().mean(dim=0).sqrt()
    if not spread_Z.isfinite().all():
        raise DataError("the label holds NaN or infinity; leave such rows out")
    if not (spread_Z > LEAST_CORRELATION * middle_Z.abs()).any():
        raise DataError("the label is the same in every row, so there is nothing to erase; add rows with another")
    shift = where_float64(rows[:ROWS_AT_ONCE]).double().mean(dim=0)
    sums, cross_DZ = SplitMoments.zero(shift, {}), shift.new_zeros(len(shift), len(middle_Z))
    for block, z_block in zip(rows.split(ROWS_AT_ONCE), centred_NZ.split(ROWS_AT_ONCE), strict=True):
        wide = where_float64(block).double()
        sums = sums.including(wide, {})
        cross_DZ += (wide - shift).T @ z_block.to(wide.device)
    return _leace(sums.to("cpu"), cross_DZ.cpu() / len(rows), spread_Z, tol)


def fit_eraser(
    source: Activations | Statistics,
    place: PointSpec,
    label: str | None = None,
    *,
    split: str = "train",
    tol: float = 0.0,
) -> Eraser:
    """Fit LEACE to the rows of one split at a place: the map that erases a label there.

    Use it with `model.edited({place: eraser.edit})`.

    Args:
        source: activations with one row for each label (of several tokens: `acts.at(position)`), or their statistics.
        place: such as "resid_pre.5" or ("resid_pre", 5).
        label: a label set; None is the task's target, or the only one.
        split: whose rows are fitted. Judge the effect on rows of another.
        tol: as in `fit_leace`.

    Raises:
        UnknownPoint: no such place, or no statistics of the split.
        UsageError: no such label set, several tokens of each text, `tol` out of range.
        DataError: no rows of the split; a label that does not vary in it; NaN or infinity.
    """
    if isinstance(source, Statistics):
        return fit_leace(source[place, split], _only_label(source.label_names, label), tol)
    task = source.task
    label = task.label_set(label)
    rows = torch.from_numpy(np.flatnonzero((task.splits == split) & ~unlabelled_rows(task, label)))
    if not len(rows):
        raise DataError(f"no rows of {split!a} to fit; the splits are {listed(dict.fromkeys(task.splits.tolist()))}")
    return fit_leace_rows(one_row_each(source, place, rows), task.labels[label][rows.numpy()], tol)


def one_row_each(acts: Activations, place: PointSpec, rows: Tensor) -> Tensor:
    """The activations of these examples at a place, [N, D].

    Raises:
        UnknownPoint: no such place.
        UsageError: several tokens of each text.
    """
    x = acts[place]
    if x.dim() != 2 or acts.layout.is_ragged or acts.task.token_labels:
        raise UsageError(
            f"{Place.of(place)} has several tokens of each text; choose one with acts.at(position), "
            "where 'all' makes each token an example"
        )
    return x[rows.to(x.device)]


def _only_label(names: Mapping[str, Any], label: str | None) -> str:
    if label is None and len(names) != 1:
        raise UsageError(f"the statistics have {len(names)} label sets; name one, label=: {listed(names)}")
    return next(iter(names)) if label is None else label


def _columns(z: np.ndarray) -> Tensor:
    """One column for each number, or for each class that occurs: float64 [N, Z]."""
    if z.dtype.kind == "f":
        return torch.from_numpy(z.astype(np.float64).reshape(len(z), -1))
    classes, number = np.unique(z, return_inverse=True)
    return torch.nn.functional.one_hot(torch.from_numpy(number.reshape(-1)), len(classes)).double()


def _leace(sums: SplitMoments, cross_DZ: Tensor, spread_Z: Tensor, tol: float) -> Eraser:
    if isinstance(tol, bool) or not isinstance(tol, int | float) or not 0 <= tol < 1:
        raise UsageError(f"tol is a share of the largest variance, from 0 to below 1; got {tol!a}")
    covariance = sums.covariance
    if not (covariance.isfinite().all() and cross_DZ.isfinite().all()):
        raise DataError("NaN or infinity in the activations; leave such rows out, or extract again in float32")
    scale = torch.from_numpy(scale_of(covariance.diagonal().numpy(), sums.mean.numpy(), sums.count))
    # a class without rows, or a constant among several numbers, has no spread and nothing to erase
    z_DZ = torch.where(spread_Z > 0, cross_DZ / spread_Z, 0.0)
    # Standardised features and labels: K holds the correlations of the whitened rows with the label.
    values, V = _varying(covariance / scale / scale[:, None], tol)
    whiten_RD = V.T / values.sqrt()[:, None] / scale
    U, correlations, Wt = torch.linalg.svd(whiten_RD @ z_DZ, full_matrices=False)
    kept = correlations > LEAST_CORRELATION
    left_Dk = z_DZ @ Wt[kept].T / correlations[kept]
    right_kD = U[:, kept].T @ whiten_RD
    change = left_Dk.square().sum() / covariance.trace().clamp(min=torch.finfo(torch.float64).tiny)
    after_DZ = (z_DZ - left_Dk @ (right_kD @ z_DZ)) / scale[:, None]
    return Eraser(left_Dk, right_kD, sums.mean, float(change), float(after_DZ.abs().max()))


def _varying(correlation_DD: Tensor, tol: float) -> tuple[Tensor, Tensor]:
    """The eigenvalues [R] and eigenvectors [D, R] of the directions that vary by more than rounding and `tol`."""
    values, vectors = torch.linalg.eigh(correlation_DD)
    least = max(tol, len(values) * torch.finfo(values.dtype).eps)
    kept = values > least * values[-1]
    return values[kept], vectors[:, kept]
