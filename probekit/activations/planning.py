"""What an extraction will do, known before it starts: which texts and places, in which batches, how many bytes.

The plan's `identity` names everything that decides the bits of the result; two runs with equal identities end in equal
tensors, which is what lets an interrupted run go on.

Axes: B batch, L query position, M key position, D d_model, H heads, K d_head, F d_mlp, V vocab.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from probekit.activations.batching import cut_batches, group_batches, padded_tokens
from probekit.activations.sequences import OnLong, Position, Sequences, check_position, has_texts, read_at, sequences_of
from probekit.activations.sets import DTYPES, FOLLOWED_BY_OUTPUT, Place, spans_of
from probekit.activations.store import FORMAT_VERSION
from probekit.errors import UsageError, nearest
from probekit.hooks import POINTS, parse_layers, split_point
from probekit.models.base import LanguageModel
from probekit.tasks.base import SPLITS, Task
from probekit.text import printable

SHARD_BYTES = 64_000_000
SHARD_TOKENS = 8192  # so that a run that is stopped loses little: half a minute on a slow CPU


@dataclass(frozen=True, eq=False)
class ExtractionPlan:
    """One extraction, ready to run (`run_plan`); print `describe()` to see it.

    Attributes:
        model: the model that will run.
        task: the examples.
        points: short names that were asked for.
        places: (point, layer) of every tensor that will be kept, in curve order.
        widths: D of each place.
        position: which token is read; per example as int64 [N].
        dtype: name of the type that is kept.
        device: where the model will run.
        on_long: what happens to texts longer than the context.
        batch_tokens: tokens computed at once, padding included.
        shard_rows: rows of a shard.
        sequences: token ids.
        reads: index of the token that is read, int64 [N]; None for the mean.
        shards: row indices of each batch of each shard, in the order of work.
    """

    model: LanguageModel = field(repr=False)
    task: Task = field(repr=False)
    points: list[str]
    places: list[Place]
    widths: list[int]
    position: str | int | np.ndarray
    dtype: str
    device: torch.device
    on_long: OnLong
    batch_tokens: int
    shard_rows: int
    sequences: Sequences = field(repr=False)
    reads: np.ndarray | None = field(repr=False)
    shards: list[list[np.ndarray]] = field(repr=False)

    @property
    def texts(self) -> int:
        """N."""
        return len(self.task)

    @property
    def tokens(self) -> int:
        """Tokens of all texts, BOS included, after cutting."""
        return int(self.sequences.lengths.sum())

    @property
    def padded_tokens(self) -> int:
        """Tokens that are computed, padding included."""
        return padded_tokens(self.sequences.lengths, self.batches)

    @property
    def batches(self) -> list[np.ndarray]:
        """Row indices of each batch, in the order of work."""
        return [batch for shard in self.shards for batch in shard]

    @property
    def bytes(self) -> int:
        """Bytes of all tensors: memory, or disk but for a few kB of records."""
        return self.texts * sum(self.widths) * DTYPES[self.dtype].itemsize

    @property
    def bos(self) -> bool:
        """Whether a BOS stands before each text."""
        return bool(self.sequences.n_bos)

    @property
    def cut(self) -> int:
        """Texts that are cut at the right to fit the context."""
        return self.sequences.n_cut

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
    def stop_at_layer(self) -> int | None:
        """The block before which the forward may stop; None when the final norm is wanted."""
        stops = [_needed_blocks(place) for place in self.places]
        return None if None in stops else max(stop for stop in stops if stop is not None)

    @property
    def position_name(self) -> str:
        """The position in words, for files and people."""
        return str(self.position) if isinstance(self.position, str | int) else "per example"

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the bits of the result, JSON-able."""
        position = self.position
        if isinstance(position, np.ndarray):
            position = "sha256:" + hashlib.sha256(position.astype("<i8").tobytes()).hexdigest()
        tokenizer = self.model.tokenizer if has_texts(self.task) else None
        return {
            "version": FORMAT_VERSION,
            "family": type(self.model).__name__,
            "config": dataclasses.asdict(self.model.cfg),  # pyright: ignore[reportArgumentType]
            "model_fingerprint": self.model.fingerprint(),
            "tokenizer_fingerprint": None if tokenizer is None else tokenizer.fingerprint,
            "task_fingerprint": self.task.fingerprint(),
            "rows": self.texts,
            "points": self.points,
            "places": [list(place) for place in self.places],
            "widths": self.widths,
            "position": position,
            "dtype": self.dtype,
            "compute_dtype": str(self.model.dtype).removeprefix("torch."),
            "device": self.device.type,
            "bos": self.bos,
            "on_long": self.on_long,
            "batch_tokens": self.batch_tokens,
            "shard_rows": self.shard_rows,
        }

    @cached_property
    def digest(self) -> str:
        """Hex sha256 of the identity."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """The plan as JSON-able numbers and names."""
        return {
            "model": self.model.name,
            "task": self.task.name,
            "texts": self.texts,
            "splits": {split: int((self.task.splits == split).sum()) for split in SPLITS},
            "tokens": self.tokens,
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
            "shards": len(self.shards),
            "bos": self.bos,
            "on_long": self.on_long,
            "cut": self.cut,
            "dropped_blanks": self.dropped_blanks,
            "skipped_rows": self.skipped_rows,
        }

    def describe(self) -> str:
        """The plan as short aligned lines for the terminal."""
        cfg: Any = self.model.cfg
        compute = str(self.model.dtype).removeprefix("torch.")
        splits = ", ".join(f"{(self.task.splits == split).sum():,} {split}" for split in SPLITS)
        one = self.position if isinstance(self.position, str) else f"index {self.position_name}"
        where = {"mean": "mean over the tokens", "per example": "a token of its own in each text"}
        widths = "/".join(str(width) for width in dict.fromkeys(self.widths))
        padding = self.padded_tokens / self.tokens - 1
        lines = {
            "model": f"{self.model.name}: {cfg.n_layers} layers, d_model {cfg.d_model}, {compute} on {self.device}",
            "task": f"{self.task.name}: {self.texts:,} texts ({splits})",
            "tokens": f"{self.tokens:,}, {'a BOS before each text' if self.bos else 'no BOS'}",
            "read": f"{spans_of(self.places)}; {where.get(self.position_name, f'{one} token')}",
            "work": f"{len(self.batches):,} batches of up to {self.batch_tokens:,} tokens, {padding:.1%} padding",
            "size": f"{self.bytes / 1e6:,.1f} MB: {self.texts:,} x {len(self.places)} places x {widths} {self.dtype}",
        }
        if self.cut:
            lines["cut"] = f"{self.cut:,} texts to the first {cfg.n_ctx:,} tokens, the model's context"
        if self.dropped_blanks:
            lines["blanks"] = f"dropped at the end of {self.dropped_blanks:,} texts of the data"
        if self.skipped_rows:
            lines["skipped"] = f"{self.skipped_rows:,} rows of the data, of no use"
        if leaks := {split: n for split, n in self.task.info.get("also_in_train", {}).items() if n}:
            lines["leaks"] = " and ".join(f"{n:,} of the {split} texts" for split, n in leaks.items())
            lines["leaks"] += " also stand in train"
        return "\n".join(f"{key:<8}{printable(value)}" for key, value in lines.items())


def plan(
    model: LanguageModel,
    task: Task,
    points: str | Iterable[str] = "resid_pre",
    layers: str | int | Iterable[int] = "all",
    position: Position = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "float32",
    batch_tokens: int = 4096,
    bos: bool = False,
    on_long: OnLong = "cut",
) -> ExtractionPlan:
    """What `extract` with the same arguments will do: texts, tokens, places, batches, bytes.

    Raises:
        UsageError: an unknown point, type, device or position; a layer out of range; a point without a fixed width.
        DataError: inputs that the model cannot read; the message names the example.
    """
    if isinstance(batch_tokens, bool) or not isinstance(batch_tokens, int) or batch_tokens < 1:
        raise UsageError(f"batch_tokens is a positive whole number; got {batch_tokens!r}")
    points = _points(points)
    places = _places(model, points, layers)
    widths = [_width(model, place) for place in places]
    kept = _dtype_name(dtype)
    sequences = sequences_of(model, task, bos, on_long)
    position = check_position(position, task)
    by_tokens = SHARD_TOKENS * len(task) // int(sequences.lengths.sum())
    shard_rows = max(1, min(by_tokens, SHARD_BYTES // (sum(widths) * DTYPES[kept].itemsize)))
    return ExtractionPlan(
        model=model,
        task=task,
        points=points,
        places=places,
        widths=widths,
        position=position,
        dtype=kept,
        device=_device(device, model),
        on_long=on_long,
        batch_tokens=batch_tokens,
        shard_rows=shard_rows,
        sequences=sequences,
        reads=read_at(position, sequences, task),
        shards=group_batches(cut_batches(sequences.lengths, batch_tokens), shard_rows),
    )


def _points(points: str | Iterable[str]) -> list[str]:
    names = []
    for spec in [points] if isinstance(points, str) else points:
        short, layer = split_point(spec)
        if layer is not None:
            raise UsageError(f"points are given without a layer, {short!r}, and the layers apart; got {spec!r}")
        names.append(short)
    if not names:
        raise UsageError("no points given; give one or more, such as resid_pre")
    return list(dict.fromkeys(names))


def _places(model: LanguageModel, points: list[str], layers: str | int | Iterable[int]) -> list[Place]:
    n_layers = model.n_layers
    wanted = parse_layers(layers, n_layers)
    places: list[Place] = []
    for point in points:
        if "{layer}" not in POINTS[point]:
            places.append((point, None))
            continue
        places += [(point, layer) for layer in wanted]
        if point in FOLLOWED_BY_OUTPUT and isinstance(layers, str) and layers.strip() == "all":
            places.append(("resid_post", n_layers - 1))
    return list(dict.fromkeys(places))


def _width(model: LanguageModel, place: Place) -> int:
    """Width of one row at this place: the product of the axes after B and L."""
    cfg: Any = model.cfg
    sizes = {"D": cfg.d_model, "H": cfg.n_heads, "K": cfg.d_head, "F": cfg.d_mlp, "V": cfg.d_vocab, "1": 1}
    axes = model.points[model.resolve(place)[0]].axes.split()
    if axes[:2] != ["B", "L"] or not set(axes[2:]) <= set(sizes):
        raise UsageError(
            f"{place[0]} [{' '.join(axes)}] has no fixed width to keep; read it with "
            f"model.run_with_cache(tokens, points={place[0]!r})"
        )
    return math.prod(sizes[axis] for axis in axes[2:])


def _needed_blocks(place: Place) -> int | None:
    """How many blocks run before this place is reached; None where the final norm must run too."""
    point, layer = place
    if layer is None:
        return 0 if point in ("embed", "pos_embed") else None
    return layer if point == "resid_pre" else layer + 1


def _dtype_name(dtype: str | torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise UsageError(f"activations are kept as {', '.join(DTYPES)}; got {name!r}; {nearest(name, DTYPES)}")
    return name


def _device(device: str | torch.device, model: LanguageModel) -> torch.device:
    if device == "auto":
        return model.device
    try:
        wanted = torch.device(device)
        torch.empty(1, device=wanted).item()  # fails for the meta device, which holds no values
    except (RuntimeError, AssertionError, TypeError) as error:  # AssertionError: a torch without CUDA
        raise UsageError(f"device {str(device)!r} cannot be used here ({str(error).splitlines()[0]})") from None
    return wanted
