"""The log loss of a block of rows and its derivatives, for many problems at once, without cancellation.

Scores z are [B, P, K]. Labels come from `prepare`. Weights are None, [B, P] or [B, 1].

Axes: B rows, P problems, K scores of a problem (1 for two classes, C for more), L sets of labels.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


class Binary:
    """The logistic loss of one score. Labels are -1 for class 1 and 1 for class 0, so score * label is the error."""

    @staticmethod
    def prepare(labels: Tensor) -> Tensor:
        """Convert int64 labels 0 and 1 [N, L] to what the other methods take: float32 [N, L]."""
        return (1 - 2 * labels).float()

    @staticmethod
    def loss(z: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
        """The summed loss: float64 [P]."""
        return _summed(F.softplus(z[..., 0] * y, threshold=50), weights)

    @staticmethod
    def derivatives(z: Tensor, y: Tensor, weights: Tensor | None, second: bool = True) -> tuple[Tensor, Tensor]:
        """Derivatives by the scores: the first [B, P, K], and the row sum of the second if wanted, [P, K, K]."""
        wrong = torch.sigmoid(z[..., 0] * y)
        bend = _summed(wrong * (1 - wrong), weights)[:, None, None] if second else _nothing(z)
        return _weighted(wrong.mul_(y), weights)[..., None], bend

    @staticmethod
    def curvature(z: Tensor, weights: Tensor | None) -> Tensor:
        """The second derivative [B, K, K] by the scores [B, K] of one problem, with weights [B, 1]."""
        p = torch.sigmoid(z)
        return _weighted(p * torch.sigmoid(-z), weights)[..., None]

    @staticmethod
    def along(z: Tensor, move: Tensor, y: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """The summed loss's first and second derivative along a move [B, P, K] of the scores: float64 [P] each."""
        wrong, step = torch.sigmoid(z[..., 0] * y), move[..., 0] * y
        slope = wrong * step
        return _summed(slope, weights), _summed(slope * (1 - wrong) * step, weights)


class Multinomial:
    """The cross-entropy of the softmax of K scores; labels are int64.

    A row that fits well has an own class of probability nearly 1, which has lost the digits of its distance from 1. The
    other classes' probabilities have them.
    """

    @staticmethod
    def prepare(labels: Tensor) -> Tensor:
        """Return int64 labels 0..K-1 [N, L] unchanged."""
        return labels

    @staticmethod
    def loss(z: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
        """The summed loss: float64 [P]."""
        log_p = F.log_softmax(z, dim=2)
        wrong = _others(log_p, y).sum(dim=2)
        return _summed(torch.where(wrong < 0.5, -torch.log1p(-wrong), -_own(log_p, y)), weights)

    @staticmethod
    def derivatives(z: Tensor, y: Tensor, weights: Tensor | None, second: bool = True) -> tuple[Tensor, Tensor]:
        """Derivatives by the scores: the first [B, P, K], and the row sum of the second if wanted, [P, K, K]."""
        log_p = F.log_softmax(z, dim=2)
        first, bend = _others(log_p, y), _nothing(z)
        if second:
            p = log_p.exp()
            weighted = p if weights is None else p * weights[..., None]
            outer = torch.einsum("bpk,bpl->pkl", weighted, p).double()
            bend = torch.diag_embed(weighted.sum(dim=0, dtype=torch.float64)) - outer
        first.scatter_(2, _index(z, y), -first.sum(dim=2, keepdim=True))
        return first if weights is None else first * weights[..., None], bend

    @staticmethod
    def curvature(z: Tensor, weights: Tensor | None) -> Tensor:
        """The second derivative [B, K, K] by the scores [B, K] of one problem, with weights [B, 1]."""
        p = torch.softmax(z, dim=1)
        each = torch.diag_embed(p) - p[:, :, None] * p[:, None]
        return each if weights is None else each * weights[..., None]

    @staticmethod
    def along(z: Tensor, move: Tensor, y: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """The summed loss's first and second derivative along a move [B, P, K] of the scores: float64 [P] each."""
        p = torch.softmax(z, dim=2)
        mean = (p * move).sum(dim=2)
        bend = (p * (move - mean[..., None]).square()).sum(dim=2)
        return _summed(mean - _own(move, y), weights), _summed(bend, weights)


def _nothing(z: Tensor) -> Tensor:
    return z.new_zeros(z.shape[1], 0, 0)


def _others(log_p: Tensor, y: Tensor) -> Tensor:
    """The probabilities [B, P, K] of the classes, but 0 at the labels."""
    return log_p.exp().scatter_(2, _index(log_p, y), 0.0)


def _own(x: Tensor, y: Tensor) -> Tensor:
    """The entries of x [B, P, K] at the labels: [B, P]."""
    return x.gather(2, _index(x, y))[..., 0]


def _index(x: Tensor, y: Tensor) -> Tensor:
    return y.expand(x.shape[:2])[..., None]


def _weighted(x: Tensor, weights: Tensor | None) -> Tensor:
    return x if weights is None else x * weights


def _summed(x: Tensor, weights: Tensor | None) -> Tensor:
    """The weighted sum over rows of [B, P], in float64."""
    return _weighted(x, weights).sum(dim=0, dtype=torch.float64)
