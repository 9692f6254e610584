"""Activations on disk: immutable shards, one small record each, the manifest last.

    STORE/plan.json                    what decides the bits; a run with another plan is refused
          texts.json                   the inputs
          shards/<sha256>.safetensors  rows of every place, named by their content
          records/00000.json           which rows, which file, and where in it each tensor stands, with checksums
          manifest.json                labels, splits, ids, provenance; it is there when the store is complete

A shard stands on disk before its record, and every record before the manifest (`durable` has the order of each write).
Readers trust records only, read with read(2) and never map a file: one that is cut short under a map kills the process.
JSON files carry a checksum of themselves; the manifest names the checksums of all others.

Axes: N examples, D width of a place.
"""

import contextlib
import hashlib
import json
import os
import time
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.layout import Layout, Place, place_name
from probekit.activations.record import Record, check_shard, check_size, pack, read_tensor
from probekit.activations.sets import DTYPES, Activations
from probekit.durable import TEMPORARY, keep_names, make_folder, refused, seal, sweep, unseal, write_as, write_first
from probekit.errors import DataError, ResumeMismatch, StorageError
from probekit.tasks.base import Task

FORMAT = "probekit-activations"
FORMAT_VERSION = 1


class StoreWriter:
    """Makes a store, or goes on with one that was left unfinished.

    Args:
        path: the store; made when it is not there.
        identity: what decides the bits; must equal that of a store that is there.
        model_name: for people; the identity holds the fingerprint.
        task: the examples.

    Raises:
        ResumeMismatch: a store of another identity stands there; the message names every field that differs.
        StorageError: the disk refused, something else stands there, or what stands there is damaged.
    """

    def __init__(self, path: Path, identity: dict[str, Any], model_name: str, task: Task):
        self.path = path
        self.task = task
        _check_free(path)
        for folder in (path, path / "shards", path / "records"):
            make_folder(folder)
            sweep(folder)
        plan = {"format": FORMAT, "model": model_name, "task": task.name, "identity": identity}
        data, _ = seal(plan)
        write_first(path / "plan.json", data)
        standing, self._plan_seal = unseal(path / "plan.json")
        _check_same(path, standing, json.loads(data))
        if not (path / "texts.json").exists():
            write_first(path / "texts.json", seal({"inputs": task.inputs})[0])

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing left to do."""
        return (self.path / "manifest.json").exists()

    def mark_newest(self) -> None:
        """Date a complete store as if it were finished now; one that may not be written keeps its date."""
        now = time.time_ns()
        with contextlib.suppress(OSError):
            os.utime(self.path / "manifest.json", ns=(now, now))

    def has(self, number: int, rows: np.ndarray) -> bool:
        """Whether this shard stands on disk already.

        Raises:
            StorageError: it does, and is damaged or holds other rows.
        """
        path = _record_path(self.path, number)
        if not path.exists():
            return False
        record = Record.load(path, self._plan_seal)
        if not np.array_equal(record.rows, rows):
            raise StorageError(f"{str(path)!a} holds other rows than this run; extract into another folder")
        check_shard(self.path, record)
        return True

    def write(self, number: int, rows: np.ndarray, tensors: dict[Place, Tensor]) -> None:
        """Put one shard on disk: the file first, then its record, unless another writer was faster.

        Raises:
            StorageError: the disk refused; the shards before this one stay.
        """
        data, places = pack({place_name(place): x for place, x in tensors.items()})
        sha256 = hashlib.sha256(data).hexdigest()
        file = f"{sha256}.safetensors"
        write_as(self.path / "shards" / file, data)
        record = {"plan": self._plan_seal, "file": file, "sha256": sha256, "n_bytes": len(data)}
        record |= {"rows": rows.tolist(), "tensors": places}
        write_first(_record_path(self.path, number), seal(record)[0])

    def finish(self, meta: dict[str, Any]) -> None:
        """Write the manifest: from now on the store is complete.

        Raises:
            StorageError: the disk refused, or a record is damaged.
        """
        keep_names(self.path / "records")
        records = _records(self.path, self._plan_seal)
        _, texts_seal = unseal(self.path / "texts.json")
        body = {"format": FORMAT, **meta, "plan": self._plan_seal, "texts": texts_seal}
        body["examples"] = _examples(self.task)
        body["records"] = [record.seal for record in records]
        write_first(self.path / "manifest.json", seal(body)[0])


class Store(Activations):
    """A complete store on disk: place -> [N, D], read and checked when it is asked for.

    Args:
        path: what `extract(..., out=path)` wrote.

    Raises:
        DataError: no store there.
        StorageError: it is unfinished, or a file is missing or altered; the message names the file.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        _, plan_seal = _open_plan(self.path)
        if not (self.path / "manifest.json").exists():
            kept, total = Store.progress(self.path)
            state = f"{str(self.path)!a} is unfinished, {kept} of {total} rows are there"
            raise StorageError(f"{state}: run the same extract command again")
        self._manifest, _ = unseal(self.path / "manifest.json")
        texts, texts_seal = unseal(self.path / "texts.json")
        for number in range(len(self._manifest["records"])):
            if not _record_path(self.path, number).exists():
                raise StorageError(f"{str(_record_path(self.path, number))!a} is missing: the store is damaged")
        self._records = _records(self.path, plan_seal)
        seals = [plan_seal, texts_seal, *(record.seal for record in self._records)]
        if seals != [self._manifest[key] for key in ("plan", "texts")] + self._manifest["records"]:
            raise StorageError(f"{str(self.path)!a} is damaged: its files do not belong together")
        meta = {key: value for key, value in self._manifest.items() if key not in ("examples", "records", "seal")}
        places = [(point, layer) for point, layer in meta["places"]]
        task = _task(self._manifest, texts["inputs"])
        super().__init__(places, task, meta, Layout([str(meta["position"])], np.ones(len(task), dtype=np.int64), 0))
        self._check_records()

    def _check_records(self) -> None:
        rows = np.concatenate([record.rows for record in self._records])
        if not np.array_equal(np.sort(rows), np.arange(self.n_examples)):
            raise StorageError(f"{str(self.path)!a} is damaged: its records do not hold every row once")
        widths = {place_name(p): width for p, width in zip(self, self.meta["widths"], strict=True)}
        for record in self._records:
            held = {name: (at.dtype, at.shape[1]) for name, at in record.tensors.items()}
            if held != {name: (self.meta["dtype"], width) for name, width in widths.items()}:
                raise StorageError(f"shard {record.file} of {str(self.path)!a} does not hold the manifest's places")
            check_size(self.path, record)

    def _rows(self, place: Place) -> Tensor:
        width = self.meta["widths"][self._places.index(place)]
        values = torch.empty(self.n_examples, width, dtype=DTYPES[self.meta["dtype"]])
        for record in self._records:
            values[torch.from_numpy(record.rows)] = read_tensor(self.path, record, place_name(place))
        return values

    def _n_bytes(self) -> int:
        return sum(record.n_bytes for record in self._records)

    @cached_property
    def n_bytes(self) -> int:
        """Bytes of the shards on disk."""
        return self._n_bytes()

    def verify(self) -> None:
        """Read every byte of every shard and compare checksums.

        Raises:
            StorageError: naming each shard that is missing or altered.
        """
        damaged = []
        for record in self._records:
            try:
                check_shard(self.path, record)
            except StorageError as error:
                damaged.append(str(error))
        if damaged:
            raise StorageError("; ".join(damaged))

    @staticmethod
    def progress(path: str | Path) -> tuple[int, int]:
        """(rows kept, rows in all) of a store, finished or not.

        Raises:
            DataError: no store there.
            StorageError: the plan or a record is damaged.
        """
        path = Path(path)
        plan, plan_seal = _open_plan(path)
        return sum(len(record.rows) for record in _records(path, plan_seal)), int(plan["identity"]["rows"])


def load_activations(path: str | Path) -> Store:
    """Open a complete store; errors as in `Store`."""
    return Store(path)


def _record_path(path: Path, number: int) -> Path:
    return path / "records" / f"{number:05d}.json"


def _records(path: Path, plan_seal: str) -> list[Record]:
    found = sorted(p for p in (path / "records").glob("*.json") if not p.name.startswith(TEMPORARY))
    return [Record.load(p, plan_seal) for p in sorted(found, key=lambda p: (len(p.name), p.name))]


def _check_free(path: Path) -> None:
    if path.exists() and not (path / "plan.json").exists():
        try:
            names = {p.name for p in path.iterdir() if not p.name.startswith(TEMPORARY)}
        except OSError as error:
            raise refused(path, error) from error
        if names - {"shards", "records"} or any((path / "records").glob("*.json")):
            raise StorageError(f"{str(path)!a} holds something that is no store; name an empty or a new folder")


def _open_plan(path: Path) -> tuple[dict[str, Any], str]:
    if not (path / "plan.json").exists():
        if (path / "manifest.json").exists():
            raise StorageError(f"{str(path / 'plan.json')!a} is missing: the store is damaged")
        raise DataError(f"no store at {str(path)!a}; make one with probekit extract")
    plan, checksum = unseal(path / "plan.json")
    version = plan["identity"].get("version") if plan.get("format") == FORMAT else None
    if version != FORMAT_VERSION:
        raise StorageError(f"{str(path)!a} has format {version!a}, this probekit reads {FORMAT_VERSION}; extract again")
    return plan, checksum


def _check_same(path: Path, standing: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse to go on with a store of another identity, naming every field that differs."""
    there, here = _flat(standing.get("identity", {})), _flat(wanted["identity"])
    differing = [key for key in {**there, **here} if there.get(key) != here.get(key)]
    if not differing:
        return
    there |= {key: standing.get(key) for key in ("model", "task")}
    here |= {key: wanted[key] for key in ("model", "task")}
    named = [key for key in ("model", "task") if there[key] != here[key]] + differing
    fields = "; ".join(f"{key}: {_brief(there.get(key))} there, {_brief(here.get(key))} here" for key in named)
    raise ResumeMismatch(f"{str(path)!a} was made with other settings ({fields}); name another folder, or remove it")


def _flat(identity: dict[str, Any]) -> dict[str, Any]:
    flat = {key: value for key, value in identity.items() if not isinstance(value, dict)}
    for key, value in identity.items():
        flat |= {f"{key}.{inner}": v for inner, v in value.items()} if isinstance(value, dict) else {}
    return flat


def _brief(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:24]}...{text[-24:]}"


def _examples(task: Task) -> dict[str, Any]:
    return {
        "ids": task.ids,
        "splits": task.splits.tolist(),
        "labels": {name: labels.tolist() for name, labels in task.labels.items()},
        "label_names": task.label_names,
        "groups": None if task.groups is None else task.groups.tolist(),
        "position": task.position if isinstance(task.position, str) else task.position.tolist(),
        "text_sha256": [text_hash(given) for given in task.inputs],
    }


def text_hash(given: str | list[int]) -> str:
    """16 hex digits of the sha256 of a text (UTF-8), or of the JSON of its ids."""
    text = given if isinstance(given, str) else json.dumps([int(token) for token in given])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _task(manifest: dict[str, Any], inputs: Any) -> Task:
    examples = manifest["examples"]
    position = examples["position"]
    return Task(
        name=manifest["task"],
        inputs=inputs,
        labels={name: np.array(labels, dtype=np.int64) for name, labels in examples["labels"].items()},
        label_names=examples["label_names"],
        splits=np.array(examples["splits"]),
        target=manifest["target"],
        position=position if isinstance(position, str) else np.array(position, dtype=np.int64),
        ids=examples["ids"],
        groups=None if examples["groups"] is None else np.array(examples["groups"]),
        info=manifest["task_info"],
    )
