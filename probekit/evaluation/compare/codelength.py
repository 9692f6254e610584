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

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp
from torch import Tensor

from probekit.errors import UsageError
from probekit.evaluation.fits.predict import decisions, log_probabilities, take_rows
from probekit.probes.base import Probe
from probekit.probes.problem import Labels, Problem, ProblemSet
from probekit.probes.stream import Stream

FRACTIONS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
LogProbabilities = Callable[[int, int], Sequence[np.ndarray]]


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
        self._seen = {end: np.unique(self.labels[self.order[:end]]) for end in self.ends[:-1]}
        self.prefixes = [end for end, seen in self._seen.items() if len(seen) > 1]

    def problems(self, end: int) -> ProblemSet:
        """The fits to the first `end` labels, whose rows are in the order they are sent: one for each C of the grid.

        The classes of the fits are those that the prefix holds, numbered 0..S-1.
        """
        seen = self._seen[end]
        labels = Labels(np.searchsorted(seen, self.labels[self.order[:end]]), len(seen))
        return ProblemSet((labels,), (None,), tuple(Problem(0, 0, C) for C in self.grid))

    def codelength(self, log_probabilities: LogProbabilities) -> Codelength:
        """The code's length, given the predictions of each probe.

        Args:
            log_probabilities: called for each of `prefixes`, as the start of a block, and the block's end. Returns, for
                each of the prefix's `problems`, natural logarithms for the rows `order[start:end]`: [n, S].

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
                logs = log_probabilities(start, end)
                coded[:-2] = [_bits(self._mixed(each, start, prior), labels) for each in logs]
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

    def _mixed(self, logs: np.ndarray, start: int, prior: np.ndarray) -> np.ndarray:
        """The probabilities [n, K] that code the labels after `start`: a probe's [n, S], mixed with `prior` [K]."""
        seen = self._seen[start]
        coded = np.tile(prior, (len(logs), 1))
        coded[:, seen] = prior[seen].sum() * start / (start + 1) * _probabilities(logs) + prior[seen] / (start + 1)
        return coded


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


def layer_codelength(code: OnlineCode, probe: Probe, rows: Tensor | Stream) -> tuple[dict[str, float], list[Probe]]:
    """The code's length given one layer's features [N, D], and the probes that were fitted for it.

    A prefix is the first rows in the order they are sent, and is fitted alone: one solve for all strengths.
    """
    X, fitted = take_rows(rows, code.order), []

    def logs(start: int, end: int) -> list[np.ndarray]:
        probes = probe.fit_many(take_rows(X, np.arange(start)), code.problems(start))
        fitted.extend(probes)
        return [log_probabilities(each.scores) for each in decisions(probes, X, np.arange(start, end))]

    length = code.codelength(logs)
    names = ("bits", "uniform_bits", "prior_bits", "compression", "gain")
    return {name: getattr(length, name) for name in names}, fitted
