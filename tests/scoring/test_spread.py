"""Distances from the training activations: against scipy and scikit-learn, and the share of rows called unusual."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import mahalanobis
from sklearn.covariance import ledoit_wolf

from probekit.errors import DataError
from probekit.evaluation import train_probes as fits
from probekit.evaluation.results.spread import (
    SPREAD_FILE,
    TrainingSpread,
    distances,
    read_spread,
    spread_bytes,
    usual_line,
)
from probekit.evaluation.train_probes import spread_of


def rows(n: int, D: int, seed: int = 0) -> np.ndarray:
    """Correlated rows around a far mean, with one huge dimension, as residual streams have them."""
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(n, D)) @ np.random.default_rng(99).normal(size=(D, D)) / np.sqrt(D)
    mixed[:, 0] *= 300
    return mixed + 50


def covariance(spread: TrainingSpread, D: int) -> np.ndarray:
    V = spread.directions.astype(np.float64)
    return V.T @ np.diag(spread.variances - spread.rest) @ V + spread.rest * np.eye(D)


@pytest.mark.parametrize(("n", "D"), [(400, 12), (60, 40), (30, 80), (5, 9)])
def test_equal_to_scipy_with_the_covariance_of_ledoit_and_wolf(n: int, D: int) -> None:
    """Exactly so where there are no more directions than are kept; fewer rows than dimensions are no trouble."""
    X, new = rows(n, D), rows(7, D, 1)
    shrunk = ledoit_wolf(X)[0]
    inverse = np.linalg.inv(shrunk)
    expected = [mahalanobis(x, X.mean(axis=0), inverse) for x in new]
    np.testing.assert_allclose(distances(spread_of(X, "p"), new), expected, rtol=2e-4)


def test_of_more_directions_the_rest_have_one_variance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fits, "DIRECTIONS", 10)
    X, new = rows(400, 30), rows(7, 30, 1)
    found = spread_of(X, "p")
    shrunk = ledoit_wolf(X)[0]
    values = np.linalg.eigvalsh(shrunk)[::-1]
    np.testing.assert_allclose(found.variances, values[:10], rtol=1e-6)
    assert found.rest == pytest.approx(values[10:].mean(), rel=1e-6)
    inverse = np.linalg.inv(covariance(found, 30))
    np.testing.assert_allclose(distances(found, new), [mahalanobis(x, found.mean, inverse) for x in new], rtol=1e-4)


@pytest.mark.parametrize("directions", [256, 6])
def test_one_percent_of_rows_like_the_training_ones_is_unusual(
    directions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over draws of the held-out rows, the share of new rows above the line is what the line promises.

    It is so however coarse the covariance: with few directions and one variance for the others too.
    """
    monkeypatch.setattr(fits, "DIRECTIONS", directions)
    made, shares, promised, line = spread_of(rows(500, 20), "p"), [], [], 0.0
    assert len(made.directions) == min(directions, 20)
    for seed in range(60):
        held_out = np.sort(distances(made, rows(300, 20, 2 * seed + 10)))
        found = usual_line(TrainingSpread(**{**vars(made), "held_out": held_out}))
        assert found is not None
        line = found[0]
        shares.append((distances(made, rows(300, 20, 2 * seed + 11)) > line).mean())
        promised.append(found[1])
    assert promised[0] == 3 / 301
    assert np.mean(shares) == pytest.approx(promised[0], abs=4 * np.std(shares) / np.sqrt(60))
    assert (distances(made, rows(20, 20, 3) + 30) > line).all()


@pytest.mark.parametrize(("n", "line", "share"), [(0, None, None), (1, 0.0, 0.5), (50, 49.0, 1 / 51), (99, 98.0, 0.01)])
def test_few_held_out_rows_promise_less(n: int, line: float | None, share: float | None) -> None:
    found = usual_line(TrainingSpread("p", 5, *[np.zeros(0)] * 3, 1.0, np.arange(n, dtype=float)))  # pyright: ignore
    assert found == (None if line is None else (line, pytest.approx(share)))


@pytest.mark.parametrize("X", [np.ones((5, 3)), np.zeros((1, 4))])
def test_rows_without_variance_have_finite_distances(X: np.ndarray) -> None:
    found = distances(spread_of(X, "p"), X + np.array([0, *[1.0] * (X.shape[1] - 1)]))
    assert np.isfinite(found).all()
    assert (found > 0).all()


def test_saved_and_read_the_same(tmp_path: Path) -> None:
    made = TrainingSpread(**{**vars(spread_of(rows(40, 9), "resid_pre.3")), "held_out": np.arange(3.0)})
    data = spread_bytes(made)
    (tmp_path / SPREAD_FILE).write_bytes(data)
    import hashlib

    found = read_spread(tmp_path, hashlib.sha256(data).hexdigest(), {"resid_pre.3": 9})
    for name, value in vars(made).items():
        np.testing.assert_array_equal(getattr(found, name), value)
    (tmp_path / SPREAD_FILE).write_bytes(data[:-1] + b"x")
    with pytest.raises(DataError, match="is not the one of these results, or is damaged"):
        read_spread(tmp_path, hashlib.sha256(data).hexdigest(), {"p": 9})
    (tmp_path / SPREAD_FILE).unlink()
    with pytest.raises(DataError, match="could not read"):
        read_spread(tmp_path, "", {})


def test_a_file_of_other_arrays_is_refused(tmp_path: Path) -> None:
    import hashlib

    wrong: Any = {**vars(spread_of(rows(40, 9), "p")), "mean": np.zeros(4)}
    data = spread_bytes(TrainingSpread(**wrong))
    (tmp_path / SPREAD_FILE).write_bytes(data)
    with pytest.raises(DataError, match=r"damaged at mean: expected the shape \[9\], got \[4\]"):
        read_spread(tmp_path, hashlib.sha256(data).hexdigest(), {"p": 9})
