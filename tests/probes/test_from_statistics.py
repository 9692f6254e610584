"""A probe from the moments of its rows is the probe from the rows."""

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from probekit.activations import SplitMoments
from probekit.errors import DataError, UsageError
from probekit.probes import LDAProbe, MeanDifferenceProbe, RidgeProbe

PROBES = [RidgeProbe(1e-4), RidgeProbe(1.0), RidgeProbe(1e4), MeanDifferenceProbe(), LDAProbe(0.1), LDAProbe(1.0)]
PROBES += [RidgeProbe(1e-2, standardise=False), LDAProbe(0.1, standardise=False)]


def rows(n=400, D=16, n_classes=2, massive=True, seed=0):
    """Rows with a dimension at 3,000 times the others, a constant one and one that others make up, in float32."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D))
    y = (X @ rng.normal(size=(D, n_classes)) + rng.gumbel(size=(n, n_classes))).argmax(axis=1)
    if massive:
        X[:, 2], X[:, 3], X[:, 5] = 3000 + X[:, 2], 0.1, X[:, 4] + 2 * X[:, 6]
    return X.astype(np.float32), y


def moments_of(X, y, n_classes, parts=7):
    x = torch.from_numpy(X)
    moments = SplitMoments.zero(x[: len(x) // parts].double().mean(dim=0), {"kind": n_classes})
    for some in np.array_split(np.arange(len(X)), parts):
        moments = moments.including(x[torch.from_numpy(some)], {"kind": y[some]})
    return moments


def assert_same_probe(one, other, X):
    np.testing.assert_array_equal(one.classes_, other.classes_)
    assert one.coef_.shape == other.coef_.shape
    assert one.n_features_in_ == other.n_features_in_
    for a, b in ((one.direction, other.direction), (one.intercept_, other.intercept_)):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6 * np.abs(b).max())
    scores = other.decision_function(X)
    np.testing.assert_allclose(one.decision_function(X), scores, atol=1e-6 * np.abs(scores).max())


@pytest.mark.parametrize("probe", PROBES, ids=str)
@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("n", [400, 12])
def test_a_probe_from_moments_is_the_probe_from_the_rows(probe, n_classes, n):
    X, y = rows(n=n, n_classes=n_classes)
    moments = moments_of(X, y, n_classes)
    fitted = type(probe)(**probe.get_params()).fit_statistics(**moments.for_probe("kind"))
    assert_same_probe(fitted, probe.fit(X, y), X)
    if isinstance(probe, RidgeProbe):
        assert (fitted.coef_[:, 3] == 0).all()


def test_a_class_without_rows_is_left_out():
    X, y = rows(n_classes=3)
    y = np.where(y == 1, 3, y)
    for probe in PROBES:
        fitted = type(probe)(**probe.get_params()).fit_statistics(**moments_of(X, y, 5).for_probe("kind"))
        assert fitted.classes_.tolist() == [0, 2, 3]
        assert_same_probe(fitted, probe.fit(X, y), X)


def test_moments_that_make_no_probe_are_refused():
    X, y = rows()
    good = moments_of(X, y, 2).for_probe("kind")
    with pytest.raises(DataError, match="rows of two classes or more, got 1"):
        RidgeProbe().fit_statistics(**moments_of(X, y * 0, 2).for_probe("kind"))
    for bad in (
        {"count": 3},
        {"mean": good["mean"][:4]},
        {"mean": 0.0},
        {"covariance": good["covariance"][:, :4]},
        {"class_means": good["class_means"][:1]},
        {"class_counts": [0, *good["class_counts"]]},
        {"class_counts": [-1, good["count"] + 1]},
        {"class_counts": good["count"]},
    ):
        with pytest.raises(DataError, match="moments that do not agree"):
            MeanDifferenceProbe().fit_statistics(**{**good, **bad})
    with pytest.raises(DataError, match="NaN or infinity in the moments"):
        RidgeProbe().fit_statistics(**{**good, "mean": good["mean"] * torch.nan})
    with pytest.raises(UsageError, match="C must be a positive"):
        RidgeProbe(-1.0).fit_statistics(**good)
    with pytest.raises(UsageError, match="needs the rows"):
        LDAProbe("auto").fit_statistics(**good)
    with pytest.raises(DataError, match="more rows than classes, got 2"):
        LDAProbe(0.1).fit_statistics(**moments_of(X[:2], np.array([0, 1]), 2, parts=1).for_probe("kind"))


@pytest.mark.parametrize("n_classes", [2, 4])
def test_class_means_and_within_class_covariance_are_those_of_lda(n_classes):
    X, y = rows(n_classes=n_classes)
    oracle = LinearDiscriminantAnalysis(solver="lsqr", store_covariance=True)
    oracle.fit(np.delete(X, [3, 5], axis=1).astype(np.float64), y)
    kept = np.delete(np.arange(16), [3, 5])
    moments = moments_of(X, y, n_classes)
    np.testing.assert_allclose(moments.class_means("kind")[:, kept], oracle.means_, rtol=1e-12)
    within = moments.within_class_covariance("kind")[kept][:, kept].numpy()
    np.testing.assert_allclose(within, oracle.covariance_, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("spread", [100.0, 1.0, 0.01])
def test_a_massive_dimension_leaves_the_covariance_right(spread):
    """Against two passes in long double, in units of the standard deviations; sums around 0 lose seven digits more."""
    X, y = rows(n=20_000, massive=False)
    X[:, 2] = 3000 + spread * X[:, 2]
    exact = X.astype(np.longdouble)
    exact -= exact.mean(axis=0)
    covariance = exact.T @ exact / len(X)
    deviations = np.sqrt(np.diag(covariance))
    scale = np.outer(deviations, deviations)
    moments = moments_of(X, y, 2, parts=40)
    assert np.abs((moments.covariance.numpy() - covariance) / scale).max() < 1e-12
    raw = moments.gram.numpy() / len(X) - np.outer(moments.sum.numpy(), moments.sum.numpy()) / len(X) ** 2
    assert spread > 10 or np.abs((raw - covariance) / scale).max() > 1e-10


def test_a_constant_column_has_no_variance_at_all():
    X, y = rows(n=997)
    assert moments_of(X, y, 2).covariance[3].eq(0).all()


def test_moments_add_up_whatever_their_shifts():
    X, y = rows()
    whole = moments_of(X, y, 2)
    a, b = moments_of(X[:150], y[:150], 2), moments_of(X[150:], y[150:], 2, parts=3)
    assert not torch.equal(a.shift, b.shift)
    for both in (a + b, b + a):
        assert both.count == len(X)
        torch.testing.assert_close(both.covariance, whole.covariance, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(both.xty("kind"), whole.xty("kind"), rtol=1e-12, atol=1e-9)
        assert torch.equal(both.class_counts["kind"], whole.class_counts["kind"])
    with pytest.raises(UsageError, match="only moments of equal widths and classes can be added"):
        _ = a + moments_of(X[:, :4], y, 2)
    with pytest.raises(UsageError, match="no label set 'kin'; did you mean kind"):
        whole.class_means("kin")
