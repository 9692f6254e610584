"""Audit and probe every task of the public sae-probes collection (Kantamneni et al. 2025, arXiv 2502.16681).

    python benchmarks/collection.py --model path/to/stories260k-llama --out /tmp/collection

The script downloads the wheel of `sae-probes` with pip and takes the 155 task files out of it; nothing of them is
written into the checkout. Each task is audited complete, twice: as `load_task` splits it, which keeps equal texts
together, and under a random split of its rows, as is common. `pk.sweep` trains a probe at every layer on at most
`--limit` texts of each split. Figures go into OUT/collection.jsonl, a line for each task as it is done, so the same
command resumes. `--report docs/collection.md` writes the page's tables and picture from them.
"""

import argparse
import io
import json
import subprocess
import sys
import time
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from collection_tables import write_page

import probekit as pk
from probekit.evaluation.results.data import LayerResult
from probekit.machine.progress import parts_line
from probekit.sweeps import SweepRun
from probekit.tasks.quality.audit import audit, audit_lines

PACKAGE, VERSION = "sae-probes", "0.4.2"
KINDS = {"Binary Classification": "binary", "Multiclass Classification": "multi-class", "Continuous Data": "regression"}
SHARES = (0.8, 0.1, 0.1)  # of the random split; those that load_task carves, too


def wheel(scratch: Path) -> Path:
    """The wheel of the collection, downloaded unless it is there."""
    if not (found := sorted(scratch.glob("sae_probes-*.whl"))):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*command, "-d", str(scratch), f"{PACKAGE}=={VERSION}"], check=True)
        found = sorted(scratch.glob("sae_probes-*.whl"))
    return found[0]


def unpack(path: Path, folder: Path) -> dict[str, str]:
    """Write the task files into `folder` as CSV; name of each task -> its kind."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path) as archive:

        def read(name: str) -> bytes:
            return pa.CompressedInputStream(io.BytesIO(archive.read(name)), "zstd").read()

        listed = pd.read_csv(io.BytesIO(read("sae_probes/data/probing_datasets_MASTER.csv.zst"))).dropna(
            subset=["Dataset save name", "Data type"]
        )
        for name in archive.namelist():
            if name.startswith("sae_probes/data/cleaned_data/"):
                (folder / Path(name).stem).write_bytes(read(name))
    names = [Path(name).stem for name in listed["Dataset save name"]]
    return {name: KINDS[kind] for name, kind in zip(names, listed["Data type"], strict=True)}


def random_split(file: Path, regression: bool) -> pk.Task:
    """The task of a file whose rows are split at random, wherever their texts occur again."""
    table = pd.read_csv(file, keep_default_na=False)
    order = np.random.default_rng(0).permutation(len(table))
    ends = np.cumsum(SHARES)[:2] * len(table)
    table["split"] = np.array(["train", "validation", "test"])[np.searchsorted(ends, order, side="right")]
    return pk.load_task(table[["prompt", "target", "split"]], regression=regression, split_column="split")


def audit_record(task: pk.Task) -> dict[str, Any]:
    """The findings about a task, as JSON has them."""
    found = audit(task, task.target)
    test = sum(one["exact"] for name, one in found.shared.items() if name.startswith("test"))
    return {
        "n": {split: one["n"] for split, one in found.splits.items()},
        "shared": {
            name: {key: one[key] for key in ("exact", "near", "of") if key in one} for name, one in found.shared.items()
        },
        "exact_in_test": test,
        "test_leak": found.test_leak,
        "leaks": len(found.leaks),
        "conflicts": found.conflicts,
        "differences": found.differences,
        "lines": audit_lines(found),
    }


def curve_record(run: SweepRun, sweep: Path, limit: int) -> dict[str, Any]:
    """The figures of a probe at every layer, from the results of a run of the sweep; or why there are none."""
    if run.error:
        return {"error": run.error}
    results = pk.ProbeResults.load(sweep / run.results)
    name, best = results.headline, results.best
    return {
        "metric": name,
        "n": results.meta["n"],
        "limit": limit,
        "cut": (results.meta.get("cut") or {}).get("texts", 0),
        "place": best.place,
        "value": results.estimate[0],
        "interval": results.estimate[1],
        "on_test": results.meta["optimism"],
        "layers": [layer_record(layer, name) for layer in results.layers],
        "baselines": {
            one.name: {"value": one.metrics["test"].get(name), "interval": one.intervals.get(name)}
            for one in results.baselines
        },
        "lead": results.meta["lead"],
        "tied": sum(bool(layer.in_best_set) for layer in results.layers),
    }


def layer_record(layer: LayerResult, name: str) -> list[Any]:
    """Place, validation and test of a layer."""
    return [layer.place, layer.metrics["validation"][name], layer.metrics["test"][name]]


def audits(file: Path, regression: bool) -> dict[str, Any]:
    """Both audits of one task, or why there are none, and their seconds."""
    record: dict[str, Any] = {}
    seconds: dict[str, float] = {}
    splits = {
        "audit": lambda: pk.load_task(file, regression=regression),
        "random": lambda: random_split(file, regression),
    }
    for name, read in splits.items():
        start = time.perf_counter()
        try:
            record[name] = audit_record(read())
        except pk.ProbekitError as error:
            record[name] = {"error": str(error)}
        seconds[name] = round(time.perf_counter() - start, 2)
    return record | {"seconds": seconds}


def median_length(file: Path) -> float:
    """Median number of characters of a text."""
    return float(pd.read_csv(file, keep_default_na=False)["prompt"].astype(str).str.len().median())


def run(model: str, out: Path, limit: int, only: str) -> None:
    """Measure every task that OUT/collection.jsonl does not hold yet, short files first."""
    out.mkdir(parents=True, exist_ok=True)
    kinds, figures, folder = unpack(wheel(out), out / "tasks"), out / "collection.jsonl", out / f"sweep-{limit}"
    done = {json.loads(line)["task"] for line in figures.read_text().splitlines()} if figures.exists() else set()
    files = sorted((out / "tasks").glob(f"{only}.csv"), key=lambda file: file.stat().st_size)
    todo = {file.stem: file for file in files if file.stem not in done}
    if not todo:
        return
    numbers = [name for name in todo if kinds[name] == "regression"]
    how: dict[str, Any] = {"quick": True, "baselines": True, "position": "last", "bos": True}
    with parts_line() as line:
        line.part("probes")
        found = pk.sweep(model, todo, limit=limit, regression=numbers, out=folder, on_progress=line.set, **how)
        runs = {run.task: run for run in found.runs}
        line.part("audits")
        warnings.simplefilter("ignore")  # what they say is in the audits
        for number, (name, file) in enumerate(todo.items(), 1):
            record = {"task": name, "kind": kinds[name], "curve": curve_record(runs[name], folder, limit)}
            record |= {"characters": median_length(file), **audits(file, name in numbers)}
            record["seconds"]["curve"] = runs[name].seconds
            with figures.open("a") as stream:
                stream.write(json.dumps(record, default=str) + "\n")
            line.set(number, len(todo))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder of the model, such as stories260k-llama")
    parser.add_argument("--out", type=Path, required=True, help="scratch folder, outside the checkout")
    parser.add_argument("--limit", type=int, default=1000, help="texts of each split that probes are trained on")
    parser.add_argument("--only", default="*", help="tasks, as a pattern of file names")
    parser.add_argument("--report", type=Path, help="write the tables into this page, from the figures that are there")
    given = parser.parse_args()
    if given.report is None:
        run(given.model, given.out, given.limit, given.only)
    else:
        write_page(given.out, given.report, given.limit)


if __name__ == "__main__":
    main()
