"""Accumulate the statistics of a run while the model runs.

Shards are added in their order. A run that was stopped resumes from its last checkpoint and ends in the same bits.

Axes: N examples, R rows of a place in a shard, D its width.
"""

import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.plan.plan import ExtractionPlan, shard_rows
from probekit.activations.sums.moments import SplitMoments
from probekit.activations.sums.statistics import (
    WHOLE,
    Counted,
    Key,
    Part,
    PartSums,
    Statistics,
    newest,
    remove_older,
    remove_orphans,
    used_splits,
    write_sums,
)
from probekit.errors import DataError, StorageError, UsageError
from probekit.files.durable import make_folder, remove_stale
from probekit.files.run import AGAIN, Run
from probekit.points import PAIR_POINTS, Place
from probekit.text import listed

SECONDS_BETWEEN = 30  # checkpoints
SHARE_OF_TIME = 0.1  # that checkpoints may take, where they are large


class Tally:
    """Adds up shards of a plan in their order; with records, it resumes from the checkpoint there.

    Args:
        plan: whose examples are counted, with all label sets; sums are kept on its device if that is a GPU.
        numbers: the shards, in their order.
        run: where checkpoints are written (`sums.statistics`); None writes none.
        part: which part of the run these shards are.

    Raises:
        StorageError: a damaged checkpoint, or one of other shards.
    """

    def __init__(self, plan: ExtractionPlan, numbers: Sequence[int], run: Run | None = None, part: Part = WHOLE):
        self._plan, self._run, self._part = plan, run, part
        self._numbers = list(numbers)
        self._texts = sum(len(shard_rows(plan, number)) for number in numbers)
        self._device = plan.device if plan.device.type == "cuda" else torch.device("cpu")
        self._splits = used_splits(plan.task)
        self._moments: dict[Key, SplitMoments] = {}
        self._counted = Counted([], len(self._numbers), (0, self._texts), "")
        self._order = hashlib.sha256()
        self._written, self._pause = time.monotonic(), float(SECONDS_BETWEEN)
        self._meta: dict[str, Any] = {}
        self._on_disk = None if run is None else self._resume(run)

    @property
    def is_complete(self) -> bool:
        """True if every shard is counted in the checkpoint on disk."""
        return self._on_disk is not None and self._on_disk.is_complete

    def wants(self, at: int) -> bool:
        """True if the shard at this place among those to count is not counted yet."""
        return self._on_disk is None or at >= len(self._on_disk.record.rows)

    def add(self, at: int, rows: np.ndarray, values: Mapping[Place, Tensor]) -> None:
        """Count the next shard with its `values` [R, D]; one that is counted already is skipped.

        Args:
            at: its place among those to count, from 0.
            rows: the examples of the shard.
            values: place -> [R, D]; empty if the shard is counted already.

        Raises:
            StorageError: the disk refused a checkpoint, or the checkpoint there is of other shards.
        """
        before = self._counted
        assert at == len(before.numbers), f"shard {at} after {len(before.numbers)}"
        if self.wants(at):
            for place, x in values.items():
                self._add(place, rows, x.to(self._device))
        self._order.update(rows.astype("<i8").tobytes() + b"|")
        done = (before.texts[0] + len(rows), self._texts)
        self._counted = Counted(self._numbers[: at + 1], before.shards, done, self._order.hexdigest())
        self._check_order(at + 1)
        if self.wants(at) and at + 1 < len(self._numbers) and self._is_due():  # `finish` writes the last one
            self._checkpoint()

    def finish(self, meta: dict[str, Any]) -> Statistics:
        """The finished statistics, on disk if there are records; those that were complete before keep their `meta`."""
        if not self.is_complete:
            self._meta = meta
            self._checkpoint()
        return self._sums()

    def _is_due(self) -> bool:
        return time.monotonic() - self._written > self._pause

    def _add(self, place: Place, rows: np.ndarray, x: Tensor) -> None:
        task = self._plan.task
        examples = np.repeat(rows, self._plan.layout.counts(place)[rows])
        if (place, self._splits[0]) not in self._moments:
            shift, classes = x.double().mean(dim=0), {name: len(names) for name, names in task.label_names.items()}
            self._moments |= {(place, split): SplitMoments.zero(shift, classes) for split in self._splits}
        for split in self._splits:
            own = np.flatnonzero(task.splits[examples] == split)
            labels = {name: given[examples[own]] for name, given in task.labels.items()}
            moments = self._moments[place, split]
            self._moments[place, split] = moments.including(x[torch.from_numpy(own).to(x.device)], labels)

    def _sums(self) -> Statistics:
        keys = [(place, split) for place in self._plan.places for split in self._splits]
        return Statistics({key: self._moments[key] for key in keys}, self._plan.task.label_names, self._meta)

    def _resume(self, run: Run) -> PartSums | None:
        """Load the newest checkpoint, if there is one."""
        make_folder(run.folder)
        remove_stale(run.folder)
        found = newest(run, self._part, self._load)
        if found is not None:
            remove_older(run, self._part, len(found.record.rows))
            remove_orphans(run)
        return found

    def _load(self, found: PartSums) -> PartSums:
        done = found.record.rows.tolist()
        if (done, found.body["shards"]) != (self._numbers[: len(done)], len(self._numbers)):
            raise _of_other_shards(found)
        sums = found.statistics()
        self._moments = {key: moments.to(self._device) for key, moments in sums.items()}
        self._meta = sums.meta
        return found

    def _check_order(self, done: int) -> None:
        """Check that the shards of the checkpoint are those of this run."""
        on_disk = self._on_disk
        if on_disk is None or on_disk.is_complete:  # if parts made it, its order is not that of one process
            return
        if len(on_disk.record.rows) == done and on_disk.body["order"] != self._counted.order:
            raise _of_other_shards(on_disk)

    def _checkpoint(self) -> None:
        if self._run is None:
            return
        start = time.monotonic()
        write_sums(self._run, self._part, self._sums(), self._counted)
        self._written = time.monotonic()
        self._pause = max(SECONDS_BETWEEN, (self._written - start) / SHARE_OF_TIME)


def _of_other_shards(sums: PartSums) -> StorageError:
    return StorageError(f"{str(sums.file)!a} counted other shards than this run has; {AGAIN}")


def check_countable(plan: ExtractionPlan) -> None:
    """Check that statistics can be made of the rows and labels of a plan.

    Raises:
        UsageError: several positions, attention, or a regression.
        DataError: labels out of range.
    """
    task, layout, places = plan.task, plan.layout, plan.places
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
