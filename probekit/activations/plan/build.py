"""Build the plan of an extraction from the model, the task and the options.

Axes: N examples, D width of a place.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from probekit.activations.layout import row_bytes
from probekit.activations.plan.packing import FILLED, Packing, choose_nodes, cut_batches, group_batches, pack
from probekit.activations.plan.places import find_places, is_reached, stack_of, stop_at_layer, width_of
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.plan.prepare import rendered_task
from probekit.activations.plan.reading.read_positions import Reading, layout_of, needed_tokens, read_positions
from probekit.activations.plan.reading.select_tokens import UNREAD
from probekit.activations.plan.token_ids import Sequences, targets_task, tokenise_inputs, tokenise_targets
from probekit.activations.plan.token_labels import WRONG_LABELS, with_labels_by_token
from probekit.errors import DataError, UnreadError, UsageError
from probekit.files.scratch import IN_MEMORY, give_back_memory
from probekit.interventions import (
    Edits,
    TextTokens,
    check_edits,
    check_positions,
    check_width,
    edit_rows,
    is_identity,
    tokens_at,
)
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
from probekit.text import counted

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
    points, stack, places, widths = _places(model, options)
    dtype, device, full = dtype_name(options.dtype), _device(model, options.device), rendered_task(model, task, options)
    options = replace(options, position=position_of_rows(options.position, task, full))
    task, sequences, sources, reading = _read(model, full, options, stack)
    options = _checked_edits(model, options, places, stack, len(task))
    _check_edited_tokens(model, options.edits, sequences, sources)
    layout = layout_of(reading, sequences)
    batch_tokens = options.batch_tokens or BATCH_TOKENS.get(device.type, BATCH_TOKENS_ELSEWHERE)
    causal, needed = model.causal or stack == "decoder", sequences
    repeats = model.batching != "packed" and task.spans is not None  # a text with several words runs once, so whole
    if causal and not repeats and not any(point in PAIR_POINTS for point, _ in places):
        needed = sequences.first(needed_tokens(reading, sequences.lengths))  # none after the last one that is read
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
    _, stack, places, _ = _places(model, options)
    _checked_edits(model, options, places, stack, n_examples)
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


def _places(model: LanguageModel, options: ExtractOptions) -> tuple[list[str], str, list[Place], list[int]]:
    """Short names of the points in this model, their stack, the places to keep and their widths."""
    if not isinstance(model, LanguageModel):
        raise UsageError(f"expected a model from load_model, got {model!a:.60}; call load_model first")
    points = [model.in_stack(point) for point in parse_points(options.points)]
    places = find_places(model, points, options.layers)
    return points, stack_of(points), places, [width_of(model, place) for place in places]


def _device(model: LanguageModel, wanted: str | torch.device) -> torch.device:
    """The device to run on, which a model that was loaded with device_map or quantize does not leave."""
    device = find_device(wanted, default=model.device)
    if model.stays and device.type != model.device.type:
        raise UsageError(f"{model.name} was loaded with device_map or quantize, and stays there; leave out {device}")
    return model.device if model.stays else device


def _read(
    model: LanguageModel, task: Task, options: ExtractOptions, stack: str
) -> tuple[Task, Sequences, Sequences | None, Reading]:
    """The task without bad rows, the sequences to read, a decoder's sources, and the tokens to read."""
    sequences, sources = tokenise_inputs(model, task, options.bos, options.on_long), None
    if stack == "decoder":
        sequences, sources = tokenise_targets(model, task, options.on_long), sequences
    labelled, bad = with_labels_by_token(model, task, sequences)
    flaw = WRONG_LABELS
    if not bad:
        own = targets_task(labelled) if stack == "decoder" else labelled
        reading, bad = read_positions(model, own, sequences, options.position, options.skip_special)
        if not bad:
            return labelled, sequences, sources, reading
        flaw = UNREAD
    try:
        left, _ = without_bad_rows(task, bad, flaw, options.on_bad_row)
    except DataError as error:
        raise (UnreadError(str(error)) if flaw == UNREAD else error) from None
    return _read(model, left, replace(options, position=position_of_rows(options.position, task, left)), stack)


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
        share, d_model = options.share and sources is None, model.cfg.d_model
        block_nodes = choose_nodes(needed, share, causal, d_model, least, model.forks)
    block_nodes = min(block_nodes, model.longest_row or block_nodes)
    return pack(needed, block_nodes, options.share, causal, sources, model.forks), block_nodes


def _cut_shards(
    packing: Packing, batch_tokens: int, example_share: np.ndarray, model: LanguageModel, device: torch.device
) -> list[list[np.ndarray]]:
    """The batches of each shard: at most SHARD_FLOPS of work, and examples whose shares of its bytes sum to 1."""
    batches = cut_batches(packing.work, batch_tokens, 1 if model.batching == "one length" else FILLED)
    if has_shape(model.cfg):  # FLOPs of one token in all blocks, but for attention to other tokens
        per_node = sum(part.n_layers * sum(token_flops(part).values()) for part in equal_stacks(shape_of(model.cfg)))
    else:  # a model of no family; each weight is one product
        per_node = 2.0 * sum(weight.numel() for name, weight in model.named_parameters() if "blocks." in name)
    by_work = packing.work * per_node / SHARD_FLOPS.get(device.type, math.inf)
    by_bytes = np.add.reduceat(example_share[packing.order], packing.starts[:-1])
    if len(example_share) > IN_MEMORY:
        give_back_memory()  # what tokenising and sorting many texts freed
    return group_batches(batches, np.maximum(by_work, by_bytes), limit=1)


def _checked_edits(
    model: LanguageModel, options: ExtractOptions, places: list[Place], stack: str, n_examples: int
) -> ExtractOptions:
    """The options after every edit was checked against the model, and against the places of a stack that are kept.

    Nothing is shared if equal tokens after equal prefixes may be edited differently in two texts.
    """
    if options.edits is None:
        return options
    pairs = check_edits(model, options.edits)
    if not pairs:
        return replace(options, edits=None)
    for name, edit in pairs:
        place = Place.of(name)
        check_width(edit, name, width_of(model, place))
        if (n := edit_rows(edit)) not in (None, n_examples):
            raise UsageError(
                f"the edit at {place} has tensors for {counted(n or 0, 'example')}, and the task has "
                f"{n_examples:,}; give one row for each example"
            )
        of_source = stack == "decoder" and place[0].startswith("encoder.")
        if of_source and options.edit_positions == "read" and edit.positions is None:
            raise UsageError(
                f"the tokens that are read are the decoder's, and {place} is the encoder's; edit all its "
                'tokens (edit_positions="all")'
            )
        if not of_source and not is_reached(place, stack, places):
            raise UsageError(
                f"the edit at {place} comes after everything that is kept, and changes nothing; keep later "
                "layers, or leave it out"
            )
    each = [edit for _, edit in pairs if not is_identity(edit)]
    has_rows = any(edit_rows(edit) is not None for edit in each)
    of_text = bool(each) and (
        has_rows or options.edit_positions == "read" or any(edit.positions is not None for edit in each)
    )
    return replace(options, share=options.share and not of_text)


def _check_edited_tokens(
    model: LanguageModel, edits: Edits | None, sequences: Sequences, sources: Sequences | None
) -> None:
    """Check that the texts have the positions of edits that have their own; generated tokens there are none."""
    for name, edit in () if edits is None else check_edits(model, edits):
        if edit.positions is None:
            continue
        texts = sources if sources is not None and name.startswith("encoder.") else sequences
        length_N, row_N = torch.from_numpy(np.array(texts.lengths)), torch.arange(len(texts))
        column_N0 = torch.empty(len(texts), 0, dtype=torch.long)
        positions = check_positions(edit.positions)
        if isinstance(positions, str) and positions == "generated":
            raise UsageError(
                f"the edit at {Place.of(name)} is for generated tokens, and extract writes none; "
                "give the whole texts, and the positions in them"
            )
        if not isinstance(positions, slice):
            tokens_at(positions, TextTokens(column_N0, length_N, row_N, len(texts), column_N0))
