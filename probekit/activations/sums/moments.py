"""The sufficient statistics for ridge, LDA and mean differences: count, sum, Gram matrix, and the sums of each class.

Everything is float64 and summed around a `shift` close to the rows. Plain sums would lose precision: a dimension at
3,000 with a spread of 1, as residual streams have, keeps 8 digits of its variance (measured error 2e-8, or 2e-4 at a
spread of 0.01). Around the mean of the first rows the error stays below 1e-12, nearly as good as two passes, and a
constant column has a variance of exactly 0.

Axes: N rows, D width, C classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.errors import UsageError, nearest


@dataclass(frozen=True, eq=False)
class SplitMoments:
    """Sums over N rows x [D] with labels, around a shift; `a + b` are the moments of the rows of both.

    The squared error of a linear map on these rows can be computed without the rows: for centred labels y and
    predictions w.x + b it follows from w' covariance w, w' X'Y and the means. So C can be chosen on the moments of the
    validation split.

    Attributes:
        count: N.
        shift: the vector subtracted from each row before summing, float64 [D].
        shifted_sum: sum of (x - shift), float64 [D].
        shifted_gram: sum of (x - shift)(x - shift)', float64 [D, D].
        class_counts: label set -> rows of each class, int64 [C].
        shifted_class_sums: label set -> sum of (x - shift) over each class, float64 [C, D].
    """

    count: int
    shift: Tensor
    shifted_sum: Tensor
    shifted_gram: Tensor
    class_counts: dict[str, Tensor]
    shifted_class_sums: dict[str, Tensor]

    @classmethod
    def zero(cls, shift: Tensor, n_classes: Mapping[str, int]) -> "SplitMoments":
        """The moments of no rows, on the device of the shift [D]."""
        D = len(shift)
        counts = {name: torch.zeros(C, dtype=torch.int64) for name, C in n_classes.items()}
        sums = {name: shift.new_zeros(C, D) for name, C in n_classes.items()}
        return cls(0, shift, shift.new_zeros(D), shift.new_zeros(D, D), counts, sums)

    def including(self, x: Tensor, labels: Mapping[str, np.ndarray]) -> "SplitMoments":
        """Add rows [N, D] with their labels [N] in every label set; updates the tensors of `self` in place."""
        x = x.double() - self.shift
        self.shifted_sum.add_(x.sum(dim=0))
        self.shifted_gram.addmm_(x.T, x)  # not numpy: its threads and torch's slow each other down
        for name, counts in self.class_counts.items():
            one_hot = torch.nn.functional.one_hot(torch.from_numpy(labels[name].astype(np.int64)), len(counts))
            counts.add_(one_hot.sum(dim=0))
            self.shifted_class_sums[name].add_(one_hot.T.to(x) @ x)
        return SplitMoments(self.count + len(x), *self._tensors)

    @property
    def _tensors(self) -> tuple[Any, ...]:
        return self.shift, self.shifted_sum, self.shifted_gram, self.class_counts, self.shifted_class_sums

    def __add__(self, other: "SplitMoments") -> "SplitMoments":
        if not isinstance(other, SplitMoments):
            return NotImplemented
        if _shapes(self) != _shapes(other):
            raise UsageError(
                f"only moments of equal widths and classes can be added; got {_shapes(self)} and {_shapes(other)}"
            )
        other = other.around(self.shift)
        return SplitMoments(
            self.count + other.count,
            self.shift,
            self.shifted_sum + other.shifted_sum,
            self.shifted_gram + other.shifted_gram,
            {name: counts + other.class_counts[name] for name, counts in self.class_counts.items()},
            {name: sums + other.shifted_class_sums[name] for name, sums in self.shifted_class_sums.items()},
        )

    def around(self, shift: Tensor) -> "SplitMoments":
        """The sums of the same rows around another shift [D]; precision falls with its distance from the rows."""
        if torch.equal(shift, self.shift):
            return self
        by = self.shift - shift
        cross = torch.outer(by, self.shifted_sum)
        return SplitMoments(
            self.count,
            shift,
            self.shifted_sum + self.count * by,
            self.shifted_gram + (cross + cross.T) + self.count * torch.outer(by, by),
            self.class_counts,
            {
                name: sums + self.class_counts[name].to(by)[:, None] * by
                for name, sums in self.shifted_class_sums.items()
            },
        )

    @cached_property
    def _raw(self) -> "SplitMoments":
        return self.around(torch.zeros_like(self.shift))

    @property
    def sum(self) -> Tensor:
        """The sum of the rows, float64 [D]."""
        return self._raw.shifted_sum

    @property
    def gram(self) -> Tensor:
        """X'X, float64 [D, D]."""
        return self._raw.shifted_gram

    def xty(self, label: str) -> Tensor:
        """X'Y for one-hot Y: the sum of each class's rows, float64 [D, C]."""
        return self._raw.shifted_class_sums[self._known(label)].T

    @property
    def mean(self) -> Tensor:
        """Float64 [D]."""
        return self.shift + self.shifted_sum / self.count

    @property
    def covariance(self) -> Tensor:
        """Float64 [D, D], divided by N."""
        offset = self.shifted_sum / self.count
        return self.shifted_gram / self.count - torch.outer(offset, offset)

    def class_means(self, label: str) -> Tensor:
        """The mean row of each class, float64 [C, D]; NaN for a class without rows."""
        return self.shift + self._class_offsets(label)

    def within_class_covariance(self, label: str) -> Tensor:
        """The covariance around the class means, float64 [D, D], divided by N: the matrix that LDA inverts."""
        offsets = self._class_offsets(label).nan_to_num()
        return (self.shifted_gram - self.shifted_class_sums[label].T @ offsets) / self.count

    def _class_offsets(self, label: str) -> Tensor:
        sums = self.shifted_class_sums[self._known(label)]
        return sums / self.class_counts[label].to(sums)[:, None]

    def for_probe(self, label: str) -> dict[str, Any]:
        """The arguments of a probe's `fit_statistics`: `RidgeProbe().fit_statistics(**moments.for_probe("label"))`."""
        return {
            "count": self.count,
            "mean": self.mean,
            "covariance": self.covariance,
            "class_counts": self.class_counts[self._known(label)],
            "class_means": self.class_means(label),
        }

    def _known(self, label: str) -> str:
        if label not in self.class_counts:
            raise UsageError(f"no label set {label!a}; {ascii(nearest(str(label), self.class_counts))[1:-1]}")
        return label

    def to(self, device: torch.device | str) -> "SplitMoments":
        """The same on another device; class counts stay in host memory."""
        sums = {name: x.to(device) for name, x in self.shifted_class_sums.items()}
        shift, total, gram = (x.to(device) for x in (self.shift, self.shifted_sum, self.shifted_gram))
        return SplitMoments(self.count, shift, total, gram, self.class_counts, sums)

    def __repr__(self) -> str:
        sets = ", ".join(f"{name!a} of {len(counts)} classes" for name, counts in self.class_counts.items())
        return f"SplitMoments({self.count} rows of width {len(self.shift)}; {sets})"


def _shapes(moments: SplitMoments) -> tuple[int, dict[str, int]]:
    return len(moments.shift), {name: len(counts) for name, counts in moments.class_counts.items()}
