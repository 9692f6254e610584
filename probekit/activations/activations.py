"""Activations of one model on one task: a mapping from places to tensors, with everything else that a probe needs.

A *place* is a point and a layer: `("resid_pre", 5)`, or `("embed", None)` for a point that belongs to no layer.
`ActivationSet` holds its tensors in memory; `Store` reads them from disk. Both are `Activations`.

Axes: N examples, P positions, L query position, M key position, T tokens of all examples, R rows of a place's tensor,
H heads, D width of the place (d_model for the residual stream, n_heads * d_head for q, k, v, z).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.layout import Layout
from probekit.errors import DataError, UsageError
from probekit.points import (
    FOLLOWED_BY_OUTPUT,
    PAIR_POINTS,
    Place,
    PointSpec,
    UnknownPoint,
    as_extracted,
    place_name,
    spans_of,
    split_point,
)
from probekit.tasks.base import Task
from probekit.text import printable


class Activations(Mapping[Place, Tensor]):
    """Place -> [N, D], rows in the task's order; the common interface of memory and disk.

    Several positions give [N, P, D]; all tokens give [T, D]. `at` selects one row for each example from these, and
    `per_text` gives the rows of each example.

    Attributes:
        task: the examples: inputs, labels, splits, ids, groups.
        meta: where the values come from, JSON-able: model, fingerprints, places, position, dtype, versions, counts.
        layout: how many rows each example has at a place.
    """

    def __init__(self, places: Iterable[Place], task: Task, meta: dict[str, Any], layout: Layout):
        self._places = list(places)
        self.task = task
        self.meta = meta
        self.layout = layout

    def _rows(self, place: Place) -> Tensor:
        """All rows of a place, [R, D], those of example 0 first."""
        raise NotImplementedError

    def __getitem__(self, key: PointSpec) -> Tensor:
        place = self._known(key)
        if place[0] in PAIR_POINTS:
            raise UsageError(f"{place_name(place)} is [H, L, L] in each text; read it with per_text({key!r})")
        return self.layout.shaped(place, self._rows(place))

    def per_text(self, key: PointSpec) -> list[Tensor]:
        """The rows of each example: [D], [P, D] for several positions, [L, D] for all, [H, L, M] for attention.

        Raises:
            UnknownPoint: the place was not extracted.
        """
        place = self._known(key)
        return self.layout.split(place, self._rows(place))

    def at(self, position: str | int) -> "Activations":
        """One row for each example, [N, D], from several positions or from all tokens.

        Args:
            position: one of the extracted positions; if those are "all": "last", "first", "mean" or an index.

        Raises:
            UsageError: a position that was not extracted.
            DataError: a text too short for the index.
        """
        return _At(self, position)

    def __contains__(self, key: object) -> bool:
        try:
            self._known(key)  # pyright: ignore[reportArgumentType]
        except KeyError:
            return False
        return True

    def __iter__(self) -> Iterator[Place]:
        return iter(self._places)

    def __len__(self) -> int:
        """The number of places."""
        return len(self._places)

    def _known(self, key: PointSpec) -> Place:
        short, layer = split_point(key)
        place = (self.in_stack(short), layer)
        if place not in self._places:
            raise UnknownPoint(f"no activations of {place_name(place)} here; there are {spans_of(self._places)}")
        return place

    @property
    def n_examples(self) -> int:
        """N."""
        return len(self.task)

    @property
    def points(self) -> list[str]:
        """The short names of the requested points, in that order."""
        return list(self.meta["points"])

    @property
    def n_layers(self) -> int:
        """The number of blocks of the model, including any that were not extracted."""
        return int(self.meta["n_layers"])

    @property
    def output(self) -> str:
        """The point of the last block's output, which ends the residual curve."""
        return str(self.meta.get("output", "resid_post"))

    @property
    def inputs(self) -> list[str] | list[list[int]]:
        """The N texts, or lists of token ids."""
        return self.task.inputs

    @property
    def labels(self) -> dict[str, np.ndarray]:
        """Label set -> int64 [N], or float64 [N] for a regression."""
        return self.task.labels

    @property
    def label_names(self) -> dict[str, list[str]]:
        """Label set -> class names, in label order; empty for a regression."""
        return self.task.label_names

    @property
    def target(self) -> str:
        """The default label set."""
        return self.task.target

    @property
    def splits(self) -> np.ndarray:
        """[N] of "train", "validation", "test"."""
        return self.task.splits

    @property
    def groups(self) -> np.ndarray | None:
        """[N] or None; all examples of a group are in the same split."""
        return self.task.groups

    @property
    def ids(self) -> list[str]:
        """N names, one for each example."""
        return self.task.ids

    def in_stack(self, short: str) -> str:
        """The short name here: `"resid_pre"` is `"encoder.resid_pre"` in the activations of an encoder."""
        return as_extracted(short, self._places)

    def curve(self, point: str) -> list[Place]:
        """The places of one point in layer order; for a residual point, then the output of the last block.

        Raises:
            UnknownPoint: the point was not extracted.
        """
        short = self.in_stack(split_point(point)[0])
        places = sorted((p for p in self._places if p[0] == short), key=lambda p: p[1] or 0)
        if not places:
            raise UnknownPoint(f"no activations of {short} here; there are {spans_of(self._places)}")
        output = (self.output, self.n_layers - 1)
        return [*places, output] if short in FOLLOWED_BY_OUTPUT and output in self._places else places

    def _n_bytes(self) -> int:
        raise NotImplementedError

    def __repr__(self) -> str:
        model, task = printable(self.meta.get("model", "?")), printable(self.task.name)
        kept = f"{self.n_examples} texts x {len(self)} places, {self._n_bytes() / 1e6:.1f} MB"
        return f"{type(self).__name__}({model} on {task}: {kept}; {spans_of(self._places)})"


class ActivationSet(Activations):
    """Activations in memory, on the device that computed them.

    Args:
        tensors: place -> [R, D], in the task's order.
        task: the N examples.
        meta: as in `Activations`; None takes points and n_layers from the places.
        layout: how many rows each example has; None is one.

    Raises:
        DataError: a tensor that is not [R, D].
    """

    def __init__(
        self,
        tensors: Mapping[Place, Tensor],
        task: Task,
        meta: dict[str, Any] | None = None,
        layout: Layout | None = None,
    ):
        layout = layout or Layout(["last"], np.ones(len(task), dtype=np.int64), 0)
        for place, x in tensors.items():
            rows = int(layout.counts(place).sum())
            if x.dim() != 2 or len(x) != rows:
                raise DataError(f"{place_name(place)} must be [{rows}, width]; got {list(x.shape)}")
        super().__init__(tensors, task, _meta_of(tensors, task) if meta is None else meta, layout)
        self._tensors = dict(tensors)

    def _rows(self, place: Place) -> Tensor:
        return self._tensors[place]

    def _n_bytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in self._tensors.values())

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return next(iter(self._tensors.values())).device


class _At(Activations):
    """One position of activations that have several, selected on access."""

    def __init__(self, source: Activations, position: str | int):
        self._source = source
        self._index = source.layout.index_of(position, source.ids)
        places = [place for place in source if place[0] not in PAIR_POINTS]
        points = [point for point in source.points if point not in PAIR_POINTS]
        known, index = source.layout.tokens, self._index
        tokens = None if known is None or index is None else known[index]
        layout = replace(source.layout, positions=[str(position)], tokens=tokens)
        super().__init__(places, source.task, {**source.meta, "points": points, "position": position}, layout)

    def _rows(self, place: Place) -> Tensor:
        rows = self._source._rows(place)
        if self._index is not None:
            return rows[torch.from_numpy(self._index).to(rows.device)]
        lengths = torch.from_numpy(self._source.layout.counts(place)).to(rows.device)
        wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
        return torch.segment_reduce(wide, "mean", lengths=lengths, axis=0).to(rows.dtype)

    def _n_bytes(self) -> int:
        return self._source._n_bytes()


def _meta_of(tensors: Mapping[Place, Tensor], task: Task) -> dict[str, Any]:
    layers = [layer for _, layer in tensors if layer is not None]
    n_layers = max(layers, default=-1) + 1
    points = list(dict.fromkeys(point for point, _ in tensors))
    if ("resid_post", n_layers - 1) in tensors and set(points) & set(FOLLOWED_BY_OUTPUT):
        is_output_only = sum(point == "resid_post" for point, _ in tensors) == 1
        points = [point for point in points if not (is_output_only and point == "resid_post")]
    return {"model": "unnamed", "task": task.name, "points": points, "n_layers": n_layers}
