"""What the picture of curves says: values, intervals, selected and tied layers, references, limits, names and notes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from drawn_curves import BASELINES, code, make, without_validation

from probekit.charts.accuracy import accuracy_chart, runs
from probekit.charts.axes import shown_ticks, spread
from probekit.charts.curves import named_curves
from probekit.charts.lines import Band, LineChart, Rule, Series, Stretch
from probekit.charts.palette import PALETTE, RED
from probekit.evaluation import ProbeResults

POINTS = ("resid_pre", "resid_mid", "attn_out", "mlp_out")
CONTROL = [1.0, 0.96, 0.90, 0.88, 0.69, 0.68]


def chart_of(*several: ProbeResults, **how: Any) -> LineChart:
    return accuracy_chart(named_curves(several), **how)


def marks(chart: LineChart, name: str) -> list[Any]:
    return [mark for mark in chart.marks if mark.name == name]


def entries(chart: LineChart) -> list[str]:
    return [entry.texts[0] for entry in chart.legend]


def notes(chart: LineChart) -> list[str]:
    """What the margin says of values beyond the axis."""
    return [label.text for label in chart.margin if label.look in ("above", "below")]


def compared(values: list[float], control: list[float], **how: Any) -> ProbeResults:
    results = make(len(values), wanted=range(len(values)), values=values, **how)
    layers: list[Any] = [replace(x, control=y) for x, y in zip(results.layers, control, strict=True)]
    return ProbeResults(layers, results.baselines, results.meta, results.random_init)


def test_the_value_of_a_layer_is_a_point_with_its_interval_as_the_band():
    results = make()
    chart = chart_of(results)
    (test,), (band,) = marks(chart, "test"), marks(chart, "95% pointwise interval")
    assert test.xs == band.xs == (0, 1, 2, 3, 4)
    assert test.ys == tuple(layer.metrics["test"]["accuracy"] for layer in results.layers)
    ends = [layer.intervals["accuracy"] for layer in results.layers]
    assert list(band.ends) == ends
    assert chart.x_ticks == {0: "0", 1: "1", 2: "2", 3: "3", 4: "out"}
    assert marks(chart, "validation")[0].ys == tuple(x.metrics["validation"]["accuracy"] for x in results.layers)
    (ring,) = marks(chart, "selected on validation")
    assert (ring.x, ring.y, ring.color) == (4, results.best.metrics["test"]["accuracy"], RED)
    assert chart.tips[4].startswith("resid_post.3 (output)\ntest accuracy 0.950, 95% interval [0.930, 0.970]")
    assert "selected on validation" in chart.tips[4]
    assert chart.facts == ["resid_pre, last token", "logistic probe", "100 test examples"]


def test_what_a_sceptic_asks_for_is_in_the_picture():
    results = make(full=True)
    chart = chart_of(results)
    (band,) = marks(chart, "95% simultaneous band")
    assert list(band.ends) == [layer.band for layer in results.layers]
    assert marks(chart, "control task")[0].ys == tuple(layer.control for layer in results.layers)
    assert marks(chart, "random init")[0].ys == (0.6,) * 5
    (tied,) = [mark for mark in chart.marks if isinstance(mark, Stretch)]
    assert (tied.left, tied.right) == (2.6, 4.4)
    assert [mark.value for mark in chart.marks if isinstance(mark, Rule)] == list(BASELINES.values())
    assert [label.text for label in chart.margin if label.look == "dotted"] == ["majority 0.500", "bag-of-words 0.700"]
    best = "selected on validation: resid_post.3 (output), test accuracy 0.950 [0.930, 0.970]"
    assert list(chart.legend[0].texts[:2]) == [f"{best}, control 0.524, random init 0.600", f"{best}, control 0.524"]


def test_a_layer_whose_fit_did_not_converge_has_a_hollow_dot():
    made = make()
    late: list[Any] = [replace(layer, converged=i != 2) for i, layer in enumerate(made.layers)]
    chart = chart_of(ProbeResults(late, made.baselines, made.meta))
    assert chart.series[0].hollow == {2.0}
    assert "not converged" in entries(chart)
    assert "not converged" not in entries(chart_of(made))


@pytest.mark.parametrize("full", [False, True])
def test_where_nothing_was_selected_there_is_no_ring_and_no_validation(full):
    chart = chart_of(without_validation(make(full=full)))
    assert not any(word in text for text in entries(chart) for word in ("selected", "validation"))


def test_of_nested_folds_the_score_of_the_complete_procedure_is_a_rule():
    procedure = {"metrics": {"accuracy": 0.8}, "intervals": {"accuracy": (0.75, 0.85)}}
    chart = chart_of(make(full=True, folds=5, procedure=procedure))
    assert [(rule.value, rule.color) for rule in marks(chart, "nested cross-validation")] == [(0.8, RED)]
    assert entries(chart)[0] == "nested cross-validation: accuracy 0.800 [0.750, 0.850]"
    assert not any("selected" in text for text in entries(chart))
    assert "5 nested folds of 100 examples" in chart.facts


@pytest.mark.parametrize(
    ("metric", "name"), [("accuracy", "accuracy"), ("auroc", "AUROC"), ("r2", "R\N{SUPERSCRIPT TWO}")]
)
def test_the_headline_is_on_the_axis(metric, name):
    chart = chart_of(make(metric=metric, baselines={"mean": -30.0} if metric == "r2" else BASELINES))
    assert chart.y_name == name
    assert -0.4 < chart.y_limits[0] < chart.y_limits[1] < 1.1


@pytest.mark.parametrize(
    ("how", "name", "last"),
    [
        ({"point": "resid_mid"}, "layer (after the attention of block i; last: output)", "out"),
        ({"point": "resid_post", "wanted": range(4)}, "layer (output of block i)", "3"),
        ({"point": "resid_pre", "wanted": [0, 2]}, "layer (input of block i)", "2"),
        ({"point": "attn_out", "wanted": range(4)}, "layer (attn_out of block i)", "3"),
    ],
)
def test_the_layer_axis_is_honest(how, name, last):
    chart = chart_of(make(**how))
    assert chart.x_name == name
    assert chart.x_ticks[max(chart.x_ticks)] == last


@pytest.mark.parametrize(
    ("point", "name"),
    [
        ("resid_pre", "layer (input of block i)"),
        ("resid_post", "layer (before the last norm of block i)"),
        ("ln2_normalized", "layer (output of block i)"),
        ("encoder.resid_pre", "layer (input of block i of the encoder)"),
        ("decoder.ln3_normalized", "layer (output of block i of the decoder)"),
    ],
)
def test_the_layer_axis_is_honest_where_blocks_end_with_a_norm(point, name):
    output = "decoder.ln3_normalized" if point.startswith("decoder") else "ln2_normalized"
    assert chart_of(make(point=point, wanted=range(4), output=output)).x_name == name


def test_noise_does_not_fill_the_picture_and_limits_hold_everything():
    low, high = chart_of(make(values=[0.5] * 5, baselines={"majority": 0.5})).y_limits
    assert high - low >= 0.3
    low, high = chart_of(make()).y_limits
    assert low < 0.5
    assert 0.97 < high < 1.05
    low, high = chart_of(make(values=[0.2] * 5, full=True), make(values=[0.9] * 5, full=True)).y_limits
    assert low < 0.16
    assert high > 0.94
    assert chart_of(make(), y=(-1.0, 0.1)).y_limits[0] == -1.0


@pytest.mark.parametrize(("control", "note"), [(1.0, "↑ control task 1.00"), (0.01, "↓ control task 0.01")])
def test_the_axis_fits_the_curve_and_the_margin_names_what_is_far_away(control, note):
    values = [0.4 if control == 1 else 0.9] * 5
    chart = chart_of(compared(values, [control] * 5, baselines={}))
    low, high = chart.y_limits
    assert high - low < 0.4
    assert low < values[0] - 0.02 < values[0] + 0.02 < high
    assert note in notes(chart)
    assert not marks(chart, "control task")
    assert "control task" not in entries(chart)


def test_a_control_task_above_the_curve_does_not_squash_it():
    """As far below it, where the distance says how much is no memory, it may stretch the axis."""
    spans = []
    for control in (None, 0.97, 0.05):
        made = make(full=True, values=[0.5, 0.51, 0.5, 0.52, 0.5], baselines={})
        layers: list[Any] = [replace(layer, control=control) for layer in made.layers]
        low, high = chart_of(ProbeResults(layers, [], made.meta)).y_limits
        spans.append(high - low)
        assert (low < 0.05) == (control == 0.05)
    assert spans[0] == pytest.approx(spans[1])
    assert spans[2] > 1.5 * spans[0]


@pytest.mark.parametrize(
    ("level", "control", "wanted"),
    [
        (0.55, CONTROL, ["↑ control task up to 1.00"]),  # an easier task would squash the curve
        (0.95, CONTROL, []),
        (0.3, CONTROL, ["↑ control task 0.68 to 1.00"]),
        (0.3, CONTROL[::-1], ["↑ control task 0.68 to 1.00"]),
        (0.9, [0.1, 0.8, 0.8, 0.85, 0.8, 0.8], ["↓ control task down to 0.10"]),
        (0.5, [0.01, 0.5, 0.5, 0.5, 0.5, 0.99], ["↑ control task up to 0.99"]),  # room for the lower end alone
        (0.1, [0.9, 1.0, 0.9, 0.9, 0.9, 0.95], ["↑ control task 0.90 to 1.00"]),
    ],
)
@pytest.mark.parametrize("n", [1, 2])
def test_every_value_of_a_reference_is_inside_the_axes_or_announced(level, control, wanted, n):
    values = [level - 0.01, level, level, level + 0.02, level, level]
    several = [compared(values, control, baselines={}, model=f"model{i}") for i in range(n)]
    chart = chart_of(*several)
    low, high = chart.y_limits
    assert notes(chart) == wanted
    for value in control:
        announced = any(text[0] == "↑" and value <= float(text.split()[-1]) for text in wanted if value > high)
        announced |= any(text[0] == "↓" and value >= float(text.split()[-1]) for text in wanted if value < low)
        assert announced or low <= value <= high
    assert all(low < value < high for value in values)


def test_an_r2_far_below_zero_does_not_squeeze_the_others():
    chart = chart_of(make(metric="r2", values=[-30.2, 0.1, 0.3, 0.5, 0.4], baselines={"mean": -0.001}))
    assert chart.y_limits[0] > -0.4
    assert chart.notes == ["R² down to -30.2 (resid_pre.0) is below the axis"]
    assert "below the axis" in entries(chart)
    values = [-3.0, -2.9, -2.8, -3.1, -3.0]
    low, high = chart_of(make(metric="r2", values=values, baselines={})).y_limits
    assert low < min(values) < max(values) < high


def test_a_compression_of_one_is_said():
    layers: list[Any] = [replace(layer, codelength=code(1.02)) for layer in make(full=True).layers]
    chart = chart_of(ProbeResults(layers, [], make().meta))
    assert chart.notes == ["no layer compresses the labels (at most 1.02\N{MULTIPLICATION SIGN})"]
    assert chart_of(make(full=True)).notes == []


@pytest.mark.parametrize(
    ("others", "names"),
    [
        ({"point": "resid_mid"}, ["resid_pre", "resid_mid"]),
        ({"model": "bert", "task": "cola"}, ["gpt2, sst2", "bert, cola"]),
        ({"position": "mean"}, ["last token", "mean of all tokens"]),
        ({"probe": "ridge"}, ["logistic probe", "ridge probe"]),
        ({}, ["curve 1", "curve 2"]),
    ],
)
def test_curves_are_called_what_they_differ_in(others, names):
    chart = chart_of(make(), make(**others))
    assert [entry.texts[0].partition(":")[0] for entry in chart.legend if entry.is_own] == names
    assert not any(fact in chart.name for name in names for fact in name.split(", "))


def test_curves_of_one_picture_have_colours_rings_and_tied_layers_of_their_own():
    several = [make(4, full=True, model=f"m{i}") for i in range(len(PALETTE) + 1)]
    chart = chart_of(*several)
    lines = [one for one in chart.series if one.dots]
    assert len({(one.color, one.look) for one in lines}) == len(several)
    assert [mark.color for mark in marks(chart, "selected on validation")] == [one.color for one in lines]
    assert [mark.rank for mark in chart.marks if isinstance(mark, Stretch)] == list(range(len(several)))
    assert {entry.color for entry in chart.legend if not entry.is_own} == {"#6B6B6B"}
    assert [label.text for label in chart.margin] == ["majority 0.500", "bag-of-words 0.700"]  # what all share, once
    assert not chart_of(*several, has_references=False).margin


@pytest.mark.parametrize(("n", "shown"), [(1, 1), (2, 2), (3, 1), (4, 1)])
def test_of_three_curves_or_more_the_best_alone_has_its_band(n, shown):
    curves = [make(6, full=True, point=at, values=np.linspace(0.5, 0.8, 7) + i / 50) for i, at in enumerate(POINTS)]
    chart = chart_of(*curves[:n])
    found = [mark for mark in chart.marks if isinstance(mark, Band)]
    assert len(found) == shown
    if n > 2:
        assert "95% simultaneous band of the best curve" in entries(chart)
        assert found[0].color == PALETTE[n - 1]


def test_cautions_of_one_curve_have_its_name(monkeypatch):
    monkeypatch.setattr("probekit.charts.accuracy.cautions", lambda data: [data.meta["model"][:4], "of all"])
    assert chart_of(make()).cautions == ["gpt2", "of all"]
    assert chart_of(make(), make(model="bert")).cautions == ["gpt2: gpt2", "of all", "bert: bert"]


def test_many_baselines_of_one_name_are_a_range():
    several = [make(4, model=f"m{i}", baselines={"a": 0.5 + i / 100, "b": 0.6 + i / 100}) for i in range(5)]
    rules = [mark for mark in chart_of(*several).marks if isinstance(mark, Rule)]
    assert [(rule.value, rule.to, rule.rank) for rule in rules] == [(0.5, 0.54, 0), (0.6, 0.64, 1)]


def test_ticks_and_heights():
    assert shown_ticks(range(26)) == list(range(26))
    assert shown_ticks(range(49)) == [*range(0, 48, 4), 48]
    assert shown_ticks(range(48)) == [*range(0, 45, 4), 47]
    assert shown_ticks([3, 4, 20, 30]) == [3, 4, 20, 30]
    assert shown_ticks([0.0, 0.2, 0.4]) == [0.0, 0.2, 0.4]
    assert runs([]) == []
    assert runs([0, 1, 2, 5]) == [(0, 2), (5, 5)]
    assert spread([], 0.1, 0, 1) == []
    assert spread([0.5, 0.5], 0.1, 0, 1) == pytest.approx([0.45, 0.55])
    assert spread([1.0, 1.0], 0.1, 0, 1) == pytest.approx([0.85, 0.95], abs=1e-6)


def test_two_charts_of_the_same_results_have_the_same_marks():
    assert [*chart_of(make(full=True)).marks] == [*chart_of(make(full=True)).marks]
    first = chart_of(make(full=True)).series[0]
    assert first in chart_of(make(full=True), make(model="bert")).marks  # it stays when a second curve comes
    assert isinstance(first, Series)
