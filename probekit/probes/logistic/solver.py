"""L2-regularised logistic regression to a certified optimum, for many problems on the same features.

The objective is scikit-learn's, 0.5 |w|^2 + C * (sum of log losses), with a free intercept; for more than two classes w
has a row for each class (multinomial).

Features in memory go to `binary` and `multinomial`. Streams, features on a GPU, very many rows with two
classes, and raw features too large for products in float32 are solved here. Standardising is then a change of
variables, and a fold is a weight of 0, so neither copies X. All problems descend together by L-BFGS, so that a
pass over X is one matrix product. In the eigenbasis of the covariance the Hessian is nearly diagonal,
C * (curvature of the loss) * eigenvalue + 1; this is the initial Hessian of every L-BFGS iteration. Problems that still
converge slowly (nearly separable, few rows) switch to Newton's method, each with its own Hessian.

Axes: N rows, D features, P problems, K score columns of a problem (1 for two classes, C for more), M weightings.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor

from probekit.errors import UsageError
from probekit.machine.threads import shares
from probekit.probes.lbfgs import inverse_times
from probekit.probes.logistic import binary, multinomial
from probekit.probes.logistic.certificate import Certified, Solutions, reassembled, within_tolerance
from probekit.probes.logistic.features import FLOAT32, Features
from probekit.probes.logistic.objective import Objective, Point, objective_of
from probekit.probes.problem import ProblemSet, by_weighting, on_rows, subset
from probekit.probes.stream import Stream, most_scores

TOLERANCE = 1e-6  # relative distance to the optimum
MEMORY = 10  # pairs that L-BFGS keeps
MAX_ITER = 500
NEWTON_AFTER_LEAST, NEWTON_AFTER_MOST = 12, 250  # L-BFGS iterations before Newton's method takes over
NEWTON_STEPS = 8  # Newton steps that a problem needs, about
NEWTON_UP_TO = 2000  # unknowns of one problem; with more the Hessian costs too much
ELEMENTWISE = 5000  # cost of a score's elementwise work in one iteration, in multiplications
SMALL = 1 << 17  # numbers in X up to which one thread is fastest
FEW_ROWS = 0.6  # share of the rows; problems on fewer get a copy of their rows
MOST_SCORES = 1 << 26  # scores in memory at once; problems with more are solved in parts
ENOUGH_DECREASE, ENOUGH_FLATTER = 1e-4, 0.6  # Wolfe's conditions; a full step that meets both needs no line search


@dataclass(frozen=True)
class _Arithmetic:
    """How far a type of number is worth descending."""

    aim: float  # relative gap to stop at, if less than the tolerance
    least: float  # relative decrease that is not worth another pass
    rounding: float  # relative rounding error of the objective
    patience: int  # passes without progress before giving up


ARITHMETIC = {
    # the gradient has digits long after the objective has none: with a least decrease of 1e-7, six more passes were in
    # float64 (measured at 67,000 x 768)
    torch.float32: _Arithmetic(aim=1.0, least=1e-14, rounding=1e-7, patience=1),
    torch.float64: _Arithmetic(aim=1e-22, least=1e-23, rounding=1e-15, patience=5),  # to rounding error
}


def solve_logistic(
    X: Tensor | Stream,
    problems: ProblemSet,
    standardise: bool = True,
    tol: float = TOLERANCE,
    max_iter: int = MAX_ITER,
) -> Solutions:
    """Minimise each problem's objective to a relative distance of `tol` from its optimum.

    Args:
        X: [N, D], of any float type, on a CPU or GPU; or a stream of rows, which is read once per pass.
        problems: all with the same number of classes; each class has rows with a weight.
        standardise: whether to penalise weights for features divided by their standard deviation among the problem's
            own rows, instead of raw features. The features' means never matter: the intercept is free.
        tol: relative distance to the optimum that counts as converged.
        max_iter: iterations after which a problem is returned unconverged.

    Raises:
        UsageError: no problems, or labels or weights that do not match the rows.
        DataError: NaN or infinity in the features, or a stream with another number of rows.
    """
    _check(X, problems)
    X = X.detach() if isinstance(X, Tensor) else X
    if _in_memory(X, problems, standardise):
        return _by_weighting(X, problems, standardise, tol, max_iter)
    which, solved = [], []
    for numbers, rows, some in _by_rows(X, problems):
        which.append(numbers)
        if rows is not X and _in_memory(rows, some, standardise):
            solved.append(_by_weighting(rows, some, standardise, tol, max_iter))
        else:
            solved.append(_solve_shared(rows, some, standardise, tol, max_iter))
    return reassembled(solved, which)


def _in_memory(X: Tensor | Stream, problems: ProblemSet, standardise: bool) -> TypeGuard[Tensor]:
    """Whether `binary` or `multinomial` solves them: numbers whose products float32 can hold once they are scaled."""
    if not isinstance(X, Tensor) or X.device.type != "cpu":
        return False
    if problems.labels[0].n_classes == 2 and not binary.fits(X):
        return False
    if standardise:
        return True
    least, most = X.aminmax()
    return not bool((most > FLOAT32) | (least < -FLOAT32))


def _check(X: Tensor | Stream, problems: ProblemSet) -> None:
    if not problems.problems:
        raise UsageError("no labels to fit; give one problem or more")
    n = X.shape[0]
    for labels in problems.labels:
        if labels.values.shape != (n,):
            shape = list(labels.values.shape)
            raise UsageError(f"expected one label for each of the {n} rows, got labels of shape {shape}")
    for weights in problems.weightings:
        if weights is not None and (weights.shape != (n,) or not (np.isfinite(weights) & (weights >= 0)).all()):
            raise UsageError(f"expected a weight of 0 or more for each of the {n} rows; check the weights")
        if weights is not None and not weights.any():
            raise UsageError("no row of a problem has a weight; leave the problem out")


def _by_weighting(X: Tensor, problems: ProblemSet, standardise: bool, tol: float, max_iter: int) -> Solutions:
    """Solve the problems of each weighting on the rows that it leaves, with weights of about 1: float32 holds these."""
    solve, large = binary.solve_binary, binary.LARGE
    if problems.labels[0].n_classes > 2:
        solve, large = multinomial.solve_multinomial, multinomial.LARGE
    groups, solved = by_weighting(problems), []
    for weighting, which in groups.items():
        rows, some, weights = X, subset(problems, which), problems.weightings[weighting]
        if weights is not None:
            kept, size = np.flatnonzero(weights), 2.0 ** np.floor(np.log2(weights.max()))  # a power of 2: no rounding
            rows = X if len(kept) == len(X) else X[torch.from_numpy(kept)]
            strengths = tuple(each._replace(C=(each.C or 0.0) * size) for each in some.problems)
            some = ProblemSet(on_rows(some, kept).labels, (weights[kept] / size,), strengths)
        with shares(parallel=rows.numel() > large) as by_thread:
            solved.append(solve(rows, some, standardise, by_thread, tol, max_iter))
    return reassembled(solved, list(groups.values()))


def _by_rows(X: Tensor | Stream, problems: ProblemSet) -> Iterator[tuple[list[int], Tensor | Stream, ProblemSet]]:
    """Numbers of problems, the rows that they need, and the problems there.

    Problems on few rows come weighting by weighting, with a copy of these rows; all other problems with X.

    A pass over all rows would cost the problems on few of them most. Few rows, such as a prefix of the online code, may
    also vary on other scales than X does.
    """
    few = [
        isinstance(X, Tensor) and weights is not None and bool(np.count_nonzero(weights) <= FEW_ROWS * len(weights))
        for weights in problems.weightings
    ]
    groups: dict[int | None, list[int]] = {}
    for i, problem in enumerate(problems.problems):
        groups.setdefault(problem.weighting if few[problem.weighting] else None, []).append(i)
    for weighting, which in groups.items():
        some = subset(problems, which)
        if weighting is None or isinstance(X, Stream):
            yield which, X, some
        else:
            rows = np.flatnonzero(np.asarray(problems.weightings[weighting]))
            yield which, X[torch.from_numpy(rows).to(X.device)], on_rows(some, rows)


def _solve_shared(X: Tensor | Stream, problems: ProblemSet, standardise: bool, tol: float, max_iter: int) -> Solutions:
    """Solve problems that all need the same rows."""
    on_cpu = isinstance(X, Stream) or X.device.type == "cpu"
    with shares(parallel=on_cpu and X.shape[0] * X.shape[1] > SMALL) as by_thread:
        features = Features(X, by_thread)
        n_classes = problems.labels[0].n_classes
        K = 1 if n_classes == 2 else n_classes
        every = objective_of(features, problems, K, standardise, X.order if isinstance(X, Stream) else None)
        size = max(1, most_scores(X, MOST_SCORES) // (K * max(features.n, 2 * MEMORY * features.d)))
        numbers = torch.arange(len(problems.problems), device=features.device).split(size)
        parts = [_solve(every.of(part), tol, max_iter) for part in numbers]
    return reassembled(parts, [part.tolist() for part in numbers])


def _solve(objective: Objective, tol: float, max_iter: int) -> Solutions:
    """Descend in the type of the features, then in float64 for the problems that are not within the tolerance."""
    P = len(objective.C)
    v = torch.zeros(P, objective.K, objective.features.d + 1, dtype=torch.float64, device=objective.C.device)
    dtype = objective.features.dtype
    n_iter = torch.zeros(P, dtype=torch.int64, device=v.device)
    v, n_iter = _descend(objective, v, n_iter, dtype, min(tol, ARITHMETIC[dtype].aim), max_iter)

    def again(missed: Tensor, found: Certified, sharper: float) -> tuple[Tensor, Tensor]:
        return _descend(objective.of(missed), found.v[missed], n_iter[missed], torch.float64, sharper, max_iter)

    return within_tolerance(objective, v, n_iter, again, [tol / 4, tol / 100, tol / 1e4], tol, max_iter)


def _descend(
    objective: Objective, v: Tensor, before: Tensor, dtype: torch.dtype, tol: float, max_iter: int
) -> tuple[Tensor, Tensor]:
    """L-BFGS until each problem's relative bound is `tol` or only rounding is left; returns v and iterations.

    `before` [P] counts the iterations already spent on each problem, which `max_iter` includes.
    """
    found, n_iter = v.clone(), torch.zeros_like(before)
    patience = _patience(objective, max_iter)
    left, z = torch.arange(len(v), device=v.device), None
    if not v.any():  # scores of 0 take no product
        z = v.new_zeros(objective.features.n, len(v), objective.K, dtype=dtype)
    point = objective.at(v, dtype, z)
    pairs: list[tuple[Tensor, Tensor, Tensor]] = []  # as `inverse_times` takes them
    how, idle, best = ARITHMETIC[dtype], torch.zeros_like(left), v
    for i in range(max_iter + 1):
        spent = before[left] + i
        initial = partial(objective.precondition, point.A)
        d = -inverse_times(pairs, point.g, initial, _inner, lambda share: share[:, None, None])
        slow = torch.nonzero(spent >= patience)[:, 0]
        if len(slow):
            direct, found_one = objective.of(slow).newton(point.of(slow))
            d[slow[found_one]] = direct[found_one]
        decrease = -0.5 * _inner(point.g, d)  # still possible, by the quadratic model of L-BFGS
        finished = (_excess(objective, point) <= tol * point.f) | (decrease <= how.least * point.f)
        done = (idle >= how.patience) | finished | (spent >= max_iter)
        found[left[done]], n_iter[left[done]] = best[done], i
        if done.all():
            break
        if done.any():
            going = ~done
            objective, point, d = objective.of(going), point.of(going), d[going]
            left, idle, best = left[going], idle[going], best[going]
            pairs = [(step[going], change[going], rho[going]) for step, change, rho in pairs]
        new = _step(objective, point, d, how.rounding)
        lower = new.f <= point.f * (1 + how.rounding)  # False where it is not a number
        worse = torch.nonzero(~(lower | _closer(objective, point, new)))[:, 0]
        new.put(worse, point.of(worse))
        better = (new.f < point.f) | (new.bound() < 0.5 * point.bound())
        idle, best = torch.where(better, 0, idle + 1), torch.where(better[:, None, None], new.v, best)
        step, change = new.v - point.v, new.g - point.g
        inner = _inner(step, change)
        sound = inner > 1e-12 * step.flatten(1).norm(dim=1) * change.flatten(1).norm(dim=1)
        pairs = [*pairs[1 - MEMORY :], (step, change, torch.where(sound, 1 / inner, 0))]
        point = new
    return found, n_iter


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """The inner products [P] of a and b [P, K, D + 1]."""
    return (a * b).sum(dim=(1, 2))


def _patience(objective: Objective, max_iter: int) -> float:
    """The number of L-BFGS iterations that costs as much as Newton's method would; after it, Newton takes over."""
    features, K = objective.features, objective.K
    n, d = features.n, features.d
    if K * d > NEWTON_UP_TO or features.streamed:
        return max_iter
    hessian = n * (K * d) ** 2 + (K * d) ** 3 / 3
    worth = NEWTON_STEPS * hessian / (n * K * (2 * d + ELEMENTWISE))
    return min(NEWTON_AFTER_MOST, max(NEWTON_AFTER_LEAST, worth))


def _excess(objective: Objective, point: Point) -> Tensor:
    """About the most that each objective can be above its optimum, by the gradient [P]."""
    drift = point.g[..., -1].square().sum(dim=1) / (objective.C * point.A.diagonal(dim1=1, dim2=2).sum(dim=1) + 1e-300)
    return point.bound() + drift


def _closer(objective: Objective, point: Point, new: Point) -> Tensor:
    """Whether the gradient shows a new point to be better where the objective has no digits left to show it: [P].

    Nearly separable rows have large scores and tiny losses. At C = 1e10 another order of summation changed an objective
    of 1e9 by 1e-4 (measured), where the gradient still bounded the distance to the optimum by 1e-7.
    """
    before, after = _excess(objective, point), _excess(objective, new)
    return (before <= TOLERANCE * point.f) & (after < 0.5 * before) & (new.f <= point.f + before)


def _step(objective: Objective, point: Point, d: Tensor, rounding: float) -> Point:
    """The next point: a full step d if it is good enough, else the minimum along d."""
    trial = objective.at(point.v + d, point.z.dtype)
    slope0, slope = (_inner(p.g, d) for p in (point, trial))
    enough = trial.f <= point.f + ENOUGH_DECREASE * slope0 + rounding * point.f
    good = enough & (slope.abs() <= ENOUGH_FLATTER * slope0.abs())
    far = torch.nonzero(~(good | _closer(objective, point, trial)))[:, 0]
    if len(far):
        part, here, there, along = objective.of(far), point.of(far), trial.of(far), d[far]
        t = part.search(here, there, along)
        z = torch.lerp(here.z, there.z, t.to(here.z.dtype)[None, :, None])
        trial.put(far, part.at(here.v + t[:, None, None] * along, point.z.dtype, z))
    return trial
