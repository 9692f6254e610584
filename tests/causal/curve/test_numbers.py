"""Labels that are numbers: the interchange of a scalar, and its effect on a number that the model answers."""

from typing import Any

import numpy as np
import pytest
import torch
from causal.curve.test_effects import IDLE, READ, D, linear_gpt2

import probekit as pk
from probekit.causal.behaviour.numbers import NumberBehaviour, readings
from probekit.causal.results.checklist import base_text, base_warning
from probekit.causal.results.results import CausalResults
from probekit.errors import UsageError

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
    assert base_text(found.data).startswith("half the difference of the expected answer to the counterpart's -0.")


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
