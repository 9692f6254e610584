"""Directions, placebos and angles against numpy, scikit-learn and closed forms."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import special_ortho_group
from sklearn.covariance import oas

from probekit.causal.directions.directions import (
    Direction,
    lda_direction,
    mean_difference_direction,
    moments_of_rows,
    oas_shrinkage,
    probe_direction,
    unit_direction,
)
from probekit.causal.directions.placebos import (
    angle,
    covariance_directions,
    haar_angle,
    haar_share,
    random_directions,
    shuffled_direction,
)
from probekit.errors import DataError, UsageError
from probekit.interventions import apply_edit
from probekit.probes.lda import MeanDifferenceProbe
from probekit.probes.logistic.probe import LogisticProbe
from probekit.probes.mlp import MLPProbe

N, D = 300, 12
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, N)
X = RNG.standard_normal((N, D)) @ RNG.standard_normal((D, D)) + 3 * RNG.standard_normal((3, D))[LABELS] + 50


@pytest.fixture(scope="module")
def moments():
    return moments_of_rows(X, {"label": LABELS})


def test_the_mean_difference_is_that_of_the_rows_and_std_is_theirs(moments):
    found = mean_difference_direction(moments, "label", (2, 0))
    by_hand = X[LABELS == 0].mean(axis=0) - X[LABELS == 2].mean(axis=0)
    assert found.vector_D.numpy() == pytest.approx(by_hand / np.linalg.norm(by_hand), abs=1e-12)
    assert found.std == pytest.approx((X @ found.vector_D.numpy()).std(), rel=1e-10)


def test_two_classes_of_a_probe_are_a_contrast_of_its_weights(moments):
    probe = LogisticProbe().fit(X, LABELS)
    found = probe_direction(probe, moments, (0, 2)).vector_D.numpy()
    by_hand = probe.coef_[2] - probe.coef_[0]
    assert found == pytest.approx(by_hand / np.linalg.norm(by_hand), abs=1e-12)
    assert probe_direction(probe, moments, (2, 0)).vector_D.numpy() == pytest.approx(-found)
    binary = LogisticProbe().fit(X, LABELS == 1)
    assert (X @ probe_direction(binary, moments).vector_D.numpy())[LABELS == 1].mean() > (
        X @ probe_direction(binary, moments).vector_D.numpy()
    )[LABELS != 1].mean()
    with pytest.raises(UsageError, match=r"different numbers of 0\.\.1; got \(0, 2\)"):
        probe_direction(binary, moments, (0, 2))


def test_lda_whitens_the_mean_difference(moments):
    """At the estimated shrinkage, which is scikit-learn's of the standardised rows around their class means."""
    z = (X - X.mean(axis=0)) / X.std(axis=0)
    within = z - np.stack([z[c == LABELS].mean(axis=0) for c in range(3)])[LABELS]
    covariance, shrinkage = oas(within, assume_centered=True)
    assert oas_shrinkage(moments, "label") == pytest.approx(shrinkage, rel=1e-8)
    difference = z[LABELS == 1].mean(axis=0) - z[LABELS == 0].mean(axis=0)
    by_hand = np.linalg.solve(covariance, difference) / X.std(axis=0)
    found = lda_direction(moments, "label").vector_D.numpy()
    assert found == pytest.approx(by_hand / np.linalg.norm(by_hand), abs=1e-8)


def test_lda_of_fewer_rows_than_features_is_finite():
    x, y = RNG.standard_normal((20, 50)), np.arange(20) % 2
    x[:, 0] += 6 * y
    found = lda_direction(moments_of_rows(x, {"label": y}), "label").vector_D
    assert (x @ found.numpy())[y == 1].min() > (x @ found.numpy())[y == 0].max()


def test_edits_of_a_direction_move_by_standard_deviations_and_remove_the_coordinate(moments):
    direction = mean_difference_direction(moments, "label")
    x = torch.from_numpy(X)[None]
    moved = apply_edit(direction.steering(2.0), x) - x
    assert (moved[0] @ direction.vector_D).numpy() == pytest.approx(2 * direction.std)
    erased = apply_edit(direction.erasing(moments.mean), x)[0] @ direction.vector_D
    assert erased.numpy() == pytest.approx(float(moments.mean @ direction.vector_D))


MEANS: Any = mean_difference_direction  # what the types forbid is tried, too


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda m: mean_difference_direction(m, "lable"), UsageError, "no label set 'lable'; did you mean label"),
        (lambda m: mean_difference_direction(m, "label", (0, 3)), UsageError, "different numbers of 0..2"),
        (lambda m: MEANS(m, "label", ("a", "b")), UsageError, "different numbers of 0..2"),
        (lambda m: MEANS(m, "label", 3), UsageError, "different numbers of 0..2; got 3"),
        (lambda m: moments_of_rows(X, {"y": LABELS[1:]}), DataError, "labels 'y' must be class numbers"),
        (lambda m: moments_of_rows(X, {"y": LABELS - 1}), DataError, "0 or more, of the 300 rows"),
        (lambda m: random_directions(2, 3, seed=-1), UsageError, "seed must be a whole number, 0 or more"),
        (lambda m: lda_direction(m, "label", shrinkage=2), UsageError, "shrinkage must be"),
        (lambda m: unit_direction("a", np.zeros(D), m), DataError, "length 0: the classes do not differ"),
        (lambda m: probe_direction(MLPProbe(), m), UsageError, "direction is that of linear weights"),
        (lambda m: Direction("a", torch.ones(D), 1.0), UsageError, "of length 1; got"),
        (lambda m: moments_of_rows(np.full((2, 2), np.nan), {}), DataError, "expected finite activations"),
        (
            lambda m: mean_difference_direction(moments_of_rows(X, {"y": LABELS * 0}, {"y": 2}), "y"),
            DataError,
            "no row of class 1 of 'y'",
        ),
    ],
)
def test_bad_input_is_refused(moments, make, error, message):
    with pytest.raises(error, match=message):
        make(moments)


def test_random_directions_are_uniform():
    found = random_directions(4000, 6, seed=3)
    assert found.norm(dim=1).numpy() == pytest.approx(np.ones(4000))
    assert torch.equal(found, random_directions(4000, 6, seed=3))
    # the mean of 4,000 outer products is I / 6; its entries have standard deviations of at most .0025
    assert (found.T @ found / 4000).numpy() == pytest.approx(np.eye(6) / 6, abs=0.0125)


def test_covariance_directions_lie_where_the_activations_vary():
    Q = special_ortho_group.rvs(5, random_state=1)
    covariance = torch.from_numpy(Q @ np.diag([100.0, 1.0, 1e-4, 0.0, 0.0]) @ Q.T)
    found = covariance_directions(500, covariance, seed=0).numpy() @ Q
    assert np.linalg.norm(found, axis=1) == pytest.approx(np.ones(500))
    assert np.abs(found[:, 3:]).max() < 1e-6
    assert np.median(np.abs(found[:, 0])) > 0.9
    with pytest.raises(DataError, match="do not vary"):
        covariance_directions(2, torch.zeros(3, 3))
    with pytest.raises(UsageError, match=r"must be \[D, D\]; got \[3, 2\]"):
        covariance_directions(2, torch.zeros(3, 2))


def test_the_direction_of_shuffled_labels_is_that_of_a_probe_of_them():
    binary = (LABELS == 1).astype(int)
    found = shuffled_direction(MeanDifferenceProbe(), X, binary, seed=7, k=2).numpy()
    shuffled = np.random.default_rng(7).permutation(binary)
    by_hand = X[shuffled == 1].mean(axis=0) - X[shuffled == 0].mean(axis=0)
    assert found[0] == pytest.approx(by_hand / np.linalg.norm(by_hand))
    assert found.shape == (2, D)
    assert shuffled_direction(LogisticProbe(), X, LABELS).shape == (1, D)
    with pytest.raises(DataError, match="length 0: the activations do not vary"):
        shuffled_direction(MeanDifferenceProbe(), np.ones((N, D)), binary)


def test_angles_are_between_lines():
    a = torch.tensor([1.0, 0.0, 0.0])
    for degrees in (1e-9, 0.1, 30, 89.9, 90):
        t = np.radians(degrees)
        for sign in (5, -1):
            assert angle(a, sign * np.array([np.cos(t), np.sin(t), 0])) == pytest.approx(degrees, rel=1e-6)
    with pytest.raises(DataError, match="has no direction"):
        angle(a, a * 0)
    with pytest.raises(UsageError, match="between two vectors"):
        angle(a, torch.ones(4))


def test_the_haar_angle_has_closed_forms_and_is_the_quantile_of_random_directions():
    assert haar_angle(2, 0.3) == pytest.approx(27)  # uniform on the circle
    assert haar_angle(3, 0.5) == pytest.approx(60)  # cos is uniform (Archimedes)
    assert haar_share(768, haar_angle(768, 0.05)) == pytest.approx(0.05)
    found = random_directions(4000, 64, seed=1)[:, 0].abs().acos().rad2deg()
    # 5% of 4,000: a standard deviation of 14 directions
    assert int((found <= haar_angle(64, 0.05)).sum()) == pytest.approx(200, abs=70)
    for wrong in (0, 1, -1):
        with pytest.raises(UsageError, match="share must be between 0 and 1"):
            haar_angle(3, wrong)
    with pytest.raises(UsageError, match=r"degrees must be in 0\.\.90"):
        haar_share(3, 91)


def test_what_is_no_vector_or_number_is_refused():
    given: Any = "ab"  # what the types forbid
    for misuse, why in (
        (lambda: angle(given, given), r"two vectors .* of numbers; got a str"),
        (lambda: haar_angle(3, given), "share must be between 0 and 1; got 'ab'"),
        (lambda: haar_share(3, given), r"degrees must be in 0..90; got 'ab'"),
        (lambda: covariance_directions(2, given), r"covariance must be \[D, D\]; got a str"),
        (lambda: Direction("probe", np.eye(3)[0], 1.0), "vector_D is a tensor"),  # pyright: ignore[reportArgumentType]
    ):
        with pytest.raises(UsageError, match=why):
            misuse()
    assert torch.equal(covariance_directions(2, np.eye(3)), covariance_directions(2, torch.eye(3)))
