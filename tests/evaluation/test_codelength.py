import json
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from probekit.errors import UsageError
from probekit.evaluation.compare.codelength import FRACTIONS, Codelength, OnlineCode, layer_codelength
from probekit.probes import LogisticProbe
from probekit.probes.problem import Problem

GRID = (1e-4, 1e-2, 1.0)


Answer = Callable[[int, int], list[np.ndarray]]


def log_probabilities(X: np.ndarray, code: OnlineCode) -> Answer:
    """What scikit-learn's logistic regression says of the rows of a block."""

    def answer(start: int, end: int) -> list[np.ndarray]:
        problems, told = code.problems(start), []
        for problem in problems.problems:
            labels = problems.labels[problem.label].values
            assert problem.C is not None
            with threadpool_limits(1):  # tiny fits, which threads make slow
                probe = LogisticRegression(C=problem.C, max_iter=2000).fit(X[code.order[:start]], labels)
                told.append(np.asarray(probe.predict_log_proba(X[code.order[start:end]])))
        return told

    return answer


def uninformed(code: OnlineCode) -> Answer:
    """Every class of its prefix is as likely to each problem."""

    def answer(start: int, end: int) -> list[np.ndarray]:
        S = code.problems(start).labels[0].n_classes
        return [np.full((end - start, S), -np.log(S))] * len(code.grid)

    return answer


def always(code: OnlineCode, told: np.ndarray) -> Answer:
    """What every probe says of all rows."""
    return lambda start, end: [told[code.order[start:end]]] * len(code.grid)


def length(X: np.ndarray, labels: np.ndarray, seed=0, grid=GRID, n_classes=2) -> Codelength:
    code = OnlineCode(labels, n_classes, np.arange(len(labels)), grid, seed)
    return code.codelength(log_probabilities(X, code))


def test_a_simple_rule_has_a_shorter_code_than_a_random_one_of_the_same_accuracy_on_train():
    """400 points in 300 dimensions: any labels can be learnt by heart, only the planted ones early."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 300)) / np.sqrt(300)
    X[:, 0] += 2 * np.sign(X[:, 0])
    simple, random = (X[:, 0] > 0).astype(int), rng.integers(2, size=400)
    planted, memorised = length(X, simple, grid=(1e-2, 1.0, 100.0)), length(X, random, grid=(1e-2, 1.0, 100.0))
    assert planted.bits < 0.35 * memorised.bits
    assert planted.compression > 3


@pytest.mark.parametrize("n_classes", [2, 5])
def test_random_labels_cost_about_the_uniform_code_and_never_much_more(n_classes):
    compressions = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        labels = rng.integers(n_classes, size=300)
        code = length(rng.normal(size=(300, 20)), labels, seed, n_classes=n_classes)
        assert code.bits <= code.uniform_bits + np.log2(len(GRID) + 2)
        compressions.append(code.compression)
    assert 0.98 < np.mean(compressions) < 1.01


@pytest.mark.parametrize("share", [0.1, 0.03])
def test_noise_of_unequal_classes_gains_nothing_over_their_frequencies(share):
    """Though it is compressed: the uniform code is no yardstick for it."""
    rng = np.random.default_rng(0)
    labels = (np.arange(1500) < 1500 * share).astype(int)
    code = length(rng.normal(size=(1500, 8)), labels)
    assert code.gain == pytest.approx(1, abs=0.04)
    assert code.compression > 1.8
    entropy = -1500 * (share * np.log2(share) + (1 - share) * np.log2(1 - share))
    assert code.prior_bits == pytest.approx(entropy, rel=0.05)


@pytest.mark.parametrize("share", [0.1, 0.03])
def test_what_is_read_of_unequal_classes_is_gained(share):
    rng = np.random.default_rng(0)
    labels = (np.arange(1500) < 1500 * share).astype(int)
    code = length(rng.normal(size=(1500, 2)) + 6 * labels[:, None], labels)
    assert code.gain > 2


def test_the_code_of_the_frequencies_is_that_of_each_block_by_what_stands_before():
    rng = np.random.default_rng(6)
    labels = rng.choice(3, p=[0.7, 0.2, 0.1], size=200)
    code = OnlineCode(labels, 3, np.arange(200), [None])
    sent, bits = labels[code.order], 0.0
    for start, end in pairwise([0, *code.ends]):
        for label in sent[start:end]:
            bits -= np.log2(((sent[:start] == label).sum() + 0.5) / (start + 1.5))
    assert code.codelength(uninformed(code)).prior_bits == pytest.approx(bits)


def test_the_closed_form_of_a_toy_case():
    """One C whose probe gives every label probability 3/4: a mixture of it, the uniform code and the frequencies."""
    n = 1000
    labels = np.arange(n) % 2
    code = OnlineCode(labels, 2, np.arange(n), [1.0])
    told = np.log(np.where(labels[:, None] == np.arange(2), 0.75, 0.25))
    result = code.codelength(always(code, told))
    sent, probe = labels[code.order], 0.0
    for start, end in pairwise([0, *code.ends]):
        for label in sent[start:end]:
            own = ((sent[:start] == label).sum() + 0.5) / (start + 1)
            probe -= np.log2(own if start < code.prefixes[0] else (0.75 * start + own) / (start + 1))
    least = min(n, probe, result.prior_bits)
    members = [2.0 ** (least - bits) for bits in (n, probe, result.prior_bits)]
    assert result.bits == pytest.approx(least - np.log2(np.mean(members)))
    assert result.uniform_bits == n
    assert result.compression == pytest.approx(n / result.bits)
    assert result.blocks[0].bits == pytest.approx(1)
    assert [block.coded for block in result.blocks] == [1, 1, 2, 4, 8, 16, 31, 62, 125, 250, 500]
    assert sum(block.bits for block in result.blocks) == pytest.approx(result.bits)
    assert json.loads(json.dumps(asdict(result)))["blocks"][-1]["fitted"] == 500


def test_the_mixture_is_within_its_prior_of_the_best_member():
    rng = np.random.default_rng(1)
    labels = rng.integers(3, size=200)
    X = rng.normal(size=(200, 5)) + labels[:, None]
    each = [length(X, labels, grid=(C,), n_classes=3).bits for C in GRID]
    mixed = length(X, labels, n_classes=3).bits
    assert mixed <= min(each) + np.log2(len(GRID) + 2)
    assert mixed >= min(each) - np.log2(3) - 1e-9  # each of the singles mixes in the two codes without activations


def test_a_block_depends_on_no_later_label():
    """The receiver has only the earlier labels, so with other later ones the earlier blocks are the same to the bit."""
    rng = np.random.default_rng(2)
    X, labels = rng.normal(size=(240, 10)), rng.integers(2, size=240)
    code = OnlineCode(labels, 2, np.arange(240), GRID)
    before = code.codelength(log_probabilities(X, code))
    for number in range(3, len(code.ends)):
        changed = labels.copy()
        later = code.order[code.ends[number - 1] :]
        changed[later] = 1 - changed[later]
        other = OnlineCode(changed, 2, np.arange(240), GRID)
        after = other.codelength(log_probabilities(X, other))
        assert after.blocks[:number] == before.blocks[:number]
        assert after.blocks[number] != before.blocks[number]


def test_problems_are_prefixes_of_the_training_rows():
    labels = np.arange(500) % 2
    rows = np.arange(100, 400)
    code = OnlineCode(labels, 2, rows, GRID, seed=3)
    for end in code.prefixes:
        problems = code.problems(end)
        assert problems.problems == tuple(Problem(0, 0, C) for C in GRID)
        assert problems.weightings == (None,)
        (own,) = problems.labels
        np.testing.assert_array_equal(own.values, labels[code.order[:end]])
    assert code.prefixes == [end for end in code.ends[:-1] if end >= code.prefixes[0]]
    assert code.ends == sorted({int(np.ceil(f * 300)) for f in FRACTIONS})
    assert sorted(code.order) == list(rows)


def test_a_prefix_without_a_class_has_a_probe_of_the_others():
    """The third class stands last: until then the probes tell the other two apart, and it keeps its frequency."""
    labels = np.zeros(100, dtype=int)
    code = OnlineCode(labels, 3, np.arange(100), [None])
    labels[code.order[:20]] = np.arange(20) % 2
    labels[code.order[40:]] = 2
    late = OnlineCode(labels, 3, np.arange(100), [None])
    n_classes = {end: late.problems(end).labels[0].n_classes for end in late.prefixes}
    assert list(n_classes.values()) == [2] * (len(late.prefixes) - 1) + [3]
    sure = [log_softmax(20.0 * (labels[:, None] == np.arange(S)), axis=1) for S in (2, 3)]
    result = late.codelength(lambda start, end: [sure[n_classes[start] - 2][late.order[start:end]]])
    assert [block.fitted for block in result.blocks] == [0, 0, *late.prefixes]
    assert result.blocks[0].bits == pytest.approx(np.log2(3))
    assert result.bits < 0.8 * late.codelength(uninformed(late)).bits


def test_labels_of_one_class_have_no_probe():
    never = OnlineCode(np.zeros(100, dtype=int), 2, np.arange(100), GRID)
    assert never.prefixes == []
    told = never.codelength(uninformed(never))
    assert told.bits == pytest.approx(told.prior_bits, abs=np.log2(5 / 4))  # all members but the uniform code


@pytest.mark.parametrize(("n", "n_classes"), [(6, 2), (5, 3), (4, 4)])
def test_the_lengths_of_all_labellings_satisfy_kraft_with_equality(n, n_classes):
    """Whatever the probes say of what they have seen: 2^-bits are the probabilities of a distribution."""
    rows = np.arange(n)

    def bits(labels: tuple[int, ...]) -> float:
        code = OnlineCode(np.array(labels), n_classes, rows, [1.0, 10.0], seed=1)

        def answer(start: int, end: int) -> list[np.ndarray]:
            (column,) = code.problems(start).labels
            known = np.bincount(column.values, minlength=column.n_classes)  # as a probe knows only its prefix
            scores = np.sin(np.outer(1 + code.order[start:end], known) + column.n_classes)
            return [log_softmax((C or 0) * scores, axis=1) for C in code.grid]

        return code.codelength(answer).bits

    lengths = [bits(labels) for labels in product(range(n_classes), repeat=n)]
    assert np.exp2(-np.array(lengths)).sum() == pytest.approx(1)


def test_a_class_that_comes_late_does_not_hide_what_the_others_give():
    """Four classes that the features tell, and a fifth with two rows, which stand in the last block."""
    rng = np.random.default_rng(0)
    labels = rng.choice(4, size=400, p=[0.4, 0.3, 0.2, 0.1])
    X = np.eye(4)[labels] * 5 + rng.normal(size=(400, 4))
    order = OnlineCode(labels, 5, np.arange(400), GRID).order
    labels[order[-2:]] = 4
    late = length(X, labels, n_classes=5)
    known = length(X[order[:-2]], labels[order[:-2]], n_classes=4)
    assert late.gain > 10  # without probes before the fifth class it was 0.997: the frequencies alone
    assert late.bits < known.bits + 40


def test_a_rare_label_that_a_probe_excludes_costs_a_few_bits():
    """One label of 512 against a probe that is sure of the other class: at most log2 of n + 1 beyond its frequency."""
    labels = np.zeros(512, dtype=int)
    order = OnlineCode(labels, 2, np.arange(512), [1.0]).order
    labels[order[0]] = labels[order[300]] = 1
    code = OnlineCode(labels, 2, np.arange(512), [1.0])
    sure = np.broadcast_to([0.0, -np.inf], (512, 2))
    told = code.codelength(always(code, np.asarray(sure)))
    block = next(block for block in told.blocks if block.fitted == 256)
    assert block.bits < 2 * np.log2(257) + 3


def test_groups_are_sent_whole():
    rng = np.random.default_rng(4)
    groups = rng.integers(60, size=300)
    code = OnlineCode(rng.integers(2, size=300), 2, np.arange(300), GRID, groups=groups)
    block = np.searchsorted(code.ends, np.arange(300), side="right")
    assert sorted(code.order) == list(range(300))
    for group in np.unique(groups):
        places = np.flatnonzero(groups[code.order] == group)
        assert np.ptp(places) == len(places) - 1
        assert len(set(block[places])) == 1
    assert all(a < b for a, b in pairwise(code.ends))


def test_one_order_for_a_seed():
    make = lambda seed: OnlineCode(np.arange(50) % 2, 2, np.arange(50), GRID, seed).order.tolist()  # noqa: E731
    assert make(0) == make(0) != make(1)


@pytest.mark.parametrize("n_classes", [2, 5])
def test_the_code_of_a_layer_is_that_of_separate_fits(n_classes):
    """One solve for the strengths of a prefix, whose first rows lack classes, says what scikit-learn's fits say."""
    rng = np.random.default_rng(5)
    labels = rng.integers(n_classes, size=120)
    X = rng.normal(size=(120, 6)) + labels[:, None]
    code = OnlineCode(labels, n_classes, np.arange(120), (0.01, 1.0))
    found, probes = layer_codelength(code, LogisticProbe(standardise=False), torch.from_numpy(X))
    assert len(probes) == 2 * len(code.prefixes)
    assert found["bits"] == pytest.approx(code.codelength(log_probabilities(X, code)).bits, abs=0.05)


def test_certainty_that_is_wrong_costs_no_more_than_the_mixture_allows():
    labels = np.arange(64) % 2
    code = OnlineCode(labels, 2, np.arange(64), [1.0])
    wrong = code.codelength(always(code, np.where(labels[:, None] == np.arange(2), -np.inf, 0.0)))
    assert wrong.bits <= np.log2(3) - np.log2(2**-64.0 + 2**-wrong.prior_bits) + 1e-9
    right = code.codelength(always(code, np.where(labels[:, None] == np.arange(2), 0.0, -np.inf)))
    without = sum(block.bits for block in right.blocks if not block.fitted)
    blocks = [block for block in right.blocks if block.fitted]
    most = sum(block.coded * np.log2(1 + 1 / block.fitted) for block in blocks)
    assert right.bits <= without + np.log2(3) + most


@pytest.mark.parametrize("told", [np.full((64, 2), 0.5), np.full((64, 2), np.nan), np.full((64, 2), -np.inf)])
def test_what_is_no_logarithm_of_probabilities_is_refused(told):
    code = OnlineCode(np.arange(64) % 2, 2, np.arange(64), [1.0])
    with pytest.raises(UsageError, match="natural logarithms"):
        code.codelength(always(code, told))


@pytest.mark.parametrize(("n_classes", "rows", "grid"), [(0, 5, [1.0]), (1, 5, [1.0]), (2, 0, [1.0]), (2, 5, [])])
def test_a_code_of_nothing_is_refused(n_classes, rows, grid):
    with pytest.raises(UsageError, match="the code length needs"):
        OnlineCode(np.zeros(9, dtype=int), n_classes, np.arange(rows), grid)
