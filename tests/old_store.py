"""A store as format 2 had it, which has its examples in JSON: made of one of today's, as its writer did it."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from probekit.activations import load_statistics
from probekit.activations.layout import Layout
from probekit.activations.store.examples import read_examples
from probekit.activations.store.format import read_plan
from probekit.files.durable import seal, unseal
from probekit.tasks import Task


def as_format_2(path: Path, piece_rows: int | None = None) -> None:
    """Write the store at `path` again in format 2, its examples in pieces of so many rows, or in one file."""
    stored = read_examples(path, read_plan(path))
    task = stored.task
    head: dict[str, Any] = {
        "name": task.name,
        "target": task.target,
        "info": task.info,
        "label_names": task.label_names,
    }
    for piece in (path / "examples").iterdir():
        piece.unlink()
    if piece_rows is None:
        (path / "examples").rmdir()
        head |= rows_in_json(task, stored.layout, stored.positions, slice(0, len(task)))
    else:
        head["pieces"] = []
        for start in range(0, len(task), piece_rows):
            rows = slice(start, min(start + piece_rows, len(task)))
            data, checksum = seal(rows_in_json(task, stored.layout, stored.positions, rows))
            (path / "examples" / f"{checksum}.json").write_bytes(data)
            head["pieces"].append(checksum)
    seals = {"examples": rewritten(path / "examples.json", head), "records": []}
    body, _ = unseal(path / "plan.json")
    body["identity"]["version"] = 2
    seals["plan"] = rewritten(path / "plan.json", body)
    for record in sorted((path / "records").iterdir()):
        seals["records"].append(rewritten(record, unseal(record)[0] | {"plan": seals["plan"]}))
    if (path / "manifest.json").exists():
        rewritten(path / "manifest.json", unseal(path / "manifest.json")[0] | seals | {"version": 2})


def as_old_sums(path: Path, of_plan: str = "") -> None:
    """Write the complete sums at `path` again as they were: a file for each place, and a record that names them."""
    found, folder = load_statistics(path), path / "statistics"
    shutil.rmtree(folder)
    folder.mkdir()
    files = {}
    for place in found.places:
        tensors = {"shift": found[place, found.splits[0]].shift}
        for split in found.splits:
            one = found[place, split]
            tensors |= {f"{split}.count": torch.tensor(one.count), f"{split}.sum": one.shifted_sum}
            tensors[f"{split}.gram"] = one.shifted_gram
            for i, name in enumerate(found.label_names):
                tensors[f"{split}.class_counts.{i}"] = one.class_counts[name]
                tensors[f"{split}.class_sums.{i}"] = one.shifted_class_sums[name]
        data = safetensors.torch.save({name: x.contiguous() for name, x in tensors.items()})
        file = f"{hashlib.sha256(data).hexdigest()}.safetensors"
        (folder / file).write_bytes(data)
        files[str(place)] = {"file": file, "n_bytes": len(data)}
    texts = sum(found[found.places[0], split].count for split in found.splits)
    progress = {"plan": of_plan, "shards": 4, "texts": texts, "shards_done": 4, "texts_done": texts, "order": ""}
    body = {"format": "probekit-statistics", "version": 1, "progress": progress, "files": files, "meta": found.meta}
    widths = [len(found[place, found.splits[0]].shift) for place in found.places]
    body |= {"places": [list(place) for place in found.places], "widths": widths, "splits": found.splits}
    rewritten(folder / "00004.json", body | {"label_names": [list(one) for one in found.label_names.items()]})


def rewritten(file: Path, body: dict[str, Any]) -> str:
    """Write a sealed file; its checksum."""
    data, checksum = seal(body)
    file.write_bytes(data)
    return checksum


def rows_in_json(task: Task, layout: Layout, positions: Any, rows: slice) -> dict[str, Any]:
    offsets = layout.offsets()
    tokens = slice(int(offsets[rows.start]), int(offsets[rows.stop]))
    form = {
        "positions": layout.positions,
        "lengths": layout.lengths[rows],
        "n_bos": layout.n_bos,
        "n_end": layout.n_end,
    }
    body: dict[str, Any] = {
        "position": part(task.position, rows),
        "positions": [one.plain if one.each is None else part(one.each, rows) for one in positions],
    }
    body |= {"layout": form, "ids": task.ids[rows], "splits": task.splits[rows]}
    body["labels"] = {name: labels[rows] for name, labels in task.labels.items()}
    optional = {
        name: getattr(task, name) for name in ("groups", "targets", "chats", "regions", "token_ids", "generated")
    }
    body |= {
        name: values[rows] for name, values in (optional | {"picked": layout.picked}).items() if values is not None
    }
    for name in ("tokens", "token_index", "characters"):
        if (numbers := getattr(layout, name)) is not None:
            body[name] = numbers[tokens].ravel()
    known: dict[str, int] = {}
    input_of = [known.setdefault(str(one), len(known)) for one in task.inputs[rows]]
    first = dict(zip(reversed(input_of), reversed(task.inputs[rows]), strict=True))
    body |= {"inputs": [first[k] for k in range(len(known))], "input_of": input_of}
    if len(known) == len(input_of):
        del body["input_of"]
    if task.spans is not None:
        body["spans"] = task.spans[rows]
    if task.columns:
        body["columns"] = {name: column_in_json(values[rows]) for name, values in task.columns.items()}
    if task.token_labels:
        body["token_labels"] = {name: labels_in_json(labels[rows]) for name, labels in task.token_labels.items()}
    return body


def part(position: Any, rows: slice) -> Any:
    return position[rows] if isinstance(position, np.ndarray) else position


def column_in_json(values: np.ndarray) -> dict[str, Any]:
    return {"numbers": values.dtype == np.float64, "values": without_nan(values.tolist())}


def labels_in_json(labels: list[np.ndarray]) -> dict[str, Any]:
    width = None if labels[0].ndim == 1 else labels[0].shape[1]
    values = without_nan(np.concatenate(labels).ravel().tolist())
    return {"width": width, "lengths": [len(one) for one in labels], "values": values}


def without_nan(values: list[Any]) -> list[Any]:
    return [None if one != one else one for one in values]
