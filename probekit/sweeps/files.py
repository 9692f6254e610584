"""A sweep on disk: sweep.json (what was asked), runs/ (a file for each run that ended), results/, stores/, results.csv.

A run's file is written, complete or not at all, when its results are on disk. So whatever is killed, and whenever, the
same call does the runs that have no file. results.csv is made of these files, and written anew as it goes.
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, TypedDict

from probekit.errors import DataError, ResumeMismatch, StorageError
from probekit.files.durable import write_as
from probekit.files.plain_files import MAX_RESULTS, read_bytes
from probekit.files.records import INFINITY, Must, describing, ensure, parse_record, read_as, read_json_file
from probekit.files.run import folder_name
from probekit.sweeps.data import SweepData, SweepRow, SweepRun
from probekit.text import listed, printable, spreadsheet_cell

FORMAT = "probekit.sweeps/1"
FILE, TABLE, RUNS = "sweep.json", "results.csv", "runs"
OWN = {FILE, TABLE, RUNS, "results", "stores", "sweep.png", "sweep.svg", "sweep.pdf"}
RUN_COLUMNS = ("task", "model")
LAST_COLUMNS = ("seconds", "results", "error")
COLUMNS = (*RUN_COLUMNS, *(field.name for field in fields(SweepRow)), *LAST_COLUMNS)


class _SweepFile(TypedDict):
    settings: dict[str, Any]
    tasks: Annotated[dict[str, str], Must("one task or more", bool)]
    models: Annotated[list[str], Must("one name or more", bool)]


def run_file_name(task: str, model: str) -> str:
    """The name of the files of a run."""
    return folder_name([task, model], [task, model])


def begin(folder: Path, settings: Mapping[str, Any], tasks: Mapping[str, str], models: Iterable[str]) -> dict[str, Any]:
    """Make or reopen the folder of a sweep: what it records, with tasks and models that are new to it.

    Args:
        folder: of the sweep.
        settings: the options that decide the numbers.
        tasks: name -> digest of its data, or "".
        models: names.

    Raises:
        StorageError: something else is there, or the disk refused.
        ResumeMismatch: a sweep with other settings, or data that changed since a run of it ended well.
        DataError: a file of a run that cannot be read.
    """
    if folder.exists() and not folder.is_dir():
        raise StorageError(f"{str(folder)!a} is a file; a sweep needs a folder, name another (--out)")
    there = [path.name for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []
    if foreign := sorted(set(there) - OWN):
        raise StorageError(
            f"{str(folder)!a} holds {foreign[0]!a}, which is not of a sweep; name another folder (--out)"
        )
    body = {"settings": dict(settings), "tasks": dict(tasks), "models": list(models)}
    if FILE in there:
        body = _joined(folder, read_body(folder), body)
    elif there:
        raise StorageError(f"{str(folder)!a} has parts of a sweep but no {FILE}; name another folder (--out)")
    write_as(folder / FILE, json.dumps({"format": FORMAT, **body}, indent=1, allow_nan=False).encode())
    return body


def _joined(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """What a sweep records once tasks and models are added."""
    keys = sorted({*before["settings"], *now["settings"]})
    if different := [key for key in keys if before["settings"].get(key) != now["settings"].get(key)]:
        raise ResumeMismatch(
            f"{str(folder)!a} holds a sweep with other settings (different: {listed(different)}); name another folder "
            "(--out), or remove that one"
        )
    known = before["tasks"]
    changed = [name for name, digest in now["tasks"].items() if known.get(name, digest) != digest]
    if changed:  # the data of a task whose runs all failed may be corrected
        done = {run.task for run in read_runs(folder, before).values() if not run.error}
        changed = [name for name in changed if name in done]
    if changed:
        raise ResumeMismatch(
            f"the data of {listed(changed, most=3)} changed since the sweep in {str(folder)!a} began; name another "
            "folder (--out), or remove that one"
        )
    models = list(dict.fromkeys([*before["models"], *now["models"]]))
    return {"settings": before["settings"], "tasks": {**known, **now["tasks"]}, "models": models}


def read_body(folder: Path) -> dict[str, Any]:
    """What sweep.json records.

    Raises:
        DataError: no sweep there.
    """
    path = folder / FILE
    body = read_json_file(path, FORMAT, "sweep", "sweep", "name another folder (--out)")
    with describing(path, "name another folder (--out)"):
        found = read_as(_SweepFile, body)
    return {name: found[name] for name in ("settings", "tasks", "models")}


def write_run(folder: Path, run: SweepRun) -> None:
    """Write the file of a run that ended; its results are on disk already.

    Raises:
        StorageError: the disk refused.
    """
    body = json.dumps(body_of_run(run), indent=1, allow_nan=False).encode()
    write_as(folder / RUNS / f"{run_file_name(run.task, run.model)}.json", body)


def body_of_run(run: SweepRun) -> dict[str, Any]:
    """A run as JSON has it, which `run_of_body` reads."""
    rows = [{**vars(row), "C": INFINITY if math.inf == row.C else row.C, "flags": list(row.flags)} for row in run.rows]
    return {**vars(run), "rows": rows, "warnings": list(run.warnings)}


def read_runs(folder: Path, body: Mapping[str, Any]) -> dict[tuple[str, str], SweepRun]:
    """The runs that ended, by task and model, in the order of models and tasks.

    Raises:
        DataError: a file of a run that cannot be read.
    """
    found = {}
    for model in body["models"]:
        for task in body["tasks"]:
            path = folder / RUNS / f"{run_file_name(task, model)}.json"
            if path.exists():
                found[task, model] = _read_run(path, task, model)
    return found


def run_of_body(body: Mapping[str, Any]) -> SweepRun:
    """The run of a parsed file of it.

    Raises:
        Unfit: it is not that of a run.
    """
    return read_as(SweepRun, body)


def _read_run(path: Path, task: str, model: str) -> SweepRun:
    advice = "remove it, and the run is done again"
    try:
        body = parse_record(read_bytes(path, MAX_RESULTS))
    except (OSError, ValueError) as error:
        raise DataError(f"could not read {str(path)!a}: {printable(error)}; {advice}") from None
    with describing(path, advice):
        run = run_of_body(body)
        ensure((run.task, run.model) == (task, model), f"the run of {task} with {model}", [run.task, run.model])
    return run


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
