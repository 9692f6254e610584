"""What is composed equals its parts: a slice of a grid of several curves is the same curve asked for alone.

By position or head with folds, several label sets, points and probes, and random weights; a shift of several points;
nuisances with folds.
"""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import StratifiedKFold

from probekit.activations.activations import ActivationSet
from probekit.activations.layout import Layout
from probekit.errors import DataError, UsageError
from probekit.evaluation import HeadResults, PositionResults, ProbeGrids, ProbeResults, TransferResults
from probekit.plots import save_grids_plot, save_positions_plot
from probekit.points import Place
from probekit.report.build import write_report
from probekit.selections import Selection
from probekit.tasks.base import Task
from probekit.verbs.train_probes import train_probes

N, H, K = 180, 3, 4
RNG = np.random.default_rng(11)
LABEL, OTHER = RNG.integers(2, size=N), RNG.integers(3, size=N)
SOURCE = np.array(["a", "b", "c"], dtype=object)[RNG.integers(3, size=N)]
SIZE = RNG.normal(size=N)
LENGTHS = np.arange(N) % 3 + 2
SPLITS = np.array(["train", "train", "validation", "test"])[np.arange(N) % 4]
HOW: dict[str, Any] = {"C": (0.1, 1.0), "quick": True, "least_texts": 1}
FOLDS = 3
SKLEARN = LogisticRegression(C=0.5, max_iter=1000)


def task_of(**changes: Any) -> Task:
    given: dict[str, Any] = {
        "name": "draws",
        "inputs": [f"text {i}" for i in range(N)],
        "labels": {"two": LABEL, "three": OTHER},
        "label_names": {"two": ["no", "yes"], "three": ["x", "y", "z"]},
        "splits": SPLITS,
        "target": "two",
        "columns": {"source": SOURCE.tolist(), "size": SIZE.tolist()},
    }
    return Task(**given | changes)


def values(rows: int, seed: int, text: np.ndarray, strength: float) -> torch.Tensor:
    """Noise with the label along the first number, more of it in later layers."""
    x = np.random.default_rng(seed).normal(size=(rows, H * K))
    x[:, 0] += strength * (LABEL[text] - 0.5)
    x[:, 5] += strength * (OTHER[text] == 1)
    return torch.from_numpy(x.astype(np.float32))


def acts_of(is_noise: bool = False, **changes: Any) -> ActivationSet:
    """One token of each text: two points, two layers."""
    every, start = np.arange(N), 100 * is_noise
    tensors = {
        Place(point, layer): values(N, start + 10 * k + layer, every, 0 if is_noise else 1.5 * layer)
        for k, point in enumerate(("z", "resid_pre"))
        for layer in (0, 1)
    }
    meta = {"model": "noise", "task": "draws", "points": ["z", "resid_pre"], "n_layers": 2, "config": {"n_heads": H}}
    return ActivationSet(tensors, task_of(**changes), meta, Layout([Selection("last")], np.ones(N, dtype=np.int64), 0))


def tokens_of(is_noise: bool = False) -> ActivationSet:
    """All tokens of texts of 2 to 4 tokens: one point, two layers."""
    text = np.repeat(np.arange(N), LENGTHS)
    tensors = {
        Place("resid_pre", layer): values(len(text), 200 + 100 * is_noise + layer, text, 0 if is_noise else 2.0)
        for layer in (0, 1)
    }
    inputs = [[100 * i + j + 1 for j in range(n)] for i, n in enumerate(LENGTHS)]
    task = task_of(inputs=inputs, columns={})
    meta = {"model": "noise", "task": "draws", "points": ["resid_pre"], "n_layers": 2}
    return ActivationSet(tensors, task, meta, Layout([Selection("all")], LENGTHS, 0))


def only(acts: ActivationSet, heads: tuple[int, ...] = (), position: int | None = None) -> ActivationSet:
    """One head of z, or one position, by indexing."""
    tensors = {place: acts[place] for place in acts if place.point == ("resid_pre" if position is not None else "z")}
    if heads:
        tensors = {place: x[:, heads[0] * K : (heads[0] + 1) * K].clone() for place, x in tensors.items()}
    if position is not None:
        starts = np.cumsum(LENGTHS) - LENGTHS
        tensors = {place: x[torch.from_numpy(starts + position)] for place, x in tensors.items()}
    return ActivationSet(tensors, acts.task, acts.meta, Layout([Selection("last")], np.ones(N, dtype=np.int64), 0))


def assert_same(one: Any, other: Any) -> None:
    """The same numbers in two results of one kind."""
    mine, theirs = one.to_frame(), other.to_frame()
    assert mine.drop(columns=["value", "low", "high"]).equals(theirs.drop(columns=["value", "low", "high"]))
    for name in ("value", "low", "high"):
        np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-9, atol=1e-12)


def assert_same_layers(one: Any, other: Any) -> None:
    for mine, theirs in zip(one, other, strict=True):
        assert (mine.point, mine.layer, mine.C, mine.metrics) == (theirs.point, theirs.layer, theirs.C, theirs.metrics)
        assert mine.intervals == theirs.intervals


CURVES = list(product(("two", "three"), ("z", "resid_pre"), ("logistic", "mean-diff")))
KINDS: list[tuple[dict[str, Any], type, list[str]]] = [
    ({"by": "head"}, HeadResults, ["z"]),
    ({"by": "position", "position": ["first", "last"]}, PositionResults, ["resid_pre"]),
    ({"shift_column": "source"}, TransferResults, ["z", "resid_pre"]),
    ({"by": "head", "folds": FOLDS}, HeadResults, ["z"]),
]


@pytest.mark.parametrize(("how", "kind", "points"), KINDS, ids=["head", "position", "shift", "folds of heads"])
def test_each_of_several_grids_is_the_grid_asked_for_alone(how, kind, points, tmp_path: Path) -> None:
    acts = tokens_of() if "position" in how else acts_of()
    several: Any = {"labels": ["two", "three"], "points": points, "probes": ["ridge", "mean-diff"]}
    common = {"quick": True, "least_texts": 1, **how}
    found: Any = train_probes(acts, C=1.0, **common, **several)
    assert isinstance(found, ProbeGrids)
    assert list(found) == list(product(["two", "three"], points, ["ridge", "mean-diff"]))
    for label, point, probe in found:
        C = {"C": 1.0} if probe == "ridge" else {}
        alone: Any = train_probes(acts, label=label, point=point, probe=probe, **C, **common)
        assert type(alone) is type(found[label, point, probe]) is kind
        assert_same(found[label, point, probe], alone)
    read = ProbeGrids.load(found.save(tmp_path / "grids"))
    assert read.to_frame().equals(found.to_frame())
    assert read.summary() == found.summary()
    assert sum(line.startswith(("two  ", "three  ")) for line in found.summary().splitlines()) == len(found)
    assert save_grids_plot([*found.values()], tmp_path / "grids").stat().st_size
    assert found.save(tmp_path / "grids")  # its own files, pictures included, are replaced
    page = write_report([tmp_path / "grids"], tmp_path / "page.html").read_text()
    assert page.count('role="img"') >= len(found)


def test_each_head_with_folds_is_the_curve_of_its_own_numbers_with_folds() -> None:
    acts = acts_of()
    found: Any = train_probes(acts, by="head", point="z", folds=FOLDS, **HOW)
    for head in range(H):
        own: Any = train_probes(only(acts, (head,)), folds=FOLDS, **HOW, baselines=False)
        assert_same_layers(found[head].layers, own.layers)
    assert found.meta["no_p_values"].startswith("with folds")


def test_the_procedure_of_a_grid_is_that_of_a_curve_whose_layers_are_its_cells() -> None:
    acts = acts_of()
    found: Any = train_probes(acts, by="head", point="z", folds=FOLDS, **HOW)
    cells = [(head, layer) for head in range(H) for layer in (0, 1)]
    tensors = {
        Place("resid_pre", i): acts[Place("z", layer)][:, head * K : (head + 1) * K].clone()
        for i, (head, layer) in enumerate(cells)
    }
    flat: Any = train_probes(ActivationSet(tensors, acts.task), folds=FOLDS, **HOW, baselines=False)
    assert found.procedure["metrics"] == pytest.approx(flat.procedure["metrics"])
    assert found.estimate[0] == pytest.approx(flat.estimate[0])
    assert found.estimate[1] == pytest.approx(flat.estimate[1])
    chosen = [cells[int(place.rpartition(".")[2])] for place in flat.procedure["layers"]]
    assert found.procedure["cells"] == [[str(head), f"z.{layer}"] for head, layer in chosen]


def test_positions_with_folds_are_fitted_and_tested_as_by_hand() -> None:
    """A text is in one fold at all its positions, and each position is fitted on the texts of the other folds."""
    acts = tokens_of()
    found: Any = train_probes(acts, by="position", probe=SKLEARN, folds=FOLDS, quick=True, least_texts=1)
    assert [one.position for one in found.positions] == ["0", "1", "2", "3"]
    folds = [test for _, test in StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(LABEL, LABEL)]
    starts = np.cumsum(LENGTHS) - LENGTHS
    for one, layer in product(found.positions, (0, 1)):
        index = int(one.position)
        has, x = np.flatnonzero(index < LENGTHS), acts[Place("resid_pre", layer)].numpy()
        right = 0
        for fold in folds:
            test, train = np.intersect1d(has, fold), np.setdiff1d(has, fold)
            fit = clone(SKLEARN).fit(x[starts[train] + index], LABEL[train])
            right += (fit.predict(x[starts[test] + index]) == LABEL[test]).sum()
        assert one.n == {"test": len(has)}
        assert one.layers[layer].metrics["test"]["accuracy"] == pytest.approx(right / len(has))


def test_the_procedure_over_positions_tests_each_text_once_where_its_fold_chose() -> None:
    found: Any = train_probes(tokens_of(), by="position", folds=FOLDS, **HOW)
    curves = {one.position: one for one in found.positions}
    assert len(found.procedure["cells"]) == FOLDS
    assert all(position in curves for position, _ in found.procedure["cells"])
    assert "of nested cross-validation: position, layer and C are selected inside each fold" in found.summary()
    frame = found.to_frame()
    assert frame[frame.kind == "procedure"].set_index("metric").value.to_dict() == pytest.approx(
        found.procedure["metrics"]
    )
    assert not frame.selected.any()


@pytest.mark.parametrize("how", [{"folds": FOLDS}, {}], ids=["folds", "splits"])
@pytest.mark.parametrize("by", ["head", "position"])
def test_random_weights_have_the_grid_that_they_have_alone(by: str, how: dict[str, Any], tmp_path: Path) -> None:
    make = acts_of if by == "head" else tokens_of
    acts, noise = make(), make(is_noise=True)
    more: dict[str, Any] = {"by": by, **HOW, **how}
    found: Any = train_probes(acts, random_init=noise, **more)
    trained: Any = train_probes(acts, **more)
    alone: Any = train_probes(noise, **more)
    for one, other, own in zip(found.positions, trained.positions, alone.positions, strict=True):
        assert_same_layers(one.layers, other.layers)
        assert_same_layers(one.random_init, own.layers)
        assert all(layer.probe is None for layer in one.random_init)
    over = found.meta["over_random"]
    assert over["value"] + over["over"] == pytest.approx(found.estimate[0])
    assert over["interval"][0] > 0  # the label is in one and not in the other
    assert "Random weights in the " in found.summary()
    read = type(found).load(found.save(tmp_path / "grid"))
    assert read.to_frame().equals(found.to_frame())
    assert set(found.to_frame().kind) >= {"probe", "random-init"}
    assert save_positions_plot(found, tmp_path / "grid").exists()


def test_random_weights_of_other_examples_are_refused() -> None:
    with pytest.raises(UsageError, match="other examples"):
        train_probes(acts_of(), by="head", point="z", random_init=acts_of(splits=np.roll(SPLITS, 1)), **HOW)


def residual(x: np.ndarray, columns: np.ndarray, train: np.ndarray) -> np.ndarray:
    """What scikit-learn's least squares on the training rows leaves of all rows."""
    return x - LinearRegression().fit(columns[train], x[train]).predict(columns)


def test_nuisances_with_folds_are_regressed_out_inside_each_fold() -> None:
    acts = acts_of()
    found: Any = train_probes(
        acts, point="z", probe=SKLEARN, nuisance=["size", "source"], folds=FOLDS, quick=True, controls=0
    )
    one_hot = (SOURCE[:, None] == np.array(["a", "b", "c"], dtype=object)).astype(float)
    columns = np.column_stack([SIZE, one_hot])
    folds = [test for _, test in StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(LABEL, LABEL)]
    for layer in (0, 1):
        x, right = acts[Place("z", layer)].double().numpy(), 0
        for test in folds:
            train = np.setdiff1d(np.arange(N), test)
            left = residual(x, columns, train).astype(np.float32)
            right += (clone(SKLEARN).fit(left[train], LABEL[train]).predict(left[test]) == LABEL[test]).sum()
        assert found.residual[layer].metrics["test"]["accuracy"] == pytest.approx(right / N, abs=1.01 / N)
        change = found.meta["nuisance"]["changes"][layer]
        metrics = (found.residual[layer].metrics, found.layers[layer].metrics)
        assert change["change"] == pytest.approx(metrics[0]["test"]["accuracy"] - metrics[1]["test"]["accuracy"])
    assert isinstance(found, ProbeResults)
    assert "nuisance" in {baseline.name for baseline in found.baselines}


def test_a_label_that_is_its_nuisance_is_lost_with_folds() -> None:
    """Were the regression on all rows, test rows would tell something of their own columns."""
    acts = acts_of(columns={"copy": LABEL.astype(float).tolist()})
    found: Any = train_probes(acts, point="z", layers=[1], nuisance="copy", folds=FOLDS, quick=True)
    assert found.layers[0].metrics["test"]["accuracy"] > 0.7
    low, high = found.residual[0].intervals["accuracy"]
    assert low < 0.55
    assert high < 0.7


def test_a_position_that_lacks_a_class_in_a_fold_is_left_out_and_named() -> None:
    with pytest.raises(DataError, match="no position has 30 texts of each class in each split: at 0"):
        train_probes(tokens_of(), by="position", folds=FOLDS, quick=True, least_texts=30)
