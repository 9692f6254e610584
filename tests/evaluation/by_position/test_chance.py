"""The correction for all cells of a grid: against a plain one, on planted cells and on chance alone."""

import numpy as np

from probekit.evaluation.by_position.chance import compare_with_chance
from probekit.evaluation.scores.permutation import permutation_test, permuter
from probekit.evaluation.scores.predictions import Predictions


def predictions(truth: np.ndarray, right: float, seed: int) -> Predictions:
    """Predictions that are right with this probability."""
    rng = np.random.default_rng(seed)
    predicted = np.where(rng.random(len(truth)) < right, truth, 1 - truth)
    return Predictions(truth, predicted, predicted + rng.random(len(truth)) / 2, 2)


def grid(
    seed: int, right: dict[tuple[int, int], float], P: int = 4, L: int = 3, n: int = 40
) -> list[list[Predictions]]:
    rng = np.random.default_rng(seed)
    truths = [rng.permutation(np.arange(n - 4 * p) % 2) for p in range(P)]
    return [
        [predictions(truths[p], right.get((p, i), 0.5), 997 * seed + 10 * p + i) for i in range(L)] for p in range(P)
    ]


def test_equal_to_a_plain_one():
    cells = grid(3, {(1, 2): 0.85})
    found = compare_with_chance(cells, "accuracy", 5, [None] * 4, permutations=200)
    largest, z = np.full(200, -np.inf), {}
    for p, layers in enumerate(cells):
        truths = permuter(layers[0].truth, None)(np.random.default_rng(5), 200)
        for i, one in enumerate(layers):
            null = np.array([(truth == one.predicted).mean() for truth in truths])
            value = (one.truth == one.predicted).mean()
            z[p, i] = (value - null.mean()) / null.std()
            largest = np.maximum(largest, (null - null.mean()) / null.std())
            assert found.p_values[p, i] == (1 + (null >= value - 1e-12).sum()) / 201
    for (p, i), value in z.items():
        assert found.corrected[p, i] == max((1 + (largest >= value - 1e-12).sum()) / 201, found.p_values[p, i])


def test_one_position_agrees_with_the_test_of_a_curve():
    (layers,) = grid(7, {(0, 1): 0.7}, P=1)
    found = compare_with_chance([layers], "accuracy", 0, [None])
    known = permutation_test(layers, "accuracy", 0)
    assert np.array_equal(found.p_values[0], known.p_values)
    assert abs(found.corrected.min() - known.p_max) < 0.02


def test_one_planted_cell_among_many_is_found_and_chance_is_not():
    cells = grid(1, {(5, 3): 0.85}, P=12, L=6, n=120)
    found = compare_with_chance(cells, "accuracy", 0, [None] * 12)
    assert np.argwhere(found.corrected <= 0.05).tolist() == [[5, 3]]
    assert (found.corrected >= found.p_values).all()
    assert (found.p_values <= 0.05).sum() > 1  # uncorrected, chance would be taken for information


def test_the_chance_that_any_cell_without_information_is_called_above_chance_is_small():
    wrong = [
        (compare_with_chance(grid(seed, {}), "accuracy", seed, [None] * 4, permutations=99).corrected <= 0.05).any()
        for seed in range(100)
    ]
    assert 0 < np.sum(wrong) <= 13  # of 100 at 5%: the 99.9% quantile of the binomial


def test_constant_predictions_are_chance():
    truth = np.arange(30) % 2
    constant = Predictions(truth, np.zeros(30, dtype=int), np.zeros(30), 2)
    found = compare_with_chance([[constant, predictions(truth, 1.0, 0)]], "accuracy", 0, [None])
    assert found.corrected[0, 0] == 1
    assert found.corrected[0, 1] < 0.01


def test_texts_of_a_group_are_permuted_together():
    truth = np.repeat([0, 1, 0, 1, 1, 0], 20)
    groups = np.repeat(np.arange(6), 20)
    right = Predictions(truth, truth.copy(), truth.astype(float), 2)
    alone, grouped = (
        compare_with_chance([[right]], "accuracy", 0, [units]).corrected[0, 0] for units in (None, groups)
    )
    assert alone < 0.01 < 0.03 < grouped  # 20 ways to give three of six groups a class
