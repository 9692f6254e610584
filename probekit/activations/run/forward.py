"""Run one packed batch through the model, with the edits of its plan, and keep the wanted rows of every place.

Only the wanted points are hooked, so attention stays on its fused kernel. The forward has no head and stops after the
last wanted layer; its block computes queries, output projection and MLP of the nodes that are read alone. Each point is
pooled where it arises, so that only the wanted rows leave the device.

Axes: B blocks of a batch, N nodes of a block, R rows to keep, T texts, L tokens of a text.
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
from probekit.activations.run.gather import ReadNodes, nodes_of_positions, nodes_to_read, pools_of
from probekit.hooks import HookPoint
from probekit.interventions import Edit, TextTokens, check_edits, check_positions, edit_rows, editing_at, tokens_at
from probekit.interventions.attach import Placed
from probekit.models.base import LanguageModel
from probekit.models.decoder import DecoderOnly
from probekit.models.layers import prepared
from probekit.points import PAIR_POINTS, Place


@contextmanager
def running(model: LanguageModel, device: torch.device) -> Iterator[None]:
    """The model on this device, its weights prepared for inference; afterwards it is as and where it was before.

    The weights of a model on several devices stay there, and are not prepared: those of the host would be held twice.
    """
    if model.stays:
        yield
        return
    home = model.device
    try:
        model.to(device)  # inside the try: if memory ends halfway, everything goes back
        with prepared(model):
            yield
    finally:
        model.to(home)


def compute_batch(plan: ExtractionPlan, batch: PackedBatch) -> dict[Place, Tensor]:
    """Every place of the plan for the texts of a batch: [R, D], of the type in which they were computed."""
    model, read = plan.model, nodes_of_last_block(plan, batch)
    pools = pools_of(plan.places, plan.reading, plan.layout, batch, model.device, read)
    places = {model.resolve(place)[0]: (place, pool) for place, pool in zip(plan.places, pools, strict=True)}
    pooled: dict[Place, Tensor] = {}

    def keep(x: Tensor, hook: HookPoint) -> None:
        place, pool = places[hook.name]
        pooled[place] = pool(x).to(model.device)  # few rows; x may be on another device

    with _edited(plan, batch), model.hooks([(list(places), keep)]):
        _forward(plan, batch, None if read is None else read.positions.to(model.device))
    assert len(pooled) == len(places), f"silent: {plan.places} without {list(pooled)}"
    return {place: pooled[place] for place in plan.places}


def nodes_of_last_block(plan: ExtractionPlan, batch: PackedBatch) -> ReadNodes | None:
    """The nodes that the last block that runs computes; None for all.

    It may leave out nodes if no user's hook sees them and no pairs of its tokens are kept; without a stop a pair of any
    layer counts as one of the last block.
    """
    stop = plan.stop_at_layer
    pairs = [layer for point, layer in plan.places if point in PAIR_POINTS and layer is not None]
    of_last = any(stop is None or layer + 1 == stop for layer in pairs)
    if of_last or any(point.hooked for point in plan.model.points.values()):
        return None
    return nodes_to_read(batch, plan.reading, plan.layout)


def _forward(plan: ExtractionPlan, batch: PackedBatch, read_BR: Tensor | None) -> None:
    """Run the blocks that are needed; the last of them computes the read positions alone, or all for None."""
    model: Any = plan.model
    tokens, packed = batch_inputs(model, batch)
    packed |= {"stop_at_layer": plan.stop_at_layer} | ({} if plan.stack == "encoder" else {"return_logits": False})
    if batch.source is not None:
        source, of_source = batch_inputs(model, batch.source)
        with model.telling(_told_texts(batch.source, len(plan.task))):
            memory = model.encode(source, **of_source)
        packed |= {"memory": memory, "cross_mask": batch.cross_mask(model.device)}
    forward = {"": model, "encoder": getattr(model, "encode", None), "decoder": getattr(model, "decode", None)}
    with model.reading(read_BR), model.telling(_told_texts(batch, len(plan.task))):
        forward[plan.stack](tokens, **packed)


def _told_texts(batch: PackedBatch, n_examples: int) -> TextTokens | None:
    """The texts of the rows, for a user's edits at positions; None where a row holds several, as in packed blocks."""
    return _texts(batch, n_examples) if _is_text_by_text(batch) else None


def _is_text_by_text(batch: PackedBatch) -> bool:
    """True if each row holds one text, filled up on the right."""
    return len(batch.rows) == len(batch.tokens)


def batch_inputs(model: LanguageModel, batch: PackedBatch) -> tuple[Tensor, dict[str, Any]]:
    """The tokens of a batch, and the positions and mask that the model takes with them."""
    tokens, position_ids = batch.tokens.to(model.device), batch.position_ids.to(model.device)
    if model.batching != "packed":  # one text in a row, padded on the right with copies that have position 0
        is_real = position_ids > 0
        is_real[:, 0] = True
        return tokens, {"attention_mask": is_real}
    if model.causal and isinstance(model, DecoderOnly) and _is_text_by_text(batch):
        # without a mask the kernel skips the keys after a query: half the time of attention over 2,048 tokens
        return tokens, {"position_ids": position_ids}
    return tokens, {"position_ids": position_ids, "attention_mask": batch.mask(model.device)}


@contextmanager
def _edited(plan: ExtractionPlan, batch: PackedBatch) -> Iterator[None]:
    """Within the context, a forward of this batch runs with the plan's edits.

    In a decoder's batch, edits of the encoder are those of the sources.
    """
    mine, sources = {}, {}
    for name, edit in [] if plan.edits is None else check_edits(plan.model, plan.edits):
        into = sources if batch.source is not None and name.startswith("encoder.") else mine
        into.setdefault(name, []).append(edit)
    read_BN = _read_nodes(plan, batch) if mine and plan.edit_positions == "read" else None

    def placed_in(some: PackedBatch, sequences: Sequences, given_BN: Tensor | None) -> Callable[[Edit], Placed]:
        def placed(edit: Edit) -> Placed:
            at_BN = given_BN if edit.positions is None else _nodes_at(edit.positions, some, sequences)
            if edit_rows(edit) is None:
                return at_BN, None
            # the example of each node; of nodes that fill up a block, the first of the batch
            return at_BN, torch.from_numpy(some.rows)[some.texts().clamp(min=0)]

        return placed

    with ExitStack() as stack:
        if mine:
            stack.enter_context(editing_at(plan.model, mine, placed_in(batch, plan.sequences, read_BN)))
        if sources and batch.source is not None and plan.sources is not None:
            stack.enter_context(editing_at(plan.model, sources, placed_in(batch.source, plan.sources, None)))
        yield


def _nodes_at(positions: Any, batch: PackedBatch, sequences: Sequences) -> Tensor | None:
    """The nodes of the tokens at these positions of each text, bool [B, N]; None for all.

    Positions count in the whole texts, of which the batch may hold the first tokens alone.
    """
    lengths_T = torch.from_numpy(batch.lengths)
    texts = _texts(batch, len(sequences), torch.from_numpy(sequences.lengths[batch.rows]))
    at_TL = tokens_at(check_positions(positions), texts)
    if at_TL is None:
        return None
    is_at = torch.zeros(batch.tokens.numel(), dtype=torch.bool)
    own_TL = torch.arange(at_TL.shape[1]) < lengths_T[:, None]
    is_at[torch.from_numpy(batch.nodes)] = at_TL[own_TL]
    return is_at.view(batch.tokens.shape)


def _texts(batch: PackedBatch, n_examples: int, length_T: Tensor | None = None) -> TextTokens:
    """The tokens of each text of a batch, one text in each row; `length_T` are the lengths of the whole texts."""
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
