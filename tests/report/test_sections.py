"""What the sections count and say, against scikit-learn, scipy and plain loops."""

import numpy as np
import pytest
from reported_curves import curve
from sklearn.calibration import calibration_curve
from sklearn.metrics import confusion_matrix

from probekit.evaluation import ProbeResults
from probekit.plots import style
from probekit.probes.base import probabilities
from probekit.report.render import FOLDER, asset
from probekit.report.section import Section
from probekit.report.sections.audit import found_pairs
from probekit.report.sections.confusion import MOST, confusion, confusion_section
from probekit.report.sections.curve import COLORS, curve_section
from probekit.report.sections.scores import of_margins, of_two_classes, reliability, scores_section
from probekit.report.sections.summary import summary_section, unchecked
from probekit.report.svg.scales import AxisSpan, padded, pixel, tick_text, ticks
from probekit.tasks.base import Task
from probekit.tasks.quality.audit import audit


def test_the_confusion_matrix_is_that_of_scikit_learn():
    results = curve(("a", "b", "c"))
    rows, place = results.rows, results.best.place
    assert rows is not None
    of_test = rows.splits == "test"
    wanted = confusion_matrix(rows.labels[of_test].astype(int), rows.predicted[place][of_test])
    np.testing.assert_array_equal(confusion(results, place), wanted)


def test_many_classes_are_shown_as_the_largest_and_all_others_together():
    results = curve(tuple(f"class {i}" for i in range(45)))
    found = confusion_section(results)
    assert found is not None
    assert "all others (26)" in found.html
    assert found.html.count('class="hot"') == MOST**2
    assert np.sum(found.data["counts"]["rows"]) == 40


def test_the_reliability_diagram_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=400) * 2, rng.integers(2, size=400)
    found = reliability(probabilities(scores), labels, np.arange(400), ["no", "yes"])
    share, mean = calibration_curve(labels, probabilities(scores)[:, 1], n_bins=10)
    np.testing.assert_allclose(found.y, share)
    np.testing.assert_allclose(found.x, mean)
    assert sum(found.counts) == 400


def test_the_diagram_of_many_classes_is_of_the_predicted_one():
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(300, 4)), rng.integers(4, size=300)
    likely = probabilities(scores)
    found = reliability(likely, labels, np.arange(300), list("abcd"))
    share, mean = calibration_curve(likely.argmax(axis=1) == labels, likely.max(axis=1), n_bins=10)
    np.testing.assert_allclose(found.y, share)
    np.testing.assert_allclose(found.x, mean)


def test_diagrams_are_of_the_probe_and_of_its_calibration():
    """Probabilities that are calibrated need no log odds of the probe, but validation rows."""
    results = curve()
    both = scores_section(results).html
    for what in ("Probabilities of the probe", "Calibrated on validation"):
        assert both.count(f"{what}: 10 bins") == both.count(f"{what}: expected calibration error") == 1
    rows = results.rows
    assert rows is not None
    untested = type(rows)(**{**vars(rows), "splits": np.full(60, "test", dtype=object)})
    raw = scores_section(ProbeResults(**{**vars(results), "rows": untested})).html
    assert "Probabilities of the probe" in raw
    assert "Calibrated" not in raw


def test_every_row_is_in_the_histograms():
    rng = np.random.default_rng(0)
    scores, labels = np.append(rng.normal(size=99), 1e6), rng.integers(2, size=100)
    found = of_two_classes(scores, labels, ["no", "yes"], 0.0)
    assert found.down is not None
    assert (sum(found.down[2]), sum(found.up[2])) == tuple(np.bincount(labels))
    logits, classes = rng.normal(size=(80, 3)), rng.integers(3, size=80)
    margins = of_margins(logits, classes)
    edges, counts = np.array(margins.edges), np.array(margins.up[2])
    wrong = (logits.argmax(axis=1) != classes).sum()
    assert counts.sum() == 80
    assert counts[edges[1:] <= 0].sum() <= wrong <= counts[edges[:-1] <= 0].sum()


def test_scores_that_do_not_vary_are_drawn():
    assert sum(of_two_classes(np.zeros(9), np.arange(9) % 2, ["a", "b"], None).up[2]) == 4


def as_regression() -> ProbeResults:
    results = curve(())
    rows = results.rows
    assert rows is not None
    rng = np.random.default_rng(0)
    rows = type(rows)(**{**vars(rows), "labels": rng.normal(size=60), "predicted": {}})
    return ProbeResults(**{**vars(results), "rows": rows})


def test_a_regression_has_predictions_and_no_confusion_matrix():
    results = as_regression()
    assert confusion_section(results) is None
    found = scores_section(results)
    assert found.title == "Predictions"
    assert found.html.count("<circle") == 40


def test_results_of_older_versions_say_what_is_missing():
    results = curve()
    older = ProbeResults(**{**vars(results), "rows": None})
    for found in (confusion_section(older), scores_section(older)):
        assert isinstance(found, Section)
        assert "train again" in found.html


def test_the_curve_has_its_values_where_the_axis_says():
    results = curve()
    html = str(curve_section(results).html)
    assert html.count('class="hot"') == 2 * len(results.layers)  # for a desk and for a phone
    for layer in results.layers:
        assert f"test accuracy {layer.metrics['test']['accuracy']:.3f}" in html


def test_the_summary_says_whether_the_probe_is_ahead_of_its_baselines():
    for ends, word in (([0.1, 0.3], "ahead of"), ([-0.3, -0.1], "behind"), ([-0.1, 0.1], "not distinguishable from")):
        results = curve(lead={"baseline": "bag-of-words", "over": float(np.mean(ends)), "interval": ends})
        assert f"It is {word} the best baseline, bag-of-words." in summary_section(results, []).html


def test_the_summary_names_what_was_not_checked():
    quick = curve(left_out=["control tasks", "p-values"], no_texts=True)
    without = ProbeResults(**{**vars(quick), "random_init": []})
    found = " ".join(unchecked(without, []))
    assert all(
        word in found for word in ("control tasks, p-values", "random-init", "causal", "without texts", "transfer")
    )
    assert "random-init" not in " ".join(unchecked(quick, []))


TEXTS = [
    "the quick brown fox jumps over the lazy dog near the old river bank at noon today",
    "a completely different sentence about rockets and the long way to the red planet",
    "The quick brown fox jumps over the lazy dog near the old river bank at noon today",
    "the quick brown fox jumps over the lazy dog near the old river bank at noon again",
    "some words that nobody else uses in this very small collection of texts for a test",
    "some words that nobody else uses in this very small collection of texts for a test",
]


def test_the_pairs_that_are_listed_are_those_that_the_audit_counts():
    splits = np.array(["train", "train", "test", "test", "train", "train"])
    task = Task("t", TEXTS, {"y": np.array([0, 1, 1, 0, 0, 1])}, {"y": ["no", "yes"]}, splits)
    leaks, conflicts = found_pairs(task, "y", near=True)
    counted = audit(task).shared["test in train"]
    exact = [pair for pair in leaks if pair.similarity == 1.0]
    assert (len(exact), len(leaks) - len(exact)) == (counted["exact"], counted["near"]) == (1, 1)
    assert {pair.ids for pair in leaks} == {("0", "2"), ("0", "3")}
    assert {pair.ids for pair in conflicts} == {("4", "5"), ("0", "2")}
    assert not [pair for pair in found_pairs(task, "y", near=False)[0] if pair.similarity < 1]


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.2, 7.9), (0.4999, 0.5001), (1e5, 3e6), (2.0, 2.0)])
def test_ticks_are_round_and_within_the_axis(low, high):
    found = ticks(low, high)
    assert 1 <= len(found) <= 8
    assert all(low - 1e-9 <= value <= high + 1e-9 for value in found)
    assert len({tick_text(value, found) for value in found}) == len(found)


def test_pixels_are_linear_and_stay_on_the_axis():
    span = AxisSpan(0.0, 2.0, 100.0, 0.0)
    assert [pixel(span, value) for value in (0.0, 0.5, 2.0, 9.0, -9.0)] == [100.0, 75.0, 0.0, 0.0, 100.0]
    low, high = padded(0.5, 0.5, 0.2)
    assert low < 0.4 < 0.6 < high


def test_the_colours_of_the_page_are_those_of_the_pictures():
    for colour, name in COLORS.items():
        assert f"--{name}: light-dark({colour}," in asset("page.css")
    assert set(style.PALETTE) <= set(COLORS)


def test_the_script_is_small():
    sizes = {path.name: path.stat().st_size for path in FOLDER.rglob("*.js")}
    assert sizes["page.js"] <= 7_000
    assert sum(sizes.values()) <= 20_000
