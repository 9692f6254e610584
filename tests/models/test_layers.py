"""The leaves against their closed forms."""

import pytest
import torch

from probekit.models.layers import linear


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
