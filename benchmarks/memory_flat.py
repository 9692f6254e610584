"""Peak memory of an extraction by number of texts: python benchmarks/memory_flat.py --help

    python benchmarks/memory_flat.py --texts 6000,60000,1000000

A tiny GPT-2 (2 layers, d_model 32, a word-level tokenizer) reads texts of about 20 random words with a label, and keeps
every layer's residual stream at the last token in a store. Each number of texts is a process of its own. It loads the
model and runs it once, and then its memory is read from /proc every few milliseconds, in each phase: the task, the
plan, the identity, the plan's description, the store. Counted is RssAnon, the memory that the process made itself.

Pages of mapped files (RssFile) are not counted, and token ids, orders and splits are in such files: the kernel can drop
these pages whenever memory is short, once they are written to disk, and reads them again from there. What all resident
pages grew by, these included, is printed next to it. If TMPDIR is in memory (tmpfs), the files are in memory too.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

N_WORDS = 4000
SAMPLE_SECONDS = 0.003


def write_texts(path: Path, n: int) -> None:
    """A table of `n` texts with labels, of about 20 words each, as JSONL, CSV or Parquet by its ending."""
    rng, words = np.random.default_rng(0), np.array([f"w{i}" for i in range(N_WORDS)])
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = pa.schema([("text", pa.string()), ("label", pa.string())])
        with pq.ParquetWriter(path, schema) as writer:
            for texts, labels in _texts(rng, words, n):
                writer.write_table(pa.table({"text": texts, "label": labels}, schema))
        return
    with path.open("w") as file:
        if path.suffix == ".csv":
            file.write("text,label\n")
        for texts, labels in _texts(rng, words, n):
            for text, label in zip(texts, labels, strict=True):
                is_csv = path.suffix == ".csv"
                file.write(f"{text},{label}\n" if is_csv else json.dumps({"text": text, "label": label}) + "\n")


def _texts(rng: np.random.Generator, words: np.ndarray, n: int) -> Iterator[tuple[list[str], list[str]]]:
    for start in range(0, n, 10_000):
        lengths = rng.integers(12, 29, min(10_000, n - start))
        drawn = words[(N_WORDS * rng.random(lengths.sum()) ** 2).astype(int)]
        texts = [" ".join(own) for own in np.split(drawn, np.cumsum(lengths)[:-1])]
        yield texts, np.array(["no", "yes"])[rng.integers(0, 2, len(lengths))].tolist()


def write_model(folder: Path) -> None:
    """A folder with a tiny GPT-2 of random weights and its word-level tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(
        GPT2Config(
            vocab_size=N_WORDS + 1, n_positions=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
        )
    ).save_pretrained(folder)
    vocabulary = {"<unk>": N_WORDS} | {f"w{i}": i for i in range(N_WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))


def resident() -> np.ndarray:
    """Megabytes of memory that this process made itself, and of all that is resident, mapped files included."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return np.array([int(fields[name].split()[0]) for name in ("RssAnon", "VmRSS")]) * 1024 / 1e6


class Phases:
    """Peaks of `resident` within each phase, over those at the start."""

    def __init__(self) -> None:
        self.start = resident()
        self.peaks: dict[str, list[float]] = {}
        self.seconds: dict[str, float] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Sample memory from a thread until the block ends."""
        done, peak = threading.Event(), resident()

        def sample() -> None:
            while not done.wait(SAMPLE_SECONDS):
                np.maximum(peak, resident(), out=peak)

        thread, begin = threading.Thread(target=sample), time.perf_counter()
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            self.peaks[name] = (np.maximum(peak, resident()) - self.start).tolist()
            self.peaks[f"after {name}"] = (resident() - self.start).tolist()
            self.seconds[name] = time.perf_counter() - begin


def measured(model_folder: Path, dataset: Path, out: Path, layers: str) -> dict[str, dict[str, Any]]:
    """Peaks over the loaded model in MB, own and of all resident memory, and seconds, by phase."""
    import probekit as pk
    from probekit.activations import describe_plan, plan_extraction, run_plan
    from probekit.activations.plan.identity import identity_of
    from probekit.options import ExtractOptions

    model = pk.load_model(str(model_folder))
    pk.extract(model, ["w1 w2 w3"] * 4, position="last")
    options = ExtractOptions(position="last", layers=layers)
    phases = Phases()
    with phases.of("task"):
        task = pk.load_task(str(dataset))
    with phases.of("plan"):
        plan = plan_extraction(model, task, options)
    with phases.of("identity"):
        identity_of(plan)
    with phases.of("description"):
        describe_plan(plan)
    with phases.of("store"):
        run_plan(plan, out, False)
    return {"mb": phases.peaks, "seconds": phases.seconds}


def main() -> None:
    """Parse, measure each number of texts in a process of its own, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", default="6000,60000,1000000")
    parser.add_argument("--format", default="jsonl", choices=["jsonl", "csv", "parquet"])
    parser.add_argument("--layers", default="all")
    parser.add_argument("--folder", type=Path, help="where the files go (default: a temporary folder)")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(measured(*[Path(one) for one in args.child[:3]], layers=args.layers)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        (folder / "model").mkdir(parents=True, exist_ok=True)
        write_model(folder / "model")
        for n in map(int, args.texts.split(",")):
            dataset = folder / f"texts-{n}.{args.format}"
            if not dataset.exists():
                write_texts(dataset, n)
            with tempfile.TemporaryDirectory(dir=folder) as out:
                child = [str(folder / "model"), str(dataset), str(Path(out) / "store")]
                command = [sys.executable, __file__, "--layers", args.layers, "--child", *child]
                done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=dict(os.environ))
            found = json.loads(done.stdout)
            own, every = np.max(list(found["mb"].values()), axis=0)
            seconds = sum(found["seconds"].values())
            print(f"{n:>9,} texts: peak {own:8.1f} MB over the model ({every:.1f} with mapped files), {seconds:6.1f} s")
            for name, (own, every) in found["mb"].items():
                print(
                    f"    {name:<18} {own:8.1f} ({every:8.1f}) MB  {found['seconds'].get(name, 0):6.1f} s", flush=True
                )


if __name__ == "__main__":
    main()
