"""Computed positional embeddings: sinusoids added to the token embedding, and rotations of queries and keys.

Learned ones are an `Embedding` of position ids. Both kinds here are tables indexed by position id as well, so padding,
packing and a cache change nothing.

Axes: B batch, L position, D d_model, H heads, K d_head, N positions of the table.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probekit.errors import DataError
from probekit.models.config_fields import Unimplemented, check_positive_number, unchecked


class ComputedTable(nn.Module):
    """Rows of a float32 table computed by a formula: never trained, saved or loaded.

    Rows are computed on the CPU, so that every device gets the same numbers, and not before they are read: so a model
    may be built on the meta device, moved and converted. They stay float32 under a model in bfloat16 too. There are
    1,024 at first, and twice as many whenever a later one is read: Gemma 3 has two tables of 131,072 rows of 256, 134
    MB and 0.35 s each, of which most texts read a few hundred. The steps are always the same, so a row's numbers do not
    depend on what was read before it. On other devices than the CPU all rows are computed at once, since asking for the
    largest index would wait for the device.

    Args:
        make: positions [N] -> their rows, [N, width].
        n: how many rows the whole table has.
    """

    def __init__(self, make: Callable[[Tensor], Tensor], n: int):
        super().__init__()
        self.make = make
        self.n = n
        self.rows: Tensor | None
        self.register_buffer("rows", None, persistent=False)

    def forward(self, index: Tensor) -> Tensor:
        """The rows [..., width] of an index [...]."""
        n = min(int(index.max()) + 1, self.n) if index.device.type == "cpu" else self.n
        rows = self.rows  # another thread may replace it by fewer
        if rows is None or rows.device != index.device or len(rows) < n:
            rows = self.rows = self._first(n).to(index.device)
        return F.embedding(index, rows)

    def _first(self, n: int) -> Tensor:
        """At least the first n rows, on the CPU."""
        parts, start = [], 0
        with torch.inference_mode(False), torch.device("cpu"):
            while start < n:
                end = min(max(2 * start, 1024), self.n)
                parts.append(self.make(torch.arange(start, end)))
                start = end
            return torch.cat(parts)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "ComputedTable":
        self.rows = None  # the model is moved or converted: compute the rows anew when they are next read
        return super()._apply(fn, recurse)


def _sinusoid_angles(positions: Tensor, d_model: int) -> Tensor:
    """The angle position / 10000^(2i / D), float64 [N, ceil(D / 2)]."""
    step = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
    return positions.double()[:, None] / 10000**step


def sinusoids(positions: Tensor, d_model: int) -> Tensor:
    """Sines at even indices and cosines at odd ones (Vaswani et al. 2017, 3.5), float32 [N, D]."""
    angles = _sinusoid_angles(positions, d_model)
    pairs = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
    return pairs[:, :d_model].float()


def sinusoids_in_halves(positions: Tensor, d_model: int) -> Tensor:
    """The same numbers with all sines before all cosines, as in Marian and tensor2tensor; [N, D]."""
    angles = _sinusoid_angles(positions, d_model)
    return torch.cat([angles.sin(), angles.cos()], -1)[:, :d_model].float()


_TURNS = ("factor", "low_freq_factor", "high_freq_factor", "original_n_ctx")
_SCALING_FIELDS = {  # kind -> the numbers that it must have
    "linear": ("factor",),
    "llama3": _TURNS,
    "yarn": (*_TURNS, "attention_factor"),
    "longrope": ("factor", "original_n_ctx", "attention_factor"),
}


@dataclass(frozen=True)
class RopeScaling:
    """How rotations are stretched to a context longer than that of the first training.

    "linear" divides every frequency by `factor` (Chen et al. 2023). "llama3" divides those that turn fewer than
    low_freq_factor times in original_n_ctx, keeps those that turn more than high_freq_factor times, and interpolates
    between. "yarn" interpolates along the index of the frequency (Peng et al. 2023), from a whole index to a whole one
    if `truncate`. "longrope" divides each frequency
    by a factor of its own: one of `short_factors` in texts up to original_n_ctx, one of `long_factors` in longer ones
    (Ding et al. 2024). The last two multiply cosines and sines by `attention_factor`.

    Raises:
        DataError: another kind, or a factor that is missing or impossible.
    """

    kind: str
    factor: float
    low_freq_factor: float = 0.0  # this and the next are for llama3 and yarn only
    high_freq_factor: float = 0.0
    original_n_ctx: int = 0
    attention_factor: float = unchecked(1.0, later=True)
    short_factors: tuple[float, ...] = unchecked((), later=True)
    long_factors: tuple[float, ...] = unchecked((), later=True)
    truncate: bool = unchecked(True, later=True)

    def __post_init__(self):
        if not isinstance(self.kind, str) or self.kind not in _SCALING_FIELDS:
            raise Unimplemented(
                f"rope scaling {self.kind!a:.60} is not implemented; only default, {', '.join(_SCALING_FIELDS)} are"
            )
        for field in _SCALING_FIELDS[self.kind]:
            check_positive_number(getattr(self, field), f"rope scaling {self.kind}: {field}")
        for factor in (*self.short_factors, *self.long_factors):
            check_positive_number(factor, f"rope scaling {self.kind}: each short_factor and long_factor")
        low, high = self.low_freq_factor, self.high_freq_factor
        if high and (low > high or (low == high and self.kind != "yarn")):  # Kimi K2's yarn has the same twice
            raise DataError(f"rope scaling {self.kind}: low_freq_factor {low} must be below high_freq_factor {high}")


def frequencies(d_head: int, theta: float, scaling: RopeScaling | None = None) -> Tensor:
    """The angle from a position to the next, of each pair of coordinates: theta^(-2i / K), stretched; [K / 2]."""
    period = theta ** (torch.arange(0, d_head, 2, dtype=torch.float32) / d_head)
    frequency = 1.0 / period
    if scaling is None:
        return frequency
    if scaling.kind == "linear":
        return frequency / scaling.factor
    if scaling.kind == "longrope":  # `Rotary` has seen to it that no text is longer than original_n_ctx
        return 1.0 / (torch.tensor(scaling.short_factors) * period)
    if scaling.kind == "yarn":
        kept = _kept_by_yarn(len(period), theta, scaling)
        return 1.0 / (scaling.factor * period) * (1 - kept) + frequency * kept
    turns = scaling.original_n_ctx / (2 * math.pi / frequency)  # context / wavelength
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0, 1)
    return (1 - kept) * frequency / scaling.factor + kept * frequency


def _kept_by_yarn(n: int, theta: float, scaling: RopeScaling) -> Tensor:
    """How much of each of n frequencies is kept: all of the first, nothing of the last, linear in between."""

    def index(turns: float) -> float:
        """Of the frequency that turns so often in the original context."""
        return n * math.log(scaling.original_n_ctx / (turns * 2 * math.pi)) / math.log(theta)

    first, last = index(scaling.high_freq_factor), index(scaling.low_freq_factor)
    if scaling.truncate:
        first, last = float(math.floor(first)), float(math.ceil(last))
    first, last = max(first, 0.0), min(last, 2 * n - 1)
    width = last - first or 0.001  # as in the authors' code
    return 1 - ((torch.arange(n, dtype=torch.float32) - first) / width).clamp(0, 1)


def rotary_table(positions: Tensor, d_head: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """Cosines, then sines, of position * frequency, [N, K]; in float32 throughout, as in Llama's training."""
    angles = positions.float()[:, None] * frequencies(d_head, theta, scaling)
    table = torch.cat([angles.cos(), angles.sin()], -1)
    return table if scaling is None else table * scaling.attention_factor


class Rotary(nn.Module):
    """The rotation of each position (Su et al. 2021, "RoFormer"); `rotate_half` and `rotate_interleaved` apply it.

    Raises:
        DataError: d_head is odd, so one coordinate would have no partner; or the factors of longrope are not one for
            each pair, or would change with the length of a text in this context.
    """

    def __init__(self, n_ctx: int, d_head: int, theta: float = 10000.0, scaling: RopeScaling | None = None):
        super().__init__()
        if d_head % 2:
            raise DataError(f"rotary positions rotate pairs of coordinates, so d_head must be even; got {d_head}")
        if scaling is not None and scaling.kind == "longrope":
            _check_longrope(n_ctx, d_head, scaling)
        self.table = ComputedTable(partial(rotary_table, d_head=d_head, theta=theta, scaling=scaling), n_ctx)

    def forward(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """The cosines and sines of positions [B, L], each float32 [B, L, 1, K / 2]."""
        cos, sin = self.table(position_ids).unsqueeze(-2).chunk(2, -1)
        return cos, sin


def _check_longrope(n_ctx: int, d_head: int, scaling: RopeScaling) -> None:
    for field in ("short_factors", "long_factors"):
        if len(getattr(scaling, field)) != d_head // 2:
            raise DataError(
                f"rope scaling longrope: {field[:-1]} must be {d_head // 2} numbers, one for each pair of rotated "
                f"coordinates; got {len(getattr(scaling, field))}"
            )
    if n_ctx > scaling.original_n_ctx:
        raise Unimplemented(
            f"rope scaling longrope is not implemented for a context of {n_ctx:,} tokens; only up to "
            f"original_max_position_embeddings {scaling.original_n_ctx:,} is"
        )


def _rotated(x: Tensor, y: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    cos, sin = (part.to(x.dtype) for part in rotation)
    return x * cos - y * sin, y * cos + x * sin


def rotate_half(x_BLHK: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate coordinate i with coordinate i + K / 2, the pairing of GPT-NeoX and of Hugging Face's Llama files."""
    x, y = x_BLHK.chunk(2, -1)
    return torch.cat(_rotated(x, y, rotation), -1)


def rotate_first(x_BLHK: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """`rotate_half` of the first coordinates, as many as the table has; the others pass (partial rotation)."""
    n_rotated = 2 * rotation[0].shape[-1]
    if n_rotated == x_BLHK.shape[-1]:
        return rotate_half(x_BLHK, rotation)  # without a copy
    return torch.cat([rotate_half(x_BLHK[..., :n_rotated], rotation), x_BLHK[..., n_rotated:]], -1)


def rotate_interleaved(x_BLHK: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate coordinate 2i with coordinate 2i + 1, the pairing of the paper and of Meta's own Llama files."""
    x, y = x_BLHK.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack(_rotated(x, y, rotation), -1).flatten(-2)
