"""Fresh probes after an edit of a running model."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_configs import new_model, tiny_model

from probekit.activations import Activations
from probekit.causal.erasure.completeness import read_afresh
from probekit.causal.erasure.erase import fit_eraser
from probekit.causal.erasure.recovery import read_after_edit
from probekit.errors import UsageError
from probekit.interventions import Replace
from probekit.points import Place
from probekit.tasks import Task
from probekit.verbs.extract import extract

N = 90


@pytest.fixture(scope="module")
def task() -> Task:
    """Whether the last token is an 8 or a 9, and whether the first is; lengths differ."""
    rng = np.random.default_rng(0)
    last, first = rng.integers(0, 2, N), rng.integers(0, 2, N)
    inputs = [
        [8 + f, *rng.integers(10, 50, rng.integers(1, 5)).tolist(), 8 + y] for y, f in zip(last, first, strict=True)
    ]
    splits = np.resize(["train", "validation", "test"], N)
    return Task("t", inputs, {"last": last, "first": first}, splits=splits, target="last")


@pytest.fixture(scope="module")
def acts(task) -> Activations:
    return extract(tiny_model("gpt2"), task, out=None)


def test_where_all_tokens_are_replaced_by_a_constant_nothing_is_left_here_or_later(acts):
    model, before = tiny_model("gpt2"), read_afresh(acts)
    constant = Replace(torch.ones(model.cfg.d_model))
    found = read_after_edit(model, acts, "resid_pre.1", constant, before=before, at="all")
    assert found.places == [("resid_pre", 1), ("resid_pre", 2), ("resid_post", 2)]
    assert [found.after.scores["last"].values[place] for place in found.places] == [0.5, 0.5, 0.5]
    assert found.completeness == [1, 1, 1]
    assert before.scores["last"].values[Place("resid_pre", 1)] > 0.95


def test_an_edit_of_nothing_leaves_everything(acts):
    nothing = Replace(torch.ones(tiny_model("gpt2").cfg.d_model), scale=0)
    found = read_after_edit(tiny_model("gpt2"), acts, ("resid_pre", 2), nothing)
    assert found.completeness == [0, 0]
    assert found.before == found.after


def test_bad_input_is_refused(acts, task):
    model, edit = tiny_model("gpt2"), Replace(torch.ones(32))
    with pytest.raises(UsageError, match="other weights than those of gpt2"):
        read_after_edit(new_model("gpt2").init_weights(3), acts, "resid_pre.1", edit)
    every = extract(model, task, layers=[1], position="all", out=None)
    with pytest.raises(UsageError, match="several tokens of each text"):
        read_after_edit(model, every, "resid_pre.1", edit)
    with pytest.raises(UsageError, match="each token is an example"):
        read_after_edit(model, every.at("all"), "resid_pre.1", edit)
    with pytest.raises(UsageError, match="no one token is read"):
        read_after_edit(model, every.at("mean"), "resid_pre.1", edit)


def test_the_token_that_is_read_is_edited_wherever_it_is(task):
    """At a position of each text's own, and at an index."""
    model, edit = tiny_model("gpt2"), Replace(torch.ones(32))
    own = replace(task, position=np.zeros(N, dtype=int))
    for one, position in ((own, None), (task, 0)):
        acts = extract(model, one, layers=[1, 2], position=position, out=None)
        found = read_after_edit(model, acts, "resid_pre.1", edit, "first")
        assert found.before.scores["first"].values[Place("resid_pre", 1)] > 0.9
        assert found.after.scores["first"].values[Place("resid_pre", 1)] == 0.5


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_what_the_model_computes_with_an_eraser_is_what_the_eraser_gives(name, task):
    """And no linear map reads the label from it on the rows that were fitted."""
    model, place = tiny_model(name), ("resid_pre", 1)
    acts = extract(model, task, layers=[1], position="last", out=None)
    eraser = fit_eraser(acts, place, "first")
    edited = extract(
        model, task, layers=[1], position="last", edits={place: eraser.edit}, edit_positions="read", out=None
    )
    torch.testing.assert_close(edited[place], eraser(acts[place]), rtol=1e-5, atol=1e-5)
    train = task.splits == "train"
    y = torch.from_numpy(task.labels["first"][train])
    before, after = (x[train].double() for x in (acts[place], edited[place]))
    assert (after[y == 0].mean(dim=0) - after[y == 1].mean(dim=0)).abs().max() < 1e-5
    assert (before[y == 0].mean(dim=0) - before[y == 1].mean(dim=0)).abs().max() > 1e-2
