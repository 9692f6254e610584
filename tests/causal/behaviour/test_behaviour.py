"""Behaviours: the logits of chosen tokens, the measures of edited runs and losses equal what the whole logits give."""

from typing import Any

import pytest
import torch
from models.adapter.wrapped import wrapped
from tiny_configs import tiny_configs, tiny_model
from torch.nn.functional import cross_entropy

from probekit.causal.behaviour.measure import (
    Behaviour,
    CustomBehaviour,
    by_label,
    headline,
    logit_differences,
    loss_per_token,
    measure,
    token_losses,
)
from probekit.causal.behaviour.unembedding import chosen_logits, logits_of
from probekit.errors import DataError, UsageError
from probekit.interventions import Add, editing, replace

TOKENS = torch.randint(5, 50, (3, 9), generator=torch.Generator().manual_seed(0))
WITH_HEAD = [name for name in tiny_configs() if tiny_model(name).has_logits]
ADAPTED = ["gptj", "opt", "granite", "cohere", "gemma2", "electra", "mamba"]  # scaled, capped and transformed heads
OWN, OTHER = torch.tensor([7, 8, 9]), torch.tensor([3, 8, 40])
RANDOM = torch.Generator().manual_seed(3)


def run(model, tokens=TOKENS, **kwargs):
    """A forward of any family: the source of an encoder-decoder is the target reversed."""
    return model(tokens.flip(1), tokens, **kwargs) if type(model).__name__ == "Transformer" else model(tokens, **kwargs)


def assert_close(got, wanted):
    assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@torch.no_grad()
@pytest.mark.parametrize("name", [*WITH_HEAD, *(f"adapted {kind}" for kind in ADAPTED)])
def test_logits_of_chosen_tokens_are_those_of_the_forward(name):
    model = wrapped(name.removeprefix("adapted ")) if name.startswith("adapted ") else tiny_model(name)
    hidden_VD, logits_VV = run(model, return_logits=False)[:, -1], run(model)[:, -1]
    assert logits_VV.shape == (3, model.cfg.d_vocab)
    assert_close(logits_of(model, hidden_VD), logits_VV)
    pairs = torch.stack([OWN, OTHER], 1)
    assert_close(chosen_logits(model, hidden_VD, pairs), logits_VV.gather(1, pairs))
    wanted = logits_VV.gather(1, pairs)[:, 0] - logits_VV.gather(1, pairs)[:, 1]
    assert (logit_differences(model, hidden_VD, OWN, OTHER) - wanted).abs().max() <= 1e-5 * logits_VV.abs().max()


def test_a_gradient_is_the_difference_of_two_rows_of_the_head():
    model = tiny_model("gpt2")
    hidden_VD = torch.randn(3, 32, generator=RANDOM, requires_grad=True)
    (slope_VD,) = torch.autograd.grad(logit_differences(model, hidden_VD, OWN, OTHER).sum(), hidden_VD)
    assert torch.allclose(slope_VD, model.embed.weight[OWN] - model.embed.weight[OTHER], atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "gemma2", "bert"])
def test_measures_equal_their_definitions(name, monkeypatch):
    model = tiny_model(name)
    monkeypatch.setattr("probekit.causal.behaviour.unembedding.LOGITS", 100)  # two rows at once
    base_VD = torch.randn(2, 32, generator=RANDOM)[torch.tensor([0, 1, 0])]
    hidden_VD = base_VD + 3 * torch.randn(3, 32, generator=RANDOM)
    got = measure(model, hidden_VD, base_VD, OWN, OTHER)
    p, q = (logits_of(model, x).double().softmax(-1) for x in (base_VD, hidden_VD))
    rows = torch.arange(3)
    assert torch.allclose(got.kl.double(), (p * (p / q).log()).sum(-1), atol=1e-5)
    assert torch.allclose(got.probability.double(), q[rows, OWN], atol=1e-6)
    odds, before = ((x[rows, OWN] / x[rows, OTHER]).log() for x in (q, p))
    assert torch.allclose(got.logit_difference.double(), odds, atol=1e-4)
    assert got.flipped.tolist() == ((odds > 0) != (before > 0)).tolist()


@torch.no_grad()
def test_a_small_divergence_has_its_digits():
    """In float32 the rounding of the sum is larger than a KL of 1e-9."""
    model = tiny_model("gpt2")
    base_VD = torch.randn(3, 32, generator=RANDOM)
    hidden_VD = base_VD + 1e-4 * torch.randn(3, 32, generator=RANDOM)
    p, q = (logits_of(model, x).double().softmax(-1) for x in (base_VD, hidden_VD))
    wanted = (p * (p / q).log()).sum(-1)
    assert float(wanted.max()) < 1e-7
    got = measure(model, hidden_VD, base_VD, OWN, OTHER).kl.double()
    torch.testing.assert_close(got, wanted, rtol=1e-2, atol=0)


def test_nothing_changes_where_nothing_was_edited():
    hidden_VD = torch.randn(3, 32, generator=RANDOM)
    got = measure(tiny_model("llama"), hidden_VD, hidden_VD, OWN, OTHER)
    assert got.kl.tolist() == [0, 0, 0]
    assert not got.flipped.any()


def test_labels_give_the_answers():
    got = by_label(torch.tensor([0, 2, 1, 2]).numpy(), [10, 11, 12], torch.zeros(4).long())
    assert got.own_N.tolist() == [10, 12, 11, 12]
    assert got.other_N.tolist() == [11, 10, 12, 10]  # the next class, and after the last the first
    missing = by_label(torch.tensor([0, 2]).numpy(), [10, 11, 12], torch.zeros(2).long())
    assert missing.other_N.tolist() == [12, 10]  # of the classes that occur
    given = by_label(torch.tensor([0, 2]).numpy(), [10, 11, 12], torch.zeros(2).long(), torch.tensor([1, 1]).numpy())
    assert given.other_N.tolist() == [11, 11]
    for wrong in ([0, -1], [0, 3]):
        with pytest.raises(UsageError, match=r"classes are 0\.\.2, one for each answer"):
            by_label(torch.tensor(wrong).numpy(), [10, 11, 12], torch.zeros(2).long())
    with pytest.raises(DataError, match="one label"):
        by_label(torch.tensor([1, 1]).numpy(), [10, 11], torch.zeros(2).long())


def test_a_custom_behaviour_sees_the_logits_and_the_texts(monkeypatch):
    monkeypatch.setattr("probekit.causal.behaviour.unembedding.LOGITS", 100)
    model, text_V = tiny_model("gpt2"), torch.tensor([2, 0, 1])
    hidden_VD = torch.randn(3, 32, generator=RANDOM)
    plain = Behaviour(OWN, OTHER, torch.zeros(3).long())

    def difference(logits, rows):
        return (logits.gather(1, OWN[rows, None]) - logits.gather(1, OTHER[rows, None]))[:, 0]

    custom = CustomBehaviour(difference, torch.zeros(3).long())
    with torch.no_grad():
        wanted = headline(model, plain, hidden_VD, text_V)
        assert torch.allclose(headline(model, custom, hidden_VD, text_V), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda logits, rows: logits, r"'mine' must return a tensor \[3\], a number for each run; got \[3, 50\]"),
        (lambda logits, rows: 1.0, "got float"),
        (lambda logits, rows: logits[:, 0] / 0, "not finite"),
    ],
)
def test_a_custom_behaviour_is_checked(function, why):
    custom = CustomBehaviour(function, torch.zeros(3).long(), "mine")
    with pytest.raises(UsageError, match=why):
        headline(tiny_model("gpt2"), custom, torch.ones(3, 32), torch.arange(3))


TEXTS = [TOKENS[0, :5].tolist(), TOKENS[1].tolist(), [4], TOKENS[2, :2].tolist()]


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "gemma2", "adapted bloom", "adapted mamba"])
def test_the_loss_is_that_of_each_text_alone(name, monkeypatch):
    monkeypatch.setattr("probekit.causal.behaviour.measure.TOKENS", 16)
    model = wrapped(name.removeprefix("adapted ")) if name.startswith("adapted ") else tiny_model(name)
    edit: Any = {("resid_pre", 1): Add(torch.linspace(-1, 1, model.cfg.d_model), scale=0.5)}

    def plainly():
        runs = [(model(torch.tensor([ids]))[0, :-1], torch.tensor(ids[1:])) for ids in TEXTS if len(ids) > 1]
        return float(torch.cat([cross_entropy(*each, reduction="none") for each in runs]).mean())

    before = plainly()
    assert loss_per_token(model, TEXTS) == pytest.approx(before, rel=1e-5)
    with editing(model, edit):
        after = plainly()
    assert loss_per_token(model, TEXTS, edit) == pytest.approx(after, rel=1e-5)
    assert abs(after - before) > 1e-3
    assert loss_per_token(model, TEXTS) == pytest.approx(before, rel=1e-5)


def test_the_loss_of_each_text_under_its_own_edit(monkeypatch):
    """Each text takes its row of the edit, at its own tokens, whatever the batch."""
    monkeypatch.setattr("probekit.causal.behaviour.measure.TOKENS", 16)
    model = tiny_model("gpt2")
    source = torch.randn(len(TEXTS), model.cfg.d_model, generator=RANDOM)
    edited = [[0, 3], [2], [0], []]
    found = token_losses(model, TEXTS, {("resid_pre", 1): replace(source)}, edited)
    plain = token_losses(model, TEXTS)
    assert [len(losses) for losses in found] == [len(ids) - 1 for ids in TEXTS]
    for i, ids in enumerate(TEXTS):
        at = torch.tensor([[k in edited[i] for k in range(len(ids))]])
        with torch.no_grad(), editing(model, {("resid_pre", 1): replace(source[i])}, at):
            wanted = cross_entropy(model(torch.tensor([ids]))[0, :-1], torch.tensor(ids[1:]).long(), reduction="none")
        assert torch.allclose(found[i], wanted.double(), atol=1e-5)
    assert torch.allclose(found[3], plain[3], atol=1e-6)
    assert float((found[0] - plain[0]).abs().max()) > 1e-2
    with pytest.raises(UsageError, match="edited gives the tokens of 1 texts, got 4 texts"):
        token_losses(model, TEXTS, {}, [[0]])


@torch.no_grad()
def test_small_losses_have_all_their_digits():
    """Equal to the same model in float64, on a text that it predicts with losses of about 1e-7."""
    model = tiny_model("gpt2").__class__(tiny_model("gpt2").cfg).init_weights(0)
    ids = [1]
    while len(ids) < 8:
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    logits_LV = model(torch.tensor([ids]))[0, :-1]
    leads_L2 = logits_LV.topk(2).values
    model.ln_final.weight *= 16 / (leads_L2[:, 0] - leads_L2[:, 1]).median()  # e**-16 = 1e-7
    model.ln_final.bias.zero_()
    found = token_losses(model, [ids])[0]
    model.double()
    wanted = -model(torch.tensor([ids]))[0, :-1].log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    assert float(wanted.min()) < 1e-6
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-12)


def test_a_text_longer_than_the_context_is_cut():
    model, ids = tiny_model("gpt2"), [1, 2, 3] * 20
    assert loss_per_token(model, [ids]) == loss_per_token(model, [ids[: model.cfg.n_ctx]])


@pytest.mark.parametrize(
    ("name", "texts", "error", "why"),
    [
        ("marian", [[1, 2]], UsageError, "a source and a target"),
        ("bert-headless", [[1, 2]], UsageError, "bert-headless has no head"),
        ("gpt2", [[1], []], DataError, "no text has a token to predict"),
    ],
)
def test_what_has_no_loss_is_refused(name, texts, error, why):
    with pytest.raises(error, match=why):
        loss_per_token(tiny_model(name), texts)
