"""What an import will do, known before it starts: what each array became, and whether every value can be kept.

What the headers and the labels tell is known when the plan is made (`imports.plan_import`); every file is read once,
for its checksum and for values that cannot be kept, when the plan's identity is asked for, or by `read`.

Axes: N examples, D width of a place.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.digest import FORMAT_VERSION, identity_digest
from probekit.activations.imports.array_files import Held, arrays_of, scan, state_of
from probekit.activations.imports.sources import Source, as_json, as_words
from probekit.activations.listing import folder_name
from probekit.activations.plan.build import SHARD_BYTES
from probekit.devices import DTYPES
from probekit.errors import DataError
from probekit.points import Place, place_name, spans_of
from probekit.tasks.base import SPLITS, Task
from probekit.tasks.labelled import NO_TEXTS
from probekit.text import printable


@dataclass(frozen=True, eq=False)
class ImportPlan:
    """One import, ready to run (`run_import`); print `describe()` to see what each file became.

    Attributes:
        source: the folder or file.
        sources: every array with its places.
        task: the N examples.
        model: what titles call the model.
        points: short names, the one that is probed by default first.
        places: every place, in curve order.
        widths: D of each place.
        n_layers: blocks of the model.
        position: the token that was read, in words, or "not recorded".
        dtype: the type that is kept.
        left_aside: names in the folder that are no arrays.
    """

    source: Path
    sources: list[Source] = field(repr=False)
    task: Task = field(repr=False)
    model: str
    points: list[str]
    places: list[Place]
    widths: list[int]
    n_layers: int
    position: str | int
    dtype: str
    left_aside: list[str]
    _states: dict[Path, tuple[int, int, int]] = field(repr=False)

    @property
    def texts(self) -> int:
        """N."""
        return len(self.task)

    @property
    def bytes(self) -> int:
        """Bytes of all tensors on disk."""
        return self.texts * sum(self.widths) * DTYPES[self.dtype].itemsize

    @property
    def shard_rows(self) -> int:
        """Rows of a shard."""
        return max(1, SHARD_BYTES // (sum(self.widths) * DTYPES[self.dtype].itemsize))

    @property
    def shards(self) -> list[np.ndarray]:
        """Row indices of each shard."""
        return [
            np.arange(start, min(start + self.shard_rows, self.texts))
            for start in range(0, self.texts, self.shard_rows)
        ]

    @property
    def is_read(self) -> bool:
        """Whether every file was read and found good."""
        return "checksums" in self.__dict__

    @cached_property
    def checksums(self) -> dict[str, str]:
        """Name of each file -> sha256 of its bytes, every value having been looked at on the way.

        Raises:
            DataError: NaN, infinity or a value that the kept type cannot hold; a file that cannot be read.
        """
        return self._read_all(lambda n: None)

    def read(self, advance: Callable[[int], object]) -> None:
        """Read every file once, unless that was done; `advance` is called with bytes. Errors as of `checksums`."""
        if not self.is_read:
            self.__dict__["checksums"] = self._read_all(advance)

    def _read_all(self, advance: Callable[[int], object]) -> dict[str, str]:
        by_file: dict[Path, list[Held]] = {path: arrays_of(path) for path in self._states}
        known = {(source.array.file, source.array.key): source for source in self.sources}

        def look(array: Held, values: Tensor) -> None:
            source = known.get((array.file, array.key))
            if source is not None and not _all_finite(values.to(DTYPES[self.dtype])):
                raise self._not_finite(source)

        found = {ascii(path.name)[1:-1]: scan(arrays, look, advance) for path, arrays in by_file.items()}
        self.check_unchanged()
        return found

    def _not_finite(self, source: Source) -> DataError:
        """The error for the first row of an array that cannot be kept, at its first place."""
        for rows in self.shards:
            found = source.rows(int(rows[0]), int(rows[-1]) + 1)
            bad = torch.stack([~x.to(DTYPES[self.dtype]).isfinite().all(1) for x in found.values()])
            if bad.any():
                row = int(bad.any(0).int().argmax())
                place = source.places[int(bad[:, row].int().argmax())]
                return _why(source, place, int(rows[row]), found[place][row], self)
        return DataError(f"{source.array.where} changed while it was read; run the same command again")

    def check_unchanged(self) -> None:
        """Raise a DataError if a file was written since the plan was made."""
        for path, state in self._states.items():
            if state_of(path) != state:
                raise DataError(f"{str(path)!a} was written while it was imported; run the same command again")

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the bits of the result, JSON-able; reads every file once."""
        return {
            "version": FORMAT_VERSION,
            "kind": "import",
            "sources": self.checksums,
            "source_fingerprint": identity_digest(self.checksums),
            "arrays": {ascii(s.array.where): as_json(s) for s in self.sources},
            "task_fingerprint": self.task.fingerprint(),
            "model_name": self.model,
            "task_name": self.task.name,
            "n_layers": self.n_layers,
            "rows": self.texts,
            "points": self.points,
            "places": [list(place) for place in self.places],
            "widths": self.widths,
            "position": self.position,
            "dtype": self.dtype,
            "shard_rows": self.shard_rows,
            "shards": len(self.shards),
        }

    @property
    def digest(self) -> str:
        """Hex sha256 of the identity."""
        return identity_digest(self.identity)

    @property
    def default_path(self) -> Path:
        """The store of this import under runs/; equal imports find the same one."""
        parts = [self.model, self.task.name, "-".join(self.points), "import", self.digest[:8]]
        return Path("runs", folder_name(parts))

    def as_dict(self) -> dict[str, Any]:
        """The plan as JSON-able numbers and names."""
        return {
            "kind": "import",
            "source": str(self.source),
            "model": self.model,
            "task": self.task.name,
            "texts": self.texts,
            "splits": {split: int((self.task.splits == split).sum()) for split in SPLITS},
            "points": self.points,
            "n_layers": self.n_layers,
            "places": [list(place) for place in self.places],
            "widths": self.widths,
            "position": self.position,
            "dtype": self.dtype,
            "bytes": self.bytes,
            "shards": len(self.shards),
            "arrays": [as_json(source) for source in self.sources],
            "left_aside": self.left_aside,
            "has_texts": not self.task.info.get(NO_TEXTS),
        }

    def describe(self, arrays: bool = True) -> str:
        """The plan as short aligned lines for the terminal; with `arrays` what each of them became."""
        splits = ", ".join(f"{(self.task.splits == split).sum():,} {split}" for split in SPLITS)
        widths = "/".join(str(width) for width in dict.fromkeys(self.widths))
        lines = [
            ("model", f"{self.model}: {self.n_layers} layers"),
            ("task", f"{self.task.name}: {self.texts:,} examples ({splits})"),
            ("read", f"{spans_of(self.places)}; token {self.position}"),
            ("size", f"{self.bytes / 1e6:,.1f} MB: {self.texts:,} x {len(self.places)} places x {widths} {self.dtype}"),
        ]
        if not self.task.n_classes():
            labels = self.task.labels[self.task.target]
            lines.append(("labels", f"numbers, {labels.min():g} to {labels.max():g}: a regression"))
        if self.task.info.get(NO_TEXTS):
            lines.append(("texts", "none: there will be no bag-of-words baseline (--text-column)"))
        lines += [("rounded", what) for what in self._rounded()]
        if self.left_aside:
            lines.append(("aside", f"not read: {', '.join(self.left_aside)}"))
        lines += [("array", as_words(source)) for source in self.sources] if arrays else []
        return "\n".join(f"{key:<8}{printable(value)}" for key, value in lines)

    def _rounded(self) -> Iterator[str]:
        for held in dict.fromkeys(source.array.type_name for source in self.sources):
            if torch.promote_types(getattr(torch, held), DTYPES[self.dtype]) != DTYPES[self.dtype]:
                yield f"from {held} to {self.dtype}"


def _all_finite(values: Tensor) -> bool:
    """Whether no value is NaN or infinite; both ends show it."""
    return all(bool(end.isfinite()) for end in values.aminmax())


def _why(source: Source, place: Place, row: int, x: Tensor, plan: ImportPlan) -> DataError:
    where = f"{source.array.where} ({place_name(place)}), first in row {row} (example {plan.task.ids[row]!a})"
    if x.isfinite().all():
        dtype = DTYPES[plan.dtype]
        return DataError(
            f"{x.abs().max():.3g} in {where} is more than {plan.dtype} holds ({torch.finfo(dtype).max:.3g}); "
            "keep a wider type (--store-dtype), or look for what made it so large"
        )
    what = "NaN" if x.isnan().any() else "infinity"
    return DataError(f"{what} in {where}; mend the activations where they were taken")
