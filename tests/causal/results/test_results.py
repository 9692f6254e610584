"""Causal results: what is saved is what is loaded, tables hold every number, and the checklist says what is open."""

import dataclasses
import json
import math
from html.parser import HTMLParser

import numpy as np
import pytest

from probekit.causal.data import CausalData
from probekit.causal.results.checklist import base_is_at_chance, reviewer_checklist
from probekit.causal.results.files import check_causal_folder
from probekit.causal.results.report import causal_summary
from probekit.causal.results.results import CausalResults
from probekit.causal.results.view import curve_effects, dose, is_outside, placebo_counts
from probekit.errors import DataError, StorageError, UsageError
from tests.made_up_effects import EFFECTS, HOSTILE, SCALES, SCORES, effect, made_up, made_up_grids

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(scope="module")
def results() -> CausalResults:
    return CausalResults(made_up())


def same(one: CausalData, other: CausalData) -> None:
    assert (one.layers, one.effects, one.checklist, one.meta) == (
        other.layers,
        other.effects,
        other.checklist,
        other.meta,
    )
    for a, b in zip(one.grids, other.grids, strict=True):
        for name in ("point", "layers", "columns", "by", "logit_differences", "n", "n_exact", "correlation"):
            assert getattr(a, name) == getattr(b, name)
        for name in ("recovery", "interval", "attribution", "within_placebo"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


def test_what_is_loaded_is_what_was_saved(results, tmp_path):
    results.save(tmp_path / "run")
    loaded = CausalResults.load(tmp_path / "run")
    same(loaded.data, results.data)
    assert loaded.summary() == results.summary()
    first = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    loaded.save(tmp_path / "run")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == first
    assert sorted(first) == ["causal.json", "effects.csv", "layers.csv", "patching.csv"]


@pytest.mark.parametrize("methods", [(), ("erase",), ("steer", "interchange")])
def test_runs_of_some_methods_only(methods, tmp_path):
    results = CausalResults(made_up(methods, grids=methods != ("erase",)))
    same(CausalResults.load(results.save(tmp_path / "run")).data, results.data)
    assert all(method in results.summary() for method in methods)
    assert "CausalResults" in repr(results)
    assert results._repr_html_()


def test_a_number_that_is_undefined_is_null_in_the_file(tmp_path):
    data = made_up(("erase",))
    wrong = effect("erase", "leace", 0, math.nan, interval=(math.nan, math.inf), size=math.inf)
    data = dataclasses.replace(data, effects=[wrong, *data.effects[1:]])
    folder = CausalResults(data).save(tmp_path / "run")
    json.loads((folder / "causal.json").read_text(), parse_constant=pytest.fail)
    (loaded, *_) = CausalResults.load(folder).effects
    assert math.isnan(loaded.effect)
    assert math.isnan(loaded.size)
    assert loaded.interval is None


BROKEN = {
    "an effect without a field": lambda body: body["effects"][0].pop("n"),
    "a text for a number": lambda body: body["effects"][3].update(effect="big"),
    "an unknown method": lambda body: body["effects"][0].update(method="pray"),
    "an unknown quadrant": lambda body: body["layers"][0].update(quadrant="all"),
    "a grid of another shape": lambda body: body["grids"][0]["recovery"].pop(),
    "an interval of one end": lambda body: body["grids"][0].update(interval=[[[1.0]]]),
    "no meta": lambda body: body.pop("meta"),
    "meta without the model": lambda body: body["meta"].pop("model"),
    "a list for meta": lambda body: body.update(meta=[1]),
    "a number for the base": lambda body: body["meta"].update(base=3),
    "an object for a list": lambda body: body.update(effects={"a": 1}),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> str:
    results = CausalResults(made_up(("erase",), scores=[0.5, 0.9], values=[0.0, 0.5]))
    return (results.save(tmp_path_factory.mktemp("saved") / "run") / "causal.json").read_text()


@pytest.mark.parametrize("what", sorted(BROKEN))
def test_incomplete_results_are_refused_in_one_line(saved, tmp_path, what):
    body = json.loads(saved)
    BROKEN[what](body)
    (tmp_path / "causal.json").write_text(json.dumps(body))
    with pytest.raises(DataError, match="damaged at") as error:
        CausalResults.load(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": "probekit.results/2"}', "[" * 100_000])
def test_other_files_are_refused(tmp_path, text):
    (tmp_path / "causal.json").write_text(text)
    with pytest.raises(DataError, match=r"causal\.json"):
        CausalResults.load(tmp_path)


def test_no_results_and_foreign_files(results, tmp_path):
    with pytest.raises(DataError, match="give the folder that probekit causal wrote"):
        CausalResults.load(tmp_path / "nowhere")
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(StorageError, match=r"thesis\.txt"):
        results.save(tmp_path)
    with pytest.raises(StorageError, match=r"thesis\.txt"):
        check_causal_folder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_pictures_of_an_earlier_run_are_deleted(results, tmp_path):
    folder = results.save(tmp_path / "run")
    for name in ("causal_by_layer.png", "patching.svg"):
        (folder / name).write_text("old")
    results.save(folder)
    assert not list(folder.glob("*.png")) + list(folder.glob("*.svg"))


def test_frames_hold_every_number(results):
    frame = results.to_frame()
    assert len(frame) == len(results.effects)
    assert frame["effect"].tolist() == [each.effect for each in results.effects]
    assert set(frame["role"]) == {"direction", "ceiling", "placebo"}
    layers = results.to_frame("layers")
    assert layers[layers["metric"] == "score"]["value"].tolist() == SCORES
    assert set(layers["metric"]) >= {"is_read", "is_used", "collateral", "completeness", "angle", "reliability"}
    patching = results.to_frame("patching")
    np.testing.assert_array_equal(
        patching["recovery"], np.concatenate([grid.recovery.ravel() for grid in results.grids])
    )
    with pytest.raises(UsageError, match="effects, layers, patching"):
        results.to_frame("everything")


def test_the_curve_is_the_methods_own_direction_at_the_chosen_scale(results):
    curve = curve_effects(results.data, "interchange")
    assert [each.effect for each in curve.values()] == EFFECTS
    assert {each.direction for each in curve.values()} == {"probe"}
    assert {each.direction for each in curve_effects(results.data, "erase").values()} == {"leace"}
    assert {each.scale for each in curve_effects(results.data, "steer").values()} == {4.0}
    assert [each.scale for each in dose(results.data, "resid_pre.4")] == SCALES
    assert placebo_counts(results.effects) == {
        "random": 20,
        "covariance": 20,
        "shuffled labels": 1,
        "label attractor": 1,
    }


def test_an_effect_is_outside_if_corrected_and_if_its_interval_excludes_0():
    assert is_outside(effect("erase", "leace", 0, 0.5))
    assert not is_outside(effect("erase", "leace", 0, 0.5, p_adjusted=0.2))
    assert not is_outside(effect("erase", "leace", 0, 0.5, interval=(-0.1, 0.9)))
    assert not is_outside(effect("erase", "leace", 0, 0.5, interval=None))
    assert is_outside(effect("erase", "leace", 0, 0.5, p_adjusted=None))
    assert not is_outside(effect("erase", "leace", 0, 0.05, interval=(0.01, 0.06), p_adjusted=None))


def test_the_table_has_a_line_for_each_layer_and_marks_the_selected_one(results):
    lines = results.summary().split("\n")
    body = [line for line in lines if "resid_" in line and "[" in line and "edit" not in line and "Which" not in line]
    table = [line for line in body if line.lstrip("* ").startswith("resid_")]
    assert len(table) == len(SCORES)
    assert [line.startswith("*") for line in table] == [i == 4 for i in range(len(SCORES))]
    assert "0.84+" in table[4]
    assert "(output)" in table[-1]
    assert all(layer.quadrant in line for layer, line in zip(results.layers, table, strict=True))
    assert "singular -> ' is', plural -> ' are'" in results.summary()
    assert max(map(len, table)) <= 160


def test_the_largest_scale_is_marked_where_it_was_chosen(results):
    assert "steer +4 sd ^" in results.summary()
    assert "^ the largest scale was chosen; a larger one may do more" in results.summary()
    chosen = {**results.meta["selected"], "steer": {**results.meta["selected"]["steer"], "scale": 2.0}}
    inner = causal_summary(dataclasses.replace(results.data, meta={**results.meta, "selected": chosen}))
    assert "steer +2 sd" in inner
    assert "^" not in inner


def test_open_questions_say_what_to_run():
    full = {item.question: item for item in reviewer_checklist(made_up())}
    assert [question for question, item in full.items() if not item.is_answered] == []
    assert full["Is patching exact?"].answer.startswith("yes")
    own = [e for e in made_up().effects if e.method == "interchange" and e.place == "resid_pre.4"]
    largest = max(abs(e.effect) for e in own if e.direction == "covariance")
    assert f"covariance {largest:.2f}, shuffled labels" in full["What do placebos do?"].answer
    poor = made_up(("interchange",), n={"train": 800, "test": 400}, base={})
    poor = dataclasses.replace(poor, effects=[each for each in poor.effects if each.direction == "probe"], grids=[])
    poor = dataclasses.replace(
        poor, layers=[dataclasses.replace(each, collateral={}, completeness={}, angles={}) for each in poor.layers]
    )
    open_ones = {item.question: item.answer for item in reviewer_checklist(poor) if not item.is_answered}
    assert set(open_ones) == {
        "Which rows?",
        "Does the unedited model do the task?",
        "What is the most a patch can do here?",
        "What do placebos do?",
        "Is it needed, and is it enough?",
        "Does the effect grow with the dose?",
        "What else does the edit harm?",
        "Is the edit complete and selective?",
        "Is the probe's direction the one that acts?",
        "Could the edit leave what the model knows?",
    }
    assert "erase" in open_ones["Is it needed, and is it enough?"]


def test_attribution_patching_is_not_called_exact():
    grid = dataclasses.replace(made_up_grids()[0], n_exact=8)
    for correlation, answered in ((0.9, True), (None, False)):
        data = CausalData([], [], [dataclasses.replace(grid, correlation=correlation)], [], {"model": "m"})
        item = {each.question: each for each in reviewer_checklist(data)}["Is patching exact?"]
        assert item.answer.startswith("no: resid_pre by attribution patching")
        assert item.is_answered == answered


def test_an_effect_at_the_output_alone_is_an_open_question():
    values = [0.0] * 6 + [0.9]
    items = {item.question: item for item in reviewer_checklist(made_up(("interchange",), values=values))}
    item = items["Is it the concept, or already the answer?"]
    assert not item.is_answered
    assert item.answer == "used at resid_post.5 alone, where the edit acts on the answer's own logits"
    early = {item.question: item for item in reviewer_checklist(made_up())}["Is it the concept, or already the answer?"]
    assert (early.is_answered, early.answer) == (True, "used first at resid_pre.3")


def test_an_output_that_alone_was_edited_is_no_early_place():
    data = made_up(("interchange",))
    of_output = dataclasses.replace(data, layers=[dataclasses.replace(data.layers[-1], quadrant="read and used")])
    items = {item.question: item for item in reviewer_checklist(of_output)}
    assert not items["Is it the concept, or already the answer?"].is_answered


def test_a_question_is_open_where_its_answer_lacks_a_part():
    """Each change takes one number away from complete results, and one question is open for it."""
    data, without = made_up(), {"erase": 0.012}

    def layers(**changes):
        return dataclasses.replace(data, layers=[dataclasses.replace(each, **changes) for each in data.layers])

    def effects(keep):
        return dataclasses.replace(data, effects=[each for each in data.effects if keep(each)])

    base = {"test": {"logit_difference": 3.0, "interval": None}}
    changed = {
        "What else does the edit harm?": layers(collateral=without),
        "Is the edit complete and selective?": layers(selectivity={}),
        "Does the effect grow with the dose?": effects(lambda each: each.scale is None or each.scale > 0),
        "Is the probe's direction the one that acts?": effects(lambda each: each.direction != "das"),
        "Does the unedited model do the task?": made_up(base=base),
        "Which token?": dataclasses.replace(data, meta={k: v for k, v in data.meta.items() if k != "answer_token"}),
        "Do the unpatched texts get their own answers?": dataclasses.replace(
            data, grids=[dataclasses.replace(grid, logit_differences=(3.0, 0.5)) for grid in data.grids]
        ),
    }
    for question, poorer in changed.items():
        assert [item.question for item in reviewer_checklist(poorer) if not item.is_answered] == [question]


def test_whether_the_effect_grows_is_said():
    def answer(data):
        (item,) = [each for each in reviewer_checklist(data) if each.question == "Does the effect grow with the dose?"]
        return item.answer

    data = made_up(("steer",))
    assert answer(data) == (
        "yes, at every step; steering at resid_pre.4: -0.84 at -4, -0.42 at -2, 0.42 at +2, 0.84 at +4 standard "
        "deviations along the direction"
    )
    falls = [dataclasses.replace(each, effect=0.1) if each.scale == 4.0 else each for each in data.effects]
    assert answer(dataclasses.replace(data, effects=falls)).startswith("not at every step")


def test_the_verdict_comes_before_the_table_and_says_where_placebos_leave_no_room():
    lines = CausalResults(made_up()).summary().split("\n")
    verdict = "read and used: resid_pre.3-4; read, not used: resid_pre.1-2; used, not read: resid_pre.5; neither: "
    assert lines[3] == verdict + "resid_pre.0, resid_post.5"
    assert not any(line.startswith("! At") for line in lines)
    wide = [
        dataclasses.replace(each, p_adjusted=0.5, flip_rate=float(each.place != "resid_pre.0"))
        if each.direction == "full vector"
        else each
        for each in made_up().effects
    ]
    lines = CausalResults(dataclasses.replace(made_up(), effects=wide)).summary().split("\n")
    assert lines[4].startswith("! At resid_pre.1-2, resid_post.5 even the full vector is inside the placebos")


def test_answers_of_another_label_set_and_how_das_was_checked_are_said():
    data = made_up(answers_label="attractor", das={"resid_pre.4": {"control_recovery": 0.04, "cosines": [0.99, -0.97]}})
    assert "answers by attractor: singular -> ' is'" in CausalResults(data).summary()
    (item,) = [each for each in data.checklist if each.question.startswith("Is the probe's direction")]
    assert (
        "DAS on the control task (arbitrary tokens as answers) recovers 0.04; smallest cosine between its restarts 0.97"
        in item.answer
    )


def test_two_scales_are_no_dose_response():
    data = made_up(("steer",))
    few = dataclasses.replace(data, effects=[each for each in data.effects if each.scale in (-2.0, 2.0)])
    items = {item.question: item for item in reviewer_checklist(few)}
    assert items["Does the effect grow with the dose?"].answer == "2 scales; give 3 or more, of both signs (--scale)"
    assert {item.question: item for item in reviewer_checklist(data)}["Does the effect grow with the dose?"].is_answered


def test_a_model_at_chance_is_said_loudly():
    base = {"logit_difference": 0.1, "interval": [-0.2, 0.4], "probability": 0.2, "preferred": 0.5}
    data = made_up(base={"test": base})
    assert base_is_at_chance(data)
    summary = CausalResults(data).summary()
    assert any(line.startswith("! The model does not prefer its own answers") for line in summary.split("\n"))
    assert not base_is_at_chance(made_up())


class Balanced(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_names_out_of_data_are_escaped():
    results = CausalResults(made_up(**HOSTILE, answers={"a\x1b": "\x1b[31m"}))
    assert results.summary().replace("\n", "").isprintable()
    html = results._repr_html_()
    assert "<b>&" not in html.replace("<b>Is", "")
    assert "a&lt;b&gt;&amp;" in html
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []


def test_patching_alone_has_a_report(tmp_path):
    results = CausalResults(CausalData([], [], made_up_grids(), [], {"model": "m", "methods": ["patch"]}))
    summary = CausalResults.load(results.save(tmp_path / "run")).summary()
    assert "Patching resid_pre, largest recovery: 1.04" in summary
    assert "token 'cabinet'" in summary


def with_another_direction(outside: tuple[int, ...] = ()) -> CausalData:
    """Interchange whose curve is of the mean difference, with the probe's own direction beside it."""
    data = made_up(directions={"interchange": "mean-difference"})
    shares = [e for e in data.effects if (e.method, e.direction) == ("interchange", "probe")]
    chosen = [dataclasses.replace(e, direction="mean-difference") for e in shares]
    own = [
        dataclasses.replace(e, effect=0.3 if i in outside else 0.05, p_adjusted=0.02 if i in outside else 0.6)
        for i, e in enumerate(shares)
    ]
    data = dataclasses.replace(data, effects=[*own, *chosen, *[e for e in data.effects if e not in shares]])
    return dataclasses.replace(data, checklist=reviewer_checklist(data))


def test_a_probe_whose_own_direction_does_nothing_is_said_not_to_be_what_is_used():
    start = "The probe's own direction is not what the model uses"
    of = "the effect shown is that of mean-difference."
    summary = CausalResults(with_another_direction()).summary()
    assert f"\n{start}: its effect is inside the placebos at resid_pre.3-5; {of}\n" in summary
    (line,) = [line for line in summary.split("\n") if line.startswith("*  resid_pre.4")]
    assert "0.05" in line
    some = CausalResults(with_another_direction((3,))).summary()
    at = "resid_pre.4-5 (outside them at resid_pre.3)"
    assert f"{start} everywhere: its effect is inside the placebos at {at}; {of}" in some
    for silent in (made_up(), with_another_direction((3, 4, 5))):
        assert start not in CausalResults(silent).summary()
    assert "probe's own" not in CausalResults(made_up()).summary()


def test_the_checklist_says_what_a_tick_means_what_was_chosen_and_each_p():
    data = with_another_direction()
    assert "Reviewer's checklist, 18 of 18 answered ([x]: answered, not passed):" in CausalResults(data).summary()
    items = {item.question: item.answer for item in data.checklist}
    chosen = "chosen on validation among 2 (probe, mean-difference), while each placebo is one direction"
    assert chosen in items["What do placebos do?"]
    assert "among" not in {item.question: item.answer for item in made_up().checklist}["What do placebos do?"]
    assert items["Is it needed, and is it enough?"] == (
        "interchange 0.84 (corrected p = 0.023), erase 0.84 (corrected p = 0.023), steer 0.84 (corrected p = 0.023)"
    )
