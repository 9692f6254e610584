"""The plan of one extraction: which texts, which tokens, which places, which blocks. Data only.

`plan/build.py` makes a plan, `plan/summary.py` describes it, `plan/identity.py` names what decides its bits,
`estimate.py` predicts its time and memory, and `extract.py` carries it out.

Axes: N examples, D width of a place.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from probekit.activations.layout import Layout
from probekit.activations.plan.packing import Packing
from probekit.activations.plan.reading.read_positions import Reading
from probekit.activations.plan.token_ids import Sequences
from probekit.interventions import Edits
from probekit.models.base import LanguageModel
from probekit.options.extract import OnLong
from probekit.points import Place
from probekit.tasks.base import Task


@dataclass(frozen=True, eq=False)
class ExtractionPlan:
    """One extraction, ready to run with `run_plan`.

    Attributes:
        model: the model that will run.
        task: the examples.
        points: short names of the requested points.
        places: (point, layer) of every tensor to keep, in curve order.
        widths: D of each place.
        stack: "encoder" or "decoder" for an encoder-decoder, by the stack of the points; "" for other models.
        stop_at_layer: the block before which the forward can stop; None if the final norm must run too.
        reading: the tokens to read in each example.
        layout: how many rows each example has at each place.
        dtype: name of the type of the kept values.
        device: where the model will run.
        on_long: what happens to texts longer than the context.
        batch_tokens: nodes computed at once.
        block_nodes: nodes of a block at most; a text with more is a block by itself.
        share: whether a prefix that texts have in common is computed once.
        sequences: token ids; for points of a decoder, those of the targets.
        sources: for points of a decoder, the token ids of the encoder's inputs.
        packing: the blocks.
        edits: what the model runs with; None for none.
        edit_positions: the tokens that are edited: "all", or "read", those of `reading`.
        shards: the blocks of each batch of each shard, in the order of work.
        shard_bytes: bytes of a shard at most, where the options say so; None is the usual size.
        asked: the options that differ from their defaults, for the record.
        identity: what decides the bits, once `identity_of` has worked it out; until then empty.
    """

    model: LanguageModel = field(repr=False)
    task: Task = field(repr=False)
    points: list[str]
    places: list[Place]
    widths: list[int]
    stack: str
    stop_at_layer: int | None
    reading: Reading = field(repr=False)
    layout: Layout = field(repr=False)
    dtype: str
    device: torch.device
    on_long: OnLong
    batch_tokens: int
    block_nodes: int
    share: bool
    sequences: Sequences = field(repr=False)
    sources: Sequences | None = field(repr=False)
    packing: Packing = field(repr=False)
    edits: Edits | None = field(repr=False)
    edit_positions: str = field(repr=False)
    shards: list[list[np.ndarray]] = field(repr=False)
    shard_bytes: int | None = field(default=None, repr=False)
    asked: dict[str, Any] = field(default_factory=dict, repr=False)
    identity: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def batches(self) -> list[np.ndarray]:
        """The blocks of each batch, in the order of work."""
        return [batch for shard in self.shards for batch in shard]


def shard_rows(plan: ExtractionPlan, number: int) -> np.ndarray:
    """The examples of a shard, in its order."""
    return plan.packing.rows_of(np.concatenate(plan.shards[number]))
