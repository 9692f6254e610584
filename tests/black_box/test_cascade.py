"""A cascade is its cheap scorer at budget 0, its expensive one at budget 1, and neither sees a test label."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, roc_auc_score

import probekit as pk
from probekit.activations.activations import ActivationSet
from probekit.black_box.cascade import BUDGETS, SENT, certainty, threshold_of
from probekit.charts.cascade import cascade_chart
from probekit.charts.lines import Rule
from probekit.errors import DataError, UsageError
from probekit.evaluation.compare.black_boxes import BlackBoxScores
from probekit.tasks.base import Task

FAST = {"C": 1.0, "controls": 0, "codelength": False, "baselines": False}
N = 1000  # so that validation has the 100 negatives that a rate of 1% needs


def make_acts(n_classes: int = 2, seed: int = 0) -> ActivationSet:
    """Activations with a weak direction for each class."""
    rng = np.random.default_rng(seed)
    labels = np.random.default_rng(0).integers(n_classes, size=N)
    splits = np.array(["train", "validation", "test", "test"])[np.arange(N) % 4]
    names = {"kind": [f"class {k}" for k in range(n_classes)]}
    task = Task("weak", [f"text {i}" for i in range(N)], {"kind": labels}, names, splits=splits)
    X = rng.normal(size=(N, 6)) + 1.2 * np.eye(6)[labels]
    return ActivationSet({("resid_pre", 0): torch.from_numpy(X.astype(np.float32))}, task)


def judge(acts: ActivationSet, **changes: Any) -> Any:
    rng = np.random.default_rng(5)
    labels, n_classes = acts.labels["kind"], len(acts.label_names["kind"])
    values = 3.0 * np.eye(n_classes)[labels] + rng.normal(size=(N, n_classes))
    given = {"name": "judge", "ids": list(acts.ids), "values": values, "classes": tuple(acts.label_names["kind"])}
    return BlackBoxScores(**{**given, "tokens": rng.integers(10, 90, size=N), **changes})


def train(acts: ActivationSet, box: Any = None, **options: Any) -> Any:
    return pk.train_probes(acts, black_boxes=box, **{**FAST, **options})


def with_labels(results: Any, labels: np.ndarray) -> Any:
    return replace(results, rows=replace(results.rows, labels=labels))


@pytest.fixture(scope="module")
def acts() -> ActivationSet:
    return make_acts()


@pytest.fixture(scope="module")
def results(acts: ActivationSet) -> Any:
    return train(acts, judge(acts))


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("probe", ["logistic", "mean-diff", "lda"])
def test_the_ends_are_each_scorer_alone(n_classes: int, probe: str) -> None:
    acts = make_acts(n_classes)
    options = {} if probe == "logistic" else {"probe": probe, "C": None}
    results = train(acts, judge(acts), **options)
    first, last = pk.cascade(results, "judge", budget=[1, 0]).points
    assert (first.share, first.cost, first.over) == (0, 0, 0)
    own, box = results.best.metrics["test"], results.baselines[-1].metrics["test"]
    for name in ("accuracy", "balanced_accuracy", "f1", "auroc", "average_precision"):
        ranks = name in ("auroc", "average_precision") and n_classes > 2  # which a temperature moves a little
        assert first.metrics[name] == pytest.approx(own[name], abs=2e-3 if ranks else 1e-9)
        assert last.metrics[name] == pytest.approx(box[name])
    assert last.share == 1
    assert last.cost == pytest.approx(judge(acts).tokens[acts.splits == "test"].mean())
    assert last.over == pytest.approx(box["accuracy"] - own["accuracy"])
    if n_classes == 2:
        assert first.rates.keys() == {"tpr", "tpr_low", "tpr_high", "test_fpr", "test_fpr_low", "test_fpr_high"}
        assert first.rates["tpr"] == pytest.approx(results.best.rates["tpr"])


def test_a_budget_sends_the_rows_that_are_least_sure_on_validation(acts: Any, results: Any) -> None:
    rows, box = results.rows, judge(acts)
    found = pk.cascade(results, box, budget=[0.1, 0.4, 0.75])
    at = {own: i for i, own in enumerate(box.ids)}
    order = np.array([at[own] for own in rows.ids])
    sure = np.abs(rows.scores[results.best.place])  # of two classes a temperature and the difference keep this order
    chosen, tested = rows.splits == "validation", rows.splits == "test"
    for point in found.points:
        limit = np.sort(sure[chosen])[int(point.budget * chosen.sum()) - 1]
        sent = sure <= limit
        assert point.share == pytest.approx(sent[tested].mean())
        assert point.cost == pytest.approx((sent * box.tokens[order])[tested].mean())
        predicted = np.where(sent, rows.baselines["judge"] > 0, rows.scores[results.best.place] > 0)
        assert point.metrics["accuracy"] == pytest.approx(accuracy_score(rows.labels[tested], predicted[tested]))


def test_mixed_scores_are_ranked_together(results: Any) -> None:
    point = pk.cascade(results, "judge", budget=0.5).points[0]
    alone = pk.cascade(results, "judge", budget=0).points[0]
    tested, scores = results.rows.splits == "test", results.rows.scores["resid_pre.0"]
    assert alone.metrics["auroc"] == pytest.approx(roc_auc_score(results.rows.labels[tested], scores[tested]))
    assert alone.metrics["auroc"] < point.metrics["auroc"]
    low, high = point.over_interval or (0, 0)
    assert low <= point.over <= high
    assert low > 0


def test_shuffled_rows_and_other_ways_to_name_the_scores_change_nothing(acts: Any, results: Any) -> None:
    box, wanted = judge(acts), pk.cascade(results, "judge")
    assert [point.budget for point in wanted.points] == list(BUDGETS)
    order = np.random.default_rng(0).permutation(N)
    shuffled = judge(acts, ids=[box.ids[i] for i in order], values=box.values[order], tokens=box.tokens[order])
    assert pk.cascade(results, shuffled).points == pk.cascade(results, box).points
    for one, other in zip(pk.cascade(results, box).points, wanted.points, strict=True):
        assert one.metrics == pytest.approx(other.metrics)
        assert one.share == other.share


def test_the_cost_by_name_is_the_cost_of_the_rows_that_are_sent(acts: Any, results: Any, tmp_path: Path) -> None:
    """A judge who reads more where the probe is less sure costs more than the mean of all rows."""
    sure = dict(zip(results.rows.ids, np.abs(results.rows.scores[results.best.place]), strict=True))
    box = judge(acts, tokens=np.array([int(200 / (0.1 + sure.get(own, 9))) for own in acts.ids]))
    asked = train(acts, box)
    asked.save(tmp_path / "r")
    wanted = [point.cost for point in pk.cascade(asked, box).points]
    for one in (asked, pk.ProbeResults.load(tmp_path / "r")):
        assert [point.cost for point in pk.cascade(one, "judge").points] == pytest.approx(wanted)
    tenth = pk.cascade(asked, "judge", budget=0.1).points[0]
    assert tenth.cost > 2 * tenth.share * asked.meta["black_boxes"]["judge"]["tokens"]
    older = replace(asked, rows=replace(asked.rows, tokens={}))
    older.save(tmp_path / "older")
    mean = pk.cascade(pk.ProbeResults.load(tmp_path / "older"), "judge", budget=0.1).points[0]
    assert mean.cost == pytest.approx(tenth.share * asked.meta["black_boxes"]["judge"]["tokens"])


@pytest.mark.parametrize("written", ["{}", " {}"])
def test_ids_are_compared_as_formats_write_them(written: str) -> None:
    """Numbers are texts, and outer blanks do not count, for a baseline and for a cascade alike."""
    acts = make_acts()
    task = replace(acts.task, ids=[written.format(i) for i in range(N)])
    own = ActivationSet(dict(acts.items()), task)
    box = judge(acts, ids=list(range(N)))
    results = train(own, box)
    assert pk.cascade(results, box).points[-1].cost == pytest.approx(box.tokens[own.splits == "test"].mean())
    assert pk.cascade(results, box).points == pk.cascade(train(acts, judge(acts)), judge(acts)).points


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_probe_that_validation_contradicts_keeps_its_scores(n_classes: int) -> None:
    results = train(make_acts(n_classes), judge(make_acts(n_classes)))
    chosen, labels = results.rows.splits == "validation", results.rows.labels
    other = with_labels(results, np.where(chosen, (labels + 1) % n_classes, labels))
    alone = pk.cascade(other, "judge", budget=0).points[0]
    wanted = pk.cascade(results, "judge", budget=0).points[0]
    assert alone.metrics["accuracy"] == wanted.metrics["accuracy"]
    assert alone.metrics["auroc"] == pytest.approx(wanted.metrics["auroc"], abs=1e-9 if n_classes == 2 else 0.02)


def test_a_file_that_is_there_is_read_as_one(results: Any, tmp_path: Path) -> None:
    (tmp_path / "judge").write_text("id,score")
    with pytest.raises(UsageError, match="unknown format"):
        pk.cascade(results, str(tmp_path / "judge"))


def test_test_labels_choose_nothing(results: Any) -> None:
    tested = results.rows.splits == "test"
    other = with_labels(results, np.where(tested, 1 - results.rows.labels, results.rows.labels))
    for one, two in zip(pk.cascade(results, "judge").points, pk.cascade(other, "judge").points, strict=True):
        assert (one.threshold, one.share, one.cost) == (two.threshold, two.share, two.cost)
        assert one.metrics["accuracy"] == pytest.approx(1 - two.metrics["accuracy"])


def test_results_on_the_same_rows_are_an_expensive_scorer(acts: Any, results: Any) -> None:
    better = train(make_acts(seed=9))
    found = pk.cascade(results, better)
    assert found.points[-1].metrics["accuracy"] == pytest.approx(better.best.metrics["test"]["accuracy"])
    assert found.meta["unit"] == SENT
    assert [point.cost for point in found.points] == [point.share for point in found.points]
    same = pk.cascade(results, results)
    assert {point.metrics["auroc"] for point in same.points} == {results.best.metrics["test"]["auroc"]}


def test_the_table_and_the_picture_have_every_point(results: Any) -> None:
    found = pk.cascade(results, "judge")
    table = found.to_frame()
    own = table[(table["kind"] == "cascade") & (table["metric"] == "auroc")]
    assert own["value"].tolist() == [point.metrics["auroc"] for point in found.points]
    assert own["at"].tolist() == [f"{budget:g}" for budget in BUDGETS]
    chart = cascade_chart(found)
    by_cost = sorted(found.points, key=lambda point: point.cost)
    assert chart.series[0].xs == tuple(point.cost for point in by_cost)
    assert chart.series[0].ys == tuple(point.metrics["auroc"] for point in by_cost)
    assert chart.series[1].ys == tuple(point.rates["tpr"] for point in by_cost)
    ends = [by_cost[0].metrics["auroc"], by_cost[-1].metrics["auroc"]]
    assert [mark.value for mark in chart.marks if isinstance(mark, Rule)] == ends
    assert len(found.summary().splitlines()) == 5 + len(BUDGETS)
    assert found.plot().get_xlabel() == "tokens per row"


def test_certainty_and_thresholds_by_hand() -> None:
    np.testing.assert_allclose(certainty(np.array([0.0, np.log(3), -np.log(3)])), [0, 0.5, 0.5])
    np.testing.assert_allclose(certainty(np.log([[0.2, 0.5, 0.3], [1 / 3] * 3])), [0.2, 0], atol=1e-12)
    sure = np.array([0.3, 0.1, 0.2, 0.4])
    wanted = {0: -np.inf, 0.2: -np.inf, 0.25: 0.1, 0.5: 0.2, 0.99: 0.3, 1: np.inf}
    assert {budget: threshold_of(sure, budget) for budget in wanted} == wanted


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda r: pk.cascade(r, "prompted"), UsageError, "no black box 'prompted' .*judge"),
        (lambda r: pk.cascade(r, "judge", budget=1.5), UsageError, "share of rows .* 0 to 1.* got 1.5"),
        (lambda r: pk.cascade(r, "judge", budget=[]), UsageError, "share of rows"),
        (lambda r: pk.cascade(r, "judge", fpr=2), UsageError, "fpr must be a rate"),
        (lambda r: pk.cascade(r, "judge", place="resid_pre.7"), UsageError, "no place 'resid_pre.7'"),
        (lambda r: pk.cascade(cast(Any, "runs"), "judge"), UsageError, "takes the results of a curve first"),
        (lambda r: pk.cascade(r, 3), UsageError, "black boxes are scores or files"),
        (lambda r: pk.cascade(r, "absent.csv"), UsageError, "no file of scores"),
        (lambda r: pk.cascade(r, BlackBoxScores("j", ["0"], np.ones(1))), DataError, "j: no score for the row"),
        (lambda r: pk.cascade(r, BlackBoxScores("j", ["0"], np.ones(1), label="x")), UsageError, "of the label 'x'"),
        (lambda r: pk.cascade(r, train(make_acts(3))), DataError, "other rows, splits or labels"),
        (lambda r: pk.cascade(r, with_labels(r, 1 - r.rows.labels)), DataError, "other rows, splits or labels"),
        (lambda r: pk.cascade(replace(r, rows=None), "judge"), DataError, "train again"),
        (lambda r: pk.cascade(train(make_acts(), folds=3), "judge"), UsageError, "nested folds have none"),
    ],
)
def test_what_makes_no_cascade_is_refused(results: Any, make: Callable[[Any], Any], error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        make(results)
