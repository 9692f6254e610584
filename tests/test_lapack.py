"""Factors and products by scipy's LAPACK and BLAS, against numpy."""

import numpy as np
import pytest
import torch

from probekit.machine.lapack import cholesky, symmetric_times

SIZES = [0, 1, 2, 7, 65, 300]
ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-13}


def positive(n: int, dtype: torch.dtype) -> torch.Tensor:
    X = torch.from_numpy(np.random.default_rng(n).normal(size=(n, n + 3)))
    return (X @ X.T + torch.eye(n)).to(dtype)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("n", SIZES)
def test_the_factor_is_numpys_and_the_other_half_stays(n, dtype):
    A = positive(n, dtype)
    L = cholesky(overwritten := A.clone())
    assert L is not None
    expected = np.linalg.cholesky(A.double().numpy())
    np.testing.assert_allclose(
        L.tril().numpy(), expected, rtol=0, atol=ROUNDING[dtype] * np.abs(expected).max(initial=1)
    )
    torch.testing.assert_close(overwritten.tril(-1), A.tril(-1), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("at", [0, 40, 64])
def test_a_matrix_that_is_not_positive_has_no_factor(wrong, at, dtype):
    A = positive(65, dtype)
    A[at, at] = wrong
    assert cholesky(A) is None


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("n", SIZES)
def test_the_product_of_a_symmetric_matrix_reads_one_half(n, dtype):
    A, x = positive(n, dtype), torch.linspace(-1, 1, n, dtype=dtype)
    half, bound = A.tril() + torch.full_like(A, 1e30).triu(1), ROUNDING[dtype] * float(A.abs().double().sum())
    torch.testing.assert_close(symmetric_times(half, x).double(), A.double() @ x.double(), rtol=0, atol=bound)
