"""Run a packed batch with the edits of its plan.

Axes: B blocks of a batch, N nodes of a block.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.activations.plan.packing import PackedBatch
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.plan.token_ids import Sequences
from probekit.activations.run.gather import nodes_of_positions
from probekit.interventions import Edit, TextTokens, check_edits, check_positions, edit_rows, editing_at, tokens_at
from probekit.interventions.attach import Placed


@contextmanager
def edited_batch(plan: ExtractionPlan, batch: PackedBatch) -> Iterator[None]:
    """Within the context, a forward of this batch runs with the plan's edits.

    In a decoder's batch, edits of the encoder are those of the sources.
    """
    if plan.edits is None:
        yield
        return
    mine, sources = {}, {}
    for name, edit in check_edits(plan.model, plan.edits):
        into = sources if batch.source is not None and name.startswith("encoder.") else mine
        into.setdefault(name, []).append(edit)
    read_BN = _read_nodes(plan, batch) if plan.edit_positions == "read" else None

    def placed_in(some: PackedBatch, sequences: Sequences, given_BN: Tensor | None) -> Callable[[Edit], Placed]:
        def placed(edit: Edit) -> Placed:
            at_BN = given_BN if edit.positions is None else _nodes_at(edit.positions, some, sequences)
            return at_BN, None if edit_rows(edit) is None else _examples(some)

        return placed

    with ExitStack() as stack:
        stack.enter_context(editing_at(plan.model, mine, placed_in(batch, plan.sequences, read_BN)))
        if batch.source is not None and plan.sources is not None:
            stack.enter_context(editing_at(plan.model, sources, placed_in(batch.source, plan.sources, None)))
        yield


def _nodes_at(positions: Any, batch: PackedBatch, sequences: Sequences) -> Tensor | None:
    """The nodes of the tokens at these positions of each text, bool [B, N]; None for all.

    Positions count in the whole texts, of which the batch may hold the first tokens alone.
    """
    lengths_T = torch.from_numpy(batch.lengths)
    texts = texts_of_batch(batch, len(sequences), torch.from_numpy(sequences.lengths[batch.rows]))
    at_TL = tokens_at(check_positions(positions), texts)
    if at_TL is None:
        return None
    is_at = torch.zeros(batch.tokens.numel(), dtype=torch.bool)
    own_TL = torch.arange(at_TL.shape[1]) < lengths_T[:, None]
    is_at[torch.from_numpy(batch.nodes)] = at_TL[own_TL]
    return is_at.view(batch.tokens.shape)


def texts_of_batch(batch: PackedBatch, n_examples: int, length_T: Tensor | None = None) -> TextTokens:
    """The tokens of each text of a batch, one text in each row.

    Args:
        batch: the texts.
        n_examples: how many texts the task has.
        length_T: the lengths of the whole texts; None: those in the batch.
    """
    held_T = torch.from_numpy(batch.lengths)
    column_TL = torch.arange(batch.tokens.shape[1]).expand(len(held_T), -1)
    index_TL = torch.where(column_TL < held_T[:, None], column_TL, -1)
    rows_T = torch.from_numpy(batch.rows)
    return TextTokens(index_TL, held_T if length_T is None else length_T, rows_T, n_examples, column_TL)


def _read_nodes(plan: ExtractionPlan, batch: PackedBatch) -> Tensor:
    """The nodes that are read, bool [B, N]."""
    is_read = np.zeros(batch.tokens.numel(), dtype=bool)
    for nodes, _ in nodes_of_positions(batch, plan.reading, plan.layout):
        is_read[nodes] = True
    return torch.from_numpy(is_read).view(batch.tokens.shape).to(plan.model.device)


def _examples(batch: PackedBatch) -> Tensor:
    """The example of each node, int64 [B, N]; of nodes that fill up a block, the first of the batch."""
    return torch.from_numpy(batch.rows)[batch.texts().clamp(min=0)]
