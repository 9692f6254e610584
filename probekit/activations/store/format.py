"""The JSON files of a store except examples.json; their form is checked before they are used.

Axes: N examples, D width of a place.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

from probekit.activations.layout import Layout
from probekit.activations.store.shard import Record, load_record, repair_advice
from probekit.errors import DataError, StorageError
from probekit.files.durable import MAX_JSON_BYTES, TEMPORARY, check_folder, each_of, is_there, unseal
from probekit.files.records import read_as
from probekit.files.remote.path import AnyPath
from probekit.files.run import Run
from probekit.interventions import edits_in_words
from probekit.machine.devices import DTYPES
from probekit.points import Place

FORMAT = "probekit-activations"
FORMAT_VERSION = 3
OLD_VERSION = 2  # is read, and not written to: its examples are JSON (`store.old_format`)
MAX_EXAMPLES_BYTES = 512 << 20  # of examples.json, or a piece of the examples
MAX_ROWS = 32 << 20  # examples of a store
MAX_RECORDS = MAX_JSON_BYTES // 72  # the manifest holds a checksum of each: 68 bytes, and room for the rest
MAX_WIDTH = 1 << 40
AGAIN = "remove the store and extract again"
_RECORD_NAME = re.compile(r"[0-9]{5,9}\.json")


class _Edit(TypedDict):
    kind: str


class _Identity(TypedDict):
    places: list[tuple[str, int | None]]
    widths: list[int]
    rows: int
    dtype: str
    shards: NotRequired[int | None]
    edits: NotRequired[dict[str, list[_Edit]] | None]


class _Plan(TypedDict):
    identity: _Identity
    model: str
    task: str
    source: NotRequired[dict[str, Any] | None]
    meta: dict[str, Any]


class _Manifest(TypedDict):
    format: str
    plan: str
    examples: str
    created: str
    records: list[str]
    points: list[str]
    n_layers: int


@dataclass(frozen=True, eq=False)
class PlanFile:
    """plan.json: the settings that decide the bits.

    Attributes:
        identity: the settings; runs with equal identities end in equal tensors.
        model: its name, for people.
        task: its name.
        source: arguments with which `load_model` loads the model again; None where they are unknown.
        meta: provenance for the manifest, without its date.
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
        """Name of the type on disk."""
        return self.identity["dtype"]

    @property
    def is_import(self) -> bool:
        """True if the values come from files of another program."""
        return self.identity.get("kind") == "import"

    @property
    def command(self) -> str:
        """Name of the command that makes such a store."""
        return "import" if self.is_import else "extract"

    @property
    def edits(self) -> str:
        """What the model ran with, in a few words; "" for nothing."""
        found = self.identity.get("edits")
        return edits_in_words(found, self.identity.get("edit_positions", "all")) if found else ""

    @property
    def shards(self) -> int | None:
        """Number of shards of the complete store; None where the plan does not say."""
        return self.identity.get("shards")


@contextmanager
def storage_errors(path: AnyPath, what: str, advice: str) -> Iterator[None]:
    """Turn any error from the content of a file into one StorageError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError):
        raise StorageError(f"{str(path)!a} is not a {what} of a store; {advice}") from None


def require(*facts: bool) -> None:
    """Raise a ValueError unless all facts hold."""
    if not all(facts):
        raise ValueError("unexpected content")


def has_manifest(path: AnyPath) -> bool:
    """True if the store at `path` was finished. A link that leads nowhere counts: it is a damaged manifest."""
    return is_there(path / "manifest.json")


def read_plan(path: AnyPath) -> PlanFile:
    """The plan of the store at `path`.

    Raises:
        DataError: no store there.
        StorageError: missing, damaged, or of another format.
    """
    file = path / "plan.json"
    if not is_there(file):
        if has_manifest(path):
            raise StorageError(f"{str(file)!a} is missing; {AGAIN}")
        raise DataError(f"no store at {str(path)!a}; make one with probekit extract")
    return plan_in(path, *unseal(file, advice=AGAIN))


def plan_in(path: AnyPath, body: dict[str, Any], seal: str) -> PlanFile:
    """The plan that plan.json at `path` holds; raises a StorageError if it has not the form of one."""
    file = path / "plan.json"
    with storage_errors(file, "plan", AGAIN):
        version = body["identity"].get("version") if body.get("format") == FORMAT else None
    if version not in (FORMAT_VERSION, OLD_VERSION):
        raise StorageError(
            f"{str(path)!a} has format {version!a}, and this probekit reads formats {OLD_VERSION} and {FORMAT_VERSION}"
            "; extract again"
        )
    with storage_errors(file, "plan", AGAIN):
        read_as(_Plan, body)
        identity = body["identity"]
        rows, widths, shards = identity["rows"], identity["widths"], identity.get("shards")
        places = [Place(point, layer) for point, layer in identity["places"]]
        require(len(set(map(str, places))) == len(places) == len(widths) > 0)
        require(all(0 < width < MAX_WIDTH for width in widths), 0 < rows < MAX_ROWS, identity["dtype"] in DTYPES)
        require(shards is None or 0 < shards <= min(rows, MAX_RECORDS))
        source, meta = body.get("source"), body["meta"]
        return PlanFile(identity, body["model"], body["task"], source, meta, seal, rows, places, widths)


def read_manifest(path: AnyPath, plan: PlanFile | None = None) -> dict[str, Any]:
    """The manifest of the store at `path`.

    Raises:
        StorageError: missing, damaged, or not of the plan.
    """
    file, advice = path / "manifest.json", repair_advice(path)
    body, _ = unseal(file, advice=advice)
    with storage_errors(file, "manifest", advice):
        read_as(_Manifest, body)
        require(body["format"] == FORMAT, len(body["records"]) > 0)
    if plan is not None and body["plan"] != plan.seal:
        raise StorageError(f"{str(file)!a} belongs to another plan; {advice}")
    return body


def record_path(path: AnyPath, number: int) -> AnyPath:
    """The file of one record."""
    return path / "records" / f"{record_piece(number)}.json"


def record_piece(number: int) -> str:
    """The name of a shard in the `Run` of a store's records."""
    return f"{number:05d}"


def records_of(path: AnyPath, plan: PlanFile) -> Run:
    """The records of the store at `path`."""
    return Run(path / "records", plan.seal)


def record_numbers(path: AnyPath) -> list[int]:
    """The numbers of the records on disk.

    Raises:
        StorageError: other files are among them, or the folders of the store are links.
    """
    for name in ("records", "shards"):
        check_folder(path / name)
    names = [p.name for p in (path / "records").glob("*") if not p.name.startswith(TEMPORARY)]
    for name in names:
        if not _RECORD_NAME.fullmatch(name) or name != f"{int(name[:-5]):05d}.json":
            raise StorageError(f"{str(path / 'records' / name)!a} is not a record of a store; remove it")
    return sorted(int(name[:-5]) for name in names)


def read_record(path: AnyPath, plan: PlanFile, number: int) -> tuple[Record, str]:
    """One record, and the checksum of its file; its tensors are the plan's places.

    Raises:
        StorageError: missing, damaged, or of another plan.
    """
    file = record_path(path, number)
    record, seal = load_record(file, plan.seal)
    held = {name: (x.dtype, x.shape[1]) for name, x in record.tensors.items()}
    wanted = {str(p): (plan.dtype, width) for p, width in zip(plan.places, plan.widths, strict=True)}
    if held != wanted or record.rows.max() >= plan.rows or (plan.shards is not None and number >= plan.shards):
        raise StorageError(f"{str(file)!a} does not hold the rows and places of the plan; {repair_advice(path)}")
    return record, seal


def read_records(path: AnyPath, plan: PlanFile) -> dict[int, tuple[Record, str]]:
    """Number -> record and the checksum of its file, in order.

    Raises:
        StorageError: a record is damaged, or of another plan.
    """
    numbers = record_numbers(path)
    return dict(zip(numbers, each_of(path, lambda number: read_record(path, plan, number), numbers), strict=True))


def check_layout(path: AnyPath, plan: PlanFile, layout: Layout, records: dict[int, Record]) -> None:
    """Raise a StorageError unless each tensor has as many rows as its examples."""
    for place in plan.places:
        counts, name = layout.counts(place), str(place)
        for number, record in records.items():
            if record.tensors[name].shape[0] != counts[record.rows].sum():
                file = record_path(path, number)
                raise StorageError(
                    f"{str(file)!a}: {name} has too many or too few rows for its examples; {repair_advice(path)}"
                )


def stored_rows(path: AnyPath, plan: PlanFile) -> int:
    """Number of examples that have a record.

    Raises:
        StorageError: a record is damaged, or of another plan.
    """
    return sum(len(record.rows) for record, _ in read_records(path, plan).values())


def unfinished_advice(path: AnyPath, command: str, has_every_row: bool) -> str:
    """What to do about a store without a manifest."""
    finish = f", or probekit repair {str(path)!a}" if has_every_row else ""
    return f"run the same {command} command again{finish}"
