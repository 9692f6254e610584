"""Probes of a stream are those of the same rows in memory, whatever the order and size of its blocks."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from probekit.errors import DataError
from probekit.probes import (
    KSparseProbe,
    LDAProbe,
    LogisticProbe,
    MeanDifferenceProbe,
    Probe,
    RidgeProbe,
    RidgeRegressionProbe,
)
from probekit.probes.problem import Labels, every_problem
from probekit.probes.stream import Stream, bytes_to_fit, held, most_scores, some_of, take_some, with_numbers

N, D = 90, 6


def rows(kind: str = "usual") -> torch.Tensor:
    """Features far from 0 and of unequal sizes; one column constant, or one the sum of two others."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N, D)) * [1, 10, 0.1, 1, 1, 3] + [0, 100, 0, 5, -3, 0]
    if kind == "constant":
        X[:, 3] = 7.0
    if kind == "dependent":
        X[:, 5] = X[:, 0] + X[:, 1]
    return torch.from_numpy(X)


def stream_of(X: torch.Tensor, room: int | None = None) -> Stream:
    """The rows in another order, in blocks of different sizes, one of them empty."""
    order = np.random.default_rng(2).permutation(len(X))
    blocks = [1, 0, 37, len(X) - 38]
    return Stream(len(X), X.shape[1], lambda: iter(X[torch.from_numpy(order)].split(blocks)), order, room)


def labels_of(X: torch.Tensor, n_classes: int) -> np.ndarray:
    z = (X[:, 0] - X[:, 4] + torch.from_numpy(np.random.default_rng(3).normal(size=N))).numpy()
    return z if n_classes == 0 else np.searchsorted(np.quantile(z, np.arange(1, n_classes) / n_classes), z)


@pytest.mark.parametrize("kind", ["usual", "constant", "dependent"])
@pytest.mark.parametrize(
    ("probe", "n_classes"),
    [
        (RidgeProbe(), 2),
        (RidgeProbe(C=math.inf), 3),
        (RidgeProbe(C=0.1, standardise=False), 3),
        (RidgeRegressionProbe(C=math.inf), 0),
        (LDAProbe(), 2),
        (LDAProbe(), 4),
        (LDAProbe(standardise=False), 3),
        (LDAProbe(shrinkage=0.2), 3),
        (MeanDifferenceProbe(), 3),
    ],
    ids=repr,
)
def test_closed_forms_are_those_of_rows_in_memory(probe: Probe, n_classes: int, kind: str):
    X = rows(kind)
    labels = labels_of(X, n_classes)
    fold = (np.arange(N) % 5 > 0).astype(np.float64)
    problems = every_problem([Labels(labels, n_classes)], [None], [None, fold])
    given: Any = stream_of(X)
    for one, other in zip(probe.fit_many(given, problems), probe.fit_many(X, problems), strict=True):
        size = np.abs(other.coef_).max()  # pyright: ignore
        np.testing.assert_allclose(one.coef_, other.coef_, rtol=1e-7, atol=1e-8 * size)  # pyright: ignore
        np.testing.assert_allclose(one.predict(X), other.predict(X), rtol=1e-7)
        assert one.n_features_in_ == D


@pytest.mark.parametrize("kind", ["usual", "constant"])
@pytest.mark.parametrize("n_classes", [2, 4])
def test_the_best_features_are_those_of_rows_in_memory(n_classes: int, kind: str):
    X = rows(kind)
    labels, fold = labels_of(X, n_classes), (np.arange(N) % 5 > 0).astype(np.float64)
    problems = every_problem([Labels(labels, n_classes)], [0.01, 1], [None, fold])
    streamed = KSparseProbe(k=3).fit_many(stream_of(X), problems)
    for one, problem in zip(streamed, problems.problems, strict=True):
        some = fold > 0 if problem.weighting else np.ones(N, dtype=bool)
        other = KSparseProbe(k=3, C=problem.C or 0).fit(X[torch.from_numpy(some)], labels[some])
        np.testing.assert_array_equal(one.neurons_, other.neurons_)
        np.testing.assert_allclose(one.coef_, other.coef_, rtol=1e-6, atol=1e-9)
        assert (one.C, one.n_features_in_) == (problem.C, D)
        assert one.gap_ <= 1e-6


@pytest.mark.parametrize("n_classes", [2, 3])
def test_logistic_regressions_are_those_of_rows_in_memory_within_their_certificates(n_classes: int):
    X = rows().float()
    labels, fold = labels_of(X, n_classes), (np.arange(N) % 5 > 0).astype(np.float64)
    problems = every_problem(
        [Labels(labels, n_classes), Labels(labels[::-1].copy(), n_classes)], [0.01, 1], [None, fold]
    )
    streamed = LogisticProbe().fit_many(stream_of(X, room=5000), problems)  # a few scores at a time
    for one, other in zip(streamed, LogisticProbe().fit_many(X, problems), strict=True):
        assert max(one.gap_, other.gap_) <= 1e-6
        assert one.objective_ == pytest.approx(other.objective_, rel=2e-6)


def test_some_rows_of_a_stream_are_those_rows_in_the_order_asked():
    X, wanted = rows(), np.array([40, 3, 88, 7])
    some = take_some(stream_of(X), wanted)
    assert isinstance(some, Stream)
    torch.testing.assert_close(held(some), X[torch.from_numpy(wanted)], rtol=0, atol=0)
    torch.testing.assert_close(held(some_of(some, np.array([2, 0]))), X[[88, 40]], rtol=0, atol=0)
    assert sorted(np.concatenate([numbers for numbers, _ in with_numbers(some)]).tolist()) == [0, 1, 2, 3]


def test_rows_are_held_where_they_fit_with_their_fits():
    X, wanted = rows(), np.arange(5)
    assert isinstance(take_some(stream_of(X, bytes_to_fit(5, D)), wanted), torch.Tensor)
    assert isinstance(take_some(stream_of(X, bytes_to_fit(5, D) - 1), wanted), Stream)


def test_scores_take_half_of_the_room():
    assert most_scores(rows(), 1000) == 1000
    assert most_scores(stream_of(rows()), 1000) == 1000
    assert most_scores(stream_of(rows(), 192 * 77), 1000) == 77
    assert most_scores(stream_of(rows(), 10), 1000) == 1


@pytest.mark.parametrize("probe", [RidgeProbe(), LDAProbe(), MeanDifferenceProbe(), LogisticProbe()], ids=repr)
def test_what_is_not_finite_is_refused(probe: Probe):
    X = rows()
    X[17, 2] = math.nan
    problems = every_problem([Labels(np.arange(N) % 2, 2)], [None if not probe.has_C else 1.0])
    given: Any = stream_of(X)
    with pytest.raises(DataError, match="NaN or infinity"):
        probe.fit_many(given, problems)


def test_each_pass_reads_the_rows_once_and_two_passes_make_a_closed_form():
    X, passes = rows(), []

    def read() -> Iterator[torch.Tensor]:
        passes.append(1)
        return iter(X.split(20))

    given: Any = Stream(N, D, read)
    RidgeProbe().fit_many(given, every_problem([Labels(labels_of(X, 2), 2)], [0.1, 1.0, 10.0]))
    assert len(passes) <= 4  # a mean and the products; each first looks at the first block
