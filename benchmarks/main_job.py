"""The two commands on real texts with a GPT-2-small-shaped random model: where does the time go?

    python benchmarks/main_job.py --tokenizer TOKENIZER_FOLDER --dataset data/sst2 --limit 2000

Each command runs as a whole process, imports included. The model has random weights: its curve is the baseline that a
trained model has to beat; the table says what a random network makes of the words.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from probekit.models.gpt2 import GPT2Config

PROBEKIT = [sys.executable, "-c", "from probekit.cli.main import main; main()"]


def timed(*command: str) -> tuple[float, str]:
    start = time.perf_counter()
    done = subprocess.run([*PROBEKIT, *command], stdout=subprocess.PIPE, text=True, check=True)
    return time.perf_counter() - start, done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with vocab.json and merges.txt")
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--limit", default="2000")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        model = Path(tmp, "gpt2-shape")
        model.mkdir()
        (model / "config.json").write_text(json.dumps(GPT2Config().to_hf()))
        for name in ("vocab.json", "merges.txt"):
            shutil.copy(args.tokenizer / name, model / name)
        common = ["--model", str(model), "--random-init", "--dataset", args.dataset, "--limit", args.limit]
        extract_s, printed = timed("extract", *common, "--out", f"{tmp}/store")
        train_s, table = timed("train-probe", printed.split()[-1], "--layer", "all")
    print(table)
    print(f"extract {extract_s:.1f} s, train-probe {train_s:.1f} s (whole processes)")


if __name__ == "__main__":
    main()
