"""What Ray costs over plain parts: the same extraction by 2 workers of Ray, and by 2 processes with --part.

    python benchmarks/ray_overhead.py --model path/to/gpt2 --dataset texts.csv

Both are the command line as a user runs it, with one thread a worker, in turns. The times at which the records of the
store were written divide each run in three: the start (imports, loading, Ray itself) until the first record, the work
until the last, and the end. Seconds are medians of the rounds; the ratio is the median of the ratios of each round.
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
PHASES = ("start", "work", "end")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--texts", type=int, default=4000)
    parser.add_argument("--shard-bytes", type=int, default=4_000_000, help="small, so that two workers share the work")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    job = ["--model", args.model, "--dataset", args.dataset, "--limit", str(args.texts)]
    command = [sys.executable, "-m", "probekit", "extract", *job, "--shard-bytes", str(args.shard_bytes), "--quiet"]
    rounds = []
    for at in range(args.rounds):
        times = {}
        for name in ("parts", "ray") if at % 2 == 0 else ("ray", "parts"):
            times[name] = seconds(name, command)
            phases = ", ".join(f"{phase} {times[name][phase]:.1f} s" for phase in PHASES)
            print(f"round {at + 1}: {name}: {phases}", file=sys.stderr)
        rounds.append(times)
    result = {
        name: {phase: round(median(times[name][phase] for times in rounds), 2) for phase in PHASES}
        for name in ("parts", "ray")
    }
    ratio = median(times["ray"]["work"] / times["parts"]["work"] for times in rounds)
    in_all = median(sum(times["ray"].values()) / sum(times["parts"].values()) for times in rounds)
    print(json.dumps({**result, "work_ratio": round(ratio, 3), "in_all_ratio": round(in_all, 3)}, indent=1))


def seconds(name: str, command: list[str]) -> dict[str, float]:
    """Wall time of each phase of a run."""
    folder = Path(tempfile.mkdtemp(prefix="probekit-"))
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    ways = [["--part", f"{i}/{WORKERS}"] for i in range(1, WORKERS + 1)]
    if name == "ray":
        ways = [["--engine", "ray", "--workers", str(WORKERS)]]
    running = []
    try:
        start = time.time()
        for way in ways:
            out = ["--out", str(folder / "store")]
            running.append(subprocess.Popen([*command, *way, *out], env=env, stdout=subprocess.DEVNULL))
        codes = [process.wait() for process in running]
        end = time.time()
        if any(codes) or not (folder / "store" / "manifest.json").exists():
            raise SystemExit(f"{name} failed with {codes}")
        written = sorted(file.stat().st_mtime for file in (folder / "store" / "records").iterdir())
        return {"start": written[0] - start, "work": written[-1] - written[0], "end": end - written[-1]}
    finally:
        for process in running:
            if process.poll() is None:
                process.terminate()
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
