"""`pk.compare`: which rows are the same, what is averaged over seeds, what is refused, and what is saved."""

import csv
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted_runs import made, planted, trained
from scipy.stats import ttest_ind

import probekit as pk
from probekit.activations.labelled import with_task
from probekit.errors import DataError, StorageError, UsageError
from probekit.evaluation import ProbeResults
from probekit.evaluation.results.row_scores import RowScores
from probekit.evaluation.results.verdict import chance_of
from probekit.sweeps.run import row_of
from probekit.text import from_spreadsheet_cell

HOSTILE = "=cmd|'/c calc'!A1\x1b[31m<script>$x_1$" + "q" * 90


@pytest.fixture(scope="module")
def runs() -> list[ProbeResults]:
    """Three models on the same texts: the later, the less they know."""
    strengths = ((0.0, 1.0, 2.0), (0.0, 0.5, 1.0), (0.0, 0.0, 0.1))
    return [trained(planted(strength=s, seed=i, model=f"m{i}")) for i, s in enumerate(strengths)]


def rows_of(run: ProbeResults) -> RowScores:
    assert run.rows is not None
    return run.rows


def with_rows(run: ProbeResults, which: Any) -> ProbeResults:
    """The same results with these rows alone, in this order."""
    rows = rows_of(run)
    scores, predicted = ({place: x[which] for place, x in each.items()} for each in (rows.scores, rows.predicted))
    own = rows.ids[which], rows.digests[which], rows.splits[which], rows.labels[which], rows.groups[which]
    return results(run.layers, run.meta, RowScores(*own, scores, predicted), run.baselines)


def results(layers: Any, meta: dict[str, Any], rows: RowScores | None, baselines: Any = ()) -> ProbeResults:
    return ProbeResults(list(layers), list(baselines), meta, rows=rows)


def test_a_difference_is_that_of_the_two_estimates_on_the_same_rows(runs):
    found = pk.compare(runs)
    assert [run.name for run in found.runs] == ["m0", "m1", "m2"]
    for number, each in enumerate(found.differences, 1):
        assert (each.run, each.minus, each.kind, each.why) == (number, 0, "paired", "")
        assert each.n == runs[0].meta["n"]["test"]
        assert each.difference == pytest.approx(runs[number].estimate[0] - runs[0].estimate[0])
    assert [run.estimate for run in found.runs] == [run.estimate[0] for run in runs]
    assert [run.interval for run in found.runs] == [run.estimate[1] for run in runs]
    assert [run.quoted.place for run in found.runs if run.quoted] == [run.best.place for run in runs]
    assert found.runs[0].chance == chance_of(runs[0])
    assert found.differences[1].corrected is not None
    assert found.differences[1].corrected < 0.01


def test_the_order_of_the_rows_changes_nothing(runs):
    order = np.random.default_rng(0).permutation(len(rows_of(runs[1]).ids))
    assert pk.compare([runs[0], with_rows(runs[1], order)]).differences == pk.compare(runs[:2]).differences


def test_classes_in_another_order_are_the_same_classes():
    for metric in ("accuracy", "auroc"):
        one = trained(planted(seed=1), metric=metric)
        task = planted().task
        turned = replace(task, labels={"kind": 1 - task.labels["kind"]}, label_names={"kind": ["yes", "no"]})
        acts = planted(seed=2, strength=(0.0, 0.4, 0.8), model="other")
        plain, other = trained(acts, metric=metric), trained(with_task(acts, turned), metric=metric)
        (known,), (found,) = pk.compare([one, plain]).differences, pk.compare([one, other]).differences
        assert found.difference == pytest.approx(known.difference, abs=1e-9)
        assert found.interval == pytest.approx(known.interval, abs=1e-9)


def test_several_classes_and_numbers_are_compared_too():
    classes = ("a", "b", "c")
    turned = [trained(planted(classes=classes, seed=i, model=f"m{i}"), metric="auroc") for i in range(2)]
    (found,) = pk.compare(turned).differences
    assert found.kind == "paired"
    assert found.difference == pytest.approx(turned[1].estimate[0] - turned[0].estimate[0])
    numbers = []
    for i in range(2):
        acts = planted(seed=i, model=f"m{i}")
        values = np.random.default_rng(5).normal(size=240) + acts.task.labels["kind"] * 2
        task = replace(acts.task, labels={"kind": values}, label_names={"kind": []})
        numbers.append(trained(with_task(acts, task), probe="ridge"))
    (found,) = pk.compare(numbers).differences
    assert (found.kind, pk.compare(numbers).headline) == ("paired", "r2")
    assert found.difference == pytest.approx(numbers[1].estimate[0] - numbers[0].estimate[0])


def test_some_rows_in_common_are_compared_and_said(runs):
    rows = rows_of(runs[1])
    test = np.flatnonzero(rows.splits == "test")
    kept = np.setdiff1d(np.arange(len(rows.ids)), test[:12])
    part = with_rows(runs[1], kept)
    best = part.best
    right = (rows.predicted[best.place] == rows.labels)[kept][rows_of(part).splits == "test"].mean()
    layers = [replace(x, metrics={**x.metrics, "test": {"accuracy": right}}) if x is best else x for x in part.layers]
    found = pk.compare([runs[0], results(layers, part.meta, part.rows)])
    (each,) = found.differences
    assert (each.kind, each.n) == ("paired", len(test) - 12)
    assert each.why == f"on the {len(test) - 12} test rows in common"
    assert "Paired in part" in found.summary()


def test_an_id_a_text_or_a_label_that_differs_makes_another_row():
    truth = np.arange(40) % 2
    first = made(truth, truth)
    for change in ("ids", "digests", "labels"):
        other = made(1 - truth if change == "labels" else truth, truth, seed=1)
        values = getattr(rows_of(other), change)
        values[:30] = 1 - values[:30] if change == "labels" else [f"new {i}" for i in range(30)]
        if change == "labels":
            rows_of(other).predicted["resid_pre.0"][:] = rows_of(other).labels
            other.layers[0].metrics["test"]["accuracy"] = 1.0
        (found,) = pk.compare([first, other]).differences
        assert (found.kind, found.why) == ("unpaired", "10 of 40 test rows in common")


def test_equal_rows_are_told_from_one_another_by_their_order():
    truth = np.arange(40) % 2
    ids = [f"row {i // 4}" for i in range(40)]
    wrong = truth.copy()
    wrong[5] = 1 - wrong[5]
    (found,) = pk.compare([made(truth, truth, ids=ids), made(wrong, truth, ids=ids, seed=1)]).differences
    assert (found.n, found.difference) == (40, -1 / 40)


def test_rows_that_either_run_resamples_together_are_resampled_together():
    rng = np.random.default_rng(0)
    truth = np.arange(200) % 2
    unit = np.arange(200) // 10
    ease = rng.random(20)[unit]
    one, other = np.where(ease < 0.8, truth, 1 - truth), np.where(ease < 0.5, truth, 1 - truth)
    alone = pk.compare([made(one, truth), made(other, truth, seed=1)]).differences[0]
    grouped = pk.compare([made(one, truth), made(other, truth, groups=unit, seed=1)]).differences[0]
    assert alone.interval is not None
    assert grouped.interval is not None
    assert (alone.test, grouped.test) == ("McNemar", "bootstrap")
    assert grouped.difference == alone.difference
    assert grouped.interval[1] - grouped.interval[0] > 2 * (alone.interval[1] - alone.interval[0])


@pytest.mark.parametrize("why", ["no rows", "folds", "other scores"])
def test_what_cannot_be_paired_is_compared_as_independent_and_said(runs, why):
    first, other = runs[0], runs[1]
    if why == "no rows":
        other, says = results(other.layers, other.meta, None), "hold no scores of their test rows"
    elif why == "folds":
        other, says = trained(planted(strength=(0.0, 0.5, 1.0), seed=1), folds=3), "another layer in each fold"
    else:
        rows = rows_of(other)
        changed = {place: 1 - x for place, x in rows.predicted.items()}
        other = results(other.layers, other.meta, replace(rows, predicted=changed))
        says = "do not give the estimate"
    found = pk.compare([first, other])
    (each,) = found.differences
    assert (each.kind, each.n, each.test) == ("unpaired", 0, "independent")
    assert says in each.why
    assert "Not paired" in found.summary()
    (a, ends), (b, others) = first.estimate, other.estimate
    assert each.difference == pytest.approx(b - a)
    assert ends is not None
    assert others is not None
    assert each.interval is not None
    assert each.interval[0] == pytest.approx(b - a - math.hypot(b - others[0], ends[1] - a))


def test_runs_of_one_recipe_and_other_seeds_are_averaged():
    good = [trained(planted(strength=(0.0, 0.6, 1.2), seed=i, model=f"tiny-seed{i}", model_fingerprint=f"{i}x"))
            for i in range(3)]  # fmt: skip
    bad = [trained(planted(strength=(0.0, 0.2, 0.4), seed=i, model=f"small_seed{i}", model_fingerprint=f"{i}y"))
           for i in range(3)]  # fmt: skip
    found = pk.compare([*good, *bad])
    assert [group.name for group in found.groups] == ["tiny", "small"]
    mixed = pk.compare([good[0], *[relabelled(run, f"tiny-random{i}") for i, run in enumerate(bad[:2])]])
    assert [(group.name, group.runs) for group in mixed.groups] == [("tiny-seed0", [0]), ("tiny-random", [1, 2])]
    values = [[run.estimate[0] for run in several] for several in (good, bad)]
    for group, own in zip(found.groups, values, strict=True):
        assert (group.mean, group.spread) == (pytest.approx(np.mean(own)), pytest.approx(np.std(own, ddof=1)))
    known = ttest_ind(values[1], values[0], equal_var=False).confidence_interval(0.95)
    assert found.groups[1].interval == pytest.approx((known.low, known.high))
    assert found.groups[1].difference == pytest.approx(np.mean(values[1]) - np.mean(values[0]))
    assert "sd: standard deviation over seeds" in found.summary()


def relabelled(run: ProbeResults, model: str) -> ProbeResults:
    return results(run.layers, {**run.meta, "model": model}, run.rows)


def test_an_option_that_older_results_do_not_list_makes_no_difference():
    first, other = (
        made([0, 1] * 20, [0, 1] * 20, asked={"C": None, "drop_leaks": False}),
        made([0, 1] * 20, [0, 1] * 20),
    )
    assert [run.name for run in pk.compare([first, other]).runs] == ["run 1", "run 2"]
    leaks = made([0, 1] * 20, [0, 1] * 20, asked={"drop_leaks": True})
    assert [run.name for run in pk.compare([first, leaks]).runs] == ["run 1", "drop_leaks True"]


def test_probe_seeds_are_seeds_and_two_models_of_one_name_are_not():
    acts = planted(model_fingerprint="a")
    folds = [trained(acts, folds=3, seed=seed) for seed in range(2)]
    (group,) = pk.compare(folds).groups
    assert group.runs == [0, 1]
    other = trained(planted(seed=1, model_fingerprint="b"), folds=3)
    assert pk.compare([folds[0], other]).groups == []
    assert pk.compare(runs_of_two_probes()).groups == []


@pytest.mark.parametrize(
    ("meta", "name"),
    [
        ({"activations": {"bos": True}}, "bos True"),
        ({"activations": {"compute_dtype": "bfloat16"}}, "dtype bfloat16"),
        (
            {"activations": {"edits": {"resid_pre.0": []}, "edited": "zero at resid_pre.0"}},
            "edits zero at resid_pre.0 (",
        ),
        ({"estimator": {"parameters": {"k": 8}}}, "k 8"),
        ({"C": [1.0, 2.0]}, "C 1.0,2.0"),
        ({"folds": 5}, "folds 5"),
        ({"reading": {"on_long": "cut", "chat": {"sha256": "a"}}}, "chat_template "),
    ],
)
def test_runs_of_other_settings_are_named_by_them_and_are_no_seeds(meta, name):
    right = [0, 1] * 20
    several = [made(right, right, seed=seed, **about) for about in ({}, meta) for seed in range(2)]
    found = pk.compare(several)
    assert [name in run.name for run in found.runs] == [False, False, True, True]
    assert [group.runs for group in found.groups] == [[0, 1], [2, 3]]


def test_runs_whose_difference_no_result_records_are_no_seeds():
    right = [0, 1] * 20
    assert pk.compare([made(right, right), made(right, right)]).groups == []
    splits = [made(right, right, activations={"task_fingerprint": name}) for name in "ab"]
    assert [group.runs for group in pk.compare(splits).groups] == [[0, 1]]
    sizes = [made(right, right, model=f"Seed-{size}B", activations={"model_fingerprint": size}) for size in "78"]
    assert pk.compare(sizes).groups == []


def runs_of_two_probes() -> list[ProbeResults]:
    return [trained(planted()), trained(planted(), probe="ridge")]


def test_two_places_of_one_run_are_compared(runs, tmp_path):
    runs[0].save(tmp_path / "a:b")
    found = pk.compare([f"{tmp_path / 'a:b'}:resid_pre.0", f"{tmp_path / 'a:b'}:resid_pre.1", tmp_path / "a:b"])
    assert [run.given for run in found.runs] == [True, True, False]
    rows = rows_of(runs[0])
    test = rows.splits == "test"
    right = {place: (rows.predicted[place] == rows.labels)[test].mean() for place in rows.predicted}
    assert found.differences[0].difference == pytest.approx(right["resid_pre.1"] - right["resid_pre.0"])
    assert found.differences[1].difference == pytest.approx(right[runs[0].best.place] - right["resid_pre.0"])
    assert "# named, not selected on validation" in found.summary()


def test_the_table_has_the_C_and_the_marks_of_the_curves(runs, tmp_path):
    chosen = trained(planted(), C=[0.01, 0.1])
    best = chosen.best
    tied = replace(best, in_best_set=True, C=math.inf, tried=[(1.0, 0.5), (math.inf, 0.75)])
    layers = [tied if layer is best else layer for layer in chosen.layers]
    edge = replace(chosen, layers=layers)
    found = pk.compare({"edge": edge, "plain": runs[1]})
    found.save(tmp_path / "c")
    assert pk.Comparison.load(tmp_path / "c") == found
    rows = [" ".join(line.split()) for line in found.summary().splitlines()]
    assert any(row.startswith(f"edge tiny *= {best.place} ^ inf ") for row in rows)
    other = runs[1].best
    assert any(row.startswith(f"plain m1 *{'=' if other.in_best_set else ''} {other.place} 1 ") for row in rows)
    (line,) = [line for line in found.summary().splitlines() if line.startswith("Marks: ")]
    assert line.startswith("Marks: * selected on validation; = statistically tied with the best on test")
    assert line.endswith("; ^ largest C of the grid: extend it (--C)")
    table = found.to_frame()
    assert table["C"][(table["run"] == "edge") & table["selected"] & (table["kind"] == "probe")].tolist() == [math.inf]


def test_several_curves_of_one_call_are_several_runs(tmp_path):
    acts = planted()
    curves = trained(acts, points=["resid_pre", "attn_out"])  # pyright: ignore[reportArgumentType]
    curves.save(tmp_path / "curves")
    for given in (curves, tmp_path / "curves"):
        found = pk.compare(given)
        assert [run.name for run in found.runs] == ["resid_pre", "attn_out"]
    assert [run.name for run in pk.compare({"both": curves}).runs] == ["both, kind, resid_pre", "both, kind, attn_out"]


def test_names_are_those_given_or_the_facts_that_differ(runs):
    assert [run.name for run in pk.compare({"good": runs[0], "bad": runs[2]}).runs] == ["good", "bad"]
    assert [run.name for run in pk.compare(runs_of_two_probes()).runs] == ["logistic", "ridge"]
    twice = [made([0, 1] * 10, [0, 1] * 10), made([0, 1] * 10, [0, 1] * 10)]
    assert [run.name for run in pk.compare(twice).runs] == ["run 1", "run 2"]


def test_depth_is_the_share_of_the_blocks_that_come_before():
    acts = planted(strength=(0, 0, 1, 1, 2))
    found = pk.compare([trained(acts), trained(acts, probe="ridge")], axis="depth")
    assert [place.depth for place in found.runs[0].places] == [0, 0.25, 0.5, 0.75, 1]
    curve = trained(acts)
    depths = [row_of(replace(curve, layers=[layer])).depth for layer in curve.layers]
    assert depths == [0, 0.25, 0.5, 0.75, 1]  # those of a sweep
    assert [place.x for place in found.runs[0].places] == [0, 1, 2, 3, 4]
    inside = made([0, 1] * 10, [0, 1] * 10)
    inside.layers[0] = replace(inside.layers[0], point="attn_out", layer=1)
    after = made([0, 1] * 10, [0, 1] * 10, seed=1)
    after.layers[0] = replace(after.layers[0], point="resid_post", layer=0)
    assert [run.places[0].depth for run in pk.compare([inside, after]).runs] == [0.75, 0.5]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"headline": "auroc"}, "are scored by accuracy and AUROC; train one of them again with --metric"),
        (
            {"headline": "r2", "n_classes": 0},
            "are scored by accuracy and R2: one predicts classes, the other numbers, and no metric is of both; compare",
        ),
        ({"label": "other"}, "are of other labels, 'kind' and 'other'; compare runs of one label"),
        ({"classes": ["no", "maybe"]}, "have other classes; compare runs of one label"),
    ],
)
def test_other_metrics_and_labels_are_refused(runs, change, says):
    other = made([0, 1] * 30, [0, 1] * 30, metric=change.get("headline", "accuracy"))
    other = results(other.layers, {**other.meta, **change}, other.rows)
    with pytest.raises(UsageError, match=re.escape(says)):
        pk.compare([runs[0], other])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "two runs or more; got 0"),
        (3, "a list of folders or results"),
        (["no/such/folder", "b"], "no folder 'no/such/folder'"),
        ([4, 5], "ProbeResults and ProbeCurves; got an int"),
        ([b"a", "b"], "got a bytes"),
    ],
)
def test_what_is_no_run_is_refused(given, says):
    with pytest.raises((UsageError, DataError), match=re.escape(says)):
        pk.compare(given)


def test_a_run_that_is_given_twice_and_one_alone_are_refused(runs, tmp_path):
    runs[0].save(tmp_path / "a")
    with pytest.raises(UsageError, match="given twice"):
        pk.compare([tmp_path / "a", tmp_path / "." / "a"])
    with pytest.raises(UsageError, match="given twice"):
        pk.compare([runs[0], runs[0]])
    with pytest.raises(UsageError, match="two runs or more; got 1"):
        pk.compare([runs[0]])
    with pytest.raises(UsageError, match=r"no place 'resid_pre\.9'; did you mean"):
        pk.compare([f"{tmp_path / 'a'}:resid_pre.9", runs[1]])
    with pytest.raises(UsageError, match="axis"):
        pk.compare(runs, axis="width")  # pyright: ignore[reportArgumentType]


def test_a_comparison_is_read_as_it_was_saved(runs, tmp_path):
    named = {HOSTILE: runs[0], "plain": runs[1]}
    found = pk.compare(named, pairs="all")
    found.save(tmp_path / "c")
    loaded = pk.Comparison.load(tmp_path / "c")
    assert loaded == found
    assert loaded.summary() == found.summary()
    assert loaded.to_frame().equals(found.to_frame())
    assert "\x1b" not in found.summary()
    assert "<script>" not in found._repr_html_()
    with (tmp_path / "c/results.csv").open(newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert not any(cell.startswith(("=", "@", "\t")) for cell in cells)
    assert any(from_spreadsheet_cell(cell) == found.runs[0].name for cell in cells)
    assert found.runs[0].name.startswith("=cmd|")
    rows = {kind: own["value"].tolist() for kind, own in found.to_frame().groupby("kind")}
    assert rows["probe"] == [place.value for run in found.runs for place in run.places]
    assert rows["run"] == [run.estimate for run in found.runs]
    assert rows["difference"] == [each.difference for each in found.differences]
    assert repr(found) == "Comparison(2 runs, 1 difference)"
    body = json.loads((tmp_path / "c/comparison.json").read_text())
    del body["runs"][0]["places"]
    (tmp_path / "c/comparison.json").write_text(json.dumps(body))
    with pytest.raises(DataError, match=r"at runs\[0\]\.places: expected a list, got nothing; compare again"):
        pk.Comparison.load(tmp_path / "c")


def test_a_folder_with_anything_else_is_left_alone(runs, tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(StorageError, match=r"thesis\.tex"):
        pk.compare(runs).save(tmp_path)
    assert [path.name for path in Path(tmp_path).iterdir()] == ["thesis.tex"]
