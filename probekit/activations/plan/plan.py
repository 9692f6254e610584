"""What an extraction will do, known before it starts: which texts and places, in which batches, how many bytes.

The plan's `identity` names everything that decides the result; two runs with equal identities end in equal tensors,
which is what lets an interrupted run go on. They are equal bit for bit on one machine with one torch and one number of
threads; elsewhere, but for rounding.

Axes: N examples, D width of a place.
"""

import dataclasses
import hashlib
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from probekit.activations.layout import Layout
from probekit.activations.plan.packing import Packing, choose_nodes, cut_batches, filled_nodes, group_batches, pack
from probekit.activations.plan.places import needed_blocks, places_of, points_of, stack_of, width_of
from probekit.activations.plan.read_positions import Reading, read
from probekit.activations.plan.summary import describe
from probekit.activations.plan.token_ids import Sequences, has_texts, sequences_of, targets_of
from probekit.activations.store.reader import FORMAT_VERSION
from probekit.activations.sums.statistics import identity_digest
from probekit.devices import DTYPES, dtype_name, find_device
from probekit.models.base import LanguageModel
from probekit.options import ExtractOptions
from probekit.options.extract import OnLong
from probekit.points import PAIR_POINTS, POINTS, Place
from probekit.tasks.base import SPLITS, Task

SHARD_BYTES = 64_000_000
SHARD_FLOPS = {"cpu": 1.4e12}  # so that a run that is stopped loses some seconds of work
BATCH_TOKENS = {"cpu": 2048}  # larger ones are no faster there
BATCH_TOKENS_ELSEWHERE = 16384
LEAST_NODES = {"cpu": 128}  # of a block
LEAST_NODES_ELSEWHERE = 256


@dataclass(frozen=True, eq=False)
class ExtractionPlan:
    """One extraction, ready to run (`run_plan`); print `describe()` to see it.

    Attributes:
        model: the model that will run.
        task: the examples.
        points: short names that were asked for.
        places: (point, layer) of every tensor that will be kept, in curve order.
        widths: D of each place.
        reading: the tokens that are read.
        dtype: name of the type that is kept.
        device: where the model will run.
        on_long: what happens to texts longer than the context.
        batch_tokens: nodes computed at once.
        block_nodes: nodes of a block at most, unless one text has more.
        share: whether a prefix that texts have in common is computed once.
        sequences: token ids, of the decoder's texts where its points are read.
        sources: token ids of what the encoder reads, where the decoder's points are.
        packing: the blocks.
        shards: the blocks of each batch of each shard, in the order of work.
    """

    model: LanguageModel = field(repr=False)
    task: Task = field(repr=False)
    points: list[str]
    places: list[Place]
    widths: list[int]
    reading: Reading = field(repr=False)
    dtype: str
    device: torch.device
    on_long: OnLong
    batch_tokens: int
    block_nodes: int
    share: bool
    sequences: Sequences = field(repr=False)
    sources: Sequences | None = field(repr=False)
    packing: Packing = field(repr=False)
    shards: list[list[np.ndarray]] = field(repr=False)

    @property
    def texts(self) -> int:
        """N."""
        return len(self.task)

    @property
    def tokens(self) -> int:
        """Tokens of all texts, cut, with their context; where examples are words, of each text of a split once."""
        return int(self._lengths.sum())

    @property
    def distinct_texts(self) -> int:
        """How many texts there are; where examples are words, each of a split once."""
        return len(self._lengths)

    @cached_property
    def _lengths(self) -> np.ndarray:
        return self.sequences.lengths[self.task.texts()[0]]

    @property
    def nodes(self) -> int:
        """Tokens that are computed: shared prefixes once a block, nothing after the last token that is read."""
        return self.packing.nodes

    @property
    def filled_nodes(self) -> int:
        """Tokens that are computed, with those that fill up batches."""
        return filled_nodes(self.packing.sizes, self.batches)

    @property
    def padded_tokens(self) -> int:
        """Tokens that batches of 32 in the order of the task would compute, padded to the longest of each."""
        lengths = self._lengths
        return sum(int(lengths[i : i + 32].max()) * len(lengths[i : i + 32]) for i in range(0, len(lengths), 32))

    @property
    def batches(self) -> list[np.ndarray]:
        """The blocks of each batch, in the order of work."""
        return [batch for shard in self.shards for batch in shard]

    @cached_property
    def layout(self) -> Layout:
        """How many rows each example has at each place."""
        tokens = self.reading.tokens(self.sequences)
        return _layout(self.reading, self.sequences, tokens)

    @property
    def bytes(self) -> int:
        """Bytes of all tensors: memory, or disk but for a few kB of records."""
        return int(_row_bytes(self.layout, self.places, self.widths, self.dtype).sum())

    @property
    def bos(self) -> bool:
        """Whether each input stands in its context: a BOS before it, [CLS] before and [SEP] behind it, or </s> behind.

        Of a decoder's texts that is asked of their sources: what starts a target is always there.
        """
        return bool(self._inputs.n_bos + self._inputs.n_end)

    @property
    def _inputs(self) -> Sequences:
        """What the model reads of the task's inputs."""
        return self.sequences if self.sources is None else self.sources

    @property
    def cut(self) -> int:
        """Texts that are cut at the right to fit the context; of pairs, sources and targets."""
        return self.sequences.n_cut + (0 if self.sources is None else self.sources.n_cut)

    @property
    def dropped_blanks(self) -> int:
        """Texts of the data that lost white space at their end, before any limit on their number."""
        return int(self.task.info.get("dropped_blanks", 0))

    @property
    def skipped_rows(self) -> int:
        """Rows of the data that are not in the task."""
        return int(self.task.info.get("skipped_rows", 0))

    @property
    def layers(self) -> list[int]:
        """Layers of the points that were asked for."""
        return sorted({layer for point, layer in self.places if point in self.points and layer is not None})

    @property
    def names(self) -> list[str]:
        """Full name of each place."""
        return [POINTS[point].format(layer=layer) for point, layer in self.places]

    @property
    def stack(self) -> str:
        """Of an encoder-decoder, the stack whose points are read: "encoder" or "decoder"; "" of other models."""
        return stack_of(self.model, self.points)

    @property
    def causal(self) -> bool:
        """Whether a token sees only the tokens before it."""
        return self.model.causal or self.stack == "decoder"

    @property
    def stop_at_layer(self) -> int | None:
        """The block before which the forward may stop; None when the final norm is wanted."""
        stops = [needed_blocks(place) for place in self.places]
        return None if None in stops else max(stop for stop in stops if stop is not None)

    @property
    def position_name(self) -> str:
        """The positions in words, for files and people."""
        return "+".join(self.reading.names)

    @property
    def position(self) -> str | int | list[str | int]:
        """The positions, JSON-able; an index for each example as its fingerprint."""
        names = [_fingerprint(one) if isinstance(one, np.ndarray) else one for one in self.reading.positions]
        return names[0] if len(names) == 1 else names

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the result, JSON-able: all but versions, threads and the processor."""
        tokenizer = self.model.tokenizer if has_texts(self.task) else None
        return {
            "version": FORMAT_VERSION,
            "family": type(self.model).__name__,
            "config": dataclasses.asdict(self.model.cfg),
            "model_fingerprint": self.model.fingerprint(),
            "tokenizer_fingerprint": None if tokenizer is None else tokenizer.fingerprint,
            "task_fingerprint": self.task.fingerprint(),
            "rows": self.texts,
            "points": self.points,
            "places": [list(place) for place in self.places],
            "widths": self.widths,
            "position": self.position,
            "dtype": self.dtype,
            "compute_dtype": str(self.model.dtype).removeprefix("torch."),
            "device": self.device.type,
            "bos": self.bos,
            "on_long": self.on_long,
            "batch_tokens": self.batch_tokens,
            "block_nodes": self.block_nodes,
            "share": self.share,
            "shards": len(self.shards),
        }

    @cached_property
    def digest(self) -> str:
        """Hex sha256 of the identity."""
        return identity_digest(self.identity)

    def as_dict(self) -> dict[str, Any]:
        """The plan as JSON-able numbers and names."""
        return {
            "model": self.model.name,
            "task": self.task.name,
            "texts": self.distinct_texts,
            "words": None if self.task.spans is None else self.texts,
            "splits": {split: int((self.task.splits == split).sum()) for split in SPLITS},
            "tokens": self.tokens,
            "nodes": self.nodes,
            "sharing": self.tokens / self.nodes,
            "padded_tokens": self.padded_tokens,
            "points": self.points,
            "layers": self.layers,
            "places": [list(place) for place in self.places],
            "widths": self.widths,
            "position": self.position_name,
            "dtype": self.dtype,
            "device": str(self.device),
            "bytes": self.bytes,
            "batches": len(self.batches),
            "batch_tokens": self.batch_tokens,
            "block_nodes": self.block_nodes,
            "blocks": len(self.packing.sizes),
            "shards": len(self.shards),
            "bos": self.bos,
            "on_long": self.on_long,
            "cut": self.cut,
            "dropped_blanks": self.dropped_blanks,
            "skipped_rows": self.skipped_rows,
        }

    def describe(self) -> str:
        """The plan as short aligned lines for the terminal."""
        return describe(self)


def plan_extraction(model: LanguageModel, task: Task, options: ExtractOptions) -> ExtractionPlan:
    """The plan of `extract` with these options: texts, tokens, places, blocks, bytes.

    Raises:
        UsageError: an unknown point, type, device or position; a layer out of range; a point without a fixed width.
        DataError: inputs that the model cannot take; the message names the example.
    """
    points = [model.in_stack(point) for point in points_of(options.points)]
    stack, places = stack_of(model, points), places_of(model, points, options.layers)
    causal = model.causal or stack == "decoder"
    widths = [width_of(model, place) for place in places]
    kept, where = dtype_name(options.dtype), find_device(options.device, default=model.device)
    sequences = sequences_of(model, task, options.bos, options.on_long)
    sources = None
    if stack == "decoder":
        sources, sequences = sequences, targets_of(model, task, options.on_long)
    reading = read(options.position, sequences, task)
    computed = _computed(causal, places, sequences, reading)
    batch_tokens = options.batch_tokens or BATCH_TOKENS.get(where.type, BATCH_TOKENS_ELSEWHERE)
    block_nodes = options.block_nodes
    if block_nodes is None:
        least = LEAST_NODES.get(where.type, LEAST_NODES_ELSEWHERE)
        block_nodes = choose_nodes(computed, options.share and sources is None, causal, model.cfg.d_model, least)
    packing = pack(computed, block_nodes, options.share, causal, sources)
    row_bytes = _row_bytes(_layout(reading, sequences), places, widths, kept)
    return ExtractionPlan(
        model=model,
        task=task,
        points=points,
        places=places,
        widths=widths,
        reading=reading,
        dtype=kept,
        device=where,
        on_long=options.on_long,
        batch_tokens=batch_tokens,
        block_nodes=block_nodes,
        share=options.share,
        sequences=sequences,
        sources=sources,
        packing=packing,
        shards=_shards(model, packing, batch_tokens, row_bytes, where),
    )


def _computed(causal: bool, places: list[Place], sequences: Sequences, reading: Reading) -> Sequences:
    """What has to be computed of each text: in a causal model, nothing after the last token that is read."""
    if not causal or any(point in PAIR_POINTS for point, _ in places):
        return sequences
    return sequences.first(reading.needed(sequences.lengths))


def _layout(reading: Reading, sequences: Sequences, tokens: np.ndarray | None = None) -> Layout:
    return Layout(reading.names, sequences.lengths, sequences.n_bos, tokens, sequences.n_end)


def _row_bytes(layout: Layout, places: list[Place], widths: list[int], dtype: str) -> np.ndarray:
    """Bytes that are kept of each example, int64 [N]."""
    per_place = [layout.counts(place) * width for place, width in zip(places, widths, strict=True)]
    return np.sum(per_place, axis=0) * DTYPES[dtype].itemsize


def _shards(
    model: LanguageModel, packing: Packing, batch_tokens: int, row_bytes: np.ndarray, device: torch.device
) -> list[list[np.ndarray]]:
    """The batches of each shard: as much as SHARD_BYTES hold, or as takes SHARD_FLOPS."""
    batches = cut_batches(packing.work, batch_tokens)
    cfg = model.cfg
    node_flops = 2 * cfg.n_layers * (4 * cfg.d_model**2 + 2 * cfg.d_model * cfg.d_mlp)
    by_work = packing.work * node_flops / SHARD_FLOPS.get(device.type, math.inf)
    by_bytes = np.add.reduceat(row_bytes[packing.order], packing.starts[:-1]) / SHARD_BYTES
    return group_batches(batches, np.maximum(by_work, by_bytes), limit=1)


def _fingerprint(index: np.ndarray) -> str:
    return "sha256:" + hashlib.sha256(index.astype("<i8").tobytes()).hexdigest()
