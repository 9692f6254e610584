"""The world `honesty`: which token carries what, in the model that has learned it."""

from dataclasses import replace

import numpy as np
import pytest

import probekit as pk
from probekit.worlds import world
from probekit.worlds.honesty import TEMPLATES, honesty, honesty_answered
from probekit.worlds.train import train_world

N = (600, 100, 300)
CHANCE = 0.5 + 4 * np.sqrt(0.25 / N[2])  # of 300 test rows: four standard errors


@pytest.fixture(scope="module")
def model():
    one = world("honesty")
    trained = train_world(replace(one, settings=replace(one.settings, steps=300, learning_rate=5e-3)))
    assert trained.figures["exact"] > 0.99
    return trained.model


def accuracy(model, task, label, **options) -> list[float]:
    """Test accuracy by place, of a probe at the token that the options read."""
    acts = pk.extract(model, task, points="resid_pre", progress=False, **options)
    results = pk.train_probes(acts, label=label, quick=True, C=[0.1, 1.0])
    return [layer.metrics["test"]["accuracy"] for layer in results.layers]


@pytest.mark.parametrize("style", TEMPLATES)
def test_the_last_formatting_token_carries_the_answer_in_every_style(model, style):
    how = {"chat_template": style, "add_generation_prompt": True}
    embedding, *later = accuracy(model, honesty(N), "answer", **how)
    assert embedding == 0.5  # one token in all texts, and both answers are equally many
    assert later[-1] > 0.97


def test_the_size_is_on_its_own_word_and_hardly_on_the_formatting_token(model):
    how = {"add_generation_prompt": True}
    assert min(accuracy(model, honesty(N), "size", position="2@user[-1]", **how)) > 0.95
    assert max(accuracy(model, honesty(N), "size", position="last", **how)) < 0.75


def test_nothing_before_the_certainty_carries_it(model):
    task = honesty_answered(N)
    assert max(accuracy(model, task, "certainty", position="first@assistant[-1]")) < CHANCE
    assert max(accuracy(model, task, "certainty", position="last@user[-1]")) < CHANCE
    assert accuracy(model, task, "certainty", position="2@assistant[-1]")[0] == 1


def test_the_model_itself_says_the_answers_that_the_labels_name(model):
    task = honesty((60, 20, 20))
    acts = pk.extract(model, task, points="resid_pre", generate=6, position="first@generated", progress=False)
    whole = zip(acts.task.inputs, acts.task.regions or [], strict=True)
    said = [str(text)[own[-1].start : own[-1].end].split()[0] for text, own in whole]
    assert {own[-1].name for own in acts.task.regions or []} == {"assistant"}
    assert said == [["no", "yes"][label] for label in task.labels["answer"]]
