"""How far solutions of logistic regressions may be from their optima, whichever method found them.

The certificate needs only the gradient. With the intercept minimised out, the objective F is 1-strongly convex in w, so
F(w) - min F <= |grad F(w)|^2 / 2; for logistic regression this is the duality gap at the dual point of the residuals.
It is computed in float64 from X itself, whatever the type of the iterations. The intercept counts as minimised when the
residuals sum to at most 1e-10 of the sum of their absolute values: scaling the positive or the negative ones by that
much makes the dual point feasible, which changes the objective by about 1e-20. Otherwise there is no certificate.

Axes: N rows, D features, P problems, K score columns of a problem (1 for two classes, C for more).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probekit.probes.logistic.objective import Objective

MOST_SCORES = 1 << 25  # scores in memory at once; more problems are certified in parts


@dataclass(frozen=True, eq=False)
class Solutions:
    """The solutions of P problems.

    Attributes:
        coef: float64 [P, K, D], for raw features.
        intercept: float64 [P, K].
        objective: float64 [P], with the penalty on the variables that are regularised.
        gradient_norm: float64 [P], of the objective with the intercept minimised out.
        gap: float64 [P], an upper bound on (objective - optimum) / optimum.
        n_iter: int64 [P].
        converged: bool [P], whether `gap` is within the tolerance.
    """

    coef: np.ndarray
    intercept: np.ndarray
    objective: np.ndarray
    gradient_norm: np.ndarray
    gap: np.ndarray
    n_iter: np.ndarray
    converged: np.ndarray


def reassembled(parts: Sequence[Solutions], numbers: Sequence[Sequence[int]]) -> Solutions:
    """The solutions of several parts as one, in the order of the numbers that each part's problems have."""
    back = np.argsort(np.concatenate(numbers))
    return Solutions(*(np.concatenate(values)[back] for values in zip(*(vars(s).values() for s in parts), strict=True)))


@dataclass(frozen=True, eq=False)
class Certified:
    """v [P, K, D + 1] with optimal intercepts, objectives [P], gradient norms [P] and relative gaps [P]."""

    v: Tensor
    f: Tensor
    gradient_norm: Tensor
    gap: Tensor

    def put(self, which: Tensor, better: "Certified") -> None:
        """Overwrite the problems `which` with those of `better`, which holds no more."""
        for name, values in vars(better).items():
            getattr(self, name)[which] = values


def certify(objective: Objective, v: Tensor) -> Certified:
    """The certificates at v [P, K, D + 1], once the intercepts are minimised out."""
    size = max(1, MOST_SCORES // (objective.K * objective.features.n))
    numbers = torch.arange(len(v), device=v.device)
    parts = []
    for which, some in zip(numbers.split(size), v.split(size), strict=True):
        part = objective.of(which)
        best, z, balanced = part.best_intercept(some, part.scores(some, torch.float64))
        point = part.at(best, torch.float64, z, second=False)
        bound = torch.where(balanced, point.bound(), torch.inf)
        gap = torch.where(bound < point.f, bound / (point.f - bound), torch.inf)
        parts.append((best, point.f, (2 * bound).sqrt(), gap))
    return Certified(*(torch.cat(values) for values in zip(*parts, strict=True)))


def within_tolerance(
    objective: Objective,
    v: Tensor,
    n_iter: Tensor,
    again: Callable[[Tensor, Certified, float], tuple[Tensor, Tensor]],
    tols: Sequence[float],
    tol: float,
    max_iter: int,
    first: float | None = None,
) -> Solutions:
    """Certify solutions, and have those that missed the tolerance taken up again.

    Args:
        objective: of P problems.
        v: solutions [P, K, D + 1].
        n_iter: iterations spent on each [P]; those of `again` are added.
        again: takes numbers of problems, all certificates and a tolerance; gives better v and the iterations of each.
        tols: the tolerances of one round after the other.
        tol: the gap that counts as converged.
        max_iter: iterations of a problem, at most.
        first: the gap above which the first round takes up a problem; `tol` by default.
    """
    certified = certify(objective, v)
    for number, sharper in enumerate(tols):
        wanted = certified.gap > (tol if number or first is None else first)
        missed = torch.nonzero(wanted & (n_iter < max_iter))[:, 0]
        if not len(missed):
            break
        better, more = again(missed, certified, sharper)
        n_iter[missed] += more
        certified.put(missed, certify(objective.of(missed), better))
    coef, intercept = objective.raw(certified.v)
    numbers = (coef, intercept, certified.f, certified.gradient_norm, certified.gap, n_iter, certified.gap <= tol)
    return Solutions(*(x.cpu().numpy() for x in numbers))
