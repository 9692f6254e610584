"""Many fits on shared features are the fits one by one; combining and selecting problems changes none."""

import numpy as np
import pytest
import torch
from probe_problems import problem

from probekit.errors import DataError, UsageError
from probekit.probes import PROBES, LogisticProbe, MLPProbe, RidgeProbe, RidgeRegressionProbe, ridge
from probekit.probes.problem import Labels, Problem, ProblemSet, concatenated, every_problem, subset

X, TWO = problem(n=120)
_, THREE = problem(n=120, n_classes=3)
MASK = (np.arange(120) % 3 > 0).astype(np.float64)
FEW = np.zeros(120)  # fewer rows than features
for each in range(3):
    FEW[np.flatnonzero(each == THREE)[:3]] = 1


MAKE = {**PROBES, "mlp": lambda: MLPProbe(max_epochs=5)}


def assert_same(many, one):
    np.testing.assert_array_equal(many.classes_, one.classes_)
    assert many.n_features_in_ == 12
    scores = one.decision_function(X)
    np.testing.assert_allclose(many.decision_function(X), scores, rtol=1e-4, atol=1e-5 * np.abs(scores).max())


@pytest.mark.parametrize("name", sorted(PROBES))
def test_fits_on_shared_features_are_the_fits_on_their_own_rows(name):
    strengths = (0.01, 1.0) if "C" in MAKE[name]().get_params() else (None,)
    problems = every_problem([Labels(TWO), Labels(THREE, 3)], strengths, [None, MASK, FEW])
    for probe, p in zip(MAKE[name]().fit_many(torch.from_numpy(X), problems), problems.problems, strict=True):
        weights = problems.weightings[p.weighting]
        rows = slice(None) if weights is None else weights > 0
        alone = MAKE[name]()
        if p.C is not None:
            alone.set_params(C=p.C)
            assert probe.get_params()["C"] == p.C
        assert_same(probe, alone.fit(X[rows], problems.labels[p.label].values[rows]))


def test_regressions_on_shared_features_are_the_fits_on_their_own_rows():
    rng = np.random.default_rng(0)
    year, place = rng.normal(size=120), rng.normal(size=(120, 2))
    year[0] = np.nan  # a row that is left out may hold anything
    weights = np.ones(120)
    weights[0] = 0
    problems = every_problem([Labels(year, 0), Labels(place, 0)], (0.1, 10.0), [weights])
    probes = RidgeRegressionProbe().fit_many(torch.from_numpy(X), problems)
    for probe, p in zip(probes, problems.problems, strict=True):
        targets = problems.labels[p.label].values
        alone = RidgeRegressionProbe().set_params(C=p.C).fit(X[1:], targets[1:])
        np.testing.assert_allclose(probe.predict(X), alone.predict(X), rtol=1e-8, atol=1e-8)
        assert probe.predict(X).shape == targets.shape


def test_the_ridge_path_is_one_eigendecomposition_a_mask(monkeypatch):
    calls, eigen = [], ridge.eigen
    monkeypatch.setattr(ridge, "eigen", lambda *given: calls.append(given) or eigen(*given))
    problems = every_problem([Labels(TWO), Labels(THREE, 3)], (0.1, 1.0, 10.0), [None, MASK])
    RidgeProbe().fit_many(torch.from_numpy(X), problems)
    assert len(calls) == 2


@pytest.mark.parametrize(
    ("probe", "labels", "weights", "error", "said"),
    [
        *((PROBES[name](), Labels(THREE, 3), (THREE != 2) * 1.0, DataError, "class 2") for name in ("logistic", "lda")),
        (LogisticProbe(), Labels(THREE, 500), None, DataError, "class 3"),
        (MLPProbe(), Labels(TWO), MASK / 2, UsageError, "weights must be 0 or 1"),
        (RidgeRegressionProbe(), Labels(TWO * 1.0, 0), MASK / 2, UsageError, "weights must be 0 or 1"),
        (RidgeRegressionProbe(), Labels(TWO), None, UsageError, "n_classes=0; got 2"),
        (RidgeProbe(), Labels(TWO * 1.0, 0), None, UsageError, "2 classes or more; got n_classes=0"),
        (RidgeProbe(), Labels(THREE, 2), None, DataError, r"labels must be 0\.\.1; got 0\.\.2"),
    ],
    ids=str,
)
def test_problems_that_cannot_be_fitted_are_refused(probe, labels, weights, error, said):
    with pytest.raises(error, match=said):
        probe.fit_many(torch.from_numpy(X), every_problem([labels], [None], [weights]))


def test_broken_features_are_refused():
    with pytest.raises(DataError, match="NaN or infinity in the features"):
        RidgeProbe().fit_many(torch.from_numpy(X) * torch.inf, every_problem([Labels(TWO, 2)]))


A, B = Labels(np.array([0, 1, 0])), Labels(np.array([0, 1, 2]), 3)
SOME = np.array([1.0, 0.0, 1.0])


def resolved(problems: ProblemSet) -> list[tuple]:
    """Each problem with its arrays instead of their numbers."""
    return [(problems.labels[p.label], problems.weightings[p.weighting], p.C) for p in problems.problems]


def same(one: list[tuple], other: list[tuple]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a is b for x, y in pairs for a, b in zip(x, y, strict=True))


def test_every_problem_is_each_combination_once_with_C_fastest():
    problems = every_problem([A, B], [0.1, None], [None, SOME])
    assert problems.problems == tuple(Problem(k, w, C) for k in (0, 1) for w in (0, 1) for C in (0.1, None))


def test_joined_sets_hold_the_problems_of_each_in_order():
    one, other = every_problem([A], [1.0]), every_problem([B, A], [2.0, 3.0], [SOME])
    assert same(resolved(concatenated([one, other])), resolved(one) + resolved(other))
    assert concatenated([]).problems == ()


def test_a_subset_holds_the_chosen_problems_and_no_array_that_they_do_not_use():
    problems = every_problem([A, B], [0.1, 1.0], [None, SOME])
    which = [7, 2, 6]
    some = subset(problems, which)
    assert same(resolved(some), [resolved(problems)[i] for i in which])
    assert [each is SOME for each in some.weightings] == [True]
    assert some.labels == (B, A)
    assert subset(problems, []).labels == ()
