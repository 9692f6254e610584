"""Batched L-BFGS on quadratics whose minimum is known."""

import numpy as np

from probekit.probes.lbfgs import BatchedLBFGS

D = 30


def minimised(conditions: list[float], is_preconditioned: bool):
    """0.5 (x - 1)' A (x - 1) for A with the eigenvalues 1 to `condition`, all problems at once."""
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.normal(size=(D, D)))[0]
    A = np.stack([rotation * np.geomspace(1, condition, D) @ rotation.T for condition in conditions])

    def evaluate(which: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        g = np.einsum("pij,pj->pi", A[which], at - 1)
        return 0.5 * ((at - 1) * g).sum(axis=1), g

    inverse = np.linalg.inv(A[0])
    start = rng.normal(size=(1, D)).repeat(len(conditions), axis=0)
    precondition = (lambda g: g @ inverse) if is_preconditioned else (lambda g: g)
    return BatchedLBFGS(evaluate, start, np.full(len(conditions), 1e-6), precondition).run(400)


def test_problems_of_one_run_equal_those_alone():
    together = minimised([10.0, 1e3], False)
    alone = minimised([10.0], False)
    assert together.finished.all()
    np.testing.assert_allclose(together.theta, 1, atol=1e-5)
    np.testing.assert_allclose(together.theta[0], alone.theta[0], atol=1e-9)
    assert together.passes[0] == alone.passes[0] < together.passes[1]


def test_the_inverse_hessian_as_preconditioner_takes_newton_steps():
    plain, newton = minimised([1e4], False), minimised([1e4], True)
    np.testing.assert_allclose(newton.theta, 1, atol=1e-5)
    assert newton.passes[0] < 15 < 60 < plain.passes[0]
