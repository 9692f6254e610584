"""Latents that a store keeps: of each shard those that are not 0, and which these are.

    STORE/latents/PLACE-DIGEST/plan.json     of which autoencoder, and which place it reads
                              00012.json     a record: the file that holds a shard's latents
                              about.json     what was measured; once it is there, so is every shard
                              5f0c....safetensors   counts [R, 1], numbers [nnz, 1], values [nnz, 1]

Axes: R rows of a shard, F latents, nnz those that are not 0.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypedDict, cast

import numpy as np
import torch
from scipy.sparse import csr_array

from probekit.activations.store.format import record_piece
from probekit.activations.store.shard import Record, RecordFile, forms_of, hashed_parts, record_body, record_in
from probekit.activations.store.tensors import ALWAYS, check_shard, read_tensor
from probekit.errors import StorageError
from probekit.files.durable import entries, is_there, remove_folder, unseal, write_named
from probekit.files.records import has_form
from probekit.files.remote.path import AnyPath
from probekit.files.run import PLAN, Run, begin_run, folder_name
from probekit.latents.sae import Sae
from probekit.machine.progress import progress_bar
from probekit.points import LATENTS, Place
from probekit.text import counted

ABOUT = "about"
FORMAT = 1
ANEW = "run its extract --sae command again, which writes them anew"
_TENSORS = ("counts", "numbers", "values")


class _Plan(TypedDict):
    """The JSON of plan.json."""

    format: int
    store: str
    name: str
    fingerprint: str
    reads: str
    width: int
    shards: int


class _About(TypedDict):
    about: dict[str, Any]


@dataclass(frozen=True, eq=False)
class StoredLatents:
    """The complete latents of one autoencoder.

    Attributes:
        store: that keeps them.
        folder: in the store.
        run: the records.
        plan: which autoencoder they are of, and how many shards there are.
        about: what was measured of the autoencoder, such as the variance it explains; JSON-able.
        check: how bytes are compared with their checksums, as for `Store`.
    """

    store: AnyPath
    folder: str
    run: Run
    plan: _Plan
    about: dict[str, Any]
    check: str

    @property
    def reads(self) -> Place:
        """The place that the autoencoder read."""
        return Place.of(self.plan["reads"])

    @property
    def width(self) -> int:
        """F."""
        return self.plan["width"]

    @property
    def name(self) -> str:
        """Where the autoencoder was loaded from."""
        return self.plan["name"]

    @property
    def fingerprint(self) -> str:
        """Of the autoencoder."""
        return self.plan["fingerprint"]

    def shards(self) -> Iterator[tuple[np.ndarray, csr_array]]:
        """The latents shard by shard: (examples int64, their rows [R, F])."""
        for number in range(self.plan["shards"]):
            record = self._record(number)
            counts, numbers, values = (
                read_tensor(self.store, record, name, self.check).flatten().numpy() for name in _TENSORS
            )
            starts = np.append(0, np.cumsum(counts, dtype=np.int64))
            sound = len(numbers) == len(values) == starts[-1] and (counts >= 0).all()
            if not sound or (len(numbers) and not 0 <= numbers.min() <= numbers.max() < self.width):
                raise StorageError(f"{str(self.run.file(record_piece(number)))!a} is damaged; {ANEW}")
            yield record.rows, csr_array((values, numbers, starts), shape=(len(counts), self.width))

    def check_files(self) -> None:
        """Raise a StorageError unless every byte is as it was written."""
        for number in range(self.plan["shards"]):
            check_shard(self.store, self._record(number))

    def _record(self, number: int) -> Record:
        piece = record_piece(number)
        body = self.run.read(piece, RecordFile)
        record = record_in(body, self.folder, piece)
        if record is None or tuple(record.tensors) != _TENSORS:
            raise StorageError(f"{str(self.run.file(piece))!a} is not a record of latents; {ANEW}")
        return record


def latents_folder(fingerprint: str, reads: Place) -> str:
    """The folder, in a store, of the latents of an autoencoder that reads a place."""
    return f"{LATENTS}/{folder_name([str(reads)], [fingerprint, str(reads)])}"


def drop_damaged(store: AnyPath, folder: str, seal: str) -> None:
    """Remove latents that are not as they were written; sound and unfinished ones stay."""
    try:
        kept = stored_latents(store, folder, seal)
        if kept is not None:
            kept.check_files()
    except StorageError:
        remove_folder(store / folder)


def every_stored(store: AnyPath, seal: str, check: str) -> list[StoredLatents]:
    """The complete latents in a store whose plan has this seal; errors as `stored_latents`."""
    folders = sorted(f"{LATENTS}/{one.path.name}" for one in entries(store / LATENTS))
    return [one for folder in folders if (one := stored_latents(store, folder, seal, check)) is not None]


def stored_latents(store: AnyPath, folder: str, seal: str, check: str = ALWAYS) -> StoredLatents | None:
    """The latents in a folder of a store; None where they are not complete.

    Raises:
        StorageError: the plan is damaged, or of another store.
    """
    path = store / folder
    if not is_there(path / f"{ABOUT}.json"):
        return None
    plan, checksum = unseal(path / PLAN, advice=ANEW)
    if not has_form(_Plan, plan) or plan["format"] != FORMAT or plan["store"] != seal:
        raise StorageError(f"{str(path)!a} holds no latents of this store; {ANEW}")
    run = Run(path, checksum, advice=ANEW)
    return StoredLatents(store, folder, run, cast(_Plan, plan), run.read(ABOUT, _About)["about"], check)


def write_latents(
    store: AnyPath,
    plan_seal: str,
    sae: Sae,
    reads: Place,
    shards: range,
    encoded: Callable[[int], tuple[np.ndarray, csr_array]],
    about: dict[str, Any],
    progress: bool | None = None,
) -> None:
    """Write the latents of every shard that has none yet.

    Args:
        store: where the activations are.
        plan_seal: of the store.
        sae: the autoencoder.
        reads: the place that it reads.
        shards: of the store.
        encoded: number of a shard -> (its examples, their latents [R, F]).
        about: what was measured of the autoencoder on these rows; JSON-able.
        progress: show progress on stderr: None on a terminal and in a notebook, True always, False never.

    Raises:
        StorageError: the disk refused, or holds damaged files.
    """
    fingerprint = sae.fingerprint()
    path = store / latents_folder(fingerprint, reads)
    plan = _Plan(
        format=FORMAT,
        store=plan_seal,
        name=sae.name,
        fingerprint=fingerprint,
        reads=str(reads),
        width=sae.cfg.d_latents,
        shards=len(shards),
    )

    def same(found: dict[str, Any], ours: dict[str, Any]) -> None:
        if {**found, "name": ""} != {**ours, "name": ""}:
            raise StorageError(f"{str(path)!a} holds other latents; {ANEW}")

    run = begin_run(path, plan, "is of other latents", same)
    missing = run.to_do(map(record_piece, shards))
    with progress_bar("latents", "shards", len(missing), progress) as bar:
        for number in (int(piece) for piece in missing):
            rows, latents = encoded(number)
            parts = (np.diff(latents.indptr), latents.indices, latents.data)
            tensors = {key: torch.from_numpy(values)[:, None] for key, values in zip(_TENSORS, parts, strict=True)}
            tensors |= {key: tensors[key].int() for key in ("counts", "numbers")}
            made = list[Record]()
            data = hashed_parts(rows, forms_of(tensors), tensors.values(), made)
            write_named(run.folder, data, lambda made=made: made[0].file)
            run.write(record_piece(number), record_body(made[0]))
            bar.advance(1, counted(latents.nnz, "latent"))
    run.write(ABOUT, {"about": about})
