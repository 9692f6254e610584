"""What a fitted probe gives besides predictions, names and directions, and what it says of unfit activations."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from probe_problems import problem
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

from probekit.errors import DataError, UsageError
from probekit.probes import (
    PROBES,
    EstimatorClassifier,
    EstimatorRegressor,
    LogisticProbe,
    MLPProbe,
    RidgeProbe,
    RidgeRegressionProbe,
    load_probe,
)

NAMES = ["noun", "verb", "\u00e9t\u00e9"]


@pytest.mark.parametrize("name", sorted(PROBES))
def test_names_stand_beside_the_classes_and_are_saved(name, tmp_path):
    X, y = problem(n_classes=3)
    probe = PROBES[name](max_epochs=2) if name == "mlp" else PROBES[name]()
    probe.fit(X, y)
    np.testing.assert_array_equal(probe.predict_labels(X), probe.predict(X))  # without names, the classes themselves
    probe.label_names_ = NAMES
    loaded = load_probe(probe.save(tmp_path / "named"))
    for each in (probe, loaded):
        assert each.classes_.tolist() == [0, 1, 2]
        assert each.label_names_.tolist() == NAMES
        assert each.predict_labels(X).tolist() == [NAMES[i] for i in each.predict(X)]
    assert probe.fit(X, np.array(["a", "b", "c"])[y]).predict_labels(X).tolist() == probe.predict(X).tolist()


def test_names_belong_to_classes_that_are_not_counted_from_zero():
    X, y = problem()
    probe = EstimatorClassifier(GaussianNB()).fit(X, 5 + 2 * y)
    probe.label_names_ = ["no", "yes"]
    assert set(zip(probe.predict(X).tolist(), probe.predict_labels(X).tolist(), strict=True)) == {(5, "no"), (7, "yes")}


@pytest.mark.parametrize("names", [["no"], ["no", "yes", "maybe"], ["no", 1], "ny", 5])
def test_names_that_are_not_one_for_each_class_are_refused(names, tmp_path):
    X, y = problem()
    probe = LogisticProbe().fit(X, y)
    if names != 5:
        with pytest.raises(ValueError, match="expected 2 names"):
            probe.label_names_ = names
    path = probe.save(tmp_path / "probe")
    path.write_text(json.dumps({**json.loads(path.read_text()), "label_names": names}))
    with pytest.raises(DataError, match=r"damaged at|not a complete probe"):
        load_probe(path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_direction_steers_a_model_of_any_type(dtype):
    X, y = problem()
    layer = torch.nn.Linear(12, 12, dtype=dtype)
    probe = RidgeProbe().fit(X, y)
    direction = probe.direction_tensor(dtype=dtype, device="cpu")
    assert (direction.dtype, direction.shape, direction.requires_grad) == (dtype, (12,), False)
    x = torch.from_numpy(X[:2]).to(dtype)
    plain = layer(x)

    def steer(module: Any, given: Any, out: Any) -> Any:
        return out + 3 * direction

    layer.register_forward_hook(steer)
    assert torch.equal(layer(x), plain + 3 * direction)
    torch.testing.assert_close(direction.double(), torch.from_numpy(probe.direction), rtol=1e-2, atol=0)


def test_the_default_is_float32_and_the_exact_weights_stay_as_they_are():
    X, y = problem(n_classes=3)
    probe = LogisticProbe().fit(X, y)
    direction = probe.direction_tensor()
    assert (direction.dtype, direction.shape) == (torch.float32, (3, 12))
    direction.zero_()
    double = probe.direction_tensor(torch.float64)
    double.zero_()
    assert probe.direction.any()
    assert RidgeRegressionProbe().fit(X, X[:, 0]).direction_tensor().shape == (12,)


def test_weights_that_do_not_fit_the_type_are_refused():
    X, y = problem()
    probe = LogisticProbe().fit((X / np.abs(X).max() * 1e-40).astype(np.float32), y)
    with pytest.raises(DataError, match=r"infinite in torch\.float32; take dtype=torch\.float64"):
        probe.direction_tensor()
    assert probe.direction_tensor(torch.float64).isfinite().all()


def test_types_and_devices_of_a_direction_are_torchs_or_refused_in_words():
    probe = RidgeProbe().fit(*problem())
    for name in ("bfloat16", "bf16", "float16", "torch.float16", "float64", "fp32"):
        wanted = {"bf16": "bfloat16", "fp32": "float32"}.get(name, name.removeprefix("torch."))
        assert probe.direction_tensor(name).dtype == getattr(torch, wanted)
    given: list[tuple[Any, str]] = [(torch.int64, "int64"), ("int8", "int8"), ("float", "float32"), (None, "None")]
    for dtype, named in given:
        with pytest.raises(UsageError, match=rf"dtype is a floating-point type, got .*{named}"):
            probe.direction_tensor(dtype)
    for device in ("cuda:99", "gpu", "meta"):
        with pytest.raises(UsageError, match=rf"device '{device}' cannot be used here .*; give auto, cpu"):
            probe.direction_tensor(device=device)


@pytest.mark.parametrize(
    ("probe", "name"),
    [(EstimatorClassifier(KNeighborsClassifier()), "KNeighborsClassifier"), (MLPProbe(max_epochs=1), "MLPProbe")],
)
def test_a_probe_that_is_not_linear_says_that_it_has_no_direction(probe, name):
    X, y = problem()
    probe.fit(X, y)
    assert not hasattr(probe, "direction")
    for ask in (lambda: probe.direction, probe.direction_tensor):
        with pytest.raises(UsageError, match=rf"direction is that of linear weights, and .*{name}.* has none; train"):
            ask()


X, Y = problem()
MAKE = [
    LogisticProbe,
    RidgeRegressionProbe,
    lambda: EstimatorClassifier(KNeighborsClassifier()),
    lambda: EstimatorRegressor(KNeighborsRegressor()),
]
with_nan = X[:4].copy()
with_nan[2, 5] = np.nan
GIVEN = [
    (X[0], r"expected activations \[rows, 12\], as {name} was fitted to, got \[12\]\. Reshape .*X\[None\]"),
    (torch.from_numpy(X[0]), r"got \[12\]\. Reshape your data: X\[None\] is one row"),
    (X[0].tolist(), r"got \[12\]\. Reshape your data"),
    (X[None], r"got \[1, {n}, 12\]\. Reshape your data: X\.reshape\(-1, 12\)"),
    (X[:3, :5], r"got \[3, 5\]: X has 5 features, but {name} is expecting 12 features as input; give activations of"),
    (with_nan, r"expected finite activations, got NaN or inf in row 2 \(1 of 4 rows\); leave these rows out"),
    (torch.full((2, 12), torch.inf, dtype=torch.float16), r"got NaN or inf in row 0 \(2 of 2 rows\)"),
]


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize(("given", "message"), GIVEN, ids=range(len(GIVEN)))
def test_activations_that_do_not_fit_are_refused_in_words(make, given, message):
    probe = make().fit(X, Y)
    wanted = message.format(name=type(probe).__name__, n=len(X))
    for answer in ("predict", "predict_labels", "decision_function"):
        if hasattr(probe, answer):
            with pytest.raises(DataError, match=wanted):
                getattr(probe, answer)(given)


def test_what_scikit_learn_says_best_stays_as_it_is():
    frame = pd.DataFrame(X, columns=[f"f{i}" for i in range(12)])
    probe = EstimatorClassifier(KNeighborsClassifier()).fit(frame, Y)
    with pytest.raises(ValueError, match="feature names should match"):
        probe.predict(frame.rename(columns={"f3": "g"}))
    for given in ([[1.0, 2.0], [3.0]], [["a"] * 12], np.empty((0, 12))):
        with pytest.raises(ValueError, match=r"."):
            LogisticProbe().fit(X, Y).predict(given)
