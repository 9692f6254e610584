"""L-BFGS (Liu and Nocedal 1989; Nocedal and Wright 2006, chapter 7): the two loops, and a minimiser of many problems.

Every minimiser of this package takes its directions from `inverse_times`. `BatchedLBFGS` evaluates the objectives of
many problems in one pass. Each evaluation serves every problem that has not finished, whatever step it is at. The step
is halved until the objective falls enough (Armijo); a pair without positive curvature is left out of the history, so
that directions always descend.

Axes: P problems, M parameters, H pairs of the history.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

HISTORY = 20  # pairs
ENOUGH = 1e-4  # share of the predicted fall that a step must reach
ROUNDING = 1e-14  # relative; a rise of the objective by less is no rise
LEAST_STEP = 1e-12

Evaluate = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""(numbers of the problems [p], their parameters [p, M]) -> objectives [p] and gradients [p, M]."""
Precondition = Callable[[np.ndarray], np.ndarray]
"""A guess of the inverse Hessian, up to a factor, times vectors [p, M]."""


def inverse_times(
    pairs: Sequence[tuple[Any, Any, Any]],
    g: Any,
    initial: Callable[[Any], Any],
    inner: Callable[[Any, Any], Any] = lambda step, gradient: (step * gradient).sum(-1),
    of_each: Callable[[Any], Any] = lambda share: share[:, None],
) -> Any:
    """The two loops: about the inverse Hessian times g, in arrays of numpy or torch.

    Args:
        pairs: (step, change of the gradient, 1 / their inner product or 0 to leave the pair out), the oldest first.
        g: gradients [P, M].
        initial: multiplies by the inverse Hessian with which the history begins; gives a new array.
        inner: of steps and gradients, [P].
        of_each: a number for each problem [P], in the shape that multiplies steps and gradients.
    """
    q, shares = g + 0.0, []
    for step, change, rho in reversed(pairs):
        shares.append(rho * inner(step, q))
        q -= of_each(shares[-1]) * change
    d = initial(q)
    for (step, change, rho), share in zip(pairs, reversed(shares), strict=True):
        d += of_each(share - rho * inner(d, change)) * step
    return d


@dataclass(eq=False)
class Minima:
    """Where the problems are.

    Attributes:
        theta: parameters [P, M].
        value: objectives [P].
        gradient: [P, M].
        passes: evaluations of each problem, int64 [P].
        finished: problems at a gradient that is small enough, or at which no step helps, [P].
    """

    theta: np.ndarray
    value: np.ndarray
    gradient: np.ndarray
    passes: np.ndarray
    finished: np.ndarray


class BatchedLBFGS:
    """The state of a run; `run` may be called again to go on.

    Args:
        evaluate: the objectives and gradients of some problems.
        theta: starts [P, M].
        small: norm of the gradient at which a problem is finished, [P].
        precondition: where the history begins; positive definite.
    """

    def __init__(self, evaluate: Evaluate, theta: np.ndarray, small: np.ndarray, precondition: Precondition):
        P, M = theta.shape
        self._evaluate, self._small, self._precondition = evaluate, small, precondition
        value, gradient = evaluate(np.arange(P), theta)
        self.at = Minima(theta.copy(), value, gradient, np.ones(P, dtype=np.int64), np.zeros(P, dtype=bool))
        self._s, self._y = np.zeros((HISTORY, P, M)), np.zeros((HISTORY, P, M))
        self._rho, self._step = np.zeros((HISTORY, P)), np.ones(P)
        self._move = np.zeros_like(theta)
        self._turn(np.arange(P))

    def run(self, passes: int, without: np.ndarray | None = None) -> Minima:
        """Go on for so many passes at most; the problems of the mask `without` [P] stay where they are."""
        for _ in range(passes):
            which = np.flatnonzero(~self.at.finished if without is None else ~(self.at.finished | without))
            if not len(which):
                break
            self._advance(which)
        return self.at

    def _advance(self, which: np.ndarray) -> None:
        """One pass: the trial point of each of these problems is taken, or its step is halved."""
        at, step = self.at, self._step[which]
        moved = step[:, None] * self._move[which]
        theta = at.theta[which] + moved
        value, gradient = self._evaluate(which, theta)
        at.passes[which] += 1
        slope = (at.gradient[which] * self._move[which]).sum(axis=1)
        limit = at.value[which] + ENOUGH * step * slope + ROUNDING * np.abs(at.value[which])
        taken = np.isfinite(value) & (value <= limit)
        kept, own = which[taken], np.flatnonzero(taken)
        self._remember(kept, moved[own], gradient[own] - at.gradient[kept])
        at.theta[kept], at.value[kept], at.gradient[kept] = theta[own], value[own], gradient[own]
        self._turn(kept)
        rest = which[~taken]
        self._step[rest] /= 2
        at.finished[rest[self._step[rest] < LEAST_STEP]] = True

    def _remember(self, which: np.ndarray, s: np.ndarray, y: np.ndarray) -> None:
        curvature = (s * y).sum(axis=1)
        good = curvature > 1e-10 * np.linalg.norm(s, axis=1) * np.linalg.norm(y, axis=1)
        which = which[good]
        for history in (self._s, self._y, self._rho):
            history[:-1, which] = history[1:, which]
        self._s[-1, which], self._y[-1, which], self._rho[-1, which] = s[good], y[good], 1 / curvature[good]

    def _turn(self, which: np.ndarray) -> None:
        """A new direction for these problems, unless their gradient is small enough."""
        g = self.at.gradient[which]
        self.at.finished[which] = np.linalg.norm(g, axis=1) <= self._small[which]
        s, y, rho = self._s[:, which], self._y[:, which], self._rho[:, which]  # rho is 0 where there is no pair yet
        squares, known = (y[-1] * self._precondition(y[-1])).sum(axis=1), rho[-1] > 0
        gamma = np.where(known, 1 / np.where(known, rho[-1] * squares, 1), 1)
        move = -inverse_times(list(zip(s, y, rho, strict=True)), g, lambda q: gamma[:, None] * self._precondition(q))
        uphill = (move * g).sum(axis=1) >= 0
        move[uphill] = -g[uphill]
        first = self._rho[-1, which] == 0  # no curvature is known: a step of length 1 at most
        length = np.linalg.norm(move, axis=1)
        self._step[which] = np.where(first | uphill, 1 / np.maximum(length, 1), 1.0)
        self._move[which] = move
