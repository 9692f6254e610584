"""Naming, listening, replacing, removing: on a tiny GPT-2."""

import re
from typing import Any

import pytest
import torch
from gpt2_points import GPT2_POINTS
from torch.nn import Identity

from probekit.activations.plan.places import find_places
from probekit.errors import ProbekitError, UsageError
from probekit.hooks import ActivationCache
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.models.point_rows import point_rows
from probekit.points import POINTS, Place, UnknownPoint, parse_layers, resolve_point

TOKENS = torch.arange(10).reshape(2, 5)


@pytest.fixture(scope="module")
def model() -> GPT2:
    cfg = GPT2Config(d_model=16, n_heads=2, d_mlp=24, n_layers=3, n_ctx=8, d_vocab=11, init_std=0.3)
    model = GPT2(cfg).init_weights(0)
    assert sum(p.numel() for p in model.parameters()) < 10_000
    return model


@pytest.mark.parametrize("spec", [("resid_pre", 2), "resid_pre.2", "blocks.2.hook_resid_pre"])
def test_three_spellings_are_one_point(model, spec):
    assert resolve_point(spec, 3) == "blocks.2.hook_resid_pre"
    assert model.resolve(spec) == ["blocks.2.hook_resid_pre"]
    _, cache = model.run_with_cache(TOKENS, points=spec)
    assert list(cache) == ["blocks.2.hook_resid_pre"]
    assert spec in cache
    assert torch.equal(cache[spec], cache["resid_pre", 2])


def test_every_short_name_resolves_to_a_path_of_named_modules(model):
    paths = dict(model.named_modules())
    for short, template in ((short, POINTS[short]) for short in GPT2_POINTS):
        names = model.resolve(short)
        assert len(names) == (3 if "{layer}" in template else 1)
        for name in names:
            assert paths[name] is model.points[name]
            assert model.points[name].name == name


def test_transformer_lens_alias(model):
    assert (
        model.resolve("pattern") == model.resolve("attn_pattern") == [f"blocks.{i}.attn.hook_pattern" for i in range(3)]
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("resid_per", "resid_pre"),
        (("resid_pre", 3), r"layer 3 is not in 0\.\.2"),
        ("resid_pre.12", r"layer 12 is not in 0\.\.2"),
        ("blocks.12.hook_resid_pre", r"layer 12 is not in 0\.\.2"),
        ("blocks.1.hook_resid", "hook_resid_pre"),
        (("embed", 0), "no layer"),
        (("resid_pre", "0"), "int"),
        (("resid_pre", True), "int"),
        (7, "a point is"),
    ],
)
def test_unknown_points_name_the_nearest(model, spec, message):
    with pytest.raises(ProbekitError, match=message):
        model.resolve([spec])


@pytest.fixture(scope="module")
def uneven() -> GPT2:
    """A model whose first block has no mid point and no ln1, and says why for one of these."""
    cfg = GPT2Config(d_model=16, n_heads=2, d_mlp=24, n_layers=3, n_ctx=8, d_vocab=11)
    model = GPT2(cfg).init_weights(0)
    block: Any = model.blocks[0]
    block.hook_resid_mid = block.ln1.hook_scale = block.ln1.hook_normalized = Identity()
    model.absent = {"ln1_normalized": "the first block has no norm", "mlp_pre_linear": "it has no gate"}
    return model


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("resid_mid.0", "this model has no point resid_mid.0; there are resid_mid 1-2"),
        ("blocks.0.hook_resid_mid", "this model has no point resid_mid.0; there are resid_mid 1-2"),
        (
            "ln1_normalized.0",
            "this model has no point ln1_normalized.0: the first block has no norm; there are ln1_normalized 1-2",
        ),
        ("mlp_pre_linear", "this model has no point mlp_pre_linear: it has no gate"),
        ("mlp_pre_linear.7", "this model has no point mlp_pre_linear: it has no gate"),
        ("resid_mid.3", "layer 3 is not in 0..2"),
        ("rot_q", "this model has no point rot_q; known are: embed"),
        ("token_type_embed", "this model has no point token_type_embed; did you mean pos_embed?"),
        ("token_type_embed.0", "token_type_embed belongs to no layer"),
    ],
)
def test_a_point_that_is_absent_says_why_or_where_it_is(uneven, spec, message):
    with pytest.raises(UsageError, match=f"^{re.escape(message)}"):
        uneven.resolve(["resid_pre", spec])


def test_a_name_without_a_layer_means_the_layers_that_have_the_point(uneven):
    assert uneven.resolve("resid_mid") == [f"blocks.{i}.hook_resid_mid" for i in (1, 2)]
    assert uneven.layers_of("resid_mid") == uneven.layers_of("ln1_scale") == [1, 2]
    assert uneven.layers_of("resid_pre") == [0, 1, 2]
    assert uneven.layers_of("embed") == uneven.layers_of("rot_q") == []
    assert {row["short"]: row["full"] for row in point_rows(uneven)}["resid_mid"] == "blocks.{1..2}.hook_resid_mid"


@pytest.mark.parametrize(
    ("points", "layers", "places"),
    [
        (["resid_mid"], "all", ["resid_mid.1", "resid_mid.2", "resid_post.2"]),
        (["attn_out", "ln1_scale"], "0-1", ["attn_out.0", "attn_out.1", "ln1_scale.1"]),
        (["embed", "resid_mid"], "1", ["embed", "resid_mid.1"]),
        (["embed", "resid_mid"], [0], "no point resid_mid.0; there are"),
        (["resid_mid", "ln1_scale"], "0,2", "no point resid_mid.0; there are"),
        (["attn_out", "resid_mid"], [0], "no point resid_mid.0; there are"),
        (["attn_out", "mlp_pre_linear"], "all", "no point mlp_pre_linear: it has no gate"),
        (["mlp_pre_linear"], "2", "no point mlp_pre_linear: it has no gate"),
    ],
)
def test_layers_choose_among_those_that_have_a_point(uneven, points, layers, places):
    if isinstance(places, str):
        with pytest.raises(UnknownPoint, match=places):
            find_places(uneven, points, layers)
    else:
        assert [str(place) for place in find_places(uneven, points, layers)] == places


@pytest.mark.parametrize(
    ("spec", "layers"),
    [
        ("all", [0, 1, 2, 3, 4, 5]),
        ("3", [3]),
        (3, [3]),
        ("0,4", [0, 4]),
        ("2-4", [2, 3, 4]),
        ("0, 2-3,3", [0, 2, 3]),
        ([5, 1], [1, 5]),
    ],
)
def test_layers(spec, layers):
    assert parse_layers(spec, 6) == layers


@pytest.mark.parametrize("spec", ["", "a", "1-", "-1", "3-1", "1,,2", "6", 6, -1, [0, 6], [], "2-6", f"0-{10**14}"])
def test_impossible_layers(spec):
    with pytest.raises(UsageError):
        parse_layers(spec, 6)


def test_layer_out_of_range_says_which_there_are():
    with pytest.raises(UsageError, match=r"^layer 12 is not in 0\.\.11$"):
        parse_layers("12", 12)


def test_hooks_replace_and_leave_no_trace(model):
    before = model(TOKENS)
    zeroed = model.run_with_hooks(TOKENS, fwd_hooks=[("mlp_out", lambda x, hook: torch.zeros_like(x))])
    assert not torch.allclose(before, zeroed)
    _, cache = model.run_with_cache(TOKENS, points=["resid_pre", "attn_out", "resid_post"])
    with model.hooks([(("mlp_out", 1), lambda x, hook: x * 0)]):
        _, inner = model.run_with_cache(TOKENS, points=["resid_mid.1", "resid_post.1"])
        assert torch.equal(inner["resid_mid", 1], inner["resid_post", 1])
    assert torch.equal(model(TOKENS), before)
    assert not any(point.hooked for point in model.points.values())
    assert len(cache) == 9


def test_a_replacement_is_rounded_to_the_type_of_the_activation(model):
    """A hook may add a float64 direction to a float32 stream."""
    direction = torch.linspace(-1, 1, 16, dtype=torch.float64)

    def moved(by) -> torch.Tensor:
        with torch.no_grad():
            return model.run_with_hooks(TOKENS, fwd_hooks=[("resid_pre.1", lambda x, hook: x + 3 * by)])

    assert torch.allclose(moved(direction), moved(direction.float()), atol=1e-5)
    assert moved(direction).dtype == torch.float32


def test_a_hook_that_returns_no_tensor_is_named(model):
    with pytest.raises(UsageError, match=r"a hook at blocks\.0\.hook_mlp_out must return a tensor or None; got float"):
        model.run_with_hooks(TOKENS, fwd_hooks=[("mlp_out", lambda x, hook: 0.0)])


def test_looking_changes_nothing(model):
    seen = []
    out = model.run_with_hooks(
        TOKENS, fwd_hooks=[(lambda name: name.endswith("resid_pre"), lambda x, hook: seen.append(hook.name))]
    )
    assert torch.equal(out, model(TOKENS))
    assert seen == [f"blocks.{i}.hook_resid_pre" for i in range(3)]


def test_contexts_nest_and_run_in_order(model):
    calls: list[str] = []
    with model.hooks([("embed", lambda x, hook: calls.append("outer"))]):
        with model.hooks([("embed", lambda x, hook: calls.append("inner"))]):
            model(TOKENS)
        model(TOKENS)
    model(TOKENS)
    assert calls == ["outer", "inner", "outer"]


def test_hooks_go_when_something_raises(model):
    def fail(x, hook):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        model.run_with_hooks(TOKENS, fwd_hooks=[("resid_mid", fail)])
    with pytest.raises(UnknownPoint), model.hooks([("embed", fail), ("nowhere", fail)]):
        pass
    assert not any(point.hooked for point in model.points.values())


def test_a_replacement_keeps_the_shape(model):
    with pytest.raises(UsageError, match=r"blocks\.0\.hook_resid_mid .* \[2, 5, 16\] \(B L D\); got \[2, 5\]"):
        model.run_with_hooks(TOKENS, fwd_hooks=[("resid_mid.0", lambda x, hook: x[..., 0])])


@pytest.mark.parametrize("point", [p for p in GPT2_POINTS if p not in {"attn_scores", "attn_pattern"}])
def test_gradients_flow_through_points(model, point):
    """The gradient at a point is that of a replacement put there: against a finite difference in float64."""
    m = GPT2(model.cfg).init_weights(0).double()
    name = m.resolve(point)[0]
    _, cache = m.run_with_cache(TOKENS, points=name)
    x = cache[name].detach().requires_grad_()
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def loss(value):
        return m.run_with_hooks(TOKENS, fwd_hooks=[(name, lambda _, hook: value)]).square().sum()

    (grad,) = torch.autograd.grad(loss(x), x)
    step = 1e-6
    with torch.no_grad():
        numeric = (loss(x + step * direction) - loss(x - step * direction)) / (2 * step)
    assert torch.isclose((grad * direction).sum(), numeric, rtol=1e-5)


def test_gradients_reach_cached_tensors(model):
    out, cache = model.run_with_cache(TOKENS, points=["attn_pattern", "resid_pre"])
    grads = torch.autograd.grad(out.square().sum(), list(cache.values()))
    assert all(g.abs().sum() > 0 for g in grads)


def test_positions(model):
    _, whole = model.run_with_cache(TOKENS)
    for positions in (-1, 2, slice(1, 3), [0, 4, -2], [0]):
        _, some = model.run_with_cache(TOKENS, positions=positions)
        for name, x in whole.items():
            axis = 2 if model.points[name].axes == "B H L M" else 1
            expected = x[:, :, positions] if axis == 2 else x[:, positions]
            assert torch.equal(some[name], expected), name
    with pytest.raises(UsageError, match=r"hook_embed has 5 positions, -5\.\.4; got 5"):
        model.run_with_cache(TOKENS, positions=5)


def test_a_named_point_that_is_not_reached_is_an_error(model):
    with pytest.raises(UsageError, match=r"the forward stopped before blocks\.2\.hook_resid_mid"):
        model.run_with_cache(TOKENS, points=["resid_mid"], stop_at_layer=2)
    _, cache = model.run_with_cache(TOKENS, stop_at_layer=1)
    assert ("resid_pre", 1) in cache
    assert ("resid_mid", 1) not in cache


def test_cache(model):
    _, cache = model.run_with_cache(TOKENS)
    assert torch.equal(cache.stack("resid_pre"), torch.stack([cache["resid_pre", i] for i in range(3)]))
    assert list(cache) == list(model.points)
    text = repr(cache)
    assert "blocks.0.hook_resid_pre  [2, 5, 16]" in text
    assert "MB" in text
    moved = cache.to("cpu")
    assert isinstance(moved, ActivationCache)
    assert list(moved) == list(cache)
    assert cache.get(("resid_pre", 7)) is None
    with pytest.raises(UnknownPoint, match="stack"):
        cache["resid_pre"]
    with pytest.raises(UnknownPoint, match="no layer of embed"):
        cache.stack("embed")
    with pytest.raises(KeyError):
        cache["resid_pre", 9]
    held = model.run_with_cache(TOKENS, points="embed", device="meta")[1]
    assert held["embed"].device.type == "meta"


@pytest.mark.parametrize(
    ("typed", "short", "layer"),
    [
        ("encoder.resid_pre.3", "encoder.resid_pre", 3),
        ("encoder.blocks.3.hook_resid_pre", "encoder.resid_pre", 3),
        ("decoder.blocks.10.cross_attn.hook_pattern", "decoder.cross_attn_pattern", 10),
        ("decoder.embed", "decoder.embed", None),
        ("blocks.0.attn.hook_rot_q", "rot_q", 0),
    ],
)
def test_points_of_stacks_are_split_as_others_are(typed, short, layer):
    assert Place.of(typed) == (short, layer)


def test_a_point_of_another_family_is_unknown(model):
    for point in ("encoder.resid_pre", "encoder.resid_pre.0", "rot_q", ("ln_embed", None), "decoder.embed"):
        with pytest.raises(UnknownPoint, match="has no point"):
            model.resolve(point)


@pytest.mark.parametrize(
    ("typed", "hint"), [("decoder.resid_pre", "resid_pre"), ("resid_pree", "resid_pre"), ("encoder.z", "z")]
)
def test_a_hint_names_short_names_that_this_model_has(model, typed, hint):
    with pytest.raises(UnknownPoint, match=rf"did you mean (\w+ or )*{hint}( or \w+)*\?"):
        model.resolve(typed)


def test_one_pair_needs_no_list(model):
    listed = model.run_with_hooks(TOKENS, fwd_hooks=[("resid_pre.1", lambda x, hook: x + 1)])
    assert torch.equal(model.run_with_hooks(TOKENS, fwd_hooks=("resid_pre.1", lambda x, hook: x + 1)), listed)
    with model.hooks((("resid_pre", 1), lambda x, hook: x + 1)):
        assert torch.equal(model(TOKENS), listed)


@pytest.mark.parametrize(
    ("given", "got"),
    [
        ({"resid_pre.1": abs}, "{'resid_pre.1': <built-in"),
        ("resid_pre.1", r"'resid_pre\.1'"),
        ([("resid_pre", 1, abs)], r"\('resid_pre', 1, <built-in function abs>\)"),
        (("resid_pre", 1), "'resid_pre'"),
        ([("resid_pre.1", 3)], r"\('resid_pre\.1', 3\)"),
        (abs, "<built-in function abs>"),
        (None, "None"),
    ],
)
def test_hooks_that_are_no_pairs_are_refused_in_words(model, given, got):
    with pytest.raises(UsageError, match=rf"hooks are a list of \(point, function\), got {got}.*; write"):
        model.run_with_hooks(TOKENS, fwd_hooks=given)


@pytest.mark.parametrize("spec", [None, 5])
def test_what_is_no_point_is_refused(model, spec):
    with pytest.raises(UnknownPoint, match=rf'a point is "resid_pre.5", .*; got {spec}'):
        model.resolve(spec)
