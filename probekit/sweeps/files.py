"""A sweep on disk: sweep.json (what was asked), wider/ (what was added), runs/ (a record of each run), results/, ...

A run's record is written when its results are on disk. So whatever is killed, and whenever, the same call does the runs
that have none. A record counts for the settings of the sweep and for the data of its task (`Run`); tasks and models may
be added at any time: each addition is a file of its own with all that was asked until then, and of two at once the
second is made of the first. results.csv is made of the records, and written anew as it goes.
"""

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from probekit.errors import ResumeMismatch, StorageError
from probekit.files.durable import is_there, make_folder, make_folders, seal, unseal, write_as, write_first
from probekit.files.plain_files import MAX_RESULTS, read_bytes
from probekit.files.records import INFINITY, Must, describing, ensure, parse_record, read_as, read_json_file
from probekit.files.run import Run, differing, folder_name, question_digest, refuse_others
from probekit.sweeps.data import SweepData, SweepRow, SweepRun
from probekit.text import listed, spreadsheet_cell

FORMAT = "probekit.sweeps/2"
UNSEALED = "probekit.sweeps/1"  # the same without checksums; they are added when such a sweep is resumed
FILE, TABLE, RUNS, WIDER = "sweep.json", "results.csv", "runs", "wider"
OWN = {FILE, TABLE, RUNS, WIDER, "results", "stores", "sweep.png", "sweep.svg", "sweep.pdf"}
RUN_COLUMNS = ("task", "model")
LAST_COLUMNS = ("seconds", "results", "error")
COLUMNS = (*RUN_COLUMNS, *(field.name for field in fields(SweepRow)), *LAST_COLUMNS)
ANOTHER = "name another folder (--out), or remove that one"
AGAIN = "remove it, and the run is done again"


class _SweepFile(TypedDict):
    settings: dict[str, Any]
    tasks: Annotated[dict[str, str], Must("one task or more", bool)]
    models: Annotated[list[str], Must("one name or more", bool)]
    asked: NotRequired[list[dict[str, Any]]]


_NAMES = {"format", *_SweepFile.__annotations__}


class _Record(TypedDict):
    """What a record says beside its run: digests of the settings, and of the data of its task."""

    settings: str
    data: str


def run_file_name(task: str, model: str) -> str:
    """The name of the files of a run."""
    return folder_name([task, model], [task, model])


def begin(
    folder: Path,
    settings: Mapping[str, Any],
    tasks: Mapping[str, str],
    models: Iterable[str],
    asked: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Make or reopen the folder of a sweep: what it records, with tasks and models that are new to it.

    Args:
        folder: of the sweep.
        settings: the options that decide the numbers.
        tasks: name -> digest of its data, or "".
        models: names.
        asked: the question of the command; None of a call in Python.

    Raises:
        StorageError: something else is there, a damaged file, or the disk refused.
        ResumeMismatch: a sweep with other settings, or data that changed since a run of it ended well.
    """
    if folder.exists() and not folder.is_dir():
        raise StorageError(f"{str(folder)!a} is a file; a sweep needs a folder, name another (--out)")
    there = [path.name for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []
    if foreign := sorted(set(there) - OWN):
        raise StorageError(
            f"{str(folder)!a} holds {foreign[0]!a}, which is not of a sweep; name another folder (--out)"
        )
    if there and not is_there(folder / FILE):
        raise StorageError(f"{str(folder)!a} has parts of a sweep but no {FILE}; name another folder (--out)")
    ours: dict[str, Any] = {"settings": dict(settings), "tasks": dict(tasks), "models": list(models)}
    ours["asked"] = [] if asked is None else [dict(asked)]
    make_folder(folder)
    if not is_there(folder / FILE):
        write_first(folder / FILE, _sealed(ours))
    while not (joined := _joined(folder, ours)):
        pass  # another call added to the sweep meanwhile
    return joined


def _joined(folder: Path, ours: dict[str, Any]) -> dict[str, Any] | None:
    """What the sweep records with what is new in `ours`; None if another call was first to add to it."""
    added, stored = len(_additions(folder)), read_body(folder)
    if different := differing(stored["settings"], ours["settings"]):
        what = f"{str(folder)!a} holds a sweep with other settings"
        raise refuse_others(what, different, stored["settings"], ours["settings"], {}, ANOTHER)
    known = _records(folder, stored)
    # the data of a task whose runs all failed may be corrected
    ended_well = [(run.task, data) for run, data in known.values() if not run.error]
    read = {task: stored["tasks"][task] if data is None else data for task, data in ended_well}
    if changed := [name for name, digest in ours["tasks"].items() if read.get(name, digest) != digest]:
        raise ResumeMismatch(
            f"the data of {listed(changed, most=3)} changed since the sweep in {str(folder)!a} began; {ANOTHER}"
        )
    make_folders(folder, RUNS)
    for run, data in known.values():
        if data is None:
            _write(folder, stored, run, replace=True)
    joined = {
        "settings": stored["settings"],
        "tasks": {**stored["tasks"], **ours["tasks"]},
        "models": list(dict.fromkeys([*stored["models"], *ours["models"]])),
        "asked": [*stored["asked"], *(one for one in ours["asked"] if one not in stored["asked"])],
    }
    if not added and not _is_sealed(folder / FILE, _NAMES, ANOTHER):
        write_as(folder / FILE, _sealed(stored))
    if joined == stored:
        return joined
    make_folders(folder, WIDER)
    return joined if write_first(folder / WIDER / f"{added + 1:04}.json", _sealed(joined)) else None


def _additions(folder: Path) -> list[Path]:
    """The files of what was added, 0001.json first. The loss of the last one is not noticed: its tasks are new again.

    Raises:
        StorageError: one before the last is missing.
    """
    found = sorted(int(path.stem) for path in (folder / WIDER).glob("*.json") if path.stem.isdecimal())
    wanted = [folder / WIDER / f"{number + 1:04}.json" for number in range(len(found))]
    if found != [number + 1 for number in range(len(found))]:
        lost = next(path for path in wanted if not path.is_file())
        raise StorageError(f"{str(lost)!a} is missing; copy the sweep again, or {ANOTHER}")
    return wanted


def _sealed(body: Mapping[str, Any]) -> bytes:
    return seal({"format": FORMAT, **body})[0]


def read_body(folder: Path) -> dict[str, Any]:
    """What sweep.json records, with what was added to it.

    Raises:
        DataError: no sweep there.
        StorageError: it is damaged.
    """
    advice = "name another folder (--out)"
    first = _read(folder / FILE, FORMAT if _is_sealed(folder / FILE, _NAMES, advice) else UNSEALED, advice)
    added = _additions(folder)
    if not added:
        return first
    unseal(added[-1], MAX_RESULTS, advice)  # all of them have a checksum
    return _read(added[-1], FORMAT, advice)


def _read(path: Path, form: str, advice: str) -> dict[str, Any]:
    """What was asked until this file was written."""
    body = read_json_file(path, form, "sweep", "sweep", advice)
    with describing(path, advice):
        found = read_as(_SweepFile, body)
    return {"asked": [], **{name: found[name] for name in _SweepFile.__annotations__ if name in found}}


def _is_sealed(path: Path, names: set[str], advice: str) -> bool:
    """Whether a file has a checksum, which is right; False for one of `UNSEALED`, which has these names alone.

    Raises:
        StorageError: neither.
    """
    try:
        unseal(path, MAX_RESULTS, advice)
    except StorageError:
        try:
            body = parse_record(read_bytes(path, MAX_RESULTS))
        except FileNotFoundError:
            return False
        except (OSError, ValueError):
            body = None
        if not isinstance(body, dict) or not body.keys() <= names:
            raise
        return False
    return True


def write_run(folder: Path, body: Mapping[str, Any], run: SweepRun) -> None:
    """Write the record of a run that ended; its results are on disk already. A run that ended well keeps its record.

    Args:
        folder: of the sweep.
        body: what it records.
        run: of a task and a model of it.

    Raises:
        StorageError: the disk refused.
    """
    known = _read_run(folder, body, run.task, run.model)
    _write(folder, body, run, replace=known is not None and bool(known[0].error))


def _write(folder: Path, body: Mapping[str, Any], run: SweepRun, replace: bool) -> None:
    content = {"data": body["tasks"][run.task], **body_of_run(run)}
    _run_of(folder, body).write(run_file_name(run.task, run.model), content, replace)


def _run_of(folder: Path, body: Mapping[str, Any]) -> Run:
    """The records of a sweep, which its settings decide."""
    other = "is of a sweep with other settings, or of another run"
    return Run(folder / RUNS, question_digest(body["settings"]), "settings", other, AGAIN, MAX_RESULTS)


def body_of_run(run: SweepRun) -> dict[str, Any]:
    """A run as JSON has it, which `run_of_body` reads."""
    rows = [{**vars(row), "C": INFINITY if math.inf == row.C else row.C, "flags": list(row.flags)} for row in run.rows]
    return {**vars(run), "rows": rows, "warnings": list(run.warnings)}


def read_runs(folder: Path, body: Mapping[str, Any]) -> dict[tuple[str, str], SweepRun]:
    """The runs that ended, by task and model, in the order of models and tasks.

    Raises:
        StorageError: a damaged record of a run.
    """
    return {key: run for key, (run, _) in _records(folder, body).items()}


def run_of_body(body: Mapping[str, Any]) -> SweepRun:
    """The run of a parsed record of it.

    Raises:
        Unfit: it is not that of a run.
    """
    return read_as(SweepRun, body)


def _records(folder: Path, body: Mapping[str, Any]) -> dict[tuple[str, str], tuple[SweepRun, str | None]]:
    """The runs that ended, each with the digest of its task's data; None in a record without a checksum."""
    every = [(task, model) for model in body["models"] for task in body["tasks"]]
    found = {key: _read_run(folder, body, *key) for key in every}
    return {key: one for key, one in found.items() if one is not None}


def _read_run(folder: Path, body: Mapping[str, Any], task: str, model: str) -> tuple[SweepRun, str | None] | None:
    records, piece = _run_of(folder, body), run_file_name(task, model)
    if not records.has(piece):
        return None
    path, data = folder / RUNS / f"{piece}.json", None
    if _is_sealed(path, {field.name for field in fields(SweepRun)}, AGAIN):
        record = records.read(piece, _Record)
        data = record["data"]
        found = {name: value for name, value in record.items() if name not in _Record.__annotations__}
    else:
        found = parse_record(read_bytes(path, MAX_RESULTS))
    with describing(path, AGAIN):
        run = run_of_body(found)
        ensure((run.task, run.model) == (task, model), f"the run of {task} with {model}", [run.task, run.model])
    return run, data


def write_table(folder: Path, data: SweepData) -> None:
    """Write results.csv: a row for each curve, and one for each run that failed.

    Cells that a spreadsheet would take for a formula begin with an apostrophe (`spreadsheet_cell`).

    Raises:
        StorageError: the disk refused.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in table_rows(data):
        writer.writerow([_cell(row[name]) for name in COLUMNS])
    write_as(folder / TABLE, out.getvalue().encode("utf-8", "backslashreplace"))


def table_rows(data: SweepData) -> list[dict[str, Any]]:
    """A dict with `COLUMNS` for each curve, and for each run that failed."""
    rows = []
    for run in data.runs:
        own = {name: getattr(run, name) for name in (*RUN_COLUMNS, *LAST_COLUMNS)}
        rows += [{**own, **asdict(row), "flags": "; ".join(row.flags)} for row in run.rows]
        rows += [] if run.rows else [{**dict.fromkeys(COLUMNS), **own}]
    return rows


def _cell(value: Any) -> Any:
    return "" if value is None else spreadsheet_cell(value) if isinstance(value, str) else value
