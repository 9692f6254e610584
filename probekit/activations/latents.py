"""Latents of activations: a view whose places are those of sparse autoencoders and transcoders.

Axes: N examples, R rows of a place, D width of what is read, F latents.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from probekit.activations.activations import Activations, RowsOf, _At, _EachToken, _View
from probekit.activations.store.kept_latents import StoredLatents
from probekit.errors import UsageError
from probekit.latents.config import plain_name
from probekit.latents.sae import Sae
from probekit.latents.sparse import (
    COPIES_OF_SPARSE,
    SPARSE_BYTES,
    at_once,
    checked_latents,
    dead_latents,
    dense_size,
    encoded_sparse,
    stacked,
)
from probekit.points import LATENTS, Place, PointSpec, UnknownPoint, as_extracted, base_name, in_stack, spans_of
from probekit.text import kind_of

REMEMBERED_BYTES = 1 << 28  # of the sparse latents of one place that the next read finds
MEASURED_SHARDS = 4
MEASURED_ROWS = 1_000  # that say how much of the variance an autoencoder explains


def encode_activations(
    acts: Activations, saes: Sae | Sequence[Sae] | None, force: bool, keep: bool, progress: bool | None
) -> "Latents":
    """`Activations.encode`."""
    if saes is None:
        return Latents(acts, None)
    given = [saes] if isinstance(saes, Sae) else [*saes] if isinstance(saes, Sequence) else []
    if not given or not all(isinstance(one, Sae) for one in given):
        got = kind_of(saes) if saes else "an empty list"
        raise UsageError(f"encode takes what load_sae gives, or a list of these; got {got}")
    latents = Latents(acts, given, force, keep)
    missing = [] if not keep else [place for place in latents if not latents.is_kept(place)]
    for place in missing:
        check_alive(latents, place)
        acts.keep(given[[*latents].index(place)], latents.reads(place), latents.about(place), progress)
    return Latents(acts, given, force) if missing else latents


def encoded_rows(acts: Activations, sae: Sae, reads: Place, examples: np.ndarray, rows: Tensor) -> csr_array:
    """The latents that are not 0 of the rows of some examples, [R, F].

    Raises:
        DataError: one is NaN or infinite.
    """
    ends = np.cumsum(acts.layout.counts(reads)[examples])
    return checked_latents(sae, rows, lambda row: acts.ids[int(examples[np.searchsorted(ends, row, side="right")])])


@dataclass(frozen=True, eq=False)
class _OneEncoder:
    """Where the latents of one place come from: an autoencoder, its stored latents, or both."""

    reads: Place
    width: int
    name: str
    fingerprint: str
    sae: Sae | None
    kept: StoredLatents | None
    about: dict[str, Any]


class Latents(_View):
    """Latents of activations, worked out on access, or read where a store keeps them.

    Args:
        source: with the places that the autoencoders read.
        saes: of different layers; None takes all that the source keeps.
        force: as in `Activations.encode`.
        to_keep: whether latents will be kept: damaged ones that are there are removed.

    Raises:
        UsageError: as `Activations.encode`.
    """

    in_shards = True

    def __init__(self, source: Activations, saes: Sequence[Sae] | None, force: bool = False, to_keep: bool = False):
        self._last: tuple[Activations, Place, csr_array] | None = None
        self._of: dict[Place, _OneEncoder] = {}
        if saes is None:
            kept = source.kept_latents()
            found = [_OneEncoder(one.reads, one.width, one.name, one.fingerprint, None, one, one.about) for one in kept]
            if not found:
                raise UsageError(
                    "no latents are kept here: name autoencoders, encode(load_sae(PATH)) (--sae PATH), keep theirs "
                    "with extract --sae PATH, or call encode() on the store itself"
                )
        else:
            widths, found = {place: source.width(place) for place in source}, []
            for sae in saes:
                reads = check_reads(sae, widths, str(source.meta.get("model", "")), force)
                mark = sae.fingerprint()
                if to_keep:
                    source.drop_damaged(mark, reads)
                there = next(iter(source.kept_latents(mark, reads)), None)
                about = there.about if there else _measured(source, sae, reads)
                found.append(_OneEncoder(reads, sae.cfg.d_latents, sae.name, mark, sae, there, about))
        for one in found:
            place = latents_of(one.reads)
            if place in self._of:
                raise UsageError(one_layer(self._of[place].name, one.name))
            self._of[place] = one
        read = {"position": source.meta.get("position")}  # a mean of latents is none of what they are of
        about = {
            str(place): {"of": str(one.reads), "sae": from_the_root(one.name), "fingerprint": one.fingerprint}
            | read
            | one.about
            for place, one in self._of.items()
        }
        points = list(dict.fromkeys(point for point, _ in self._of))
        super().__init__(source, source.task, source.layout, points=points, latents=about)
        self._places = [*self._of]

    @property
    def saes(self) -> list[Sae]:
        """The autoencoders, in the order of the places.

        Raises:
            UsageError: their latents were kept, and they themselves are not known.
        """
        if unknown := [one.name for one in self._of.values() if one.sae is None]:
            raise UsageError(f"this needs the autoencoder {unknown[0]!a:.200} itself; name it (--sae PATH)")
        return [one.sae for one in self._of.values() if one.sae is not None]

    def sae(self, place: Place) -> Sae:
        """The autoencoder of a place; errors as `saes`."""
        return self.saes[[*self].index(place)]

    def about(self, place: Place) -> dict[str, Any]:
        """What was measured of the autoencoder, such as the variance it explains; JSON-able."""
        return self._of[place].about

    def reads(self, place: Place) -> Place:
        """The place of the source that the latents are of."""
        return self._of[place].reads

    def is_kept(self, place: Place) -> bool:
        """Whether the latents of a place are read, and not worked out."""
        return self._of[place].kept is not None

    def width(self, place: Place) -> int:
        """How many latents a place has."""
        return self._of[place].width

    def shards(self, key: PointSpec) -> Iterator[tuple[np.ndarray, Tensor]]:
        """The latents of a place as those of a store are read, or of as many examples as are encoded at once."""
        place = self._known(key)
        if kept := self._of[place].kept:
            yield from ((examples, torch.from_numpy(rows.toarray())) for examples, rows in kept.shards())
            return
        source = self._source
        for examples, rows in source.shards(self.reads(place)) if source.in_shards else self._in_blocks(place):
            yield examples, torch.cat([*self.encoded(place, [rows])])

    def encoded(self, place: Place, blocks: Iterable[Tensor]) -> Iterator[Tensor]:
        """The latents of a place, some rows at once, from blocks of rows that its autoencoder reads."""
        sae = self._of[place].sae
        assert sae is not None
        return (sae.encode(rows) for block in blocks for rows in block.split(at_once(self.width(place))))

    def sparse(self, place: Place, room: int | None = None) -> csr_array | None:
        """The latents of a place that are not 0, in the order of its rows: [R, F].

        Args:
            place: where.
            room: bytes that they may take; None is no limit.

        Returns:
            The matrix; None where too many are not 0 to save memory, or they have no room.

        Raises:
            DataError: NaN or infinity.
        """
        kept = self._of[place].kept
        shards = kept.shards() if kept else self._sparse_shards(place)
        numbered = ((self.layout.index(place, examples), rows) for examples, rows in shards)
        return self.joined(self, place, numbered, None if kept else room, bool(kept))

    def joined(
        self,
        acts: Activations,
        place: Place,
        numbered: Iterable[tuple[np.ndarray, csr_array]],
        room: int | None,
        whatever_it_takes: bool = False,
    ) -> csr_array | None:
        """Blocks of latents as one matrix, which the next call for the same activations finds.

        Args:
            acts: these latents, or rows of them.
            place: of the latents.
            numbered: the numbers of some rows, and the rows [R, F].
            room: bytes that they may take; None is no limit.
            whatever_it_takes: never give up.

        Returns:
            The matrix in the order of the numbers; None as for `sparse`.
        """
        if self._last is not None and self._last[0] is acts and self._last[1] == place:
            return self._last[2]
        numbers, blocks, n_bytes, dense_bytes = [], list[csr_array](), 0, 0
        for some, rows in numbered:
            numbers.append(some)
            blocks.append(rows)
            n_bytes, dense_bytes = n_bytes + SPARSE_BYTES * rows.nnz, dense_bytes + dense_size(rows)
            too_many = 2 * n_bytes > dense_bytes or (room is not None and COPIES_OF_SPARSE * n_bytes > room)
            if too_many and not whatever_it_takes:
                return None
        found = stacked(blocks)
        del blocks
        every = np.concatenate(numbers)
        found = found if (np.diff(every) > 0).all() else found[np.argsort(every)]
        self._last = (acts, place, found) if n_bytes <= REMEMBERED_BYTES else None
        return found

    def _sparse_shards(self, place: Place) -> Iterator[tuple[np.ndarray, csr_array]]:
        """As `StoredLatents.shards`, checked."""
        one, source = self._of[place], self._source
        assert one.sae is not None
        for examples, rows in source.shards(one.reads) if source.in_shards else self._in_blocks(place):
            yield examples, encoded_rows(source, one.sae, one.reads, examples, rows)

    def _in_blocks(self, place: Place) -> Iterator[tuple[np.ndarray, Tensor]]:
        """What is read, in memory, of as many examples as are encoded at once."""
        reads = self.reads(place)
        rows, ends, start = self._source._rows(reads), np.cumsum(self._source.layout.counts(reads)), 0
        while start < len(ends):
            before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + at_once(self.width(place)), side="right")))
            yield np.arange(start, stop), rows[before : int(ends[stop - 1])]
            start = stop

    def _rows(self, place: Place) -> Tensor:
        if self.is_kept(place):
            matrix = self.sparse(place)
            assert matrix is not None
            return torch.from_numpy(matrix.toarray())
        rows = self._source._rows(self.reads(place))
        found = torch.empty(0)
        start = 0
        for block in self.encoded(place, [rows]):
            if not start:
                found = block.new_empty(len(rows), block.shape[1])
            found[start : start + len(block)] = block
            start += len(block)
        return found if start else torch.zeros(0, self.width(place))

    def _n_bytes(self) -> int:
        return sum(int(self.layout.counts(place).sum()) * 4 * self.width(place) for place in self._places)


class Unencoded(_View):
    """Activations at the places of latents: those that they are of, or at other places of their source.

    Args:
        latents: whose autoencoders read them.
        at: place of latents -> a place of the source; None is what is read.
    """

    def __init__(self, latents: Latents, at: Mapping[Place, Place] | None = None):
        self._at = {place: latents.reads(place) for place in latents} if at is None else at
        super().__init__(latents._source, latents.task, latents.layout, points=latents.points)
        self._places = [*self._at]
        for place in self._at.values():
            self._source._known(place)

    def reads(self, place: Place) -> Place:
        """The place of the source."""
        return self._at[place]

    def _rows(self, place: Place) -> Tensor:
        return self._source._rows(self.reads(place))

    def some_rows(self, place: Place, rows: np.ndarray) -> Tensor:
        """Some rows of a place, [n, D]."""
        return self._source.some_rows(self.reads(place), rows)

    def width(self, place: Place) -> int:
        """D of what is read."""
        return self._source.width(self.reads(place))


def before_encoding(acts: Activations, at: Mapping[Place, Place] | None = None) -> Activations | None:
    """The same rows of what latents are of, or `at` other places; None for activations that are no latents.

    Raises:
        UnknownPoint: a place was not extracted.
    """
    if isinstance(acts, Latents):
        return Unencoded(acts, at)
    if not isinstance(acts, _At | _EachToken | RowsOf):
        return None
    source = before_encoding(acts.source if isinstance(acts, RowsOf) else acts._source, at)
    if source is None:
        return None
    if isinstance(acts, RowsOf):
        return RowsOf(source, acts._index)
    return _At(source, *acts.made_with) if isinstance(acts, _At) else _EachToken(source)


def has_means(acts: Activations) -> bool:
    """Whether rows that were selected from others are means of several."""
    while isinstance(acts, _At | _EachToken | RowsOf):
        if isinstance(acts, _At) and acts._chosen.is_mean:
            return True
        acts = acts.source if isinstance(acts, RowsOf) else acts._source
    return False


def latents_under(acts: Activations) -> Latents | None:
    """The latents that rows were selected from; None for activations that are none."""
    while not isinstance(acts, Latents):
        if not isinstance(acts, _At | _EachToken | RowsOf):
            return None
        acts = acts.source if isinstance(acts, RowsOf) else acts._source
    return acts


def _measured(source: Activations, sae: Sae, reads: Place) -> dict[str, Any]:
    """What is measured of an autoencoder on some of the rows that it reads, of few shards; JSON-able.

    The share of the variance that it explains, how many latents of a row are not 0, and the model that its files name
    if it is another one.
    """
    every: Any = source
    while isinstance(every, _View):
        every = every._source
    shards = every.shard_examples() if every.in_shards else [np.arange(source.n_examples)]
    few = np.unique(np.linspace(0, len(shards) - 1, MEASURED_SHARDS).astype(np.int64))
    examples = np.sort(np.concatenate([shards[i] for i in few]))
    rows = source.layout.index(reads, examples[examples < source.n_examples])
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), MEASURED_ROWS)).astype(np.int64))]
    if not len(rows):
        return {}
    model = str(source.meta.get("model", ""))
    other = {} if not sae.cfg.model or plain_name(sae.cfg.model) == plain_name(model) else {"trained_on": sae.cfg.model}
    x = source.some_rows(reads, rows)
    about = {"rows": len(rows), "active": encoded_sparse(sae, x).nnz / len(rows), **other}
    explained = float("nan") if sae.cfg.is_transcoder else explained_variance(sae, x)
    return about | ({"explained": explained} if np.isfinite(explained) else {})


@torch.no_grad()
def explained_variance(sae: Sae, x: Tensor) -> float:
    """The share of the variance of rows [N, D] that the reconstruction keeps; nan where they do not vary.

    1 - sum |x - sae(x)|^2 / sum |x - mean|^2: 1 for a perfect reconstruction, 0 for the mean of the rows.
    """
    blocks = x.split(at_once(sae.cfg.d_latents))
    left = sum(float((rows - sae(rows).to(rows)).double().square().sum()) for rows in blocks)
    spread = float((x.double() - x.double().mean(0)).square().sum())
    return 1 - left / spread if spread else float("nan")


def check_alive(latents: Latents, place: Place) -> None:
    """Raise a DataError if no latent was active on the rows that were measured."""
    about = latents.about(place)
    if about.get("active") == 0:
        raise dead_latents(latents.sae(place).name)


def from_the_root(name: str) -> str:
    """The name of an autoencoder; the path of one that is on this machine, from the root, as shells move."""
    return str(Path(name).absolute()) if Path(name).exists() else name


def one_layer(first: str, second: str) -> str:
    """The message for two autoencoders of one layer."""
    return (
        f"{first!a:.200} and {second!a:.200} are of one layer, and a layer has the latents of one; name one: "
        "encode(load_sae(PATH)) (--sae PATH)"
    )


def latents_of(reads: Place) -> Place:
    """The place of the latents of a place: ("latents", its layer), in its stack."""
    return Place(in_stack(LATENTS, reads.point.rpartition(base_name(reads.point))[0]), reads.layer)


def check_reads(sae: Sae, widths: Mapping[Place, int], model: str, force: bool) -> Place:
    """The place that an autoencoder reads, among the places of a model with the width of each.

    Raises:
        UnknownPoint: that place is not there.
        UsageError: the place is not known, or has another width; the model has another name, unless `force`.
    """
    if sae.cfg.place is None:
        said = f", but {sae.cfg.hook!a:.100}, which is no point here" if sae.cfg.hook else ""
        raise UsageError(
            f"the files of {sae.name!a:.200} do not name the point that it reads{said}; name it: load_sae(..., "
            'place="resid_post.8")'
        )
    reads = Place(as_extracted(sae.cfg.place.point, widths), sae.cfg.place.layer)
    if reads not in widths:
        raise UnknownPoint(f"no activations of {reads} here; there are {spans_of(widths)}")
    if widths[reads] != sae.cfg.d_in:
        raise UsageError(
            f"{sae.name!a:.200} reads a width of {sae.cfg.d_in}, and {reads} is {widths[reads]} wide; "
            "take the model and the point that it was trained on"
        )
    if sae.cfg.model and plain_name(sae.cfg.model) != plain_name(model) and not force:
        raise UsageError(
            f"{sae.name!a:.200} was trained on {sae.cfg.model!a:.80}, and the activations are of "
            f"{model!a:.80}; if these are the same weights, give force=True (--force)"
        )
    return reads
