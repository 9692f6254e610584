"""Nuisance columns: what they give alone, and probes on activations without them, against scikit-learn and numpy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression

from probekit.activations.activations import ActivationSet
from probekit.errors import DataError, UsageError
from probekit.evaluation import ProbeResults
from probekit.evaluation.fits.protocol import split_protocol
from probekit.evaluation.results.surface_note import short_nuisance_text
from probekit.evaluation.surface.columns import nuisance_columns
from probekit.evaluation.surface.residual import Residualised
from probekit.plots import save_plot
from probekit.selections import ALL
from probekit.tasks.base import Task
from probekit.verbs.train_probes import train_probes

N, D = 400, 6
RNG = np.random.default_rng(3)
SPLITS = np.array(["train", "train", "validation", "test"])[np.arange(N) % 4]
TRAIN, TEST = np.flatnonzero(SPLITS == "train"), np.flatnonzero(SPLITS == "test")
PROTOCOL = split_protocol(SPLITS, np.ones(N, dtype=bool))
MASKS = PROTOCOL.masks
SOURCE = RNG.choice(["web", "book", "<b>news</b>"], size=N)
SIZE = RNG.normal(size=N)
LABELS = RNG.integers(2, size=N)
QUICK: dict[str, Any] = {"quick": True, "baselines": False}
PLACE = ("resid_pre", 0)


def task_of(*fields: Any, **named: Any) -> Task:
    """A task from lists and arrays, which it takes in place of its own types."""
    return Task(*fields, **named)


def acts_of(X: np.ndarray, labels: Any = LABELS, **changes: Any) -> ActivationSet:
    columns: dict[str, Any] = {"source": SOURCE.tolist(), "size": SIZE.tolist()}
    fields: dict[str, Any] = {"columns": columns, **changes}
    task = task_of("t", [f"text {i}" for i in range(N)], labels, splits=SPLITS, **fields)
    x = torch.from_numpy(np.asarray(X, dtype=np.float32))
    return ActivationSet({PLACE: x, ("resid_pre", 1): torch.roll(x, 1, dims=1)}, task)


def columns_of(acts: ActivationSet, *names: str) -> np.ndarray:
    return nuisance_columns(acts, names, acts.task.target, PROTOCOL).features


def mixed(labels: np.ndarray = LABELS, strength: float = 0.0) -> np.ndarray:
    """Activations that hold source and size, and the label along one direction of its own."""
    X = RNG.normal(size=(N, D)) + 3 * SIZE[:, None] * np.arange(1, D + 1) + 1000
    X[:, 0] += 5 * (SOURCE == "web")
    X[:, 2] += strength * labels
    return X


def test_nothing_of_the_columns_is_left_on_train():
    acts = acts_of(mixed())
    Z = columns_of(acts, "source", "size")
    left = Residualised(acts, Z, MASKS)[PLACE].double().numpy()
    assert np.abs(left[TRAIN].mean(axis=0)).max() < 1e-6
    correlations = (left[TRAIN] / left[TRAIN].std(axis=0)).T @ Z[TRAIN] / len(TRAIN)
    assert np.abs(correlations).max() < 1e-6


def test_the_rest_is_that_of_a_linear_regression():
    acts = acts_of(mixed())
    design = np.stack([SIZE, *(one == SOURCE for one in np.unique(SOURCE))], axis=1)
    given = acts[PLACE].double().numpy()
    expected = given - LinearRegression().fit(design[TRAIN], given[TRAIN]).predict(design)
    left = Residualised(acts, columns_of(acts, "source", "size"), MASKS)[PLACE].numpy()
    np.testing.assert_allclose(left, expected, atol=2e-5)


def test_test_rows_change_nothing():
    X = mixed()
    other = X.copy()
    other[TEST] = 0
    one, two = (Residualised(acts_of(x), columns_of(acts_of(x), "size"), MASKS)[PLACE] for x in (X, other))
    np.testing.assert_array_equal(one[TRAIN], two[TRAIN])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_activations_of_the_columns_alone_become_zero_not_rounding(dtype: torch.dtype):
    acts = acts_of(np.zeros((N, D)))
    Z = columns_of(acts, "source", "size")
    x = torch.from_numpy(Z @ RNG.normal(size=(Z.shape[1], D)) + 7).to(dtype)
    own = ActivationSet({PLACE: x}, acts.task)
    if dtype != torch.float16:
        assert (Residualised(own, Z, MASKS)[PLACE] == 0).all()
    else:
        assert (Residualised(own, Z, MASKS)[PLACE] == 0).float().mean() > 0.5


def test_a_label_that_is_a_column_falls_to_chance():
    labels = (SIZE > 0).astype(int)
    design = np.concatenate([20 * np.eye(2)[labels], RNG.normal(size=(N, D - 2))], axis=1) @ RNG.normal(size=(D, D))
    acts = acts_of(design, labels, columns={"copy": [f"class {y}" for y in labels]})
    results = train_probes(acts, nuisance="copy", **QUICK)
    best = results.best
    (alone,) = results.baselines
    assert (alone.name, alone.metrics["test"]["accuracy"], best.metrics["test"]["accuracy"]) == ("nuisance", 1, 1)
    for layer in results.residual:
        assert abs(layer.metrics["test"]["accuracy"] - 0.5) < 0.15
    record = results.meta["nuisance"]
    assert record["changes"][0]["interval"][1] < -0.3
    assert record["alone"]["value"] == 1
    assert results.meta["lead"]["baseline"] == "nuisance"
    assert results.meta["lead"]["over"] == 0


def test_a_column_without_the_label_changes_nothing_beyond_the_interval():
    acts = acts_of(mixed(strength=3.0))
    results = train_probes(acts, nuisance=["source"], **QUICK)
    for change in results.meta["nuisance"]["changes"]:
        low, high = change["interval"]
        assert low <= 0 <= high
        assert low <= change["change"] <= high


def test_the_alone_model_is_that_of_scikit_learn():
    labels = ((SOURCE == "web") ^ (RNG.random(N) < 0.2)).astype(int)
    acts = acts_of(mixed(), labels)
    (alone,) = train_probes(acts, nuisance="source,size", **QUICK).baselines
    Z = columns_of(acts, "source", "size")
    model = LogisticRegression(C=alone.C, tol=1e-9, max_iter=1000).fit(Z[TRAIN], labels[TRAIN])
    assert alone.metrics["test"]["accuracy"] == pytest.approx(model.score(Z[TEST], labels[TEST]))
    low, high = alone.intervals["accuracy"]
    assert low < alone.metrics["test"]["accuracy"] < high


def test_the_residual_curve_is_that_of_residualised_activations():
    """Made by hand and given to `train_probes` as activations, with their control tasks."""
    acts = acts_of(mixed(strength=2.0))
    Z = columns_of(acts, "size")
    own = Residualised(acts, Z, MASKS)
    by_hand = ActivationSet({place: own[place] for place in acts}, acts.task)
    how: dict[str, Any] = {"controls": 2, "codelength": False, "baselines": False}
    expected = train_probes(by_hand, **how)
    found = train_probes(acts, nuisance="size", **how)
    for one, other in zip(found.residual, expected.layers, strict=True):
        assert (one.metrics, one.intervals, one.control, one.selectivity) == (
            (other.metrics, other.intervals, other.control, other.selectivity)
        )


def test_missing_values_are_a_category_and_the_mean():
    source = [None if i % 5 == 0 else one for i, one in enumerate(SOURCE.tolist())]
    size = [None if i % 7 == 0 else one for i, one in enumerate(SIZE.tolist())]
    acts = acts_of(mixed(), columns={"source": source, "size": size})
    Z = nuisance_columns(acts, ["source", "size"], "label", PROTOCOL)
    assert Z.sizes == {"source": 4, "size": 2}  # three names and the missing one; the size, and where it is missing
    assert np.isfinite(Z.features).all()
    np.testing.assert_allclose(Z.features[TRAIN].mean(axis=0), 0, atol=1e-12)


def test_few_numbers_are_categories():
    acts = acts_of(mixed(), columns={"n": (np.arange(N) // 4 % 4).tolist()})
    assert nuisance_columns(acts, ["n"], "label", PROTOCOL).sizes == {"n": 4}


@pytest.mark.parametrize("unit", [1e-200, 1e-15, 1e9, 1e200])
def test_the_unit_of_a_column_does_not_matter(unit: float):
    acts = acts_of(np.zeros((N, D)), columns={"size": SIZE.tolist(), "other": (unit * SIZE).tolist()})
    np.testing.assert_allclose(columns_of(acts, "other"), columns_of(acts, "size"), rtol=1e-9)


def test_a_column_that_repeats_another_up_to_float32_changes_nothing():
    """In test rows it differs by more, which an ill-conditioned fit would multiply."""
    copy = SIZE.astype(np.float32).astype(float)
    copy[TEST] += RNG.normal(size=len(TEST))
    acts = acts_of(mixed(), columns={"size": SIZE.tolist(), "copy": copy.tolist()})
    one, two = (Residualised(acts, columns_of(acts, *names), MASKS) for names in (["size"], ["size", "copy"]))
    np.testing.assert_allclose(one[PLACE][TRAIN], two[PLACE][TRAIN], atol=1e-4)
    assert np.abs(two[PLACE].numpy()).max() < 5 * np.abs(one[PLACE].numpy()).max()


def test_a_category_that_train_lacks_has_the_mean_of_train():
    source = np.array(["a", "a", "a", "b"])[np.arange(N) // 4 % 4].astype(object)
    source[TEST[0]] = "new"
    acts = acts_of(mixed(), columns={"source": source.tolist()})
    Z = columns_of(acts, "source")
    np.testing.assert_allclose(Z[TEST[0]], 0, atol=1e-12)
    given = acts[PLACE].double().numpy()
    left = Residualised(acts, Z, MASKS)[PLACE].numpy()
    np.testing.assert_allclose(left[TEST[0]], given[TEST[0]] - given[TRAIN].mean(axis=0), atol=1e-3)


@pytest.mark.parametrize("cells", [["x"] * N, [None] * N, [2.5] * N])
def test_a_column_of_one_value_is_refused(cells: list[Any]):
    acts = acts_of(mixed(), columns={"one": cells, "source": SOURCE.tolist()})
    with pytest.raises(DataError, match="'one' has one value in all 200 training rows"):
        train_probes(acts, nuisance="source,one", **QUICK)


def test_nearly_as_many_columns_as_training_rows_are_refused():
    columns = {name: [f"c{k}" for k in RNG.integers(80, size=N)] for name in ("a", "b")}
    with pytest.raises(DataError, match="independent columns for 200 training rows"):
        train_probes(acts_of(mixed(), columns=columns), nuisance="a,b", **QUICK)


def test_another_label_set_is_a_nuisance():
    other = RNG.integers(2, size=N)
    labels = {"label": LABELS, "other": other}
    acts = acts_of(mixed(), labels, label_names={"label": ["a", "b"], "other": ["c", "d"]}, target="label")
    assert nuisance_columns(acts, ["other"], "label", PROTOCOL).sizes == {"other": 2}


def test_lengths_are_of_the_texts():
    inputs = ["w " * (1 + i % 9) for i in range(N)]
    labels = (np.arange(N) % 9 > 4).astype(int)
    acts = acts_of(mixed(), labels)
    acts.task = task_of("t", inputs, labels, splits=SPLITS)
    (alone,) = train_probes(acts, nuisance="length", **QUICK).baselines
    assert alone.metrics["test"]["accuracy"] == 1


def test_a_regression_and_several_classes_and_several_points():
    numbers = 2 * SIZE + RNG.normal(size=N)
    results = train_probes(acts_of(mixed(), numbers, label_names={}), nuisance="size", **QUICK)
    assert results.headline == "r2"
    assert results.best.metrics["test"]["r2"] > 0.6
    assert all(layer.metrics["test"]["r2"] < 0.1 for layer in results.residual)
    three = np.argmax([one == SOURCE for one in np.unique(SOURCE)], axis=0)
    curves = train_probes(acts_of(mixed(), three), points=["resid_pre"], nuisance="source", **QUICK)
    assert all(len(curve.residual) == 2 for curve in curves.values())


def test_a_text_shares_its_columns_with_each_of_its_tokens():
    lengths = [2 + i % 3 for i in range(N)]
    ids = [[i % 11, *range(n - 1)] for i, n in enumerate(lengths)]
    total = sum(lengths)
    task = task_of("ids", ids, LABELS, splits=SPLITS, columns={"source": SOURCE.tolist()})
    from probekit.activations.layout import Layout

    X = torch.from_numpy(RNG.normal(size=(total, D)).astype(np.float32))
    acts = ActivationSet({PLACE: X}, task, layout=Layout([ALL], np.array(lengths), 0))
    results = train_probes(acts, position="all", nuisance="source,position,tokens", **QUICK)
    assert results.meta["nuisance"]["sizes"]["position"] == 2
    assert results.residual[0].metrics["test"]["accuracy"] > 0


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("sorce", r"no column 'sorce'.*did you mean 'source'.*--keep-columns.*probekit label"),
        ("label", "is the label"),
        ("many", "at most 100"),
        ("position", "not known where"),
        ("", "different names"),
    ],
)
def test_what_cannot_be_a_nuisance_is_refused_in_one_line(names: str, message: str):
    acts = acts_of(mixed(), columns={"source": SOURCE.tolist(), "many": [f"id {i}" for i in range(N)]})
    with pytest.raises(UsageError, match=message) as error:
        train_probes(acts, nuisance=names, **QUICK)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("how", [{"by": "position"}, {"aggregate": "mean"}, {"probe": "attention"}])
def test_what_does_not_go_with_it_is_refused(how: dict[str, Any]):
    with pytest.raises(UsageError, match="nuisance"):
        train_probes(acts_of(mixed()), nuisance="source", **how)


def test_lengths_need_texts():
    acts = acts_of(mixed(), info={"no_texts": True})
    with pytest.raises(DataError, match="no texts"):
        train_probes(acts, nuisance="length", **QUICK)


def test_results_come_back_with_the_residual_curve_and_say_it_in_one_line(tmp_path: Path):
    results = train_probes(acts_of(mixed(strength=2.0)), nuisance="source,size", **QUICK)
    loaded = ProbeResults.load(results.save(tmp_path / "r"))
    assert loaded.residual == results.residual
    (line,) = [line for line in results.summary().split("\n") if line.startswith("Nuisance 'source', 'size': alone")]
    change = results.meta["nuisance"]["changes"][0]["change"]
    assert "regressed out" in line
    assert "paired on test" in line
    assert "residualised" in results.summary()
    frame = results.to_frame()
    assert {"residual", "change without nuisance"} <= set(frame["kind"])
    assert frame[frame["kind"] == "change without nuisance"]["value"].iloc[0] == change
    save_plot(loaded, tmp_path)
    svg = (tmp_path / "accuracy_by_layer.svg").read_text()
    assert ": alone" in svg
    text, layer = short_nuisance_text(loaded), results.layers.index(results.best)
    low, high = results.meta["nuisance"]["changes"][layer]["interval"]
    assert text.endswith(
        f"residualised, {results.best.place} changes by {change_of(results):+z.2f} [{low:+z.2f}, {high:+z.2f}]"
    )


def change_of(results: ProbeResults) -> float:
    """The score without the columns minus the score with them, at the selected layer."""
    at = results.layers.index(results.best)
    one, other = (layers[at].metrics["test"]["accuracy"] for layers in (results.layers, results.residual))
    return other - one
