"""Activations of one model on one task: a mapping from places to tensors, with everything else that a probe needs.

A *place* is a point and a layer: `("resid_pre", 5)`, or `("embed", None)` for a point that belongs to no layer.
`ActivationSet` holds its tensors in memory; `Store` reads them from disk. Both are `Activations`.

Axes: N examples, P positions, L query position, M key position, T tokens of all examples, R rows of a place's tensor,
H heads, D width of the place (d_model for the residual stream, n_heads * d_head for q, k, v, z).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
from torch import Tensor

from probekit import registries
from probekit.activations.layout import ROWS, Layout
from probekit.activations.plan.reading.select_tokens import UNREAD, Bad
from probekit.activations.select_rows import (
    SelectedRows,
    chosen_tokens,
    labelled_rows,
    select_rows,
    selected_values,
)
from probekit.errors import DataError, UsageError
from probekit.latents.sae import Sae
from probekit.options.check import check_among, is_whole
from probekit.options.task import OnBadRow
from probekit.points import (
    FOLLOWED_BY_OUTPUT,
    PAIR_POINTS,
    NamedPlaces,
    Place,
    PointSpec,
    UnknownPoint,
    joined_name,
    spans_of,
)
from probekit.selections import ALL, PER_EXAMPLE, Selection, not_a_selection
from probekit.tasks.base import Task, examples_table, without_bad_rows
from probekit.tasks.token_labels import token_rows
from probekit.text import counted, listed, printable

if TYPE_CHECKING:
    import pandas as pd


class Activations(NamedPlaces, Mapping[Place, Tensor]):
    """Place -> [N, D], rows in the task's order; the common interface of memory and disk.

    Several positions give [N, P, D]; all tokens give [T, D]. `at` selects one row for each example from these, and
    `per_text` gives the rows of each example.

    Attributes:
        task: the examples: inputs, labels, splits, ids, groups.
        meta: where the values come from, JSON-able: model, fingerprints, places, position, dtype, versions, counts.
        layout: how many rows each example has at a place.
    """

    def __init__(self, places: Iterable[Place], task: Task, meta: dict[str, Any], layout: Layout):
        NamedPlaces.__init__(self, places, meta)
        self.task = task
        self.layout = layout

    in_shards: bool = False
    """Whether `shards` gives the rows of a place, some examples at a time, so that memory need not hold all."""

    def _rows(self, place: Place) -> Tensor:
        """All rows of a place, [R, D], those of example 0 first."""
        raise NotImplementedError

    def some_rows(self, place: Place, rows: np.ndarray) -> Tensor:
        """Some rows of a place, [n, D]; those that are on disk are read alone."""
        return self._rows(place)[torch.from_numpy(rows)]

    def width(self, place: Place) -> int:
        """D of a place."""
        raise NotImplementedError

    def shards(self, key: PointSpec) -> Iterator[tuple[np.ndarray, Tensor]]:
        """One place, some examples at a time: (examples int64, their rows [R, D]); where `in_shards`."""
        raise NotImplementedError

    def __getitem__(self, key: PointSpec) -> Tensor:
        place = self._known(key)
        if place[0] in PAIR_POINTS:
            raise UsageError(f"{place} is an array [H, L, L] for each text; read it with per_text({key!r})")
        return self.layout.shaped(place, self._rows(place))

    def per_text(self, key: PointSpec) -> list[Tensor]:
        """The rows of each example: [D], [P, D] for several positions, [L, D] for all, [H, L, M] for attention.

        Raises:
            UnknownPoint: the place was not extracted.
        """
        place = self._known(key)
        return self.layout.split(place, self._rows(place))

    def at(self, position: str | int, on_bad_row: OnBadRow = "error") -> "Activations":
        """One row for each example, [N, D], from several positions or from all tokens; labels are those of the token.

        Args:
            position: one of the extracted positions; if all tokens or those of a part were kept, any selection
                (`probekit.selections`) of these, such as "last@assistant"; one that keeps several tokens gives their
                rows; or "all", which makes every token an example, [T, D]. Its labels are then its own and those of
                its text.
            on_bad_row: "skip" leaves out the texts without such a token, and counts them in `task.info["skipped"]`.

        Raises:
            UsageError: a position that was not extracted, the mean of tokens with labels, or an unknown `on_bad_row`.
            DataError: a text without such a token; the message names it.
        """
        check_among("on_bad_row", on_bad_row, get_args(OnBadRow))
        if not (isinstance(position, str) or is_whole(position)):
            raise not_a_selection(position, ", or a token's index")
        read = Selection.of(position)
        return _EachToken(self) if read == ALL else _At(self, read, on_bad_row)

    def concatenated(self, places: Iterable[PointSpec]) -> "Activations":
        """One place whose rows are those of several places side by side, [N, D of all]; named "resid_pre_0_to_3".

        Raises:
            UnknownPoint: a place that was not extracted.
            UsageError: no places, or attention.
        """
        return SideBySide(self, [[self._known(place) for place in places]])

    def encode(
        self,
        saes: Sae | Sequence[Sae] | None = None,
        force: bool = False,
        keep: bool = False,
        progress: bool | None = None,
    ) -> "Activations":
        """The latents of sparse autoencoders or transcoders: a place ("latents", layer) of each.

        A place has a row for each row that its autoencoder reads: [N, F] for F latents, [N, P, F] for several
        positions, [T, F] for all tokens. Latents are computed anew on each read, unless the store keeps them.

        Args:
            saes: as `load_sae` gives them, of different layers; None takes those whose latents the store keeps.
            force: go on where an autoencoder is of a model of another name.
            keep: write those that are not 0 into the store, where they stay; what is there already is not written.
            progress: with keep, show progress on stderr: None on a terminal and in a notebook, True always, False
                never.

        Raises:
            UnknownPoint: a place that an autoencoder reads was not extracted.
            UsageError: something else than autoencoders, or none; a place that is not known, two of one layer, another
                width, another model; `keep` for activations in memory.
            DataError: NaN or infinity in latents that are kept.
            StorageError: the disk refused.
        """
        return registries.METHODS["encode_activations"](self, saes, force, keep, progress)

    def kept_latents(self, fingerprint: str | None = None, reads: Place | None = None) -> Sequence[Any]:
        """The latents that are kept along with these activations, `StoredLatents`: all, or those of one autoencoder."""
        return []

    def drop_damaged(self, fingerprint: str, reads: Place) -> None:
        """Remove kept latents that are damaged, before they are kept again."""

    def keep(self, sae: Sae, reads: Place, about: dict[str, Any], progress: bool | None = None) -> None:
        """Write the latents of an autoencoder that reads a place; `encode` does."""
        raise UsageError("keep=True writes into a store, and these activations are in memory; extract(..., out=PATH)")

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
        place = self.point_of(key)
        if place not in self._places:
            raise UnknownPoint(f"no activations of {place} here; there are {spans_of(self._places)}")
        return place

    @property
    def n_examples(self) -> int:
        """N."""
        return len(self.task)

    @property
    def inputs(self) -> list[str] | list[list[int]]:
        """The N texts, or lists of token ids."""
        return self.task.inputs

    @property
    def labels(self) -> dict[str, np.ndarray]:
        """Label set -> int64 [N], or float64 [N] or [N, K] for a regression; `task.token_labels` is of tokens."""
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

    def to_frame(self) -> "pd.DataFrame":
        """The examples as a table, N rows: id, text, what the model wrote, split, group, labels, other columns.

        `prompt` and `continuation` are the parts of a text that the model continued; classes are given by name.
        """
        import pandas as pd

        return pd.DataFrame(examples_table(self.task))

    def _n_bytes(self) -> int:
        raise NotImplementedError

    def __repr__(self) -> str:
        model, task = printable(self.meta.get("model", "?")), printable(self.task.name)
        kept = f"{counted(self.n_examples, 'text')} x {counted(len(self), 'place')}, {self._n_bytes() / 1e6:.1f} MB"
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
        tensors: Mapping[Any, Tensor],
        task: Task,
        meta: dict[str, Any] | None = None,
        layout: Layout | None = None,
    ):
        layout = layout or Layout([Selection("last")], np.ones(len(task), dtype=np.int64), 0)
        tensors = {Place(*place): x for place, x in tensors.items()}
        for place, x in tensors.items():
            rows = int(layout.counts(place).sum())
            if x.dim() != 2 or len(x) != rows:
                raise DataError(f"{place} must be [{rows}, width]; got {list(x.shape)}")
        super().__init__(tensors, task, _meta_of(tensors, task) if meta is None else meta, layout)
        self._tensors = tensors

    def _rows(self, place: Place) -> Tensor:
        return self._tensors[place]

    def width(self, place: Place) -> int:
        """D of a place."""
        return self._tensors[place].shape[1]

    def _n_bytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in self._tensors.values())

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return next(iter(self._tensors.values())).device


class _View(Activations):
    """Activations that are read from others on access; places of attention, whose rows are pairs, are left out."""

    def __init__(self, source: Activations, task: Task, layout: Layout, **meta: Any):
        self._source = source
        points = [point for point in source.points if point not in PAIR_POINTS]
        places = [place for place in source if place[0] not in PAIR_POINTS]
        super().__init__(places, task, {**source.meta, "points": points, **meta}, layout)

    def _rows(self, place: Place) -> Tensor:
        return self._source._rows(place)

    def width(self, place: Place) -> int:
        """D of a place."""
        return self._source.width(place)

    def _n_bytes(self) -> int:
        return self._source._n_bytes()


class _At(_View):
    """One position of activations that have several."""

    def __init__(self, source: Activations, position: Selection, on_bad_row: OnBadRow = "error"):
        layout = source.layout
        chosen, bad = _select(source, position)
        task, left = without_bad_rows(source.task, bad, UNREAD, on_bad_row)
        self._chosen = chosen = replace(chosen, counts=chosen.counts[left])
        self.made_with = position, on_bad_row
        tokens, index = chosen_tokens(layout, chosen, layout.offsets()[left])
        own = replace(
            layout,
            positions=[position],
            lengths=layout.lengths[left],
            tokens=tokens,
            picked=chosen.counts if chosen.is_ragged else None,
            token_index=index,
            characters=layout.characters[chosen.index] if chosen.is_ragged and layout.characters is not None else None,
        )
        labelled = labelled_rows(layout, task, source.meta, position, chosen, index)
        super().__init__(source, labelled, own, position=position.plain)

    def __repr__(self) -> str:
        return f"{self._source!r}.at({self.meta['position']!r})"

    def _rows(self, place: Place) -> Tensor:
        return selected_values(self._source._rows(place), self._chosen)

    def some_rows(self, place: Place, rows: np.ndarray) -> Tensor:
        """Some rows of a place, [n, D]."""
        if self._chosen.is_mean:
            return super().some_rows(place, rows)
        return self._source.some_rows(place, self._chosen.index[rows])


def _select(source: Activations, position: Selection) -> tuple[SelectedRows, Bad]:
    of_targets = source.points[0].startswith("decoder.")
    return select_rows(source.layout, source.task, position, of_targets, bool(source.meta.get("cut")))


def selected_from(
    acts: Activations, rows: np.ndarray, first: Activations | None = None
) -> tuple[Activations, np.ndarray]:
    """The activations that tokens or examples were selected from, and where they have these rows, int64.

    Those that were themselves selected from others are followed up to the very first, or up to `first`.
    """
    while True:
        if acts is first:
            return acts, rows
        if isinstance(acts, _At) and not acts._chosen.is_mean:
            acts, rows = acts._source, acts._chosen.index[rows]
        elif isinstance(acts, RowsOf):
            acts, rows = acts.source, acts.source.layout.index(ROWS, acts._index)[rows]
        else:
            return acts, rows


class SelectedPositions(_View):
    """One row of each text for each selection, [N, P, D]; a place of the source is read once for all of them.

    Args:
        source: all tokens, those of a selection, or several positions.
        positions: selections of one row each; they differ.

    Raises:
        UsageError: a position that was not extracted.
        DataError: a text without such a token.
    """

    def __init__(self, source: Activations, positions: Sequence[Selection]):
        layout, self._chosen = source.layout, list[SelectedRows]()
        for position in positions:
            chosen, bad = _select(source, position)
            without_bad_rows(source.task, bad, UNREAD, "error")
            self._chosen.append(chosen)
        N, starts = len(layout.lengths), layout.offsets()[:-1]
        tokens, index = zip(*(chosen_tokens(layout, chosen, starts) for chosen in self._chosen), strict=True)
        own = replace(
            layout,
            positions=[*positions],
            tokens=None
            if layout.tokens is None
            else _interleaved([np.full(N, -1) if t is None else t for t in tokens]),
            picked=None,
            token_index=None if any(column is None for column in index) else _interleaved(index),
            characters=None if layout.characters is None else self._characters(layout.characters),
        )
        super().__init__(source, source.task, own, position=[one.plain for one in positions])

    def _characters(self, known: np.ndarray) -> np.ndarray:
        """The characters of each token that is read, int64 [N * P, 2]; none for a mean."""
        read = [np.zeros((len(c.counts), 2), dtype=known.dtype) if c.is_mean else known[c.index] for c in self._chosen]
        return np.stack(read, axis=1).reshape(-1, 2)

    def _rows(self, place: Place) -> Tensor:
        rows = self._source._rows(place)
        return torch.stack([selected_values(rows, chosen) for chosen in self._chosen], dim=1).flatten(0, 1)


def _interleaved(columns: Sequence[Any]) -> np.ndarray:
    """One value of each text from P arrays [N] to [N * P]."""
    return np.stack(columns, axis=1).ravel()


class _EachToken(_View):
    """Activations of all tokens, each of them an example; the tensors are the source's."""

    def __init__(self, source: Activations):
        layout = source.layout
        if not layout.is_ragged:
            raise UsageError(
                "a probe of every token needs the activations of all tokens, and these are of "
                f"{listed(layout.positions)}; extract again with position all (--position all)"
            )
        rows = layout.counts()
        task = token_rows(source.task, rows, None if layout.picked is None else layout.token_index)
        own = replace(layout, positions=[PER_EXAMPLE], lengths=np.repeat(layout.lengths, rows), picked=None)
        super().__init__(source, task, own, position=str(ALL), selection=str(layout.positions[0]))

    def some_rows(self, place: Place, rows: np.ndarray) -> Tensor:
        """Some rows of a place, [n, D]."""
        return self._source.some_rows(place, rows)

    def __repr__(self) -> str:
        return f"{self._source!r}.at({ALL!r})"


class RowsOf(_View):
    """Some examples of activations, read on access.

    Args:
        source: of all examples.
        rows: which examples, int64.
    """

    def __init__(self, source: Activations, rows: np.ndarray):
        self._index = rows
        super().__init__(source, source.task.subset(rows), source.layout.of_examples(rows))
        self.source, self._places, self.meta["points"] = source, [*source], source.points  # attention too

    def _rows(self, place: Place) -> Tensor:
        rows = self._source._rows(place)
        return rows[torch.from_numpy(self._source.layout.index(place, self._index)).to(rows.device)]

    def some_rows(self, place: Place, rows: np.ndarray) -> Tensor:
        """Some rows of a place, [n, D]."""
        return self._source.some_rows(place, self._source.layout.index(place, self._index)[rows])


class SideBySide(Activations):
    """Groups of places, each group joined on access to one place, [N, D of all].

    Args:
        source: with all the places.
        groups: places of `source`.

    Raises:
        UsageError: a group without places, or attention.
    """

    def __init__(self, source: Activations, groups: Sequence[Sequence[Place]]):
        for places in groups:
            if not places or any(point in PAIR_POINTS for point, _ in places):
                found = spans_of(places) or "nothing"
                raise UsageError(
                    f"only points with one row for each token can be put side by side; got {found}; name others"
                )
        self._source = source
        self._groups = {Place(joined_name(places), None): places for places in groups}
        points = [name for name, _ in self._groups]
        super().__init__(self._groups, source.task, {**source.meta, "points": points}, source.layout)

    @property
    def joined(self) -> list[Place]:
        """The places of the source in all groups."""
        return [place for places in self._groups.values() for place in places]

    def same_of(self, other: Activations) -> "SideBySide":
        """The same places of other activations side by side."""
        return SideBySide(other, [*self._groups.values()])

    def _rows(self, place: Place) -> Tensor:
        return torch.cat([self._source._rows(one) for one in self._groups[place]], dim=1)

    def width(self, place: Place) -> int:
        """D of the joined places."""
        return sum(self._source.width(one) for one in self._groups[place])

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
