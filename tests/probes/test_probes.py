import warnings

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from probekit.errors import DataError, ProbekitError, UsageError
from probekit.probes import PROBES, LogisticProbe, MeanDifferenceProbe, RidgeProbe, load_probe, logistic

ALL = sorted(PROBES)


def problem(n=300, d=12, n_classes=2, seed=0, names=None):
    """Features of very different scales, one constant and one doubled, with labels that depend on them noisily."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = (X @ rng.normal(size=(d, n_classes)) + 2 * rng.gumbel(size=(n, n_classes))).argmax(axis=1)
    X = X * np.logspace(-3, 3, d) + rng.normal(size=d)
    X[:, 3], X[:, 5] = 0.1, X[:, 4]
    return X, y if names is None else np.array(names)[y]


@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("C", [1e-3, 1.0, 30.0])
def test_logistic_equals_scikit_learn_on_standardised_features(n_classes, C):
    X, y = problem(n_classes=n_classes)
    oracle = make_pipeline(StandardScaler(), LogisticRegression(C=C, solver="newton-cholesky", tol=1e-12)).fit(X, y)
    probe = LogisticProbe(C).fit(X, y)
    assert probe.converged_
    assert probe.n_iter_ > 0
    np.testing.assert_allclose(probe.decision_function(X), oracle.decision_function(X), rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(probe.predict_proba(X), oracle.predict_proba(X), atol=2e-5)
    np.testing.assert_array_equal(probe.predict(X), oracle.predict(X))


def test_newton_and_lbfgs_meet_at_the_same_optimum(monkeypatch):
    X, y = problem()
    newton = LogisticProbe(0.1).fit(X, y)
    monkeypatch.setattr(logistic, "NEWTON_UP_TO", 0)
    lbfgs = LogisticProbe(0.1).fit(X, y)
    np.testing.assert_allclose(lbfgs.decision_function(X), newton.decision_function(X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_ridge_equals_scikit_learn_on_standardised_features(n_classes):
    X, y = problem(n_classes=n_classes)
    oracle = make_pipeline(StandardScaler(), RidgeClassifier(alpha=1 / (2 * 0.03))).fit(X, y)
    probe = RidgeProbe(0.03).fit(X, y)
    np.testing.assert_allclose(probe.decision_function(X), oracle.decision_function(X), rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(probe.predict(X), oracle.predict(X))


def test_mean_difference_is_the_line_between_the_means():
    X, y = problem()
    probe = MeanDifferenceProbe().fit(X, y)
    mean0, mean1 = X[y == 0].mean(axis=0), X[y == 1].mean(axis=0)
    np.testing.assert_allclose(probe.direction, mean1 - mean0)
    np.testing.assert_allclose(
        probe.decision_function(np.stack([mean0, mean1, (mean0 + mean1) / 2])).sum(), 0, atol=1e-6
    )
    np.testing.assert_allclose(probe.decision_function((mean0 + mean1)[None] / 2), 0, atol=1e-6)


def test_mean_difference_of_several_classes_takes_the_nearest_mean():
    X, y = problem(n_classes=5)
    probe = MeanDifferenceProbe().fit(X, y)
    means = np.stack([X[y == c].mean(axis=0) for c in range(5)])
    nearest = ((X[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    np.testing.assert_array_equal(probe.predict(X), nearest)
    moved = MeanDifferenceProbe().fit(X + 100, y)
    np.testing.assert_allclose(moved.decision_function(X + 100), probe.decision_function(X), rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("name", ["logistic", "ridge"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_scale_and_origin_of_a_feature_change_no_decision(name, n_classes):
    X, y = problem(n_classes=n_classes)
    rng = np.random.default_rng(1)
    scale, shift = 10 ** rng.uniform(-3, 3, X.shape[1]), rng.normal(size=X.shape[1]) * 100
    one, other = PROBES[name]().fit(X, y), PROBES[name]().fit(X * scale + shift, y)
    np.testing.assert_allclose(
        other.decision_function(X * scale + shift), one.decision_function(X), rtol=1e-4, atol=1e-5
    )
    varying = np.arange(X.shape[1]) != 3
    np.testing.assert_allclose(
        (other.direction * scale)[..., varying], one.direction[..., varying], rtol=1e-3, atol=1e-6
    )


@pytest.mark.parametrize("name", ["logistic", "ridge"])
def test_a_feature_that_never_varied_gets_no_weight(name):
    X, y = problem()
    probe = PROBES[name]().fit(X, y)
    assert probe.direction[3] == 0
    surprise = X.copy()
    surprise[:, 3] = 3000
    np.testing.assert_array_equal(probe.predict(surprise), probe.predict(X))


@pytest.mark.parametrize("name", ALL)
def test_a_planted_direction_is_found_and_shuffled_labels_are_not(name):
    rng = np.random.default_rng(0)
    planted = rng.normal(size=16) / 4
    y = rng.integers(2, size=4000)
    X = rng.normal(size=(4000, 16)) + np.outer(2 * y - 1, planted)
    train, test = slice(0, 2000), slice(2000, None)
    found = PROBES[name]().fit(X[train], y[train])
    assert planted @ found.direction / np.linalg.norm(planted) / np.linalg.norm(found.direction) > 0.97
    assert found.score(X[test], y[test]) > 0.8
    y = rng.permutation(y)
    assert abs(PROBES[name]().fit(X[train], y[train]).score(X[test], y[test]) - 0.5) < 0.05


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_torch_and_numpy_give_the_same_probe(name, dtype):
    X = torch.randn(60, 5, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    y = (X[:, 0] > 0).long()
    from_torch = PROBES[name]().fit(X, y)
    from_numpy = PROBES[name]().fit(X.detach().double().numpy(), y.numpy())
    np.testing.assert_array_equal(from_torch.coef_, from_numpy.coef_)
    np.testing.assert_array_equal(from_torch.predict(X), from_numpy.predict(X.detach().float().numpy()))
    assert from_torch.coef_.dtype == np.float64


@pytest.mark.parametrize("name", ALL)
def test_directions_have_the_shape_of_the_classes(name):
    assert PROBES[name]().fit(*problem()).direction.shape == (12,)
    assert PROBES[name]().fit(*problem(n_classes=3)).direction.shape == (3, 12)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "names",
    [None, ["no", "yés"], ["a", "b", "c"], np.array(["x", "yy"], dtype=object), [-1, 7], [False, True], [1.0, 2.0]],
    ids=str,
)
def test_saved_and_loaded_is_the_same_probe(name, names, tmp_path):
    X, y = problem(n_classes=2 if names is None else len(names), names=names)
    probe = PROBES[name]().fit(X, y)
    path = tmp_path / "probes" / "resid_pre.5"  # a dot that is no ending
    assert probe.save(path) == tmp_path / "probes" / "resid_pre.5.json"
    assert sorted(p.name for p in path.parent.iterdir()) == ["resid_pre.5.json", "resid_pre.5.safetensors"]
    for address in (path, str(path) + ".json", str(path) + ".safetensors"):
        loaded = load_probe(address)
        assert type(loaded) is type(probe)
        assert loaded.get_params() == probe.get_params()
        assert loaded.classes_.dtype == probe.classes_.dtype
        assert (loaded.converged_, loaded.n_iter_, loaded.n_features_in_) == (probe.converged_, probe.n_iter_, 12)
        np.testing.assert_array_equal(loaded.decision_function(X), probe.decision_function(X))
        np.testing.assert_array_equal(loaded.predict(X), probe.predict(X))


def test_a_damaged_probe_is_refused(tmp_path):
    with pytest.raises(DataError, match="missing"):
        load_probe(tmp_path / "none")
    probe = RidgeProbe().fit(*problem())
    path = probe.save(tmp_path / "p")
    good = path.read_text()
    for bad, message in [
        ("{", "could not read"),
        ("[]", "not a probe"),
        (good.replace("RidgeProbe", "RidgeProbes"), "did you mean RidgeProbe"),
        (good.replace('"sha256": "', '"sha256": "0'), "damaged"),
        (good.replace('"classes"', '"klasses"'), "not a whole probe"),
    ]:
        path.write_text(bad)
        with pytest.raises(DataError, match=message):
            load_probe(path)
    path.write_text(good)
    weights = tmp_path / "p.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(DataError, match="damaged"):
        load_probe(path)


def test_what_was_not_fitted_or_cannot_be_written_plainly_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match="not fitted"):
        RidgeProbe().save(tmp_path / "p")
    (tmp_path / "file").write_text("")
    with pytest.raises(ProbekitError, match="File exists"):
        RidgeProbe().fit(*problem()).save(tmp_path / "file" / "p")


@pytest.mark.parametrize("name", ALL)
def test_bad_input_is_refused(name):
    X, y = problem()
    with pytest.raises(DataError, match="one class, "):
        PROBES[name]().fit(X, np.zeros_like(y))
    for bad in (np.nan, np.inf):
        broken = X.copy()
        broken[7, 2] = bad
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            PROBES[name]().fit(broken, y)
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            PROBES[name]().fit(X, y).predict(torch.from_numpy(broken))
    with pytest.raises(ValueError, match="expecting 12 features"):
        PROBES[name]().fit(X, y).predict(X[:, :5])
    with pytest.raises(ValueError, match="inconsistent numbers"):
        PROBES[name]().fit(X, y[:-1])


@pytest.mark.parametrize("probe", [LogisticProbe, RidgeProbe])
@pytest.mark.parametrize("C", [0, -1, np.nan, np.inf, "1", None, True])
def test_regularisation_is_positive_and_finite(probe, C):
    with pytest.raises(UsageError, match="C must be a positive"):
        probe(C).fit(*problem())


def test_a_fit_that_did_not_converge_says_so(monkeypatch):
    X, y = problem()
    monkeypatch.setattr(logistic, "MAX_ITER", {"newton-cholesky": 1, "lbfgs": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not LogisticProbe(100.0).fit(X, y).converged_


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ALL)
def test_scikit_learns_own_checks_pass(name):
    checks = check_estimator(PROBES[name](), on_fail=None, on_skip=None)
    assert [c["check_name"] for c in checks if c["status"] not in ("passed", "skipped")] == []
