"""Labels that are numbers: the interchange of a scalar, and its effect on a number that the model answers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from causal.curve.test_effects import IDLE, READ, D, linear_gpt2

import probekit as pk
from probekit.activations.labelled import with_task
from probekit.causal.behaviour.numbers import NumberBehaviour, readings
from probekit.causal.curve.estimate import plan_causal
from probekit.causal.curve.prepared import answer_rows
from probekit.causal.curve.question import causal_question
from probekit.causal.results.checklist import base_text, base_warning
from probekit.causal.results.report import causal_report
from probekit.causal.results.results import CausalResults
from probekit.errors import UsageError
from probekit.options import CausalOptions

WORDS, ANSWERS = 240, (240, 241)
HOW: dict[str, Any] = {"rows": 40, "placebos": 20, "scales": [1.0], "completeness": False}


def numbers_gpt2() -> Any:
    """Words that hold two numbers, along READ and IDLE; the head answers by the first alone."""
    model = linear_gpt2()
    generator = torch.Generator().manual_seed(0)
    read_V, idle_V = torch.randn(2, WORDS, generator=generator)
    noise_VD = 0.2 * torch.randn(WORDS, D, generator=generator)
    for direction in (READ, IDLE):
        noise_VD -= (noise_VD @ direction)[:, None] * direction
    noise_VD[:, 2:] -= noise_VD[:, 2:].mean(dim=1, keepdim=True)
    with torch.no_grad():
        words_VD = read_V[:, None] * READ + 2 * idle_V[:, None] * IDLE + noise_VD
        words_VD[:, :2] = torch.tensor([1000.0, -1000.0])
        model.embed.weight[:WORDS] = words_VD
    return model, {"used": read_V.double().numpy(), "idle": idle_V.double().numpy()}


MODEL, VALUES = numbers_gpt2()


@pytest.fixture(scope="module")
def acts():
    splits = np.repeat(["train", "validation", "test"], [140, 50, 50])
    order = np.random.default_rng(0).permutation(WORDS)
    labels = {name: values[order] for name, values in VALUES.items()}
    task = pk.Task("numbers", [[int(i)] for i in order], labels, {"used": [], "idle": []}, splits=splits, target="used")
    return pk.extract(MODEL, task, points=["resid_pre"])


def curve(acts, label: str, **changes) -> CausalResults:
    results = pk.train_probes(acts, label=label, quick=True, probe="ridge", C=[1.0, 100.0])
    return pk.causal_curve(MODEL, acts, results, **{**HOW, **changes})


def of(results: CausalResults, method: str, direction: str):
    found = [e for e in results.effects if (e.method, e.direction, e.split) == (method, direction, "test")]
    assert found
    return found


@pytest.fixture(scope="module")
def read_out(acts) -> CausalResults:
    return curve(acts, "used", readout=READ.numpy())


def test_the_scalar_that_is_read_out_moves_all_the_way(read_out):
    """The readout is linear in the number, so that its exchange gives the counterpart's readout."""
    for direction in ("probe", "full vector"):
        assert [e.effect for e in of(read_out, "interchange", direction)] == pytest.approx([1, 1], abs=0.1)
    assert all(e.flip_rate > 0.9 for e in of(read_out, "interchange", "probe"))
    assert all(layer.quadrant == "read and used" for layer in read_out.layers)
    assert read_out.meta["behaviour"] == "linear readout"
    assert all(e.probability is None for e in read_out.effects)


@pytest.mark.parametrize("name", ["probe", "mean-difference"])
def test_an_exchange_moves_the_readout_by_the_scalar_along_the_direction(acts, read_out, name):
    """The oracle: along d the linear readout w moves by (w . d) times the difference of the two coordinates."""
    results = pk.train_probes(acts, label="used", quick=True, probe="ridge", C=[1.0, 100.0])
    question = causal_question(MODEL, acts, results, CausalOptions(readout=READ.numpy(), **HOW))
    rows, x_ND = answer_rows(question, "test"), acts["resid_pre", 0].double()
    train, labels = acts.splits == "train", acts.labels["used"]
    upper = train & (labels > np.median(labels[train]))
    means = {"mean-difference": x_ND[upper].mean(0) - x_ND[train & ~upper].mean(0)}
    d = means.get(name, torch.from_numpy(np.asarray(results.layers[0].probe.direction)).double().flatten())
    d, w = d / d.norm(), READ.double()
    there = x_ND[torch.from_numpy(rows.index)]
    way_ND = there[torch.from_numpy(rows.counterpart)] - there
    upwards = torch.sign(torch.from_numpy(labels[rows.index][rows.counterpart] - labels[rows.index]))
    expected = float((upwards * (way_ND @ d)).sum() * (w @ d) / (upwards * (way_ND @ w)).sum())
    (found,) = [e.effect for e in of(read_out, "interchange", name) if e.place == "resid_pre.0"]
    assert found == pytest.approx(expected, abs=1e-3)  # the norm divides by a constant up to 1e-4


def test_saved_results_of_numbers_are_loaded_with_all_they_say(read_out, acts, tmp_path):
    for i, found in enumerate((read_out, curve(acts, "idle", readout=READ.numpy(), methods="interchange"))):
        loaded = CausalResults.load(found.save(tmp_path / str(i)))
        assert loaded.summary() == found.summary()
        assert str(causal_report(loaded.data)) == str(causal_report(found.data))


@pytest.mark.parametrize("values", [[0, 0, 0, 1, 2], [2, 2, 2, 1, 0]])
def test_most_numbers_may_be_the_least_or_the_largest(acts, values):
    """The median is then an end of the numbers, and both halves have rows all the same."""
    labels = {"used": np.resize(values, len(acts.task)).astype(float)}
    some = with_task(acts, replace(acts.task, labels=labels, label_names={"used": []}))
    results = pk.train_probes(some, quick=True, probe="ridge", C=[1.0])
    question = causal_question(MODEL, some, results, CausalOptions(readout=READ.numpy(), **HOW))
    assert set(question.rows.labels) == {0, 1}


def test_a_dry_run_of_numbers_counts_no_search(acts):
    results = pk.train_probes(acts, label="used", quick=True, probe="ridge", C=[1.0])
    few = CausalOptions(readout=READ.numpy(), rows=2, placebos=1, layers=[0], completeness=False)
    assert set(plan_causal(MODEL, acts, results, few)["parts"]) == {"preparing", "edits", "what edits leave"}


def test_the_exchange_of_another_number_changes_nothing(acts, tmp_path):
    results = pk.train_probes(acts, label="idle", quick=True, probe="ridge", C=[1.0, 100.0])
    found = pk.causal_curve(MODEL, acts, results, readout=READ.numpy(), **HOW)
    assert found.meta["no_share"]  # the readout does not follow this label
    resumed = pk.causal_curve(MODEL, acts, results, readout=READ.numpy(), keep=tmp_path, **HOW)
    again = pk.causal_curve(MODEL, acts, results, readout=READ.numpy(), keep=tmp_path, **HOW)  # of the parts on disk
    assert repr(again.effects) == repr(resumed.effects) == repr(found.effects)
    swapped = of(found, "interchange", "probe")
    assert all(np.isnan(e.effect) for e in swapped)
    assert all(e.flip_rate < 0.2 for e in swapped)


def test_answers_that_are_numbers_give_the_expected_one(acts):
    found = curve(acts, "used", answers={ANSWERS[0]: 1.0, ANSWERS[1]: 0.0})
    assert [e.effect for e in of(found, "interchange", "probe")] == pytest.approx([1, 1], abs=0.1)
    assert found.meta["behaviour"] == "expected answer"
    assert list(found.meta["answers"]) == ["1", "0"]


def test_a_model_that_answers_against_the_label_is_said_to(acts):
    """Without a tokenizer words are ids: the larger numbers make 240 more probable, the smaller of the two answers."""
    found = curve(acts, "used", answers="240,241", placebos=0, methods="interchange")
    assert base_warning(found.data).startswith("Without edits the model's expected answer moves against the label")
    assert base_text(found.data).startswith("expected answer -0.")


def test_the_expected_answer_is_the_mean_over_the_answers_alone():
    hidden = torch.randn(5, D, generator=torch.Generator().manual_seed(1))
    token, value = torch.tensor([3, 9, 200]), torch.tensor([0.5, 2.0, -7.0]).double()
    with torch.no_grad():
        shares = MODEL.logits(hidden[:, None])[:, 0][:, token].softmax(-1)
        wanted = (shares.double() * value).sum(-1)
        found = readings(MODEL, NumberBehaviour(token, value), hidden)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "holds numbers: name the words of numbers"),
        ({"answers": "240,241", "readout": READ.numpy()}, "one of the two"),
        ({"answers": ["a", "b"]}, "answers to a label of numbers are numbers"),
        ({"readout": [1.0, 2.0]}, r"readout is \[16\]"),
        ({"readout": "x"}, "a vector of numbers"),
        ({"readout": READ.numpy(), "methods": "patch"}, "patch compares answers of two classes"),
        ({"readout": READ.numpy(), "answers_label": "idle"}, "leave --answers-label out"),
    ],
)
def test_what_a_label_of_numbers_cannot_ask_is_refused(acts, changes, message):
    with pytest.raises(UsageError, match=message):
        curve(acts, "used", **changes)
