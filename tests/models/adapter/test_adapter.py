"""A wrapped model's points are transformers' own values however texts are batched, and replacing them is causal."""

from logging import CRITICAL
from typing import Any

import numpy as np
import pytest
import torch
from models.adapter.wrapped import CONFIGS, GATED, NEW, SIZES, config_of, load, wrapped
from transformers.utils import logging

import probekit as pk
from probekit.errors import DataError, UsageError
from probekit.models.adapter.load import made_again

RNG = np.random.default_rng(0)
TEXTS = [RNG.integers(3, 60, size=n).tolist() for n in (9, 1, 14, 6, 14, 3, 20, 11, 6)]
TEXTS += [[*TEXTS[0][:5], 7, 8], TEXTS[0][:5], TEXTS[2]]
# the kind of batch that each class allows: attention with positions of their own is packed, ALiBi and states are not
PACKED = {"gptj", "codegen", "opt", "falcon", "starcoder2", "cohere", "cohere2", "stablelm", "phi", "granite", "glm4"}
PACKED |= {"gemma2", "vaultgemma", "electra", "albert", "olmo", "gpt_oss", "gemma3n_text"}
PARALLEL = {"gptj", "codegen", "falcon", "cohere", "cohere2", "phi"}
# one class for each way of batching, of adding sublayers up and of mixing tokens; the others differ in arithmetic,
# which `transformers` computes on both sides of a self-test
SELF_TESTED = ["gptj", "bloom", "opt", "gpt_neo", "starcoder2", "granite", "gemma2", "deberta-v2", "albert"]
SELF_TESTED += ["mamba", "jamba", "recurrent_gemma", "nemotron_h", "gpt_oss"]
EACH_WAY = [*SELF_TESTED, "falcon", "electra"]
# the layers that are attention, where not all are
ATTENTION = {"mamba": [], "jamba": [1], "recurrent_gemma": [1], "nemotron_h": [2]}
ONE_SUBLAYER = {"mamba": [], "nemotron_h": [1, 3]}  # a block -> the layers whose sublayer is an MLP


def relative(got, wanted):
    return float((got - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("kind", CONFIGS)
def test_extracted_streams_are_the_hidden_states(kind):
    model = wrapped(kind)
    acts = pk.extract(model, pk.Task("t", TEXTS), position="all", progress=False)
    before = 1 if kind == "mamba" else 0  # whose list begins after the first block
    reference = made_again(model.hf_source).base_model
    for i, ids in enumerate(TEXTS):
        with torch.no_grad():
            states = reference(torch.tensor([ids]), output_hidden_states=True).hidden_states
        for layer in range(before, model.cfg.n_layers):
            wanted = states[layer - before][0]
            assert relative(acts.per_text(f"resid_pre.{layer}")[i], wanted) < 1e-5


@pytest.mark.parametrize("kind", ["bloom", "mamba"])
def test_selections_read_rows_of_all_tokens_in_padded_batches(kind):
    model = wrapped(kind)
    assert model.batching == "padded"
    every = pk.extract(model, pk.Task("t", TEXTS), position="all", progress=False)
    of_texts = every.per_text("resid_pre.2")
    for position, at in (("-3:", slice(-3, None)), (":2", slice(2)), ("mean", None), ("last", slice(-1, None))):
        own = pk.extract(model, pk.Task("t", TEXTS), position=position, progress=False)["resid_pre.2"]
        wanted = [rows.mean(0, keepdim=True) if at is None else rows[at] for rows in of_texts]
        assert relative(own, torch.cat(wanted)) < 1e-5


@pytest.mark.parametrize("kind", SELF_TESTED)
@pytest.mark.usefixtures("five_texts")
def test_a_selftest_passes(kind):
    found = pk.selftest(wrapped(kind))
    assert found.passed, found.describe()
    assert {row.against for row in found.rows} == {"transformers"}


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_kind_of_batch_is_what_the_class_allows(kind):
    assert (wrapped(kind).batching == "packed") == (kind in PACKED)


@torch.no_grad()
@pytest.mark.parametrize("kind", EACH_WAY)
def test_sublayers_add_up_to_the_stream(kind):
    model = wrapped(kind)
    _, cache = model.run_with_cache(torch.tensor([TEXTS[0]]), return_logits=False)
    for layer, block in enumerate(model.blocks):
        names = {name for name in ("attn_out", "mixer_out", "resid_mid", "mlp_out") if getattr(block, f"hook_{name}")}
        mlp_alone = layer in ONE_SUBLAYER.get(kind, ())
        mixer = "mixer_out" if kind in ATTENTION else "attn_out"
        wanted = set() if mlp_alone else {mixer, *(["attn_out"] if layer in ATTENTION.get(kind, range(99)) else [])}
        wanted |= {"mlp_out"} if mlp_alone or kind not in ONE_SUBLAYER else set()
        assert names == wanted | ({"resid_mid"} if kind not in {*ONE_SUBLAYER, *PARALLEL} else set())
        if layer:
            assert torch.equal(cache["resid_pre", layer], cache["resid_post", layer - 1])
        if kind not in ("electra", "albert", "deberta-v2"):
            total = sum((cache[name, layer] for name in {mixer, "mlp_out"} & names), cache["resid_pre", layer])
            assert relative(total, cache["resid_post", layer]) < 1e-5
        if "resid_mid" in names:
            assert torch.equal(cache["resid_mid", layer], cache["resid_pre", layer] + cache[mixer, layer])
        if {"attn_out", "mixer_out"} <= names:
            assert torch.equal(cache["attn_out", layer], cache["mixer_out", layer])


@torch.no_grad()
@pytest.mark.parametrize("kind", EACH_WAY)
def test_what_is_added_at_a_point_arrives_in_the_stream(kind):
    model = wrapped(kind)
    tokens, last = torch.tensor([TEXTS[0]]), model.cfg.n_layers - 1
    added = torch.randn(1, 9, 32, generator=torch.Generator().manual_seed(0))
    plain, before = model.run_with_cache(tokens, return_logits=False)
    for point in ("attn_out", "mixer_out", "resid_mid", "mlp_out", "resid_pre", "resid_post"):
        if not getattr(model.blocks[last], f"hook_{point}"):
            continue
        with model.hooks([((point, last), lambda x, hook: x + added)]):
            edited, after = model.run_with_cache(tokens, return_logits=False)
        torch.testing.assert_close(after[point, last], before[point, last] + added)
        assert relative(edited, plain) > 1e-3
        if point != "resid_pre" and kind not in ("deberta-v2", "electra", "albert"):  # beside what the MLP makes of it
            moved = after["resid_post", last] - before["resid_post", last]
            is_before = point in ("attn_out", "mixer_out", "resid_mid") and kind not in ONE_SUBLAYER
            by_mlp = after["mlp_out", last] - before["mlp_out", last] if is_before else 0
            torch.testing.assert_close(moved - by_mlp, added, atol=2e-5, rtol=0)


@pytest.mark.parametrize("kind", EACH_WAY)
def test_a_forward_that_stops_does_not_compute_the_rest(kind):
    model = wrapped(kind)
    tokens, ran = torch.tensor([TEXTS[0]]), []
    shared = kind == "albert"
    last = model.hf.base_model.get_submodule(model.layout.blocks[-1])
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens)
        handle = last.register_forward_hook(lambda *_: ran.append(1))
        for stop in range(model.cfg.n_layers):
            assert torch.equal(model(tokens, stop_at_layer=stop), cache["resid_pre", stop])
            assert len(ran) == (sum(range(stop + 1)) if shared else 0)
        handle.remove()
        end = model(tokens, stop_at_layer=model.cfg.n_layers)
    assert torch.equal(end, cache["resid_post", model.cfg.n_layers - 1])


@pytest.mark.parametrize("kind", sorted(set(EACH_WAY) - {"deberta-v2", "electra", "albert"}))
def test_generation_is_that_of_transformers(kind):
    model = wrapped(kind)
    prompts = [TEXTS[0], TEXTS[3][:2]]
    made = model.generate(prompts, max_new_tokens=5, stop_tokens=[])
    assert made == model.generate(prompts, max_new_tokens=5, stop_tokens=[], use_cache=False)
    hf = made_again(model.hf_source)
    for prompt, new in zip(prompts, made, strict=True):
        ids = list(prompt)
        for _ in range(5):
            with torch.no_grad():
                ids.append(int(hf(torch.tensor([ids])).logits[0, -1].argmax()))
        assert ids[len(prompt) :] == new


@torch.no_grad()
@pytest.mark.usefixtures("five_texts")
@pytest.mark.parametrize("active", [0, 2])
def test_of_several_streams_the_active_one_is_the_residual_stream(active):
    """Gemma 3n's blocks pass on four of them, [4, B, L, D]."""
    model = load(config_of("gemma3n_text") | {"altup_active_idx": active})
    model.name, tokens = "gemma3n_text", torch.tensor([TEXTS[0]])
    reference = made_again(model.hf_source).base_model
    _, cache = model.run_with_cache(tokens, return_logits=False)
    states = reference(tokens, output_hidden_states=True).hidden_states[:4]
    for layer, state in enumerate(states):
        assert relative(cache["resid_pre", layer], state[active]) < 1e-5
        assert relative(cache["resid_pre_streams", layer], state.permute(1, 2, 0, 3)) < 1e-5
    acts = pk.extract(model, pk.Task("t", [TEXTS[0]]), points="resid_pre_streams", position="all", progress=False)
    assert relative(acts["resid_pre_streams", 2], states[2][:, 0].permute(1, 0, 2).flatten(1)) < 1e-5
    other = torch.randn(1, 9, 32, generator=torch.Generator().manual_seed(0))

    def replaced(_, args):
        streams = args[0].clone()
        streams[active] = other
        return (streams, *args[1:])

    for layer, at in ((2, ("resid_pre", 2)), (3, ("resid_post", 2))):
        hook = reference.layers[layer].register_forward_pre_hook(replaced)
        wanted = reference(tokens)[0]
        hook.remove()
        with model.hooks([(at, lambda x, hook: other)]):
            assert relative(model(tokens, return_logits=False), wanted) < 1e-5
    whole = torch.randn(1, 9, 4, 32, generator=torch.Generator().manual_seed(1))
    hook = reference.layers[3].register_forward_pre_hook(lambda _, args: (whole.permute(2, 0, 1, 3), *args[1:]))
    wanted = reference(tokens)[0]
    hook.remove()
    for at in (("resid_pre_streams", 3), ("resid_post_streams", 2)):
        with model.hooks([(at, lambda x, hook: whole)]):
            assert relative(model(tokens, return_logits=False), wanted) < 1e-5
    assert pk.selftest(model).passed
    with pytest.raises(UsageError, match="no point resid_pre_streams: its blocks pass on one stream"):
        wrapped("gptj").resolve(("resid_pre_streams", 1))
    with pytest.raises(UsageError, match="no point attn_out: its sublayers add to a prediction from several streams"):
        model.resolve(("attn_out", 1))


def test_an_encoder_is_bidirectional_and_does_not_generate():
    assert not wrapped("electra").causal
    assert wrapped("gptj").causal
    with pytest.raises(UsageError, match="both directions"):
        wrapped("electra").generate([[3, 4]])


@torch.no_grad()
def test_a_window_is_carried_into_packed_blocks():
    model = wrapped("starcoder2")
    assert model.form.kind == "windowed"
    assert wrapped("cohere2").form.kind == wrapped("gemma2").form.kind == "by type"
    wide = load(config_of("starcoder2") | {"sliding_window": None})
    _, narrow = model.run_with_cache(torch.tensor([TEXTS[6]]))
    _, full = wide.run_with_cache(torch.tensor([TEXTS[6]]))
    assert relative(narrow["resid_post", 2], full["resid_post", 2]) > 1e-4  # so that the window is active in the texts


@torch.no_grad()
@pytest.mark.usefixtures("five_texts")
def test_a_padding_id_within_a_text_has_a_position_like_any_other_token():
    """RoBERTa's kind gives padding ids no position of their own, and packed blocks do; so a text by itself does too."""
    fields = {**GATED, "model_type": "xlm-roberta", "pad_token_id": 1, "bos_token_id": 0}
    model = load(fields | {"max_position_embeddings": 42})
    assert (model.batching, model.form.offset, model.cfg.n_ctx) == ("packed", 2, 40)
    texts = [[5, 1, 1, 7, 8], [5, 1, 9]]
    acts = pk.extract(model, pk.Task("t", texts), position="all", progress=False)
    reference = made_again(model.hf_source).base_model
    for i, ids in enumerate(texts):
        positions = torch.arange(2, 2 + len(ids))[None]
        _, cache = model.run_with_cache(torch.tensor([ids]), return_logits=False)
        wanted = reference(torch.tensor([ids]), position_ids=positions, output_hidden_states=True).hidden_states[-1][0]
        assert relative(reference(torch.tensor([ids]))[0][0], wanted) > 0.1  # as the class counts by itself
        assert relative(acts.per_text("resid_post.2")[i], wanted) < 1e-5
        assert relative(cache["resid_post", 2][0], wanted) < 1e-5
    model.name = "xlm-roberta"
    assert pk.selftest(model).passed


@pytest.mark.usefixtures("five_texts")
def test_a_class_that_does_not_run_in_float64_is_its_own_reference_in_float32():
    sizes = {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48, "max_position_embeddings": 40}
    model = load({**SIZES, **sizes, "model_type": "xglm"})
    model.name = "xglm"
    found = pk.selftest(model)
    assert found.passed, found.describe()
    assert "in float32, as it does not run in float64" in found.oracle
    assert "float32" not in pk.selftest(wrapped("gptj")).oracle


@pytest.mark.usefixtures("five_texts")
def test_a_class_whose_texts_see_their_padding_runs_texts_of_one_length():
    model = load({**NEW, "model_type": "fnet", "intermediate_size": 48})
    model.name = "fnet"
    found = pk.selftest(model)
    assert model.batching == "one length"
    assert found.passed, found.describe()
    assert not any({"left_pad", "right_pad"} & row.figures.keys() for row in found.rows)
    assert any("packed" in row.figures for row in found.rows)


def test_a_class_that_takes_one_text_in_a_row_refuses_packed_texts():
    model, tokens = wrapped("bloom"), torch.tensor([TEXTS[0]])
    with pytest.raises(UsageError, match="one text in a row"):
        model(tokens, position_ids=torch.arange(9)[None])
    mask = torch.ones_like(tokens)
    mask[0, 0] = 0
    with pytest.raises(UsageError, match="padding on the right"):
        model(tokens, attention_mask=mask)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.usefixtures("five_texts")
def test_narrow_types(dtype):
    for kind in ("gptj", "bloom"):
        model = load(config_of(kind), dtype=dtype)
        assert {p.dtype for p in model.parameters()} == {dtype}
        assert model.batching == wrapped(kind).batching  # proved in float32
        found = pk.selftest(model)
        assert found.passed, found.describe()


def test_generation_silences_the_hints_of_transformers():
    """Mamba's class says on the first cached step that kernels are not installed."""
    model, levels = load(config_of("mamba")), []
    model.hf.register_forward_pre_hook(lambda *_: levels.append(logging.get_verbosity()))
    model.generate([3, 4, 5], max_new_tokens=3)
    assert levels == [CRITICAL] * 3
    assert logging.get_verbosity() < CRITICAL


@torch.no_grad()
def test_a_long_text_changes_nothing_in_the_others():
    """Rotations that depend on the batch's longest text are run in batches of one length."""
    hf = config_of("stablelm") | {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}
    hf |= {"max_position_embeddings": 40, "partial_rotary_factor": 1.0}
    model = load(hf)
    assert model.batching == "one length"
    acts = pk.extract(model, pk.Task("t", TEXTS), position="all", progress=False)
    for i, ids in enumerate(TEXTS):
        assert relative(acts.per_text("resid_post.2")[i], model(torch.tensor([ids]), stop_at_layer=3)[0]) < 1e-5


@pytest.mark.parametrize(
    ("hf", "message"),
    [
        ({"model_type": "t5"}, "encoder-decoder|not a language model"),
        ({"model_type": "whisper"}, "reads more than text|encoder-decoder"),
        ({"model_type": "llava", "vision_config": {}}, "reads more than text"),
        ({"model_type": "gptj", "n_layer": "three"}, "n_layer must be a whole number in 1..1000; got 'three'"),
        ({"model_type": "bloom", "n_layer": 10**8}, "n_layer must be a whole number in 1..1000; got 100000000"),
        ({"model_type": "bloom", "n_layer": -1}, "n_layer must be a whole number"),
        ({"model_type": "bloom", "n_embed": 10**9}, "d_model must be a whole number"),  # its old name for hidden_size
        ({"model_type": "opt", "vocab_size": 10**12}, "vocab_size must be a whole number"),
        ({"model_type": "mpt", "n_heads": 1.5}, "n_heads must be a whole number"),
        ({"model_type": "phi", "max_position_embeddings": 10**9}, "max_position_embeddings must be a whole number"),
        ({"model_type": "phi", "num_key_value_heads": 10**9}, "num_key_value_heads must be a whole number"),
        ({"model_type": "bloom", "layer_norm_epsilon": float("nan")}, "layer_norm_epsilon must be a number; got nan"),
        ({"model_type": "bloom", "layer_norm_epsilon": -1e-5}, "layer_norm_epsilon must be a positive number"),
        ({"model_type": "phi", "rope_scaling": {"factor": {"__float__": "NaN"}}}, "factor must be a number; got nan"),
        (
            config_of("gptj") | {"activation_function": "nonsense"},
            "it knows no activation_function 'nonsense'; correct that field",
        ),
        (config_of("phi") | {"rope_scaling": {"rope_type": "odd"}}, "it knows no rope_type 'odd'"),
        ({"model_type": "xlnet", "n_layer": 2, "d_model": 16, "n_head": 2, "d_inner": 16}, r"passes on \[7, 1, 16\]"),
    ],
)
def test_what_cannot_be_wrapped_is_refused_in_one_line(hf, message):
    with pytest.raises(DataError, match=message) as error:
        load(hf)
    assert "\n" not in str(error.value)


def test_a_model_that_changes_the_stream_between_its_blocks_fails_its_proof(monkeypatch):
    from transformers.models.phi.modeling_phi import PhiDecoderLayer

    right = PhiDecoderLayer.forward
    monkeypatch.setattr(
        PhiDecoderLayer, "forward", lambda self, hidden_states, **kw: right(self, hidden_states, **kw)[:, :, :16]
    )
    with pytest.raises(DataError, match=r"fails its proof|cannot be run"):
        load(config_of("phi"))


def test_a_class_whose_rows_see_one_another_fails_its_proof(monkeypatch):
    from transformers.models.mamba.modeling_mamba import MambaMixer

    right = MambaMixer.forward

    def mixing(self, hidden_states, **kw):
        return right(self, (hidden_states + hidden_states.mean(0)) / 2, **kw)  # which changes no batch of one

    monkeypatch.setattr(MambaMixer, "forward", mixing)
    with pytest.raises(DataError, match="the activations of a text depend on the other texts of its batch"):
        load(config_of("mamba"))


def test_training_mode_is_refused():
    model = load(config_of("gptj")).train()
    with pytest.raises(UsageError, match=r"is in training mode, where dropout .* call \.eval\(\)"):
        model(torch.tensor([[3, 4]]))
    model.eval()(torch.tensor([[3, 4]]))


def test_a_class_that_ignores_the_mask_is_not_packed(monkeypatch):
    import transformers.models.stablelm.modeling_stablelm

    modeling: Any = transformers.models.stablelm.modeling_stablelm
    right = modeling.create_causal_mask
    monkeypatch.setattr(modeling, "create_causal_mask", lambda **kw: right(**{**kw, "attention_mask": None}))
    assert load(config_of("stablelm")).batching == "padded"
