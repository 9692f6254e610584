"""Differences of runs against published examples, textbook formulas, and draws of known truth."""

import itertools
from math import comb, sqrt

import numpy as np
import pytest
from planted_runs import made
from scipy.stats import norm

import probekit as pk
from probekit.evaluation.compare.lead import accuracy_difference, independent_difference, lead
from probekit.evaluation.scores.bootstrap import Bootstrap
from probekit.evaluation.scores.metrics import Predictions
from probekit.side_by_side.data import RunDifference
from probekit.side_by_side.differences import corrected


def predictions(right: np.ndarray, truth: np.ndarray) -> Predictions:
    predicted = np.where(right, truth, 1 - truth)
    return Predictions(truth, predicted, predicted.astype(float), 2)


def pair(both: int, won: int, lost: int, neither: int) -> tuple[Predictions, Predictions]:
    """Two runs, by how many rows both, one, the other or neither gets right."""
    mine = np.repeat([True, True, False, False], [both, won, lost, neither])
    theirs = np.repeat([True, False, True, False], [both, won, lost, neither])
    truth = np.arange(len(mine)) % 2
    return predictions(mine, truth), predictions(theirs, truth)


def test_the_published_example_of_matched_pairs():
    """21 patients before and after a transplant: 1 both, 1 before alone, 7 after alone (Bentur and others 2009).

    Fagerland, Lydersen and Laake (2014) give the exact p-value 0.070 and the Bonett-Price interval -0.508 to -0.013.
    """
    difference, ends, p = accuracy_difference(*pair(1, 1, 7, 12), Bootstrap(21))
    assert difference == pytest.approx(-6 / 21)
    assert ends == pytest.approx((-0.508, -0.013), abs=5e-4)
    assert p == pytest.approx(0.0703, abs=5e-5)


@pytest.mark.parametrize(("won", "lost"), [(0, 0), (1, 0), (5, 0), (9, 3), (12, 12)])
def test_the_p_value_is_mcnemars(won, lost):
    n = won + lost
    tail = sum(comb(n, k) for k in range(min(won, lost) + 1)) / 2**n
    found = accuracy_difference(*pair(40, won, lost, 10), Bootstrap(50 + n))
    assert found[2] == pytest.approx(min(1.0, 2 * tail))


def test_independent_estimates_give_newcombes_interval():
    """56 of 70 and 48 of 80: 0.2, 95% interval 0.0524 to 0.3339 (Newcombe 1998, method 10)."""

    def wilson(x: int, n: int) -> tuple[float, tuple[float, float]]:
        z, p = float(norm.ppf(0.975)), x / n
        middle, half = p + z**2 / 2 / n, z * sqrt(p * (1 - p) / n + z**2 / 4 / n**2)
        return p, ((middle - half) / (1 + z**2 / n), (middle + half) / (1 + z**2 / n))

    ends, p = independent_difference(wilson(56, 70), wilson(48, 80))
    assert ends == pytest.approx((0.0524, 0.3339), abs=5e-5)
    assert p is not None
    assert 0.001 < p < 0.05
    assert independent_difference((0.5, None), (0.4, (0.3, 0.5))) == (None, None)
    same, one = independent_difference((0.5, (0.4, 0.6)), (0.5, (0.4, 0.6)))
    assert one == pytest.approx(1)
    assert same == pytest.approx((-0.1 * sqrt(2), 0.1 * sqrt(2)))


@pytest.mark.parametrize("groups", [None, 5])
def test_intervals_hold_the_true_difference_and_few_p_values_are_small_without_one(groups):
    """400 draws of two runs that share most of their errors; with groups, of five rows that share them all."""
    rng = np.random.default_rng(0)
    held = small = 0
    draws, units = 400 if groups is None else 150, 100 if groups is None else 60
    for _ in range(draws):
        easy, luck = rng.random(units), rng.random((2, units))
        mine, theirs = (np.where(easy < 0.7, True, each < 0.5) for each in luck)
        unit = np.repeat(np.arange(units), groups or 1)
        bootstrap = Bootstrap(len(unit), 0, None if groups is None else unit, resamples=300)
        truth = np.arange(len(unit)) % 2
        _, (low, high), p = accuracy_difference(
            predictions(mine[unit], truth), predictions(theirs[unit], truth), bootstrap
        )
        held += low <= 0 <= high
        small += p <= 0.05
    least = 0.95 - 3 * sqrt(0.95 * 0.05 / draws)
    assert held / draws >= least
    assert small / draws <= 1 - least


def test_groups_widen_the_interval_as_much_as_if_each_were_one_row():
    mine, theirs = pair(40, 12, 4, 20)
    once = accuracy_difference(mine, theirs, Bootstrap(76))[1]
    unit = np.repeat(np.arange(76), 5)
    repeated = [Predictions(x.truth[unit], x.predicted[unit], x.scores[unit], 2) for x in (mine, theirs)]
    grouped = accuracy_difference(repeated[0], repeated[1], Bootstrap(380, 0, unit))[1]
    naive = accuracy_difference(repeated[0], repeated[1], Bootstrap(380))[1]
    assert grouped[1] - grouped[0] == pytest.approx(once[1] - once[0], rel=0.1)
    assert naive[1] - naive[0] < 0.6 * (once[1] - once[0])


@pytest.mark.parametrize("metric", ["accuracy", "auroc", "f1"])
def test_differences_have_the_interval_of_the_lead_over_a_baseline(metric):
    """One paired difference, for each metric."""
    rng = np.random.default_rng(1)
    truth = rng.integers(2, size=400)
    scores = [truth * s + rng.normal(size=400) for s in (1.5, 0.8)]
    runs = [made((s > 0.5).astype(int), truth, scores=s, metric=metric, seed=i) for i, s in enumerate(scores)]
    (found,) = pk.compare(runs).differences
    each = [Predictions(truth, (s > 0.5).astype(int), s, 2) for s in scores]
    known = lead(each[1], [("other", each[0])], metric, Bootstrap(400))
    assert known is not None
    assert found.interval is not None
    assert found.difference == pytest.approx(known["over"])
    assert found.interval == pytest.approx(tuple(known["interval"]), abs=2e-3)
    assert (found.kind, found.test, found.n) == ("paired", "McNemar" if metric == "accuracy" else "bootstrap", 400)


def test_two_perfect_runs_are_not_said_to_be_equal_for_sure():
    truth = np.arange(40) % 2
    one, other = (
        made(truth, truth, scores=truth - 0.5, metric="auroc"),
        made(truth, truth, scores=truth - 0.01 * np.arange(40), metric="auroc"),
    )
    (found,) = pk.compare([one, other]).differences
    assert found.interval == pytest.approx((-0.1684, 0.1684), abs=5e-5)  # 0.025^(1/20) = 0.8316 with 20 of a class
    same = made(truth, truth, scores=truth - 0.5, metric="auroc", probe="other")
    assert pk.compare([one, same]).differences[0].interval == (0, 0)


def test_p_values_are_corrected_by_holm():
    values = [0.03, 0.01, None, 0.04, 0.9]
    found = corrected([RunDifference(i, 0, 0.0, None, p, p, "paired", "McNemar", 9) for i, p in enumerate(values)])
    adjusted = [each.corrected for each in found]
    assert adjusted == [pytest.approx(0.09), pytest.approx(0.04), None, pytest.approx(0.09), pytest.approx(0.9)]
    for level in (0.02, 0.05, 0.1):  # as the step-down procedure rejects
        rejected, order = set(), sorted((p, i) for i, p in enumerate(values) if p is not None)
        for rank, (p, i) in enumerate(order):
            if p > level / (len(order) - rank):
                break
            rejected.add(i)
        assert rejected == {i for i, p in enumerate(adjusted) if p is not None and p <= level}


def test_the_sign_of_a_difference_turns_with_the_order_of_the_runs():
    rng = np.random.default_rng(3)
    truth = rng.integers(2, size=60)
    runs = [
        made(np.where(rng.random(60) < share, truth, 1 - truth), truth, seed=i) for i, share in enumerate((0.9, 0.7))
    ]
    (one,), (other,) = pk.compare(runs).differences, pk.compare(runs[::-1]).differences
    assert one.interval is not None
    assert other.interval is not None
    assert (one.difference, one.p_value) == (-other.difference, other.p_value)
    assert one.interval == pytest.approx((-other.interval[1], -other.interval[0]))
    every = pk.compare([*runs, made(1 - truth, truth, probe="bad")], pairs="all").differences
    assert [(each.run, each.minus) for each in every] == [(j, i) for i, j in itertools.combinations(range(3), 2)]
