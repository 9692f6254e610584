"""What a person waits for before the first answer: python benchmarks/startup.py

`probekit --help` beside an empty Python, and `train-probe --quick` on the demo's store beside `import numpy, scipy`,
with `import torch` alone in between. All take turns; medians of whole processes, by the clock and of their CPU time,
and the ratios turn by turn. --store takes the store of an earlier `probekit demo --out`; otherwise it is made first.
"""

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

# what keeps modules from being compiled once for all runs would be measured in each of them
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
PROBEKIT = [sys.executable, "-m", "probekit"]


class Took(NamedTuple):
    """Seconds of a process: by the clock, and of the processors."""

    wall: float
    cpu: float


def took(command: list[str]) -> Took:
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, env=ENVIRONMENT)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Took(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def in_turn(commands: dict[str, list[str]], runs: int, written: Path) -> dict[str, list[Took]]:
    """The times of each command; a first turn, which compiles, does not count."""
    found: dict[str, list[Took]] = {name: [] for name in commands}
    for turn in range(runs + 1):
        for name, command in commands.items():
            shutil.rmtree(written, ignore_errors=True)
            one = took(command)
            found[name] += [one] if turn else []
    return found


def show(found: dict[str, list[Took]], base: str) -> None:
    for name, times in found.items():
        wall, cpu = (statistics.median(column) for column in zip(*times, strict=True))
        pairs = list(zip(times, found[base], strict=True))
        ratios = [statistics.median(one[i] / other[i] for one, other in pairs) for i in (0, 1)]
        print(f"{name:24} {wall:7.3f} s, CPU {cpu:7.3f} s; {ratios[0]:5.1f} x, CPU {ratios[1]:5.1f} x {base}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15, help="of `--help`")
    parser.add_argument("--looks", type=int, default=5, help="runs of `train-probe --quick`")
    parser.add_argument("--store", type=Path, help="the store of an earlier `probekit demo --out`")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        results, store = Path(name) / "results", args.store or Path(name) / "store"
        empty = {"an empty Python": [sys.executable, "-c", "pass"], "probekit --help": [*PROBEKIT, "--help"]}
        show(in_turn(empty, args.runs, results), "an empty Python")
        if args.store is None:
            took([*PROBEKIT, "demo", "--out", str(store), "--quiet"])
        looks = {
            "import numpy, scipy": [sys.executable, "-c", "import numpy, scipy"],
            "import torch": [sys.executable, "-c", "import torch"],
            "train-probe --quick": [*PROBEKIT, "train-probe", str(store), "--quick", "--out", str(results), "--quiet"],
        }
        show(in_turn(looks, args.looks, results), "import numpy, scipy")


if __name__ == "__main__":
    main()
