"""An answer after any token of a text: in a causal model what follows it changes nothing."""

import numpy as np
import pytest
import torch
from causal.curve.test_effects import OTHER, OWN, WORDS, linear_gpt2

import probekit as pk
from probekit.causal.erasure.recovery import extract_edited
from probekit.causal.results.results import CausalResults
from probekit.errors import DataError, UsageError
from probekit.interventions import add, replace
from probekit.points import Place

N = 120
NUMBERS = np.random.default_rng(1).permutation(WORDS)[:N]
SPLITS = np.repeat(["train", "validation", "test"], [60, 30, 30])
HOW = {"answers": [OWN, OTHER], "rows": 30, "placebos": 2, "scales": [1.0], "completeness": False, "das": False}
MODEL = linear_gpt2()


def curve(before: np.ndarray, after: int, position=None, **changes) -> CausalResults:
    """The curve of words that stand after `before` filling words and before `after` more."""
    inputs = [[*range(k), int(word), *range(after)] for k, word in zip(before, NUMBERS, strict=True)]
    labels = {"used": NUMBERS % 2}
    task = pk.Task("words", inputs, labels, {"used": ["up", "down"]}, splits=SPLITS, target="used")
    acts = pk.extract(MODEL, task, points=["resid_pre"], position=position)
    results = pk.train_probes(acts, quick=True, C=1.0)
    return pk.causal_curve(MODEL, acts, results, **{**HOW, **changes})


NONE = np.zeros(N, dtype=int)


@pytest.fixture(scope="module")
def alone() -> CausalResults:
    return curve(NONE, 0)


def assert_equal(found: CausalResults, wanted: CausalResults) -> None:
    assert [e.effect for e in found.effects] == pytest.approx([e.effect for e in wanted.effects], abs=1e-4)


def test_tokens_after_the_answer_change_nothing(alone):
    assert all(e.effect == pytest.approx(1, abs=1e-4) for e in alone.effects if e.direction == "full vector")
    found = curve(NONE, 2, position="first", answer_at="first")
    assert_equal(found, alone)
    assert found.meta["answer_token"] == "first token"
    assert_equal(curve(NONE, 2, position=0, answer_at=-3), alone)
    at_the_end = curve(NONE, 2, position="first")  # where the model has not the word any more
    assert not any(e.effect > 0.5 for e in at_the_end.effects)


def test_each_example_may_have_its_own_token(alone):
    before = np.arange(N) % 3
    found = curve(before, 1, position=before, answer_at=before, methods="erase,steer")
    assert found.meta["answer_token"] == "one given token in each text"
    wanted = [e for e in alone.effects if e.method != "interchange"]
    assert [e.effect for e in found.effects] == pytest.approx([e.effect for e in wanted], abs=1e-3)


def test_the_search_reads_the_answer_there_too():
    found = curve(NONE, 2, position="first", answer_at=0, das=True, methods="interchange")
    assert all(e.effect == pytest.approx(1, abs=0.05) for e in found.effects if e.direction == "das")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"answer_at": "mean"}, UsageError, "'mean' names several"),
        ({"answer_at": "-5:"}, UsageError, "names several"),
        ({"answer_at": [0.5] * N}, UsageError, "one token of each text"),
        ({"answer_at": [0] * 3}, UsageError, "answer_at has 3 indices for 120 examples"),
        ({"answer_at": 7}, DataError, r"name a token that each text has \(--answer-at\)"),
        ({"answer_at": 0}, UsageError, "the answer is read after token 0, before the edited token 2"),
    ],
)
def test_tokens_that_cannot_be_asked_are_refused(changes, error, message):
    with pytest.raises(error, match=message):
        curve(NONE, 2, **changes)


def test_a_model_of_masks_needs_none_where_the_token_is_named():
    from tiny_configs import tiny_model

    model = tiny_model("bert")
    ids = torch.randint(5, 50, (60, 4), generator=torch.Generator().manual_seed(0))
    labels = {"odd": (ids[:, 1] % 2).numpy()}
    splits = np.repeat(["train", "validation", "test"], 20)
    task = pk.Task("t", ids.tolist(), labels, {"odd": ["even", "odd"]}, splits=splits, target="odd")
    acts = pk.extract(model, task, points=["resid_pre"], layers=[1], position=1)
    results = pk.train_probes(acts, quick=True, C=1.0)
    found = pk.causal_curve(model, acts, results, **{**HOW, "answers": [2, 3], "answer_at": 2})
    assert found.meta["answer_token"] == "token 2"
    with pytest.raises(UsageError, match=r"tokenizer\.json with \[MASK\]"):
        pk.causal_curve(model, acts, results, **{**HOW, "answers": [2, 3]})


def test_a_bidirectional_model_without_a_mask_answers_where_the_probes_read():
    """As if that token were named."""
    from tiny_configs import tiny_model

    model = tiny_model("hooked-attention-normless-bidirectional")
    ids = torch.randint(5, 50, (60, 4), generator=torch.Generator().manual_seed(0))
    labels = {"odd": (ids[:, 1] % 2).numpy()}
    splits = np.repeat(["train", "validation", "test"], 20)
    task = pk.Task("t", ids.tolist(), labels, {"odd": ["even", "odd"]}, splits=splits, target="odd")
    acts = pk.extract(model, task, points=["resid_pre"], position=1)
    results = pk.train_probes(acts, quick=True, C=1.0)
    how = {**HOW, "answers": [2, 3]}
    found = pk.causal_curve(model, acts, results, **how)
    assert found.meta["answer_token"] == "token that the probes read"
    named, last = (
        [e.effect for e in pk.causal_curve(model, acts, results, **{**how, "answer_at": at}).effects]
        for at in (1, "last")
    )
    assert [e.effect for e in found.effects] == pytest.approx(named, abs=1e-4, nan_ok=True)
    assert named != pytest.approx(last, abs=1e-4, nan_ok=True)
    assert np.isfinite(named).sum() > 50


def test_positions_that_extract_was_given_are_those_that_are_edited_again():
    """Tokens of an array are read and edited there, and not at the task's own position."""
    before = np.arange(N) % 3
    inputs = [[*range(k), int(word), 7] for k, word in zip(before, NUMBERS, strict=True)]
    labels = {"used": NUMBERS % 2}
    task = pk.Task("words", inputs, labels, {"used": ["up", "down"]}, splits=SPLITS, target="used")
    acts = pk.extract(MODEL, task, points=["resid_pre"], position=before)
    test = acts.task.subset(np.flatnonzero(acts.task.splits == "test")[::-1])
    place = Place("resid_pre", 0)
    again = extract_edited(MODEL, acts, test, [place], {place: replace(torch.ones(16))}, "read")
    assert (again["resid_pre", 0] == 1).all()
    plain = extract_edited(MODEL, acts, test, [place], {place: add(torch.ones(16), 0)}, "read")
    words = torch.from_numpy(NUMBERS[acts.task.splits == "test"][::-1].copy())
    assert torch.equal(plain["resid_pre", 0], MODEL.embed.weight[words])
