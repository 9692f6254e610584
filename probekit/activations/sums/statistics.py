"""Sufficient statistics of activations: the moments of every place and split, and their files.

    STORE/statistics/<sha256>.safetensors   a shard (`store.shard`) with the sums of every place and split in float64
                     2-of-4-00012.json      its record: part 2 of 4 after 12 of its shards; 1-of-1 is the whole run

The records are a `Run` of the store's plan. A shard is on disk before its record, and older ones go afterwards.

Each part sums its shards in their order around a shift of its own. The parts are joined in the order of their numbers,
whichever finished first, so that the result is the same bits in any order of finishing. It equals the sums of one
process up to rounding: a relative error of at most 1e-12 in test (float64; the shifts are means of rows, so that moving
to another shift loses little).

Axes: D width of a place, C classes.
"""

import contextlib
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from probekit.activations.store.format import PlanFile, read_plan
from probekit.activations.store.old_format import OldSums, read_old_sums
from probekit.activations.store.shard import (
    Record,
    RecordFile,
    TensorRecord,
    forms_of,
    hashed_parts,
    record_body,
    record_in,
)
from probekit.activations.store.tensors import check_header, read_tensor
from probekit.activations.sums.moments import SplitMoments
from probekit.errors import DataError, StorageError
from probekit.files.durable import (
    MAX_JSON_BYTES,
    each_of,
    is_there,
    make_folder,
    read_plain,
    remove,
    remove_old,
    write_named,
)
from probekit.files.remote.path import AnyPath
from probekit.files.run import AGAIN, Run
from probekit.options.check import check_any_path
from probekit.points import POINTS, Place, PointSpec, UnknownPoint, as_extracted
from probekit.tasks.base import SPLITS, Task
from probekit.text import listed, printable

T = TypeVar("T")

FORMAT = "probekit sums 2"
FOLDER = "statistics"
_PIECE = re.compile(r"(\d+)-of-(\d+)-(\d+)")
_SHARD = re.compile(rb"[0-9a-f]{64}\.safetensors")
_MAX_COUNT = 1 << 63  # counts are int64
_SAME = ("places", "splits", "label_names")  # fields that are equal in all parts

Key = tuple[Place, str]
Part = tuple[int, int]  # number from 1, and number of parts
WHOLE: Part = (1, 1)


class _SumsFile(RecordFile):
    format: str
    part: tuple[int, int]
    shards: int
    texts: tuple[int, int]
    order: str
    places: list[tuple[str, int | None]]
    splits: list[str]
    label_names: list[tuple[str, list[str]]]
    counts: dict[str, tuple[int, list[list[int]]]]
    meta: dict[str, Any]


class Statistics(Mapping[Key, SplitMoments]):
    """(place, split) -> the moments of its rows.

    Args:
        moments: by place and split; every place has the same splits.
        label_names: label set -> class names, in label order.
        meta: where the values come from, JSON-able, as `Activations.meta`.
    """

    def __init__(self, moments: Mapping[Any, SplitMoments], label_names: dict[str, list[str]], meta: dict[str, Any]):
        self._moments = {(Place(*place), split): one for (place, split), one in moments.items()}
        self.label_names, self.meta = label_names, meta

    def __getitem__(self, key: tuple[PointSpec, str]) -> SplitMoments:
        """`statistics["resid_pre.5", "train"]`, or with a place such as ("resid_pre", 5).

        Raises:
            UnknownPoint: no such place or split here.
        """
        if not (isinstance(key, tuple) and len(key) == 2):
            raise UnknownPoint(f"the key is a place and a split, such as ('resid_pre.5', 'train'); got {key!r}")
        short, layer = Place.of(key[0])
        place = Place(as_extracted(short, self.places), layer)
        if (place, key[1]) not in self._moments:
            there = f"{listed([str(one) for one in self.places])}; {', '.join(self.splits)}"
            raise UnknownPoint(f"no statistics of {place}, {key[1]!a} here; there are {there}")
        return self._moments[place, key[1]]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._moments)

    def __len__(self) -> int:
        """Places times splits."""
        return len(self._moments)

    @property
    def places(self) -> list[Place]:
        """In the order of the curve."""
        return list(dict.fromkeys(place for place, _ in self._moments))

    @property
    def splits(self) -> list[str]:
        """The splits that have examples."""
        return list(dict.fromkeys(split for _, split in self._moments))

    @property
    def n_bytes(self) -> int:
        """Bytes of all sums in memory; on disk a few kB more."""
        widths = [len(self._moments[place, self.splits[0]].shift) for place in self.places]
        return _n_bytes(widths, len(self.splits), sum(map(len, self.label_names.values())))

    def save(self, path: str | AnyPath) -> AnyPath:
        """Write them to `path`, completely or not at all; `load_statistics` reads them.

        Raises:
            StorageError: the disk refused, or `path` already holds statistics or a store.
        """
        path = check_any_path("path", path)
        run = sums_at(path)
        if list_sums(run) or read_old_sums(run.folder) or (path / "plan.json").exists():
            raise StorageError(f"{str(path)!a} already holds statistics or a store; name another folder")
        make_folder(run.folder)
        write_sums(run, WHOLE, self, Counted([0], 1, (0, 0), ""))
        return path

    def __repr__(self) -> str:
        where = f"{printable(self.meta.get('model', '?'))} on {printable(self.meta.get('task', '?'))}"
        return f"Statistics({where}: {len(self.places)} places x {', '.join(self.splits)}, {self.n_bytes / 1e6:.1f} MB)"


def load_statistics(path: str | AnyPath) -> Statistics:
    """Read the statistics that `extract(..., stats=True)`, `extract_statistics` or `Statistics.save` wrote to `path`.

    Raises:
        DataError: no statistics there.
        StorageError: they are unfinished or damaged; the message names the file.
        UsageError: no path.
    """
    path = check_any_path("path", path)

    def read(sums: PartSums | OldSums) -> Statistics:
        if not sums.is_complete:
            state = f"{sums.texts[0]} of {sums.texts[1]} texts are counted"
            raise StorageError(f"the statistics at {str(path)!a} are unfinished, {state}; run the same command again")
        return sums.statistics() if isinstance(sums, PartSums) else Statistics(*sums.contents())

    run = sums_at(path)
    found = newest(run, WHOLE, read)
    if found is None and (old := read_old_sums(run.folder)) is not None:
        found = read(old)
    if found is None:
        raise DataError(f"no statistics at {str(path)!a}; make them with probekit extract --stats")
    return found


def statistics_progress(path: str | AnyPath, check: bool = False) -> tuple[int, int] | None:
    """(texts counted, texts in total) of the statistics at `path`; None if there are none.

    Of a store whose parts are not joined yet, the texts that the parts have counted, by the cut that counted most.

    Args:
        path: the store, or the place where statistics were saved.
        check: read every byte of them, those of parts too.

    Raises:
        StorageError: they are damaged, or do not belong to the store at `path`; the message names the file.
    """
    path = check_any_path("path", path)
    run = sums_at(path)
    parts: dict[Part, PartSums | OldSums] = {**read_sums(run)}
    whole = newest(run, WHOLE, lambda sums: sums) or read_old_sums(run.folder)  # last, as parts go once it is there
    if whole is not None:
        parts = {WHOLE: whole} if whole.is_complete else {**parts, WHOLE: whole}
    by_cut: dict[int, int] = {}
    for part, one in parts.items():
        by_cut[part[1]] = by_cut.get(part[1], 0) + one.texts[0]
        if check and isinstance(one, OldSums):
            one.contents()
        elif check:
            newest(run, part, PartSums.check)
    if not parts:
        return None
    return max(by_cut.values()), whole.texts[1] if whole else read_plan(path).rows


def statistics_bytes(task: Task, widths: Iterable[int]) -> int:
    """Bytes of the statistics of this task at places of these widths D: O(places x splits x D^2) in float64."""
    return _n_bytes(list(widths), len(used_splits(task)), sum(map(len, task.label_names.values())))


def _n_bytes(widths: list[int], splits: int, classes: int) -> int:
    return sum(8 * (D + splits * (1 + D + D * D + classes * (D + 1))) for D in widths)


def used_splits(task: Task) -> list[str]:
    """The splits that have examples, in their usual order."""
    return [split for split in SPLITS if (task.splits == split).any()]


@dataclass(frozen=True)
class Counted:
    """How far a part is counted.

    Attributes:
        numbers: the shards that are counted, in their order.
        shards: number of the part's shards.
        texts: examples that are counted, and all of the part.
        order: sha256 over the counted examples in their order.
    """

    numbers: Sequence[int]
    shards: int
    texts: tuple[int, int]
    order: str


@dataclass(frozen=True, eq=False)
class PartSums:
    """The newest sums of a part on disk.

    Attributes:
        path: the store.
        file: their record.
        part: which one.
        record: of their shard; its rows are the numbers of the store's shards that are counted.
        body: of the record.
    """

    path: AnyPath
    file: AnyPath
    part: Part
    record: Record
    body: dict[str, Any]

    @property
    def texts(self) -> tuple[int, int]:
        """Examples that are counted, and all of the part."""
        return tuple(self.body["texts"])

    @property
    def is_complete(self) -> bool:
        """True if every shard of the part is counted."""
        return len(self.record.rows) == self.body["shards"]

    @property
    def places(self) -> list[Place]:
        """In the order of the curve."""
        return [Place(point, layer) for point, layer in self.body["places"]]

    @property
    def label_names(self) -> dict[str, list[str]]:
        """Label set -> class names."""
        return dict(self.body["label_names"])

    def statistics(self) -> Statistics:
        """The sums, with every byte checked.

        Raises:
            StorageError: the shard is missing or damaged.
        """
        check_header(self.path, self.record)
        found: dict[Key, SplitMoments] = {}
        for place in self.places:
            found |= self.moments(place)
        return Statistics(found, self.label_names, self.body["meta"])

    def check(self) -> None:
        """Read every byte, a place at a time; raises as `statistics`."""
        check_header(self.path, self.record)
        for place in self.places:
            self.moments(place)

    def moments(self, place: Place) -> dict[Key, SplitMoments]:
        """The moments of one place in every split, of a shard with the recorded header.

        Raises:
            StorageError: they are damaged, hold NaN or infinity, or cannot be read.
        """
        start = f"{place}."
        names = [name for name in self.record.tensors if name.startswith(start)]
        read = each_of(self.path, lambda name: read_tensor(self.path, self.record, name), names)
        tensors = dict(zip(names, read, strict=True))
        if not all(x.isfinite().all() for x in tensors.values()):
            raise StorageError(f"{str(self.file)!a} holds NaN or infinity; {AGAIN}")
        shift = tensors[f"{start}shift"][0]
        found = {}
        for split in self.body["splits"]:
            count, class_counts = self.body["counts"][start + split]
            sums = {name: tensors[f"{start}{split}.class_sums.{i}"] for i, name in enumerate(self.label_names)}
            counts = {name: torch.tensor(one) for name, one in zip(sums, class_counts, strict=True)}
            total, gram = tensors[f"{start}{split}.sum"][0], tensors[f"{start}{split}.gram"]
            found[place, split] = SplitMoments(count, shift, total, gram, counts, sums)
        return found


def sum_tensors(sums: Statistics) -> dict[str, Tensor]:
    """The tensors by name, with two axes each. Label sets are numbered: their names may be any text."""
    tensors: dict[str, Tensor] = {}
    for place in sums.places:
        start = f"{place}."
        tensors[f"{start}shift"] = sums[place, sums.splits[0]].shift[None]
        for split in sums.splits:
            moments = sums[place, split]
            tensors |= {
                f"{start}{split}.sum": moments.shifted_sum[None],
                f"{start}{split}.gram": moments.shifted_gram,
                **{f"{start}{split}.class_sums.{i}": x for i, x in enumerate(moments.shifted_class_sums.values())},
            }
    return {name: x.contiguous() for name, x in tensors.items()}


def sums_at(path: AnyPath, plan: PlanFile | None = None) -> Run:
    """The records of the sums in the store at `path`, or of sums that were saved there without a store.

    Raises:
        StorageError: the plan of the store is damaged.
    """
    if plan is None and is_there(path / "plan.json"):
        plan = read_plan(path)
    other = "is of another run than the store, or not a record of statistics"
    return Run(path / FOLDER, "" if plan is None else plan.seal, other=other)


def list_sums(run: Run) -> dict[Part, list[tuple[int, str]]]:
    """Part -> (how many shards are counted, name) of its records, the newest last."""
    found: dict[Part, list[tuple[int, str]]] = {}
    for piece in run.done():
        if match := _PIECE.fullmatch(piece):
            i, n, done = map(int, match.groups())
            found.setdefault((i, n), []).append((done, piece))
    return {part: sorted(records) for part, records in sorted(found.items())}


def newest(run: Run, part: Part, read: Callable[[PartSums], T]) -> T | None:
    """What `read` makes of the newest sums of a part; None if it has none.

    A run that is still counting removes a record, and then its shard, once a newer one is there. If that happens
    meanwhile, the newer one is read.

    Raises:
        StorageError: the record is damaged, or of another run than the store; or as `read` does.
    """
    while found := list_sums(run).get(part):
        _, piece = found[-1]
        try:
            body = run.read(piece, _SumsFile, lambda body, piece=piece: _fits(piece, body))
            record = record_in(body, FOLDER, piece)
            assert record is not None
            return read(PartSums(run.folder.parent, run.file(piece), part, record, body))
        except (StorageError, FileNotFoundError):
            if run.has(piece):
                raise
    return None


def read_sums(run: Run, parts: Iterable[Part] | None = None) -> dict[Part, PartSums]:
    """The newest sums of each of these parts that has some, of all parts for None; errors as in `newest`."""
    found = {part: newest(run, part, lambda sums: sums) for part in (list_sums(run) if parts is None else parts)}
    return {part: sums for part, sums in found.items() if sums is not None}


def _fits(piece: str, body: dict[str, Any]) -> bool:
    """True if a record of the right form agrees with itself and with its name."""
    record, (i, n), splits, places = record_in(body), body["part"], body["splits"], body["places"]
    if record is None or body["format"] != FORMAT or not 1 <= i <= n or len(record.rows) > body["shards"]:
        return False
    if piece != _piece((i, n), len(record.rows)):
        return False
    if not places or len({tuple(place) for place in places}) != len(places):
        return False
    if not splits or len(set(splits) & set(SPLITS)) != len(splits):
        return False
    classes = [len(names) for _, names in body["label_names"]]
    shapes: dict[str, tuple[int, int]] = {}
    for point, layer in places:
        start = f"{Place(point, layer)}."
        if point not in POINTS or f"{start}shift" not in record.tensors:
            return False
        D = record.tensors[f"{start}shift"].shape[1]
        shapes[f"{start}shift"] = (1, D)
        for split in splits:
            count, counts = body["counts"].get(start + split) or (0, [])
            if [len(one) for one in counts] != classes:
                return False
            if not all(0 <= x < _MAX_COUNT for x in chain([count], *counts)):
                return False
            shapes |= {f"{start}{split}.sum": (1, D), f"{start}{split}.gram": (D, D)}
            shapes |= {f"{start}{split}.class_sums.{k}": (C, D) for k, C in enumerate(classes)}
    # in this order, too: the sums of several parts are added up tensor by tensor
    there = [(name, x.shape, x.dtype) for name, x in record.tensors.items()]
    return there == [(name, shape, "float64") for name, shape in shapes.items()]


def _piece(part: Part, done: int) -> str:
    return f"{part[0]}-of-{part[1]}-{done:05d}"


def sums_are_whole(run: Run) -> bool:
    """True if the sums of every text are there, counted by one process or joined."""
    whole = read_sums(run, [WHOLE]).get(WHOLE)
    return whole is not None and whole.is_complete


def write_sums(run: Run, part: Part, sums: Statistics, counted: Counted) -> None:
    """Write the sums of a part, then their record, then remove its older ones.

    Raises:
        StorageError: the disk refused.
    """
    tensors = sum_tensors(sums)
    label_names = [[name, names] for name, names in sums.label_names.items()]
    about = {"places": sums.places, "splits": sums.splits, "label_names": label_names, "meta": sums.meta}
    _write(run, part, about, forms_of(tensors), tensors.values(), _counts(sums), counted)


def _counts(moments: Mapping[Key, SplitMoments]) -> dict[str, Any]:
    return {
        f"{place}.{split}": [one.count, [x.tolist() for x in one.class_counts.values()]]
        for (place, split), one in moments.items()
    }


def _write(
    run: Run,
    part: Part,
    about: dict[str, Any],
    forms: Mapping[str, TensorRecord],
    tensors: Iterable[Tensor],
    counts: Mapping[str, Any],
    counted: Counted,
) -> None:
    """Write sums as `write_sums` does; `about` goes into the record; reading `tensors` fills `counts`."""
    made = list[Record]()
    numbers = np.array(counted.numbers, dtype=np.int64)
    write_named(run.folder, hashed_parts(numbers, forms, tensors, made), lambda: made[0].file)
    body = {"format": FORMAT, "part": part, "shards": counted.shards, "texts": counted.texts, "order": counted.order}
    body |= {"counts": counts} | {field: about[field] for field in (*_SAME, "meta")}
    run.write(_piece(part, len(numbers)), {**record_body(made[0]), **body})
    remove_older(run, part, len(numbers))


def remove_older(run: Run, part: Part, done: int) -> None:
    """Remove what a part had before so many of its shards were counted."""
    _remove(run, [piece for before, piece in list_sums(run).get(part, []) if before < done])


def _remove(run: Run, pieces: Iterable[str]) -> None:
    """Remove records, and then the shards that they alone name; what cannot be removed only takes room."""
    gone = set[str]()
    for piece in pieces:
        with contextlib.suppress(StorageError):
            record = record_in(run.read(piece, RecordFile))
            run.remove(piece)
            gone |= set() if record is None else {record.file}
    with contextlib.suppress(StorageError):
        for file in gone and gone - _named(run):  # other parts too: a part with every shard has the file of the whole
            remove(run.folder / file)


def remove_orphans(run: Run) -> None:
    """Remove the shards of a run that died before it wrote their record; a young one may belong to a live run."""
    with contextlib.suppress(StorageError):
        files = _named(run)
        remove_old(run.folder, lambda name: name.endswith(".safetensors") and name not in files)


def _named(run: Run) -> set[str]:
    """The shards that any record here names, a damaged one or one of older versions too.

    Raises:
        StorageError: one cannot be read, so that nobody knows what it names.
    """
    names = set[str]()
    for piece in run.done():
        with contextlib.suppress(FileNotFoundError):
            names |= {one.decode() for one in _SHARD.findall(read_plain(run.file(piece), 2 * MAX_JSON_BYTES))}
    return names


def join_sums(run: Run, plan: PlanFile, parts: Sequence[Part]) -> bool:
    """Add up the sums of all `parts` that have shards if they are complete, and remove theirs; True if that is done.

    Raises:
        StorageError: the disk refused, a file is damaged, or the parts do not have the shards of the run.
    """
    try:
        if not sums_are_whole(run):
            own = [one for one in read_sums(run, parts).values() if one.is_complete]
            if len(own) == len(parts):
                _join(run, plan, own)
    except StorageError:
        if not sums_are_whole(run):  # another process may have joined and removed them meanwhile
            raise
    if not sums_are_whole(run):
        return False
    _remove(run, [piece for part, records in list_sums(run).items() if part != WHOLE for _, piece in records])
    return True


def _join(run: Run, plan: PlanFile, parts: list[PartSums]) -> None:
    """Add up parts a place at a time: memory holds the sums of one place, whatever their number."""
    first, *others = parts
    for part in parts:
        same = all(part.body[field] == first.body[field] for field in _SAME)
        if not (same and part.record.header == first.record.header):
            raise StorageError(f"{str(part.file)!a} is of another run than the other parts; {AGAIN}")
        check_header(part.path, part.record)
    times = Counter(np.concatenate([part.record.rows for part in parts]).tolist())
    numbers = range(plan.shards or 0)
    if odd := sorted(number for number in {*times, *numbers} if times[number] != 1 or number not in numbers):
        raise StorageError(
            f"the parts in {str(run.folder)!a} do not count each shard once (see shards {listed(odd)}): they were cut "
            "differently, by other versions of probekit; remove the folder and run all parts again with one version"
        )
    counts: dict[str, Any] = {}

    def joined() -> Iterator[Tensor]:
        for place in first.places:
            total = first.moments(place)
            for part in others:
                own = part.moments(place)
                total = {key: total[key] + own[key] for key in own}
            counts.update(_counts(total))
            yield from sum_tensors(Statistics(total, first.label_names, {})).values()

    texts = sum(part.texts[1] for part in parts)
    order = hashlib.sha256("|".join(part.body["order"] for part in parts).encode()).hexdigest()
    meta = {**first.body["meta"], "parts": len(parts)}
    counted = Counted(numbers, len(numbers), (texts, texts), order)
    _write(run, WHOLE, first.body | {"meta": meta}, first.record.tensors, joined(), counts, counted)
