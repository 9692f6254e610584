"""What the sections count and say, against scikit-learn, scipy and plain loops."""

import re
import subprocess
import sys
from dataclasses import replace
from html import unescape
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_up_effects import made_up
from made_up_lines import CHART
from reported_curves import curve
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, confusion_matrix

import probekit as pk
from probekit.activations.activations import ActivationSet
from probekit.causal.results.report import causal_conclusion
from probekit.charts.cells import Cell, CellGrid
from probekit.charts.palette import PALETTE
from probekit.evaluation import HeadResults, LayerResult, PositionCurve, ProbeResults, TransferCell, TransferResults
from probekit.evaluation.results.quote import quote_line, quote_of_curve
from probekit.evaluation.results.report import ALWAYS, AT_LENGTH, MOSTLY, every_note
from probekit.evaluation.results.row_scores import RowScores
from probekit.probes.base import probabilities
from probekit.report.render import FOLDER, asset, html_of
from probekit.report.section import Section
from probekit.report.sections.audit import found_pairs
from probekit.report.sections.causal import causal_section
from probekit.report.sections.controls import controls_section
from probekit.report.sections.curve import curve_section, table_section
from probekit.report.sections.grids import positions_section, transfer_section
from probekit.report.sections.scores import (
    MOST,
    confusion,
    confusion_section,
    of_margins,
    of_two_classes,
    reliability,
    scores_section,
)
from probekit.report.sections.summary import missing_checks, summary_section
from probekit.report.svg.grid import draw_grid
from probekit.report.svg.lines import COLORS, draw_lines, lines_picture
from probekit.report.svg.scales import AxisSpan, cut_to, padded, pixel, tick_text, ticks
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


def test_without_a_calibration_there_is_the_diagram_of_the_probe_alone():
    results = curve()
    own = scores_section(results).html
    what = "Probabilities of the probe"
    assert own.count(f"{what}: 10 bins") == own.count(f"{what}: expected calibration error") == 1
    assert "Probabilities that score gives: the probe&#39;s own, as no calibration" in own
    assert "Calibrated" not in own
    rows = results.rows
    assert rows is not None
    untested = type(rows)(**{**vars(rows), "splits": np.full(60, "test", dtype=object)})
    raw = scores_section(ProbeResults(**{**vars(results), "rows": untested})).html
    assert "Probabilities of the probe" in raw
    assert "Calibrated" not in raw


def test_scores_are_drawn_as_they_are_and_calibrated_on_validation():
    results, rng = curve(), np.random.default_rng(0)
    rows, place = results.rows, results.best.place
    assert rows is not None
    truth = rng.normal(size=60)
    labels = (rng.random(60) < 1 / (1 + np.exp(-truth))).astype(int)
    rows = replace(rows, labels=labels, scores={place: 30 * truth}, predicted={place: (truth > 0).astype(int)})
    html = scores_section(replace_rows(results, rows)).html
    test = rows.splits == "test"
    raw, better = (float(x) for x in re.findall(r"Brier score (0\.\d+)", html))
    assert raw == pytest.approx(brier_score_loss(labels[test], probabilities(30 * truth[test])[:, 1]), abs=5e-4)
    assert better < raw
    assert html.count('aria-label="Reliability diagram"') == 2


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


def replace_rows(results: ProbeResults, rows: RowScores) -> ProbeResults:
    return ProbeResults(**{**vars(results), "rows": rows})


def as_regression() -> ProbeResults:
    results = curve(())
    rows = results.rows
    assert rows is not None
    rng = np.random.default_rng(0)
    return replace_rows(results, replace(rows, labels=rng.normal(size=60), predicted={}))


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


def vertices(html: str, kind: str) -> list[list[tuple[float, float]]]:
    """The points of each path of this class."""
    found = re.findall(f'class="{kind}[^"]*" d="M([^"]*?)Z?"', html)
    return [[(float(x), float(y)) for x, y in (point.split(",") for point in d.split("L"))] for d in found]


def test_each_mark_of_lines_is_drawn_once_where_the_axis_says():
    width, height = 720.0, 360.0
    drawn = str(draw_lines(CHART, width, height))
    assert 'aria-label="Every &lt;mark&gt;"' in drawn
    up = AxisSpan(0.0, 1.0, height - 46, 12.0)

    def heights(kind: str) -> list[list[float]]:
        return [[y for _, y in path] for path in vertices(drawn, kind)]

    def at(*values: float) -> list[float]:
        return [round(pixel(up, value), 2) for value in values]

    assert heights("blue line solid") == [at(0.2, 0.4, 0.6)]  # interrupted before the value beyond the axis
    assert heights("green line dashed") == [at(0.1, 0.1)]
    assert heights("red line dotted thin") == [at(0.3, 0.4, 0.5)]
    assert heights("blue band") == [at(0.1, 0.3, 0.5, 0.6, 0.8, 0.7, 0.5, 0.3)]
    assert heights("pink bar") == [at(0.2, 0.3), at(0.5, 0.8)]  # a band of one layer, and a range
    assert heights("grey rule") == [at(0.5, 0.5)]
    assert heights("red line dash-dotted") == [at(0.7, 0.7)]
    assert [path[-1] for path in heights("blue beyond") + heights("green beyond")] == at(1.0, 0.0)
    assert [path[0] for path in heights("blue tied") + heights("red tied")] == [height - 49, height - 55]
    circles = re.findall(r'<circle class="([^"]*)" cx="[^"]*" cy="([^"]*)"', drawn)
    dots = [("green dot", 0.1), ("blue dot", 0.2), ("blue hollow", 0.4), ("blue dot", 0.6), ("blue ring", 0.6)]
    assert sorted((kind, float(y)) for kind, y in circles) == sorted((kind, at(y)[0]) for kind, y in dots)
    assert drawn.count('<rect class="red ring"') == 1
    for kind in ("green behind", "green shade", "grey behind", "grey shade"):
        assert drawn.count(f'class="{kind}"') == 1
    assert re.findall('aria-label="(tip[^"]*)"', drawn) == [f"tip of {i}" for i in range(4)]
    assert re.findall('name"[^>]*>([^<]*)', drawn) == ["↑ far 1.50", "chance 0.500"]
    assert 'name"' not in str(draw_lines(CHART, 360.0, 300.0))  # no margin


def test_a_legend_of_lines_names_what_a_narrow_picture_has_no_margin_for():
    picture = lines_picture(CHART)
    assert [look for _, _, look in picture.legend][:3] == ["solid dots", "dashed", "dotted thin"]
    assert {name for name, _, _ in picture.legend} >= {"left", "right", "chance 0.500", "↑ far 1.50"}
    html = str(html_of([picture]))
    assert html.count('<svg class="swatch"') == len(picture.legend)
    assert html.count('<svg class="chart"') == 2


@given(
    st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=3, max_size=8),
    st.floats(-1, 0),
    st.floats(0.01, 1),
)
def test_a_polygon_is_cut_as_its_points_are(shape, low, high):
    """A polygon of a band keeps the points inside, and has no other points but on its edges at the ends."""
    kept = cut_to(shape, low, high)
    assert all(low <= y <= high for _, y in kept)
    assert [point for point in shape if low < point[1] < high] == [point for point in kept if low < point[1] < high]


LONGER = {"split": "test", "what": "length", "values": [104.8, 52.5], "unit": "characters", "d": 1.1, "p": 0.0}


def test_each_note_stands_once_on_the_page_and_the_first_ranks_in_the_summary():
    control = {"type": "token", "unit": "token that is read", "draws": 3, "seen": 0.9, "ceiling": 0.97}
    audit = {"findings": ["a finding"], "differences": [LONGER], "splits": {}, "near": 0.7}
    more = {"optimism": {"layer": "resid_pre.2", "value": 0.9, "over": 0.1}, "p_max": 0.01, "C": [0.1, 1.0]}
    lead = {"baseline": "bag-of-words", "over": -0.1, "interval": [-0.2, -0.05]}
    results = curve(control=control, audit=audit, lead=lead, **more)
    notes = every_note(results)
    assert {note.rank for note in notes} == {ALWAYS, MOSTLY, AT_LENGTH}
    sections = {"summary": summary_section(results, []), "table": table_section(results)}
    controls = controls_section(results)
    assert controls is not None
    page = {name: unescape(one.html) for name, one in (sections | {"controls": controls}).items()}
    told = {
        note.subject: quote_line(quote_of_curve(results)) if note.subject == "quote" else note.text for note in notes
    }
    for note in notes:
        assert sum(html.count(told[note.subject]) for html in page.values()) == 1, note
        if note.rank == ALWAYS:
            assert told[note.subject] in page["summary"]
    first, second = re.findall(r'<p class="(\w+)">([^<]*)', page["summary"])[:2]
    assert first == ("verdict", "Worse than a bag of words (accuracy 1.050).")
    assert second[0] == "lead"
    assert "Caution: test texts are 2.0 times as long as train texts." in page["summary"]


def test_the_summary_says_whose_direction_is_used_and_the_verdict_comes_first():
    data = made_up()
    own = [
        replace(one, direction="mean-difference") if (one.method, one.direction) == ("interchange", "probe") else one
        for one in data.effects
    ]
    unused = [
        replace(one, effect=0.01, flip_rate=0.01, p_adjusted=1.0)
        for one in data.effects
        if (one.method, one.direction) == ("interchange", "probe")
    ]
    layers = [replace(one, directions={"interchange": "mean-difference"}) for one in data.layers]
    data = replace(data, layers=layers, effects=[*own, *unused])
    conclusion = causal_conclusion(data)
    assert any(line.startswith("The probe's own direction is not shown to be used") for line in conclusion)
    summary = unescape(summary_section(curve(("a", "b")), [("", data)]).html)
    assert all(line in summary for line in conclusion)
    assert f'<p class="text">{conclusion[0]}</p>' == unescape(causal_section(data).html).split("\n")[0]


def columns(section: Section) -> list[str]:
    """The heads of a section's first table."""
    return re.findall("<th[^>]*>([^<]*)</th>", section.html)


def test_what_decides_comes_first_in_wide_tables():
    assert columns(table_section(curve(("a", "b"))))[1].startswith("test ")
    assert columns(causal_section(made_up()))[1] == "quadrant"


def test_column_names_that_would_touch_are_slanted():
    tags = ["NOUN", "PRON", "PROPN", "PUNCT", "SCONJ", *(f"T{i}" for i in range(12))]
    cells = [[Cell("1", "one") for _ in tags] for _ in tags]
    assert draw_grid(CellGrid("tags", tags, tags, cells)).count("rotate(-40)") == len(tags)
    assert "rotate(-40)" not in draw_grid(CellGrid("few", tags[:4], tags[:4], [row[:4] for row in cells[:4]]))


def test_the_summary_names_what_was_not_checked():
    quick = curve(left_out=["control tasks", "p-values"], no_texts=True)
    without = ProbeResults(**{**vars(quick), "random_init": []})
    found = " ".join(missing_checks(without, []))
    assert all(
        word in found for word in ("control tasks, p-values", "random-init", "causal", "without texts", "transfer")
    )
    assert "random-init" not in " ".join(missing_checks(quick, []))


def matrix(shift: bool, metric: str = "accuracy") -> TransferResults:
    """Three tasks of three classes, or three values of a column with a row for all others."""
    columns, others = ["a", "b", "<c>"], ["all others"] * shift
    cells = [
        TransferCell(train, test, "resid_pre", i, 0.1, True, 0.9, True, {metric: 0.4 + 0.01 * i}, {metric: (0.3, 0.6)})
        for i, (train, test) in enumerate(product([*columns, *others], columns))
    ]
    meta = {"tasks": columns, "headline": metric, "chance": 1 / 3, "majority": [0.3, 0.4, 0.6], "model": "gpt2"}
    meta |= {"point": "resid_pre", "position": "last", "probe": "logistic", "notes": [], "C": [0.1], "n_classes": 3}
    meta |= (
        {"rows": [*columns, *others], "label": "y", "shift": {"column": "<domain>", "change": None}} if shift else {}
    )
    return TransferResults(cells, meta)


@pytest.mark.parametrize("shift", [False, True])
def test_each_cell_of_a_matrix_is_coloured_from_what_a_guess_has_on_that_task(shift):
    found = transfer_section(matrix(shift))
    assert found.title == ("Shift" if shift else "Transfer")
    assert ("value of &lt;domain&gt;" in found.html) is shift
    tips = re.findall(
        r'aria-label="trained on ([^,]+), tested on ([^\n]+)\n[^"]*; the majority class ([\d.]+)"', found.html
    )
    assert len(tips) == (12 if shift else 9)
    assert {test: float(share) for _, test, share in tips} == {"a": 0.3, "b": 0.4, "&lt;c&gt;": 0.6}
    assert ("all others" in {train for train, _, _ in tips}) is shift
    fills = re.findall(r'class="(\w+) cell" x="[\d.]+" y="[\d.]+" width="[\d.]+" height="34"', found.html)
    assert fills == ["blue", "blue", "red"] * (len(tips) // 3)


def test_another_metric_is_coloured_from_its_chance():
    assert "; chance 0.333" in transfer_section(matrix(False, "balanced_accuracy")).html


def test_a_grid_of_heads_greys_what_is_not_above_chance_and_frames_the_selected_head():
    def layer(i: int, value: float) -> LayerResult:
        return LayerResult("z", i, 0.1, True, {key: {"accuracy": value} for key in ("validation", "test")}, {}, [])

    n = {"train": 40, "validation": 20, "test": 20}
    heads = [PositionCurve(str(h), n, 0.5, [layer(0, 0.5), layer(1, 0.9)], [0.6, 0.001]) for h in range(3)]
    meta = {"headline": "accuracy", "point": "z", "probe": "logistic", "model": "m", "task": "t", "label": "y"}
    meta |= {
        "n_classes": 2,
        "by": "head",
        "kept": ["last"],
        "position": "last",
        "few_texts": {},
        "least_texts": 10,
        "above_chance": 0.05,
    }
    found = positions_section(HeadResults(heads, meta | {"no_p_values": None, "key_value": False}))
    assert (found.name, found.title) == ("heads", "Layer by head")
    fills = re.findall(r'class="(\w+) cell" x="[\d.]+" y="([\d.]+)" width="[\d.]+" height="34"', found.html)
    assert fills == [("blue", "6")] * 3 + [("muted", "40")] * 3  # layer 1 is on top
    assert found.html.count('class="frame" x="') == 2  # the cell and the legend


def test_patching_is_drawn_with_the_cells_inside_the_placebos_grey():
    data = made_up()
    html = str(causal_section(data).html)
    for grid in data.grids:
        assert f"Activation patching at {grid.point}" in html
        assert grid.within_placebo is not None
    muted = sum(int(grid.within_placebo.sum()) for grid in data.grids if grid.within_placebo is not None)
    assert html.count("muted cell") == muted
    cells = sum(grid.recovery.size for grid in data.grids)
    assert len(re.findall(r"recovery -?[\d.]+ \[", html)) == cells


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
    assert set(PALETTE) <= set(COLORS)


def test_the_script_is_small():
    sizes = {path.name: path.stat().st_size for path in FOLDER.rglob("*.js")}
    assert sizes["page.js"] <= 7_000
    assert sum(sizes.values()) <= 20_000


WITHOUT_PICTURES = """
import sys
from pathlib import Path


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)


sys.meta_path.insert(0, Absent())
from probekit.report.build import write_report

print(write_report(sys.argv[1:2], Path(sys.argv[2])).stat().st_size)
"""


def test_a_page_is_written_where_matplotlib_cannot_be_imported(tmp_path: Path) -> None:
    rng, n = np.random.default_rng(0), 80
    task = Task(
        name="draws",
        inputs=[f"text {i}" for i in range(n)],
        labels={"y": np.arange(n) % 2},
        label_names={"y": ["a", "b"]},
        splits=np.array(["train", "train", "validation", "test"])[np.arange(n) // 2 % 4],
        target="y",
    )
    x = {("resid_pre", i): torch.from_numpy(rng.normal(size=(n, 4)).astype(np.float32)) for i in (0, 1)}
    pk.train_probes(ActivationSet(x, task), C=1.0, quick=True).save(tmp_path / "results")
    words = [sys.executable, "-c", WITHOUT_PICTURES, str(tmp_path / "results"), str(tmp_path / "page.html")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "<svg" in (tmp_path / "page.html").read_text()
