"""Causal results: what is saved is what is loaded, tables hold every number, and the checklist says what is open."""

import dataclasses
import json
import math
from html.parser import HTMLParser

import numpy as np
import pytest

from probekit.causal.data import CausalData
from probekit.causal.results.checklist import base_warning, reviewer_checklist
from probekit.causal.results.report import EDGE, MARKS, causal_report, causal_summary
from probekit.causal.results.results import CausalResults
from probekit.causal.results.view import (
    curve_effects,
    directions_of,
    dose,
    doubt_of_use,
    effect_shows_use,
    placebo_counts,
)
from probekit.errors import DataError, StorageError
from probekit.results.kinds import check_results_folder
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
    assert sorted(first) == ["causal.json", "results.csv"]


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
        check_results_folder(tmp_path, "causal")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_pictures_of_an_earlier_run_are_deleted(results, tmp_path):
    folder = results.save(tmp_path / "run")
    for name in ("causal_by_layer.png", "patching.svg"):
        (folder / name).write_text("old")
    results.save(folder)
    assert not list(folder.glob("*.png")) + list(folder.glob("*.svg"))


def test_frames_hold_every_number(results):
    frame = results.to_frame()
    effects = frame[frame["metric"] == "effect"]
    assert effects["value"].tolist() == [each.effect for each in results.effects]
    assert effects["p_corrected"].dropna().tolist() == [
        e.p_adjusted for e in results.effects if e.p_adjusted is not None
    ]
    assert set(effects["kind"]) == {"direction", "ceiling", "placebo"}
    for name in ("logit_difference", "flip_rate", "probability", "kl", "size"):
        given = [getattr(each, name) for each in results.effects]
        assert frame[frame["metric"] == name]["value"].tolist() == [value for value in given if value is not None]
    layers = frame[frame["kind"] == "layer"]
    assert layers[layers["metric"] == "score"]["value"].tolist() == SCORES
    assert set(layers["metric"]) >= {"is_read", "is_used", "collateral", "completeness", "angle", "reliability"}
    recovery = frame[frame["metric"] == "recovery"]["value"]
    np.testing.assert_array_equal(recovery, np.concatenate([grid.recovery.ravel() for grid in results.grids]))


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


USE = {"effect": 0.5, "low": 0.4, "flip_rate": 0.3, "placebo": 0.3, "full_vector": True, "p_adjusted": 0.02}


@pytest.mark.parametrize(
    ("changes", "doubt"),
    [
        ({}, ""),
        ({"p_adjusted": None}, ""),
        ({"flip_rate": 0.0}, ""),  # large in logits
        ({"effect": 0.1, "low": 0.09, "placebo": 0.08, "flip_rate": 0.0}, ""),
        ({"effect": 0.09, "low": 0.08, "placebo": 0.01}, ""),  # large in answers
        ({"effect": 0.09, "low": 0.08, "placebo": 0.01, "flip_rate": 0.1}, ""),
        ({"effect": 0.09, "low": 0.08, "placebo": 0.01, "flip_rate": 0.09}, "below 0.1, and fewer than 10% of answers"),
        ({"effect": 0.0145, "low": 0.005, "placebo": 0.0167, "flip_rate": 0.0}, "below 0.1"),  # an unused colour
        ({"placebo": 0.4}, "not above the largest placebo"),
        ({"low": 0.0, "placebo": 0.0}, "not above the largest placebo"),
        ({"effect": -0.5, "low": -0.6}, "not above the largest placebo"),
        ({"placebo": None}, "no placebos"),
        ({"low": None}, "no interval"),
        ({"p_adjusted": 0.06}, "corrected p is 0.06"),
        ({"full_vector": None}, ""),
        ({"full_vector": False}, "full vector's exchange"),
    ],
)
def test_use_needs_a_size_that_matters_and_is_not_the_placebos(changes, doubt):
    found = doubt_of_use(**{**USE, **changes})
    assert doubt in found
    assert bool(found) == bool(doubt)


def test_the_largest_placebo_is_that_of_the_largest_size():
    assert effect_shows_use(effect("erase", "leace", 0, 0.5, interval=(0.4, 0.6), placebo_band=(-0.39, 0.1)))
    assert not effect_shows_use(effect("erase", "leace", 0, 0.5, interval=(0.4, 0.6), placebo_band=(-0.41, 0.1)))
    assert not effect_shows_use(effect("erase", "leace", 0, 0.5, placebo_band=None))


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
    assert max(map(len, table)) <= 170


def test_the_largest_scale_is_marked_where_it_was_chosen(results):
    assert "steer +4 sd ^" in results.summary()
    assert f"^ {MARKS[EDGE]}" in results.summary()
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


def test_a_summary_is_the_verdict_with_its_sizes_at_most_five_sentences_and_a_table():
    lines = CausalResults(made_up()).summary().split("\n")
    verdict = "read and used: resid_pre.3-4; read, not shown to be used: resid_pre.1-2; used, not read: resid_pre.5; "
    assert lines[1] == verdict + "neither: resid_pre.0, resid_post.5"
    assert lines[2] == (
        "interchange along probe at resid_pre.4: effect 0.84 [0.79, 0.90]; 105% of the full vector's 0.80; 84% of "
        "answers flip; largest placebo 0.07."
    )
    assert lines[6] == ""  # after the title and five sentences
    assert not any(line.startswith("!") for line in lines)
    assert len(lines) == 7 + len(SCORES) + 2
    assert max(map(len, lines)) <= 200


@pytest.mark.parametrize(("size", "is_said"), [(None, False), (0.0, False), (0.009, False), (0.03, True), (1.0, True)])
def test_labels_that_are_associated_in_train_are_warned_of(size, is_said):
    lines = CausalResults(made_up(answers_label="winner", association=size)).summary().split("\n")
    start = "! number and winner are associated in train (Cramer's V "
    assert [line for line in lines if line.startswith("!")] == [line for line in lines if line.startswith(start)]
    assert any(line.startswith(start) for line in lines) is is_said


def test_the_headline_has_the_probes_own_effect_beside_that_of_another_direction():
    own = "the probe's own direction 0.05"
    assert own in CausalResults(with_another_direction()).summary().split("\n")[2]
    assert "probe's own" not in CausalResults(made_up()).summary().split("\n")[2]


@pytest.mark.parametrize(
    ("changes", "mark", "is_explained"),
    [({}, True, True), ({"p_adjusted": 0.5}, False, True), ({"effect": 0.0, "flip_rate": 0.0}, False, False)],
)
def test_the_legend_explains_the_mark_wherever_an_effect_is_large(changes, mark, is_explained):
    """The report says why an effect that validation chose has no mark."""
    data = made_up(("interchange",))
    changed = [dataclasses.replace(e, **changes) if e.direction == "probe" else e for e in data.effects]
    data = dataclasses.replace(
        data, effects=changed, layers=[dataclasses.replace(x, is_used={"interchange": mark}) for x in data.layers]
    )
    lines = CausalResults(data).summary().split("\n")
    assert any("0.84+" in line for line in lines) is mark
    assert ("full vector" in lines[-1] and "corrected p" in lines[-1]) is is_explained
    assert any("not shown to be used, as" in note for note in causal_report(data).notes) is not mark


def test_a_headline_that_shows_no_use_says_why():
    summary = CausalResults(made_up(values=[0.0, 0.01, 0.02, 0.03, 0.05, 0.01, 0.0])).summary()
    assert "; not shown to be used, as it is below 0.1, and fewer than 10% of answers flip." in summary


def test_warnings_are_said_however_many_there_are():
    wide = [
        dataclasses.replace(each, p_adjusted=0.5, flip_rate=float(each.place != "resid_pre.0"))
        if each.direction == "full vector"
        else each
        for each in made_up().effects
    ]
    base = {"test": {"logit_difference": 0.1, "interval": [-0.2, 0.4]}}
    more = {"left_out": {"validation": 2, "test": 1_300}, "no_direction": ["resid_pre.0"], "base": base}
    more |= {"no_share": {"erase": {"split": "test", "gap": 0.0, "interval": [-0.1, 0.1]}}}
    data = dataclasses.replace(made_up(**more), effects=wide)
    lines = CausalResults(data).summary().split("\n")
    assert lines[3].startswith("! Without edits the model does not prefer its own answers (interval includes 0)")
    assert lines[4].endswith(
        "the preference for the own answer, 0.00 [-0.10, 0.10] on test, which does not differ from 0."
    )
    assert lines[5:8] == [
        "! Left out, as no text of another class has another answer: 2 validation, 1,300 test rows.",
        (
            "! At resid_pre.1-2 even the full vector's exchange does not count as use (its corrected p is 0.5), "
            "so no other edit could."
        ),
        "! No direction at resid_pre.0: the classes have equal mean activations there.",
    ]
    assert lines[8].startswith("Reviewer's checklist: ")
    assert lines[9] == ""


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


@pytest.mark.parametrize(
    ("ends", "warning"),
    [
        ([0.1, 0.4], ""),
        ([10.0, 10.0], ""),
        (None, ""),
        ([-0.2, 0.4], "includes 0"),
        ([0.0, 0.0], "includes 0"),
        ([-0.2, 0.0], "includes 0"),
        ([-10.0, -10.0], "interval below 0"),
        ([-0.4, -0.1], "interval below 0"),
    ],
)
def test_what_the_model_prefers_without_edits_is_said_loudly(ends, warning):
    data = made_up(base={"test": {"logit_difference": 0.1, "interval": ends, "preferred": 0.5}})
    found = base_warning(data)
    assert warning in found
    assert bool(found) == bool(warning)
    assert bool(warning) == ("! Without edits the model" in CausalResults(data).summary())


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
    assert "Patching, largest recovery: resid_pre 1.04" in summary
    assert "token 'cabinet'" in summary


def with_another_direction(used: tuple[int, ...] = (), places: tuple[int, ...] = tuple(range(7))) -> CausalData:
    """Interchange whose curve is of the mean difference at some places, with the probe's own direction beside it."""
    data = made_up()
    shares = [e for e in data.effects if (e.method, e.direction) == ("interchange", "probe")]
    chosen = [dataclasses.replace(e, direction="mean-difference") for e in shares]
    own = [
        e if i not in places else effect("interchange", "probe", i, 0.3 if i in used else 0.05)
        for i, e in enumerate(shares)
    ]
    layers = [
        dataclasses.replace(layer, directions={"interchange": "mean-difference" if i in places else "probe"})
        for i, layer in enumerate(data.layers)
    ]
    data = dataclasses.replace(
        data, layers=layers, effects=[*own, *chosen, *[e for e in data.effects if e not in shares]]
    )
    return dataclasses.replace(data, checklist=reviewer_checklist(data))


def test_a_probe_whose_own_direction_does_nothing_is_said_not_to_be_what_is_used():
    start = "The probe's own direction is not shown to be used at"
    summary = CausalResults(with_another_direction()).summary()
    assert f"\n{start} resid_pre.3-5; the effect there is along mean-difference.\n" in summary
    (line,) = [line for line in summary.split("\n") if line.startswith("*  resid_pre.4")]
    assert "0.05" in line
    assert f"{start} resid_pre.4-5;" in CausalResults(with_another_direction((3,))).summary()
    for silent in (made_up(), with_another_direction((3, 4, 5))):
        assert start not in CausalResults(silent).summary()
    assert "probe's own" not in CausalResults(made_up()).summary()


def test_the_curve_is_along_the_direction_of_each_place_and_the_table_names_it():
    data = with_another_direction(places=(3, 4))
    names = ["probe"] * 3 + ["mean-difference"] * 2 + ["probe"] * 2
    assert list(directions_of(data, "interchange").values()) == names
    assert [e.direction for e in curve_effects(data, "interchange").values()] == names
    assert set(directions_of(data, "erase").values()) == {"leace"}
    layers = CausalResults(data).to_frame()
    assert layers[layers["metric"] == "direction"]["direction"].tolist() == names
    table = [line for line in CausalResults(data).summary().split("\n") if line.lstrip("* ").startswith("resid_")]
    shown = [next(word for word in ("mean-diff", "probe") if word in line.split()) for line in table]
    assert shown == [name.replace("difference", "diff") for name in names]


def test_the_checklist_says_what_a_tick_means_what_was_chosen_and_each_p():
    data = with_another_direction()
    assert "Reviewer's checklist: 18 of 18 answered; everything" in CausalResults(made_up(grids=True)).summary()
    items = {item.question: item.answer for item in data.checklist}
    chosen = "chosen at each place on validation among 2 (probe, mean-difference), while each placebo is one direction"
    assert chosen in items["What do placebos do?"]
    assert "among" not in {item.question: item.answer for item in made_up().checklist}["What do placebos do?"]
    assert items["Is it needed, and is it enough?"] == (
        "interchange 0.84 (corrected p = 0.023), erase 0.84 (corrected p = 0.023), steer 0.84 (corrected p = 0.023)"
    )
