"""Sets of problems: combining and selecting them changes no problem."""

import numpy as np

from probekit.probes.problem import Labels, Problem, ProblemSet, concatenated, every_problem, subset

A, B = Labels(np.array([0, 1, 0])), Labels(np.array([0, 1, 2]), 3)
MASK = np.array([1.0, 0.0, 1.0])


def resolved(problems: ProblemSet) -> list[tuple]:
    """Each problem with its arrays instead of their numbers."""
    return [(problems.labels[p.label], problems.weightings[p.weighting], p.C) for p in problems.problems]


def same(one: list[tuple], other: list[tuple]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a is b for x, y in pairs for a, b in zip(x, y, strict=True))


def test_every_problem_is_each_combination_once_with_C_fastest():
    problems = every_problem([A, B], [0.1, None], [None, MASK])
    assert problems.problems == tuple(Problem(k, w, C) for k in (0, 1) for w in (0, 1) for C in (0.1, None))


def test_joined_sets_hold_the_problems_of_each_in_order():
    one, other = every_problem([A], [1.0]), every_problem([B, A], [2.0, 3.0], [MASK])
    assert same(resolved(concatenated([one, other])), resolved(one) + resolved(other))
    assert concatenated([]).problems == ()


def test_a_subset_holds_the_chosen_problems_and_no_array_that_they_do_not_use():
    problems = every_problem([A, B], [0.1, 1.0], [None, MASK])
    which = [7, 2, 6]
    some = subset(problems, which)
    assert same(resolved(some), [resolved(problems)[i] for i in which])
    assert [each is MASK for each in some.weightings] == [True]
    assert some.labels == (B, A)
    assert subset(problems, []).labels == ()
