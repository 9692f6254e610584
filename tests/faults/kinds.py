"""Every kind of run that the contract is tried on: how it is done, what it answers, and another question."""

import atexit
import functools
import hashlib
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from small import HOW, N, given, named, plan_of, read, run, unsound
from training_runs import SETTINGS, draw, new_model

from probekit.activations import Store, import_activations, label_store, load_statistics
from probekit.activations.extract import run_statistics
from probekit.activations.imports import arrays
from probekit.activations.parts.run import run_part
from probekit.activations.store.shard import bytes_of
from probekit.activations.sums import tally
from probekit.activations.sums.statistics import sum_tensors
from probekit.causal.curve.causal_curve import causal_curve
from probekit.evaluation import ProbeResults
from probekit.models.training import train
from probekit.sweeps import SweepResults
from probekit.verbs.extract import extract
from probekit.verbs.sweep import sweep
from probekit.verbs.train_probes import train_probes

PARTS = 3
LABELS = {f"train:{i + 100}": ("no", "yes")[i % 2] for i in range(N)}
OTHER = {one: "ab"[i % 2 - 1] for i, one in enumerate(LABELS)}
CONTINUED: dict[str, Any] = {"generate": 3, "temperature": 1.3, "on_bad_row": "skip", "batch_tokens": 60}


@dataclass(frozen=True)
class Kind:
    """A run: `work` does it, or what is left of it; `answer` gives what it came to, through every check.

    `another` asks another question of the same folder. `keeps` is True where what is committed stays under its name;
    else newer records replace older ones. `damaged` are the names of the files that are altered: those of the run,
    where it makes others that are checked by themselves.
    """

    work: Callable[[Path], Any]
    answer: Callable[[Path], Any]
    another: Callable[[Path], Any]
    keeps: bool = True
    damaged: str = ".*"


class Answer:
    """What an undisturbed run comes to."""

    def __init__(self, folder: Path, kind: Kind):
        self.kind = kind
        kind.work(folder / "one")
        self.digests = kind.answer(folder / "one")
        self.files = {name: data for name, data in named(folder / "one").items() if re.fullmatch(kind.damaged, name)}

    def flaws(self, path: Path) -> list[str]:
        """What no fault may leave: files that are not whole, and records of files that are not there."""
        return unsound(named(path))

    def missing(self, path: Path) -> list[str]:
        return self.flaws(path) + ([] if self.kind.answer(path) == self.digests else ["not equal"])


def _given_plan(**how: Any) -> Any:
    model, task = given()
    return plan_of(model, task, **{**HOW, **how})


def _sums(path: Path, **how: Any) -> None:
    tally.Tally._is_due = lambda self: True  # a checkpoint after every shard
    run_statistics(_given_plan(points="resid_pre", **how), path, progress=False)


def _digests_of_sums(path: Path) -> dict[str, str]:
    found = load_statistics(path)
    counts = {str(key): str([one.count, one.class_counts]) for key, one in found.items()}
    return counts | {name: hashlib.sha256(bytes_of(x)).hexdigest() for name, x in sum_tensors(found).items()}


def _parts(path: Path, **how: Any) -> None:
    tally.Tally._is_due = lambda self: True
    for part in range(1, PARTS + 1):
        run_part(_given_plan(points="resid_pre", **how), path, (part, PARTS), progress=False, sums="also")


def _answer_of_parts(path: Path) -> Any:
    _parts(path)
    return [read(path), _digests_of_sums(path)]


def _labels(path: Path, labels: dict[str, str] = LABELS) -> None:
    run(path)
    label_store(path, labels, name="new")


def _answer_of_labels(path: Path) -> Any:
    _labels(path)  # nothing names them, and those that are gone are joined again
    store = Store(path)
    return [read(path), store.labels["new"].tolist(), store.task.label_names["new"]]


def _continued(path: Path, **how: Any) -> None:
    model, task = given()
    extract(model, task, out=path, progress=False, points="resid_pre", **{**CONTINUED, **how})


def _answer_of_continuations(path: Path) -> Any:
    _continued(path)  # which reads the batches
    return read(path)


@functools.cache
def _arrays() -> Path:
    """Files of arrays, and labels, that outlive every campaign of this process."""
    folder = Path(tempfile.mkdtemp(prefix="probekit-arrays-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    rng = np.random.default_rng(0)
    for layer in range(3):
        np.save(folder / f"resid_pre.{layer}.npy", rng.normal(size=(N, 16)).astype(np.float32))
    np.save(folder / "labels.npy", np.arange(N) % 2)
    return folder


def _imported(path: Path, **how: Any) -> None:
    arrays.SHARD_BYTES = 3 * 16 * 4 * 12  # five shards of 12 rows, and one of the rest
    import_activations(_arrays(), out=path, progress=False, **how)


def _trained(path: Path, **change: Any) -> Any:
    model = new_model()
    settings = type(SETTINGS)(**{**vars(SETTINGS), "steps": 8, **change})
    result = train(model, draw, settings, path, checkpoint_every=1)
    return [model.fingerprint(), result.losses]


def _swept(path: Path, **how: Any) -> SweepResults:
    model, task = given()
    tasks = {"one": task, "two": replace(task, labels={**task.labels, "odd": 1 - task.labels["odd"]})}
    brief: dict[str, Any] = {"quick": True, "intervals": False, "probe": "mean-diff", "points": "resid_pre"}
    return sweep(model, tasks, out=path, stores=True, progress=False, **brief, **how)


def _answer_of_sweep(path: Path) -> Any:
    runs = _swept(path).runs
    assert not any(run.error for run in runs)
    assert SweepResults.load(path).runs == runs
    values = [ProbeResults.load(path / run.results).estimate for run in runs]
    return [[run.task, run.model, run.rows] for run in runs], values, (path / "results.csv").read_text().count("\n")


@functools.cache
def _probed() -> tuple[Any, Any]:
    model, task = given()
    acts = extract(model, task, points="resid_pre", progress=False)
    return acts, train_probes(acts, quick=True, intervals=False, probe="mean-diff", progress=False)


def _curve(path: Path, seed: int = 0) -> str:
    how: dict[str, Any] = {"answers": [1, 2], "rows": 8, "placebos": 2, "scales": [1.0], "methods": "interchange,steer"}
    found = causal_curve(given()[0], *_probed(), **how, das=False, completeness=False, seed=seed, keep=path)
    return repr(found.effects)


def _another_store(path: Path) -> None:
    model, task = given()
    extract(model, task, out=path, progress=False, **HOW, dtype="float16")


KINDS = {
    "store": Kind(run, read, _another_store),
    "parts": Kind(_parts, _answer_of_parts, partial(_parts, dtype="float16"), keeps=False),
    "sums": Kind(_sums, _digests_of_sums, partial(_sums, dtype="float16"), keeps=False),
    "labels": Kind(_labels, _answer_of_labels, partial(_labels, labels=OTHER)),
    "imports": Kind(_imported, read, partial(_imported, dtype="float16")),
    "continuations": Kind(_continued, _answer_of_continuations, partial(_continued, temperature=0.5)),
    "sweep": Kind(_swept, _answer_of_sweep, partial(_swept, seed=1), False, r"sweep\.json|runs/.*|results\.csv"),
    "causal": Kind(_curve, _curve, partial(_curve, seed=1)),
    "training": Kind(_trained, _trained, partial(_trained, seed=4), keeps=False),
}
