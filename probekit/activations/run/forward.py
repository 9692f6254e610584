"""Run one packed batch through the model, and keep the wanted rows of every place.

Only the wanted points are hooked, so attention stays on its fused kernel. The forward has no head and stops after the
last wanted layer; its block computes queries, output projection and MLP of the nodes that are read alone. Each point is
pooled where it arises, so that only the wanted rows leave the device.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from probekit.activations.plan.packing import PackedBatch
from probekit.activations.plan.places import full_name
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.run.edits import edited_batch, texts_of_batch
from probekit.activations.run.gather import Pool, ReadNodes, nodes_to_read, pools_of
from probekit.hooks import HookPoint
from probekit.interventions import TextTokens
from probekit.models.base import LanguageModel
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
    names = [full_name(place) for place in plan.places]
    read = nodes_of_last_block(plan, batch)
    pools = pools_of(plan.places, plan.reading, plan.layout, batch, plan.model.device, read)
    pool_of = dict(zip(names, pools, strict=True))
    with edited_batch(plan, batch):
        values = run_batch(plan.model, batch, pool_of, plan.stack, plan.stop_at_layer, read, len(plan.task))
    return {place: values[name] for place, name in zip(plan.places, names, strict=True)}


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


def run_batch(
    model: LanguageModel,
    batch: PackedBatch,
    pools: Mapping[str, Pool],
    stack: str,
    stop_at_layer: int | None,
    read: ReadNodes | None = None,
    n_examples: int = 0,
) -> dict[str, Tensor]:
    """Run a batch as far as needed.

    Args:
        model: the model.
        batch: the texts.
        pools: full name of each wanted point -> the function from its tensor to the rows to keep.
        stack: "encoder", "decoder" or "".
        stop_at_layer: the block before which the forward stops; None runs all blocks and the final norm.
        read: the nodes that the last of these blocks computes; None for all.
        n_examples: how many texts the task has, for a user's edits with a row for each.

    Returns:
        Full name -> [R, D].
    """
    pooled: dict[str, Tensor] = {}

    def keep(x: Tensor, hook: HookPoint) -> None:
        pooled[hook.name] = pools[hook.name](x).to(model.device)  # few rows; x may be on another device

    with model.hooks([(list(pools), keep)]):
        read_BR = None if read is None else read.positions.to(model.device)
        _forward(model, batch, stack, stop_at_layer, read_BR, n_examples)
    assert pooled.keys() == pools.keys(), f"silent: {pools.keys() - pooled.keys()}"
    return pooled


def _forward(
    model: Any,
    batch: PackedBatch,
    stack: str,
    stop_at_layer: int | None,
    read_BR: Tensor | None,
    n_examples: int,
) -> None:
    tokens, packed = batch_inputs(model, batch)
    packed |= {"stop_at_layer": stop_at_layer} | ({} if stack == "encoder" else {"return_logits": False})
    if batch.source is not None:
        source, of_source = batch_inputs(model, batch.source)
        with model.telling(_told_texts(batch.source, n_examples)):
            memory = model.encode(source, **of_source)
        packed |= {"memory": memory, "cross_mask": batch.cross_mask(model.device)}
    forward = {"": model, "encoder": getattr(model, "encode", None), "decoder": getattr(model, "decode", None)}[stack]
    with model.reading(read_BR), model.telling(_told_texts(batch, n_examples)):
        forward(tokens, **packed)


def _told_texts(batch: PackedBatch, n_examples: int) -> TextTokens | None:
    """The texts of the rows, for a user's edits at positions; None where a row holds several, as in packed blocks."""
    return texts_of_batch(batch, n_examples) if len(batch.rows) == len(batch.tokens) else None


def batch_inputs(model: LanguageModel, batch: PackedBatch) -> tuple[Tensor, dict[str, Any]]:
    """The tokens of a batch, and the positions and mask that the model takes with them."""
    tokens, position_ids = batch.tokens.to(model.device), batch.position_ids.to(model.device)
    if model.batching != "packed":  # one text in a row, padded on the right with copies that have position 0
        is_real = position_ids > 0
        is_real[:, 0] = True
        return tokens, {"attention_mask": is_real}
    return tokens, {"position_ids": position_ids, "attention_mask": batch.mask(model.device)}
