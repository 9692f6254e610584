"""Probes of a store that memory cannot hold: peak memory, time and scores, streamed and in memory.

    python benchmarks/stream_probes.py --rows 200000 --width 512 --memory 100MB

A store of one place is written (rows with the spectrum of activations, two classes that follow them). Each probe is
trained with its checks in a process of its own: once in memory, once with --memory. The peak is that of the process
over what it had before the fits and after a small fit (`VmHWM` of Linux): it counts labels, scores and resamples, but
no libraries.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

PROBES = ("logistic", "ridge", "lda", "mean-diff")


def make_store(folder: Path, rows: int, width: int) -> Path:
    """A store of rows [N, D] in float32, written in pieces."""
    from probekit.activations.imports.run import import_activations

    rng = np.random.default_rng(0)
    mix = rng.normal(size=(width, width)).astype(np.float32) * np.arange(1, width + 1, dtype=np.float32) ** -0.7
    X = np.lib.format.open_memmap(folder / "resid_pre.0.npy", mode="w+", dtype=np.float32, shape=(rows, width))
    for start in range(0, rows, 1 << 14):
        stop = min(rows, start + (1 << 14))
        X[start:stop] = rng.standard_normal((stop - start, width), dtype=np.float32) @ mix
    X.flush()
    scores = X[:, :8].sum(axis=1)
    labels = (scores + scores.std() * rng.logistic(size=rows) > 0).astype(np.int64)
    np.save(folder / "labels.npy", labels)
    del X
    import_activations(folder / "resid_pre.0.npy", folder / "labels.npy", out=folder / "store")
    (folder / "resid_pre.0.npy").unlink()
    return folder / "store"


def one(store: str, probe: str, memory: str | None) -> dict[str, Any]:
    """Train one probe in this process."""
    from probekit.activations import load_activations
    from probekit.verbs.train_probes import train_probes

    acts, passes = load_activations(store, "size"), list[bool]()
    _warm_up(acts, probe)
    before, start = _peak(reset=True), time.perf_counter()
    results = train_probes(acts, probe=probe, memory=memory, on_part=lambda name: passes.append("from disk" in name))
    layer = results.layers[0]
    return {
        "seconds": time.perf_counter() - start,
        "peak": _peak() - before,
        "passes": sum(passes),
        "C": layer.C,
        "gap": layer.gap,
        "test": layer.metrics["test"],
        "control": layer.control,
        "bits": None if layer.codelength is None else layer.codelength["bits"],
    }


def _warm_up(acts: Any, probe: str) -> None:
    """Load every library that the fits need, with 400 rows."""
    from probekit.activations.activations import ActivationSet
    from probekit.verbs.train_probes import train_probes

    rows = np.arange(400)
    train_probes(ActivationSet({("resid_pre", 0): acts.read("resid_pre.0", rows)}, acts.task.subset(rows)), probe=probe)


def _peak(reset: bool = False) -> int:
    """The most memory that this process has held, in bytes; or, once reset, what it holds now."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * int(found[1]) if found else 0


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--memory", default="100MB")
    parser.add_argument("--probes", default=",".join(PROBES))
    parser.add_argument("--one", nargs=3, metavar=("STORE", "PROBE", "MEMORY"))
    given = parser.parse_args()
    if given.one:
        store, probe, memory = given.one
        print(json.dumps(one(store, probe, None if memory == "free" else memory)))
        return
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(Path(folder), given.rows, given.width)
        size = given.rows * given.width * 4
        print(f"{given.rows:,} rows x {given.width:,}: {size / 1e6:,.0f} MB\n")
        print("| probe | memory | peak MB | s | passes | C | accuracy | control | bits | gap |")
        print("|---|---|---|---|---|---|---|---|---|---|")
        for probe in given.probes.split(","):
            for memory in ("free", given.memory):
                command = [sys.executable, __file__, "--one", str(store), probe, memory]
                found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                cells = [probe, memory, f"{found['peak'] / 1e6:,.0f}", f"{found['seconds']:.1f}", found["passes"]]
                shown = (found["C"], found["test"]["accuracy"], found["control"], found["bits"], found["gap"])
                cells += ["" if each is None else f"{each:.6g}" for each in shown]
                print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
