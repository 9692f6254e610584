"""How often intervals, bands, best sets and p-values keep their word: python benchmarks/coverage.py [--worlds 1000]

Every world draws labels, groups and scores anew from a known truth. Groups share half of the variance of their scores
and, save for "mixed", one label; "unequal" ones have geometric sizes of mean 5, as "equal" ones have 5 each, and "5
groups", 10 or 20 share all examples evenly. The noise of layers is correlated 0.9 from one to the next, or not at all
("apart"). Each share stands with its Monte Carlo error.
"""

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: one thread for each process

import numpy as np
from scipy.stats import norm

from probekit.evaluation.scores.band import best_set, curve_band
from probekit.evaluation.scores.bootstrap import Bootstrap
from probekit.evaluation.scores.metrics import Predictions, metrics_of
from probekit.evaluation.scores.permutation import permutation_test

RESAMPLES, LAYERS = 400, 13
FEW_GROUPS = ("5 groups", "10 groups", "20 groups")
KINDS = ("alone", "equal", "unequal", "mixed")
CURVES = {
    "flat 0.8": np.full(LAYERS, 0.8),
    "flat 0.95": np.full(LAYERS, 0.95),
    "flat 0.99": np.full(LAYERS, 0.99),
    "perfect and 0.8": np.repeat([1.0, 0.8], [7, 6]),
    "rising": np.linspace(0.5, 0.95, LAYERS),
}


def group_of(rng: np.random.Generator, n: int, kind: str) -> np.ndarray:
    if kind == "alone":
        return np.arange(n)
    if kind in FEW_GROUPS:
        return np.arange(n) * int(kind.split()[0]) // n
    sizes = np.full(n, 5) if kind == "equal" else rng.geometric(0.2, size=n)
    return np.repeat(np.arange(n), sizes)[:n]


def noise(rng: np.random.Generator, group: np.ndarray, kind: str) -> np.ndarray:
    alone = rng.normal(size=len(group))
    return alone if kind == "alone" else np.sqrt(0.5) * (alone + rng.normal(size=group[-1] + 1)[group])


def curve(
    rng: np.random.Generator, n: int, kind: str, accuracies: np.ndarray, alike: float = 0.9
) -> tuple[list[Predictions], np.ndarray]:
    """Layers of these accuracies whose noise is correlated `alike` from one to the next."""
    group = group_of(rng, n, kind)
    truth = rng.integers(2, size=n) if kind == "mixed" else rng.integers(2, size=n)[group]
    error, layers = noise(rng, group, kind), []
    for accuracy in accuracies:
        scores = 2 * norm.ppf(accuracy) * (truth - 0.5) + error
        layers.append(Predictions(truth, (scores > 0).astype(int), scores, 2))
        error = alike * error + np.sqrt(1 - alike**2) * noise(rng, group, kind)
    return layers, group


def bootstrap_of(world: int, n: int, kind: str, group: np.ndarray) -> Bootstrap:
    return Bootstrap(n, world, None if kind == "alone" else group, RESAMPLES)


def interval_holds(metric: str, value: float, kind: str, n: int, world: int) -> list[float]:
    accuracy = value if metric == "accuracy" else norm.cdf(norm.ppf(value) / np.sqrt(2))
    (p,), group = curve(np.random.default_rng([world, n]), n, kind, np.array([accuracy]))
    ends = bootstrap_of(world, n, kind, group).intervals(p, names=[metric]).get(metric, (0.0, 1.0))
    return [ends[0] <= value <= ends[1]]


def curve_holds(name: str, alike: float, kind: str, n: int, world: int) -> list[float]:
    """Whether the band holds the whole curve, whether the best set holds the best layer, and its size."""
    truth = CURVES[name]
    layers, group = curve(np.random.default_rng([world, n]), n, kind, truth, alike)
    bootstrap = bootstrap_of(world, n, kind, group)
    values = np.array([metrics_of(p, ["accuracy"])["accuracy"] for p in layers])
    resampled = np.stack([bootstrap.resampled(p, "accuracy") for p in layers])
    low, high = curve_band(bootstrap, layers, "accuracy", resampled).T
    chosen = best_set(values, resampled, jackknifed=np.stack([bootstrap.jackknifed(p, "accuracy") for p in layers]))
    holds = bool(((low <= truth) & (truth <= high)).all())
    return [holds, bool(chosen[truth.argmax()]), int(chosen.sum())]


def null_rejects(metric: str, kind: str, n: int, world: int) -> list[float]:
    """Whether a p-value of 5% or less comes of predictions that know nothing: of one layer, of the best."""
    layers, group = curve(np.random.default_rng([world, n]), n, kind, np.full(5, 0.5))
    test = permutation_test(layers, metric, world, None if kind == "alone" else group, permutations=199)
    return [test.p_values[0] <= 0.05, test.p_max <= 0.05]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--worlds", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", choices=("intervals", "curves", "permutations"))
    asked = parser.parse_args()
    with ProcessPoolExecutor(asked.workers) as pool:

        def show(heading: str, *cell) -> None:
            results = np.array(list(pool.map(partial(*cell), range(asked.worlds), chunksize=20)), dtype=float)
            means = results[:, : 2 if results.shape[1] > 1 else 1].mean(axis=0)
            shares = [f"{100 * m:5.1f} ± {100 * np.sqrt(m * (1 - m) / len(results)):.1f}" for m in means]
            sizes = [f"size {size:.1f}" for size in results[:, 2:].mean(axis=0)]
            print(heading, *shares, *sizes, sep=" | ", flush=True)

        if asked.only in (None, "intervals"):
            print("metric | truth | groups | n | % of 95% intervals that hold it")
            for metric in ("accuracy", "auroc"):
                for kind in KINDS:
                    for value in (0.5, 0.8, 0.95):
                        for n in (100, 300, 1000):
                            show(f"{metric} | {value} | {kind} | {n}", interval_holds, metric, value, kind, n)
        if asked.only in (None, "curves"):
            print("13 layers | noise | groups | n | % of bands that hold the curve | % of best sets that hold the best")
            for name in CURVES:
                for alike, layers in ((0.9, "alike"), (0.0, "apart")):
                    for kind, n in (("alone", 100), ("alone", 300), *((kind, 100) for kind in FEW_GROUPS)):
                        show(f"{name} | {layers} | {kind} | {n}", curve_holds, name, alike, kind, n)
        if asked.only in (None, "permutations"):
            print("metric | groups | n | % of p-values <= 5% under the null, of a layer | of the best of 5")
            for metric in ("accuracy", "auroc"):
                for kind in KINDS:
                    show(f"{metric} | {kind} | 100", null_rejects, metric, kind, 100)


if __name__ == "__main__":
    main()
