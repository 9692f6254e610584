"""Two-class logistic regressions in memory, each followed by Newton's method along its rising values of C.

Problems on the same rows share what depends on the rows alone. Whatever was found passes the certificate in float64
from X itself; a problem that misses is taken up again in float64.

Axes: N rows, D features, P problems.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from probekit.machine.threads import Shares, shares
from probekit.probes.logistic.certificate import Certified, Solutions, certify, reassembled
from probekit.probes.logistic.descent import BinaryProblem, Place, System, descend, path, place
from probekit.probes.logistic.features import Features
from probekit.probes.logistic.kernel import Kernel
from probekit.probes.logistic.objective import objective_of
from probekit.probes.logistic.primal import Primal
from probekit.probes.problem import Labels, ProblemSet, by_weighting, subset

LARGE = 1 << 23  # numbers in X from which several threads pay
ROWS_PER_FEATURE = 16  # from which L-BFGS over all problems at once is faster, where X is large (measured)
MOST_NUMBERS = 1 << 27  # in the standardised copy, or in the kernel matrix
MOST_SCORES = 1 << 26  # scores in memory at once; more problems are certified in parts
AIM = 0.5  # share of the tolerance to stop at: the certificate is computed with less rounding
SHARPER = (0.1, 1e-4)  # shares of the tolerance, for problems that missed it
ROUNDING = 1e-22  # relative gap that float64 features are followed to, if rounding allows
NUMBERS, COLUMNS = 1 << 20, 1024  # at least, in a block that the kernel matrix sums: adding N^2 numbers costs, too


def fits(X: Tensor) -> bool:
    """Whether this method is the fastest for the features, and they are small enough for its matrices."""
    n, d = X.shape
    tall = n * d > LARGE and n > ROWS_PER_FEATURE * d  # a Hessian costs as much as a fit by L-BFGS with a sampled one
    return not tall and n * (d if n > d else n) <= MOST_NUMBERS


def solve_binary(X: Tensor, problems: ProblemSet, standardise: bool, tol: float, max_iter: int) -> Solutions:
    """Solve problems with two classes; see `solve_logistic`."""
    groups, solved = by_weighting(problems), []
    for weighting, which in groups.items():
        rows, some = _with_weight(X, problems.weightings[weighting], subset(problems, which))
        with shares(parallel=rows.numel() > LARGE) as by_thread:
            solved.append(_Rows(rows, some, standardise, by_thread).solve(tol, max_iter))
    return reassembled(solved, list(groups.values()))


def _with_weight(X: Tensor, weights: np.ndarray | None, problems: ProblemSet) -> tuple[Tensor, ProblemSet]:
    """The rows that have a weight, and the problems over them."""
    if weights is None or weights.all():
        return X, problems
    rows = np.flatnonzero(weights)
    labels = tuple(Labels(each.values[rows], each.n_classes) for each in problems.labels)
    return X[torch.from_numpy(rows)], replace(problems, labels=labels, weightings=(weights[rows],))


class _Rows:
    """Problems with the same rows and weights, and what they share."""

    def __init__(self, X: Tensor, problems: ProblemSet, standardise: bool, by_thread: Shares):
        self.X, self.problems, self.by_thread = X, problems.problems, by_thread
        self.features = Features(X, by_thread)
        self.objective = objective_of(self.features, problems, 1, standardise, None, with_basis=False)
        self.exact = self.features.dtype == torch.float64

    def system(self, in_weights: bool = False) -> System:
        """The rows as centred and scaled features; with weights for unknowns if there are more rows, or it is asked."""
        mean, scale = self.objective.scaling.mean[0], self.objective.scaling.inverse_scale[0]
        n, d = self.X.shape
        if n <= d and not in_weights:
            return Kernel(n, partial(self._columns, mean, scale))
        Z = torch.empty(n, d, dtype=torch.float64)

        def block(rows: slice, X: Tensor) -> list[Tensor]:
            Z[rows] = X.sub_(mean).mul_(scale)
            return []

        self.features.sum(block, torch.float64)
        return Primal(Z, not self.exact, self.by_thread)

    def _columns(self, mean: Tensor, scale: Tensor) -> Iterator[Tensor]:
        shift = self.features.shift.double()
        for some in torch.arange(self.X.shape[1]).split(max(COLUMNS, NUMBERS // len(self.X))):
            columns = slice(int(some[0]), int(some[-1]) + 1)
            yield (self.X[:, columns].double() - shift[columns]).sub_(mean[columns]).mul_(scale[columns])

    def task(self, p: int) -> BinaryProblem:
        """Problem p, for a descent."""
        weights = None if self.objective.weights is None else self.objective.weights[:, 0]
        return BinaryProblem(
            self.objective.labels[:, self.problems[p].label].double(), weights, float(self.objective.C[p])
        )

    def paths(self) -> Iterator[list[int]]:
        """The numbers of the problems of each label column, by rising C."""
        of_label: dict[int, list[int]] = {}
        for p, problem in enumerate(self.problems):
            of_label.setdefault(problem.label, []).append(p)
        strengths = self.objective.C.tolist()
        return (sorted(which, key=lambda p: strengths[p]) for which in of_label.values())

    def solve(self, tol: float, max_iter: int) -> Solutions:
        """Follow every path, certify all, and go on in float64 with what misses."""
        system = self.system()
        aim = ROUNDING if self.exact else AIM * tol
        found: dict[int, tuple[Place, int]] = {}
        for which in self.paths():
            found |= dict(zip(which, path(system, [self.task(p) for p in which], aim, max_iter), strict=True))
        places = [found[p][0] for p in range(len(found))]
        n_iter = torch.tensor([found[p][1] for p in range(len(found))])
        certified = self.certified(system, places, torch.arange(len(places)))
        for sharper in SHARPER:
            late = torch.nonzero((certified.gap > tol) & (n_iter < max_iter))[:, 0]
            if not len(late):
                break
            if isinstance(system, Kernel):  # raw features of very unequal sizes: K has too few digits for the smaller
                weights = system.weights(torch.stack([at.u for at in places]))
                places = [replace(at, u=weights[i]) for i, at in enumerate(places)]
                system = self.system(in_weights=True)
            for p in late.tolist():
                at, task = places[p], self.task(p)
                at = place(task, at.u, system.scores(at.u, exact=True), at.b, float(at.u @ at.u))
                places[p], more = descend(system, task, at, tol * sharper, max_iter - int(n_iter[p]), precise=True)
                n_iter[p] += more
            certified.put(late, self.certified(system, [places[p] for p in late.tolist()], late))
        coef, intercept = self.objective.raw(certified.v)
        numbers = (coef, intercept, certified.f, certified.gradient_norm, certified.gap, n_iter, certified.gap <= tol)
        return Solutions(*(x.numpy() for x in numbers))

    def certified(self, system: System, places: list[Place], which: Tensor) -> Certified:
        """The certificates of the problems `which` at these places."""
        u, b = torch.stack([at.u for at in places]), torch.tensor([at.b for at in places]).double()
        v = torch.cat([system.weights(u), b[:, None]], dim=1)[:, None]
        size = max(1, MOST_SCORES // len(self.X))
        parts = [
            certify(self.objective.of(of), some) for of, some in zip(which.split(size), v.split(size), strict=True)
        ]
        return Certified(*(torch.cat(values) for values in zip(*(vars(part).values() for part in parts), strict=True)))
