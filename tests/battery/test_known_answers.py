"""The battery: no verdict is wrong, and each kind of cheating makes some verdict wrong."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import probekit as pk
from probekit.battery import run
from probekit.battery.page import markdown_page
from probekit.causal.results.view import LEAST_EFFECT
from probekit.errors import UsageError
from probekit.worlds.compiled import NAMES, compiled_model
from probekit.worlds.compiled.definition import NEITHER, READ, Compiled

SMALL = "xor,copies"  # edits, erasures, cues and heads
COMPLETE = os.environ.get("PROBEKIT_FAULTS") == "nightly"


def battery(models, **options):
    return pk.known_answers(only=models, progress=False, **options)


def test_no_verdict_is_wrong():
    found = battery("all" if COMPLETE else SMALL, **({} if COMPLETE else {"train_texts": 500}))
    assert found.wrong == []
    for answer in found:  # not because placebos reach as far
        assert answer.truth not in (READ, NEITHER) or abs(answer.effect or 0) < LEAST_EFFECT
    for name in dict.fromkeys(answer.model for answer in found):
        truths = {truth.label: truth for truth in compiled_model(name).truths}
        own = [answer for answer in found if answer.model == name]
        assert {answer.variable for answer in own} == truths.keys()
        for label, truth in truths.items():
            places = [a.truth for a in own if a.variable == label and "," not in a.place and "head" not in a.place]
            assert places == list(truth.verdicts)


@pytest.mark.skipif(not COMPLETE, reason="the complete battery: make test-all")
def test_few_verdicts_are_wrong_on_other_texts():
    """Each claim on what is not there is wrong in 2.5% of all curves by design."""
    found = battery("all", seed=100, repeats=5)
    assert len(found.wrong) <= 0.01 * len(found)


def test_a_probe_that_has_seen_the_test_texts_is_caught(monkeypatch):
    """The texts of test are those of train and validation, too: few enough to be learned by heart."""
    honest = Compiled.task

    def leaking(self, n, seed):
        task = honest(self, n, seed)
        test = np.resize(np.flatnonzero(task.splits == "test")[:20], len(task))
        labels = {name: value[test] for name, value in task.labels.items()}
        return replace(task, inputs=[task.inputs[i] for i in test], labels=labels)

    monkeypatch.setattr(Compiled, "task", leaking)
    assert ("used, not read", "read and used") in {(a.truth, a.verdict) for a in battery("xor", train_texts=300).wrong}


def test_a_placebo_band_of_one_direction_is_caught(monkeypatch):
    """With a single draw of each kind no effect can be significant."""
    honest = run.causal_curve
    monkeypatch.setattr(run, "causal_curve", lambda *args, **options: honest(*args, **options, placebos=1))
    wrong = battery("reverse", train_texts=300).wrong
    assert {(answer.truth, answer.verdict) for answer in wrong} == {("read and used", "read, not shown to be used")}


def test_effects_without_placebos_are_caught(monkeypatch):
    """If any effect above 0 counted as use, what no answer depends on would be used."""
    monkeypatch.setattr("probekit.causal.results.view.doubt_of_use", lambda effect, *_: "" if effect > -1 else "none")
    assert any(answer.variable == "own" and not answer.is_right for answer in battery("reverse", train_texts=300))


def test_the_page_has_every_truth():
    page = (Path(__file__).parents[2] / "docs/known-answers.md").read_text(encoding="utf-8")
    sections = dict(zip(NAMES, page.split("\n## compiled-")[1:], strict=True))
    for name, section in sections.items():
        compiled = compiled_model(name)
        assert section.startswith(name.removeprefix("compiled-"))
        places = [f"resid_pre.{i}" for i in range(len(compiled.program.blocks))]
        places.append(f"resid_post.{len(compiled.program.blocks) - 1}")
        for truth in compiled.truths:
            assert f"- `{truth.label}`: {truth.why}" in section
            for place, verdict in zip(places, truth.verdicts, strict=True):
                assert f"| {truth.label} | {place} | {verdict} | {verdict} |" in section
            for head in truth.heads or ():
                assert f"| {truth.label} | head {head} | carries it | carries it |" in section


def test_repeats_are_counted_by_question():
    found = battery("fraction", train_texts=300, repeats=2, seed=3)
    assert found.seeds == [3, 4]
    header, *rows = found.rows()
    assert header[-1] == "wrong of 2"
    assert len(found) == 2 * len(rows)
    one = replace(found.answers[0], verdict="read and used")
    spoiled = replace(found, answers=[one, *found.answers[1:]])
    assert [row[-1] for row in spoiled.rows()[1:]] == ["1", *[""] * (len(rows) - 1)]
    assert spoiled.wrong == [one]
    assert spoiled.verdict.startswith(f"1 of {len(found)} verdicts wrong")
    assert json.loads(json.dumps(spoiled.as_dict()))["n_wrong"] == 1
    assert "compiled-fraction" in markdown_page(spoiled)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"only": "sort,xr"}, "xor"),
        ({"train_texts": 3}, "300"),
        ({"repeats": 0}, "1"),
        ({"train_texts": 10**20}, "100,000"),
    ],
)
def test_what_cannot_be_run_is_refused(options, says):
    with pytest.raises(UsageError, match=says):
        pk.known_answers(**options)
