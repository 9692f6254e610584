"""Labels of tokens through extraction, stores, repair and the views of one token or of all."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from store_cases import assert_equal, plan_of

from probekit.activations import extract_statistics, load_activations, repair
from probekit.activations.plan.summary import describe_plan
from probekit.activations.store.format import read_plan
from probekit.errors import DataError, UsageError
from probekit.verbs.extract import extract

HOW: dict[str, Any] = {"points": "resid_pre,resid_post", "position": "all"}


@pytest.fixture
def task(letters):
    return with_labels(letters(longest=11, texts=False))


def with_labels(task):
    rng = np.random.default_rng(3)
    labels = {
        "class": [[int(i) % 3 for i in ids] for ids in task.inputs],
        "value": [rng.normal(size=len(ids)) for ids in task.inputs],
        "point": [rng.normal(size=(len(ids), 2)) for ids in task.inputs],
    }
    names = {**task.label_names, "class": ["x", "y", "z"]}
    return dataclasses.replace(task, token_labels=labels, label_names=names, target="class")


@pytest.mark.parametrize(("position", "at"), [("last", -1), ("first", 0), (1, 1), (-2, -2)])
def test_one_token_has_its_own_label(model, letters, position, at):
    task = with_labels(letters(shortest=2, longest=11, texts=False))
    wanted = {name: np.stack([one[at] for one in labels]) for name, labels in task.token_labels.items()}
    every = extract(model, task, bos=True, **HOW)
    only = extract(model, task, bos=True, **{**HOW, "position": position})
    for acts in (every.at(position), only.at(position)):
        assert {name: acts.labels[name].tolist() for name in wanted} == {k: v.tolist() for k, v in wanted.items()}
        assert torch.allclose(acts["resid_pre.1"], only["resid_pre.1"], atol=1e-5)


def test_each_text_may_have_its_own_position(model, letters):
    index = np.arange(23) % 2
    task = dataclasses.replace(with_labels(letters(shortest=2, longest=11, texts=False)), position=index)
    acts = extract(model, task, points="resid_pre").at("per example")
    assert acts.labels["class"].tolist() == [one[i] for one, i in zip(task.token_labels["class"], index, strict=True)]
    other = extract(model, task, points="resid_pre", position=1 - index).at("per example")
    assert other.labels["class"].tolist() == [
        one[1 - i] for one, i in zip(task.token_labels["class"], index, strict=True)
    ]


def test_a_store_gives_every_label_back_and_is_repaired(model, task, path):
    stored = extract(model, task, out=path, **HOW)
    again = load_activations(path)
    for acts in (stored, again):
        assert acts.task.fingerprint() == task.fingerprint()
        assert acts.target == "class"
        for name, labels in task.token_labels.items():
            for one, other in zip(acts.task.token_labels[name], labels, strict=True):
                assert one.dtype == np.asarray(other).dtype
                assert one.tobytes() == np.asarray(other).tobytes()
    shard = next((path / "shards").iterdir())
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    repair(path, model)
    assert_equal(load_activations(path).at("all"), extract(model, task, **HOW).at("all"))
    assert extract(model, task, out=path, **HOW).task.fingerprint() == read_plan(path).identity["task_fingerprint"]


def test_refusals_say_what_to_do(model, task):
    last = extract(model, task, points="resid_pre", position="last")
    with pytest.raises(UsageError, match=r"needs the activations of all tokens, and these are of last; extract again"):
        last.at("all")
    with pytest.raises(UsageError, match="each label belongs to one token, and position mean reads several"):
        extract(model, task, **HOW).at("mean")
    with pytest.raises(UsageError, match="'class' has one for each token; leave --stats out"):
        extract_statistics(model, task)
    with pytest.raises(DataError, match="and the task has targets of a decoder"):
        dataclasses.replace(task, targets=task.inputs).check()


def test_places_side_by_side_are_one_place(model, task, path):
    for acts in (extract(model, task, **HOW), extract(model, task, out=path, **HOW)):
        joined = acts.at("all").concatenated(["resid_pre.0", ("resid_pre", 2), "resid_post.2"])
        name = "resid_pre_0_2_and_resid_post_2"
        assert list(joined) == [(name, None)]
        assert joined.curve(name) == [(name, None)]
        every = acts.at("all")
        parts = [every["resid_pre.0"], every["resid_pre.2"], every["resid_post.2"]]
        assert torch.equal(joined[name], torch.cat(parts, dim=1))
        assert torch.equal(acts.concatenated(["resid_pre.1"]).at("last")["resid_pre_1"], acts.at("last")["resid_pre.1"])
    with pytest.raises(UsageError, match="one row for each token can be put side by side; got nothing"):
        acts.concatenated([])


def test_the_plan_says_what_a_target_of_several_numbers_is(model, task, path):
    told = describe_plan(plan_of(model, dataclasses.replace(task, target="point"), **HOW))
    assert "point is 2 numbers for each token, " in told
    values = np.random.default_rng(0).normal(size=(23, 3))
    task = dataclasses.replace(task, token_labels={}, labels={"at": values}, label_names={"at": []}, target="at")
    assert "at is 3 numbers, " in describe_plan(plan_of(model, task))
    extract(model, task, out=path, points="resid_pre")
    assert load_activations(path).labels["at"].tobytes() == values.tobytes()
