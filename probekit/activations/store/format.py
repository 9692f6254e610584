"""What the JSON files of a store hold, and whether it can be: nothing in them is believed before it is checked.

Axes: N examples, D width of a place.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from probekit.activations.digest import FORMAT_VERSION
from probekit.activations.layout import Layout
from probekit.activations.store.shard import Record, mend, whole_numbers
from probekit.devices import DTYPES
from probekit.durable import MOST, TEMPORARY, unseal
from probekit.errors import DataError, StorageError
from probekit.points import Place, place_name
from probekit.tasks.base import SPLITS, Task

FORMAT = "probekit-activations"
MOST_EXAMPLES = 512 << 20  # bytes of examples.json: a few million texts; parsed it takes some times that
MOST_ROWS = MOST_EXAMPLES // 16  # an example takes more bytes there
MOST_RECORDS = MOST // 64  # and a record's checksum in the manifest
AGAIN = "remove the store and extract again"
_RECORD = re.compile(r"[0-9]{5,9}\.json")


@dataclass(frozen=True, eq=False)
class PlanFile:
    """plan.json: what decides the bits, and how to make them again.

    Attributes:
        identity: the settings; two runs with equal ones end in equal tensors.
        model: its name, for people.
        task: its name.
        source: what `load_model` takes to load the model again; None where nobody said.
        meta: what the manifest will say of the run, but for its date.
        seal: checksum of the file.
        rows: N.
        places: (point, layer) of each tensor.
        widths: D of each place.
    """

    identity: dict[str, Any]
    model: str
    task: str
    source: dict[str, Any] | None
    meta: dict[str, Any]
    seal: str
    rows: int
    places: list[Place]
    widths: list[int]

    @property
    def dtype(self) -> str:
        """Name of the type that is kept."""
        return self.identity["dtype"]

    @property
    def command(self) -> str:
        """Name of the command that makes such a store."""
        return "import" if self.identity.get("kind") == "import" else "extract"

    @property
    def shards(self) -> int | None:
        """How many shards there will be; None where the plan does not say."""
        return self.identity.get("shards")


@dataclass(frozen=True, eq=False)
class Examples:
    """examples.json: the task, and how rows belong to its examples.

    Attributes:
        task: the N examples.
        layout: how many rows each has at a place.
        positions: what was asked for: words, ints, int64 [N].
        seal: checksum of the file.
    """

    task: Task
    layout: Layout
    positions: list[str | int | np.ndarray]
    seal: str


@contextmanager
def _described(path: Path, what: str, advice: str) -> Iterator[None]:
    """Whatever is wrong with the content of a file is one StorageError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError) as error:
        raise StorageError(f"{str(path)!a} is no {what} of a store; {advice}") from error


def _need(*facts: bool) -> None:
    if not all(facts):
        raise ValueError("not as it must be")


def _is_list(values: Any, *kinds: type) -> bool:
    return isinstance(values, list) and all(type(value) in kinds for value in values)


def read_plan(path: Path) -> PlanFile:
    """The plan of the store at `path`.

    Raises:
        DataError: no store there.
        StorageError: missing, damaged, or of another format.
    """
    file = path / "plan.json"
    if not file.exists() and not file.is_symlink():
        if (path / "manifest.json").exists():
            raise StorageError(f"{str(file)!a} is missing; {AGAIN}")
        raise DataError(f"no store at {str(path)!a}; make one with probekit extract")
    body, seal = unseal(file, advice=AGAIN)
    with _described(file, "plan", AGAIN):
        version = body["identity"].get("version") if body.get("format") == FORMAT else None
    if version != FORMAT_VERSION:
        raise StorageError(f"{str(path)!a} has format {version!a}, this probekit reads {FORMAT_VERSION}; extract again")
    with _described(file, "plan", AGAIN):
        return _plan(body, seal)


def _plan(body: dict[str, Any], seal: str) -> PlanFile:
    identity, source, meta = body["identity"], body["source"], body["meta"]
    _need(source is None or isinstance(source, dict), isinstance(meta, dict))
    places = [(point, layer) for point, layer in identity["places"]]
    _need(all(isinstance(p, str) and (layer is None or type(layer) is int) for p, layer in places))
    _need(len({place_name(place) for place in places}) == len(places) == len(identity["widths"]) > 0)
    _need(_is_list(identity["widths"], int), all(0 < width < 1 << 40 for width in identity["widths"]))
    _need(type(identity["rows"]) is int, 0 < identity["rows"] < MOST_ROWS, identity["dtype"] in DTYPES)
    shards = identity.get("shards")
    _need(shards is None or (type(shards) is int and 0 < shards <= min(identity["rows"], MOST_RECORDS)))
    _need(type(body["model"]) is str, type(body["task"]) is str)
    rows, widths = identity["rows"], identity["widths"]
    return PlanFile(identity, body["model"], body["task"], source, meta, seal, rows, places, widths)


def examples_body(task: Task, layout: Layout, positions: list[str | int | np.ndarray]) -> dict[str, Any]:
    """The content of examples.json."""
    return {
        "name": task.name,
        "target": task.target,
        "info": task.info,
        "label_names": task.label_names,
        "position": task.position,
        "positions": positions,
        "layout": {
            "positions": layout.positions,
            "lengths": layout.lengths,
            "n_bos": layout.n_bos,
            "n_end": layout.n_end,
        },
        "ids": task.ids,
        "splits": task.splits,
        "labels": {name: labels.astype(_kind(task, name)) for name, labels in task.labels.items()},
        "groups": task.groups,
        "tokens": layout.tokens,
        **_inputs(task),
        **({} if task.targets is None else {"targets": task.targets}),
    }


def _inputs(task: Task) -> dict[str, Any]:
    """The inputs; where the examples are words, each text once, the number of each example's text, and the spans."""
    if task.spans is None:
        return {"inputs": task.inputs}
    known: dict[Any, int] = {}
    of = [known.setdefault(text, len(known)) for text in task.inputs]
    return {"inputs": list(known), "input_of": of, "spans": task.spans}


def _kind(task: Task, label_set: str) -> type:
    return np.int64 if task.n_classes(label_set) else np.float64


def read_examples(path: Path, plan: PlanFile) -> Examples:
    """The examples of the store at `path`.

    Raises:
        StorageError: missing, damaged, or not those of the plan.
    """
    file = path / "examples.json"
    body, seal = unseal(file, MOST_EXAMPLES, AGAIN)
    with _described(file, "list of the examples", AGAIN):
        layout, positions = body["layout"], body["positions"]
        _need(_is_list(layout["positions"], str), len(layout["positions"]) == len(positions) > 0)
        n_bos, n_end = layout["n_bos"], layout.get("n_end", 0)  # which older stores do not know
        _need(type(n_bos) is int, n_bos in (0, 1), type(n_end) is int, n_end in (0, 1))
        lengths = _numbers(layout["lengths"], plan.rows)
        _need(lengths.min() >= n_bos + n_end, (lengths.astype(float) ** 2).sum() < 2**60)
        kept = Layout(layout["positions"], lengths, n_bos, n_end=n_end)
        kept = replace(kept, tokens=_tokens(body.get("tokens"), kept))
        return Examples(_task(body, plan.rows), kept, [_position(one, plan.rows) for one in positions], seal)


def _tokens(values: Any, layout: Layout) -> np.ndarray | None:
    """The tokens that were read; stores from before they were written down have none."""
    return None if values is None else _numbers(values, int(layout.counts(("", None)).sum()))


def _numbers(values: Any, n: int) -> np.ndarray:
    _need(isinstance(values, list), len(values) == n)
    return whole_numbers(values)


def _floats(values: Any, n: int) -> np.ndarray:
    _need(_is_list(values, float), len(values) == n)
    return np.array(values, dtype=np.float64)


def _position(given: Any, n: int) -> Any:
    _need(type(given) in (str, int, list))
    return _numbers(given, n) if isinstance(given, list) else given


def _task(body: dict[str, Any], n: int) -> Task:
    inputs, ids, splits, groups = (body[key] for key in ("inputs", "ids", "splits", "groups"))
    _need(_is_list(inputs, str) or (_is_list(inputs, list) and all(_is_list(row, int) for row in inputs)))
    spans = None
    if body.get("spans") is not None:  # what stores of whole texts do not have
        of = _numbers(body["input_of"], n)
        _need(_is_list(inputs, str), len(body["spans"]) == n, all(_is_list(one, int) for one in body["spans"]))
        _need(all(len(one) == 2 for one in body["spans"]), bool(((of >= 0) & (of < len(inputs))).all()))
        inputs, spans = [inputs[i] for i in of], np.array(body["spans"], dtype=np.int64)
        ends = np.array([len(text) for text in inputs])
        _need(bool(((spans[:, 0] >= 0) & (spans[:, 0] < spans[:, 1]) & (spans[:, 1] <= ends)).all()))
    targets = body.get("targets")  # which most stores do not have
    _need(targets is None or (_is_list(targets, str, list) and len(targets) == n))
    _need(_is_list(ids, str, int), _is_list(splits, str), set(splits) <= set(SPLITS), len(inputs) == len(ids) == n)
    _need(len(splits) == n, groups is None or (_is_list(groups, str, int) and len(groups) == n))
    _need(
        type(body["name"]) is str, body["target"] in body["labels"], body["labels"].keys() == body["label_names"].keys()
    )
    _need(all(_is_list(names, str) for names in body["label_names"].values()), isinstance(body["info"], dict))
    return Task(
        name=body["name"],
        inputs=inputs,
        labels={
            name: (_numbers if body["label_names"][name] else _floats)(labels, n)
            for name, labels in body["labels"].items()
        },
        label_names=body["label_names"],
        splits=np.array(splits),
        target=body["target"],
        position=_position(body["position"], n),
        ids=ids,
        groups=None if groups is None else np.array(groups),
        info=body["info"],
        spans=spans,
        targets=targets,
    )


def record_path(path: Path, number: int) -> Path:
    """The file of one record."""
    return path / "records" / f"{number:05d}.json"


def record_numbers(path: Path) -> list[int]:
    """The numbers of the records that stand there.

    Raises:
        StorageError: something else stands among them, or the folders of the store are links.
    """
    for folder in (path / "records", path / "shards"):
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise StorageError(f"{str(folder)!a} is no folder of a store; put the real folder there")
    names = [p.name for p in (path / "records").glob("*") if not p.name.startswith(TEMPORARY)]
    for name in names:
        if not _RECORD.fullmatch(name) or name != f"{int(name[:-5]):05d}.json":
            raise StorageError(f"{str(path / 'records' / name)!a} is no record of a store; remove it")
    return sorted(int(name[:-5]) for name in names)


def read_records(path: Path, plan: PlanFile) -> dict[int, tuple[Record, str]]:
    """Number -> record and the checksum of its file, in order.

    Raises:
        StorageError: a record is damaged, or of another plan.
    """
    return {number: read_record(path, plan, number) for number in record_numbers(path)}


def kept_rows(path: Path, plan: PlanFile) -> int:
    """How many examples have a record.

    Raises:
        StorageError: a record is damaged, or of another plan.
    """
    return sum(len(record.rows) for record, _ in read_records(path, plan).values())


def unfinished_advice(path: Path, command: str, is_whole: bool) -> str:
    """What to do about a store without a manifest; `is_whole` is whether every row is there."""
    return f"run the same {command} command again" + (f", or {mend(path)[5:]}" if is_whole else "")


def read_record(path: Path, plan: PlanFile, number: int) -> tuple[Record, str]:
    """One record, and the checksum of its file; its tensors are the plan's places.

    Raises:
        StorageError: missing, damaged, or of another plan.
    """
    file = record_path(path, number)
    record, seal = Record.load(file, plan.seal)
    held = {name: (x.dtype, x.shape[1]) for name, x in record.tensors.items()}
    wanted = {place_name(p): (plan.dtype, width) for p, width in zip(plan.places, plan.widths, strict=True)}
    if held != wanted or record.rows.max() >= plan.rows or (plan.shards is not None and number >= plan.shards):
        raise StorageError(f"{str(file)!a} does not hold the rows and places of the plan; {mend(path)}")
    return record, seal


def check_layout(path: Path, plan: PlanFile, layout: Layout, records: dict[int, Record]) -> None:
    """Raise a StorageError unless each tensor has a row for each of its examples' rows."""
    for place in plan.places:
        counts = layout.counts(place)
        for number, record in records.items():
            if record.tensors[place_name(place)].shape[0] != counts[record.rows].sum():
                file = record_path(path, number)
                raise StorageError(f"{str(file)!a}: {place_name(place)} has other rows than its examples; {mend(path)}")


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of the store at `path`.

    Raises:
        StorageError: missing, damaged, or not as a manifest must be.
    """
    file = path / "manifest.json"
    body, _ = unseal(file, advice=mend(path))
    with _described(file, "manifest", mend(path)):
        _need(
            body["format"] == FORMAT,
            _is_list(body["records"], str),
            len(body["records"]) > 0,
            _is_list(body["points"], str),
        )
        _need(type(body["n_layers"]) is int, all(type(body[key]) is str for key in ("plan", "examples", "created")))
    return body
