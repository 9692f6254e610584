"""The plan of an import: which examples, which places, and the source that gives their rows; in words and in JSON too.

A source is arrays (`arrays.py`) or the requests of vLLM (`vllm.py`). `run.py` carries a plan out.

Axes: N examples, R rows of a place in a shard, D width of a place.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from probekit.activations.layout import Layout, row_bytes
from probekit.points import Place, spans_of
from probekit.selections import Selection
from probekit.tasks.base import SPLITS, Task
from probekit.tasks.fields import origin_of_splits
from probekit.tasks.splitting.classes import look_alike_words
from probekit.text import counted, listed, printable

STORED_AS = {"float16": "float16", "bfloat16": "bfloat16", "float32": "float32", "float64": "float32"}


class Source(Protocol):
    """Where the rows of an import come from."""

    @property
    def format(self) -> str:
        """What the files are, as the options name it."""
        ...

    @property
    def n_bytes(self) -> int:
        """Bytes that are read to check the files."""
        ...

    def checked(self, advance: Callable[[int], object]) -> dict[str, Any]:
        """Read every file once; what of it decides the bits of the store, checksums of the files included.

        Raises:
            DataError: NaN, infinity or a value that the type on disk cannot hold; a file that cannot be read, or was
                written meanwhile.
        """
        ...

    def rows(self, shard: np.ndarray) -> dict[Place, Tensor]:
        """The rows of these examples at each place, [R, D]; errors as in `checked`."""
        ...

    def type_of(self, place: Place) -> str:
        """The type of a place in the files, as numpy names it; the coarsest where they differ."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """What it says of itself, JSON-able."""
        ...

    def lines(self, left_aside: list[str], in_full: bool) -> Iterator[tuple[str, str]]:
        """The same in words, as (key, text), and what was left aside; `in_full` with each array."""
        ...


@dataclass(frozen=True, eq=False)
class RowCheck:
    """The rows that are compared with our own forward pass before anything is written.

    Attributes:
        model: what `load_model` takes.
        rows: ascending indices of examples; none where the weights are not at hand.
        seed: that they were drawn with.
        position: of the tokens, as given.
        bos: whether the texts begin with a BOS; None for the default of `extract`.
        asked: whether a number of rows was given.
        why_not: why there are no rows; empty if 0 was given.
    """

    model: str
    rows: np.ndarray
    seed: int
    position: Any
    bos: bool | None
    asked: bool
    why_not: str

    def __str__(self) -> str:
        if len(self.rows):
            return (
                f"{counted(len(self.rows), 'row')} against the forward pass of {self.model}, before anything is written"
            )
        return f"no ({self.why_not})" if self.why_not else "no"


@dataclass(frozen=True, eq=False)
class ImportPlan:
    """One import, ready to run with `run_import`.

    Attributes:
        path: the folder or file.
        source: gives the rows.
        task: the N examples.
        model: name of the model in titles.
        points: short names, the one that is probed by default first.
        places: every place, in curve order.
        widths: D of each place.
        n_layers: number of the model's blocks.
        positions: the tokens that the activations belong to, or "not recorded".
        layout: how many rows each example has.
        dtype: name of the type on disk.
        shards: row indices of each shard.
        left_aside: names of files in the folder that give nothing.
        check: what is verified; None where no model was named.
    """

    path: Path
    source: Source = field(repr=False)
    task: Task = field(repr=False)
    model: str
    points: list[str]
    places: list[Place]
    widths: list[int]
    n_layers: int
    positions: list[Selection]
    layout: Layout = field(repr=False)
    dtype: str
    shards: list[np.ndarray] = field(repr=False)
    left_aside: list[str]
    check: RowCheck | None = None

    @property
    def position(self) -> Any:
        """The positions for people, JSON-able: one as it was given, several by name."""
        return self.positions[0].plain if len(self.positions) == 1 else [str(one) for one in self.positions]

    @property
    def row_bytes(self) -> np.ndarray:
        """Bytes of each example on disk, int64 [N]."""
        return row_bytes(self.layout, self.places, self.widths, self.dtype)


def import_as_dict(plan: ImportPlan) -> dict[str, Any]:
    """The plan as JSON-able numbers and names."""
    return {
        "kind": "import",
        "source": str(plan.path),
        "model": plan.model,
        "task": plan.task.name,
        "texts": len(plan.task),
        "splits": {split: int((plan.task.splits == split).sum()) for split in SPLITS},
        "points": plan.points,
        "n_layers": plan.n_layers,
        "places": [list(place) for place in plan.places],
        "widths": plan.widths,
        "position": plan.position,
        "dtype": plan.dtype,
        "bytes": int(plan.row_bytes.sum()),
        "shards": len(plan.shards),
        "left_aside": [ascii(name)[1:-1] for name in plan.left_aside],
        "has_texts": plan.task.has_texts,
        **({} if plan.check is None else {"verify": len(plan.check.rows)}),
        **plan.source.as_dict(),
    }


def describe_import(plan: ImportPlan, arrays: bool = True) -> str:
    """The plan as short aligned lines for the terminal; with `arrays` also the places of each array."""
    task = plan.task
    splits = ", ".join(f"{(task.splits == split).sum():,} {split}" for split in SPLITS)
    widths = "/".join(str(width) for width in dict.fromkeys(plan.widths))
    rows = int(plan.layout.counts(plan.places[0]).sum())
    size = f"{plan.row_bytes.sum() / 1e6:,.1f} MB"
    lines = [
        ("model", f"{plan.model}: {counted(plan.n_layers, 'layer')}"),
        ("task", f"{task.name}: {counted(len(task), 'example')} ({splits})"),
        ("read", f"{spans_of(plan.places)}; token {listed(plan.layout.positions)}"),
        ("size", f"{size}: {rows:,} x {counted(len(plan.places), 'place')} x {widths} {plan.dtype}"),
    ]
    if plan.check is not None:
        lines.append(("verify", str(plan.check)))
    if origin := origin_of_splits(task.info):
        lines.append(("splits", origin))
    if alike := look_alike_words(task.label_names[task.target]):
        lines.append(("alike", alike))
    if not task.n_classes():
        labels = task.labels[task.target]
        lines.append(("labels", f"numbers, {labels.min():g} to {labels.max():g}: a regression"))
    lines += plan.source.lines(plan.left_aside, arrays)
    return "\n".join(f"{key:<8}{printable(value)}" for key, value in lines)
