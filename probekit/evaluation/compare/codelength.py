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

Axes: N examples, K classes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from probekit.errors import UsageError
from probekit.evaluation.fits.layer import LayerFits
from probekit.evaluation.fits.predict import decisions, log_probabilities
from probekit.probes.problem import Labels, ProblemSet, every_problem

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
                f"an online code needs two classes, a row and a C, or more; got {n_classes} classes, {len(rows)} rows, "
                f"{len(self.grid)} C"
            )
        self.order, ends = _order(np.asarray(rows), groups, seed)
        self.ends = _block_ends(ends)
        self.prefixes = [end for end in self.ends[:-1] if self._has_every_class(end)]

    def problems(self) -> ProblemSet:
        """The fits over all N rows: prefix by prefix, each with every C in the order of the grid.

        A prefix that lacks a class has no fits.
        """
        return every_problem([Labels(self.labels, self.n_classes)], self.grid, map(self._weights, self.prefixes))

    def codelength(self, log_probabilities: LogProbabilities) -> Codelength:
        """The code's length, given the predictions of each probe.

        Args:
            log_probabilities: natural logarithms for each of `problems()` in order: arrays [N, K] of all rows, or a
                function of a problem's number and int64 rows [n] that returns those rows: [n, K].

        Raises:
            UsageError: values that are not logarithms of probabilities that sum to 1.
        """
        per_label = np.log2(self.n_classes)
        members = np.zeros(len(self.grid) + 2)  # bits so far of each C, of the uniform code and of the frequencies
        blocks, start, total = [], 0, 0.0
        for end in self.ends:
            uniform = (end - start) * per_label
            coded = np.full(len(members), uniform)
            if start in self.prefixes:
                coded[:-2] = self._bits_of_block(log_probabilities, start, end)
            coded[-1] = self._prior_bits(start, end)
            members = members + coded
            bits = float(np.log2(len(members)) - logsumexp(-members * np.log(2)) / np.log(2))
            blocks.append(Block(start if start in self.prefixes else 0, end - start, bits - total))
            start, total = end, bits
        uniform_bits, prior_bits = float(len(self.order) * per_label), float(members[-1])
        least = max(total, np.finfo(float).tiny)
        return Codelength(total, uniform_bits, prior_bits, uniform_bits / least, prior_bits / least, blocks)

    def _prior_bits(self, start: int, end: int) -> float:
        """Bits of the labels start..end, coded by the class counts before them, each plus one half."""
        before, sent = (
            np.bincount(self.labels[rows], minlength=self.n_classes)
            for rows in (self.order[:start], self.order[start:end])
        )
        return float(-sent @ np.log2((before + 0.5) / (start + self.n_classes / 2)))

    def _bits_of_block(self, log_probabilities: LogProbabilities, start: int, end: int) -> np.ndarray:
        """Bits of the labels start..end, coded by the probes fitted on those before: one number for each C."""
        rows = self.order[start:end]
        first = self.prefixes.index(start) * len(self.grid)
        numbers = range(first, first + len(self.grid))
        each = (
            log_probabilities(i, rows) if callable(log_probabilities) else log_probabilities[i][rows] for i in numbers
        )
        return np.array([_bits(_normalised(np.asarray(logs, dtype=np.float64)), self.labels[rows]) for logs in each])

    def _has_every_class(self, end: int) -> bool:
        return len(np.unique(self.labels[self.order[:end]])) == self.n_classes

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


def _normalised(logs: np.ndarray) -> np.ndarray:
    off = np.abs(np.exp(logs).sum(axis=1) - 1).max(initial=0)
    if not off < 1e-4:
        raise UsageError(f"expected natural logarithms of probabilities that sum to 1; their sum is off by {off:.2g}")
    return logs


def _bits(logs: np.ndarray, labels: np.ndarray) -> float:
    return float(-logs[np.arange(len(labels)), labels].sum() / np.log(2))


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
