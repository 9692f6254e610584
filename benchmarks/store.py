"""The store compared with raw files: python benchmarks/store.py --folder FOLDER_ON_THE_DISK_IN_QUESTION

The activations of SST-2 at 13 places of a GPT-2 small, 67,349 x 13 x 768 float16 (1.34 GB of random bits), come in
shards as extraction makes them, the rows in another order than the task's. Contestants run in turn; the tables have
medians, and the medians of the ratios to the first line, round by round. All writes end with fsync, and start with
nothing left to be written. "Cold" is after posix_fadvise(DONTNEED) on every file.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.layout import Layout
from probekit.activations.store.format import FORMAT_VERSION
from probekit.activations.store.reader import Store
from probekit.activations.store.writer import NewStore, StoreWriter, begin_store
from probekit.files.remote.path import AnyPath
from probekit.points import Place
from probekit.selections import Selection
from probekit.tasks import Task

PLACES: list[Place] = [*(Place("resid_pre", i) for i in range(12)), Place("resid_post", 11)]
WIDTH = 768
Times = dict[str, list[float]]


class Data:
    """Random float16 x [places, N, width] in the order in which shards hold them, and the example of each row."""

    def __init__(self, n: int):
        rng = np.random.default_rng(0)
        bits = rng.integers(0, 2**16, (len(PLACES), n, WIDTH), dtype=np.uint16)
        bits &= 0xBFFF  # neither NaN nor infinity
        self.x, self.examples = bits.view(np.float16), rng.permutation(n)
        self.tensors = dict(zip(PLACES, torch.from_numpy(self.x), strict=True))
        texts = [f"text number {i}, as long as those of SST-2 are" for i in range(n)]
        self.task = Task("random", texts, {"none": np.zeros(n, int)}, {"none": ["none"]}, np.full(n, "train"), "none")

    def shards(self, size: int) -> Iterator[slice]:
        return (slice(start, start + size) for start in range(0, len(self.examples), size))


def write_store(folder: AnyPath, data: Data, size: int) -> None:
    places, widths = [list(place) for place in PLACES], [WIDTH] * len(PLACES)
    identity: dict[str, Any] = {"version": FORMAT_VERSION, "rows": len(data.task), "places": places, "widths": widths}
    identity |= {"dtype": "float16", "position": "last", "points": ["resid_pre"]}
    layout = Layout([Selection("last")], np.ones(len(data.task), dtype=np.int64), 0)
    new = NewStore(identity, "random", data.task, layout, [Selection("last")], source=None, meta={})
    writer = StoreWriter(folder / "store", begin_store(folder / "store", new))
    for number, rows in enumerate(data.shards(size)):
        writer.write(number, data.examples[rows], {place: x[rows] for place, x in data.tensors.items()})
    writer.finish({**identity, "n_layers": 12, "model": "random", "task": "random", "task_info": {}, "target": "none"})


def write_layers(folder: Path, data: Data, size: int) -> None:
    """A file a place, as np.memmap reads it; one fsync each at the end."""
    files = [(folder / f"{i}.bin").open("wb", buffering=0) for i in range(len(PLACES))]
    for rows in data.shards(size):
        for file, x in zip(files, data.x, strict=True):
            append(file.fileno(), x[rows])
    for file in files:
        os.fsync(file.fileno())
        file.close()


def write_one(folder: Path, data: Data, size: int, each: bool = False) -> None:
    """One file; an fsync at the end, or after each shard."""
    with (folder / "all.bin").open("wb", buffering=0) as file:
        for rows in data.shards(size):
            for x in data.x:
                append(file.fileno(), x[rows])
            if each:
                os.fsync(file.fileno())
        os.fsync(file.fileno())


def append(file: int, x: np.ndarray) -> None:
    rest = x.data.cast("B")
    while rest:
        rest = rest[os.write(file, rest) :]


def write_each(folder: Path, data: Data, size: int) -> None:
    write_one(folder, data, size, each=True)


WRITERS = {
    "raw, a file a place": write_layers,
    "raw, one file": write_one,
    "raw, one file, fsync after each shard": write_each,
    "store": write_store,
}


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def race(work: dict[str, Callable[[], Any]], rounds: int, before: Callable[[], None]) -> Times:
    times: Times = {name: [] for name in work}
    for _ in range(rounds):
        for name, run in work.items():
            before()
            times[name].append(timed(run))
    return times


def written(data: Data, size: int, rounds: int, parent: Path) -> Times:
    """Every writer into a new folder, which goes away before the next."""
    folder = parent / "written"

    def anew() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        os.sync()

    work = {name: lambda write=write: write(folder, data, size) for name, write in WRITERS.items()}
    times = race(work, rounds, anew)
    shutil.rmtree(folder)
    return times


def forget(folder: Path) -> None:
    """Drop every file under the folder from the page cache."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def from_map(folder: Path, place: int, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
    return np.array(np.memmap(folder / f"{place}.bin", np.float16, "r").reshape(-1, WIDTH)[rows])


def check(folder: Path, data: Data) -> None:
    """Both hold what was written."""
    assert np.array_equal(from_map(folder, 5), data.x[5])
    read: Tensor = Store(folder / "store")[PLACES[5]]
    assert np.array_equal(read.numpy()[data.examples], data.x[5])


def readers(folder: Path, data: Data) -> dict[str, dict[str, Callable[[], Any]]]:
    """Section -> contestant -> what it does."""
    store, places = Store(folder / "store"), range(len(PLACES))
    sized = Store(folder / "store", check="size")
    some = np.sort(np.random.default_rng(1).choice(len(data.task), min(1000, len(data.task)), replace=False))
    index = torch.from_numpy(some)
    return {
        "one place": {
            "memmap, copied": lambda: from_map(folder, 5),
            "store": lambda: store[PLACES[5]],
            "store, check size": lambda: sized[PLACES[5]],
            "store, opened first": lambda: Store(folder / "store")[PLACES[5]],
        },
        f"{len(some):,} rows of all places": {
            "memmap, copied": lambda: [from_map(folder, i, some) for i in places],
            "store": lambda: [store[place][index] for place in PLACES],
        },
        "every byte": {
            "memmap, copied": lambda: [from_map(folder, i) for i in places],
            "store.verify()": store.verify,
        },
    }


def table(title: str, times: Times, n_bytes: int) -> dict[str, Any]:
    """Print a Markdown table; ratios are to the first contestant, round by round."""
    print(f"\n### {title}\n\n| | s | GB/s | ratio | rounds |\n|---|---|---|---|---|")
    first, found = next(iter(times.values())), {}
    for name, seconds in times.items():
        median = statistics.median(seconds)
        ratio = statistics.median(a / b for a, b in zip(seconds, first, strict=True))
        each = " ".join(f"{x:.2f}" for x in seconds)
        print(f"| {name} | {median:.3f} | {n_bytes / median / 1e9:.2f} | {ratio:.2f} | {each} |", flush=True)
        found[name] = {"seconds": seconds, "median": median, "ratio": ratio}
    return found


def read_back(data: Data, folder: Path, size: int, rounds: int) -> dict[str, Any]:
    for write in (write_layers, write_store):
        write(folder, data, size)
    check(folder, data)
    found = {}
    for title, work in readers(folder, data).items():
        share = {"one place": data.x[0].nbytes, "every byte": data.x.nbytes}
        n_bytes = share.get(title, data.x.nbytes * min(1000, len(data.task)) // len(data.task))
        race(work, 1, lambda: None)
        for state, before in (("warm", lambda: None), ("cold", lambda: forget(folder))):
            found[f"{title}, {state}"] = table(f"Read {title}, {state}", race(work, rounds, before), n_bytes)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where to write; default: the system's temporary folder")
    parser.add_argument("--rows", type=int, default=67_349)
    parser.add_argument("--shard-rows", type=int, nargs="+", default=[700, 3000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    args = parser.parse_args()
    torch.set_num_threads(2)
    data, found = Data(args.rows), {}
    print(f"{args.rows:,} x {len(PLACES)} x {WIDTH} float16, {data.x.nbytes / 1e9:.3f} GB")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for size in args.shard_rows:
            title = f"Write and fsync, shards of {size:,} rows"
            found[title] = table(title, written(data, size, args.repeats, Path(folder)), data.x.nbytes)
        found |= read_back(data, Path(folder), args.shard_rows[0], args.repeats)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
