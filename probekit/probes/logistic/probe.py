"""Logistic regression, solved to a certified optimum (see `probekit.probes.logistic.solver`)."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from probekit.machine.devices import has_float64, where_float64
from probekit.options.check import check_positive, check_strength, check_whole
from probekit.probes.base import LinearProbe, WithProbabilities, check_classes, fit_strengths
from probekit.probes.logistic.certificate import Solutions
from probekit.probes.logistic.solver import MAX_ITER, TOLERANCE, solve_logistic
from probekit.probes.problem import Labels, ProblemSet, every_problem, subset
from probekit.probes.stream import Stream


class LogisticProbe(WithProbabilities, LinearProbe):
    """L2-regularised logistic regression; multinomial for more than two classes.

    The objective is scikit-learn's, 0.5 |w|^2 + C * (sum of log losses), on standardised features; the intercept is not
    penalised.

    Args:
        C: inverse strength of the regularisation.
        standardise: whether to penalise the weights of standardised features, or of raw features as scikit-learn's
            LogisticRegression does. `coef_` applies to raw features in either case.
        tol: relative distance to the optimum that counts as converged. Float64 features are solved to rounding error
            regardless.
        max_iter: iterations after which the fit is returned unconverged.

    Attributes:
        objective_: the objective at the solution.
        gradient_norm_: the norm of its gradient, with the intercept minimised out.
        gap_: an upper bound on (objective - optimum) / optimum; `converged_` is whether it is within `tol`. Infinite if
            there is no bound.
    """

    has_C = certified = for_codelength = fits_in_threads = streams = True
    FACTS = ("objective_", "gradient_norm_", "gap_")
    objective_: float
    gradient_norm_: float
    gap_: float

    def __init__(self, C: float = 1.0, standardise: bool = True, tol: float = TOLERANCE, max_iter: int = MAX_ITER):
        self.C = C
        self.standardise = standardise
        self.tol = tol
        self.max_iter = max_iter

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to features [N, D] and labels [N]. Up to float32, sums are in float32 and the certificate in float64.

        Args:
            X: features, numpy or torch; a tensor stays on its device.
            y: labels.
            sample_weight: [N], not negative: how often each row counts.

        Raises:
            ValueError: NaN or infinity, shapes that do not agree, parameters out of range.
            DataError: fewer than two classes in `y`.
        """
        from sklearn.utils.validation import _check_sample_weight  # see `probes.scikit_learn`

        X, labels = self._validated(X, y)
        weights = (
            None if sample_weight is None else _check_sample_weight(sample_weight, labels, ensure_non_negative=True)
        )
        problems = every_problem([Labels(labels, len(self.classes_))], [self.C], [weights])
        _check(problems)
        self._take(self._solutions(X, problems), 0)
        self._warn()
        return self

    def _validated(self, X: Any, y: Any) -> tuple[Tensor, np.ndarray]:
        """X as a tensor on its device, and labels 0..C-1; sets `classes_` and `n_features_in_`."""
        there = X if isinstance(X, Tensor) and X.device.type != "cpu" and has_float64(X.device) else None
        X, labels = self._checked(X, y, dtype=[np.float64, np.float32])
        if there is None:
            there = torch.from_numpy(X if X.flags.writeable else X.copy())  # torch warns of what it could not write
        return there, labels

    def _solutions(self, X: Tensor | Stream, problems: ProblemSet) -> Solutions:
        tol = check_positive("tol", self.tol)
        check_whole("max_iter", self.max_iter, 0)
        X = where_float64(X) if isinstance(X, Tensor) else X
        return solve_logistic(X, problems, standardise=self.standardise, tol=tol, max_iter=self.max_iter)

    def _warn(self) -> None:
        if not self.converged_:
            from sklearn.exceptions import ConvergenceWarning  # see `probes.scikit_learn`

            way = "take a smaller C" if self.standardise else "take standardise=True or a smaller C"
            warnings.warn(
                f"not converged after {self.n_iter_} iterations: the relative distance to the optimum may be "
                f"{self.gap_:.1e}, more than tol={self.tol:g}; {way}",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _take(self, found: Solutions, p: int) -> None:
        self.coef_, self.intercept_ = found.coef[p], found.intercept[p]
        self.objective_, self.gradient_norm_ = float(found.objective[p]), float(found.gradient_norm[p])
        self.gap_, self.converged_ = float(found.gap[p]), bool(found.converged[p])
        self.n_iter_ = int(found.n_iter[p])

    def fit_many(self, X: Tensor | Stream, problems: ProblemSet) -> list[Self]:
        """A probe for each problem, from one solve; see `Probe.fit_many`. Takes any weights."""
        probes = self._copies(problems)
        own = tuple(p._replace(C=probe.C) for probe, p in zip(probes, problems.problems, strict=True))
        problems = replace(problems, problems=own)
        _check(problems)
        n_classes_of = [problems.labels[p.label].n_classes for p in own]
        for n_classes in dict.fromkeys(n_classes_of):
            group = [p for p, number in enumerate(n_classes_of) if number == n_classes]
            found = self._solutions(X, subset(problems, group))
            for i, p in enumerate(group):
                probes[p].classes_, probes[p].n_features_in_ = np.arange(n_classes), X.shape[1]
                probes[p]._take(found, i)
        return probes


def fit_logistic_path(
    X: Any, y: Any, C: Sequence[float] = (1e-4, 1e-2, 1.0, 1e2, 1e4), **parameters: Any
) -> list[LogisticProbe]:
    """Fit one probe per C, all in one solve: about as fast as the largest C alone.

    Args:
        X: features [N, D].
        y: labels [N].
        C: inverse strengths of the regularisation.
        parameters: the other parameters of `LogisticProbe`.

    Raises:
        ValueError: as from `LogisticProbe.fit`.
    """
    first = LogisticProbe(**parameters)
    X, labels = first._validated(X, y)
    probes = fit_strengths(first, X, Labels(labels, len(first.classes_)), C)
    for probe in probes:
        probe._warn()
    return [*probes]


def _check(problems: ProblemSet) -> None:
    for C in dict.fromkeys(problem.C for problem in problems.problems):
        check_strength("C", C, without_penalty=False)
    for label, weighting in dict.fromkeys((problem.label, problem.weighting) for problem in problems.problems):
        labels, weights = problems.labels[label], problems.weightings[weighting]
        check_classes(labels.of(None if weights is None else weights > 0), labels.n_classes)
