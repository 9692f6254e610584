"""Accumulate the statistics of a run while the model runs.

Shards are added in their order. A run that was stopped resumes from its last checkpoint and ends in the same bits.

Axes: N examples, R rows of a place in a shard, D its width, C classes.
"""

import hashlib
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.layout import Layout
from probekit.activations.sums.files import (
    Contents,
    CountProgress,
    Key,
    checkpoint_path,
    damaged,
    progress_after,
    read_contents,
    read_newest,
    read_progress,
    remove_older,
    remove_orphans,
    write_checkpoint,
)
from probekit.activations.sums.moments import SplitMoments
from probekit.activations.sums.statistics import Statistics, used_splits
from probekit.errors import DataError, UsageError
from probekit.files.durable import make_folder, remove_stale
from probekit.files.remote.path import AnyPath
from probekit.points import PAIR_POINTS, Place
from probekit.tasks.base import Task
from probekit.text import listed

SECONDS_BETWEEN = 30  # checkpoints
SHARE_OF_TIME = 0.1  # that checkpoints may take, where they are large


class Tally:
    """Adds up the shards of a run in their order; with a folder, it resumes from the checkpoint there.

    Args:
        task: the examples; all label sets are counted.
        layout: one row per example, or one per token.
        places: places of every shard.
        device: of the run; sums are kept there if it is a GPU.
        start: the progress before the first shard.
        folder: where checkpoints are written; None writes none.

    Raises:
        UsageError: several positions, or attention.
        DataError: labels out of range.
        StorageError: a damaged checkpoint, or one of other shards.
    """

    def __init__(
        self,
        task: Task,
        layout: Layout,
        places: list[Place],
        device: torch.device,
        start: CountProgress,
        folder: AnyPath | None = None,
    ):
        check_countable(task, layout, places)
        self._task, self._layout, self._places = task, layout, places
        self._folder = folder
        self._device = device if device.type == "cuda" else torch.device("cpu")
        self._moments: dict[Key, SplitMoments] = {}
        self._progress = start
        self._order = hashlib.sha256()
        self._written, self._pause = time.monotonic(), float(SECONDS_BETWEEN)
        self._meta: dict[str, Any] = {}
        self._checkpointed = self._resume()

    @property
    def is_complete(self) -> bool:
        """True if every shard is counted in the checkpoint on disk."""
        return self._checkpointed is not None and self._checkpointed.is_complete

    def wants(self, number: int) -> bool:
        """True if this shard, by its number among those of this run, is not counted yet."""
        return self._checkpointed is None or number >= self._checkpointed.shards_done

    def add(self, number: int, rows: np.ndarray, values: Mapping[Place, Tensor]) -> None:
        """Count the next shard with its `values` [R, D]; one that is counted already is skipped.

        Args:
            number: of the shard among those of this run, from 0; a part counts its own.
            rows: the examples of the shard.
            values: place -> [R, D]; empty if the shard is counted already.

        Raises:
            StorageError: the disk refused a checkpoint, or the checkpoint there is of other shards.
        """
        assert number == self._progress.shards_done, f"shard {number} after {self._progress.shards_done}"
        if self.wants(number):
            for place, x in values.items():
                self._add(place, rows, x.to(self._device))
        self._progress = progress_after(self._progress, rows, self._order)
        self._check_order()
        if self.wants(number) and self._is_due():
            self._checkpoint()

    def finish(self, meta: dict[str, Any]) -> Statistics:
        """The finished statistics, on disk if there is a folder; those that were complete before keep their `meta`."""
        if not self.is_complete:
            self._meta = meta
            self._checkpoint()
        return Statistics(*self._contents())

    def _is_due(self) -> bool:
        return time.monotonic() - self._written > self._pause

    def _add(self, place: Place, rows: np.ndarray, x: Tensor) -> None:
        task, splits = self._task, used_splits(self._task)
        examples = np.repeat(rows, self._layout.counts(place)[rows])
        if (place, splits[0]) not in self._moments:
            shift, classes = x.double().mean(dim=0), {name: len(names) for name, names in task.label_names.items()}
            self._moments |= {(place, split): SplitMoments.zero(shift, classes) for split in splits}
        for split in splits:
            own = np.flatnonzero(task.splits[examples] == split)
            labels = {name: given[examples[own]] for name, given in task.labels.items()}
            moments = self._moments[place, split]
            self._moments[place, split] = moments.including(x[torch.from_numpy(own).to(x.device)], labels)

    def _contents(self) -> Contents:
        keys = [(place, split) for place in self._places for split in used_splits(self._task)]
        return Contents({key: self._moments[key] for key in keys}, self._task.label_names, self._meta)

    def _resume(self) -> CountProgress | None:
        """Load the newest checkpoint, if there is one; returns its progress."""
        if self._folder is None:
            return None
        make_folder(self._folder)
        remove_stale(self._folder)
        return read_newest(self._folder, self._load)

    def _load(self, record: AnyPath, body: dict[str, Any]) -> CountProgress:
        progress, ours = read_progress(record, body), self._progress
        if (progress.plan, progress.shards, progress.texts) != (ours.plan, ours.shards, ours.texts):
            raise damaged(record, "is of another run")
        contents = read_contents(record, body)
        self._moments = {key: moments.to(self._device) for key, moments in contents.moments.items()}
        self._meta = contents.meta
        remove_older(record, body)
        remove_orphans(record.parent, body)
        return progress

    def _check_order(self) -> None:
        """Check that the shards of the checkpoint are those of this run."""
        on_disk = self._checkpointed
        if on_disk is None or on_disk.is_complete:  # if parts made it, its order is not that of one process
            return
        if on_disk.shards_done == self._progress.shards_done and on_disk != self._progress:
            assert self._folder is not None
            raise damaged(checkpoint_path(self._folder, on_disk.shards_done), "counted other shards than this run has")

    def _checkpoint(self) -> None:
        if self._folder is None:
            return
        start = time.monotonic()
        write_checkpoint(self._folder, self._contents(), self._progress)
        self._written = time.monotonic()
        self._pause = max(SECONDS_BETWEEN, (self._written - start) / SHARE_OF_TIME)


def check_countable(task: Task, layout: Layout, places: list[Place]) -> None:
    """Check that statistics can be made of these rows and labels.

    Raises:
        UsageError: several positions, attention, or a regression.
        DataError: labels out of range.
    """
    if pairs := [str(place) for place in places if place[0] in PAIR_POINTS]:
        raise UsageError(f"statistics are of tokens, and {pairs[0]} belongs to pairs of tokens; leave it out")
    if len(layout.positions) > 1:
        raise UsageError(f"statistics need one position, or all; got {listed(layout.positions)}")
    if task.token_labels:
        raise UsageError(
            f"statistics count the labels of texts, and {next(iter(task.token_labels))!a} has one for each token; "
            "leave --stats out"
        )
    for name, labels in task.labels.items():
        if not task.n_classes(name):
            raise UsageError(f"statistics count classes, and {name!a} is a regression; leave --stats out")
        bad = (labels < 0) | (labels >= len(task.label_names[name]))
        if bad.any():
            row = int(bad.argmax())
            raise DataError(
                f"labels of {name!a} must be 0..{len(task.label_names[name]) - 1} to be counted, example "
                f"{task.ids[row]!a} has {labels[row]}; leave unlabelled examples out"
            )
