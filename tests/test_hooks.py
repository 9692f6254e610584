"""Naming, listening, replacing, removing: on a tiny GPT-2."""

import pytest
import torch
from gpt2_points import GPT2_POINTS

from probekit.errors import ProbekitError, UsageError
from probekit.hooks import ActivationCache
from probekit.models.families.gpt2 import GPT2, GPT2Config
from probekit.points import POINTS, Place, UnknownPoint, resolve_point

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


def test_contexts_nest_and_run_in_order(model):
    """Functions that only look leave the output as it is."""
    calls, seen, plain = list[str](), list[str](), model(TOKENS)
    with model.hooks([("embed", lambda x, hook: calls.append("outer"))]):
        with model.hooks([("embed", lambda x, hook: calls.append("inner"))]):
            model(TOKENS)
        with model.hooks([(lambda name: name.endswith("resid_pre"), lambda x, hook: seen.append(hook.name))]):
            assert torch.equal(model(TOKENS), plain)
    model(TOKENS)
    assert calls == ["outer", "inner", "outer"]
    assert seen == [f"blocks.{i}.hook_resid_pre" for i in range(3)]


def test_hooks_go_when_something_raises(model):
    def fail(x, hook):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        model.run_with_hooks(TOKENS, fwd_hooks=[("resid_mid", fail)])
    with pytest.raises(UnknownPoint), model.hooks([("embed", fail), ("nowhere", fail)]):
        pass
    assert not any(point.hooked for point in model.points.values())


@pytest.mark.parametrize("point", ["embed", "ln1_scale", "q", "z", "resid_mid", "mlp_post", "ln_final"])
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


def test_one_pair_needs_no_list(model):
    listed = model.run_with_hooks(TOKENS, fwd_hooks=[("resid_pre.1", lambda x, hook: x + 1)])
    assert torch.equal(model.run_with_hooks(TOKENS, fwd_hooks=("resid_pre.1", lambda x, hook: x + 1)), listed)
    with model.hooks((("resid_pre", 1), lambda x, hook: x + 1)):
        assert torch.equal(model(TOKENS), listed)


@pytest.mark.parametrize(
    ("given", "got"),
    [
        ("resid_pre.1", r"'resid_pre\.1'"),
        ([("resid_pre", 1, abs)], r"\('resid_pre', 1, <built-in function abs>\)"),
        (("resid_pre", 1), "'resid_pre'"),
        ([("resid_pre.1", 3)], r"\('resid_pre\.1', 3\)"),
        (None, "None"),
    ],
)
def test_hooks_that_are_no_pairs_are_refused_in_words(model, given, got):
    with pytest.raises(UsageError, match=rf"hooks are a list of \(point, function\), got {got}.*; write"):
        model.run_with_hooks(TOKENS, fwd_hooks=given)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("resid_per", "resid_pre"),
        (("resid_pre", 3), r"layer 3 is not in 0\.\.2"),
        ("blocks.12.hook_resid_pre", r"layer 12 is not in 0\.\.2"),
        ("blocks.1.hook_resid", "hook_resid_pre"),
        (("embed", 0), "no layer"),
        (("resid_pre", True), "int"),
        (7, "a point is"),
        (None, "a point is"),
        ("decoder.resid_pre", r"did you mean (\w+ or )*resid_pre( or \w+)*\?"),
        ("resid_pree", r"did you mean (\w+ or )*resid_pre( or \w+)*\?"),
        ("encoder.z", r"did you mean (\w+ or )*z( or \w+)*\?"),
        *((point, "has no point") for point in ("encoder.resid_pre.0", "rot_q", ("ln_embed", None), "decoder.embed")),
    ],
)
def test_unknown_points_name_the_nearest(model, spec, message):
    with pytest.raises(ProbekitError, match=message):
        model.resolve([spec])
    with pytest.raises(ProbekitError, match=message if isinstance(spec, str | tuple) else "a point is"):
        model.resolve(spec)


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (lambda x, hook: 0.0, r"a hook at blocks\.0\.hook_mlp_out must return a tensor or None; got float"),
        (lambda x, hook: x[..., 0], r"blocks\.0\.hook_mlp_out .* \[2, 5, 16\] \(B L D\); got \[2, 5\]"),
    ],
)
def test_a_hook_that_returns_something_else_is_named(model, hook, message):
    with pytest.raises(UsageError, match=message):
        model.run_with_hooks(TOKENS, fwd_hooks=[("mlp_out", hook)])
