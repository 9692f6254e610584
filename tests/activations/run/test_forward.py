"""Packed prefix forests give what each text alone gives, at every point, for every position, whatever is shared."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gpt2_points import GPT2_POINTS
from store_cases import plan_of

from probekit.errors import DataError, UsageError
from probekit.models import layers
from probekit.models.families.gpt2 import GPT2
from probekit.models.layers import Linear, attention_scores, prepared
from probekit.points import POINTS
from probekit.verbs.extract import extract

PAIRS = ("attn_scores", "attn_pattern")
RNG = np.random.default_rng(2)


TEXTS = ["abcdefghijkl"[:k] + tail for k in range(1, 11) for tail in ("", "xy", "xz")] + ["abc"]


@pytest.fixture
def family(letters):
    """31 texts that share many prefixes; some are equal, some begin others."""
    return replace(letters(31), inputs=list(TEXTS))


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "bos"])
def alone(request, tiny):
    """Whether a BOS comes first, the texts, and of each: full name -> tensor in a batch of one, in float64."""
    bos, model = request.param, tiny()
    texts, exact = [text[: 12 - bos] for text in TEXTS], tiny().double()
    caches = []
    for ids in model.tokenizer.encode_batch(texts, bos=bos):
        _, cache = exact.run_with_cache(torch.tensor([ids]), points=list(GPT2_POINTS), return_logits=False)
        caches.append({name: x[0].detach() for name, x in cache.items()})
    return bos, texts, caches


def assert_near(x, wanted, place, bound=5e-6):
    assert x.shape == wanted.shape, place
    finite = wanted.isfinite()
    assert torch.equal(x.isfinite(), finite), place
    assert (x[finite] - wanted[finite]).abs().max() <= bound * wanted[finite].abs().max(), place


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("block_nodes", [None, 5, 14])
def test_all_tokens_of_every_point_equal_float64_alone(model, family, alone, block_nodes, share):
    bos, texts, caches = alone
    task = replace(family, inputs=texts)
    acts = extract(model, task, points=list(GPT2_POINTS), position="all", bos=bos, block_nodes=block_nodes, share=share)
    assert {point for point, _ in acts} == set(GPT2_POINTS)
    for place in acts:
        name = POINTS[place[0]].format(layer=place[1])
        for got, wanted in zip(acts.per_text(place), caches, strict=True):
            x = wanted[name]
            assert_near(got, x if place[0] in PAIRS else x[int(bos) :].flatten(1), place)


def test_only_the_layer_whose_pattern_is_wanted_is_explicit(model, family, monkeypatch):
    explicit = []
    monkeypatch.setattr(layers, "attention_scores", lambda *a: explicit.append(1) or attention_scores(*a))
    acts = extract(model, family, points=["attn_pattern"], layers=1, batch_tokens=10_000)
    assert len(explicit) == 1
    with pytest.raises(UsageError, match=r"\[H, L, L\] for each text; read it with per_text"):
        acts["attn_pattern", 1]
    extract(model, family, points=["z"], batch_tokens=10_000)
    assert len(explicit) == 1


def test_several_positions_are_those_of_single_runs(model, family):
    index = np.array([RNG.integers(len(text)) for text in family.inputs])
    positions = ["last", "first", 0, -1, "mean", index]
    acts = extract(model, family, position=positions)
    assert acts["resid_pre", 1].shape == (31, 6, 16)
    assert acts.meta["position"] == ["last", "first", "0", "-1", "mean", "per example"]
    everything = extract(model, family, position="all")
    assert everything["resid_pre", 1].shape == (sum(map(len, family.inputs)), 16)
    for i, position in enumerate(positions):
        single, name = extract(model, family, position=position), "per example" if position is index else position
        for place, x in single.items():
            assert_near(acts[place][:, i], x, place, 2e-6)
            assert_near(acts.at(name)[place], x, place, 2e-6)
            if position is not index:
                assert_near(everything.at(name)[place], x, place, 2e-6)
    for place, x in extract(model, family, position="-3:").items():
        assert_near(x, torch.cat([rows[-3:] for rows in everything.per_text(place)]), place, 2e-6)


def test_a_position_that_was_not_kept(model, family):
    acts, everything = extract(model, family, position=["last", 0]), extract(model, family, position="all")
    with pytest.raises(UsageError, match="position 'first' was not extracted; take last, 0"):
        acts.at("first")
    with pytest.raises(UsageError, match="expected the tokens to read, got 'middle'"):
        everything.at("middle")
    with pytest.raises(UsageError, match=r"a token's index; got 0\.5"):
        everything.at(0.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(DataError, match="'train:100': it has 1 token, and token 3 is to be read"):
        everything.at(3)


def test_a_model_that_looks_ahead_shares_only_equal_texts(model, family):
    class Bidirectional(GPT2):
        causal = False

    ahead = Bidirectional(model.cfg)
    ahead.load_state_dict(model.state_dict())
    ahead.tokenizer = model.tokenizer
    acts = extract(ahead, family, position="all", block_nodes=20)
    assert plan_of(ahead, family).packing.nodes == sum(map(len, set(family.inputs))) < sum(map(len, family.inputs))
    for i, ids in enumerate(model.tokenizer.encode_batch(family.inputs)):
        everyone = torch.ones(1, len(ids), len(ids), dtype=torch.bool)
        _, cache = ahead.run_with_cache(
            torch.tensor([ids]), position_ids=torch.arange(len(ids))[None], attention_mask=everyone, points="resid_pre"
        )
        assert_near(acts.per_text(("resid_pre", 2))[i], cache["resid_pre", 2][0].detach(), i)


def computed_tokens(model, task, **how):
    ran = []
    handle = model.embed.register_forward_hook(lambda _, inputs, __: ran.append(inputs[0].numel()))
    extract(model, task, **how)
    handle.remove()
    return sum(ran)


def test_nothing_is_computed_twice_nor_after_the_last_token_that_is_read(model, family):
    prefixes = {text[: i + 1] for text in family.inputs for i in range(len(text))}
    assert computed_tokens(model, family) == len(prefixes) == plan_of(model, family).packing.nodes
    assert computed_tokens(model, family, share=False) == sum(map(len, family.inputs))
    assert computed_tokens(model, family, position="first") == 1
    assert computed_tokens(model, family, position="first", share=False) == 31
    assert computed_tokens(model, family, position="mean", points=["attn_pattern"]) == len(prefixes)


def test_more_than_the_memory_holds_is_refused_with_the_arithmetic(model, family, monkeypatch, tmp_path):
    monkeypatch.setattr("probekit.activations.run.loop.free_bytes", lambda device: 7000)
    with pytest.raises(
        UsageError, match=r"0\.0 GB of activations \(31 texts x 4 places x 16, float32\) do not fit .*out=PATH"
    ):
        extract(model, family)
    extract(model, family, dtype="float16")
    extract(model, family, out=tmp_path / "store")


def test_prepared_weights_change_nothing_and_are_gone_afterwards(tiny, family):
    model = tiny().to(torch.bfloat16)
    tokens = torch.tensor(model.tokenizer.encode_batch(["abcdefghijkl"]))
    with torch.inference_mode():
        plain = model(tokens)
        with prepared(model):
            torch.testing.assert_close(model(tokens), plain, rtol=2**-7, atol=2**-7)
            with torch.inference_mode(False):
                assert model(tokens).requires_grad  # what oneDNN does not take reads the plain weights
    assert all(module._prepared is None for module in model.modules() if isinstance(module, Linear))
    extract(model, family)
    model(tokens).sum().backward()
    assert model.blocks[0].mlp.up.weight.grad is not None


def test_hooks_see_complete_texts_of_one_length(model, family):
    """As in a batch of one: the last position is the last token, whatever else runs."""

    def turn(x, hook):
        x = x.clone()
        x[:, -1] = -x[:, -1]
        return x

    with model.hooks([("resid_mid.0", turn)]):
        acts = extract(model, family, position=["first", "last"])
    for i, ids in enumerate(model.tokenizer.encode_batch(family.inputs)):
        with model.hooks([("resid_mid.0", turn)]):
            _, cache = model.run_with_cache(torch.tensor([ids]), points="resid_pre")
        assert_near(acts["resid_pre", 2][i], cache["resid_pre", 2][0, [0, -1]].detach(), i, 2e-6)


def test_scores_that_overflow_where_attention_is_allowed_are_refused(model, family):
    with torch.no_grad():
        model.blocks[0].attn.qkv.bias[:32] = 400  # q k^T / sqrt(8) is about 450,000
    acts = extract(model, family, points="attn_scores", layers=0)
    assert all(scores.tril().isfinite().all() for scores in acts.per_text(("attn_scores", 0)))
    with pytest.raises(DataError, match=r"attn_scores\.0 of example 'train:100' is 4\.5\de\+05, more than float16"):
        extract(model, family, points="attn_scores", layers=0, dtype="float16")
