"""Interchange with itself, of everything, and of a part, on a tiny GPT-2."""

import pytest
import torch

from probekit.causal.behaviour.measure import Behaviour, logit_differences
from probekit.causal.branches.run import run_trunk
from probekit.causal.interchange.interchange import (
    Interchange,
    interchange_edit,
    interchange_effect,
    run_interchange,
    unedited,
)
from probekit.errors import DataError, UsageError
from probekit.interventions import apply_edit
from probekit.models.families.gpt2 import GPT2, GPT2Config

N, D = 6, 32
ROWS = torch.arange(N)
COUNTERPARTS = torch.tensor([3, 4, 5, 0, 1, 2])
CONFIG = GPT2Config(d_model=D, n_heads=4, d_mlp=80, n_layers=3, n_ctx=8, d_vocab=50)


def swapped(place, lengths=(5, 7, 6, 5, 7, 6), behaviour=None):
    model = GPT2(CONFIG).init_weights(1).eval()
    assert sum(p.numel() for p in model.parameters()) < 50_000
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # larger than at initialisation, so that texts differ
        for p in model.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=generator))
    texts = [torch.randint(50, (length,), generator=generator).tolist() for length in lengths]
    last = torch.tensor([length - 1 for length in lengths])
    rows = []
    for text in texts:
        _, cache = model.run_with_cache(torch.tensor([text]))
        rows.append(cache[place][0, -1])
    asked = behaviour or Behaviour(ROWS % 2, 1 - ROWS % 2, last)
    return model, Interchange(place, run_trunk(model, texts), asked, torch.stack(rows).detach(), last, COUNTERPARTS)


@pytest.fixture(scope="module")
def middle():
    return swapped(("resid_pre", 1))


def basis(k, seed=0):
    return torch.linalg.qr(torch.randn(D, k, generator=torch.Generator().manual_seed(seed)).double())[0].float()


@pytest.mark.parametrize("k", [1, 3, None])
def test_interchange_with_itself_changes_nothing(middle, k):
    model, swap = middle
    edited = run_interchange(model, swap, ROWS, k and basis(k), ROWS)
    assert edited.numpy() == pytest.approx(unedited(model, swap, ROWS)[0].numpy(), abs=1e-5)


def test_a_basis_of_the_whole_space_swaps_the_whole_vector(middle):
    model, swap = middle
    whole = run_interchange(model, swap, ROWS, None)
    assert run_interchange(model, swap, ROWS, basis(D)).numpy() == pytest.approx(whole.numpy(), abs=1e-4)
    assert float((whole - unedited(model, swap, ROWS)[0]).abs().max()) > 1e-3


def test_only_the_coordinates_in_the_subspace_change():
    x, source, Q = torch.randn(4, D), torch.randn(4, D), basis(3)
    per_row = Q.expand(4, D, 3)
    for given in (Q, per_row):
        new = apply_edit(interchange_edit(source, given), x[None], rows_BL=torch.arange(4)[None])[0]
        assert (new @ Q).numpy() == pytest.approx((source @ Q).numpy(), abs=1e-5)
        rest = torch.eye(D) - Q @ Q.T
        assert (new @ rest).numpy() == pytest.approx((x @ rest).numpy(), abs=1e-5)
    one = apply_edit(interchange_edit(source, Q[:, 0]), x[None], rows_BL=torch.arange(4)[None])[0]
    assert (one @ Q[:, 0]).numpy() == pytest.approx((source @ Q[:, 0]).numpy(), abs=1e-5)


def test_the_whole_vector_after_the_last_block_gives_the_counterparts_answer():
    """The answer depends on nothing else, so the effect is 1."""
    model, swap = swapped(("resid_post", 2))
    own, counterpart = unedited(model, swap, ROWS)
    assert run_interchange(model, swap, ROWS, None).numpy() == pytest.approx(counterpart.numpy(), abs=1e-5)
    assert interchange_effect(model, swap, ROWS, None) == pytest.approx(1, abs=1e-4)
    hidden = swap.trunk.hidden_ND[COUNTERPARTS]
    by_hand = logit_differences(model, hidden, ROWS % 2, 1 - ROWS % 2)
    assert counterpart.numpy() == pytest.approx(by_hand.detach().numpy())
    assert float((own - counterpart).abs().max()) > 1e-3


def test_bad_input_is_refused(middle):
    model, swap = middle
    with pytest.raises(UsageError, match=r"of 6 texts, got \[6, 6, 2\]"):
        Interchange(swap.place, swap.trunk, swap.behaviour, swap.x_ND, swap.token_N, COUNTERPARTS[:2])
    itself = Interchange(swap.place, swap.trunk, swap.behaviour, swap.x_ND, swap.token_N, ROWS)
    with pytest.raises(DataError, match="behave alike"):
        interchange_effect(model, itself, ROWS, None)
