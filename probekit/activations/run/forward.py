"""Run one packed batch through the model, and keep the wanted rows of every place.

Only the wanted points are hooked, so attention stays on its fused kernel. The forward has no head and stops after the
last wanted layer. Each point is pooled where it arises, so that only the wanted rows leave the device.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from probekit.activations.plan.packing import PackedBatch
from probekit.activations.plan.places import full_name
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.run.gather import Pool, pools_of
from probekit.hooks import HookPoint
from probekit.models.base import LanguageModel
from probekit.models.layers import prepared
from probekit.points import Place


@contextmanager
def running(model: LanguageModel, device: torch.device) -> Iterator[None]:
    """The model on this device, its weights prepared for inference; afterwards it is as and where it was before."""
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
    pools = pools_of(plan.places, plan.reading, plan.layout, batch, plan.model.device)
    values = run_batch(plan.model, batch, dict(zip(names, pools, strict=True)), plan.stack, plan.stop_at_layer)
    return {place: values[name] for place, name in zip(plan.places, names, strict=True)}


def run_batch(
    model: LanguageModel, batch: PackedBatch, pools: Mapping[str, Pool], stack: str, stop_at_layer: int | None
) -> dict[str, Tensor]:
    """Run a batch as far as needed.

    Args:
        model: the model.
        batch: the texts.
        pools: full name of each wanted point -> the function from its tensor to the rows to keep.
        stack: "encoder", "decoder" or "".
        stop_at_layer: the block before which the forward stops; None runs all blocks and the final norm.

    Returns:
        Full name -> [R, D].
    """
    pooled: dict[str, Tensor] = {}

    def keep(x: Tensor, hook: HookPoint) -> None:
        pooled[hook.name] = pools[hook.name](x)

    with model.hooks([(list(pools), keep)]):
        _forward(model, batch, stack, stop_at_layer)
    assert pooled.keys() == pools.keys(), f"silent: {pools.keys() - pooled.keys()}"
    return pooled


def _forward(model: Any, batch: PackedBatch, stack: str, stop_at_layer: int | None) -> None:
    tokens, packed = batch_inputs(batch, model.device)
    if stack == "encoder":
        model.encode(tokens, **packed, stop_at_layer=stop_at_layer)
        return
    packed |= {"stop_at_layer": stop_at_layer, "return_logits": False}
    if batch.source is None:
        model(tokens, **packed)
        return
    source, of_source = batch_inputs(batch.source, model.device)
    memory = model.encode(source, **of_source)
    model.decode(tokens, memory, cross_mask=batch.cross_mask(model.device), **packed)


def batch_inputs(batch: PackedBatch, device: torch.device) -> tuple[Tensor, dict[str, Any]]:
    """The tokens of a batch, and the positions and mask that the model takes with them."""
    mask = batch.mask(device)
    return batch.tokens.to(device), {"position_ids": batch.position_ids.to(device), "attention_mask": mask}
