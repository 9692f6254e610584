"""Build the plan of an extraction from the model, the task and the options.

Axes: N examples, D width of a place.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from probekit.activations.layout import row_bytes
from probekit.activations.plan.edits import check_edited_tokens, check_planned_edits
from probekit.activations.plan.packing import FILLED, Packing, choose_nodes, cut_batches, group_batches, pack
from probekit.activations.plan.places import find_places, stack_of, stop_at_layer, width_of
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.plan.prepare import rendered_task
from probekit.activations.plan.reading.read_positions import Reading, layout_of, needed_tokens, read_positions
from probekit.activations.plan.reading.select_tokens import UNREAD
from probekit.activations.plan.token_ids import Sequences, targets_task, tokenise_inputs, tokenise_targets
from probekit.activations.plan.token_labels import WRONG_LABELS, with_labels_by_token
from probekit.errors import UsageError
from probekit.files.scratch import IN_MEMORY, give_back_memory
from probekit.machine.devices import find_device
from probekit.machine.dtypes import dtype_name
from probekit.models.accounting import token_flops
from probekit.models.base import LanguageModel
from probekit.models.families import has_shape, shape_of
from probekit.models.shapes import equal_stacks
from probekit.options import ExtractOptions
from probekit.options.generate import ContinuationOptions
from probekit.options.typed import changed
from probekit.points import PAIR_POINTS, Place, parse_points
from probekit.selections import Selection
from probekit.tasks.base import Task, without_bad_rows

SHARD_BYTES = 64_000_000
SHARD_FLOPS = {"cpu": 1.4e12}  # a few seconds of work: what a run that is stopped can lose
BATCH_TOKENS = {"cpu": 2048}  # larger ones are no faster there
BATCH_TOKENS_ELSEWHERE = 16384
MIN_NODES = {"cpu": 128}  # in a block
MIN_NODES_ELSEWHERE = 256


def plan_extraction(model: LanguageModel, task: Task, options: ExtractOptions) -> ExtractionPlan:
    """The plan of `extract` with these options: texts, tokens, places, blocks.

    Raises:
        UsageError: an unknown point, type, device or position; a layer out of range; a point without a fixed width.
        DataError: inputs that the model cannot take; the message names the example.
    """
    asked = changed(options, ExtractOptions, ContinuationOptions)
    points = _points(model, options)
    stack, places = stack_of(points), find_places(model, points, options.layers)
    widths = [width_of(model, place) for place in places]
    dtype, device, full = dtype_name(options.dtype), _device(model, options.device), rendered_task(model, task, options)
    options = replace(options, position=position_of_rows(options.position, task, full))
    task, sequences, sources, reading = _read(model, full, options, stack)
    options = check_planned_edits(model, options, places, stack, len(task))
    check_edited_tokens(model, options.edits, sequences, sources)
    layout = layout_of(reading, sequences)
    batch_tokens = options.batch_tokens or BATCH_TOKENS.get(device.type, BATCH_TOKENS_ELSEWHERE)
    causal = model.causal or stack == "decoder"
    needed = _needed_tokens(causal, places, sequences, reading)
    if model.batching != "packed" and task.spans is not None:  # a text that is there for each of its words runs once
        needed = sequences
    packing, block_nodes = _blocks(model, needed, sources, causal, options, device)
    example_bytes = row_bytes(layout, places, widths, dtype)
    return ExtractionPlan(
        model=model,
        task=task,
        points=points,
        places=places,
        widths=widths,
        stack=stack,
        stop_at_layer=stop_at_layer(places),
        reading=reading,
        layout=layout,
        dtype=dtype,
        device=device,
        on_long=options.on_long,
        batch_tokens=batch_tokens,
        block_nodes=block_nodes,
        share=options.share,
        sequences=sequences,
        sources=sources,
        packing=packing,
        edits=options.edits,
        edit_positions=options.edit_positions,
        shards=_cut_shards(packing, batch_tokens, example_bytes / (options.shard_bytes or SHARD_BYTES), model, device),
        shard_bytes=options.shard_bytes,
        asked=asked,
    )


def check_planned(model: LanguageModel, options: ExtractOptions, n_examples: int) -> tuple[str, torch.device]:
    """Check what can be checked before the texts are known.

    Returns:
        The stack of the points ("" for most models), and the device to run on.

    Raises:
        UsageError: as from `plan_extraction`.
    """
    points = _points(model, options)
    stack, places = stack_of(points), find_places(model, points, options.layers)
    for place in places:
        width_of(model, place)
    check_planned_edits(model, options, places, stack, n_examples)
    dtype_name(options.dtype)
    return stack, _device(model, options.device)


def position_of_rows(position: Any, given: Task, left: Task) -> Any:
    """A position of `extract`, arrays of one index for each example shortened to the examples that are left.

    Args:
        position: of the options of `extract`.
        given: all examples.
        left: those of them that could be read.
    """
    several = position if isinstance(position, list) else [position]
    own = [None if one is None else one.each for one in several]
    if len(left) == len(given) or all(each is None for each in own):
        return position
    rows = np.flatnonzero(np.isin(given.ids, left.ids))
    some = [
        one if each is None or len(each) != len(given) else Selection.of(each[rows])
        for one, each in zip(several, own, strict=True)
    ]
    return some if several is position else some[0]


def _points(model: LanguageModel, options: ExtractOptions) -> list[str]:
    """Short names of the requested points in this model."""
    if not isinstance(model, LanguageModel):
        raise UsageError(f"expected a model from load_model, got {model!a:.60}; call load_model first")
    return [model.in_stack(point) for point in parse_points(options.points)]


def _device(model: LanguageModel, wanted: str | torch.device) -> torch.device:
    """The device to run on, which a model that was loaded with device_map or quantize does not leave."""
    device = find_device(wanted, default=model.device)
    if model.stays and device.type != model.device.type:
        raise UsageError(f"{model.name} was loaded with device_map or quantize, and stays there; leave out {device}")
    return model.device if model.stays else device


def _tokenise(
    model: LanguageModel, task: Task, options: ExtractOptions, stack: str
) -> tuple[Sequences, Sequences | None]:
    """The sequences to read, and for a decoder the sources that its encoder takes."""
    inputs = tokenise_inputs(model, task, options.bos, options.on_long)
    if stack == "decoder":
        return tokenise_targets(model, task, options.on_long), inputs
    return inputs, None


def _read(
    model: LanguageModel, task: Task, options: ExtractOptions, stack: str
) -> tuple[Task, Sequences, Sequences | None, Reading]:
    """The task without bad rows, its sequences as `_tokenise` gives them, and the tokens to read."""
    sequences, sources = _tokenise(model, task, options, stack)
    labelled, bad = with_labels_by_token(model, task, sequences)
    flaw = WRONG_LABELS
    if not bad:
        own = targets_task(labelled) if stack == "decoder" else labelled
        reading, bad = read_positions(model, own, sequences, options.position, options.skip_special)
        if not bad:
            return labelled, sequences, sources, reading
        flaw = UNREAD
    left, _ = without_bad_rows(task, bad, flaw, options.on_bad_row)
    return _read(model, left, replace(options, position=position_of_rows(options.position, task, left)), stack)


def _needed_tokens(causal: bool, places: list[Place], sequences: Sequences, reading: Reading) -> Sequences:
    """The tokens of each text that must be computed: in a causal model, none after the last one that is read."""
    if not causal or any(point in PAIR_POINTS for point, _ in places):
        return sequences
    return sequences.first(needed_tokens(reading, sequences.lengths))


def _blocks(
    model: LanguageModel,
    needed: Sequences,
    sources: Sequences | None,
    causal: bool,
    options: ExtractOptions,
    device: torch.device,
) -> tuple[Packing, int]:
    """The blocks, and how many nodes each holds at most; where rows are not packed, a block is one text."""
    if model.batching != "packed":
        return pack(needed, 1, options.share, causal=False), 1
    block_nodes = options.block_nodes
    if block_nodes is None:
        least = MIN_NODES.get(device.type, MIN_NODES_ELSEWHERE)
        block_nodes = choose_nodes(needed, options.share and sources is None, causal, model.cfg.d_model, least)
    block_nodes = min(block_nodes, model.longest_row or block_nodes)
    return pack(needed, block_nodes, options.share, causal, sources), block_nodes


def _cut_shards(
    packing: Packing, batch_tokens: int, example_share: np.ndarray, model: LanguageModel, device: torch.device
) -> list[list[np.ndarray]]:
    """The batches of each shard: at most SHARD_FLOPS of work, and examples whose shares of its bytes sum to 1."""
    batches = cut_batches(packing.work, batch_tokens, 1 if model.batching == "one length" else FILLED)
    by_work = packing.work * _flops_per_node(model) / SHARD_FLOPS.get(device.type, math.inf)
    by_bytes = np.add.reduceat(example_share[packing.order], packing.starts[:-1])
    if len(example_share) > IN_MEMORY:
        give_back_memory()  # what tokenising and sorting many texts freed
    return group_batches(batches, np.maximum(by_work, by_bytes), limit=1)


def _flops_per_node(model: LanguageModel) -> float:
    """FLOPs of one token in all blocks, but for attention to other tokens."""
    if not has_shape(model.cfg):  # a model of no family; each weight is one product
        return 2.0 * sum(weight.numel() for name, weight in model.named_parameters() if "blocks." in name)
    return sum(part.n_layers * sum(token_flops(part).values()) for part in equal_stacks(shape_of(model.cfg)))
