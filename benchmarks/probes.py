"""The logistic solver compared with scikit-learn and the usual Adam loop.

    python benchmarks/probes.py                     the table of cases, one layer each, side by side
    python benchmarks/probes.py --section columns   what 1, 5 and 100 fits over the same features cost
    python benchmarks/probes.py --section layers    10k and 67k rows x 13 layers x 5 C, ours alone
    python benchmarks/probes.py --section stream    5 million rows of a store, with the peak of memory

Unset OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE first, if your machine sets them. scikit-learn runs as it is fastest on two
cores: one BLAS thread a worker, two workers over the values of C. The features have the spectrum of activations: a
variance that falls as a power law and, where "raw" is said, one dimension at 3,000 times the median. Every certificate
is held against an objective that is computed in float64 from its definition, at weights that newton-cholesky or, where
that would take minutes, our own solver in float64 found.
"""

import argparse
import itertools
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from probekit.probes.logistic.certificate import Solutions
from probekit.probes.logistic.solver import solve_logistic
from probekit.probes.problem import Labels, every_problem, subset

C = (1e-3, 1e-2, 0.1, 1.0, 10.0)
NEWTON_UP_TO = 10_000 * 768  # numbers in X, beyond which the reference is our own in float64


@dataclass(frozen=True)
class Case:
    """A layer: n rows, d features; whether raw, separable; how many label sets of how many classes."""

    n: int
    d: int = 768
    raw: bool = False
    separable: bool = False
    n_classes: int = 2
    label_sets: int = 1
    alone: bool = False  # where the others would take many minutes

    def __str__(self) -> str:
        what = f"{self.n:,} x {self.d}, {'raw' if self.raw else 'standardised'}"
        what += ", separable" if self.separable else ""
        what += f", {self.n_classes} classes" if self.n_classes > 2 else ""
        return what + f", {self.label_sets * len(C)} fits"

    def data(self, seed: int = 0) -> tuple[np.ndarray, list[np.ndarray]]:
        """Float32 features and label sets; the first follows the features, the others are shuffles of it."""
        rng = np.random.default_rng(seed)
        mix = rng.normal(size=(self.d, self.d)).astype(np.float32) * np.arange(1, self.d + 1, dtype=np.float32) ** -0.7
        X = rng.standard_normal((self.n, self.d), dtype=np.float32) @ mix.T
        logits = 3 * X / X.std(axis=0) @ rng.normal(size=(self.d, self.n_classes)) / np.sqrt(self.d)
        y = (logits + (not self.separable) * rng.gumbel(size=logits.shape)).argmax(axis=1)
        if self.raw:
            X[:, 7] = X[:, 7] * 100 + 3000 * np.median(np.abs(X))
        else:
            X = (X - X.mean(axis=0)) / X.std(axis=0)
        return X, [y, *(rng.permutation(y) for _ in range(self.label_sets - 1))]


CASES = [
    Case(1_000),
    Case(10_000),
    Case(67_000),
    Case(10_000, raw=True),
    Case(10_000, separable=True),
    Case(67_000, raw=True, alone=True),
    Case(67_000, separable=True, alone=True),
    Case(10_000, n_classes=10),
    Case(1_000, d=4096),
    Case(10_000, d=4096),
]


def ours(case: Case, X: np.ndarray, ys: list[np.ndarray], dtype: torch.dtype = torch.float32) -> Solutions:
    problems = every_problem([Labels(y, case.n_classes) for y in ys], C)
    return solve_logistic(torch.from_numpy(X).to(dtype), problems, standardise=False)


def scikit_learn(solver: str, dtype: type) -> Callable[[Case, np.ndarray, list[np.ndarray]], np.ndarray]:
    def fit(X: np.ndarray, y: np.ndarray, c: float) -> tuple[np.ndarray, np.ndarray]:
        with warnings.catch_warnings(), threadpool_limits(1):
            warnings.simplefilter("ignore")
            model = LogisticRegression(C=c, solver=solver, max_iter=1000).fit(X, y)
        return model.coef_, model.intercept_

    def run(case: Case, X: np.ndarray, ys: list[np.ndarray]) -> np.ndarray:
        jobs = [(X.astype(dtype, copy=False), y, c) for y in ys for c in C]
        found: Any = Parallel(n_jobs=2)(delayed(fit)(*job) for job in jobs)
        return np.array([objective(X, y, c, *weights) for (_, y, c), weights in zip(jobs, found, strict=True)])

    return run


def adam(case: Case, X: np.ndarray, ys: list[np.ndarray], epochs: int = 20) -> np.ndarray:
    """Minibatches of 256, learning rate 1e-3, `epochs` epochs, weight decay by the objective itself."""
    found, K = [], 1 if case.n_classes == 2 else case.n_classes
    features = torch.from_numpy(X)
    for y, c in itertools.product(ys, C):
        torch.manual_seed(0)
        layer, labels = torch.nn.Linear(case.d, K), torch.from_numpy(y)
        optimiser = torch.optim.Adam(layer.parameters(), lr=1e-3)
        for _ in range(epochs):
            for rows in torch.randperm(case.n).split(256):
                z = layer(features[rows])
                soft = torch.nn.functional
                loss = (
                    soft.binary_cross_entropy_with_logits(z[:, 0], labels[rows].float())
                    if K == 1
                    else soft.cross_entropy(z, labels[rows])
                )
                optimiser.zero_grad()
                (loss + 0.5 * layer.weight.square().sum() / (c * case.n)).backward()
                optimiser.step()
        weights = (p.detach().numpy() for p in (layer.weight, layer.bias))
        found.append(objective(X, y, c, *weights))
    return np.array(found)


def objective(X: np.ndarray, y: np.ndarray, c: float, coef: np.ndarray, intercept: np.ndarray) -> float:
    """0.5 |w|^2 + C * (sum of log losses), from its definition, in float64."""
    coef, z = coef.astype(np.float64), np.empty((len(X), len(coef)))
    for start in range(0, len(X), 8192):
        z[start : start + 8192] = X[start : start + 8192].astype(np.float64) @ coef.T + intercept
    if len(coef) == 1:
        z = z * [-0.5, 0.5]  # the same as two scores that differ by it
    loss = np.logaddexp.reduce(z, axis=1) - z[np.arange(len(y)), y]
    return float(0.5 * (coef**2).sum() + c * loss.sum())


def optimum(case: Case, X: np.ndarray, ys: list[np.ndarray]) -> np.ndarray:
    if X.size > NEWTON_UP_TO or case.n_classes > 2 or case.raw:
        exact = ours(case, X, ys, torch.float64)
        jobs = list(itertools.product(ys, C))
        return np.array([objective(X, y, c, exact.coef[i], exact.intercept[i]) for i, (y, c) in enumerate(jobs)])
    found = []
    for y, c in itertools.product(ys, C):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = LogisticRegression(C=c, solver="newton-cholesky", tol=1e-10, max_iter=200).fit(X.astype(float), y)
        found.append(objective(X, y, c, model.coef_, model.intercept_))
    return np.array(found)


def timed(run: Callable, *args) -> tuple[float, object]:
    start = time.perf_counter()
    result = run(*args)
    return time.perf_counter() - start, result


def cases(runs: int) -> None:
    print("case | ours s | worst gap certified / true | lbfgs f32 x | gap | newton-cholesky f64 x | gap | Adam x | gap")
    rivals = {"lbfgs": scikit_learn("lbfgs", np.float32), "newton": scikit_learn("newton-cholesky", np.float64)}
    for case in CASES:
        X, ys = case.data()
        best = optimum(case, X, ys)
        ours(case, X, ys)
        own = [timed(ours, case, X, ys) for _ in range(runs)]
        seconds, found = statistics.median(s for s, _ in own), own[0][1]
        assert isinstance(found, Solutions)
        assert found.converged.all()
        jobs = enumerate(itertools.product(ys, C))
        reached = np.array([objective(X, y, c, found.coef[i], found.intercept[i]) for i, (y, c) in jobs])
        assert (reached / best - 1 <= found.gap + 1e-9).all(), (reached / best - 1, found.gap)
        line = [str(case), f"{seconds:.3f}", f"{found.gap.max():.0e} / {(reached / best - 1).max():.0e}"]
        for name, rival in {**rivals, "adam": adam}.items():
            if case.alone or (name == "newton" and (case.d > 2000 or case.n_classes > 2)):
                line += ["-", "-"]  # newton: a Hessian of d^2 K^2 numbers
                continue
            theirs, values = timed(rival, case, X, ys)
            line += [f"{theirs / seconds:.1f}", f"{(values / best - 1).max():.0e}"]
        print(" | ".join(line), flush=True)


def columns(runs: int) -> None:
    for n in (10_000, 67_000):
        X, ys = Case(n, label_sets=20).data()
        every = every_problem([Labels(y) for y in ys], C)
        times: dict[int, float] = {}
        for many in (1, 5, 100):
            some = subset(every, range(many))
            solve_logistic(torch.from_numpy(X), some, standardise=False)
            each = (timed(solve_logistic, torch.from_numpy(X), some, False)[0] for _ in range(runs))
            times[many] = statistics.median(each)
        few, many = times[5] / times[1], times[100] / times[5]
        print(f"{n:,} x 768: 5 take {few:.2f} times as long as 1, 100 take {many:.2f} times as long as 5", flush=True)


def layers() -> None:
    for n in (10_000, 67_000):
        case, total, worst = Case(n), 0.0, 0.0
        for layer in range(13):
            X, ys = case.data(seed=layer)
            seconds, found = timed(ours, case, X, ys)
            assert isinstance(found, Solutions)
            total, worst = total + seconds, max(worst, found.gap.max())
        print(f"{n:,} x 768 x 13 layers x 5 C: {total:.2f} s, worst certified gap {worst:.1e}", flush=True)


def stream(n: int) -> None:
    """A store of n rows, 768 wide, float16; fitted without ever holding them. The import is a process of its own."""
    from probekit.activations import Store
    from probekit.evaluation.fits.stream import stream_of

    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", ".")) as folder:
        labels = _write_rows(Path(folder), n)
        made = [f"{folder}/resid_pre.0.npy", "--labels", f"{folder}/labels.npy", "--out", f"{folder}/store", "--quiet"]
        subprocess.run([sys.executable, "-m", "probekit", "import", *made], check=True, stdout=subprocess.DEVNULL)
        Path(f"{folder}/resid_pre.0.npy").unlink()
        problems = every_problem([Labels(labels)], C)
        seconds, found = timed(solve_logistic, stream_of(Store(f"{folder}/store"), ("resid_pre", 0)), problems)
        assert isinstance(found, Solutions)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"{n:,} rows x 768 x 5 C from a store: {seconds:.0f} s, iterations {found.n_iter.tolist()}, worst gap "
        f"{found.gap.max():.1e}, peak memory {peak:.2f} GB"
    )


def _write_rows(folder: Path, n: int) -> np.ndarray:
    """Features into resid_pre.0.npy and labels that follow them into labels.npy, some at a time; the labels."""
    rng, truth = np.random.default_rng(0), np.random.default_rng(1).normal(size=768)
    labels = np.empty(n, dtype=np.int64)
    with Path(folder, "resid_pre.0.npy").open("wb") as file:
        header = {"descr": "<f2", "fortran_order": False, "shape": (n, 768)}
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, n, 50_000):
            x = rng.standard_normal((min(50_000, n - start), 768), dtype=np.float32)
            x.astype(np.float16).tofile(file)
            labels[start : start + len(x)] = x @ truth / 10 + rng.logistic(size=len(x)) > 0
    np.save(folder / "labels.npy", labels)
    return labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--section", choices=["cases", "columns", "layers", "stream"], default="cases")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=5_000_000, help="of --section stream")
    args = parser.parse_args()
    if args.section == "stream":
        stream(args.rows)
    elif args.section == "layers":
        layers()
    else:
        {"cases": cases, "columns": columns}[args.section](args.runs)


if __name__ == "__main__":
    main()
