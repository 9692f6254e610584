"""What Ray costs over plain parts: the same extraction by 2 workers of Ray, and by 2 processes with --part.

    python benchmarks/ray_overhead.py --model path/to/gpt2 --dataset texts.csv

Both are the command line as a user runs it, with one thread a worker, in turns, at two numbers of texts. The time at
the smaller number is nearly all start (imports, loading, Ray itself); what each further text costs is the
difference of the two. Medians of the rounds; the ratio is the median of the ratios of each round.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

WORKERS = 2


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--texts", default="500,4500", help="two numbers of texts")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    small, large = map(int, args.texts.split(","))
    rounds = []
    for at in range(args.rounds):
        times = {}
        for n in (small, large):
            for name in ("parts", "ray") if at % 2 == 0 else ("ray", "parts"):
                times[name, n] = seconds(name, [*job(args.model, args.dataset), "--limit", str(n)])
                print(f"round {at + 1}: {name}, {n:,} texts: {times[name, n]:.1f} s", file=sys.stderr)
        rounds.append(times)
    more = [{name: times[name, large] - times[name, small] for name in ("parts", "ray")} for times in rounds]
    result = {
        "start_seconds_more": median(times["ray", small] - times["parts", small] for times in rounds),
        "parts_texts_per_second": (large - small) / median(one["parts"] for one in more),
        "ray_texts_per_second": (large - small) / median(one["ray"] for one in more),
        "seconds_of_a_text_ratio": median(one["ray"] / one["parts"] for one in more),
        "seconds_in_all_ratio": median(times["ray", large] / times["parts", large] for times in rounds),
    }
    print(json.dumps(result, indent=1))


def job(model: str, dataset: str) -> list[str]:
    return [sys.executable, "-m", "probekit", "extract", "--quiet", "--model", model, "--dataset", dataset]


def seconds(name: str, command: list[str]) -> float:
    """Wall time until the store is complete."""
    folder = Path(tempfile.mkdtemp(prefix="probekit-"))
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    ways = [["--part", f"{i}/{WORKERS}"] for i in range(1, WORKERS + 1)]
    if name == "ray":
        ways = [["--engine", "ray", "--workers", str(WORKERS)]]
    try:
        start = time.perf_counter()
        running = [
            subprocess.Popen([*command, *way, "--out", str(folder / "store")], env=env, stdout=subprocess.DEVNULL)
            for way in ways
        ]
        codes = [process.wait() for process in running]
        taken = time.perf_counter() - start
        if any(codes) or not (folder / "store" / "manifest.json").exists():
            raise SystemExit(f"{name} failed with {codes}")
        return taken
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
