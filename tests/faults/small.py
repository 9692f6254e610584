"""A small extraction whose result is known, and what must hold of its store whatever befell the run.

What a store should look like is read from undisturbed runs by walking the folder: which files there are, which of them
are equal every time, and which are JSON that names a shard. The tensors are those of a run in memory.
"""

import functools
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as parse_shard
from store_cases import make_model, make_task

from probekit.activations import Store, list_stores, load_activations, plan_extraction
from probekit.activations.activations import Activations
from probekit.activations.plan import build as planning
from probekit.activations.store import examples as stored_examples
from probekit.errors import DataError, StorageError
from probekit.models.families.gpt2 import GPT2
from probekit.options import ExtractOptions
from probekit.tasks.base import Task
from probekit.verbs.extract import extract

N = 64
HOW: dict[str, Any] = {"points": ["resid_pre", "q"], "batch_tokens": 30}
CLI = ["extract", "--model", "tiny", "--dataset", "letters", "--points", "resid_pre,q", "--batch-tokens", "30"]
USUAL_SHARD_BYTES = planning.SHARD_BYTES
SHARD_NAME = re.compile(r"[\w-]+\.safetensors")


@functools.cache
def given() -> tuple[GPT2, Task]:
    planning.SHARD_BYTES = 6 * 7 * 16 * 4
    stored_examples.PIECE_ROWS = N // 2
    return make_model(), make_task(N, texts=False)


def run(path: Path | None) -> Activations:
    model, task = given()
    return extract(model, task, out=path, progress=False, **HOW)


def plan_of(model: GPT2, task: Task, **options: Any) -> Any:
    return plan_extraction(model, task, ExtractOptions(**options))


def run_cli(path: Path) -> int:
    """The command, on the small model and task; its exit code."""
    from probekit.cli import extract as command
    from probekit.cli.main import run as run_command

    command.load = lambda *_: given()
    return run_command([*CLI, "--out", str(path)])


def run_as_typed(args: list[str]) -> int:
    """A command as a process of its own would run it, with shards of the usual size; its exit code."""
    from probekit.cli.main import run as run_command

    planning.SHARD_BYTES = USUAL_SHARD_BYTES
    return run_command(args)


def digests(acts: Activations) -> dict[str, str]:
    """A hash of the bytes, type and shape of every place, and of the task; every byte is read."""
    found = {str(place): _digest(acts[place]) for place in acts}
    return {**found, "task": acts.task.fingerprint()}


def _digest(x: torch.Tensor) -> str:
    kind = f"{x.dtype} {list(x.shape)}".encode()
    return hashlib.sha256(kind + x.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def read(path: Path) -> dict[str, str]:
    """Everything in a complete store, through every check that there is."""
    store = load_activations(path)
    store.verify()
    return digests(store)


def named(path: Path) -> dict[str, bytes]:
    """Every file under a final name, with its bytes; names with a dot in front are temporary."""
    found = (p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
    return {str(p.relative_to(path)): p.read_bytes() for p in found}


def shards_of(files: dict[str, bytes]) -> dict[str, set[str]]:
    """The JSON files that name shards, with the shards' file names."""
    texts = {name: data.decode(errors="replace") for name, data in files.items() if name.endswith(".json")}
    return {name: set(SHARD_NAME.findall(text)) for name, text in texts.items() if SHARD_NAME.search(text)}


def committed(files: dict[str, bytes]) -> dict[str, bytes]:
    """What may never be lost again: the JSON files, and the shards that they name."""
    kept = set().union(*shards_of(files).values())
    return {name: data for name, data in files.items() if name.endswith(".json") or Path(name).name in kept}


def unsound(files: dict[str, bytes]) -> list[str]:
    """Files that are not whole, and shards that are named and not there; whatever bytes the writers had."""
    wrong = [f"{name} is not whole" for name, data in files.items() if not _is_whole(name, data)]
    there = {Path(name).name for name in files}
    return wrong + [f"{name} names {shard}" for name, shards in shards_of(files).items() for shard in shards - there]


def _is_whole(name: str, data: bytes) -> bool:
    if name.endswith(".parquet") and re.fullmatch("[0-9a-f]{64}", Path(name).stem):
        return hashlib.sha256(data).hexdigest() == Path(name).stem
    if name.endswith((".csv", ".parquet")):
        return data.endswith((b"\n", b"PAR1"))
    try:
        parse_shard(data) if name.endswith(".safetensors") else json.loads(data)
    except Exception:  # the parsers have an error each
        return False
    return True


class Good:
    """What undisturbed runs come to."""

    def __init__(self, folder: Path):
        self.digests = digests(run(None))
        run(folder / "one")
        run(folder / "two")
        self.files, other = named(folder / "one"), named(folder / "two")
        assert self.files.keys() == other.keys()
        self.dated = {name for name in self.files if self.files[name] != other[name]}
        assert len(self.dated) <= 1, "the same run makes the same files"
        assert len(shards_of(self.files)) >= 4, "runs of four shards"
        assert not unsound(self.files)
        self.steps = self._steps()

    def _steps(self) -> set[int]:
        """Numbers of rows of whole prefixes of the run."""
        by_name = {Path(name).name: data for name, data in self.files.items() if name.endswith(".safetensors")}
        records = [shards for _, shards in sorted(shards_of(self.files).items()) if len(shards) == 1]
        rows = [len(next(iter(parse_shard(by_name[shard]).values()))) for (shard,) in records]
        assert sum(rows) == N
        return {0, *np.cumsum(rows).tolist()}

    def flaws(self, path: Path, must_open: bool = False) -> list[str]:
        """What a fault must not leave: a file that no undisturbed run has under that name, a shard that is missing."""
        files = named(path)
        odd = [f"{name} is no file of an undisturbed run" for name in files.keys() - self.files.keys()]
        same = (files.keys() & self.files.keys()) - self.dated
        altered = [f"{name} is not that of an undisturbed run" for name in same if files[name] != self.files[name]]
        return odd + altered + unsound(files) + self._told(path, must_open)

    def _told(self, path: Path, must_open: bool) -> list[str]:
        """What the public functions make of it: whole prefixes, unfinished or complete, never damaged."""
        told = [info.state for info in list_stores(path.parent) if info.state == "damaged"]
        try:
            rows, total = Store.progress(path)
            told += [] if rows in self.steps and total == N else [f"progress {rows} of {total}"]
        except (DataError, StorageError) as error:
            told += [] if "no store" in str(error) else [str(error)]
        try:
            return told + ([] if read(path) == self.digests else ["complete and not equal"])
        except (DataError, StorageError) as error:
            is_early = "no store" in str(error) or "unfinished" in str(error)
            return told + ([] if is_early and not must_open else [str(error)])

    def missing(self, path: Path) -> list[str]:
        """What keeps a store from being complete and equal to that of an undisturbed run."""
        gone = [f"{name} is missing" for name in self.files.keys() - named(path).keys()]
        return self.flaws(path, must_open=True) + gone


def lost(before: dict[str, bytes], path: Path) -> list[str]:
    """What was committed and is gone or altered."""
    now = named(path)
    return [f"{name} was committed and is lost or altered" for name, data in before.items() if now.get(name) != data]
