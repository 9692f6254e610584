"""The logit lens is the head of each layer's stream; the shares of direct logit attribution sum to the logit."""

from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from models.adapter.wrapped import wrapped
from tiny_configs import new_model, tiny_configs, tiny_model

import probekit as pk
from probekit.causal.readouts import direct_logit_attribution, logit_lens, top_of_layers
from probekit.errors import UsageError
from probekit.models.adapter.load import made_again

IDS = torch.randint(5, 50, (9,), generator=torch.Generator().manual_seed(0)).tolist()
DECODERS = [name for name in tiny_configs() if not tiny_model(name).fills_masks]
WITH_HEAD = [name for name in tiny_configs() if tiny_model(name).has_logits]
MARIAN = {"marian", "marian-untied"}


def probabilities(model: Any, stream_BLD: torch.Tensor) -> np.ndarray:
    """The head's distribution over the next token from a stream that the final norm has not seen."""
    norm = getattr(model, "ln_final", None) or torch.nn.Identity()
    return model.logits(norm(stream_BLD))[0].double().softmax(-1).numpy()


@torch.no_grad()
@pytest.mark.parametrize("name", WITH_HEAD)
def test_the_lens_is_the_head_of_each_layers_stream(name):
    model, two = tiny_model(name), name in MARIAN
    target = [model.cfg.decoder_start_token_id, *IDS[1:]] if two else None
    inputs = [torch.tensor([ids]) for ids in (IDS, target) if ids]
    lens = logit_lens(model, IDS, [7, 30], k=3, target=target)
    n = model.n_layers_of("decoder.resid_pre") if two else model.n_layers
    assert lens.top.shape == (n + 1, 9, 3)
    for layer in range(n + 1):
        wanted = probabilities(model, model(*inputs, stop_at_layer=layer))
        assert np.allclose(lens.probability[layer], np.take_along_axis(wanted, lens.top[layer], 1), atol=1e-6)
        assert np.allclose(lens.probability[layer], -np.sort(-wanted)[:, :3], atol=1e-6)
        assert np.allclose(lens.answer_probability[layer], wanted[:, [7, 30]], atol=1e-6)
        ranks = (wanted[:, None] > wanted[:, [7, 30], None] + 1e-9).sum(-1) + 1
        assert np.abs(lens.answer_rank[layer] - ranks).max() <= 1  # two tokens may be equally probable in float32
        own = probabilities(model, model(*inputs, stop_at_layer=n))
        assert np.allclose(lens.kl[layer], (own * np.log(own / wanted)).sum(-1), atol=1e-5)
    assert np.abs(lens.kl[-1]).max() <= 1e-6


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_the_lens_of_several_texts_is_that_of_each(rows, monkeypatch):
    """However many tokens the head takes at once; only the last digits depend on it."""
    monkeypatch.setattr("probekit.causal.readouts.rows_at_once", lambda model: rows)
    model, texts, told = tiny_model("gpt2"), [IDS, IDS[:2], IDS[3:]], []
    places, top, probability = top_of_layers(model, texts, 3, lambda done, total: told.append((done, total)))
    each = [logit_lens(model, ids, k=3) for ids in texts]
    assert places == each[0].places
    assert np.array_equal(top, np.concatenate([one.top for one in each], axis=1))
    assert np.allclose(probability, np.concatenate([one.probability for one in each], axis=1), atol=1e-6)
    assert told[-1] == (3, 3)


@torch.no_grad()
@pytest.mark.parametrize(("kind", "norm"), [("gptj", "transformer.ln_f"), ("cohere", "model.norm"), ("electra", None)])
def test_the_lens_of_an_adapted_model_is_that_of_transformers(kind, norm):
    model = wrapped(kind)
    oracle = made_again(model.hf_source)
    states = oracle(torch.tensor([IDS]), output_hidden_states=True).hidden_states
    lens = logit_lens(model, IDS, k=60)
    for layer in range(model.cfg.n_layers):
        if norm is None:
            logits = oracle.generator_lm_head(oracle.generator_predictions(states[layer]))
        else:
            logits = oracle.lm_head(oracle.get_submodule(norm)(states[layer])) * getattr(oracle, "logit_scale", 1)
        wanted = np.take_along_axis(logits[0].double().softmax(-1).numpy(), lens.top[layer], 1)
        assert np.allclose(lens.probability[layer], wanted, atol=1e-6)


@pytest.mark.parametrize("name", DECODERS)
def test_shares_sum_to_the_logit(name):
    model = tiny_model(name)
    logits = torch.stack(
        [model.logits(model(torch.tensor([IDS]), return_logits=False))[0, at] for at in (3, 8)]
    ).detach()
    cap = getattr(model.cfg, "output_logits_soft_cap", None)
    logits = (logits if cap is None else cap * torch.atanh(logits.double() / cap)).double()  # before the cap
    bound = 1e-5 * float(logits.abs().max())
    for own, other, position, row in ((7, 30, None, 1), (7, None, None, 1), (7, 30, 3, 0), (7, 30, -1, 1)):
        found = direct_logit_attribution(model, IDS, own, other, position)
        wanted = float(logits[row, own] - (0 if other is None else logits[row, other]))
        assert abs(found.share.sum() - found.total) <= bound
        assert abs(found.total - wanted) <= 10 * bound  # the inverse of a cap loses a digit


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "gemma2", "olmo2", "gptneox"])
def test_a_share_is_what_the_logit_loses_without_the_component(name):
    """With the norms' scales held, a component set to 0 in the last place it passes takes exactly its share away."""
    model, layer, head = tiny_model(name), 1, 2
    found = direct_logit_attribution(model, IDS, 7, 30)
    scales = ["ln_final_scale", *([("ln1_post_scale", layer)] if name in ("gemma2", "olmo2") else [])]
    _, cache = model.run_with_cache(torch.tensor([IDS]), points=[*scales, ("result", layer), ("resid_post", 2)])
    result_D = cache["result", layer][0, -1, head].double()
    if len(scales) > 1:
        post = model.blocks[layer].ln1_post
        gain = 1 + post.weight if name == "gemma2" else post.weight
        result_D = result_D / cache["ln1_post_scale", layer][0, -1] * gain
    gain = 1 + model.ln_final.weight if name == "gemma2" else model.ln_final.weight
    if name in ("gpt2", "gptneox"):
        result_D = result_D - result_D.mean()
    weight = (model.unembed or model.embed).weight
    wanted = (result_D / cache["ln_final_scale"][0, -1] * gain) @ (weight[7] - weight[30]).double()
    at = found.components.index(f"attn.{layer}.head.{head}")
    assert found.share[at] == pytest.approx(float(wanted), abs=1e-6)
    assert (found.layers[at], found.heads[at]) == (layer, head)


def test_the_components_are_named():
    model = tiny_model("gpt2")
    found = direct_logit_attribution(model, IDS, 7, 30)
    parts = (*(f"head.{head}" for head in range(4)), "bias")
    per_layer = [[*(f"attn.{i}.{part}" for part in parts), f"mlp.{i}"] for i in range(3)]
    assert found.components == ["embed", "pos_embed", *chain.from_iterable(per_layer), "ln_final.bias"]
    assert (found.own, found.other, found.position) == ("7", "30", 8)
    frame: Any = found.to_frame()
    assert frame["share"].sum() == pytest.approx(found.total, abs=1e-5)
    assert frame.loc[frame["component"] == "attn.2.head.3", ["layer", "head"]].to_numpy().tolist() == [[2, 3]]
    assert f"{found.share.sum():+.3f}" in str(found)
    assert "logit of 7 minus 30" in found._repr_html_()


def test_words_are_tokens_after_the_text():
    model = pk.load_model("agreement-gpt2")
    text, tokenizer = "the keys near the door", model.need_tokenizer()
    lens = logit_lens(model, text, ["is", "are"])
    ids = [tokenizer.token_id("is"), tokenizer.token_id("are")]
    by_id = logit_lens(model, tokenizer.encode(text), ids)
    assert np.array_equal(lens.answer_rank, by_id.answer_rank)
    assert lens.tokens == text.split()
    assert (lens.places[0], lens.places[-1]) == ("resid_pre.0", "resid_post.3")
    frame: Any = lens.to_frame()
    assert list(frame.columns[-2:]) == ["rank of are", "probability of are"]
    last = frame[(frame["place"] == "resid_post.3") & (frame["position"] == 4)].iloc[0]
    assert last["top"] == tokenizer.tokens([int(lens.top[-1, -1, 0])])[0]
    assert last["probability"] == lens.probability[-1, -1, 0]
    assert str(lens).splitlines()[0].split() == ["most", "probable", "after", *text.split()]
    assert "<table>" in lens._repr_html_()
    found = direct_logit_attribution(model, text, "is", "are")
    assert found.total == direct_logit_attribution(model, tokenizer.encode(text), ids[0], ids[1]).total


@pytest.mark.parametrize("name", ["bert", "marian", "adapted cohere"])
def test_models_whose_logits_are_no_sum_are_refused(name):
    model = wrapped("cohere") if name.startswith("adapted") else tiny_model(name)
    with pytest.raises(UsageError, match="is for decoders of probekit's own families"):
        direct_logit_attribution(model, IDS, 7)


LENS: Any = logit_lens  # what the types forbid is tried, too
SHARES: Any = direct_logit_attribution


@pytest.mark.parametrize(
    ("read", "why"),
    [
        (lambda: LENS(tiny_model("bert-headless"), IDS), "bert-headless has no head"),
        (lambda: LENS(tiny_model("marian"), IDS), "marian reads a source and a target; give target"),
        (lambda: LENS(tiny_model("gpt2"), IDS, target=IDS), "gpt2 reads one text; leave out target"),
        (lambda: LENS(tiny_model("gpt2"), 3 * IDS), "27 tokens do not fit a context of 24"),
        (lambda: LENS(tiny_model("gpt2"), []), "expected a text or token ids"),
        (lambda: LENS(tiny_model("gpt2"), "the keys"), "gpt2 has no tokenizer"),
        (lambda: LENS(tiny_model("gpt2"), IDS, [999]), r"ids of gpt2 are 0\.\.49, got 999"),
        (lambda: LENS(tiny_model("gpt2"), IDS, [-1]), r"ids of gpt2 are 0\.\.49, got -1"),
        (lambda: LENS(tiny_model("gpt2"), IDS, [None]), "a word or a token id, got None"),
        (lambda: LENS(tiny_model("gpt2"), IDS, "is"), "a list of words or token ids, got 'is'"),
        (lambda: LENS(tiny_model("gpt2"), IDS, None), "a list of words or token ids, got None"),
        (lambda: LENS(tiny_model("gpt2"), IDS, [7, 7]), "answers 7 and 7 are the same token 7"),
        (lambda: SHARES(tiny_model("gpt2"), IDS, 7, 7), "answers 7 and 7 are the same token 7"),
        (lambda: LENS(tiny_model("gpt2"), None), "one text or a list of token ids, got None"),
        (lambda: LENS(tiny_model("gpt2"), IDS, k=0), "k must be a whole number, 1 or more"),
        (lambda: LENS(tiny_model("gpt2"), [1.5]), r"list of token ids, got \[1\.5\]"),
        (lambda: LENS(tiny_model("gpt2"), torch.ones(1, 2).long()), "one text or a list of token ids"),
        (lambda: LENS(tiny_model("gpt2"), ["the", "keys"]), "one text or a list of token ids"),
        (lambda: LENS(None, IDS), "expected a model from load_model, got None"),
        (lambda: SHARES(None, IDS, 7), "expected a model from load_model, got None"),
        (lambda: SHARES(tiny_model("gpt2"), IDS, 7, 50), r"ids of gpt2 are 0\.\.49, got 50"),
        (lambda: SHARES(tiny_model("gpt2"), IDS, 7, position="last"), "got position 'last'"),
        (lambda: SHARES(tiny_model("gpt2"), IDS, 7, position=9), r"positions 0\.\.8; got position 9"),
    ],
)
def test_misuse_is_refused(read, why):
    with pytest.raises(UsageError, match=why):
        read()


def test_a_class_with_more_than_a_norm_before_its_head_has_no_lens(monkeypatch):
    model = new_model("gpt2")
    run = model.forward
    monkeypatch.setattr(model, "forward", lambda *args, **kwargs: 2 * run(*args, **kwargs))
    with pytest.raises(UsageError, match="is not the final norm of its last block"):
        logit_lens(model, IDS)


def test_bfloat16_shares_sum_to_the_logit():
    model = new_model("gemma2").bfloat16()
    found = direct_logit_attribution(model, IDS, 7, 30)
    assert found.share.sum() == pytest.approx(found.total, abs=0.1)
