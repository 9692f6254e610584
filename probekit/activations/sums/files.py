"""Sums on disk: a shard for each part of a run, and a record that says how far the part is counted.

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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from probekit.activations.store.format import PlanFile, read_plan
from probekit.activations.store.shard import RECORD, Record, count_again, hashed_parts, record_body, record_in
from probekit.activations.store.tensors import SIZE, check_shard, read_tensor
from probekit.activations.sums.moments import SplitMoments
from probekit.errors import StorageError
from probekit.files.durable import each_of, is_there, matches, remove, remove_old, write_named
from probekit.files.remote.path import AnyPath
from probekit.files.run import Run
from probekit.points import Place, UnknownPoint
from probekit.tasks.base import SPLITS

FORMAT = "probekit sums 2"
FOLDER = "statistics"
_PIECE = re.compile(r"(\d+)-of-(\d+)-(\d+)")
_FORM = RECORD | {
    "format": str,
    "part": (int, int),
    "shards": int,
    "texts": (int, int),
    "order": str,
    "places": [(str, int | None)],
    "splits": [str],
    "label_names": [(str, [str])],
    "counts": {str: (int, [[int]])},
    "meta": dict,
}
_SAME = ("places", "splits", "label_names")  # fields that are equal in all parts

Key = tuple[Place, str]
Part = tuple[int, int]  # number from 1, and number of parts
WHOLE: Part = (1, 1)


class Contents(NamedTuple):
    """The content of statistics: moments by place and split, label set -> class names, and the record of the run."""

    moments: Mapping[Key, SplitMoments]
    label_names: dict[str, list[str]]
    meta: dict[str, Any]

    @property
    def places(self) -> list[Place]:
        """In the order of the curve."""
        return list(dict.fromkeys(place for place, _ in self.moments))

    @property
    def splits(self) -> list[str]:
        """The splits that have examples."""
        return list(dict.fromkeys(split for _, split in self.moments))


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

    def contents(self) -> Contents:
        """The sums, with every byte checked.

        Raises:
            StorageError: the shard is missing or damaged.
        """
        check_shard(self.path, self.record)
        found: dict[Key, SplitMoments] = {}
        for place in self.places:
            found |= self.moments(place)
        return Contents(found, self.label_names, self.body["meta"])

    def moments(self, place: Place) -> dict[Key, SplitMoments]:
        """The moments of one place in every split, of a shard that is sound.

        Raises:
            StorageError: it holds NaN or infinity, or cannot be read.
        """
        start = f"{place}."
        names = [name for name in self.record.tensors if name.startswith(start)]
        read = each_of(self.path, lambda name: read_tensor(self.path, self.record, name, SIZE), names)
        tensors = dict(zip(names, read, strict=True))
        if not all(x.isfinite().all() for x in tensors.values()):
            raise StorageError(f"{str(self.file)!a} names NaN or infinity; {count_again(self.file.parent)}")
        shift = tensors[f"{start}shift"][0]
        found = {}
        for split in self.body["splits"]:
            count, class_counts = self.body["counts"][start + split]
            sums = {name: tensors[f"{start}{split}.class_sums.{i}"] for i, name in enumerate(self.label_names)}
            counts = {name: torch.tensor(one) for name, one in zip(sums, class_counts, strict=True)}
            total, gram = tensors[f"{start}{split}.sum"][0], tensors[f"{start}{split}.gram"]
            found[place, split] = SplitMoments(count, shift, total, gram, counts, sums)
        return found


def sum_tensors(contents: Contents) -> dict[str, Tensor]:
    """The tensors by name, with two axes each. Label sets are numbered: their names may be any text."""
    tensors: dict[str, Tensor] = {}
    for place in contents.places:
        start = f"{place}."
        tensors[f"{start}shift"] = contents.moments[place, contents.splits[0]].shift[None]
        for split in contents.splits:
            moments = contents.moments[place, split]
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
    folder, other = path / FOLDER, "is of another run than the store, or not a record of statistics"
    return Run(folder, "" if plan is None else plan.seal, other=other, advice=count_again(folder))


def list_sums(run: Run) -> dict[Part, list[tuple[int, str]]]:
    """Part -> (how many shards are counted, name) of its records, the newest last."""
    found: dict[Part, list[tuple[int, str]]] = {}
    for piece in run.done():
        if match := _PIECE.fullmatch(piece):
            i, n, done = map(int, match.groups())
            found.setdefault((i, n), []).append((done, piece))
    return {part: sorted(records) for part, records in sorted(found.items())}


def read_sums(run: Run, parts: Iterable[Part] | None = None) -> dict[Part, PartSums]:
    """The newest sums of each of these parts that has some; of all parts for None.

    A run that is still counting removes a record once a newer one is there. If that happens meanwhile, the newer one is
    read.

    Raises:
        StorageError: a record is damaged, or of another run than the store.
    """
    listed, found = list_sums(run), {}
    for part in listed if parts is None else parts:
        if part in listed:
            _, piece = listed[part][-1]
            try:
                body = run.read(piece, _FORM, _fits)
            except StorageError:
                if run.has(piece):
                    raise
                return read_sums(run, parts)
            record = record_in(body, FOLDER)
            assert record is not None
            found[part] = PartSums(run.folder.parent, run.file(piece), part, record, body)
    return found


def _fits(body: dict[str, Any]) -> bool:
    """True if a record of the right form agrees with itself."""
    record, (i, n), splits = record_in(body), body["part"], body["splits"]
    if record is None or body["format"] != FORMAT or not 1 <= i <= n or len(record.rows) > body["shards"]:
        return False
    if not (splits and body["places"]) or len(set(splits) & set(SPLITS)) != len(splits):
        return False
    classes = [len(names) for _, names in body["label_names"]]
    shapes: dict[str, tuple[int, int]] = {}
    for point, layer in body["places"]:
        try:
            start = f"{Place.of((point, layer))}."
            D = record.tensors[f"{start}shift"].shape[1]
        except (UnknownPoint, KeyError):
            return False
        shapes[f"{start}shift"] = (1, D)
        for split in splits:
            _, counts = body["counts"].get(start + split) or (0, [])
            if [len(one) for one in counts] != classes:
                return False
            shapes |= {f"{start}{split}.sum": (1, D), f"{start}{split}.gram": (D, D)}
            shapes |= {f"{start}{split}.class_sums.{k}": (C, D) for k, C in enumerate(classes)}
    return {name: (x.shape, x.dtype) for name, x in record.tensors.items()} == {
        name: (shape, "float64") for name, shape in shapes.items()
    }


def sums_are_whole(run: Run) -> bool:
    """True if the sums of every text are there, counted by one process or joined."""
    whole = read_sums(run, [WHOLE]).get(WHOLE)
    return whole is not None and whole.is_complete


def write_sums(run: Run, part: Part, contents: Contents, counted: Counted) -> None:
    """Write the sums of a part, then their record, then remove its older ones.

    Raises:
        StorageError: the disk refused.
    """
    made = list[Record]()
    numbers = np.array(counted.numbers, dtype=np.int64)
    write_named(run.folder, hashed_parts(numbers, sum_tensors(contents), made), lambda: made[0].file)
    counts = {
        f"{place}.{split}": [one.count, [x.tolist() for x in one.class_counts.values()]]
        for (place, split), one in contents.moments.items()
    }
    body = {"format": FORMAT, "part": part, "shards": counted.shards, "texts": counted.texts, "order": counted.order}
    body |= {"places": contents.places, "splits": contents.splits, "counts": counts, "meta": contents.meta}
    body |= {"label_names": [[name, names] for name, names in contents.label_names.items()]}
    run.write(f"{part[0]}-of-{part[1]}-{len(numbers):05d}", {**record_body(made[0]), **body})
    remove_older(run, part, len(numbers))


def remove_older(run: Run, part: Part, done: int) -> None:
    """Remove what a part had before so many of its shards were counted."""
    _remove(run, [piece for before, piece in list_sums(run).get(part, []) if before < done])


def _remove(run: Run, pieces: Iterable[str]) -> None:
    """Remove records, and then the shards that they alone name; what cannot be removed only takes room."""
    gone = set[str]()
    for piece in pieces:
        with contextlib.suppress(StorageError):
            record = record_in(run.read(piece, RECORD))
            run.remove(piece)
            gone |= set() if record is None else {record.file}
    for file in gone and gone - _files(run):
        with contextlib.suppress(StorageError):
            remove(run.folder / file)


def remove_orphans(run: Run) -> None:
    """Remove the shards of a run that died before it wrote their record; a young one may belong to a live run."""
    files = _files(run)
    remove_old(run.folder, lambda name: name.endswith(".safetensors") and name not in files)


def _files(run: Run) -> set[str]:
    """The shards that sound records name."""
    return {body["file"] for _, body in run.sound() if matches(body, RECORD)}


def join_sums(run: Run, plan: PlanFile, parts: Sequence[Part]) -> bool:
    """Add up the sums of these parts if all of them are complete, and remove theirs; True if that is done.

    Args:
        run: the records of the sums.
        plan: of the store.
        parts: all that have shards.

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
    first, folder = parts[0], str(run.folder)
    for part in parts:
        if any(part.body[field] != first.body[field] for field in _SAME):
            raise StorageError(f"{str(part.file)!a} is of another run than the other parts; {count_again(run.folder)}")
        check_shard(part.path, part.record)
    numbers = sorted(np.concatenate([part.record.rows for part in parts]).tolist())
    texts = sum(part.texts[1] for part in parts)
    if numbers != list(range(plan.shards or 0)):
        raise StorageError(
            f"the parts in {folder!a} count {texts:,} texts, and the run has {plan.rows:,}: they were cut differently, "
            "by other versions of probekit; remove the folder and run all parts again with one version"
        )
    total: dict[Key, SplitMoments] = {}
    for place in first.places:
        for part in parts:
            own = part.moments(place)
            total |= {key: total[key] + own[key] for key in own} if part is not first else own
    order = hashlib.sha256("|".join(part.body["order"] for part in parts).encode()).hexdigest()
    contents = Contents(total, first.label_names, {**first.body["meta"], "parts": len(parts)})
    write_sums(run, WHOLE, contents, Counted(numbers, len(numbers), (texts, texts), order))
