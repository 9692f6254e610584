"""How long `probekit --help` takes, compared with an empty Python: python benchmarks/startup.py

The two run in turn; medians of whole processes, and the ratio pair by pair.
"""

import argparse
import statistics
import subprocess
import sys
import time


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    empty = [sys.executable, "-c", "pass"]
    ours = [sys.executable, "-c", "from probekit.cli.main import main; main()", "--help"]
    seconds(ours)  # the first run compiles
    pairs = [(seconds(ours), seconds(empty)) for _ in range(runs)]
    help_s, empty_s = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    print(f"probekit --help {help_s:.3f} s; empty Python {empty_s:.3f} s; ratio {ratio:.1f} (medians of {runs})")


if __name__ == "__main__":
    main()
