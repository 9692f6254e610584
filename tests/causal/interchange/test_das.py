"""Distributed alignment search finds a direction that was planted, and says when there is none."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from probekit.causal.behaviour.measure import Behaviour, CustomBehaviour
from probekit.causal.branches.run import run_trunk
from probekit.causal.directions.directions import mean_difference_direction, moments_of_rows
from probekit.causal.directions.placebos import angle
from probekit.causal.interchange.counterparts import choose_counterparts
from probekit.causal.interchange.das import Search, find_das
from probekit.causal.interchange.interchange import Interchange, interchange_effect
from probekit.errors import DataError, UsageError
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.points import Place

D, WORDS = 16, 80


def contrast(i: int) -> Tensor:
    """A direction of mean 0, so that the final norm keeps it."""
    direction = torch.zeros(D)
    direction[i], direction[i + 1] = 0.5**0.5, -(0.5**0.5)
    return direction


READ = contrast(4)  # what the model reads
TWIN = contrast(9)  # what has the same label in it, and is not read
SEARCH = Search(steps=100, batch=16, restarts=2, seed=0)


def linear_gpt2() -> GPT2:
    """A GPT-2 whose blocks add nothing and whose norm divides by a constant: logit(0) - logit(1) is linear.

    Two large coordinates hold the variance at 125,000, beside which that of the others is 1e-4 of it at most.
    """
    model = GPT2(GPT2Config(d_model=D, n_heads=2, n_layers=1, n_ctx=4, d_mlp=8, d_vocab=WORDS + 2)).eval()
    assert sum(p.numel() for p in model.parameters()) < 10_000
    generator = torch.Generator().manual_seed(0)
    sign = torch.tensor([1.0, -1.0]).repeat(WORDS // 2)
    noise = 0.6 * torch.randn(WORDS, D, generator=generator)
    noise[:, :2] = 0
    noise[:, 2:] -= noise[:, 2:].mean(dim=1, keepdim=True)  # the norm subtracts the mean
    words = sign[:, None] * (READ + 2 * TWIN) + noise
    words[:, :2] = torch.tensor([1000.0, -1000.0])
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
        model.embed.weight[:WORDS] = words
        model.ln_final.get_parameter("weight").fill_(353.0)
        model.embed.weight[WORDS], model.embed.weight[WORDS + 1] = READ, -READ
    return model


@pytest.fixture(scope="module")
def planted():
    model = linear_gpt2()
    texts = [[int(i)] for i in np.random.default_rng(1).permutation(WORDS)]
    labels = np.array([text[0] % 2 for text in texts])
    splits = np.repeat(["train", "validation"], [50, 30])
    counterparts = choose_counterparts(labels, np.ones(WORDS), splits=splits)
    own = torch.from_numpy(labels) + WORDS
    x: Tensor = model.embed.weight[[text[0] for text in texts]].detach()
    behaviour = Behaviour(own, 2 * WORDS + 1 - own, torch.zeros(WORDS, dtype=torch.int64))
    swap = Interchange(
        Place("resid_pre", 0), run_trunk(model, texts), behaviour, x, behaviour.answer_N, torch.from_numpy(counterparts)
    )
    return model, swap, labels, np.flatnonzero(splits == "train"), np.flatnonzero(splits == "validation")


def searched(planted, search):
    model, swap, _, train, validation = planted
    return find_das(model, swap, train, validation, search)


@pytest.fixture(scope="module")
def found(planted):
    return searched(planted, SEARCH)


def test_the_direction_that_the_model_reads_is_found(planted, found):
    """Not the one along which the classes differ most, which is at 63 degrees to it."""
    model, swap, labels, train, validation = planted
    assert angle(found.vector_D, READ) < 3
    assert found.loss < 0.01
    assert found.train_loss < 0.01
    assert found.recovery == pytest.approx(1, abs=0.03)
    assert min(found.cosines) > 0.97
    assert len(found.cosines) == 1
    moments = moments_of_rows(swap.x_ND[train], {"label": labels[train]})
    assert angle(mean_difference_direction(moments, "label").vector_D, READ) > 50
    assert found.std == pytest.approx((swap.x_ND[train].double() @ found.vector_D).numpy().std())
    effect = interchange_effect(model, swap, torch.from_numpy(validation), found.vector_D)
    assert effect == pytest.approx(found.recovery)


def test_the_control_task_tells_what_the_search_makes_of_any_two_words(planted, found):
    """Between two words a direction is found that joins the class with their difference; it does less than the read."""
    assert 0.1 < found.control_recovery < found.recovery - 0.2
    model, swap, _, train, validation = planted
    custom = CustomBehaviour(lambda logits, rows: logits[:, WORDS], swap.behaviour.answer_N)
    without = find_das(model, replace(swap, behaviour=custom), train, validation, Search(steps=2, restarts=1))
    assert without.control_recovery is None


def test_the_search_is_repeatable_and_leaves_no_gradients(planted):
    few = Search(steps=3, batch=8, restarts=1)
    first, again = searched(planted, few), searched(planted, few)
    assert torch.equal(first.vector_D, again.vector_D)
    assert first.cosines == []
    assert all(p.grad is None for p in planted[0].parameters())


def test_bad_input_is_refused(planted):
    model, swap, _, train, validation = planted
    with pytest.raises(DataError, match="to fit and to validate; got 50 and 0"):
        find_das(model, swap, train, validation[:0])
    with pytest.raises(UsageError, match="steps must be a whole number"):
        find_das(model, swap, train, validation, Search(steps=0))
    itself = Interchange(swap.place, swap.trunk, swap.behaviour, swap.x_ND, swap.token_N, torch.arange(WORDS))
    with pytest.raises(DataError, match="behave as their counterparts"):
        find_das(model, itself, train, validation, SEARCH)
    alike = Interchange(
        swap.place, swap.trunk, swap.behaviour, torch.ones_like(swap.x_ND), swap.token_N, swap.counterpart_N
    )
    with pytest.raises(DataError, match="no swap changes anything at this place"):
        find_das(model, alike, train, validation, SEARCH)
