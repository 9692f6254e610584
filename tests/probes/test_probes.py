from typing import Any

import numpy as np
import pytest
import torch
from probe_problems import problem

from probekit.errors import DataError, ProbekitError, UsageError
from probekit.probes import (
    PROBES,
    KSparseProbe,
    LDAProbe,
    LinearProbe,
    LogisticProbe,
    MeanDifferenceProbe,
    MLPProbe,
    RidgeProbe,
    RidgeRegressionProbe,
    load_probe,
)

ALL = sorted(PROBES)
LINEAR = [name for name in ALL if issubclass(PROBES[name], LinearProbe)]
WITH_PROBABILITIES = [name for name in ALL if hasattr(PROBES[name], "predict_proba")]


def brief(name):
    """A probe whose fit takes no time."""
    return MLPProbe(max_epochs=15) if name == "mlp" else PROBES[name]()


@pytest.mark.parametrize("name", ["logistic", "ridge", "lda", "k-sparse"])
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


@pytest.mark.parametrize("name", [name for name in ALL if name != "mean-diff"])
def test_a_feature_that_never_varied_gets_no_weight(name):
    X, y = problem()
    probe = brief(name).fit(X, y)
    assert name == "mlp" or probe.direction[3] == 0
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
    if name in LINEAR:
        assert planted @ found.direction / np.linalg.norm(planted) / np.linalg.norm(found.direction) > 0.97
    assert found.score(X[test], y[test]) > 0.8
    y = rng.permutation(y)
    assert abs(PROBES[name]().fit(X[train], y[train]).score(X[test], y[test]) - 0.5) < 0.05


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_torch_and_numpy_give_the_same_probe(name, dtype):
    X = torch.randn(60, 5, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    y = (X[:, 0] > 0).long()
    from_torch = brief(name).fit(X, y)
    wide = torch.promote_types(dtype, torch.float32)
    from_numpy = brief(name).fit(X.detach().to(wide).numpy(), y.numpy())
    for array in from_torch.ARRAYS:
        np.testing.assert_array_equal(getattr(from_torch, array), getattr(from_numpy, array))
    np.testing.assert_array_equal(from_torch.predict(X), from_numpy.predict(X.detach().float().numpy()))
    assert from_torch.decision_function(X).dtype == np.float64


NAMES = [None, ["no", "yés"], ["a", "b", "c"], np.array(["x", "yy"], dtype=object), [-1, 7], [False, True], [1.0, 2.0]]


@pytest.mark.parametrize(
    ("name", "names"), [*((name, ["a", "b", "c"]) for name in ALL), *(("mean-diff", names) for names in NAMES)], ids=str
)
def test_saved_and_loaded_is_the_same_probe(name, names, tmp_path):
    X, y = problem(n_classes=2 if names is None else len(names), names=names)
    probe = brief(name).fit(X, y)
    path = tmp_path / "probes" / "resid_pre.5"  # a dot that is no ending
    assert probe.save(path) == tmp_path / "probes" / "resid_pre.5.json"
    assert sorted(p.name for p in path.parent.iterdir()) == ["resid_pre.5.json", "resid_pre.5.safetensors"]
    for address in (path, str(path) + ".json", str(path) + ".safetensors"):
        loaded = load_probe(address)
        assert type(loaded) is type(probe)
        assert loaded.get_params() == probe.get_params()
        assert loaded.classes_.dtype == probe.classes_.dtype
        for fact in ("converged_", "n_iter_", "n_features_in_", *probe.FACTS):
            assert getattr(loaded, fact, None) == getattr(probe, fact, None)
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
        (good.replace('"classes"', '"klasses"'), "not a complete probe"),
    ]:
        path.write_text(bad)
        with pytest.raises(DataError, match=message):
            load_probe(path)
    path.write_text(good)
    weights = tmp_path / "p.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(DataError, match="damaged"):
        load_probe(path)
    probe.coef_ = np.array(1.0)
    with pytest.raises(DataError, match=r"2 classes with arrays of the shapes \{'coef_': \(\)"):
        load_probe(probe.save(path))


def test_what_was_not_fitted_or_cannot_be_written_plainly_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match="not fitted"):
        RidgeProbe().save(tmp_path / "p")
    (tmp_path / "file").write_text("")
    with pytest.raises(ProbekitError, match="File exists"):
        RidgeProbe().fit(*problem()).save(tmp_path / "file" / "p")
    with pytest.raises(DataError, match="random_state must be a number, a string or None to be saved"):
        MLPProbe(max_epochs=1, random_state=np.random.RandomState(0)).fit(*problem()).save(tmp_path / "p")


def test_facts_and_parameters_of_any_plain_kind_are_saved(tmp_path):
    mlp = MLPProbe(hidden=4, max_epochs=2, random_state=None).fit(*problem())
    assert load_probe(mlp.save(tmp_path / "mlp")).get_params() == mlp.get_params()
    assert load_probe(tmp_path / "mlp").loss_ == mlp.loss_
    mlp.loss_ = np.inf  # which JSON cannot hold
    assert load_probe(mlp.save(tmp_path / "mlp")).loss_ == np.inf
    assert (
        load_probe(LDAProbe().set_params(shrinkage=np.float32(0.5)).fit(*problem()).save(tmp_path / "lda")).shrinkage
        == 0.5
    )


@pytest.mark.parametrize("name", WITH_PROBABILITIES)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_probabilities_sum_to_one_and_agree_with_the_predictions(name, n_classes):
    X, y = problem(n_classes=n_classes, names=["a", "b", "c"][:n_classes])
    probe = brief(name).fit(X, y)
    proba = probe.predict_proba(X)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    np.testing.assert_array_equal(probe.classes_[proba.argmax(axis=1)], probe.predict(X))
    truth = np.unique(y, return_inverse=True)[1]
    assert -np.log(proba[np.arange(len(y)), truth]).mean() < np.log(n_classes)  # nats


@pytest.mark.parametrize("name", ALL)
def test_features_that_are_all_equal_give_every_row_the_same_class(name):
    probe = PROBES[name]().fit(np.full((20, 4), 0.1), np.arange(20) % 5 // 4)  # 16 of class 0
    surprise = np.random.default_rng(0).normal(size=(9, 4))
    decision = probe.decision_function(surprise)
    np.testing.assert_allclose(decision, decision[0], atol=1e-12)
    assert name == "mean-diff" or (probe.predict(surprise) == 0).all()


@pytest.mark.parametrize("name", ALL)
def test_fewer_rows_than_features_and_one_row_a_class(name):
    X, y = problem(n=8, d=30, n_classes=2)
    assert PROBES[name]().fit(X, y).score(X, y) > (0.5 if name == "mean-diff" else 0.8)
    if name != "lda":
        assert PROBES[name]().fit(np.eye(4), [3, 1, 2, 0]).classes_.tolist() == [0, 1, 2, 3]
    else:
        with pytest.raises(DataError, match="more rows than classes, got 4"):
            PROBES[name]().fit(np.eye(4), [3, 1, 2, 0])


@pytest.mark.parametrize("make", [LogisticProbe, RidgeProbe, RidgeRegressionProbe, KSparseProbe])
def test_regularisation_is_positive_and_finite(make):
    bad: list[Any] = [0, -1, np.nan, np.inf, "1", None, True]
    for C in bad:
        if np.inf != C or make not in (RidgeProbe, RidgeRegressionProbe):  # least squares
            with pytest.raises(UsageError, match="C must be a positive"):
                make(C=C).fit(*problem())


@pytest.mark.parametrize("name", ALL)
def test_labels_of_one_class_are_refused(name):
    with pytest.raises(DataError, match="one class, "):
        PROBES[name]().fit(np.eye(3), np.zeros(3))


@pytest.mark.parametrize("n_classes", [2, 5])
def test_mean_difference_takes_the_nearest_mean(n_classes):
    X, y = problem(n_classes=n_classes)
    probe = MeanDifferenceProbe().fit(X, y)
    means = np.stack([X[y == c].mean(axis=0) for c in range(n_classes)])
    np.testing.assert_array_equal(probe.predict(X), ((X[:, None] - means) ** 2).sum(axis=2).argmin(axis=1))
    moved = MeanDifferenceProbe().fit(X + 100, y)
    np.testing.assert_allclose(moved.decision_function(X + 100), probe.decision_function(X), rtol=1e-6, atol=1e-4)
    if n_classes == 2:
        np.testing.assert_allclose(probe.direction, means[1] - means[0])
        np.testing.assert_allclose(probe.decision_function(means.mean(axis=0)[None]), 0, atol=1e-6)
