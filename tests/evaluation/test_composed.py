"""What is composed equals its parts: a slice of a grid of several curves is the same curve asked for alone.

By position or head with folds, several label sets, points and probes, and random weights; a shift of several points;
nuisances with folds.
"""

from dataclasses import replace
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
from probekit.evaluation.by_position import train
from probekit.plots import save_grids_plot, save_positions_plot
from probekit.points import Place
from probekit.report.build import write_report
from probekit.scoring.find import find_results
from probekit.selections import Selection
from probekit.side_by_side import compare
from probekit.tasks.base import Task
from probekit.tasks.fields import UNLABELLED
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


def values(rows: int, seed: int, text: np.ndarray, strength: float, weak: float = 0) -> torch.Tensor:
    """Noise with the label along the first number, more of it in later layers; or a little of it in every head."""
    x = np.random.default_rng(seed).normal(size=(rows, H * K))
    if weak:
        x[:, ::K] += weak * (LABEL[text] - 0.5)[:, None]
        return torch.from_numpy(x.astype(np.float32))
    x[:, 0] += strength * (LABEL[text] - 0.5)
    x[:, 5] += strength * (OTHER[text] == 1)
    return torch.from_numpy(x.astype(np.float32))


def acts_of(is_noise: bool = False, weak: float = 0, **changes: Any) -> ActivationSet:
    """One token of each text: two points, two layers."""
    every, start = np.arange(N), 100 * is_noise
    tensors = {
        Place(point, layer): values(N, start + 10 * k + layer, every, 0 if is_noise else 1.5 * layer, weak)
        for k, point in enumerate(("z", "resid_pre"))
        for layer in (0, 1)
    }
    meta = {"model": "noise", "task": "draws", "points": ["z", "resid_pre"], "n_layers": 2, "config": {"n_heads": H}}
    return ActivationSet(tensors, task_of(**changes), meta, Layout([Selection("last")], np.ones(N, dtype=np.int64), 0))


def tokens_of(is_noise: bool = False, weak: float = 0) -> ActivationSet:
    """All tokens of texts of 2 to 4 tokens: one point, two layers."""
    text = np.repeat(np.arange(N), LENGTHS)
    tensors = {
        Place("resid_pre", layer): values(len(text), 200 + 100 * is_noise + layer, text, 0 if is_noise else 2.0, weak)
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


def fitted_by_hand(X: np.ndarray, y: np.ndarray) -> Any:
    probe: Any = clone(SKLEARN)
    return probe.fit(X, y)


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


def heads_as_layers(acts: ActivationSet) -> tuple[ActivationSet, list[tuple[int, int]]]:
    """The heads of z as layers of one curve, and the head and layer that each of them is."""
    cells = [(head, layer) for head in range(H) for layer in (0, 1)]
    tensors = {
        Place("resid_pre", i): acts[Place("z", layer)][:, head * K : (head + 1) * K].clone()
        for i, (head, layer) in enumerate(cells)
    }
    return ActivationSet(tensors, acts.task), cells


GROUPS = {"groups": np.arange(N) // 2, "weak": 0.25}


@pytest.mark.parametrize("changes", [{}, GROUPS], ids=["texts", "groups"])
def test_the_procedure_of_a_grid_is_that_of_a_curve_whose_layers_are_its_cells(changes: dict[str, Any]) -> None:
    """The label is so weak, and other cells so near, that the folds select different cells."""
    acts = acts_of(**{"weak": 0.4, **changes})
    found: Any = train_probes(acts, by="head", point="z", folds=4, C=1.0, quick=True)
    own, cells = heads_as_layers(acts)
    flat: Any = train_probes(own, folds=4, C=1.0, quick=True, baselines=False)
    assert len(set(flat.procedure["layers"])) > 1
    assert found.procedure["metrics"] == pytest.approx(flat.procedure["metrics"])
    assert found.estimate[0] == pytest.approx(flat.estimate[0])
    assert found.estimate[1] == pytest.approx(flat.estimate[1])
    chosen = [cells[int(place.rpartition(".")[2])] for place in flat.procedure["layers"]]
    assert found.procedure["cells"] == [[str(head), f"z.{layer}"] for head, layer in chosen]
    assert found.procedure["n"] == N


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
            fit = fitted_by_hand(x[starts[train] + index], LABEL[train])
            right += (fit.predict(x[starts[test] + index]) == LABEL[test]).sum()
        assert one.n == {"test": len(has)}
        assert one.layers[layer].metrics["test"]["accuracy"] == pytest.approx(right / len(has))


def test_the_procedure_over_positions_is_the_one_by_hand() -> None:
    """Each fold's own inner folds select position and layer, which predict the texts of the fold that have them."""
    acts = tokens_of(weak=0.4)
    found: Any = train_probes(acts, by="position", probe=SKLEARN, folds=FOLDS, quick=True, least_texts=1)
    folds = [test for _, test in StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(LABEL, LABEL)]
    starts = np.cumsum(LENGTHS) - LENGTHS

    def hits(index: int, layer: int, train: np.ndarray, test: np.ndarray) -> np.ndarray:
        x, has = acts[Place("resid_pre", layer)].numpy(), np.flatnonzero(index < LENGTHS)
        train, test = np.intersect1d(train, has), np.intersect1d(test, has)
        fit = fitted_by_hand(x[starts[train] + index], LABEL[train])
        return fit.predict(x[starts[test] + index]) == LABEL[test]

    cells, right, of, guessed = [], 0, 0, 0
    for test in folds:
        others = [fold for fold in folds if fold is not test]

        def inner(cell: tuple[int, int], others: list[np.ndarray] = others) -> tuple[float, int]:
            means = [hits(*cell, np.concatenate([o for o in others if o is not fold]), fold).mean() for fold in others]
            return round(float(np.mean(means)), 12), int((LENGTHS[np.concatenate(others)] > cell[0]).sum())

        keys = {cell: inner(cell) for cell in product(range(4), (0, 1))}
        best = max(keys, key=keys.__getitem__)
        assert sum(key == keys[best] for key in keys.values()) == 1  # no tie for the log loss to decide
        own = hits(*best, np.concatenate(others), test)
        cells.append([str(best[0]), f"resid_pre.{best[1]}"])
        right, of = right + own.sum(), of + len(own)
        fitted, tested = (LABEL[rows[LENGTHS[rows] > best[0]]] for rows in (np.concatenate(others), test))
        guessed += (tested == np.bincount(fitted).argmax()).sum()
    assert len({tuple(cell) for cell in cells}) > 1
    assert of < N  # some texts lack the positions that were selected
    assert found.procedure["cells"] == cells
    assert found.procedure["n"] == of
    assert found.estimate[0] == pytest.approx(right / of)
    assert found.procedure["chance"] == pytest.approx(guessed / of)
    frame = found.to_frame()
    assert set(frame[frame.kind == "procedure"].n) == {of}
    assert not frame.selected.any()
    assert f"tested on the {of} of {N} texts that have the selected positions" in found.summary()
    assert (found.estimate[1][0] <= guessed / of) == found.summary().startswith("Not above chance")


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
    assert over["value"] == pytest.approx(alone.estimate[0])  # of their own cell, as for curves
    assert over["interval"][0] > 0  # the label is in one and not in the other
    if by == "head":
        assert over["value"] + over["over"] == pytest.approx(found.estimate[0])
    assert "Random weights: test accuracy" in found.summary()
    read = type(found).load(found.save(tmp_path / "grid"))
    assert read.to_frame().equals(found.to_frame())
    assert set(found.to_frame().kind) >= {"probe", "random-init"}
    assert save_positions_plot(found, tmp_path / "grid").exists()


def test_random_weights_that_hold_the_label_elsewhere_are_said_to_be_ahead() -> None:
    """At the cell that the trained model selects they know nothing; validation selects another one for them."""
    acts, noise = acts_of(), acts_of(is_noise=True)
    place = Place("z", 0)
    x = noise[place].clone()
    x[:, K] += torch.from_numpy(8 * (LABEL - 0.5)).float()  # head 1
    tensors = {other: x if other == place else noise[other] for other in noise}
    found: Any = train_probes(
        acts, by="head", point="z", random_init=ActivationSet(tensors, noise.task, noise.meta, noise.layout), **HOW
    )
    assert found.best[0].position == "0"
    assert found.meta["over_random"]["cell"] == ["1", "z.0"]
    assert found.meta["over_random"]["over"] < 0


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
            right += (fitted_by_hand(left[train], LABEL[train]).predict(left[test]) == LABEL[test]).sum()
        assert found.residual[layer].metrics["test"]["accuracy"] == pytest.approx(right / N, abs=1.01 / N)
        change = found.meta["nuisance"]["changes"][layer]
        metrics = (found.residual[layer].metrics, found.layers[layer].metrics)
        assert change["change"] == pytest.approx(metrics[0]["test"]["accuracy"] - metrics[1]["test"]["accuracy"])
    assert isinstance(found, ProbeResults)
    assert f"the procedure goes from {found.estimate[0]:.3f} to " in found.summary()  # no place of the curve is quoted
    assert "nuisance" in {baseline.name for baseline in found.baselines}


def test_a_label_that_is_its_nuisance_is_lost_with_folds() -> None:
    acts = acts_of(columns={"copy": LABEL.astype(float).tolist()})
    found: Any = train_probes(acts, point="z", layers=[1], nuisance="copy", folds=FOLDS, quick=True)
    assert found.layers[0].metrics["test"]["accuracy"] > 0.7
    low, high = found.residual[0].intervals["accuracy"]
    assert low < 0.55
    assert high < 0.7


def test_a_position_that_lacks_a_class_in_a_fold_is_left_out_and_named() -> None:
    with pytest.raises(DataError, match="no position has 30 texts of each class in each fold: at 0"):
        train_probes(tokens_of(), by="position", folds=FOLDS, quick=True, least_texts=30)


def test_labels_of_tokens_numbers_and_groups_take_folds_too() -> None:
    """Groups stay in one fold at all positions, and are resampled together."""
    acts = tokens_of()
    token = [[(i + j) % 2 for j in range(n)] for i, n in enumerate(LENGTHS)]
    task = replace(
        acts.task,
        token_labels={"parity": token},
        labels={**acts.task.labels, "size": SIZE},
        label_names={**acts.task.label_names, "size": [], "parity": ["even", "odd"]},
        groups=np.arange(N) // 3,
    )
    acts = ActivationSet({place: acts[place] for place in acts}, task, acts.meta, acts.layout)
    for label in ("two", "size", "parity"):
        found: Any = train_probes(acts, by="position", label=label, folds=FOLDS, C=1.0, quick=True, least_texts=1)
        assert found.meta["interval"]["unit"] == "group"
        assert found.meta["test_groups"] <= N // 3
        assert found.procedure["n"] <= N
        assert found.meta["n"]["test"] == (LENGTHS.sum() if label == "parity" else N)


def test_several_grids_are_refused_before_any_of_them_is_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "fit_columns", lambda *_: pytest.fail("fitted"))
    with pytest.raises(UsageError, match="resid_pre has no heads"):
        train_probes(acts_of(), by="head", points=["z", "resid_pre"], quick=True)
    with pytest.raises(DataError, match="'three': no position has 15 texts of each class in each split"):
        train_probes(tokens_of(), by="position", labels=["two", "three"], least_texts=15, quick=True)


def test_all_points_by_head_are_those_with_heads_and_all_labels_of_a_shift_leave_its_column_out() -> None:
    acts = acts_of()
    heads: Any = train_probes(acts, by="head", points="all", **HOW)
    assert heads.points == ["z"]
    shifts: Any = train_probes(acts, shift_column="three", labels="all", point="z", **HOW)
    assert shifts.labels == ["two"]


def test_names_from_data_are_no_formulas_in_the_table_of_several_grids(tmp_path: Path) -> None:
    columns = {"source": np.where(SOURCE == "a", "=1+1", SOURCE).tolist()}
    found: Any = train_probes(acts_of(columns=columns), shift_column="source", points=["z"], layers=[0], **HOW)
    table = (found.save(tmp_path) / "results.csv").read_text()
    assert "'=1+1" in table
    assert ",=1+1" not in table
    with pytest.raises(DataError, match="holds several grids; give results of a curve"):
        find_results(tmp_path, None)
    with pytest.raises(UsageError, match=r"expected curves to compare; .* holds several grids; name results"):
        compare([tmp_path, tmp_path])


def test_grids_of_the_same_rows_read_each_place_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Place] = []
    read = train._read
    monkeypatch.setattr(train, "_read", lambda acts, place, rows: reads.append(place) or read(acts, place, rows))
    several: dict[str, Any] = {"labels": ["two", "three"], "probes": ["logistic", "mean-diff"], **HOW}
    for acts, noise, by in ((acts_of(), acts_of(True), "head"), (tokens_of(), tokens_of(True), "position")):
        reads.clear()
        found: Any = train_probes(acts, by=by, random_init=noise, **several)
        assert len(found) == 4
        assert sorted(reads) == sorted(2 * [place for place in acts if place.point in found.points])


@pytest.mark.parametrize(
    ("by", "more"), [("head", {"position": "last"}), ("position", {"position": ["first", "last"]})]
)
def test_grids_read_each_place_once_whatever_rows_and_positions(
    by: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows without a label in one of the label sets, and positions that are selected from all tokens."""
    reads: list[Place] = []
    rows = ActivationSet._rows
    acts = tokens_of()
    other = np.where(np.arange(N) % 5 == 0, -1, OTHER)
    labels = {"two": LABEL, "three": other}
    task = replace(acts.task, labels=labels, info={UNLABELLED: {"three": int((other < 0).sum())}})
    meta = {**acts.meta, "points": ["z"], "config": {"n_heads": H}}
    acts = ActivationSet({Place("z", place.layer): x for place, x in acts.items()}, task, meta, acts.layout)
    monkeypatch.setattr(ActivationSet, "_rows", lambda self, place: reads.append(place) or rows(self, place))
    found: Any = train_probes(acts, by=by, labels=["two", "three"], probes=["logistic", "mean-diff"], **more, **HOW)
    assert len(found) == 4
    assert sorted(reads) == sorted(acts)
    alone: Any = train_probes(acts, by=by, label="three", probe="logistic", **more, **HOW)
    assert_same(found["three", "z", "logistic"], alone)
