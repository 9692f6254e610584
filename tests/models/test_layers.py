"""The leaves against their closed forms."""

import pytest
import torch

from probekit.models.layers import LayerNorm, linear


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


def test_linear_takes_views():
    x, weight = torch.randn(4, 3, 8).transpose(0, 1), torch.randn(8, 5).T
    with torch.no_grad():
        assert torch.allclose(linear(x, weight, None), x @ weight.T, atol=1e-5)


def test_linear_has_its_gradients():
    x, weight, bias = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in [(3, 4), (2, 4), (2,)])
    assert torch.autograd.gradcheck(linear, (x, weight, bias))
    x32 = torch.randn(3, 4, requires_grad=True)
    linear(x32, weight.detach().float(), None).sum().backward()
    assert x32.grad is not None
    assert torch.allclose(x32.grad, weight.detach().float().sum(0).expand(3, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
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
