"""Latents of activations: a view whose places are those of sparse autoencoders and transcoders.

Axes: N examples, R rows of a place, D width of what is read, F latents.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from probekit.activations.activations import Activations, RowsOf, _At, _EachToken, _View
from probekit.activations.store.kept_latents import StoredLatents
from probekit.errors import UsageError
from probekit.latents.config import plain_name
from probekit.latents.reconstruction import explained_variance
from probekit.latents.sae import Sae
from probekit.latents.sparse import (
    COPIES_OF_SPARSE,
    SPARSE_BYTES,
    at_once,
    check_latents,
    dead_latents,
    dense_size,
    encoded_sparse,
    stacked,
)
from probekit.points import Place, PointSpec, UnknownPoint, as_extracted, base_name, in_stack, spans_of
from probekit.text import kind_of

LATENTS = "latents"
REMEMBERED_BYTES = 1 << 28  # of the sparse latents of one place that the next read finds
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
    latents = Latents(acts, given, force)
    missing = [] if not keep else [place for place in latents if not latents.is_kept(place)]
    for place in missing:
        acts.keep(given[[*latents].index(place)], latents.reads(place), latents.about(place), progress)
    return Latents(acts, given, force) if missing else latents


def encoded_rows(acts: Activations, sae: Sae, reads: Place, examples: np.ndarray, rows: Tensor) -> csr_array:
    """The latents that are not 0 of the rows of some examples, [R, F].

    Raises:
        DataError: one is NaN or infinite.
    """
    found = encoded_sparse(sae, rows)
    ends = np.cumsum(acts.layout.counts(reads)[examples])
    check_latents(sae.name, found, lambda row: acts.ids[int(examples[np.searchsorted(ends, row, side="right")])])
    return found


@dataclass(frozen=True, eq=False)
class _OneEncoder:
    """What the latents of one place come from: an autoencoder, what was kept of it, or both."""

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

    Raises:
        UsageError: as `Activations.encode`.
    """

    in_shards = True

    def __init__(self, source: Activations, saes: Sequence[Sae] | None, force: bool = False):
        kept = source.kept_latents()
        self._last: tuple[Place, csr_array] | None = None
        self._of: dict[Place, _OneEncoder] = {}
        if saes is None:
            found = [_OneEncoder(one.reads, one.width, one.name, one.fingerprint, None, one, one.about) for one in kept]
            if not found:
                raise UsageError(
                    "no latents are kept here; name autoencoders: encode(load_sae(PATH)) (--sae PATH), or keep theirs "
                    "with extract --sae PATH"
                )
        else:
            known = {(one.fingerprint, one.reads): one for one in kept}
            widths, found = {place: source.width(place) for place in source}, []
            for sae in saes:
                reads = check_reads(sae, widths, str(source.meta.get("model", "")), force)
                mark = sae.fingerprint()
                there = known.get((mark, reads))
                about = there.about if there else _measured(source, sae, reads)
                found.append(_OneEncoder(reads, sae.cfg.d_latents, sae.name, mark, sae, there, about))
        for one in found:
            place = latents_of(one.reads)
            if place in self._of:
                raise UsageError(f"{self._of[place].name!a:.200} and {one.name!a:.200} are of one layer; encode each")
            self._of[place] = one
        about = {
            str(place): {"of": str(one.reads), "sae": one.name, "fingerprint": one.fingerprint, **one.about}
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
        source, reads, layout = self._source, self._of[place].reads, self._source.layout
        if source.in_shards:
            for examples, rows in source.shards(reads):
                yield examples, torch.cat([*self.encoded(place, [rows])])
            return
        rows, ends = source._rows(reads), np.cumsum(layout.counts(reads))
        start = 0
        while start < len(ends):
            before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + at_once(self.width(place)), side="right")))
            yield np.arange(start, stop), torch.cat([*self.encoded(place, [rows[before : int(ends[stop - 1])]])])
            start = stop

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
        if self._last is not None and self._last[0] == place:
            return self._last[1]
        kept = self._of[place].kept
        numbers, blocks, n_bytes, dense_bytes = [], list[csr_array](), 0, 0
        for examples, rows in kept.shards() if kept else self._sparse_shards(place):
            numbers.append(self.layout.index(place, examples))
            blocks.append(rows)
            n_bytes, dense_bytes = n_bytes + SPARSE_BYTES * rows.nnz, dense_bytes + dense_size(rows)
            if not kept and (2 * n_bytes > dense_bytes or (room is not None and COPIES_OF_SPARSE * n_bytes > room)):
                return None
        joined = stacked(blocks)
        del blocks
        every = np.concatenate(numbers)
        joined = joined if (np.diff(every) > 0).all() else joined[np.argsort(every)]
        if not joined.nnz and len(every):
            raise dead_latents(self._of[place].name)
        self._last = (place, joined) if n_bytes <= REMEMBERED_BYTES else None
        return joined

    def _sparse_shards(self, place: Place) -> Iterator[tuple[np.ndarray, csr_array]]:
        """As `StoredLatents.shards`, checked."""
        one, source = self._of[place], self._source
        assert one.sae is not None
        every = np.arange(source.n_examples)
        shards = source.shards(one.reads) if source.in_shards else [(every, source._rows(one.reads))]
        for examples, rows in shards:
            yield examples, encoded_rows(source, one.sae, one.reads, examples, rows)

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
        if start and not bool(found.any()):
            raise dead_latents(self._of[place].name)
        return found if start else torch.zeros(0, self.width(place))

    def _n_bytes(self) -> int:
        return sum(int(self.layout.counts(place).sum()) * 4 * self.width(place) for place in self._places)


class Unencoded(_View):
    """The activations that latents are of, at the places of the latents.

    Args:
        latents: whose autoencoders read them.
    """

    def __init__(self, latents: Latents):
        self.reads = latents.reads
        super().__init__(latents._source, latents.task, latents.layout, points=latents.points)
        self._places = [*latents]

    def _rows(self, place: Place) -> Tensor:
        return self._source._rows(self.reads(place))

    def width(self, place: Place) -> int:
        """D of what is read."""
        return self._source.width(self.reads(place))


def before_encoding(acts: Activations) -> Activations | None:
    """The same rows of what latents are of; None for activations that are no latents."""
    if isinstance(acts, Latents):
        return Unencoded(acts)
    if not isinstance(acts, _At | _EachToken | RowsOf):
        return None
    source = before_encoding(acts.source if isinstance(acts, RowsOf) else acts._source)
    if source is None:
        return None
    if isinstance(acts, RowsOf):
        return RowsOf(source, acts._index)
    return _At(source, *acts.made_with) if isinstance(acts, _At) else _EachToken(source)


def sae_of(acts: Activations, place: Place) -> Sae:
    """The autoencoder of latents.

    Raises:
        UsageError: their latents were kept, and it is not known itself.
    """
    while not isinstance(acts, Latents):
        acts = acts.source if isinstance(acts, RowsOf) else acts._source  # pyright: ignore[reportAttributeAccessIssue]
    return acts.saes[[*acts].index(place)]


def _measured(source: Activations, sae: Sae, reads: Place) -> dict[str, Any]:
    """The share of the variance that an autoencoder explains, on some of the rows that it reads."""
    n = int(source.layout.counts(reads).sum())
    if not n or sae.cfg.is_transcoder:
        return {}
    rows = np.unique(np.linspace(0, n - 1, min(n, MEASURED_ROWS)).astype(np.int64))
    return {"explained": explained_variance(sae, source.some_rows(reads, rows)), "rows": len(rows)}


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
