"""A shift over the values of a column: a matrix that equals transfer between the same rows as tasks of their own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probekit.activations.activations import ActivationSet
from probekit.errors import DataError, UsageError
from probekit.evaluation import TransferResults, transfer
from probekit.evaluation.surface.shift import ALL_OTHERS
from probekit.plots import save_transfer_plot
from probekit.tasks.base import Task
from probekit.verbs.train_probes import train_probes

N, D = 720, 6
RNG = np.random.default_rng(5)
SPLITS = np.array(["train", "train", "validation", "test"])[np.arange(N) % 4]
DOMAIN = np.array(["a", "b", "<c>"], dtype=object)[RNG.integers(3, size=N)]
LABELS = RNG.integers(2, size=N)


def task_of(*fields: Any, **named: Any) -> Task:
    """A task from lists and arrays, which it takes in place of its own types."""
    return Task(*fields, **named)


def acts_of(columns: dict[str, Any] | None = None, labels: np.ndarray = LABELS, **changes: Any) -> ActivationSet:
    """The label is along one direction in a and b, and along the reverse of it in c."""
    sign = np.where(DOMAIN == "<c>", -1, 1)
    X = RNG.normal(size=(N, D)) + 5 * ((labels % 2 - 0.5) * sign)[:, None] * np.eye(D)[0]
    task = task_of(
        "t",
        [f"text {i}" for i in range(N)],
        labels,
        splits=SPLITS,
        columns=columns or {"domain": DOMAIN.tolist()},
        **changes,
    )
    x = torch.from_numpy(X.astype(np.float32))
    return ActivationSet({("resid_pre", 0): x, ("resid_pre", 1): torch.from_numpy(RNG.normal(size=(N, D)))}, task)


def shifted(acts: ActivationSet, column: str = "domain", **how: Any) -> TransferResults:
    results: Any = train_probes(acts, shift_column=column, **how)
    assert isinstance(results, TransferResults)
    return results


def subset(acts: ActivationSet, rows: np.ndarray, name: str) -> ActivationSet:
    task = acts.task.subset(rows)
    own = {place: acts[place][torch.from_numpy(np.flatnonzero(rows))] for place in acts}
    return ActivationSet(
        own,
        task_of(name, task.inputs, task.labels, task.label_names, task.splits, task.target, ids=task.ids),
        {**acts.meta, "task": name},
    )


def test_the_matrix_is_that_of_transfer_between_the_rows_as_tasks():
    acts = acts_of()
    found = shifted(acts, C=(0.01, 1.0))
    by_hand = transfer([subset(acts, np.asarray(one == DOMAIN), one) for one in found.tasks], C=(0.01, 1.0))
    np.testing.assert_allclose(found.matrix[:3], by_hand.matrix, atol=1e-12)
    for row, other in zip(found.chosen[:3], by_hand.chosen, strict=True):
        for one, two in zip(row, other, strict=True):
            assert (one.place, one.C) == (two.place, two.C)
            np.testing.assert_allclose(one.intervals["accuracy"], two.intervals["accuracy"], atol=1e-12)


def test_the_last_row_is_trained_on_all_other_values():
    acts = acts_of()
    found = shifted(acts, layers=[0], C=1.0)
    assert found.rows == [*found.tasks, ALL_OTHERS]
    for j, value in enumerate(found.tasks):
        rest = subset(acts, np.asarray(value != DOMAIN), "rest")
        own = subset(acts, np.asarray(value == DOMAIN), value)
        expected = transfer([rest, own], layers=[0], C=1.0).matrix[0, 1]
        assert found.matrix[3, j] == pytest.approx(expected)


def test_a_direction_that_is_reversed_in_one_domain_is_found_out():
    found = shifted(acts_of(), layers=[0])
    at = {name: i for i, name in enumerate(found.tasks)}
    assert found.matrix[at["a"], at["b"]] > 0.85
    assert found.matrix[at["a"], at["<c>"]] < 0.15
    assert found.matrix[at["<c>"], at["<c>"]] > 0.85
    shift = found.meta["shift"]
    assert shift["change"] == pytest.approx(shift["others"] - shift["same"])
    low, high = shift["interval"]
    assert low < shift["change"] < high < 0
    np.testing.assert_allclose(shift["same"], np.diag(found.matrix[:3]).mean())
    np.testing.assert_allclose(shift["others"], found.matrix[3].mean())


def test_a_column_that_says_nothing_costs_nothing():
    acts = acts_of({"coin": RNG.integers(2, size=N).tolist()})
    found = shifted(acts, "coin", layers=[0])
    assert found.rows == found.tasks == ["0", "1"] or found.rows == found.tasks == ["1", "0"]
    low, high = found.meta["shift"]["interval"]
    assert low <= 0 <= high


def test_rare_values_values_of_one_class_and_missing_ones_are_left_out_and_named():
    domain = DOMAIN.copy()
    domain[LABELS == 1] = np.where(domain[LABELS == 1] == "b", "a", domain[LABELS == 1])  # b has one class
    domain[:3] = "rare"
    domain[3:40] = None
    found = shifted(acts_of({"domain": domain.tolist()}), layers=[0])
    assert sorted(found.tasks) == ["<c>", "a"]
    assert set(found.meta["shift"]["left_out"]) == {"b", "rare"}
    assert any("'b' (fewer than 10 rows of each class in train and in test)" in note for note in found.meta["notes"])


def test_a_value_of_test_alone_is_tested_and_not_trained():
    splits = np.where((DOMAIN == "b") & (SPLITS != "test"), "test", SPLITS)
    acts = acts_of()
    acts.task = task_of("t", acts.task.inputs, LABELS, splits=splits, columns=acts.task.columns)
    found = shifted(acts, layers=[0])
    assert "b" in found.tasks
    assert "b" not in found.rows
    assert any("Tested but not trained on, because of too few rows: 'b'." in note for note in found.meta["notes"])
    assert found.matrix.shape == (3, 3)


def test_a_shift_without_a_value_on_both_sides_has_no_change_and_is_loaded_again(tmp_path: Path):
    domain = np.where(SPLITS == "test", "new", "old")
    found = shifted(acts_of({"domain": domain.tolist()}), layers=[0], C=1.0)
    assert (found.rows, found.tasks) == (["old"], ["new"])
    loaded = TransferResults.load(found.save(tmp_path / "r"))
    assert loaded.meta["shift"] == found.meta["shift"]
    assert [loaded.meta["shift"][name] for name in ("same", "others", "change", "interval")] == [None] * 4
    assert "Mean over the tested values" not in loaded.summary()
    assert "shift" not in set(loaded.to_frame()["kind"])
    save_transfer_plot(loaded, tmp_path)


def test_numbers_are_cut_at_the_quartiles_of_train_in_order():
    sizes = RNG.normal(size=N).round(2)
    found = shifted(acts_of({"size": sizes.tolist()}), "size", layers=[0], C=1.0)
    assert [name.split()[0] for name in found.tasks] == ["up", "over", "over", "over"]
    train = SPLITS == "train"
    first = float(found.tasks[0].removeprefix("up to "))
    assert (sizes[train] <= first).mean() == pytest.approx(0.25, abs=0.02)
    words = ["w " * (1 + i % 40) for i in range(N)]
    acts = acts_of()
    acts.task = task_of("t", words, LABELS, splits=SPLITS)
    assert len(shifted(acts, "length", layers=[0], C=1.0).tasks) == 4


def test_a_regression_is_shifted_by_r2():
    numbers = LABELS + 0.1 * RNG.normal(size=N)
    acts = acts_of()
    acts.task = task_of("t", acts.task.inputs, numbers, {}, SPLITS, columns=acts.task.columns)
    found = shifted(acts, layers=[0])
    assert found.headline == "r2"
    assert found.meta["shift"]["change"] < -0.5


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"folds": 3}, "folds"),
        ({"by": "position"}, "by"),
        ({"nuisance": "domain"}, "nuisance"),
        ({"controls": 2}, "controls"),
        ({"log_to": "wandb"}, "log_to"),
        ({"probe": "attention"}, "attention"),
        ({"shift_column": "nowhere"}, "no column 'nowhere'"),
        ({"shift_column": "label"}, "is the label"),
    ],
)
def test_what_does_not_go_with_a_shift_is_refused_in_one_line(how: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=message) as error:
        train_probes(acts_of(), **{"shift_column": "domain", **how})
    assert "\n" not in str(error.value)


def test_a_column_of_one_value_is_refused():
    with pytest.raises(DataError, match=r"needs two values of 'one'.*it has 'x' 720"):
        shifted(acts_of({"one": ["x"] * N}), "one")


def test_it_is_saved_told_and_drawn(tmp_path: Path):
    found = shifted(acts_of(), layers=[0], C=1.0)
    loaded = TransferResults.load(found.save(tmp_path / "r"))
    np.testing.assert_array_equal(loaded.matrix, found.matrix)
    assert loaded.rows == found.rows
    text = found.summary()
    assert text.startswith("Shift over 'domain' in unnamed")
    assert "all others" in text
    assert "Mean over the tested values: trained on the same value" in text
    assert "paired on test" in text
    assert set(found.to_frame()["train_task"].dropna()) == {*found.rows}
    save_transfer_plot(loaded, tmp_path)
    svg = (tmp_path / "transfer.svg").read_text()
    assert "shift over domain" in svg
    assert "<c>" not in svg


def test_leaks_can_be_dropped():
    acts = acts_of()
    inputs = list(acts.task.inputs)
    inputs[0], inputs[4] = inputs[3], inputs[7]
    acts.task = task_of("t", inputs, LABELS, splits=SPLITS, columns=acts.task.columns)
    assert shifted(acts, layers=[0], drop_leaks=True).meta["n"]["train"] == (SPLITS == "train").sum() - 2
