"""CPU seconds of probes over a sequence, next to a probe of the mean token: python benchmarks/sequence.py

Texts of random correlated tokens; where the label is 1, one token is longer along one direction. Every probe is fitted
to the first 70% of the texts at the same few C; the C with the best accuracy on the next 15% is tested on the rest.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from probekit.options.probe import AGGREGATES
from probekit.probes import AggregateProbe, AttentionProbe, LogisticProbe
from probekit.probes.problem import Labels, ProblemSet, every_problem
from probekit.probes.sequence.ragged import in_memory, pooled_rows

GRID: Any = AttentionProbe.strengths
PLANTED = 8.0  # standard deviations


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--width", type=int, default=768)
    return parser.parse_args()


def planted(N: int, L: int, D: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens float32 [N, L, D], of a covariance with eigenvalues over four orders of magnitude, and labels [N]."""
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(D, D)) * np.logspace(0, -2, D)
    tokens, labels = rng.normal(size=(N, L, D)), rng.integers(2, size=N)
    tokens[np.arange(N), rng.integers(L, size=N), 3] += PLANTED * labels
    return (tokens @ mixing).astype(np.float32), labels


def measure(name: str, fit: Callable[[ProblemSet], Any], rows: Any, y: np.ndarray) -> None:
    N = len(y)
    train, validation = np.arange(N) < 0.7 * N, (np.arange(N) >= 0.7 * N) & (np.arange(N) < 0.85 * N)
    start = time.process_time()
    probes = fit(every_problem([Labels(y, 2)], GRID, [train.astype(float)]))
    seconds = time.process_time() - start
    correct = np.stack([probe.predict(rows) == y for probe in probes])
    best = int(correct[:, validation].mean(axis=1).argmax())
    test = correct[best, ~(train | validation)].mean()
    states = "".join("." if probe.converged_ else "!" for probe in probes)
    print(
        f"{name:18} {seconds:6.1f} s of CPU for {len(GRID)} C ({states}), C={GRID[best]:g}, test {test:.2f}", flush=True
    )


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)  # the states are printed
    X, y = planted(args.texts, args.tokens, args.width)
    tokens = in_memory(torch.from_numpy(X.reshape(-1, args.width)), np.full(args.texts, args.tokens))
    mean = pooled_rows(tokens, "mean")
    print(f"{args.texts} texts x {args.tokens} tokens x {args.width}")
    measure("mean, logistic", lambda problems: LogisticProbe().fit_many(mean, problems), mean, y)
    for how in AGGREGATES:
        probe = AggregateProbe(aggregate=how)
        measure(f"aggregate {how}", lambda problems, p=probe: p.fit_many(tokens, problems), tokens, y)
    attention = AttentionProbe()
    measure("attention", lambda problems: attention.fit_many(tokens, problems), tokens, y)


if __name__ == "__main__":
    main()
