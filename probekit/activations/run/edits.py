"""Run a packed batch with the edits of its plan.

Axes: B blocks of a batch, N nodes of a block.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from probekit.activations.plan.packing import PackedBatch
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.run.gather import nodes_of_positions
from probekit.interventions import check_edits, edit_rows, editing


@contextmanager
def edited_batch(plan: ExtractionPlan, batch: PackedBatch) -> Iterator[None]:
    """Within the context, a forward of this batch runs with the plan's edits.

    In a decoder's batch, edits of the encoder are those of the sources.
    """
    if plan.edits is None:
        yield
        return
    of_source = batch.source is not None
    mine, sources = {}, {}
    for name, edit in check_edits(plan.model, plan.edits):
        into = sources if of_source and name.startswith("encoder.") else mine
        into.setdefault(name, []).append(edit)
    has_rows = [any(edit_rows(edit) is not None for some in each.values() for edit in some) for each in (mine, sources)]
    at_BN = _read_nodes(plan, batch) if plan.edit_positions == "read" else None
    with (
        editing(plan.model, mine, at_BN, _examples(batch) if has_rows[0] else None),
        editing(plan.model, sources, None, _examples(batch.source) if has_rows[1] and batch.source else None),
    ):
        yield


def _read_nodes(plan: ExtractionPlan, batch: PackedBatch) -> Tensor:
    """The nodes that are read, bool [B, N]."""
    is_read = np.zeros(batch.tokens.numel(), dtype=bool)
    for nodes, _ in nodes_of_positions(batch, plan.reading, plan.layout):
        is_read[nodes] = True
    return torch.from_numpy(is_read).view(batch.tokens.shape).to(plan.model.device)


def _examples(batch: PackedBatch) -> Tensor:
    """The example of each node, int64 [B, N]; of nodes that fill up a block, the first of the batch."""
    return torch.from_numpy(batch.rows)[batch.texts().clamp(min=0)]
