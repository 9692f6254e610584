"""Seconds of one extraction in 1, 2 and 4 parts, each a process with one thread, over one store.

    python benchmarks/parts.py [--rounds 3] [--texts 600] [--parts 1,2,4] [--shape distilgpt2]

The model has the named shape and random weights, the texts are random tokens, so that nothing is downloaded. Processes
load the model first and begin together; what is timed is from then until the last one ends, the manifest included.
Rounds are interleaved. Efficiency is the speed-up over one part, divided by the number of parts or of cores, whichever
is smaller: 100% is what the cores can give. The largest share says what the cut itself costs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from probekit.activations import load_activations, plan_extraction
from probekit.activations.parts.cut import cut_parts, shard_costs
from probekit.activations.parts.work import begin_work
from probekit.activations.plan.plan import ExtractionPlan
from probekit.models import load_model
from probekit.models.families.gpt2 import GPT2Config
from probekit.options import ExtractOptions
from probekit.tasks.base import Task

CHILD = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from probekit.activations import run_part
from probekit.activations.parts.work import open_work
path, part, of = sys.argv[1:]
plan = open_work(path)
print("ready", flush=True)
sys.stdin.readline()
run_part(plan, Path(path), (int(part), int(of)), progress=False)
"""


SHAPES = {
    "small": GPT2Config(d_model=256, n_heads=4, d_mlp=1024, n_layers=6, n_ctx=128, d_vocab=1000),
    "distilgpt2": GPT2Config(d_model=768, n_heads=12, d_mlp=3072, n_layers=6, n_ctx=128, d_vocab=1000),
}


def planned(shape: str, texts: int, folder: Path) -> ExtractionPlan:
    """An extraction of every layer at the last token of random texts of 4 to 60 tokens."""
    (folder / "config.json").write_text(json.dumps(SHAPES[shape].to_hf()))
    rng = np.random.default_rng(0)
    inputs = [rng.integers(0, 1000, size=rng.integers(4, 61)).tolist() for _ in range(texts)]
    labels = {"label": np.arange(texts) % 2}
    task = Task("random", inputs, labels, {"label": ["no", "yes"]}, np.array(["train"] * texts), "label")
    loaded = load_model(str(folder), random_init=True, device="cpu")
    return plan_extraction(loaded, task, ExtractOptions(shard_bytes=300_000))


def seconds(plan: ExtractionPlan, path: Path, n: int) -> float:
    """Time that n processes take for the store together."""
    begin_work(plan, path)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(path), str(i + 1), str(n)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        for i in range(n)
    ]
    for child in children:
        assert child.stdout is not None
        if child.stdout.readline() != "ready\n":
            raise SystemExit("a process did not start; its error is above")
    start = time.perf_counter()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        if child.wait() != 0:
            raise SystemExit("a process failed; its error is above")
    return time.perf_counter() - start


def main() -> None:
    """Print a Markdown table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", type=int, default=600)
    parser.add_argument("--parts", default="1,2,4")
    parser.add_argument("--shape", choices=SHAPES, default="distilgpt2")
    args = parser.parse_args()
    several = [int(word) for word in args.parts.split(",")]
    times: dict[int, list[float]] = {n: [] for n in several}
    with tempfile.TemporaryDirectory() as folder:
        plan = planned(args.shape, args.texts, Path(folder))
        for number in range(args.rounds):
            for n in several:
                path = Path(folder) / f"{number}-{n}"
                times[n].append(seconds(plan, path, n))
                load_activations(path)
    costs, cores = shard_costs(plan), len(os.sched_getaffinity(0))
    medians = {n: statistics.median(found) for n, found in times.items()}
    tokens = int(plan.sequences.lengths.sum())
    print(f"{args.shape}, {args.texts} texts, {tokens:,} tokens, {len(plan.shards)} shards, {cores} cores\n")
    print("| parts | seconds | tokens/s | speed-up | efficiency against cores | largest share x parts |")
    print("|---|---|---|---|---|---|")
    for n in several:
        gain = medians[several[0]] / medians[n]
        largest = max(costs[part].sum() for part in cut_parts(costs, n)) / costs.sum() * n
        print(
            f"| {n} | {medians[n]:.2f} | {tokens / medians[n]:,.0f} | {gain:.2f} | {gain / min(n, cores):.0%} "
            f"| {largest:.2f} |"
        )
    print(json.dumps({"cores": cores, "seconds": times}))


if __name__ == "__main__":
    main()
