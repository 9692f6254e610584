"""How often 95% intervals hold the truth with 2 to 40 groups: python benchmarks/few_groups.py [--worlds 400]

Groups of `coverage.py`, which share one label and half of the variance of their scores. "even" ones have 20 rows
each, "uneven" ones geometric sizes of mean 20. Below `LEAST_GROUPS` there are no intervals (nan): --least 2 measures
what they would be. The difference is that of two probes with the same true accuracy, whose noise is correlated 0.5.
Beside each share stands the median width.
"""

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy

import numpy as np
from coverage import noise
from scipy.stats import norm

from probekit.evaluation.scores import bootstrap
from probekit.evaluation.scores.bootstrap import Bootstrap
from probekit.evaluation.scores.metrics import Predictions
from probekit.side_by_side.differences import accuracy_difference

GROUPS = (2, 3, 4, 5, 6, 8, 10, 15, 20, 40)
ALIKE = 0.5


def world(seed: int, n_groups: int, accuracy: float, even: bool) -> tuple[list[Predictions], Bootstrap]:
    """Two probes of the same true accuracy."""
    rng = np.random.default_rng([seed, n_groups])
    sizes = np.full(n_groups, 20) if even else rng.geometric(1 / 20, size=n_groups)
    group = np.repeat(np.arange(n_groups), sizes)
    truth = rng.integers(2, size=n_groups)[group]
    error, probes = noise(rng, group, "equal"), []
    for _ in range(2):
        scores = 2 * norm.ppf(accuracy) * (truth - 0.5) + error
        probes.append(Predictions(truth, (scores > 0).astype(int), scores, 2))
        error = ALIKE * error + np.sqrt(1 - ALIKE**2) * noise(rng, group, "equal")
    return probes, Bootstrap(len(group), seed, group, 400)


def ends(seed: int, n_groups: int, accuracy: float, even: bool) -> list[tuple[float, float]]:
    """Whether the intervals of accuracy, AUROC and difference hold the truth, and how wide they are."""
    (one, other), draws = world(seed, n_groups, accuracy, even)
    found = draws.intervals(one, names=["accuracy", "auroc"])
    auroc = float(norm.cdf(np.sqrt(2) * norm.ppf(accuracy)))
    difference = accuracy_difference(one, other, draws)[1]
    rows = [(accuracy, found.get("accuracy")), (auroc, found.get("auroc")), (0.0, difference)]
    return [(np.nan, np.nan) if own is None else (own[0] <= value <= own[1], own[1] - own[0]) for value, own in rows]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--worlds", type=int, default=400)
    parser.add_argument("--least", type=int, default=bootstrap.LEAST_GROUPS)
    worlds, bootstrap.LEAST_GROUPS = (asked := parser.parse_args()).worlds, asked.least
    print("groups | sizes | accuracy | % that hold the truth and median width: accuracy | AUROC | difference")
    for n_groups in GROUPS:
        for even in (True, False):
            for accuracy in (0.8, 0.95):
                found = np.array([ends(seed, n_groups, accuracy, even) for seed in range(worlds)])
                shares, widths = np.nanmean(found[:, :, 0], axis=0), np.nanmedian(found[:, :, 1], axis=0)
                cells = [f"{100 * share:.1f} {width:.2f}" for share, width in zip(shares, widths, strict=True)]
                print(n_groups, "even" if even else "uneven", accuracy, *cells, sep=" | ", flush=True)


if __name__ == "__main__":
    main()
