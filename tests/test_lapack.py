"""Factors and products by scipy's LAPACK and BLAS, against numpy."""

import threading
import time

import numpy as np
import pytest
import torch

from probekit.machine.lapack import cholesky, symmetric_times
from probekit.probes.logistic.systems import factored

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


def test_what_lapack_would_misread_is_refused():
    A, x = positive(6, torch.float32), torch.ones(6)
    for wrong in (A.mT[:, 1:], A.bfloat16()):
        with pytest.raises(AssertionError, match="contiguous"):
            cholesky(wrong)
    for wrong, vector in ((A, x.double()), (A.double(), x), (A, torch.ones(12)[::2]), (A.bfloat16(), x.bfloat16())):
        with pytest.raises(AssertionError):
            symmetric_times(wrong, vector)


def test_other_threads_run_while_a_factor_is_computed():
    A, ticks, done = positive(2000, torch.float64), [], threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(1e-4)

    other = threading.Thread(target=tick)
    other.start()
    start = time.perf_counter()
    cholesky(A)
    end = time.perf_counter()
    done.set()
    other.join()
    assert any(start < at < end for at in ticks)


def test_a_factor_of_a_matrix_that_rounding_makes_indefinite_is_still_near():
    """The first try has none in float32; the later ones add to the diagonal, from what is left of the matrix."""
    X = torch.from_numpy(np.random.default_rng(0).normal(size=(200, 40)))
    A = 1e7 * (X @ X.T)
    first = A.float()
    first.diagonal().add_(1)
    assert cholesky(first) is None
    L = factored(A.float())
    assert L is not None
    L = L.tril().double()
    torch.testing.assert_close(L @ L.T, A, rtol=0, atol=3e-4 * float(A.abs().max()))
    assert factored(-1e20 * torch.eye(3)) is None
    torch.testing.assert_close(factored(-1e20 * torch.eye(3, dtype=torch.float64)), torch.eye(3, dtype=torch.float64))
