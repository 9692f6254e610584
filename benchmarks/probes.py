"""The logistic solver compared with scikit-learn and the usual Adam loop.

    python benchmarks/probes.py                     the table of cases, one layer each, side by side
    python benchmarks/probes.py --only "2,000 x"    the cases whose names contain this
    python benchmarks/probes.py --section columns   what 1, 5 and 100 fits over the same features cost
    python benchmarks/probes.py --section layers    10k and 67k rows x 13 layers x 5 C, ours alone
    python benchmarks/probes.py --section stream    5 million rows of a store, with the peak of memory
    python benchmarks/probes.py --section products  a factor, and a symmetric matrix times a vector, compared with torch
    python benchmarks/probes.py --section wide      `train_probes` at the width of a model of 8 billion weights, and a
                                                    bare sweep of lbfgs over the same values of C

Unset OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE first, if your machine sets them. With --threads 2 the times are those of
the clock, and scikit-learn runs as it is fastest on two cores: one BLAS thread a worker, two workers over the values of
C. With --threads 1 everything runs in one thread, and the times are CPU seconds, which a busy machine changes little.

The features have the spectrum of activations: a variance that falls as a power law and, where "raw" is said, one
dimension at 3,000 times the median. Every certificate is held against an objective that is computed in float64 from its
definition: at the best weights that anyone found, newton-cholesky at a tolerance of 1e-10 among them where that takes
less than minutes. "lbfgs to our gap" is scikit-learn's lbfgs, in float64, stopped as soon as its objective is as near
to that as ours is certified to be, or after --patience seconds a fit (then with a ">").
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from joblib import Parallel, delayed
from probe_cases import CASES, FIVE, NINE, Case, Fit, fits, objective, online_code
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from probekit.machine.lapack import cholesky, symmetric_times
from probekit.machine.threads import one_thread
from probekit.probes import LogisticProbe
from probekit.probes.logistic.certificate import Solutions
from probekit.probes.logistic.solver import solve_logistic
from probekit.probes.problem import Labels, every_problem, subset

NEWTON_UP_TO = 10_000 * 768  # numbers in X, beyond which newton-cholesky takes minutes
NEWTON_WIDTH = 2_000


class Found(NamedTuple):
    """Our fits, in the order of `fits`: the objective, the certified gap and whether it is within the tolerance."""

    objectives: np.ndarray
    gap: np.ndarray
    converged: np.ndarray


def solved(case: Case, X: np.ndarray, ys: list[np.ndarray]) -> Any:
    """What is timed of ours: all fits of the layer at once."""
    if case.labels == "prefixes":
        code, probe = online_code(case, ys[0]), LogisticProbe()
        sent = torch.from_numpy(X[code.order])
        return [fitted for end in code.prefixes for fitted in probe.fit_many(sent[:end], code.problems(end))]
    problems = every_problem([Labels(y, int(y.max()) + 1) for y in ys], case.C)
    return solve_logistic(torch.from_numpy(X), problems, standardise=False)


def found_by_us(case: Case, X: np.ndarray, ys: list[np.ndarray], solution: Any) -> Found:
    """Prefixes are fitted with their own standardisation, so their weights are taken back to it."""
    jobs = list(fits(case, X, ys))
    if isinstance(solution, Solutions):
        reached = [objective(fit, solution.coef[i], solution.intercept[i]) for i, fit in enumerate(jobs)]
        return Found(np.array(reached), solution.gap, solution.converged)
    code, reached = online_code(case, ys[0]), []
    for i, (probe, fit) in enumerate(zip(solution, jobs, strict=True)):
        own = X[code.order[: code.prefixes[i // len(case.C)]]].astype(np.float64)
        coef, intercept = probe.coef_ * own.std(axis=0), probe.intercept_ + probe.coef_ @ own.mean(axis=0)
        reached.append(objective(fit, coef, intercept))
    facts = (np.array([getattr(probe, name) for probe in solution]) for name in ("gap_", "converged_"))
    return Found(np.array(reached), *facts)


def scikit_learn(solver: str, dtype: type, **how: Any) -> Callable[[list[Fit], int], np.ndarray]:
    def one(fit: Fit) -> tuple[Any, Any]:
        with warnings.catch_warnings(), threadpool_limits(1):
            warnings.simplefilter("ignore")
            model = LogisticRegression(C=fit.C, solver=solver, **{"max_iter": 1000, **how})
            model.fit(fit.X.astype(dtype, copy=False), fit.y)
        return model.coef_, model.intercept_

    def run(jobs: list[Fit], threads: int) -> np.ndarray:
        found: Any = Parallel(n_jobs=threads)(delayed(one)(fit) for fit in jobs)
        return np.array([objective(fit, *weights) for fit, weights in zip(jobs, found, strict=True)])

    return run


def adam(jobs: list[Fit], threads: int, epochs: int = 20) -> np.ndarray:
    """Minibatches of 256, learning rate 1e-3, `epochs` epochs, weight decay by the objective itself."""
    found = []
    for fit in jobs:
        torch.manual_seed(0)
        features, labels, K = torch.from_numpy(fit.X).float(), torch.from_numpy(fit.y), int(fit.y.max()) + 1
        layer = torch.nn.Linear(features.shape[1], 1 if K == 2 else K)
        optimiser = torch.optim.Adam(layer.parameters(), lr=1e-3)
        for _ in range(epochs):
            for rows in torch.randperm(len(labels)).split(256):
                z = layer(features[rows])
                soft = torch.nn.functional
                loss = (
                    soft.binary_cross_entropy_with_logits(z[:, 0], labels[rows].float())
                    if K == 2
                    else soft.cross_entropy(z, labels[rows])
                )
                optimiser.zero_grad()
                (loss + 0.5 * layer.weight.square().sum() / (fit.C * len(labels))).backward()
                optimiser.step()
        found.append(objective(fit, *(p.detach().numpy() for p in (layer.weight, layer.bias))))
    return np.array(found)


def lbfgs_until(fit: Fit, wanted: float, patience: float) -> bool:
    """scikit-learn's lbfgs in float64 until its objective is `wanted`; False if it was given up."""
    from scipy.optimize import minimize
    from sklearn._loss.loss import HalfBinomialLoss, HalfMultinomialLoss
    from sklearn.linear_model._linear_loss import LinearModelLoss

    K = int(fit.y.max()) + 1
    loss = LinearModelLoss(HalfBinomialLoss() if K == 2 else HalfMultinomialLoss(n_classes=K), fit_intercept=True)
    X, y, total = fit.X.astype(np.float64), fit.y.astype(np.float64), fit.C * len(fit.y)
    deadline, is_there = time.perf_counter() + patience, False

    def look(intermediate_result: Any) -> None:
        nonlocal is_there
        is_there = intermediate_result.fun * total <= wanted
        if is_there or time.perf_counter() > deadline:
            raise StopIteration

    with threadpool_limits(1):
        start = np.zeros((X.shape[1] + 1) * (1 if K == 2 else K))
        options = {"maxiter": 10**6, "maxfun": 10**6, "maxls": 50, "gtol": 0, "ftol": 0}
        arguments = (X, y, None, 1 / total, 1)
        minimize(loss.loss_gradient, start, method="L-BFGS-B", jac=True, args=arguments, options=options, callback=look)
    return is_there


def optimum(case: Case, jobs: list[Fit], reached: list[np.ndarray]) -> np.ndarray:
    """The lowest objective of each fit: newton-cholesky's at a sharp tolerance where it is quick, or anyone's."""
    if not is_for_newton(case, jobs):
        return np.min(reached, axis=0)
    return np.min([*reached, scikit_learn("newton-cholesky", np.float64, tol=1e-10, max_iter=200)(jobs, 1)], axis=0)


def is_for_newton(case: Case, jobs: list[Fit]) -> bool:
    """Its Hessian has D^2 K^2 numbers, and it fails on raw features."""
    return jobs[0].X.size <= NEWTON_UP_TO and case.d <= NEWTON_WIDTH and case.n_classes == 2 and not case.raw


def timed(run: Callable, *args: Any, threads: int = 2) -> tuple[float, Any]:
    """Seconds of the clock; with one thread, of the processor."""
    clock = time.process_time if threads == 1 else time.perf_counter
    start = clock()
    result = run(*args)
    return clock() - start, result


def cases(args: argparse.Namespace) -> None:
    print("case | ours s | certified | gap certified / true | lbfgs f32 x | gap | newton f64 x | gap", end="")
    print(" | Adam x | gap" if args.adam else "", "| lbfgs to our gap x", flush=True)
    for case in CASES:
        if args.only in str(case):
            print(" | ".join(row(case, args)), flush=True)


def row(case: Case, args: argparse.Namespace) -> list[str]:
    X, ys = case.data()
    jobs, threads = list(fits(case, X, ys)), args.threads
    rivals = {"lbfgs": scikit_learn("lbfgs", np.float32), "newton": scikit_learn("newton-cholesky", np.float64)}
    rivals |= {"adam": adam} if args.adam else {}
    left_out = {"newton"} - ({"newton"} if is_for_newton(case, jobs) else set())
    own, theirs = [], {}
    for run in range(args.runs + 1):  # the first run warms up; then all take turns
        own.append(timed(solved, case, X, ys, threads=threads))
        for name in rivals if run else ():
            if not case.alone and name not in left_out:
                theirs.setdefault(name, []).append(timed(rivals[name], jobs, threads, threads=threads))
    seconds, ours = statistics.median(s for s, _ in own[1:]), found_by_us(case, X, ys, own[-1][1])
    best = optimum(case, jobs, [ours.objectives, *(runs[0][1] for runs in theirs.values())])
    off = ours.objectives / best - 1
    assert (off <= ours.gap + 1e-9).all(), (off, ours.gap)
    cells = [str(case), f"{seconds:.3f}", f"{ours.converged.sum()} of {len(jobs)}", f"{ours.gap.max():.0e}"]
    cells[-1] += f" / {off.max():.0e}"
    for name in rivals:
        runs = theirs.get(name)
        ratio = "-" if runs is None else f"{statistics.median(s for s, _ in runs) / seconds:.2f}"
        cells += [ratio, "-" if runs is None else f"{(runs[0][1] / best - 1).max():.0e}"]
    is_wanted = case.same_gap or args.same_gap
    return [*cells, same_gap(jobs, best * (1 + ours.gap), seconds, args) if is_wanted else "-"]


def same_gap(jobs: list[Fit], wanted: np.ndarray, seconds: float, args: argparse.Namespace) -> str:
    """How often our seconds lbfgs takes to come down to what is wanted: the best found by anyone, and our gap."""

    def run() -> Any:
        each = zip(jobs, wanted, strict=True)
        return Parallel(n_jobs=args.threads)(delayed(lbfgs_until)(*one, args.patience) for one in each)

    took, arrived = timed(run, threads=args.threads)
    return f"{'' if all(arrived) else '>'}{took / seconds:.2f}"


def columns(args: argparse.Namespace) -> None:
    for n in (10_000, 67_000):
        X, ys = Case(n, label_sets=20).data()
        every = every_problem([Labels(y) for y in ys], FIVE)
        times: dict[int, float] = {}
        for many in (1, 5, 100):
            some = subset(every, range(many))
            solve_logistic(torch.from_numpy(X), some, standardise=False)
            each = (timed(solve_logistic, torch.from_numpy(X), some, False)[0] for _ in range(args.runs))
            times[many] = statistics.median(each)
        few, many = times[5] / times[1], times[100] / times[5]
        print(f"{n:,} x 768: 5 take {few:.2f} times as long as 1, 100 take {many:.2f} times as long as 5", flush=True)


def layers(args: argparse.Namespace) -> None:
    for n in (10_000, 67_000):
        case, total, worst = Case(n), 0.0, 0.0
        for layer in range(13):
            X, ys = case.data(seed=layer)
            seconds, found = timed(solved, case, X, ys)
            assert isinstance(found, Solutions)
            total, worst = total + seconds, max(worst, found.gap.max())
        print(f"{n:,} x 768 x 13 layers x 5 C: {total:.2f} s, worst certified gap {worst:.1e}", flush=True)


def stream(args: argparse.Namespace) -> None:
    """A store of n rows, 768 wide, float16; fitted without ever holding them. The import is a process of its own."""
    from probekit.activations import Store
    from probekit.evaluation.fits.stream import stream_of

    n = args.rows
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", ".")) as folder:
        labels = _write_rows(Path(folder), n)
        made = [f"{folder}/resid_pre.0.npy", "--labels", f"{folder}/labels.npy", "--out", f"{folder}/store", "--quiet"]
        subprocess.run([sys.executable, "-m", "probekit", "import", *made], check=True, stdout=subprocess.DEVNULL)
        Path(f"{folder}/resid_pre.0.npy").unlink()
        problems = every_problem([Labels(labels)], FIVE)
        seconds, found = timed(solve_logistic, stream_of(Store(f"{folder}/store"), ("resid_pre", 0)), problems)
        assert isinstance(found, Solutions)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"{n:,} rows x 768 x 5 C from a store: {seconds:.0f} s, iterations {found.n_iter.tolist()}, worst gap "
        f"{found.gap.max():.1e}, peak memory {peak:.2f} GB"
    )


def wide(args: argparse.Namespace) -> None:
    """Activations of a power-law spectrum with two massive dimensions, 4,000 rows of 4,096; 3,200 rows train."""
    from probekit import load_activations, train_probes

    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", ".")) as folder:
        labels = _write_wide(Path(folder), args.layers)
        made = [folder, "--labels", f"{folder}/labels.csv", "--n-layers", str(args.layers + 1), "--out"]
        command = [sys.executable, "-m", "probekit", "import", *made, f"{folder}/store", "--quiet"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        acts = load_activations(f"{folder}/store")
        train = acts.task.splits == "train"

        def jobs(place: Any) -> list[Fit]:
            X = acts[place].float().numpy()[train]
            scale = X.std(axis=0)
            X = (X - X.mean(axis=0)) / np.where(scale > 0, scale, 1)
            return [Fit(X, labels[train], C) for C in NINE]

        def sweep() -> None:
            for place in acts:
                scikit_learn("lbfgs", np.float32)(jobs(place), args.threads)

        def ours(quick: bool) -> None:
            train_probes(acts, layers="all", quick=quick, progress=False)

        train_probes(acts, layers=[0], quick=True, progress=False)
        for _ in range(args.runs):
            bare = timed(sweep, threads=args.threads)[0]
            quick, default = (timed(ours, how, threads=args.threads)[0] for how in (True, False))
            ratios = f"{quick / bare:.2f} and {default / bare:.2f} times the sweep"
            print(
                f"{args.layers} layers: sweep {bare:.1f} s, quick {quick:.1f} s, default {default:.1f} s: {ratios}",
                flush=True,
            )
        _label_fits(jobs(list(acts)[len(acts) // 2]), args)


def _label_fits(jobs: list[Fit], args: argparse.Namespace) -> None:
    """The label's fits of one layer beside lbfgs, at its default tolerance and until its gap is ours."""
    X, problems = torch.from_numpy(jobs[0].X), every_problem([Labels(jobs[0].y)], [fit.C for fit in jobs])
    own, theirs = [], []
    for _ in range(args.runs):
        own.append(timed(solve_logistic, X, problems, threads=args.threads))
        theirs.append(timed(scikit_learn("lbfgs", np.float32), jobs, args.threads, threads=args.threads))
    found, lbfgs = own[-1][1], theirs[-1][1]
    reached = np.array([objective(fit, found.coef[i], found.intercept[i]) for i, fit in enumerate(jobs)])
    wanted, seconds = np.minimum(reached, lbfgs) * (1 + found.gap), statistics.median(took for took, _ in own)
    ratio = statistics.median(a / b for (a, _), (b, _) in zip(own, theirs, strict=True))
    print(
        f"the label's fits of a layer: {seconds:.2f} s, {ratio:.2f} of lbfgs; "
        f"{found.converged.sum()} certified, worst gap {found.gap.max():.0e}; lbfgs to our gap takes x "
        f"{same_gap(jobs, wanted, seconds, args)}"
    )


def products(args: argparse.Namespace) -> None:
    """scipy's routines beside torch's, float32, one thread, the least of several."""
    with one_thread():
        for n in (100, 300, 768, 1_600, 3_200):
            X = torch.randn(n, n)
            A, x = X @ X.T + n * torch.eye(n), torch.randn(n)
            pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
                "factor": (lambda A=A: cholesky(A.clone()), lambda A=A: torch.linalg.cholesky_ex(A)),
                "product": (lambda A=A, x=x: symmetric_times(A, x), lambda A=A, x=x: A @ x),
            }
            for name, sides in pairs.items():
                ours, theirs = (min(timed(side, threads=1)[0] for _ in range(5 * args.runs)) for side in sides)
                print(f"{n:,}: {name} {1e3 * ours:.3f} ms, {ours / theirs:.2f} of torch's", flush=True)


def _write_wide(folder: Path, n_layers: int) -> np.ndarray:
    """Features of each layer into resid_pre.LAYER.npy, texts and labels into labels.csv; the labels."""
    rng, n, d, rank = np.random.default_rng(0), 4_000, 4_096, 1_500
    labels = rng.integers(0, 2, n)
    shared = rng.standard_normal((n, rank), np.float32) * (np.arange(1, rank + 1) ** -0.45).astype(np.float32)
    common = rng.standard_normal((rank, d), np.float32)
    for layer in range(n_layers):
        X = shared @ (common + 0.5 * rng.standard_normal((rank, d), np.float32))
        X += 0.3 * rng.standard_normal((n, d), np.float32)
        along = rng.standard_normal(d, np.float32)
        strength = 6 * np.sin(np.pi * (33 * layer / n_layers + 2) / 40)
        X += np.outer((labels - 0.5) * strength, along / np.linalg.norm(along))
        X[:, 7] += 800
        X[:, 11] *= 60
        np.save(folder / f"resid_pre.{layer}.npy", X.astype(np.float16))
    words = [" ".join(rng.choice(["alpha", "beta", "gamma", "delta", "epsilon"], 8)) for _ in range(n)]
    rows = [f"{text} {i},{label}" for i, (text, label) in enumerate(zip(words, labels.tolist(), strict=True))]
    (folder / "labels.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    return labels


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


SECTIONS = {each.__name__: each for each in (cases, columns, layers, stream, products, wide)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--section", choices=SECTIONS, default="cases")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, choices=[1, 2], default=2)
    parser.add_argument("--adam", action="store_true", help="the usual training loop, too")
    parser.add_argument("--same-gap", action="store_true", help="lbfgs to our gap in every case")
    parser.add_argument("--patience", type=float, default=120, help="seconds that a fit of lbfgs to our gap may take")
    parser.add_argument("--rows", type=int, default=5_000_000, help="of --section stream")
    parser.add_argument("--layers", type=int, default=33, help="of --section wide")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with threadpool_limits(args.threads):
        SECTIONS[args.section](args)


if __name__ == "__main__":
    main()
