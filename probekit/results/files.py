"""The files of results: a JSON that is written last, the table, and parts of which the JSON holds the hashes."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from probekit.errors import DataError
from probekit.files.durable import write_as
from probekit.files.plain_files import MAX_RESULTS, MAX_WEIGHTS, read_bytes
from probekit.files.records import describing, read_as, read_json_file
from probekit.results.kinds import AGAIN, KINDS, TABLE, clear_folder
from probekit.results.table import TableRow, csv_bytes


def write_results(
    kind: str,
    folder: Path,
    body: Mapping[str, Any],
    rows: Iterable[TableRow],
    write_parts: Callable[[Path], Mapping[str, Any]] = lambda folder: {},
) -> None:
    """Replace the results in a folder: first the parts, then results.csv and, last, the JSON.

    Args:
        kind: a key of `KINDS`.
        folder: where they go.
        body: what the JSON holds.
        rows: of results.csv.
        write_parts: writes other files into the folder, and returns what the JSON says of them.

    Raises:
        StorageError: the disk refused, or the folder holds something else.
        ValueError: nan or infinity in `body`; then nothing was deleted.
    """
    body = {"format": KINDS[kind].form, **body}
    _json(body)
    table = csv_bytes(rows)
    clear_folder(folder, kind)
    body |= write_parts(folder)
    write_as(folder / TABLE, table)
    write_as(folder / KINDS[kind].file, _json(body))


def _json(body: Mapping[str, Any]) -> bytes:
    """One line for each entry of a list, so that the file can be read and compared."""
    lines = []
    for name, value in body.items():
        text = json.dumps(value, allow_nan=False)
        if isinstance(value, list) and value:
            inner = ",\n".join(json.dumps(each, allow_nan=False) for each in value)
            text = f"[\n{inner}\n]"
        lines.append(f"{json.dumps(name)}: {text}")
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


@contextmanager
def reading(kind: str, folder: Path, form: Any) -> Iterator[Any]:
    """What the JSON of results holds, as a value of the type `form`; an `Unfit` inside names the file.

    Raises:
        DataError: no such results there, or damaged ones.
    """
    own = KINDS[kind]
    path = folder / own.file
    body = read_json_file(path, own.form, own.plural, own.maker, own.again)
    with describing(path, own.again):
        yield read_as(form, {name: value for name, value in body.items() if name != "format"})


def write_part(path: Path, data: bytes | None) -> dict[str, Any] | None:
    """Write a part, if there is one; what the JSON says of it."""
    if data is None:
        return None
    write_as(path, data)
    return {"file": path.name, "sha256": hashlib.sha256(data).hexdigest()}


def read_part(path: Path, sha256: str) -> bytes:
    """The content of a part whose hash the JSON holds.

    Raises:
        DataError: it is missing, unreadable, damaged, or not of these results.
    """
    try:
        data = read_bytes(path, MAX_WEIGHTS)
    except (OSError, ValueError) as error:
        raise DataError(f"could not read {str(path)!a} ({error}); {AGAIN}") from None
    if hashlib.sha256(data).hexdigest() != sha256:
        raise DataError(f"{str(path)!a} is not the one of these results, or is damaged; {AGAIN}")
    return data


def probe_hash(json_bytes: bytes) -> str:
    """The .json holds the hash of the weights, so its own hash covers both files."""
    return hashlib.sha256(json_bytes).hexdigest()


def check_probe_hash(path: Path, sha256: str) -> None:
    """Check that the probe saved at a path is the one whose hash results hold.

    Raises:
        DataError: it is missing, or another.
    """
    try:
        found = probe_hash(read_bytes(f"{path}.json", MAX_RESULTS))
    except OSError as error:
        raise DataError(f"the probe {str(path)!a} cannot be read: {error.strerror}") from None
    if found != sha256:
        raise DataError(f"the probe {str(path)!a} is not the one of these results; {AGAIN}")
