"""Several results of one call, named by label set and point, in memory and on disk: what curves and grids share.

On disk there is a folder for each of them, results.csv with all, and an index: curves.json or grids.json lists the
coordinates, the folder and the sha256 of the file of results, which holds the hashes of its own parts.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict, TypeVar

from probekit.errors import DataError, ProbekitError, UsageError
from probekit.evaluation.results.coordinates import (
    HasMeta,
    coordinate_titles,
    coordinates,
    curve_keys,
    shown_coordinates,
)
from probekit.evaluation.results.meta import SavedPart
from probekit.files.plain_files import MAX_RESULTS, read_bytes
from probekit.files.records import Must, ensure
from probekit.results.files import reading, write_results
from probekit.results.kinds import AGAIN, KINDS
from probekit.results.table import TableRow
from probekit.text import counted, listed, printable

_LONGEST = 80  # characters of a folder's name
_FOLDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


R = TypeVar("R", bound=HasMeta)


class UnknownCurve(UsageError, KeyError):
    """No such curve; a KeyError too, as a mapping raises."""

    __str__ = ProbekitError.__str__


class SeveralResults(Mapping[tuple[str, ...], R]):
    """(label, point) -> results; with values of a column (label, point, value), with several probes also the probe.

    Args:
        curves: label set by label set, in each point by point, then value by value and probe by probe.
        meta: JSON-able, of all together; each has a `meta` of its own.

    Attributes:
        meta: as given.
    """

    _noun = "curve"

    def __init__(self, curves: Iterable[R], meta: dict[str, Any] | None = None):
        several = list(curves)
        self._curves = dict(zip(curve_keys(several), several, strict=True))
        self.meta = meta or {}

    def __getitem__(self, key: tuple[str, ...]) -> R:
        """The curve of a label set and a point, whose name may lack the "encoder." of an encoder's points.

        Where there are several of these the key goes on with the value of the column and the probe; else it may.

        Raises:
            UnknownCurve: there is no such curve.
        """
        if key in self._curves:
            return self._curves[key]
        found = self._named(key) if isinstance(key, tuple) and len(key) >= 2 else []
        if len(found) != 1:
            known = listed([f"({', '.join(map(ascii, each))})" for each in self])
            *names, last = ["label set", *coordinate_titles(list(self.values()))[1:]]
            by = f"{', '.join(names)} and {last}"
            raise UnknownCurve(f"no {self._noun} {key!a}; a {self._noun} is named by {by}, here {known}")
        return found[0]

    def _named(self, key: tuple[str, ...]) -> list[R]:
        """The curves of a label set, point and, where they are given, value of a column and probe."""
        label, point, *others = key
        return [
            curve
            for curve in self.values()
            if curve.meta["label"] == label
            and curve.meta["point"] in (point, f"encoder.{point}")
            and {*others} <= {*list(coordinates(curve.meta).values())[2:]}
        ]

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        return iter(self._curves)

    def __len__(self) -> int:
        """The number of curves."""
        return len(self._curves)

    @property
    def labels(self) -> list[str]:
        """The label sets, in the order of the call."""
        return list(dict.fromkeys(key[0] for key in self))

    @property
    def points(self) -> list[str]:
        """The points, in the order of the call."""
        return list(dict.fromkeys(key[1] for key in self))

    @property
    def probes(self) -> list[str]:
        """The names of the probes, in the order of the call."""
        return list(dict.fromkeys(str(curve.meta["probe"]) for curve in self.values()))

    def __repr__(self) -> str:
        labels, points = (printable(listed(names)) for names in (self.labels, self.points))
        several = list(self.values())
        more = ""
        for name, title in zip(shown_coordinates(several)[2:], coordinate_titles(several)[2:], strict=True):
            values = dict.fromkeys(coordinates(curve.meta)[name] for curve in several)
            more += f"; {title if name == 'within' else 'probes'} {printable(listed(values))}"
        return f"{type(self).__name__}({counted(len(self), self._noun)}; labels {labels}; points {points}{more})"


class CurveEntry(SavedPart):
    """A curve or grid, and its folder in that of all."""

    label: str
    point: str
    probe: str
    within: NotRequired[str]
    folder: Annotated[str, Must("the name of a folder inside", lambda name: _FOLDER.fullmatch(name) is not None)]


class _Curves(TypedDict):
    meta: dict[str, Any]
    curves: list[CurveEntry]


class _Grids(TypedDict):
    meta: dict[str, Any]
    grids: list[CurveEntry]


_FORMS = {"curves": _Curves, "grids": _Grids}


def save_several(
    kind: str,
    several: Sequence[Any],
    meta: Mapping[str, Any],
    rows: Iterable[TableRow],
    folder: Path,
    save: Callable[[Any, Path], Any],
) -> None:
    """Write a folder for each of several results, results.csv and, last, the index; earlier ones are deleted first.

    Args:
        kind: "curves" or "grids".
        several: the results.
        meta: of all together.
        rows: of the table of all together.
        folder: where they go.
        save: writes one of them into its folder.

    Raises:
        StorageError: the disk refused, or the folder holds something else.
    """

    def write_each(folder: Path) -> dict[str, Any]:
        entries = []
        for name, each in zip(curve_folders(curve_keys(several)), several, strict=True):
            save(each, folder / name)
            entries.append({**coordinates(each.meta), "folder": name, "sha256": _hash(folder / name, kind)})
        return {kind: entries}

    write_results(kind, folder, {"meta": meta}, rows, write_each)


def load_several(kind: str, folder: Path, load: Callable[[Path], R]) -> tuple[list[R], dict[str, Any]]:
    """What `save_several` wrote, and the `meta`; `load` reads one of them from its folder.

    Raises:
        DataError: none there, damaged ones, or results that are not of these.
    """
    with reading(kind, folder, _FORMS[kind]) as body:
        entries = body[kind]
        ensure(entries, f"one {kind[:-1]} or more", entries, kind)
        names = [entry["folder"] for entry in entries]
        ensure(len(set(names)) == len(names), "each folder once", names, kind)
    several = []
    for entry in entries:
        own = folder / entry["folder"]
        each = load(own)
        same = coordinates(each.meta).items() <= entry.items()
        if not same or _hash(own, kind) != entry["sha256"]:
            raise DataError(f"the results in {str(own)!a} are not those of these {kind}; {AGAIN}")
        several.append(each)
    keys = curve_keys(several)
    if len(set(keys)) < len(keys):
        path = folder / KINDS[kind].file
        raise DataError(f"{str(path)!a} has two {kind} of the same label set, point, rows and probe; {AGAIN}")
    return several, body["meta"]


def curve_folders(keys: Sequence[tuple[str, ...]]) -> list[str]:
    """A folder's name for each key; with a digest where the plain name is long, altered or taken.

    Names that differ in case alone count as one, as some file systems have it.
    """
    folders: list[str] = []
    for key in keys:
        whole = "-".join(key)
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", whole).lstrip(".-")[:_LONGEST]
        if plain != whole or plain.casefold() in {other.casefold() for other in folders}:
            digest = hashlib.sha256(json.dumps(list(key)).encode()).hexdigest()[:8]
            plain = f"{plain}-{digest}".lstrip("-")
        folders.append(plain)
    return folders


def _hash(folder: Path, kind: str) -> str:
    """Of the file of results of one of several, which holds the hashes of its own parts."""
    paths = [folder / KINDS[inner].file for inner in KINDS[kind].inner]
    return hashlib.sha256(read_bytes(next(filter(Path.is_file, paths), paths[0]), MAX_RESULTS)).hexdigest()
