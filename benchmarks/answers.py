"""What a person waits for: whole answers, beside a bare scikit-learn sweep of the same fits.

    python benchmarks/answers.py default --data DATA --tokenizer TOKENIZER      the whole default `train-probe`
    python benchmarks/answers.py quick --data DATA --tokenizer TOKENIZER        the same with --quick
    python benchmarks/answers.py fits --data DATA --tokenizer TOKENIZER         the label's fits alone, in process
    python benchmarks/answers.py worlds                                         each of the five worlds, everything on
    python benchmarks/answers.py sst2 --data DATA                               all of SST-2, made-up features
    python benchmarks/answers.py files --data DATA --model MODEL                155 task files through a small model

`default`, `quick` and `fits`: 2,000 training texts of SST-2 (DATA/sst2), GPT-2 small's shape with random weights, 13
places of 768. The bare sweep is what people write: features standardised on train, float32; LogisticRegression (lbfgs,
1,000 iterations) at 9 values of C; the accuracy on validation picks C; joblib with two workers of one thread over the
layers. It reads its features as .npy files. Unless "in process" is said, a time is that of a whole process, imports
included; both sides take turns, and CPU seconds are those of a process and its workers.

`sst2` takes real texts and labels. Its features are made up, since a real extraction takes long and the time of the
answer does not depend on it: a variance that falls as a power law, a part that the last word decides, and a part of the
label that grows with the layer. `files` takes the task files of DATA/sae-probes as they are and makes the others: the
same texts, labelled by whether they contain a word or a letter. --store and --keep reuse what an earlier run made.
"""

import argparse
import csv
import json
import os
import platform
import re
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

C = tuple(10.0**k for k in range(-4, 5))  # the grid of `train-probe`, checked in `fits`
PROBEKIT = [sys.executable, "-m", "probekit"]
SHAPE = {"places": 13, "width": 768}  # GPT-2 small's
WORLDS = ("counting", "ranking", "spans", "dialogue", "brackets")
TASK_FILES = 155


class Took(NamedTuple):
    """Seconds of a piece of work: by the clock, and of the processors."""

    wall: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.wall:.1f} s (CPU {self.cpu:.1f} s)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", choices=[*SECTIONS, *INNER])
    parser.add_argument("--data", type=Path, help="folder with sst2 and sae-probes")
    parser.add_argument("--tokenizer", type=Path, help="folder with GPT-2's vocab.json and merges.txt")
    parser.add_argument("--model", type=Path, help="folder of a small model with a tokenizer, for `files`")
    parser.add_argument("--store", type=Path, help="a store of the case, made before; otherwise it is made")
    parser.add_argument("--keep", type=Path, help="a folder for what is made, used again by the next run")
    parser.add_argument("--limit", type=int, default=2000, help="training texts of `default`, `quick` and `fits`")
    parser.add_argument("--rows", type=int, help="training texts of `sst2`, where not all are wanted")
    parser.add_argument("--count", type=int, default=TASK_FILES, help="task files of `files`, where not all are wanted")
    parser.add_argument("--only", nargs="*", default=WORLDS, choices=WORLDS, help="which of the worlds")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--options", type=shlex.split, default=[], help='of `train-probe`, as in --options="--C 1"')
    args = parser.parse_args()
    if args.section in INNER:
        INNER[args.section](args)
        return
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {args.section} {args.options}")
    with working_folder(args.keep) as folder:
        SECTIONS[args.section](args, folder)


# the main case, beside the bare sweep -------------------------------------------------------------------------------


def default(args: argparse.Namespace, folder: Path, *more: str) -> None:
    """The whole command and the whole sweep, in turn."""
    store = args.store or random_gpt2_store(args, folder)
    command = ["train-probe", str(store), "--layer", "all", "--out", f"{folder}/results", *more, *args.options]
    pairs = beside_a_sweep(store, folder, args.runs, lambda: whole_process(*command, remove=folder / "results"))
    print(f"train-probe {' '.join(command[2:])}: ratios {ratios(pairs)}")


def fits(args: argparse.Namespace, folder: Path) -> None:
    """The label's fits alone, without a process's imports on either side."""
    store = args.store or random_gpt2_store(args, folder)
    features = exported(store, folder)
    pairs = []
    for _ in range(args.runs):
        pairs.append([Took(*took) for took in inner("fits-alone", "--store", str(store), "--keep", str(features))])
        print(f"train_probes {pairs[-1][0]}, sweep {pairs[-1][1]}", flush=True)
    print(f"the label's fits: ratios {ratios(pairs)}")


def fits_alone(args: argparse.Namespace) -> None:
    """Both sides in this process, each run once to warm up and once for the clock."""
    import probekit
    from probekit.evaluation.request import DEFAULT_C

    assert DEFAULT_C == C, "both sides take the same values of C"
    alone: Any = {"controls": 0, "codelength": False, "baselines": False, "intervals": False}
    acts = probekit.load_activations(args.store)
    sides = [lambda: probekit.train_probes(acts, **alone), lambda: sweep(args.keep)]
    for side in sides:
        side()
    (ours, _), (theirs, places) = map(timed, sides)
    workers = sum(place[-1] for place in places)  # its processes are kept, and so not counted yet
    print(json.dumps([ours, (theirs.wall, workers)]))


def beside_a_sweep(store: Path, folder: Path, runs: int, ours: Callable[[], Took]) -> list[tuple[Took, Took]]:
    features, pairs = exported(store, folder), []
    for _ in range(runs):
        theirs = timed(lambda: inner("sweep", "--keep", str(features)))[0]
        pairs.append((ours(), theirs))
        print(f"ours {pairs[-1][0]}, sweep {pairs[-1][1]}", flush=True)
    return pairs


def ratios(pairs: Sequence[Sequence[Took]]) -> str:
    wall, cpu = (statistics.median(a[k] / b[k] for a, b in pairs) for k in range(2))
    return f"{wall:.2f} by the clock, {cpu:.2f} of CPU seconds"


def sweep(features: Path) -> list[tuple[int, float, float, float]]:
    """(place, accuracy on validation, on test at the C that validation chose, CPU seconds), the best place first."""
    from joblib import Parallel, delayed

    places: Any = Parallel(n_jobs=2)(delayed(swept)(features, place) for place in range(SHAPE["places"]))
    return sorted(places, key=lambda place: -place[1])


def swept(features: Path, place: int) -> tuple[int, float, float, float]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler
    from threadpoolctl import threadpool_limits

    start = time.process_time()
    X, labels = np.load(features / f"{place}.npy"), np.load(features / "labels.npz")
    y, splits = labels["y"], labels["splits"]
    X = StandardScaler().fit(X[splits == "train"]).transform(X)
    parts = {split: (X[splits == split], y[splits == split]) for split in ("train", "validation", "test")}
    found = []
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")  # it does not converge
        for c in C:
            model = LogisticRegression(C=c, max_iter=1000).fit(*parts["train"])
            found.append((model.score(*parts["validation"]), model.score(*parts["test"])))
    return place, *max(found, key=lambda one: one[0]), time.process_time() - start


def exported(store: Path, folder: Path) -> Path:
    """The features of a store as .npy files, with its labels."""
    import probekit

    features = folder / "features"
    if features.is_dir():
        return features
    features.mkdir()
    acts = probekit.load_activations(store)
    for number, place in enumerate(acts):
        np.save(features / f"{number}.npy", acts[place].float().numpy())
    np.savez(features / "labels.npz", y=acts.task.labels[acts.task.target], splits=acts.task.splits)
    return features


def random_gpt2_store(args: argparse.Namespace, folder: Path) -> Path:
    """`extract` of the first training texts of SST-2; its time is printed too."""
    from probekit.models.families.gpt2 import GPT2Config

    if (folder / "store").is_dir():
        return folder / "store"
    model = folder / "gpt2-shape"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(GPT2Config().to_hf()))
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(args.tokenizer / name, model / name)
    what = ["--model", str(model), "--random-init", "--dataset", str(args.data / "sst2"), "--limit", str(args.limit)]
    print(f"extract {whole_process('extract', *what, '--out', f'{folder}/store')}", flush=True)
    return folder / "store"


# the five worlds ----------------------------------------------------------------------------------------------------


def worlds(args: argparse.Namespace, folder: Path) -> None:
    """The default `train-probe` of each world; its model is trained, and its store made, before the clock starts."""
    from probekit.worlds import WORLDS as FILES

    took = []
    for name in args.only:
        store = folder / name
        if not store.is_dir():
            whole_process("extract", "--model", str(FILES[name].model), "--dataset", name, "--out", str(store))
        out = folder / f"{name}-results"
        took.append(whole_process("train-probe", str(store), "--out", str(out), *args.options, remove=out))
        print(f"{name}: {took[-1]}", flush=True)
    print(f"all of these: {total(took)}")


# full SST-2 ---------------------------------------------------------------------------------------------------------


def sst2(args: argparse.Namespace, folder: Path) -> None:
    """`train-probe` with everything on 60,614 training texts x 13 places x 768."""
    store = args.store or made_up_store(args, folder)
    out = folder / "results"
    command = ["train-probe", str(store), "--position", "last", "--out", str(out), *args.options]
    for _ in range(args.runs):
        print(f"train-probe {whole_process(*command, remove=out)}", flush=True)


def made_up_store(args: argparse.Namespace, folder: Path) -> Path:
    """`import` of real texts and labels, and of features that were made up for them."""
    if (folder / "store").is_dir():
        return folder / "store"
    rows = sst2_rows(args.data / "sst2", args.rows)
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label", "split"), *rows])
    (folder / "made").mkdir(exist_ok=True)
    for place in range(SHAPE["places"]):
        np.save(folder / "made" / f"resid_pre.{place}.npy", made_up(rows, place))
    made = [str(folder / "made"), "--labels", str(folder / "labels.csv"), "--position", "last"]
    print(f"import {whole_process('import', *made, '--out', f'{folder}/store')}", flush=True)
    shutil.rmtree(folder / "made")
    return folder / "store"


def sst2_rows(data: Path, most: int | None) -> list[tuple[str, str, str]]:
    rows = []
    for name, split in (("train", "train"), ("dev", "validation"), ("test", "test")):
        with (data / f"{name}.tsv").open(newline="") as file:
            table = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        rows += [(row["sentence"], row["label"], split) for row in table[: most if name == "train" else None]]
    return rows


def made_up(rows: list[tuple[str, str, str]], place: int) -> np.ndarray:
    """Features [N, D] of one place, float16; the label's part is larger at later places."""
    rng, width = np.random.default_rng(place), SHAPE["width"]
    mix = rng.normal(size=(width, width)).astype(np.float32) * np.arange(1, width + 1, dtype=np.float32) ** -0.7
    words, word = np.unique([text.split()[-1] for text, _, _ in rows], return_inverse=True)
    X = rng.standard_normal((len(rows), width), dtype=np.float32)
    X += rng.standard_normal((len(words), width), dtype=np.float32)[word]
    X = X @ mix.T
    label = np.array([int(row[1]) for row in rows], dtype=np.float32) - 0.5
    X += 0.02 * place * label[:, None] * X.std(axis=0) * rng.standard_normal(width, dtype=np.float32)
    return X.astype(np.float16)


# 155 task files -----------------------------------------------------------------------------------------------------


def files(args: argparse.Namespace, folder: Path) -> None:
    """`extract` and `train_probes` with its default checks on one file after another, in one process."""
    took = inner("files-alone", "--model", str(args.model), "--keep", str(task_folder(args, folder)))
    print(f"{len(took)} task files: {sum(took) / 60:.1f} min; a file {quartiles(took)}, extraction included")


def files_alone(args: argparse.Namespace) -> None:
    import probekit

    model, took = probekit.load_model(args.model), []
    for path in sorted(args.keep.glob("*.csv")):
        warnings.simplefilter("ignore")
        found, _ = timed(partial(answer, probekit, model, path))
        took.append(found.wall)
        print(f"{path.name}: {found}", file=sys.stderr, flush=True)
    print(json.dumps(took))


def answer(probekit: Any, model: Any, path: Path) -> None:
    probekit.train_probes(probekit.extract(model, probekit.load_task(path)))


def task_folder(args: argparse.Namespace, folder: Path) -> Path:
    """The published files, and as many relabelled ones as are missing, a file of texts after the other."""
    tasks = folder / "tasks"
    shutil.rmtree(tasks, ignore_errors=True)
    tasks.mkdir()
    real = sorted((args.data / "sae-probes").glob("*.csv"))
    for path in real[: args.count]:
        shutil.copy(path, tasks / path.name)
    sources = [relabelled(path) for path in real]
    for number in range(len(real), args.count):
        name, rows = next(sources[number % len(sources)])
        with (tasks / f"made_{number}_{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("prompt", "target"), *rows])
    return tasks


def relabelled(path: Path) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Tasks over the texts of a file: does the text contain this word, or this letter? A fifth to four fifths do."""
    with path.open(newline="") as file:
        texts = [row["prompt"] for row in csv.DictReader(file)]
    folded = [text.lower() for text in texts]
    found = [set(re.findall(r"[a-z]+", text)) | set(re.findall(r"[a-z]", text)) for text in folded]
    for cue in sorted(set().union(*found), key=lambda cue: (len(cue) == 1, cue)):
        has = [int(cue in own) for own in found]
        if 0.2 * len(texts) <= sum(has) <= 0.8 * len(texts):
            yield f"{path.stem}_{cue}", list(zip(texts, has, strict=True))


# ----------------------------------------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """Without what pins OpenBLAS to another processor's kernels, limits threads, or keeps no compiled modules."""
    pins = {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"}
    return {key: value for key, value in os.environ.items() if key not in pins | {"PYTHONDONTWRITEBYTECODE"}}


def whole_process(*command: str, remove: Path | None = None) -> Took:
    """A command of probekit, quiet; what it wrote to `remove` is removed, so that the next one starts anew."""
    run = partial(subprocess.run, [*PROBEKIT, *command, "--quiet"], stdout=subprocess.PIPE, env=environment())
    took = timed(lambda: run(check=True))[0]
    if remove is not None:
        shutil.rmtree(remove, ignore_errors=True)
    return took


def inner(*arguments: str) -> Any:
    """What an inner section of this file, in a process of its own, printed as JSON."""
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment(), check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def timed(work: Callable[[], Any]) -> tuple[Took, Any]:
    cpu, start = cpu_seconds(), time.perf_counter()
    result = work()
    return Took(time.perf_counter() - start, cpu_seconds() - cpu), result


def cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def total(took: list[Took]) -> Took:
    return Took(sum(one.wall for one in took), sum(one.cpu for one in took))


def quartiles(seconds: list[float]) -> str:
    return ", ".join(f"{at} {np.quantile(seconds, q):.1f} s" for at, q in (("median", 0.5), ("longest", 1.0)))


@contextmanager
def working_folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", ".")) as name:
        yield Path(name)


SECTIONS: dict[str, Callable[[argparse.Namespace, Path], None]] = {
    "default": default,
    "quick": lambda args, folder: default(args, folder, "--quick"),
    "fits": fits,
    "worlds": worlds,
    "sst2": sst2,
    "files": files,
}
INNER: dict[str, Callable[[argparse.Namespace], None]] = {
    "sweep": lambda args: print(json.dumps(sweep(args.keep))),
    "fits-alone": fits_alone,
    "files-alone": files_alone,
}

if __name__ == "__main__":
    main()
