"""The leaves against their closed forms."""

import math
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from probekit.errors import UsageError
from probekit.hooks import HookPoint
from probekit.models import kernels
from probekit.models.layers import (
    ACTIVATIONS,
    FeedForward,
    LayerNorm,
    Linear,
    MultiHeadAttention,
    RMSNorm,
    SwiGLU,
    attend,
    attention,
    attention_scores,
    causal_mask,
    init_embedding,
    init_linear,
    linear,
    padding_mask,
    positions_from_mask,
    softmax,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def filled(module, seed=0):
    """The module with normal weights."""
    generator = torch.Generator().manual_seed(seed)
    for weight in module.parameters():
        nn.init.normal_(weight, generator=generator)
    return module


def close(ours, theirs, factor=4):
    eps = torch.finfo(ours.dtype).eps
    return torch.allclose(ours.double(), theirs.double(), rtol=factor * eps, atol=factor * eps)


@pytest.mark.parametrize("shape", [(40,), (3, 40), (2, 5, 40), (2, 0, 40)])
@pytest.mark.parametrize("biased", [True, False])
def test_linear_is_the_product_whichever_kernel_runs(shape, biased):
    """With gradients (torch's kernel) and without (oneDNN's, where there is one), to float32's rounding."""
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(shape, generator=generator), torch.randn(7, 40, generator=generator)
    bias = torch.randn(7, generator=generator) if biased else None
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    assert torch.allclose(linear(x, weight, bias).double(), exact, rtol=1e-6, atol=1e-5)
    with torch.inference_mode():
        assert torch.allclose(linear(x, weight, bias).double(), exact, rtol=1e-6, atol=1e-5)


def test_linear_has_its_gradient_in_float32():
    """Of the input alone, too: no kernel without gradients may take it."""
    x, weight = torch.randn(3, 4, requires_grad=True), torch.randn(2, 4)
    linear(x, weight, None).sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad, weight.sum(0).expand(3, 4))


@pytest.mark.parametrize("init", [init_linear, init_embedding])
def test_initial_weights_are_normal_and_cut_at_three_sigma(init):
    weight, again = (init(torch.Size((600, 400)), torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(weight, again)
    z = weight / (math.sqrt(2 / 1000) if init is init_linear else 1)
    assert 2.99 < z.abs().max() <= 3
    share, width = (2 * 0.9986501019683699 - 1), math.exp(-4.5) / math.sqrt(2 * math.pi)  # of a normal, cut at 3
    assert z.var().item() == pytest.approx(1 - 6 * width / share, abs=0.01)
    assert abs(z.mean().item()) < 0.01


@pytest.mark.parametrize("dtype", DTYPES)
def test_looking_at_a_norms_scale_does_not_change_it(dtype):
    """One coordinate at 3,000, as GPT-2 has them: its square does not fit fp16."""
    norm = LayerNorm(64, eps=1e-5)
    torch.nn.init.normal_(norm.weight, generator=torch.Generator().manual_seed(0))
    torch.nn.init.normal_(norm.bias, generator=torch.Generator().manual_seed(1))
    norm = norm.to(dtype)
    x = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(2))
    x[..., 5] = 3000
    x = x.to(dtype)
    with torch.no_grad():
        fused, seen = norm(x), []
        norm.hook_scale.add(lambda scale, hook: seen.append(scale))
        looked = norm(x)
    assert looked.dtype == dtype
    assert torch.allclose(
        looked.float(), fused.float(), rtol=4 * torch.finfo(dtype).eps, atol=4 * torch.finfo(dtype).eps
    )
    assert torch.allclose(seen[0].double(), (x.double().var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt(), rtol=1e-3)


@pytest.mark.parametrize(("dtype", "looked"), list(product([*DTYPES, torch.float64], [False, True])))
def test_norms_equal_torchs(dtype, looked):
    x = torch.randn(2, 3, 64).to(dtype)
    for ours, theirs in [(LayerNorm(64, 1e-5), nn.LayerNorm(64, 1e-5)), (RMSNorm(64, 1e-6), nn.RMSNorm(64, 1e-6))]:
        filled(ours).to(dtype)
        theirs.load_state_dict(ours.state_dict())
        if looked:
            ours.hook_scale.add(lambda scale, hook: None)
        with torch.no_grad():
            assert ours(x).dtype == dtype
            assert close(ours(x), theirs.to(dtype)(x), factor=8), type(ours)


def test_rms_norm_bears_fp16_extremes():
    """Squares of 60,000 do not fit fp16, nor do those of 1e-7; a row of zeros stays zeros."""
    norm = RMSNorm(64, eps=1e-12).half()
    nn.init.ones_(norm.weight)
    x = torch.randn(4, 64, dtype=torch.float64)
    x[0, 3], x[1], x[2], x[3] = 60000, x[1] * 1e-5, 65504, 0
    x = x.half()
    expected = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-12).sqrt()
    assert close(norm(x), expected)


LEAVES = [Linear(6, 3), Linear(6, 3, bias=False), LayerNorm(6, 1e-5), RMSNorm(6, 1e-5), FeedForward(6, 8, "gelu")]


@pytest.mark.parametrize("module", [*LEAVES, SwiGLU(6, 8)])
def test_leaves_have_their_gradients(module):
    filled(module).double()
    names, weights = zip(*module.named_parameters(), strict=True)
    x = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)

    def run(x, *weights):
        return torch.func.functional_call(module, dict(zip(names, weights, strict=True)), (x,))

    assert torch.autograd.gradcheck(run, (x, *weights))


def _gelu_tanh(x):
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("gelu", lambda x: x / 2 * (1 + torch.erf(x / math.sqrt(2)))),
        ("gelu_new", _gelu_tanh),
        ("gelu_pytorch_tanh", _gelu_tanh),
        ("gelu_fast", _gelu_tanh),
        ("silu", lambda x: x / (1 + torch.exp(-x))),
        ("relu", lambda x: x.clamp(min=0)),
    ],
)
def test_activations_are_their_formulas(name, formula):
    x = torch.linspace(-8, 8, 101, dtype=torch.float64)
    act = ACTIVATIONS[name]
    assert torch.allclose(act(x), formula(x), atol=1e-12)
    for dtype in DTYPES:
        eps = torch.finfo(dtype).eps
        assert torch.allclose(act(x.to(dtype)).double(), formula(x.to(dtype).double()), rtol=4 * eps, atol=4 * eps)
    extremes = torch.tensor([-65504.0, 0.0, 65504.0], dtype=torch.float16)
    assert torch.equal(act(extremes), extremes.clamp(min=0))
    smooth = torch.tensor([-3.0, -0.5, 0.7, 4.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(act, smooth)


@pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 4, 5), (9, 70, 5), (0, 5)])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_gelu_after_a_product_is_the_gelu_of_the_product(monkeypatch, shape, biased, approximate):
    """In every kernel, with and without gradients, far out as well; cut into pieces or not."""
    torch.manual_seed(0)
    x, weight = torch.randn(shape) * 3, torch.randn(7, 5) * 3
    bias = torch.randn(7) if biased else None
    exact = F.gelu(
        F.linear(x.double(), weight.double(), bias if bias is None else bias.double()), approximate=approximate
    )
    for onednn in (kernels.onednn_linear, lambda dtype: None):
        monkeypatch.setattr(kernels, "onednn_linear", onednn)
        monkeypatch.setattr(kernels, "GELU_NUMBERS", 700)
        assert torch.allclose(kernels.gelu_linear(x, weight, bias, approximate).double(), exact, rtol=1e-5, atol=1e-5)
        with torch.inference_mode():
            found = kernels.gelu_linear(x, weight, bias, approximate)
        assert torch.allclose(found.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(5,), (3, 5), (4, 10, 5), (0, 5)])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("wide", [True, False])
def test_half_width_products_are_rounded_to_their_type(monkeypatch, dtype, shape, biased, wide):
    """Whether they are computed in float32 or not; with gradients as well."""
    monkeypatch.setattr(kernels, "onednn_linear", lambda dtype: None)
    monkeypatch.setattr(kernels, "multiplies", lambda dtype: not wide)
    monkeypatch.setattr(kernels, "WIDENED_NUMBERS", 10)  # two outputs at a time, of seven
    monkeypatch.setattr(kernels, "WIDENED_ROWS", 2)
    torch.manual_seed(0)
    x, weight = torch.randn(shape).to(dtype), torch.randn(7, 5).to(dtype)
    bias = torch.randn(7).to(dtype) if biased else None
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    eps = torch.finfo(dtype).eps
    for with_gradients in (True, False):
        with torch.set_grad_enabled(with_gradients):
            found, curved = kernels.linear(x, weight, bias), kernels.gelu_linear(x, weight, bias, "tanh")
        assert found.dtype == curved.dtype == dtype
        assert torch.allclose(found.double(), exact, rtol=eps, atol=eps)
        assert torch.allclose(curved.double(), F.gelu(exact, approximate="tanh"), rtol=4 * eps, atol=4 * eps)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_new"])
@pytest.mark.parametrize("looked", [True, False])
def test_feed_forward_equals_torchs_modules(activation, looked):
    ours, x = filled(FeedForward(6, 10, activation)), torch.randn(2, 3, 6)
    act = {"relu": nn.ReLU(), "gelu": nn.GELU(), "gelu_new": nn.GELU("tanh")}[activation]
    theirs = nn.Sequential(nn.Linear(6, 10), act, nn.Linear(10, 6))
    theirs.load_state_dict(
        {f"{0 if 'up' in name else 2}.{name.split('.')[1]}": w for name, w in ours.named_parameters()}
    )
    if looked:
        ours.hook_pre.add(lambda x, hook: None)
    with torch.no_grad():
        assert torch.allclose(ours(x), theirs(x), atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("looked", [True, False])
def test_swiglu_is_its_formula(bias, looked):
    ours, x = filled(SwiGLU(6, 10, bias)), torch.randn(2, 3, 6)
    if looked:
        ours.hook_pre.add(lambda x, hook: None)
    maps = (ours.gate, ours.up, ours.down)
    gate, up, down = ((m.weight.double(), 0 if m.bias is None else m.bias.double()) for m in maps)
    g, u = (x.double() @ w.T + b for w, b in (gate, up))
    expected = (g * torch.sigmoid(g) * u) @ down[0].T + down[1]
    with torch.no_grad():
        assert torch.allclose(ours(x).double(), expected, atol=1e-4)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
@pytest.mark.parametrize("dim", [0, -1])
def test_softmax_is_its_formula(dtype, dim):
    """In float64, whether or not another row is empty and takes the kernel out of its way."""
    full = (10 * torch.randn(5, 7)).to(dtype)
    full[full > 8] = -math.inf
    for x in (full, torch.cat([full, torch.full_like(full, -math.inf)], 1 + dim)):
        exp = x.double().exp()
        total = exp.sum(dim, keepdim=True)
        assert softmax(x, dim).dtype == dtype
        assert close(softmax(x, dim), exp / total.where(total > 0, 1))


def test_softmax_hides_no_nan():
    x = torch.tensor([[1.0, math.nan], [-math.inf, -math.inf], [math.inf, 0]])
    assert softmax(x).isnan().any(1).tolist() == [True, False, True]


def test_softmax_bears_fp16_extremes_and_empty_rows():
    x = torch.tensor([[65504.0, -65504.0], [-65504.0, -65504.0], [-math.inf, 0], [-math.inf, -math.inf]]).half()
    assert torch.equal(softmax(x), torch.tensor([[1.0, 0], [0.5, 0.5], [0, 1], [0, 0]]).half())
    assert torch.equal(softmax(torch.tensor([3e38, -3e38])), torch.tensor([1.0, 0.0]))


def test_softmax_has_its_gradients_beside_an_empty_row():
    x = torch.randn(3, 4, dtype=torch.float64)
    x[1] = -math.inf
    x[2, 1:3] = -math.inf
    x.requires_grad_()
    weight = torch.randn(3, 4, dtype=torch.float64)
    (grad,) = torch.autograd.grad((softmax(x) * weight).sum(), x)
    (expected,) = torch.autograd.grad((torch.softmax(x[[0, 2]], -1) * weight[[0, 2]]).sum(), x)
    assert torch.allclose(grad[[0, 2]], expected[[0, 2]])
    assert torch.equal(grad[1], torch.zeros(4, dtype=torch.float64))


REAL = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [0, 0, 1, 1, 1]])


def test_masks_are_their_definitions():
    """L sees M if M is real and, looking back, not after L; and itself."""
    for b, row, column in product(range(3), range(5), range(5)):
        seen = bool(REAL[b, column])
        assert padding_mask(REAL)[b, row, column].item() == (seen or row == column)
        assert causal_mask(REAL)[b, row, column].item() == ((seen and column <= row) or row == column)
    assert positions_from_mask(REAL).tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 2, 2], [0, 0, 0, 1, 2]]
    packed = torch.block_diag(torch.ones(2, 2).tril(), torch.ones(3, 3).tril())[None]
    assert positions_from_mask(packed).tolist() == [[0, 1, 0, 1, 2]]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("fused", [True, False])
def test_multi_head_attention_equals_torchs_with_padding_and_attention_masks(causal, fused):
    x, weight, bias = torch.randn(3, 5, 12), torch.randn(36, 12) / 3, torch.randn(36)
    out, inputs = filled(Linear(12, 12)), [x, weight, bias]
    for tensor in inputs:
        tensor.requires_grad_()
    q, k, v = linear(x, weight, bias).unflatten(-1, (3, 4, 3)).unbind(2)
    mask = (causal_mask if causal else padding_mask)(REAL)
    explicit = torch.einsum("bhlm,bmhk->blhk", softmax(attention_scores(q, k, mask)), v)
    ours = out((attention(q, k, v, mask) if fused else explicit).flatten(2))
    y = x.transpose(0, 1)
    later = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None
    theirs, pattern = F.multi_head_attention_forward(
        y, y, y, 12, 4, weight, bias, None, None, False, 0.0, out.weight, out.bias,
        key_padding_mask=REAL == 0, attn_mask=later, average_attn_weights=False,
    )  # fmt: skip
    real = REAL.bool()
    theirs = theirs.transpose(0, 1)
    assert torch.allclose(ours[real], theirs[real], atol=1e-5)
    assert pattern is not None
    shown = softmax(attention_scores(q, k, mask)).transpose(1, 2)[real]
    assert torch.allclose(shown, pattern.transpose(1, 2)[real], atol=1e-6)
    if not causal:  # left padding and a causal mask leave torch's rows empty, whose gradients are NaN
        upstream = torch.randn(ours[real].shape)
        mine, other = (torch.autograd.grad((o[real] * upstream).sum(), inputs) for o in (ours, theirs))
        for a, b in zip(mine, other, strict=True):
            assert torch.allclose(a, b, atol=1e-4)


@pytest.mark.parametrize("points", [[], ["hook_pattern"], ["hook_attn_scores"], ["hook_result"]])
def test_the_module_of_multi_head_attention_equals_torchs(points):
    """Whoever listens: to nothing, to scores or pattern, to the heads' results."""
    ours, x = filled(MultiHeadAttention(12, 4)), torch.randn(3, 5, 12)
    maps = (ours.q, ours.k, ours.v)
    weight, bias = torch.cat([m.weight for m in maps]), torch.cat([m.bias for m in maps if m.bias is not None])
    seen: list[torch.Tensor] = []
    for name in points:
        getattr(ours, name).add(lambda x, hook: seen.append(x))
    y, real = x.transpose(0, 1), REAL.bool()
    theirs, pattern = F.multi_head_attention_forward(
        y, y, y, 12, 4, weight, bias, None, None, False, 0.0, ours.out.weight, ours.out.bias,
        key_padding_mask=~real, average_attn_weights=False,
    )  # fmt: skip
    assert torch.allclose(ours(x, padding_mask(REAL))[real], theirs.transpose(0, 1)[real], atol=1e-4)
    assert pattern is not None
    if points == ["hook_pattern"]:
        assert torch.allclose(seen[0].transpose(1, 2)[real], pattern.transpose(1, 2)[real], atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("mask", [None, "causal", causal_mask(REAL)], ids=["all", "causal", "tensor"])
@pytest.mark.parametrize("hooked", [None, "scores", "pattern"])
def test_attend_is_attention_whatever_is_hooked(groups, mask, hooked):
    q, k, v = (torch.randn(3, 5, heads, 4) for heads in (6, groups, groups))
    points = {"scores": HookPoint("B H L M"), "pattern": HookPoint("B H L M")}
    seen: list[torch.Tensor] = []
    if hooked:
        points[hooked].add(lambda x, hook: seen.append(x))
    assert torch.allclose(attend(q, k, v, mask, *points.values()), attention(q, k, v, mask), atol=1e-5)
    assert [x.shape for x in seen] == [(3, 6, 5, 5)] * bool(hooked)


def test_attend_takes_scores_that_are_wider_than_the_values():
    q, k, v = (torch.randn(2, 5, 3, 4) for _ in range(3))
    z = attend(q, k, v.half(), "causal", HookPoint("B H L M"), HookPoint("B H L M"))
    assert z.dtype == torch.float16
    assert torch.allclose(z.float(), attention(q, k, v, "causal"), atol=5e-3)


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("masked", [True, False])
def test_grouped_query_attention_is_that_of_repeated_heads(groups, masked):
    """Against the formula, written out head by head, with its gradients."""
    q, k, v = (torch.randn(3, 5, heads, 4, requires_grad=True) for heads in (6, groups, groups))
    mask = causal_mask(REAL) if masked else torch.ones(5, 5, dtype=torch.bool).tril().expand(3, 5, 5)
    shared = [h * groups // 6 for h in range(6)]
    heads = [F.scaled_dot_product_attention(q[:, :, h], k[:, :, g], v[:, :, g], mask) for h, g in enumerate(shared)]
    expected = torch.stack(heads, 2)
    upstream = torch.randn(expected.shape)
    wanted = torch.autograd.grad((expected * upstream).sum(), (q, k, v), retain_graph=True)
    for ours in [attention(q, k, v, each) for each in ([mask] if masked else [mask, "causal"])]:
        assert torch.allclose(ours, expected, atol=1e-5)
        for a, b in zip(torch.autograd.grad((ours * upstream).sum(), (q, k, v)), wanted, strict=True):
            assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_head_that_may_attend_to_nothing_gets_zeros(dtype):
    q, k, v = torch.randn(3, 2, 4, 2, 8).to(dtype)
    mask = torch.tensor([[True], [False], [True], [False]]).expand(2, 4, 4)
    fused = attention(q, k, v, mask)
    shown = torch.einsum("bhlm,bmhk->blhk", softmax(attention_scores(q, k, mask)), v)
    for out in (fused, shown):
        assert torch.equal(out[:, [1, 3]], torch.zeros(2, 2, 2, 8, dtype=dtype))
        assert out.isfinite().all()
    assert torch.allclose(fused, shown, atol=8 * torch.finfo(dtype).eps)


def test_heads_bear_fp16_extremes():
    q, k, v = (torch.full((1, 2, 3, 64), x, dtype=torch.float16) for x in (90.0, 90.0, 60000.0))
    assert torch.equal(attention_scores(q, k, None), torch.full((1, 3, 2, 2), 64800.0, dtype=torch.float16))
    assert torch.allclose(attention(q, k, v, None), v)
    assert torch.allclose(attention(q, k, v, "causal"), v)


@pytest.mark.parametrize("mask", [torch.ones(2, 4, 5).bool(), torch.ones(2, 4, 6), torch.ones(2, 1, 4, 6).bool()])
def test_a_mask_that_does_not_fit_the_heads(mask):
    q, k, v = torch.randn(2, 4, 2, 8), torch.randn(2, 6, 2, 8), torch.randn(2, 6, 2, 8)
    for call in (lambda: attention(q, k, v, mask), lambda: attention_scores(q, k, mask)):
        with pytest.raises(UsageError, match=r"boolean and broadcasts to \[2, 4, 6\]; got torch"):
            call()
