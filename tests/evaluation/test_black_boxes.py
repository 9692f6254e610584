"""Scores by row id as baselines: calibrated on the rows that choose, compared on the rows that test."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.metrics import roc_auc_score
from tiny_configs import tiny_model

import probekit as pk
from probekit.activations.activations import ActivationSet
from probekit.errors import DataError, UsageError
from probekit.evaluation.compare.black_boxes import BlackBoxScores
from probekit.probes.calibration import PRIOR_ROWS
from probekit.tasks.base import Task

FAST = {"C": 1.0, "controls": 0, "codelength": False, "baselines": False}


@pytest.fixture(scope="module")
def acts(world: Any) -> Any:
    return world()


def judged(acts: Any, of: str = "kind", seed: int = 0, **changes: Any) -> BlackBoxScores:
    """A judge who sees the label, more or less."""
    rng = np.random.default_rng(seed)
    values = 3 * acts.labels[of] - 2 + rng.normal(size=len(acts.ids))
    given = {"name": "judge", "ids": list(acts.ids), "values": values, "log_odds": True}
    return BlackBoxScores(**{**given, **changes})


def train(acts: Any, boxes: Any, **options: Any) -> Any:
    return pk.train_probes(acts, black_boxes=boxes, **{**FAST, **options})


def baseline(results: Any, name: str = "judge") -> Any:
    return {one.name: one for one in results.baselines}[name]


def rows_of(acts: Any, split: str) -> np.ndarray:
    return np.flatnonzero(acts.splits == split)


@pytest.mark.parametrize("log_odds", [True, False])
def test_the_calibration_is_logistic_regression_with_the_penalty_as_rows(acts: Any, log_odds: bool) -> None:
    """`PRIOR_ROWS` rows, by the scores' own probabilities or by frequency, and half of each squared bias: scipy.

    A bias is that at the mean score, around the log odds of the classes' frequencies. Two biases b0 and b1 that sum to
    0 cost (b1 - b0)^2 / 4.
    """
    box = judged(acts, log_odds=log_odds)
    chosen, labels = rows_of(acts, "validation"), acts.labels["kind"]
    x, y = box.values[chosen], labels[chosen]
    own = expit(x) if log_odds else np.full(len(x), (y.sum() + 1) / (len(y) + 2))
    weights = y + PRIOR_ROWS / len(x) * own, 1 - y + PRIOR_ROWS / len(x) * (1 - own)
    level = np.log(weights[0].sum() / weights[1].sum())

    def penalised(v: np.ndarray) -> float:
        odds = v[0] * (x - x.mean()) + level + v[1]
        return float(weights[0] @ np.logaddexp(0, -odds) + weights[1] @ np.logaddexp(0, odds) + v[1] ** 2 / 4)

    slope, bias = minimize(penalised, [1.0, 0.0], tol=1e-12).x
    rows = train(acts, box).rows
    ids = {own: i for i, own in enumerate(acts.ids)}
    raw = box.values[[ids[own] for own in rows.ids]]
    wanted = slope * (raw - x.mean()) + level + bias
    np.testing.assert_allclose(rows.baselines["judge"], wanted, rtol=1e-4, atol=1e-4)


def test_its_ranking_is_that_of_the_raw_scores_and_its_difference_is_paired(acts: Any) -> None:
    box = judged(acts)
    results = train(acts, box, metric="auroc")
    test = rows_of(acts, "test")
    own = roc_auc_score(acts.labels["kind"][test], box.values[test])
    assert baseline(results).metrics["test"]["auroc"] == pytest.approx(own)
    record = results.meta["black_boxes"]["judge"]
    assert record["over"] == pytest.approx(results.estimate[0] - own)
    assert results.meta["lead"] == {"baseline": "judge", "over": record["over"], "interval": record["interval"]}
    assert record["calibrated_on"] == len(rows_of(acts, "validation"))


def test_the_probe_s_own_scores_are_no_further_ahead_of_themselves(acts: Any) -> None:
    results = train(acts, judged(acts), metric="auroc")
    box = judged(acts, ids=list(results.rows.ids), values=results.rows.scores[results.best.place])
    record = train(acts, box, metric="auroc").meta["black_boxes"]["judge"]
    assert record["over"] == pytest.approx(0, abs=1e-12)
    assert record["interval"] == pytest.approx((0, 0), abs=1e-12)


def test_neither_the_order_of_the_rows_nor_test_labels_change_the_scores(acts: Any, world: Any) -> None:
    box, results = judged(acts), train(acts, judged(acts))
    order = np.random.default_rng(3).permutation(len(box))
    shuffled = judged(acts, ids=[box.ids[i] for i in order], values=box.values[order])
    np.testing.assert_array_equal(train(acts, shuffled).rows.baselines["judge"], results.rows.baselines["judge"])
    flipped = {name: values.copy() for name, values in acts.labels.items()}
    test = rows_of(acts, "test")
    flipped["kind"][test] = 1 - flipped["kind"][test]
    found = train(world(labels=flipped), box).rows.baselines["judge"]
    np.testing.assert_array_equal(found, results.rows.baselines["judge"])


def test_a_judge_who_is_wrong_on_validation_says_nothing(acts: Any) -> None:
    """A reversed scale is not turned round: the slope is 0 or more."""
    box = judged(acts)
    results = train(acts, judged(acts, values=-box.values), metric="auroc")
    assert baseline(results).metrics["test"]["auroc"] == 0.5
    chosen = rows_of(acts, "validation")
    found = results.meta["black_boxes"]["judge"]["reversed"]
    assert found == pytest.approx(roc_auc_score(acts.labels["kind"][chosen], -box.values[chosen]))
    assert "give its negative" in results.summary()
    straight = train(acts, box, metric="auroc")
    assert straight.meta["black_boxes"]["judge"]["reversed"] is None
    assert "give its negative" not in straight.summary()


def test_several_classes_have_a_column_each_by_name(world: Any, tmp_path: Path) -> None:
    acts = world(n_classes=3)
    rng = np.random.default_rng(0)
    values = 2 * np.eye(3)[acts.labels["kind"]] + rng.normal(size=(len(acts.ids), 3))
    names = acts.label_names["kind"]
    by_column = judged(acts, values=values, classes=tuple(names))
    turned = judged(acts, values=values[:, ::-1], classes=tuple(names[::-1]))
    own, other = (train(acts, box).rows.baselines["judge"] for box in (by_column, turned))
    np.testing.assert_array_equal(own, other)
    lines = [
        json.dumps({"id": one, **dict(zip(names, row, strict=True))})
        for one, row in zip(acts.ids, values.tolist(), strict=True)
    ]
    (tmp_path / "judge.jsonl").write_text("\n".join(lines))
    results = train(acts, tmp_path / "judge.jsonl")
    assert baseline(results, "judge.jsonl").metrics["test"]["accuracy"] > 0.7
    with pytest.raises(DataError, match="a column for each class of 'kind'"):
        train(acts, judged(acts, values=values, classes=("a", "b", "c")))
    with pytest.raises(DataError, match="got one score for each row"):
        train(acts, judged(acts))


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_a_file_gives_scores_and_their_cost(acts: Any, tmp_path: Path, ending: str) -> None:
    import pandas as pd

    box = judged(acts)
    frame = pd.DataFrame({"id": box.ids, "score": box.values, "tokens": np.arange(len(box))})
    path = tmp_path / f"judge.{ending}"
    if ending in ("csv", "tsv"):
        frame.to_csv(path, index=False, sep="," if ending == "csv" else "\t", float_format="%.17g")
    elif ending == "jsonl":
        frame.to_json(path, orient="records", lines=True, double_precision=15)
    else:
        frame.to_parquet(path)
    found = pk.load_scores(path)
    assert found.ids == box.ids
    np.testing.assert_allclose(found.values, box.values, rtol=1e-12)
    results = train(acts, path)
    cost = float(rows_of(acts, "test").mean())
    assert results.meta["black_boxes"][path.name]["tokens"] == pytest.approx(cost)
    table = results.to_frame()
    assert table[(table["name"] == path.name) & (table["metric"] == "tokens_per_row")]["value"].item() == cost
    assert f"over {path.name}" in results.summary()


def test_a_negative_cost_is_refused_and_the_report_says_how_scores_were_made(acts: Any, tmp_path: Path) -> None:
    path = tmp_path / "judge.csv"
    box = judged(acts)
    rows = [f"{one},{value},{3}" for one, value in zip(box.ids, box.values, strict=True)]
    path.write_text("\n".join(["id,score,tokens", *rows]))
    results = train(acts, path)
    page = pk.write_report(results.save(tmp_path / "r"), tmp_path / "page.html").read_text()
    assert f"Black box {path.name}" in page
    assert results.meta["black_boxes"][path.name]["record"]["sha256"] in page
    path.write_text("\n".join(["id,score,tokens", *rows[:-1], f"{box.ids[-1]},1,-5"]))
    with pytest.raises(DataError, match="expected tokens of 0 or more, got -5"):
        pk.load_scores(path)


def test_saved_results_keep_the_scores_and_the_record(acts: Any, tmp_path: Path) -> None:
    results = train(acts, [judged(acts), judged(acts, name="second <b>", seed=1)])
    loaded = pk.ProbeResults.load(results.save(tmp_path / "r"))
    assert loaded.meta["black_boxes"].keys() == {"judge", "second <b>"}
    assert loaded.baselines == results.baselines
    assert loaded.rows is not None
    for name, values in results.rows.baselines.items():
        np.testing.assert_array_equal(loaded.rows.baselines[name], values)


def test_folds_calibrate_on_the_rows_of_the_other_folds(acts: Any) -> None:
    results = train(acts, judged(acts), folds=3)
    assert baseline(results).metrics["test"]["accuracy"] > 0.7
    assert len(results.rows.baselines["judge"]) == len(acts.ids)
    some = rows_of(acts, "test")
    box = judged(acts)
    with pytest.raises(DataError, match="no score for the row"):
        train(acts, judged(acts, ids=[box.ids[i] for i in some], values=box.values[some]), folds=3)


def test_rows_that_neither_calibrate_nor_test_need_no_score(acts: Any) -> None:
    box = judged(acts)
    some = np.flatnonzero(acts.splits != "train")
    results = train(acts, judged(acts, ids=[box.ids[i] for i in some], values=box.values[some]))
    np.testing.assert_array_equal(results.rows.baselines["judge"], train(acts, box).rows.baselines["judge"])
    assert baseline(results).metrics.keys() == {"validation", "test"}


def test_a_box_of_one_label_set_is_a_baseline_of_that_alone(acts: Any) -> None:
    boxes = [judged(acts, label="kind"), judged(acts, "other", label="other"), judged(acts, name="both", seed=1)]
    curves = train(acts, boxes, labels=["kind", "other"])
    assert [[one.name for one in each.baselines] for each in curves.values()] == [["judge", "both"]] * 2
    with pytest.raises(UsageError, match=r"two black boxes for 'kind' are named 'judge'"):
        train(acts, [judged(acts), judged(acts)])
    with pytest.raises(UsageError, match=r"of the label 'other', and kind is probed"):
        train(acts, judged(acts, label="other"))
    with pytest.raises(UsageError, match="exclude each other"):
        train(acts, judged(acts), by="position")
    with pytest.raises(UsageError, match="'ensemble' is the name of another baseline"):
        train(acts, judged(acts, name="ensemble"))


def test_scores_that_do_not_fit_their_ids_are_refused() -> None:
    cases: list[tuple[list[str], np.ndarray, dict[str, Any], str]] = [
        (["a", "b"], np.ones(3), {}, r"2 ids need scores \[2\]"),
        (["a", "b"], np.ones(2), {"tokens": np.ones(1)}, "as many tokens"),
        (["a", "b"], np.ones((2, 3)), {"classes": ("x", "y")}, r"need scores \[2, 2\]"),
        (["a", "b"], np.array([1, np.inf]), {}, "not a finite number"),
        (["1", "1 "], np.ones(2), {}, "an id occurs twice"),
    ]
    for ids, values, more, words in cases:
        with pytest.raises(DataError, match=words):
            BlackBoxScores("judge", ids, values, **more)


def test_a_curve_of_some_rows_and_a_probe_of_all_tokens_take_them_too(acts: Any) -> None:
    """`within` makes a curve for each value of a column, and --aggregate reads every token of each text."""
    results = train(acts, judged(acts), within="other", label="kind")
    for curve in results.values():
        assert curve.rows is not None
        assert len(curve.rows.baselines["judge"]) == len(curve.rows.ids)
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 2
    ids = [rng.integers(1, 9, size=3 + i % 3).tolist() for i in range(90)]
    splits = np.array(["train", "validation", "test"])[np.arange(90) // 2 % 3]
    task = Task("tokens", ids, {"kind": labels}, {"kind": ["a", "b"]}, splits=splits)
    model = tiny_model("gpt2")
    every = pk.extract(model, task, position="all", progress=False)
    box = BlackBoxScores("judge", list(task.ids), labels + rng.normal(size=90))
    curve = pk.train_probes(every, black_boxes=box, aggregate="max", quick=True, C=1.0)
    assert curve.meta["black_boxes"]["judge"]["calibrated_on"] == 30


def test_numbers_are_compared_too() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=120)
    splits = np.array(["train", "train", "validation", "test"])[np.arange(120) % 4]
    task = Task("numbers", [f"text {i}" for i in range(120)], {"kind": x}, splits=splits)
    X = torch.from_numpy(np.stack([x + rng.normal(size=120), rng.normal(size=120)], axis=1).astype(np.float32))
    acts = ActivationSet({("resid_pre", 0): X}, task)
    results = train(acts, judged(acts, values=5 * x + 1 + rng.normal(size=120), log_odds=False))
    assert baseline(results).metrics["test"]["r2"] > 0.9
    assert results.meta["black_boxes"]["judge"]["over"] < 0
