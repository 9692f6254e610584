"""The online codelength of the labels given the activations (Voita and Titov 2020, arXiv:2003.12298, section 2.2.2).

The training labels are sent in blocks. The first block is sent with the uniform code, each later one with the
probabilities of a probe that is fitted on all blocks before it, which the receiver can fit too. A label that is easy to
extract is predicted well from few examples, so its code is short: one number for accuracy and the effort to reach it.

The sender must not choose the regularisation afterwards. Labels are sent with the Bayes mixture of the codes of every
C, of the uniform code and of the class frequencies (-log2 of the mean of their 2^-bits). The mixture is decodable and
within log2(members) bits of its best member, so it is never more than that above the codes without activations.

The code of the class frequencies is sequential too: each block uses the labels before it (Krichevsky and Trofimov
1981). Imbalanced classes have a short code without any activations, so the gain of the activations is measured against
it.

A probe knows only the S classes among the n labels before a block. The other classes keep the probability q that the
frequencies give them, and the probe shares the rest, so that a class which first occurs late costs what any code has to
pay for it. A label that a probe excludes must not cost hundreds of bits either, so 1 / (n + 1) of the rest is q again:
p = (1 - 1 / (n + 1)) (1 - q of the unseen) probe + q / (n + 1). This costs a probe that is always right at most 1.5
bits for a block that doubles the labels. The probabilities sum to 1 over all K classes, so every member is a code.

Axes: N examples, K classes, S classes that a prefix holds.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from probekit.errors import UsageError
from probekit.evaluation.fits.layer import LayerFits
from probekit.evaluation.fits.predict import decisions, log_probabilities
from probekit.probes.problem import Labels, Problem, ProblemSet

FRACTIONS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
LogProbabilities = Sequence[np.ndarray] | Callable[[int, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Block:
    """One transmission: `coded` labels in `bits`, by probes `fitted` on all the labels before it (0: no probe)."""

    fitted: int
    coded: int
    bits: float


@dataclass(frozen=True)
class Codelength:
    """The length of the code.

    Attributes:
        bits: of all labels.
        uniform_bits: without the activations, every label at log2 K.
        prior_bits: without the activations, block by block by the class frequencies of the labels before.
        compression: uniform_bits / bits; above 1 for imbalanced classes even where activations are uninformative.
        gain: prior_bits / bits; about 1 where the activations add nothing to the class frequencies.
        blocks: in the order they are sent.
    """

    bits: float
    uniform_bits: float
    prior_bits: float
    compression: float
    gain: float
    blocks: list[Block]


class OnlineCode:
    """The order in which labels are sent, and the probes that must be fitted.

    Args:
        labels: int64 [N], of 0..n_classes-1.
        n_classes: K, two or more.
        rows: the training rows, whose labels are sent in shuffled order.
        grid: the C of the probes; [None] for a probe without one.
        seed: of the order.
        groups: [N] or None; the members of a group are sent consecutively, in one block.
    """

    def __init__(
        self,
        labels: np.ndarray,
        n_classes: int,
        rows: np.ndarray,
        grid: Iterable[float | None],
        seed: int = 0,
        groups: np.ndarray | None = None,
    ):
        self.labels, self.n_classes, self.grid = np.asarray(labels), n_classes, list(grid)
        if n_classes < 2 or not len(rows) or not self.grid:
            raise UsageError(
                f"the code length needs at least two classes, a row and a C; got {n_classes} classes, {len(rows)} "
                "rows, "
                f"{len(self.grid)} C"
            )
        self.order, ends = _order(np.asarray(rows), groups, seed)
        self.ends = _block_ends(ends)
        self.prefixes = [end for end in self.ends[:-1] if len(self._seen(end)) > 1]

    def problems(self) -> ProblemSet:
        """The fits over all N rows: prefix by prefix, each with every C in the order of the grid.

        The classes of a fit are those that its prefix holds, numbered 0..S-1. A prefix of one class has no fits.
        """
        columns: dict[tuple[int, ...], int] = {}  # classes that a prefix holds -> number of the label column
        column_of = [columns.setdefault(tuple(self._seen(end).tolist()), len(columns)) for end in self.prefixes]
        problems = [Problem(column, number, C) for number, column in enumerate(column_of) for C in self.grid]
        labels = tuple(self._numbered(np.array(seen)) for seen in columns)
        return ProblemSet(labels, tuple(map(self._weights, self.prefixes)), tuple(problems))

    def codelength(self, log_probabilities: LogProbabilities) -> Codelength:
        """The code's length, given the predictions of each probe.

        Args:
            log_probabilities: natural logarithms for each of `problems()` in order: arrays [N, S] of all rows, or a
                function of a problem's number and int64 rows [n] that returns those rows: [n, S].

        Raises:
            UsageError: values that are not logarithms of probabilities that sum to 1.
        """
        per_label = np.log2(self.n_classes)
        members = np.zeros(len(self.grid) + 2)  # bits so far of each C, of the uniform code and of the frequencies
        blocks, start, total = [], 0, 0.0
        for end in self.ends:
            labels, prior = self.labels[self.order[start:end]], self._prior(start)
            coded = np.full(len(members), -np.log2(prior)[labels].sum())
            coded[-2] = (end - start) * per_label
            if start in self.prefixes:
                coded[:-2] = [_bits(each, labels) for each in self._coded_by(log_probabilities, start, end, prior)]
            members = members + coded
            bits = float(np.log2(len(members)) - logsumexp(-members * np.log(2)) / np.log(2))
            blocks.append(Block(start if start in self.prefixes else 0, end - start, bits - total))
            start, total = end, bits
        uniform_bits, prior_bits = float(len(self.order) * per_label), float(members[-1])
        least = max(total, np.finfo(float).tiny)
        return Codelength(total, uniform_bits, prior_bits, uniform_bits / least, prior_bits / least, blocks)

    def _prior(self, start: int) -> np.ndarray:
        """The class frequencies before a block, each count plus one half: [K]."""
        counts = np.bincount(self.labels[self.order[:start]], minlength=self.n_classes)
        return (counts + 0.5) / (start + self.n_classes / 2)

    def _coded_by(
        self, log_probabilities: LogProbabilities, start: int, end: int, prior: np.ndarray
    ) -> Iterator[np.ndarray]:
        """The probabilities [n, K] by which each C codes the labels start..end: its probe's, mixed with `prior`."""
        rows, seen = self.order[start:end], self._seen(start)
        first = self.prefixes.index(start) * len(self.grid)
        share = prior[seen].sum() * start / (start + 1)
        for i in range(first, first + len(self.grid)):
            logs = log_probabilities(i, rows) if callable(log_probabilities) else log_probabilities[i][rows]
            coded = np.tile(prior, (len(rows), 1))
            coded[:, seen] = share * _probabilities(logs) + prior[seen] / (start + 1)
            yield coded

    def _seen(self, end: int) -> np.ndarray:
        """The classes among the first labels: int64 [S], rising."""
        return np.unique(self.labels[self.order[:end]])

    def _numbered(self, seen: np.ndarray) -> Labels:
        """The labels of these classes as 0..S-1; labels of other classes have no weight where it is used."""
        if len(seen) == self.n_classes:
            return Labels(self.labels, self.n_classes)
        return Labels(np.searchsorted(seen, self.labels).clip(max=len(seen) - 1), len(seen))

    def _weights(self, end: int) -> np.ndarray:
        weights = np.zeros(len(self.labels))
        weights[self.order[:end]] = 1
        return weights


def _order(rows: np.ndarray, groups: np.ndarray | None, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows in the order they are sent, and the ends that a block may have: after each row, or each group."""
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(rows)
    if groups is None:
        return shuffled, np.arange(1, len(rows) + 1)
    member = np.unique(np.asarray(groups)[shuffled], return_inverse=True)[1].ravel()
    turn = rng.permutation(member.max() + 1)[member]
    order = np.argsort(turn, kind="stable")
    return shuffled[order], np.append(np.flatnonzero(np.diff(turn[order])) + 1, len(rows))


def _block_ends(allowed: np.ndarray) -> list[int]:
    """The first allowed end at or after each of `FRACTIONS`, without duplicates."""
    wanted = np.ceil(np.array(FRACTIONS) * allowed[-1])
    return np.unique(allowed[np.searchsorted(allowed, wanted)]).tolist()


def _probabilities(logs: np.ndarray) -> np.ndarray:
    likely = np.exp(np.asarray(logs, dtype=np.float64))
    off = np.abs(likely.sum(axis=1) - 1).max(initial=0)
    if not off < 1e-4:
        raise UsageError(f"expected natural logarithms of probabilities that sum to 1; their sum is off by {off:.2g}")
    return likely


def _bits(probabilities: np.ndarray, labels: np.ndarray) -> float:
    return float(-np.log2(probabilities[np.arange(len(labels)), labels]).sum())


def layer_codelength(code: OnlineCode, fits: LayerFits) -> dict[str, float]:
    """The code's length given one layer's `code_probes`, whose problems number the fitted rows alone."""
    step, rows_of_X = len(code.grid), fits.grid.protocol.fitted
    answered: list[np.ndarray] = []

    def logs(i: int, rows: np.ndarray) -> np.ndarray:
        nonlocal answered
        if i % step == 0:  # all strengths of a prefix predict the same rows, one after another
            some = decisions(fits.code_probes[i : i + step], fits.X, rows_of_X[rows])
            answered = [decision.scores for decision in some]
        return log_probabilities(answered[i % step])

    length = code.codelength(logs)
    names = ("bits", "uniform_bits", "prior_bits", "compression", "gain")
    return {name: getattr(length, name) for name in names}
