"""Campaigns of faults against runs, each in a forked child of one warm process, with a verdict in JSON.

By hand:  python tests/faults/campaign.py kills --rounds 1000 --kind store
As a server (`--serve`): each line on stdin is {"campaign", "rounds", "folder", "kind"}, each line on stdout a verdict.

A verdict holds the counts of what was tried, and "broken": what ought not to be, first of all.
"""

# ruff: noqa: E402  (libraries read the environment when they are imported)
import os

for _pool in ("OMP", "OPENBLAS", "MKL"):
    os.environ[f"{_pool}_NUM_THREADS"] = "1"  # so that a fork copies the whole process

import argparse
import contextlib
import importlib
import io
import json
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from children import Child, End, in_child, killed_after
from disk import CHANGES, EVERY, PowerLoss, Shim, events
from hostile import Bench, one_case
from kinds import KINDS, Answer
from small import (
    Good,
    committed,
    digests,
    given,
    lost,
    named,
    plan_of,
    read,
    run,
    run_as_typed,
    run_cli,
    unsound,
)
from store_cases import make_model
from tqdm import tqdm

from probekit.activations import Store, list_stores, load_activations, run_plan
from probekit.activations.plan.identity import identity_of
from probekit.cli.main import run as run_command
from probekit.errors import DataError, ResumeMismatch, StorageError

# imported before any fork, or each campaign imports them again
WARM = ("cloudpickle", "probekit.cli.extract", "pyarrow.compute", "pyarrow.parquet", "torch._dynamo")
FAULTS = ("create", "write", "fsync", "rename", "link", "mkdir")  # what must not fail unnoticed
SHOWN = 8


class Verdict:
    """What was counted, and what was broken."""

    def __init__(self):
        self.counts: Counter[str] = Counter()
        self.broken: list[str] = []

    def check(self, what: str, flaws: list[str]) -> None:
        self.broken += [f"{what}: {flaw}" for flaw in flaws]

    def expect(self, holds: bool, what: str) -> None:
        self.broken += [] if holds else [what]

    def as_dict(self) -> dict[str, Any]:
        return {**self.counts, "n_broken": len(self.broken), "broken": self.broken[:SHOWN]}


class Field:
    """Where a campaign works: an undisturbed run to compare with, and folders for stores."""

    def __init__(self, folder: Path, seed: int, kind: str = "store"):
        self.folder = folder
        self.rng = np.random.default_rng(seed)
        (folder / "good").mkdir(parents=True)
        self.kind = KINDS[kind]
        self.good: Any = Good(folder / "good") if kind == "store" else Answer(folder / "good", self.kind)
        self.verdict = Verdict()
        self._made = 0

    def place(self) -> Path:
        """A folder for one store and nothing else; the one before it is removed."""
        shutil.rmtree(self.folder / f"place{self._made}", ignore_errors=True)
        self._made += 1
        place = self.folder / f"place{self._made}"
        place.mkdir()
        return place

    def duration(self, work: Callable[[Path], Any]) -> float:
        """Seconds of an undisturbed run in a child, which no test depends on: it spreads the moments of faults."""
        times = []
        for _ in range(3):
            path = self.place() / "store"
            start = time.perf_counter()
            assert in_child(partial(work, path)).is_done
            times.append(time.perf_counter() - start)
        return 1.1 * sorted(times)[1]

    def resume(self, path: Path, what: str, work: Callable[[Path], Any] | None = None) -> None:
        """The same command again must end in a complete store equal to that of an undisturbed run."""
        end = in_child(partial(work or self.work, path))
        self.verdict.expect(end.is_done and end.value in (0, None), f"{what}: resume ended with {end}")
        self.verdict.check(f"{what}, resumed", self.good.missing(path))
        self.verdict.counts["resumed"] += 1

    def work(self, path: Path) -> None:
        self.kind.work(path)

    def work_on_slow_disk(self, path: Path) -> None:
        """So that most moments are between two calls."""
        with Shim(path, delay=0.0005).between():
            self.kind.work(path)

    def lost(self, before: dict[str, bytes], path: Path) -> list[str]:
        """What was committed and is gone or altered; of runs whose records stay."""
        return lost(before, path) if self.kind.keeps else []


# 1 -----------------------------------------------------------------------------------------------------------------


def kills(field: Field, rounds: int) -> None:
    """kill -9 at random moments, up to four on one store before it is resumed; every other time the disk is slow."""
    speeds = {work: field.duration(work) for work in (field.work, field.work_on_slow_disk)}
    while field.verdict.counts["killed"] + field.verdict.counts["finished"] < rounds:
        path = field.place() / "store"
        before: dict[str, bytes] = {}
        for k in range(int(field.rng.integers(1, 5))):
            work = field.work if k % 2 else field.work_on_slow_disk
            end = killed_after(partial(work, path), speeds[work] * field.rng.random())
            field.verdict.counts["killed" if end.code == -signal.SIGKILL else "finished"] += 1
            field.verdict.expect(end.code in (0, -signal.SIGKILL), f"ended with {end}")
            field.verdict.check("killed", field.lost(before, path) + field.good.flaws(path))
            before = committed(named(path))
            field.verdict.counts["part"] += 0 < len(before) < len(field.good.files)
        field.resume(path, "killed")


# 2 -----------------------------------------------------------------------------------------------------------------


def points(field: Field, rounds: int) -> None:
    """A kill, EIO and ENOSPC at every `rounds`-th call that changes the disk, each at others; then no hard link.

    First the disk has no hard links at all; if `rounds` is 1, then also each link alone is refused.
    """
    total = in_child(partial(_count, field.place(), field.kind.work)).value
    for k, fault in enumerate(("kill", "EIO", "ENOSPC")):
        for at in range(k * rounds // 3, total["all"], rounds):
            _one_point(field, at, fault)
    for at in [EVERY, *(range(total["link"]) if rounds == 1 else ())]:
        place, what = field.place(), "every link refused" if at == EVERY else f"link {at} refused"
        end = in_child(partial(_faulty, place, at, "EPERM", field.kind.work, ("link",)))
        field.verdict.expect(end.is_done and end.value["error"] is None, f"{what}: {end}")
        field.verdict.check(what, field.good.missing(place / "store"))
    field.verdict.counts |= {"calls": total["all"], "links": total["link"]}


def _count(place: Path, work: Callable[[Path], Any]) -> dict[str, int]:
    counts = {}
    for operations in (CHANGES, ("link",)):
        shutil.rmtree(place / "store", ignore_errors=True)
        with Shim(place, operations=operations).between() as shim:
            work(place / "store")
        counts["all" if operations is CHANGES else "link"] = shim.count
    return counts


def _faulty(
    place: Path, at: int, fault: str, work: Callable[[Path], Any], operations: tuple[str, ...] = CHANGES
) -> dict[str, Any]:
    """A store through the command for ENOSPC, all else through the function."""
    typed = fault == "ENOSPC" and work is run
    with Shim(place, at, fault, operations=operations).between() as shim:
        try:
            code = (run_cli if typed else work)(place / "store")
            return {"error": None, "code": code if typed else 0, "hit": shim.hit}
        except StorageError as error:
            return {"error": str(error), "code": error.exit_code, "hit": shim.hit}


def _one_point(field: Field, at: int, fault: str) -> None:
    place, what = field.place(), f"{fault} at call {at}"
    end = in_child(partial(_faulty, place, at, fault, field.kind.work))
    field.verdict.counts[fault] += 1
    if fault == "kill":
        field.verdict.expect(end.code == -signal.SIGKILL, f"{what} ended with {end}")
    else:
        field.verdict.check(what, _told(end))
    field.verdict.check(what, field.good.flaws(place / "store"))
    before = committed(named(place / "store"))
    field.resume(place / "store", what)
    field.verdict.check(what, field.lost(before, place / "store"))


def _told(end: End) -> list[str]:
    """The disk's refusal must be told in one line, with code 4; only a removal may fail without a word."""
    if not end.is_done:
        return [f"ended with {end}"]
    if end.value["hit"].split()[0] not in FAULTS:
        return []
    code, said = end.value["code"], end.value["error"] or end.stderr.strip().splitlines()[-1:]
    return [] if code == 4 and said and "Traceback" not in end.stderr else [f"{end.value['hit']}: {code}, {end.stderr}"]


# 3 -----------------------------------------------------------------------------------------------------------------


def flips(field: Field, rounds: int) -> None:
    """One bit of any file is another one."""
    _damage(field, rounds, _flipped)


def truncations(field: Field, rounds: int) -> None:
    """Any file ends at any byte before its end, the first ones at its start and just before its end."""
    _damage(field, rounds, _truncated)


def deletions(field: Field, rounds: int) -> None:
    """Every file is missing once."""
    _damage(field, len(field.good.files), _deleted)


def _flipped(good: bytes, rng: np.random.Generator, k: int) -> bytes:
    bad = bytearray(good)
    bad[rng.integers(len(bad))] ^= 1 << int(rng.integers(8))
    return bytes(bad)


def _truncated(good: bytes, rng: np.random.Generator, k: int) -> bytes:
    return good[: (0, len(good) - 1)[k] if k < 2 else int(rng.integers(len(good)))]


def _deleted(good: bytes, rng: np.random.Generator, k: int) -> None:
    pass


def _damage(field: Field, rounds: int, alter: Callable[[bytes, np.random.Generator, int], bytes | None]) -> None:
    """Alter the files by turns; a change that leaves the same JSON alters nothing that is read."""
    path = field.folder / "good" / "one"
    names = sorted(field.good.files)
    for k in range(rounds):
        name = names[k % len(names)]
        good = field.good.files[name]
        bad = alter(good, field.rng, k // len(names))
        _put(path / name, bad)
        what = f"{alter.__name__} {name} ({k})"
        field.verdict.check(what, _noticed(field, path, name, same=bad is not None and _same(name, good, bad)))
        _put(path / name, good)
    field.verdict.check("mended", field.good.missing(path))


def _put(path: Path, data: bytes | None) -> None:
    path.unlink() if data is None else path.write_bytes(data)


def _same(name: str, good: bytes, bad: bytes) -> bool:
    try:
        return name.endswith(".json") and json.loads(good) == json.loads(bad)
    except ValueError:
        return False


def _noticed(field: Field, path: Path, name: str, same: bool) -> list[str]:
    try:
        found = field.kind.answer(path)
    except (StorageError, DataError) as error:
        field.verdict.counts["noticed"] += 1
        of_all = field.kind is not KINDS["store"] or "unfinished" in str(error)  # what is gone is named by its folder
        gone = not (path / name).exists() and of_all and str(path) in str(error)
        is_named = isinstance(error, StorageError) and Path(name).name in str(error)
        return [] if is_named or gone else [f"not named in: {error}"]
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    field.verdict.counts["same"] += 1  # as of a record that is made again, which only a store never is
    there = (path / name).read_bytes() if (path / name).is_file() else None
    field.verdict.counts["made again"] += not same and there == field.good.files[name]
    harmless = same or field.kind is not KINDS["store"]
    return [] if harmless and found == field.good.digests else ["not noticed"]


# 4 -----------------------------------------------------------------------------------------------------------------

BUILTIN = ["extract", "--model", "agreement-gpt2", "--dataset", "agreement", "--layers", "0,1", "--quiet"]


def full_disk(field: Field, rounds: int) -> None:
    """No file may grow beyond a size: the command on the small model, and as a process."""
    largest = max(map(len, field.good.files.values()))
    for k in range(rounds):
        place, size = field.place(), int(largest * k / rounds)
        end = in_child(partial(_limited, place / "store", size))
        field.verdict.check(
            f"files of {size} bytes", _refusal(end.value, end.stderr) + field.good.flaws(place / "store")
        )
        before = committed(named(place / "store"))
        field.verdict.counts["part"] += len(before) > 0
        field.resume(place / "store", f"files of {size} bytes", run_cli)
        field.verdict.check(f"files of {size} bytes", lost(before, place / "store"))
    _full_disk_for_a_process(field)


def _limited(path: Path, size: int) -> int:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    return run_cli(path)


def _refusal(code: int | None, stderr: str) -> list[str]:
    lines = [line for line in stderr.splitlines() if "error" in line]
    told = code == 4 and len(lines) == 1 and "too large" in lines[0] and "Traceback" not in stderr
    return [] if told else [f"exit {code}, {stderr}"]


def _full_disk_for_a_process(field: Field) -> None:
    place = field.place()
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({50_000}, resource.RLIM_INFINITY)); "
    done = _process([*BUILTIN, "--limit", "40", "--out", str(place / "store")], limit)
    field.verdict.check("a process", _refusal(done.returncode, done.stderr) + unsound(named(place / "store")))
    args = [*BUILTIN, "--limit", "40", "--out"]
    ends = [in_child(partial(run_as_typed, [*args, str(place / name)])) for name in ("store", "other")]
    field.verdict.expect([end.value for end in ends] == [0, 0], f"resume of a process: {ends}")
    field.verdict.expect(read(place / "store") == read(place / "other"), "resume of a process: not equal")


def _process(args: list[str], before: str = "") -> subprocess.CompletedProcess[str]:
    code = (
        f"import sys, runpy; sys.argv[0] = 'probekit'; {before}runpy.run_module('probekit.cli.main', None, '__main__')"
    )
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=120)


# 5 -----------------------------------------------------------------------------------------------------------------


def two_writers(field: Field, rounds: int) -> None:
    """Two runs of one identity and different bytes on one store at once: each shard is of the one or of the other."""
    parts = [_parts(field.place(), noise) for noise in (0.0, 1e-3)]
    field.verdict.expect(parts[0].isdisjoint(parts[1]), "the bytes do not differ")
    for k in _until(rounds, field.verdict, "mixed"):
        path = field.place() / "store"
        writers = [
            Child(partial(_noisy, path, noise, delay)) for noise, delay in zip((0.0, 1e-3), _delays(field), strict=True)
        ]
        ends = [writer.end() for writer in writers]
        field.verdict.check(f"round {k}", [f"a writer ended with {end}" for end in ends if not end.is_done])
        files = named(path)
        field.verdict.check(f"round {k}", unsound(files) + _mixture(field, path, parts))
        field.verdict.counts["rounds"] += 1
        field.verdict.counts["mixed"] += sum(not _kept(files).isdisjoint(part) for part in parts) == 2


def _until(rounds: int, verdict: Verdict, what: str) -> Iterator[int]:
    """That many rounds, and up to ten times as many until `what` has happened once."""
    for k in range(10 * rounds):
        if k >= rounds and verdict.counts[what]:
            return
        yield k


def _delays(field: Field) -> tuple[float, float]:
    """Seconds to wait before a call: both run at one speed, or the second overtakes the first."""
    return tuple(field.rng.choice([0.0, 0.0002, 0.001], size=2))


def _noisy(path: Path, noise: float, delay: float = 0.0) -> None:
    """The identity is that of the model; what is computed is not."""
    model, task = given()
    planned = plan_of(model, task, points=["resid_pre", "q"], batch_tokens=30)
    assert identity_of(planned)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(noise)
    with Shim(path, delay=delay).between():
        run_plan(planned, path, progress=False)


def _parts(place: Path, noise: float) -> set[bytes]:
    assert in_child(partial(_noisy, place / "store", noise)).is_done
    return _kept(named(place / "store"))


def _kept(files: dict[str, bytes]) -> set[bytes]:
    """The bytes of the shards that records name."""
    return {data for name, data in committed(files).items() if name.endswith(".safetensors")}


def _mixture(field: Field, path: Path, parts: list[set[bytes]]) -> list[str]:
    found = named(path)
    odd = _kept(found) - parts[0] - parts[1]
    try:
        read(path)
    except (DataError, StorageError) as error:
        return [str(error)]
    return ["a shard of neither writer"] if odd or len(_kept(found)) != len(parts[0]) else []


def two_models(field: Field, rounds: int) -> None:
    """Two models on one store at once: one is refused, and the store is wholly that of the other."""
    known = [digests(run(None)), in_child(partial(_other_model, None)).value]
    works: list[Callable[[Path], Any]] = [_refused, _other_model]
    for k in range(rounds):
        path = field.place() / "store"
        writers = [Child(partial(_after, 0.02 * float(field.rng.random()), works[i], path)) for i in (0, 1)]
        ends = [writer.end() for writer in writers]
        won = [i for i, end in enumerate(ends) if end.is_done and end.value is not None]
        field.verdict.expect(len(won) == 1, f"round {k}: {ends}")
        field.verdict.check(f"round {k}", unsound(named(path)))
        field.verdict.expect(len(won) != 1 or read(path) == known[won[0]], f"round {k}: not the winner's")
        field.verdict.counts["first" if won == [0] else "second"] += 1


def _refused(path: Path | None) -> dict[str, str] | None:
    try:
        return digests(run(path))
    except ResumeMismatch:
        return None


def _after(seconds: float, work: Callable[[Path], Any], path: Path) -> Any:
    time.sleep(seconds)
    return work(path)


def _other_model(path: Path | None) -> dict[str, str] | None:
    given()[0].load_state_dict(make_model(seed=1).state_dict())
    return _refused(path)


def writers(field: Field, rounds: int) -> None:
    """Two workers do one run at once; every other time one is stopped at a random moment, and goes on when it is done.

    Both end well, and the answer is that of one.
    """
    slow = field.duration(field.work_on_slow_disk)
    for k in range(rounds):
        path = field.place() / "run"
        first = Child(partial(field.work_on_slow_disk, path))
        first.ready()
        if k % 2:
            time.sleep(slow * field.rng.random())
            first.kill(signal.SIGSTOP)
        ends = [in_child(partial(field.work, path))]
        first.kill(signal.SIGCONT)
        ends.append(first.end())
        field.verdict.check(f"round {k}", [f"a writer ended with {end}" for end in ends if not end.is_done])
        field.verdict.check(f"round {k}", field.good.missing(path))
        field.verdict.counts["rounds"] += 1


def _run_in_some_state(field: Field, seconds: float | None) -> Path:
    """A run that was killed after so many seconds, or a complete one for None."""
    path = field.place() / "run"
    if seconds is None:
        in_child(partial(field.work, path))
    else:
        killed_after(partial(field.work, path), seconds)
    return path


def questions(field: Field, rounds: int) -> None:
    """Another question is refused in any state of the folder, and changes nothing in it."""
    seconds = field.duration(field.work)
    for k in range(rounds):
        path = _run_in_some_state(field, seconds * field.rng.random() if k else None)
        before = committed(named(path))
        end = in_child(partial(_question, field.kind.another, path))
        asked = before.keys() & {"plan.json", "sweep.json"} or "checkpoint" in " ".join(before)
        field.verdict.expect(end.value == "refused" or (k > 0 and end.is_done), f"round {k}: {end}")
        if end.value == "refused":
            field.verdict.counts["refused"] += 1
            field.verdict.check(f"round {k}", lost(before, path))
            field.resume(path, f"round {k}")
        else:
            field.verdict.expect(not asked or field.kind is KINDS["labels"], f"round {k}: another question was taken")


def _question(another: Callable[[Path], Any], path: Path) -> str:
    try:
        another(path)
    except ResumeMismatch:
        return "refused"
    return "taken"


def replacements(field: Field, rounds: int) -> None:
    """Another question takes the place of the first, in any state of the folder, and is answered as in an empty one."""
    wanted = in_child(partial(field.kind.another, field.place() / "run")).value
    seconds = field.duration(field.work)
    for k in range(rounds):
        path = _run_in_some_state(field, seconds * field.rng.random() if k else None)
        end = in_child(partial(field.kind.another, path))
        field.verdict.expect(end.is_done and end.value == wanted != field.good.digests, f"round {k}: {end}")
        field.resume(path, f"round {k}")


# 6 -----------------------------------------------------------------------------------------------------------------


def readers(field: Field, rounds: int) -> None:
    """Looks at a store while it is written."""
    for k in range(rounds):
        place = field.place()
        writer = Child(partial(_slowly, place, float(field.rng.choice([0.0, 0.0005, 0.002]))))
        seen = _look(field, place, f"round {k}")
        end = writer.end()
        field.verdict.expect(end.is_done, f"round {k}: the writer ended with {end}")
        field.verdict.counts["steps"] += len(seen)
        field.verdict.counts["rounds"] += 1


def _slowly(place: Path, delay: float) -> None:
    with Shim(place, delay=delay).between():
        run(place / "store")


def _look(field: Field, place: Path, what: str) -> set[int]:
    rows, seen, complete = 0, set(), False
    stop = time.monotonic() + 30
    while not complete and time.monotonic() < stop:
        complete = _opens(field, place / "store", what)
        now = _rows(place / "store", what, field.verdict)
        field.verdict.expect(now >= rows, f"{what}: {now} rows after {rows}")
        field.verdict.expect(now in field.good.steps, f"{what}: {now} rows is no whole prefix")
        states = [info.state for info in list_stores(place)]
        field.verdict.check(what, [f"listed as {state}" for state in states if not _is_listed_well(state)])
        rows = now
        seen.add(now)
        field.verdict.counts["looks"] += 1
    field.verdict.expect(complete, f"{what}: never complete")
    return seen


def _is_listed_well(state: str) -> bool:
    return state == "complete" or state.endswith(" rows")


def _rows(path: Path, what: str, verdict: Verdict) -> int:
    try:
        return Store.progress(path)[0]
    except DataError as error:
        verdict.expect("no store" in str(error), f"{what}: {error}")
    except StorageError as error:
        verdict.broken.append(f"{what}: progress says {error}")
    return 0


def _opens(field: Field, path: Path, what: str) -> bool:
    try:
        store = load_activations(path)
    except DataError as error:
        field.verdict.expect("no store" in str(error), f"{what}: {error}")
    except StorageError as error:
        field.verdict.expect("unfinished" in str(error), f"{what}: {error}")
    else:
        field.verdict.expect(digests(store) == field.good.digests, f"{what}: complete and not equal")
        return True
    return False


# 7 -----------------------------------------------------------------------------------------------------------------


def interrupts(field: Field, rounds: int) -> None:
    """SIGINT at random moments of the command, once or twice before it is given again."""
    seconds = field.duration(run_cli)
    while field.verdict.counts["interrupted"] + field.verdict.counts["finished"] < rounds:
        path = field.place() / "store"
        before: dict[str, bytes] = {}
        for _ in range(int(field.rng.integers(1, 3))):
            end = killed_after(partial(_interruptible, path), seconds * field.rng.random(), signal.SIGINT)
            field.verdict.check("interrupted", _orderly(field, end) + lost(before, path) + field.good.flaws(path))
            before = committed(named(path))
        field.resume(path, "interrupted", run_cli)


def _interruptible(path: Path) -> int | str:
    """The exit code; "outside" when the signal came before the command had begun or after it had ended."""
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = run_cli(path)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return code
    except KeyboardInterrupt as stop:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        frames = []
        at = stop.__traceback__
        while at:
            frames.append(at.tb_frame.f_code.co_name)
            at = at.tb_next
        if "_invoke" in frames:
            raise
        return "outside"


def _orderly(field: Field, end: End) -> list[str]:
    outcome = {130: "interrupted", 0: "finished", "outside": "outside"}.get(end.value)
    if end.code == 1 or end.code == -signal.SIGINT:  # before or after the work of the child
        outcome = "outside"
    field.verdict.counts[outcome or "other"] += 1
    tidy = "Traceback" not in end.stderr and "Exception ignored" not in end.stderr
    told = outcome != "interrupted" or end.stderr.count("probekit: interrupted") == 1
    return [] if outcome and (tidy or outcome == "outside") and told else [f"ended with {end}"]


def interrupted_processes(field: Field, rounds: int) -> None:
    """SIGINT to a process of its own, after it has said what it will do; forked children run the rest."""
    place = field.place()
    args = [*BUILTIN[:-1], "--limit", "300", "--batch-tokens", "128"]
    whole = in_child(partial(run_as_typed, [*args, "--out", str(place / "whole")]))
    field.verdict.expect(whole.value == 0, str(whole))
    for k in _until(rounds, field.verdict, "interrupted"):
        path = place / f"store{k}"
        process = subprocess.Popen([*_PROBEKIT, *args, "--out", str(path)], stdout=-1, stderr=-1, text=True)
        assert process.stderr
        said = process.stderr.readline()
        time.sleep(0.15 * field.rng.random())
        process.send_signal(signal.SIGINT)
        out, rest = process.communicate(timeout=120)
        done = str(path) in out  # a Python that is on its way out is ended by the signal, and has done its work
        outcome = {130: "interrupted", 0: "finished", -signal.SIGINT: "finished" if done else "killed"}.get(
            process.returncode, "failed"
        )
        tidy = outcome in ("interrupted", "finished") and "Traceback" not in rest
        field.verdict.expect(tidy, f"{process.returncode}: {said}{rest}")
        field.verdict.counts[outcome] += 1
        again = in_child(partial(run_as_typed, [*args, "--out", str(path)]))
        field.verdict.expect(again.value == 0 and read(path) == read(place / "whole"), f"resume: {again}")


_PROBEKIT = [sys.executable, "-m", "probekit"]


# 8 -----------------------------------------------------------------------------------------------------------------


def power(field: Field, rounds: int) -> None:
    """The power goes after each call of a run; every `rounds`-th of them."""
    place = field.place()
    log = field.folder / "log"
    assert in_child(partial(_recorded, place, log)).is_done
    happened = events(log)
    _check_the_model(field, place, happened)
    disk = PowerLoss(place)
    for k, event in enumerate(happened):
        disk.apply(event)
        if k % rounds == 0 or k == len(happened) - 1:
            for how in ("undone", "kept", "mixed"):
                _lose(
                    field, disk, how, f"{how} after call {k} ({event[0]} {Path(event[1]).name})", k == len(happened) - 1
                )
    field.verdict.counts["calls"] = len(happened)


def _recorded(place: Path, log: Path, at: int | None = None) -> None:
    with Shim(place, at, "kill", log=log).between():
        run(place / "store")


def _check_the_model(field: Field, place: Path, happened: list[Any]) -> None:
    """Without a loss the model must hold what the disk holds; else calls were made that the shim did not see."""
    disk = PowerLoss(place)
    for event in happened:
        disk.apply(event)
    copy = field.folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    disk.leave(copy, "nothing lost", field.rng)
    field.verdict.expect(named(copy) == named(place), "the shim does not see every call")


def _lose(field: Field, disk: PowerLoss, how: str, what: str, was_complete: bool) -> None:
    left = field.folder / "left"
    shutil.rmtree(left, ignore_errors=True)
    disk.leave(left, how, field.rng)
    field.verdict.counts["losses"] += 1
    if was_complete:
        field.verdict.check(what, field.good.missing(left / "store"))
    else:
        field.verdict.check(what, field.good.flaws(left / "store"))
        before = committed(named(left / "store"))
        field.resume(left / "store", what)
        field.verdict.check(what, lost(before, left / "store"))


def power_after_kill(field: Field, rounds: int) -> None:
    """Killed before an fsync of a folder or another call, resumed, and then the power goes; every `rounds`-th."""
    place, log = field.place(), field.folder / "log"
    assert in_child(partial(_recorded, place, log)).is_done
    calls = {number: operation == "fsync" and Path(path).is_dir() for operation, path, _, _, number in events(log)}
    of_folders = [number for number, is_folder in calls.items() if is_folder]
    for at in sorted({*of_folders[:: 1 if rounds == 1 else 2], *list(calls)[::rounds]}):
        place = field.place()
        log.unlink(missing_ok=True)
        field.verdict.expect(in_child(partial(_recorded, place, log, at)).code == -signal.SIGKILL, f"no call {at}")
        field.verdict.expect(in_child(partial(_recorded, place, log)).is_done, f"no resume after a kill at call {at}")
        happened = events(log)
        _check_the_model(field, place, happened)
        disk = PowerLoss(place)
        sooner = int(field.rng.integers(min(at, len(happened) - 1), len(happened)))  # a late kill leaves little to do
        for k, event in enumerate(happened):
            disk.apply(event)
            if k == sooner:
                _lose(field, disk, "undone", f"undone {k - at} calls after a kill at call {at}", was_complete=False)
        for how in ("undone", "kept", "mixed"):
            _lose(field, disk, how, f"{how} after a kill at call {at} and a resume", was_complete=True)


# 9 -----------------------------------------------------------------------------------------------------------------


def inputs(field: Field, rounds: int) -> None:
    """Hostile files and options of every kind (`hostile.py`), one in each child."""
    bench = Bench(field.folder, field.rng)
    for k in range(rounds):
        what, flaws, end = one_case(bench, k)
        field.verdict.check(what, flaws)
        field.verdict.counts[f"exit {end.value}"] += 1


# -------------------------------------------------------------------------------------------------------------------

CAMPAIGNS: dict[str, Callable[[Field, int], None]] = {
    f.__name__: f
    for f in (
        *(kills, points, flips, truncations, deletions, writers, questions, replacements),
        *(full_disk, two_writers, two_models, readers, interrupts),
    )
} | {
    "interrupted_processes": interrupted_processes,
    "power": power,
    "power_after_kill": power_after_kill,
    "inputs": inputs,
}


def judge(campaign: str, rounds: int, folder: Path, seed: int = 0, kind: str = "store") -> dict[str, Any]:
    field = Field(folder, seed, kind)
    CAMPAIGNS[campaign](field, rounds)
    return field.verdict.as_dict()


def in_folder(campaign: str, rounds: int, folder: str | None, seed: int, kind: str = "store") -> dict[str, Any]:
    """In a child, so that campaigns do not disturb each other; its end when it did not get to a verdict."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        child = Child(partial(judge, campaign, rounds, Path(name) / "field", seed, kind))
        end = child.end(patience=900)
    return end.value if end.is_done else {"broken": [f"no verdict: {end.code} {end.stderr}"]}


def _no_shared_locks() -> None:
    """A bar has a thread, and a lock between processes that a child killed at the wrong moment would keep forever."""
    tqdm.monitor_interval = 0
    tqdm.set_lock(threading.RLock())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("campaign", nargs="?", choices=CAMPAIGNS)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS, default="store")
    parser.add_argument("--folder", help="where stores are made; memory is faster than a disk")
    parser.add_argument("--serve", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    _no_shared_locks()
    for name in WARM:
        importlib.import_module(name)
    run(None)
    with contextlib.redirect_stderr(io.StringIO()):
        run_command(["ls", "no such folder"])  # so that no child imports what every command needs
    if not args.serve:
        print(json.dumps(in_folder(args.campaign, args.rounds, args.folder, args.seed, args.kind), indent=1))
        return
    for line in sys.stdin:
        print(json.dumps(in_folder(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
