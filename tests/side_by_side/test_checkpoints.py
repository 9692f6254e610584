"""Checkpoints of one model: a label that training makes decodable, found at the step and the layer where it appears."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from planted_runs import made, planted, trained

import probekit as pk
from probekit.errors import UsageError
from probekit.evaluation import ProbeResults
from probekit.models.examples import IGNORE, Example
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.models.training import train
from probekit.options import TrainingSettings
from probekit.side_by_side.steps import training_step
from probekit.tasks.base import Task

CFG = GPT2Config(d_model=16, n_heads=2, d_mlp=32, n_layers=2, n_ctx=8, d_vocab=10, bos_token_id=0)
STEPS = (0, 1, 60)


def texts(rng: np.random.Generator, n: int) -> tuple[list[list[int]], np.ndarray]:
    """A class (token 1 or 2), three tokens of noise, and a last token that is always the same."""
    labels = np.arange(n) % 2
    return [[1 + int(label), *rng.integers(3, 9, size=3).tolist(), 9] for label in labels], labels


def at_step(steps: int) -> GPT2:
    """A model that learned for some steps to say the class after the last token.

    Its attention writes nothing at first, so its last token knows nothing of the others.
    """
    model = GPT2(CFG).init_weights(0)
    for name, weights in model.named_parameters():
        if ".attn.out." in name:
            torch.nn.init.zeros_(weights)
    if not steps:
        return model.eval()

    def draw(step: int) -> list[Example]:
        rows, labels = texts(np.random.default_rng(step), 32)
        return [Example(row, [IGNORE] * 4 + [1 + int(label)]) for row, label in zip(rows, labels, strict=True)]

    train(model, draw, TrainingSettings(steps=steps, batch_size=32, learning_rate=0.02, warm_up_steps=1))
    return model.eval()


@pytest.fixture(scope="module")
def runs() -> list[ProbeResults]:
    """The curves of the steps, the last step first."""
    rows, labels = texts(np.random.default_rng(99), 240)
    splits = np.array(["train", "train", "validation", "validation", "test", "test"])[np.arange(240) % 6]
    task = Task("copy", rows, {"kind": labels}, {"kind": ["one", "two"]}, splits, target="kind")
    found = []
    for step in STEPS[::-1]:
        model = at_step(step)
        model.name, model.revision = "tiny", f"step{step}"
        found.append(trained(pk.extract(model, task), intervals=True))
    return found


def test_the_label_is_found_where_training_put_it(runs):
    found = pk.compare(runs, by="step")
    assert found.steps == list(STEPS)
    assert found.place_names == ["resid_pre.0", "resid_pre.1", "resid_post.1"]
    before, after = found.runs[0], found.runs[-1]
    assert [place.value for place in before.places] == [0.5] * 3  # equal activations, whatever the label
    assert not any(place.above_chance is not None and place.above_chance <= 0.05 for place in before.places)
    assert after.places[0].value == 0.5  # the last token's embedding
    assert after.places[-1].value == 1.0
    assert after.places[-1].above_chance is not None
    assert after.places[-1].above_chance <= 0.05
    first = next(run for run in found.runs if any((place.above_chance or 1) <= 0.05 for place in run.places))
    assert f"First above chance at step {first.step}:" in found.summary()
    assert np.array_equal(found.matrix, np.array([[place.value for place in run.places] for run in found.runs]).T)
    assert [(each.run, each.minus) for each in found.differences] == [(1, 0), (2, 1)]


def test_the_p_values_of_the_grid_are_corrected_for_every_cell(runs):
    """The same run alone needs less correction than among others."""
    last = [place.above_chance for place in pk.compare(runs, by="step").runs[-1].places]
    least = [place.above_chance for place in pk.compare(runs[:2], by="step").runs[-1].places]
    assert all(one is not None and other is not None and one >= other for one, other in zip(last, least, strict=True))


def test_steps_without_scores_of_rows_say_why_nothing_is_tested(runs):
    bare = [ProbeResults(run.layers, run.baselines, run.meta) for run in runs]
    found = pk.compare(bare, by="step")
    assert "no test of chance: the results hold no scores of their test rows" in found.summary()
    assert {place.above_chance for run in found.runs for place in run.places} == {None}


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step1000", 1000),
        ("global_step0", 0),
        ("stage1-step10000-tokens42B", 10_000),
        ("step1000-tokens4B", 1000),
        ("checkpoint-500", 500),
        ("iter_0000400", 400),
        ("300B", 300_000_000_000),
        ("step10k", 10_000),
        ("ckpt-1.5M", 1_500_000),
        ("v2.0", None),
        ("main", None),
        (None, None),
        ("0" * 39 + "1", None),
        ("step" + "9" * 30, None),
    ],
)
def test_the_step_is_the_number_in_the_name(name, step):
    assert training_step(name) == step


def of_step(step: int, **meta: Any) -> ProbeResults:
    return made([0, 1] * 20, [0, 1] * 20, activations={"revision": f"step{step}"}, **meta)


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ({"activations": {}}, "is not of a checkpoint with a step in its name, such as step1000 (extract --revision)"),
        ({"activations": {"revision": "main"}}, "is not of a checkpoint"),
        ({"model": "other"}, "--by step takes checkpoints with one model; got 'tiny' and 'other'"),
        ({"probe": "ridge"}, "--by step takes checkpoints with one probe; got 'logistic' and 'ridge'"),
        (
            {"C": [1.0], "probe": "logistic"},
            "--by step takes checkpoints with one --probe.C; got 'no --probe.C' and 'C 1.0'",
        ),
        (
            {"activations": {"revision": "step2", "bos": True}},
            "checkpoints with one --bos; got 'no --bos' and 'bos True'",
        ),
        (
            {"activations": {"revision": "stage2-step2"}},
            "differ in the step alone; got '' and 'stage2-' before the number",
        ),
        ({"activations": {"revision": "step1"}}, "two runs are of step 1; give one for each step"),
    ],
)
def test_what_is_no_series_of_checkpoints_is_refused(others, says):
    about = {"activations": {"revision": "step2"}, **others}
    with pytest.raises(UsageError, match=re.escape(says)):
        pk.compare([of_step(1), made([0, 1] * 20, [0, 1] * 20, **about)], by="step")


def test_other_layers_are_refused():
    other = of_step(2)
    other.layers[0] = replace(other.layers[0], layer=1)
    with pytest.raises(UsageError, match="the same layers"):
        pk.compare([of_step(1), other], by="step")


def test_checkpoints_are_curves_too():
    acts = [planted(seed=i, revision=f"step{i}", model_fingerprint=str(i)) for i in range(2)]
    found = pk.compare([trained(each) for each in acts])
    assert [run.name for run in found.runs] == ["step0", "step1"]
    assert [run.step for run in found.runs] == [0, 1]
    assert found.groups == []
