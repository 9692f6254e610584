"""Names never lie: what a point shows is what the class adds, in short and long texts, alone and packed."""

from typing import Any

import numpy as np
import pytest
import torch
from models.adapter.wrapped import config_of, load, wrapped

import probekit as pk
from probekit.errors import DataError, UsageError
from probekit.interventions import replace
from probekit.models.adapter.load import made_again

RNG = np.random.default_rng(1)
# short texts, one of one token, and texts longer than every window, chunk and convolution; two share a prefix
TEXTS = [RNG.integers(3, 60, size=n).tolist() for n in (5, 1, 39, 12, 40)]
TEXTS += [[*TEXTS[2][:20], 7, 8, 9]]
# the module of a block of transformers that reads the stream between its sublayers; the tests alone name it
READS_MIDDLE = {
    "bloom": "post_attention_layernorm",
    "olmo": "post_attention_layernorm",
    "granite": "post_attention_layernorm",
    "gpt_oss": "post_attention_layernorm",
    "gemma2": "pre_feedforward_layernorm",
    "opt": "final_layer_norm",
    "jamba": "pre_ff_layernorm",
    "recurrent_gemma": "channel_pre_norm",
}


def relative(got, wanted):
    return float((got - wanted).abs().max() / wanted.abs().max())


def streams_of(model, ids):
    """What a block of the class, without points, reads, has between its sublayers, and returns: by layer, [L, D]."""
    base, found = made_again(model.hf_source).base_model, []
    for path in model.layout.blocks:
        seen: dict[str, torch.Tensor] = {}
        block, middle = base.get_submodule(path), READS_MIDDLE.get(model.cfg.model_type)

        def before(_, args, kwargs, seen=seen):
            seen["resid_pre"] = (args[0] if args else kwargs["hidden_states"])[0].clone()

        def after(_, args, output, seen=seen):
            seen["resid_post"] = (output[0] if isinstance(output, tuple) else output)[0].clone()

        def between(_, args, seen=seen):
            seen["resid_mid"] = args[0].reshape(seen["resid_pre"].shape).clone()

        block.register_forward_pre_hook(before, with_kwargs=True)
        block.register_forward_hook(after)
        if middle:
            block.get_submodule(middle).register_forward_pre_hook(between)
        found.append(seen)
    with torch.no_grad():
        base(torch.tensor([ids]))
    return found


def sums_of(model, layer):
    """A stream of a block, and the points that add up to it."""
    names = ("attn_out", "mixer_out", "mlp_out", "resid_mid")
    has = [name for name in names if layer in model.layers_of(name)]
    for mixer in [[name] for name in ("attn_out", "mixer_out") if name in has] or [[]]:
        if "resid_mid" in has:
            yield "resid_mid", ["resid_pre", *mixer]
            yield "resid_mid", ["resid_mid"]
        yield "resid_post", ["resid_pre", *mixer, *(["mlp_out"] if "mlp_out" in has else [])]
    yield "resid_pre", ["resid_pre"]


@torch.no_grad()
@pytest.mark.parametrize("kind", [*READS_MIDDLE, "mamba", "nemotron_h", "falcon"])
def test_points_add_up_to_the_streams_of_the_class(kind):
    """Alone, and in the batches of extraction, which pack the texts where the class allows it."""
    model = wrapped(kind)
    points = sorted({name for layer in range(model.n_layers) for _, names in sums_of(model, layer) for name in names})
    acts = pk.extract(model, pk.Task("t", TEXTS), points=points, position="all", progress=False)
    for i, ids in enumerate(TEXTS):
        _, alone = model.run_with_cache(torch.tensor([ids]), return_logits=False)
        for layer, wanted in enumerate(streams_of(model, ids)):
            for stream, names in sums_of(model, layer):
                assert relative(sum(alone[name, layer][0] for name in names), wanted[stream]) < 1e-5
                assert relative(sum(acts.per_text((name, layer))[i] for name in names), wanted[stream]) < 1e-5


@pytest.mark.parametrize("kind", ["jamba", "nemotron_h"])
def test_a_layer_without_attention_is_edited_at_mixer_out(kind):
    model, tokens = wrapped(kind), torch.tensor([TEXTS[2]])
    assert model.layers_of("mixer_out") == (list(range(3)) if kind == "jamba" else [0, 2])
    for layer in model.layers_of("mixer_out"):
        after = "resid_mid" if kind == "jamba" else "resid_post"
        with model.edited({("mixer_out", layer): replace(torch.full((32,), 2.0))}):
            _, cache = model.run_with_cache(tokens, return_logits=False)
        torch.testing.assert_close(cache[after, layer], cache["resid_pre", layer] + 2.0)
    attention = model.layers_of("attn_out")
    with model.edited({("attn_out", attention[0]): replace(torch.full((32,), 2.0))}):
        _, cache = model.run_with_cache(tokens, return_logits=False)
    assert (cache["mixer_out", attention[0]] == 2).all()


def test_names_that_a_model_does_not_have_are_refused_with_the_name_to_take():
    for kind, point, take in (
        ("granite", "mixer_out", "each of its layers has attention; take attn_out"),
        ("mamba", "attn_out", "no layer has attention; take mixer_out"),
        ("nemotron_h", "resid_mid", "a block has one sublayer"),
        ("falcon", "resid_mid", "no module reads a stream between"),
    ):
        with pytest.raises(UsageError, match=take):
            wrapped(kind).resolve((point, 0))


def lying(monkeypatch, lie):
    """OLMo whose blocks add attention's output times `lie(stream, mask, output)`."""
    from transformers.models.olmo.modeling_olmo import OlmoDecoderLayer

    def forward(self: Any, hidden_states, attention_mask=None, position_embeddings=None, **_):
        x = self.input_layernorm(hidden_states)
        added, _ = self.self_attn(x, attention_mask=attention_mask, position_embeddings=position_embeddings)
        middle = hidden_states + added * lie(hidden_states, attention_mask, added)
        return middle + self.mlp(self.post_attention_layernorm(middle))

    monkeypatch.setattr(OlmoDecoderLayer, "forward", forward)
    return load(config_of("olmo"))


def sees_backwards(mask):
    """Whether some token does not see its neighbour: rows of several texts."""
    return mask is not None and bool((mask[0, 0].diagonal(-1) < 0).any())


@torch.no_grad()
def test_a_class_that_adds_something_else_loses_the_point(monkeypatch):
    honest = lying(monkeypatch, lambda x, mask, added: 1.0)
    assert honest.layers_of("attn_out") == [0, 1, 2]
    assert honest.batching == "packed"
    scaled = lying(monkeypatch, lambda x, mask, added: 0.5)  # the same at every length: what is added is shown
    _, cache = scaled.run_with_cache(torch.tensor([TEXTS[2]]), return_logits=False)
    total = cache["resid_pre", 1] + cache["attn_out", 1] + cache["mlp_out", 1]
    assert relative(total, cache["resid_post", 1]) < 1e-5
    for lie in (
        lambda x, mask, added: 2.0 if x.shape[1] > 7 else 1.0,  # in long texts
        lambda x, mask, added: x.sigmoid(),  # by the stream
        lambda x, mask, added: torch.linspace(1, 2, 32),  # by the dimension, as a layer scale
        lambda x, mask, added: torch.linspace(1, 2, x.shape[1])[:, None],  # by the token
    ):
        model = lying(monkeypatch, lie)
        assert not model.layers_of("attn_out")
        assert not model.layers_of("resid_mid")
        assert model.layers_of("mlp_out") == [0, 1, 2]  # which is what the MLP adds
    in_blocks = lying(monkeypatch, lambda x, mask, added: 2.0 if sees_backwards(mask) else 1.0)
    assert in_blocks.layers_of("attn_out") == [0, 1, 2]
    assert in_blocks.batching == "padded"


def test_a_class_that_adds_something_else_to_its_own_numbers_is_refused(monkeypatch):
    """Attention's own outputs are far smaller than the random numbers of the proof."""
    with pytest.raises(
        DataError, match=r"fails its proof: in layer 0, resid_pre \+ attn_out = resid_mid does not hold"
    ):
        lying(monkeypatch, lambda x, mask, added: 2.0 if added.std() < x.std() / 4 else 1.0)
