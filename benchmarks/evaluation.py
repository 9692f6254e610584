"""The evaluation on real data: does it give a random network no more than surface cues, and find what a model knows?

    python benchmarks/evaluation.py tasks --data DATA --tokenizer TOKENIZER --out PICTURES
    python benchmarks/evaluation.py agreement --out PICTURES
    python benchmarks/evaluation.py transfer --data DATA --tokenizer TOKENIZER --out PICTURES
    python benchmarks/evaluation.py twice --data DATA --tokenizer TOKENIZER
    python benchmarks/evaluation.py folds --data DATA --tokenizer TOKENIZER --out PICTURES

DATA holds sst2/ (train, dev, test), geometry-of-truth/ and sae-probes/ as their authors publish them; of a sae-probes
task 1,000 rows train. Where TOKENIZER is needed, the model has GPT-2 small's shape and random weights: a probe of it
may find what words, lengths and positions give away, and nothing else. `train_probes` runs with its defaults: control
tasks, code lengths, baselines, audit.
"""

import argparse
import hashlib
import json
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from probekit import ProbeResults, Task, extract, load_model, load_task, random_init_of, train_probes, transfer
from probekit.activations.activations import Activations
from probekit.activations.store.reader import Store
from probekit.models.base import LanguageModel
from probekit.models.families.gpt2 import GPT2Config
from probekit.plots import save_plot, save_transfer_plot
from probekit.tasks.splitting.splits import sample

SURFACE = ("majority", "mean", "bag-of-words", "length")
CITIES = "geometry-of-truth/cities.csv"
TRUTH = ("cities", "neg_cities", "sp_en_trans", "larger_than")
TASKS = {
    "sst2": "sst2",
    "cities": CITIES,
    "toxic": "sae-probes/95_toxic_is.csv",
    "headline": "sae-probes/24_headline_isiran.csv",
    "borough": "sae-probes/10_nyc_borough.csv",
    "latitude": "sae-probes/11_us_lat.csv",
}
HEAD = "task, rows|best layer|headline|test|95%|best set|control|selectivity|compression|bag of words|length|majority"
HEAD += "|embedding|p_max|s: extract, train|above surface cues?"


@dataclass(frozen=True)
class Run:
    """One task through one model."""

    name: str
    results: ProbeResults
    seconds: tuple[float, float]  # extraction, training


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sections: dict[str, Callable[[argparse.Namespace], None]]
    sections = {"tasks": tasks, "agreement": agreement, "transfer": matrix, "twice": twice, "folds": folds}
    parser.add_argument("section", choices=sections)
    parser.add_argument("--data", type=Path, help="folder with sst2, geometry-of-truth and sae-probes")
    parser.add_argument("--tokenizer", type=Path, help="folder with GPT-2's vocab.json and merges.txt")
    parser.add_argument("--out", type=Path, help="where pictures and results are kept")
    parser.add_argument("--only", nargs="*", choices=TASKS, default=list(TASKS), help="which of the tasks")
    parser.add_argument("--layers", default="all", help="of the random model, as in `extract`")
    args = parser.parse_args()
    warnings.simplefilter("always")
    sections[args.section](args)


def tasks(args: argparse.Namespace) -> None:
    """The curve of a random network on each task."""
    print_head(HEAD)
    with random_gpt2(args.tokenizer) as model:
        for name in args.only:
            run = trained(name, model, task_of(args.data, name), args.layers)
            keep(run, args.out)
            print_row(verdict_row(run))


def agreement(args: argparse.Namespace) -> None:
    """The built-in model on the built-in task, compared with random weights."""
    with tempfile.TemporaryDirectory() as tmp:
        extract(load_model("agreement-gpt2"), load_task("agreement"), out=Path(tmp, "store"))
        store = Store(Path(tmp, "store"))
        random = random_init_of(store)
        for label in store.labels:
            start = time.perf_counter()
            results = train_probes(store, label=label, random_init=random)
            run = Run(f"agreement-{label}", results, (0.0, time.perf_counter() - start))
            keep(run, args.out)
            print(f"\n{label}, {run.seconds[1]:.0f} s; {baselines_line(results)}; p_max {results.meta['p_max']:.2g}\n")
            print_head("place|test|simultaneous 95% band|best set|control|selectivity|compression|random weights")
            for layer, other in zip(results.layers, results.random_init, strict=True):
                print_row([layer.place, *layer_cells(results, layer), number(score(results, other))])


def matrix(args: argparse.Namespace) -> None:
    """Truth of four kinds of statements in a random network."""
    with random_gpt2(args.tokenizer) as model:
        sets = [extract(model, truth_task(args.data, name), layers=args.layers) for name in TRUTH]
    start = time.perf_counter()
    found = transfer(sets)
    print(found.summary())
    print(f"{time.perf_counter() - start:.0f} s")
    if args.out:
        found.save(args.out / "transfer")
        save_transfer_plot(found, args.out / "transfer")


def twice(args: argparse.Namespace) -> None:
    """The same run into two folders: are their files equal to the byte?"""
    with random_gpt2(args.tokenizer) as model, tempfile.TemporaryDirectory() as tmp:
        task = task_of(args.data, "cities")
        prints = [
            fingerprints(train_probes(extract(model, task, layers=args.layers)).save(Path(tmp, name)))
            for name in ("one", "two")
        ]
    print(f"{len(prints[0])} files, results.json, results.csv and probes; equal to the byte: {prints[0] == prints[1]}")
    for name in sorted(set(prints[0]) | set(prints[1])):
        if prints[0].get(name) != prints[1].get(name):
            print(f"differs: {name}")


def folds(args: argparse.Namespace) -> None:
    """Nested folds on a small set: 900 headlines, and 354 translations."""
    with random_gpt2(args.tokenizer) as model:
        headlines = load_task(args.data / TASKS["headline"])
        small = {
            "headline-900": headlines.subset(np.sort(sample(headlines.labels[headlines.target], 900, 0))),
            "sp_en_trans": load_task(args.data / "geometry-of-truth/sp_en_trans.csv"),
        }
        for name, task in small.items():
            run = trained(f"{name}-folds", model, task, args.layers, folds=5)
            keep(run, args.out)
            print(run.results.summary())
            print(f"extract {run.seconds[0]:.0f} s, train {run.seconds[1]:.0f} s\n")


def task_of(data: Path, name: str) -> Task:
    if name == "sst2":
        return of_each_split(load_task(data / "sst2", limit=2000), {"validation": 500})
    task = load_task(data / TASKS[name], group_column="city" if name == "cities" else None)
    return of_each_split(task, {"train": 1000}) if "sae-probes" in TASKS[name] else task


def truth_task(data: Path, name: str) -> Task:
    """A file of statements; a city's two stay on one side."""
    return load_task(data / f"geometry-of-truth/{name}.csv", group_column="city" if "cities" in name else None)


def of_each_split(task: Task, most: dict[str, int]) -> Task:
    """The task with at most so many rows of the splits that are named, stratified."""
    labels, kept = task.labels[task.target], np.ones(len(task), dtype=bool)
    for split, n in most.items():
        rows = np.flatnonzero(task.splits == split)
        kept[rows] = False
        kept[rows[sample(labels[rows], min(n, len(rows)), 0)]] = True
    return task.subset(kept)


@contextmanager
def random_gpt2(tokenizer: Path) -> Iterator[LanguageModel]:
    """GPT-2 small's shape with random weights, and its tokenizer."""
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp, "gpt2-shape")
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(GPT2Config().to_hf()))
        for name in ("vocab.json", "merges.txt"):
            shutil.copy(tokenizer / name, folder / name)
        yield load_model(folder, random_init=True)


def trained(name: str, model: LanguageModel, task: Task, layers: str, **how: Any) -> Run:
    start = time.perf_counter()
    acts: Activations = extract(model, task, layers=layers)
    middle = time.perf_counter()
    results = train_probes(acts, **how)
    return Run(name, results, (middle - start, time.perf_counter() - middle))


def keep(run: Run, out: Path | None) -> None:
    if out is not None:
        run.results.save(out / run.name)
        save_plot(run.results, out / run.name)
        (out / f"{run.name}.txt").write_text(run.results.summary() + "\n")


def fingerprints(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def verdict_row(run: Run) -> list[str]:
    """The numbers of a curve, and whether its best layer's interval lies above every surface cue."""
    results, meta = run.results, run.results.meta
    best, known = results.best, {one.name: score(results, one) or 0.0 for one in results.baselines}
    rows = "/".join(str(meta["n"][split]) for split in ("train", "validation", "test"))
    cue = max((name for name in SURFACE if name in known), key=known.__getitem__)
    above = best.intervals[results.headline][0] > known[cue]
    return [
        f"{run.name} {rows}",
        best.place,
        results.headline,
        number(score(results, best)),
        interval(best.intervals[results.headline]),
        best_set(results),
        number(best.control),
        number(best.selectivity),
        number(best.codelength["compression"] if best.codelength else None),
        *(number(known.get(name)) for name in ("bag-of-words", "length")),
        number(known.get("majority", known.get("mean"))),
        number(known.get("embedding")),
        f"{meta['p_max']:.3g}",
        f"{run.seconds[0]:.0f}, {run.seconds[1]:.0f}",
        f"{'ABOVE' if above else 'no: not above'} {cue}",
    ]


def layer_cells(results: ProbeResults, layer: Any) -> list[str]:
    code = layer.codelength and layer.codelength["compression"]
    told = [number(value) for value in (layer.control, layer.selectivity, code)]
    return [number(score(results, layer)), interval(layer.band), "yes" if layer.in_best_set else "", *told]


def best_set(results: ProbeResults) -> str:
    good = [str(layer.layer) for layer in results.layers if layer.in_best_set]
    return "all" if len(good) == len(results.layers) else ",".join(good)


def baselines_line(results: ProbeResults) -> str:
    return ", ".join(f"{one.name} {number(score(results, one))}" for one in results.baselines)


def score(results: ProbeResults, one: Any) -> float | None:
    return one.metrics["test"].get(results.headline)


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:z.3f}"


def interval(ends: tuple[float, float] | None) -> str:
    return "-" if ends is None else f"[{ends[0]:.3f}, {ends[1]:.3f}]"


def print_head(head: str) -> None:
    names = head.split("|")
    print_row(names)
    print_row(["---"] * len(names))


def print_row(cells: list[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
