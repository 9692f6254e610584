"""Transfer: every cell is what the train task's own probe scores on the other task's test split, and nothing else."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from sklearn.metrics import accuracy_score, roc_auc_score

from probekit.activations.activations import ActivationSet
from probekit.errors import DataError, UsageError
from probekit.evaluation import TransferResults, transfer
from probekit.tasks.base import Task
from probekit.tasks.load import load_task
from probekit.tasks.quality.audit import audit
from probekit.verbs.train_probes import train_probes

N, D, N_LAYERS = 240, 6, 2
SPLITS = np.array(["train", "train", "validation", "test"])[np.arange(N) % 4]
C = [0.01, 1.0]
PLACES = [("resid_post", 0), ("resid_post", 1)]


def make(
    name: str, axis: int = 0, sign: int = 1, seed: int = 0, strength: Any = (0.0, 3.0), **how: Any
) -> ActivationSet:
    """A task whose class is written along one axis, with `strength` at each layer."""
    rng = np.random.default_rng([seed, axis])
    labels = rng.permutation(np.arange(N) % 2)
    names = how.pop("names", ["false", "true"])
    texts = how.pop("inputs", [f"{name} {i}" for i in range(N)])
    task = Task(name, texts, {"label": labels}, {"label": names}, SPLITS, "label", groups=how.pop("groups", None))
    tensors = {}
    for place, s in zip(PLACES, strength, strict=True):
        X = rng.normal(size=(N, how.get("width", D)))
        X[:, axis] += s * sign * (2 * labels - 1)
        tensors[place] = torch.from_numpy(X.astype(np.float32))
    made = ActivationSet(tensors, task)
    made.meta |= {"model_fingerprint": "one", **how.pop("meta", {})}
    return made


def relabelled(acts: ActivationSet, order: list[int], names: list[str]) -> ActivationSet:
    """The same classes with other numbers: class order[k] becomes k."""
    back = np.argsort(order)
    task = replace(acts.task, labels={"label": back[acts.labels["label"]]}, label_names={"label": names})
    return ActivationSet({place: acts[place] for place in acts}, task, acts.meta)


@pytest.fixture(scope="module")
def worlds() -> list[ActivationSet]:
    """The same direction twice, its opposite, and another one."""
    return [make("a"), make("b", seed=1), make("turned", sign=-1, seed=2), make("else", axis=3)]


@pytest.fixture(scope="module")
def found(worlds: list[ActivationSet]) -> TransferResults:
    return transfer(worlds, C=C)


def test_planted_directions_go_where_they_are_planted(found: TransferResults) -> None:
    assert found.tasks == ["a", "b", "turned", "else"]
    assert found.matrix.shape == (4, 4)
    assert (np.diag(found.matrix) > 0.95).all()
    same, opposite = found.matrix[[0, 1], [1, 0]], found.matrix[[0, 1, 2, 2], [2, 2, 0, 1]]
    assert (same > 0.95).all()
    assert (opposite < 0.05).all()
    apart = np.concatenate([found.matrix[3, :3], found.matrix[:3, 3]])
    assert (np.abs(apart - 0.5) < 0.4).all()
    assert {row[0].place for row in found.chosen} == {"resid_post.1"}
    for row in found.chosen:
        assert all(
            low <= cell.metrics["accuracy"] <= high for cell in row for low, high in [cell.intervals["accuracy"]]
        )


def test_each_cell_is_the_probe_of_the_one_on_the_test_of_the_other(
    found: TransferResults, worlds: list[ActivationSet]
) -> None:
    by_hand = {
        acts.task.name: train_probes(acts, C=C, baselines=False, controls=0, codelength=False) for acts in worlds
    }
    tests = {acts.task.name: np.flatnonzero(acts.splits == "test") for acts in worlds}
    assert len(found.cells) == 4 * 4 * 2
    for cell in found.cells:
        (layer,) = [x for x in by_hand[cell.train_task].layers if x.layer == cell.layer]
        acts = next(acts for acts in worlds if acts.task.name == cell.test_task)
        rows = tests[cell.test_task]
        X, truth = acts[cell.point, cell.layer][torch.from_numpy(rows)].numpy(), acts.labels["label"][rows]
        scores = X.astype(np.float64) @ layer.probe.coef_[0] + layer.probe.intercept_[0]
        assert cell.metrics["accuracy"] == pytest.approx(accuracy_score(truth, scores > 0))
        assert cell.metrics["auroc"] == pytest.approx(roc_auc_score(truth, scores))
        assert (cell.C, cell.validation) == (layer.C, layer.metrics["validation"]["accuracy"])
        assert cell.chosen == (by_hand[cell.train_task].best.layer == cell.layer)


def test_the_layer_is_the_train_tasks_own_choice_unless_it_is_fixed() -> None:
    early, late = make("early", strength=(3.0, 0.0)), make("late", strength=(0.0, 3.0))
    results = transfer([early, late], probe="mean-diff")
    assert [row[0].layer for row in results.chosen] == [0, 1]
    assert {row[0].C for row in results.chosen} == {None}
    assert "Layer selected" in results.summary()
    fixed = transfer([early, late], layers=0, probe="mean-diff")
    assert {cell.layer for cell in fixed.cells} == {0}
    assert "nothing was selected" in fixed.summary()
    assert "Layer and C selected" in transfer([early, late], C=C).summary()


def test_classes_are_matched_by_name_and_only_then_by_number() -> None:
    a, b = make("a"), make("b", seed=1)
    plain = transfer([a, b], probe="mean-diff")
    swapped = transfer([a, relabelled(b, [1, 0], ["true", "false"])], probe="mean-diff")
    np.testing.assert_allclose(plain.matrix, swapped.matrix)
    assert not swapped.meta["notes"]
    other = relabelled(b, [0, 1], ["no", "yes"])
    both = relabelled(make("c", seed=3), [1, 0], ["yes", "no"])
    results = transfer([a, other, both], probe="mean-diff")
    assert (results.matrix > 0.9).all()
    (note,) = results.meta["notes"]
    assert (
        note
        == "The classes of 'b' have other names than those of 'a'; by number, 'no' with 'false', 'yes' with 'true'."
    )


def test_texts_that_teach_one_and_test_the_other_are_counted_as_the_audit_counts() -> None:
    """Against the audit of the one task that has the one's train and the other's test."""
    rng = np.random.default_rng(0)
    texts = [[" ".join(f"w{i}" for i in rng.integers(3000, size=20)) for _ in range(N)] for _ in range(2)]
    train, test = np.flatnonzero(SPLITS == "train"), np.flatnonzero(SPLITS == "test")
    for k, i in enumerate(test[:9]):
        there = texts[0][train[k]]
        texts[1][i] = f"  {there.upper()}\n" if k < 5 else f"{there} ."  # the last words are other ones, or more
    a, b = make("a", inputs=texts[0]), make("b", inputs=texts[1], seed=1)
    rows = np.concatenate([train, N + test])
    joined = Task("both", texts[0] + texts[1], {"x": np.arange(2 * N) % 2}, {"x": ["0", "1"]}, np.tile(SPLITS, 2), "x")
    expected = audit(joined.subset(rows)).shared["test in train"]
    results = transfer([a, b], probe="mean-diff", layers=1)
    (shared,) = results.meta["shared_texts"]
    assert shared == {"train": "a", "test": "b", "exact": expected["exact"], "near": expected["near"]}
    assert (shared["exact"], shared["near"]) == (5, 4)
    assert "The train split of 'a' contains 5 test texts of 'b', and near-duplicates of 4 more." in results.summary()


def test_equal_texts_are_those_of_the_audit_and_own_ones_count_too() -> None:
    train, test = np.flatnonzero(SPLITS == "train"), np.flatnonzero(SPLITS == "test")
    texts = [f"it 's b {i} ." for i in range(N)]
    texts[test[0]] = f"It's  b {train[0]}."
    results = transfer([make("a"), make("b", inputs=texts, seed=1)], probe="mean-diff", layers=1)
    assert results.meta["shared_texts"] == [{"train": "b", "test": "b", "exact": 1, "near": 0}]
    assert "The train split of 'b' contains 1 test text of 'b'." in results.summary()


def test_groups_that_both_tasks_have_are_counted_by_name() -> None:
    """Numbers are given in each task anew and say nothing of another one."""
    cities = np.array([f"city {i // 4}" for i in range(N)])
    a, b = make("a", groups=cities), make("b", groups=np.roll(cities, 1), seed=1)
    n = len(set(cities[SPLITS == "train"]) & set(np.roll(cities, 1)[SPLITS == "test"]))
    found = transfer([a, b], probe="mean-diff", layers=1)
    counts = {(one["train"], one["test"]): one["n"] for one in found.meta["shared_groups"]}
    assert counts == dict.fromkeys([("a", "a"), ("a", "b"), ("b", "a"), ("b", "b")], 60)
    assert n == 60
    assert "60 groups of the train split of 'a' are also in the test split of 'b'." in found.summary()
    numbers = [make(name, groups=np.arange(N), seed=seed) for seed, name in enumerate("ab")]
    assert transfer(numbers, probe="mean-diff", layers=1).meta["shared_groups"] == []


def test_entities_of_two_files_are_known_by_their_names(tmp_path: Any) -> None:
    made, towns = [], []
    for name, first in (("cities", 0), ("neg_cities", 7)):
        rows = [(f"{name} {i} {k}", k, f"town {(i + first) % 40}") for i in range(40) for k in (0, 1)]
        lines = "".join(f"{text},{label},{town}\n" for text, label, town in rows)
        (tmp_path / f"{name}.csv").write_text(f"text,label,city\n{lines}")
        task, town_of = load_task(tmp_path / f"{name}.csv", group_column="city"), {row[0]: row[2] for row in rows}
        X = np.random.default_rng(0).normal(size=(len(task), D)).astype(np.float32)
        made.append(ActivationSet({PLACES[0]: torch.from_numpy(X)}, task))
        towns.append({(split, town_of[str(text)]) for text, split in zip(task.inputs, task.splits, strict=True)})
    expected = {}
    for i, j in ((0, 1), (1, 0)):
        both = {town for split, town in towns[i] if split == "train"} & {t for split, t in towns[j] if split == "test"}
        expected[made[i].task.name, made[j].task.name] = len(both)
    found = transfer(made, probe="mean-diff").meta["shared_groups"]
    assert {(one["train"], one["test"]): one["n"] for one in found} == expected
    assert all(expected.values())


def test_groups_are_those_of_the_task_that_is_tested_and_imbalance_is_everybodys() -> None:
    rare = np.arange(N) % 8 < 1
    a, b = make("a"), make("b", seed=1, groups=np.arange(N) // 8)
    task = replace(
        a.task, labels={"label": rare.astype(np.int64)}, splits=np.repeat(["train", "validation", "test"], 80)
    )
    results = transfer([ActivationSet(dict(a), task, a.meta), b], layers=1, probe="mean-diff")
    assert results.headline in ("accuracy", "auroc")
    if results.headline == "auroc":
        assert "AUROC is compared in all" in results.summary()


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (lambda: make("b", seed=1, meta={"model_fingerprint": "two"}), "'b' is of another model than 'a'.*'one' there"),
        (lambda: make("b", seed=1, meta={"bos": True}), "another use of the BOS token"),
        (
            lambda: make("b", seed=1, names=["x", "y", "z"]),
            r"equally many classes, got 'a' 2, 'b' 3|every split needs",
        ),
        (lambda: make("a"), "very same examples"),
    ],
)
def test_what_cannot_be_compared_is_refused(other: Any, says: str) -> None:
    a = make("a")
    a.meta["bos"] = False
    with pytest.raises((UsageError, DataError), match=says):
        transfer([a, other()])


@pytest.mark.parametrize("probe", [None, "ridge"])
def test_a_task_of_classes_and_one_of_numbers_are_refused_as_such(probe: str | None) -> None:
    a, b = make("a"), make("b", seed=1)
    b.task.labels[b.target], b.task.label_names[b.target] = b.labels[b.target] * 1.0, []
    with pytest.raises(UsageError, match="equally many classes, got 'a' 2, 'b' numbers"):
        transfer([a, b], probe=probe)


def test_one_set_other_points_layers_or_widths_are_refused() -> None:
    a, b = make("a"), make("b", seed=1)
    with pytest.raises(UsageError, match="two tasks or more; got 1"):
        transfer([a])
    with pytest.raises(UsageError, match="takes a list of activations"):
        transfer(a)  # pyright: ignore[reportArgumentType]
    less = ActivationSet({PLACES[0]: b[PLACES[0]]}, b.task, {**b.meta, "n_layers": 2})
    with pytest.raises(UsageError, match=r"do not both hold resid_post\.1"):
        transfer([a, less], probe="mean-diff")
    assert transfer([a, less], layers=0, probe="mean-diff").matrix.shape == (2, 2)
    other = ActivationSet({("mlp_out", layer): b["resid_post", layer] for layer in (0, 1)}, b.task)
    with pytest.raises(UsageError, match="resid_post"):
        transfer([a, other], probe="mean-diff")
    with pytest.raises(DataError, match="6 wide and 'b' 9"):
        transfer([a, make("b", seed=1, width=9)], probe="mean-diff")


def test_the_table_is_tidy_and_files_come_back_the_same(found: TransferResults, tmp_path: Any) -> None:
    frame = found.to_frame()
    one = frame.query("train_task == 'a' and test_task == 'turned' and metric == 'accuracy' and selected")
    assert one["value"].tolist() == [found.matrix[0, 2]]
    assert set(frame["layer"]) == {0, 1}
    keys = ["train_task", "test_task", "place", "metric"]
    assert not frame.duplicated(keys).any()
    assert TransferResults.load(found.save(tmp_path / "x")) == found
    assert sorted(p.name for p in (tmp_path / "x").iterdir()) == ["results.csv", "transfer.json"]
    (tmp_path / "x" / "transfer.json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(DataError, match=r"transfer\.json"):
        TransferResults.load(tmp_path / "x")


def test_probes_without_a_penalty_are_saved(worlds: list[ActivationSet], tmp_path: Any) -> None:
    found = transfer(worlds[:2], layers=0, probe="ridge", C=float("inf"))
    assert TransferResults.load(found.save(tmp_path / "x")) == found


def test_nothing_is_computed_that_is_not_shown(
    worlds: list[ActivationSet], found: TransferResults, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("nobody sees this")

    monkeypatch.setattr("probekit.evaluation.rows.audit", never)
    for name in ("best_set", "curve_band", "permutation_test"):
        monkeypatch.setattr(f"probekit.evaluation.compare.layers.{name}", never)
    assert transfer(worlds, C=C) == found


def test_same_input_same_numbers_and_progress(worlds: list[ActivationSet], found: TransferResults) -> None:
    seen: list[tuple[int, int]] = []
    assert transfer(worlds, C=C, on_progress=lambda *at: seen.append(at)) == found
    assert seen == [(i, 8) for i in range(1, 9)]


def test_names_are_made_safe_and_told_apart() -> None:
    evil = "<b>\x1b[31m"
    there = make(evil, seed=1, inputs=[f"other {i}" for i in range(N)])
    results = transfer([make(evil), there], layers=1, probe="mean-diff")
    assert results.tasks == [evil, f"{evil} (2)"]
    assert "\x1b" not in results.summary()
    assert "<b>\\x1b" not in results._repr_html_()
    assert "majority" in results.summary()


def test_whatever_a_file_says_is_safe_to_show(found: TransferResults, tmp_path: Any) -> None:
    """Every text but the names of metrics and points carries an escape sequence and a mark that reverses the text."""
    evil, known = "\x1b[2J\u202e\n", ("metrics", "headline", "point")

    def spoilt(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: one if key in known else spoilt(one) for key, one in value.items()}
        if isinstance(value, list):
            return [spoilt(one) for one in value]
        return value + evil if isinstance(value, str) else value

    path = found.save(tmp_path / "x") / "transfer.json"
    body = json.loads(path.read_text())
    body["cells"] = [{**cell, "converged": False} for cell in body["cells"]]
    body["meta"]["notes"] = ["note"]
    path.write_text(json.dumps({**spoilt(body), "format": body["format"]}))
    loaded = TransferResults.load(tmp_path / "x")
    for shown in (loaded.summary(), loaded._repr_html_(), repr(loaded)):
        assert all(char.isprintable() for line in shown.split("\n") for char in line)
    assert len(loaded.summary().split("\n")) == len(found.summary().split("\n")) + 2  # not converged, the note
    assert "note\\x1b[2J\\u202e\\n" in loaded.summary()


def test_thresholds_of_one_task_are_carried_to_the_others() -> None:
    """Chosen on validation of the one, counted on test of the other, by hand."""
    worlds = [make("a", strength=(0.0, 1.0)), make("b", seed=1, strength=(0.0, 1.0)), make("c", axis=3)]
    found = transfer(worlds, C=1.0, layers=1)
    again = TransferResults(found.cells, found.meta)
    for cell in again.cells:
        one, other = (
            next(acts for acts in worlds if acts.task.name == name) for name in (cell.train_task, cell.test_task)
        )
        probe = train_probes(one, C=1.0, layers=1, baselines=False, controls=0, codelength=False).best.probe
        scores, y = probe.decision_function(one["resid_post", 1]), one.labels["label"]
        chose = np.sort(scores[(one.splits == "validation") & (y == 0)])[::-1]
        assert len(chose) < 100
        assert "tpr_at_fpr_0.01" not in cell.metrics
        threshold = chose[int(0.05 * len(chose)) - 1]
        scores, y = probe.decision_function(other["resid_post", 1]), other.labels["label"]
        for k, name in ((1, "tpr_at_fpr_0.05"), (0, "fpr_at_fpr_0.05")):
            own = scores[(other.splits == "test") & (y == k)] >= threshold
            assert cell.metrics[name] == own.mean()
            ends = binomtest(int(own.sum()), len(own)).proportion_ci()
            assert cell.intervals[name] == pytest.approx((ends.low, ends.high), abs=1e-9)
    assert found.matrix_of("fpr_at_fpr_0.05")[0, 1] == found.chosen[0][1].metrics["fpr_at_fpr_0.05"]
    assert np.isnan(found.matrix_of("tpr_at_fpr_0.01")).all()
    few = [int((acts.labels["label"][acts.splits == "validation"] == 0).sum()) for acts in worlds]
    needs = "No threshold for 1% false positives, which needs 100 validation rows of the first class:"
    assert f"{needs} a {few[0]}, b {few[1]}, c {few[2]}." in found.summary()
    frame = found.to_frame()
    assert {"tpr_at_fpr_0.05", "fpr_at_fpr_0.05", "roc_tpr_0.05"} <= set(frame["metric"])
    carried = replace(found, cells=[replace(cell, metrics=at_one_percent(cell.metrics)) for cell in found.cells])
    assert "  a: TPR / FPR on test a 0." in carried.summary()
    for acts in worlds:
        acts.labels["label"][:] = np.arange(N) % 3  # of three classes there is no such rate
        acts.task.label_names["label"][:] = ["x", "y", "z"]
    assert not any(name.startswith("tpr") for cell in transfer(worlds, C=1.0, layers=1).cells for name in cell.metrics)


def at_one_percent(metrics: dict[str, float]) -> dict[str, float]:
    return {name.replace("_0.05", "_0.01"): value for name, value in metrics.items()}
