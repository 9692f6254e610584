"""Computed positional embeddings: sinusoids added to the token embedding, and rotations of queries and keys.

Learned ones are an `Embedding` of position ids. Both kinds here are tables indexed by position id as well, so padding,
packing and a cache change nothing.

Axes: B batch, L position, D d_model, H heads, K d_head, N positions of the table.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from probekit.errors import DataError
from probekit.models.config_checks import check_positive_number


class ComputedTable(nn.Module):
    """Rows of a float32 table computed by a formula: never trained, saved or loaded.

    The table is computed when rows are first read, on the device of the index. So a model may be built on the meta
    device, moved and converted; the rows stay float32 under a model in bfloat16 too.

    Args:
        make: returns the table, [N, width].
    """

    def __init__(self, make: Callable[[], Tensor]):
        super().__init__()
        self.make = make
        self.rows: Tensor | None
        self.register_buffer("rows", None, persistent=False)

    def forward(self, index: Tensor) -> Tensor:
        """The rows [..., width] of an index [...]."""
        if self.rows is None or self.rows.device != index.device:
            with torch.inference_mode(False), torch.device("cpu"):  # so that every device gets the same numbers
                self.rows = self.make().to(index.device)
        return F.embedding(index, self.rows)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "ComputedTable":
        self.rows = None  # the model is moved or converted: compute the table anew when it is next read
        return super()._apply(fn, recurse)


def _sinusoid_angles(n: int, d_model: int) -> Tensor:
    """The angle position / 10000^(2i / D), float64 [N, ceil(D / 2)]."""
    step = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
    return torch.arange(n, dtype=torch.float64)[:, None] / 10000**step


def sinusoids(n: int, d_model: int) -> Tensor:
    """Sines at even indices and cosines at odd ones (Vaswani et al. 2017, 3.5), float32 [N, D]."""
    angles = _sinusoid_angles(n, d_model)
    pairs = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
    return pairs[:, :d_model].float()


def sinusoids_in_halves(n: int, d_model: int) -> Tensor:
    """The same numbers with all sines before all cosines, as in Marian and tensor2tensor; [N, D]."""
    angles = _sinusoid_angles(n, d_model)
    return torch.cat([angles.sin(), angles.cos()], -1)[:, :d_model].float()


_SCALING_FIELDS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_n_ctx"),
}


@dataclass(frozen=True)
class RopeScaling:
    """How rotations are stretched to a context longer than that of the first training.

    "linear" divides every frequency by `factor` (Chen et al. 2023). "llama3" divides those whose wavelength exceeds
    original_n_ctx / low_freq_factor, keeps those whose wavelength is below original_n_ctx / high_freq_factor, and
    interpolates between.

    Raises:
        DataError: another kind, or a factor that is missing or impossible.
    """

    kind: str
    factor: float
    low_freq_factor: float = 0.0  # this and the next two are for llama3 only
    high_freq_factor: float = 0.0
    original_n_ctx: int = 0

    def __post_init__(self):
        if not isinstance(self.kind, str) or self.kind not in _SCALING_FIELDS:
            raise DataError(f"rope scaling {self.kind!a:.60} is not implemented; only default, linear and llama3 are")
        for field in _SCALING_FIELDS[self.kind]:
            check_positive_number(getattr(self, field), f"rope scaling {self.kind}: {field}")
        if self.kind == "llama3" and self.low_freq_factor >= self.high_freq_factor:
            raise DataError(
                f"rope scaling llama3: low_freq_factor {self.low_freq_factor} must be below "
                f"high_freq_factor {self.high_freq_factor}"
            )


def scaled_frequencies(frequency: Tensor, scaling: RopeScaling) -> Tensor:
    """The frequencies [K / 2] after stretching."""
    if scaling.kind == "linear":
        return frequency / scaling.factor
    turns = scaling.original_n_ctx / (2 * math.pi / frequency)  # context / wavelength
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0, 1)
    return (1 - kept) * frequency / scaling.factor + kept * frequency


_ROPE_FIELDS = {  # field of Hugging Face's rope_parameters -> field of RopeScaling
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_max_position_embeddings": "original_n_ctx",
}
_ROPE_PLAIN = {"rope_theta", "rope_type", "type", "partial_rotary_factor"}  # these stretch nothing
_ROPE_KEYS = {*_ROPE_FIELDS, *_ROPE_PLAIN}


def rope_from_hf(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The fields `rope_theta` and `rope_scaling` of a config, from a Hugging Face config.json.

    transformers 5 writes them into rope_parameters; earlier versions into rope_theta and rope_scaling.

    Raises:
        DataError: a rule that is not implemented, or fields that contradict each other.
    """
    rope = _rope_fields(hf)
    theta = rope.get("rope_theta", hf.get("rope_theta", 10000.0))
    if hf.get("rope_theta", theta) != theta:
        raise DataError(f"rope_theta is {hf['rope_theta']!a:.60}, but {theta!a:.60} in rope_parameters; leave one out")
    for where in (hf, rope):
        if where.get("partial_rotary_factor") not in (None, 1):
            raise DataError(
                f"partial_rotary_factor {where['partial_rotary_factor']!a:.60} is not implemented; only 1 is"
            )
    kind = rope.get("rope_type", rope.get("type"))
    if kind is None and (fields := sorted(str(key) for key in rope.keys() - _ROPE_PLAIN)):
        raise DataError(f"rope scaling with {fields[0]!a:.60} and no rope_type; give linear, llama3 or default")
    kind = "default" if kind is None else kind
    if kind in ("default", *_SCALING_FIELDS) and (unknown := sorted(str(key) for key in rope.keys() - _ROPE_KEYS)):
        raise DataError(f"rope scaling {kind!a:.60} with {unknown[0]!a:.60} is not implemented")
    if kind == "default":
        return {"rope_theta": theta, "rope_scaling": None}
    given: dict[str, Any] = {ours: rope.get(name) for name, ours in _ROPE_FIELDS.items() if name in rope}
    if kind == "llama3":
        given = {"original_n_ctx": hf["max_position_embeddings"]} | given
    return {"rope_theta": theta, "rope_scaling": RopeScaling(kind, given.pop("factor", None), **given)}


def _rope_fields(hf: Mapping[str, Any]) -> Mapping[str, Any]:
    new, old = hf.get("rope_parameters"), hf.get("rope_scaling")
    if new and old and new != old:
        raise DataError("config.json has both rope_parameters and rope_scaling, and they differ; leave one out")
    rope = new or old or {}
    if not isinstance(rope, Mapping):
        raise DataError(f"rope_parameters and rope_scaling must be objects or null; got {rope!a:.60}")
    return rope


def rope_to_hf(theta: float, scaling: RopeScaling | None) -> dict[str, Any]:
    """The rope_parameters of a Hugging Face config.json."""
    if scaling is None:
        return {"rope_theta": theta, "rope_type": "default"}
    fields = {name: getattr(scaling, ours) for name, ours in _ROPE_FIELDS.items() if getattr(scaling, ours)}
    return {"rope_theta": theta, "rope_type": scaling.kind} | fields


def rotary_table(n: int, d_head: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """Cosines, then sines, of position * theta^(-2i / K), [N, K]; in float32 throughout, as in Llama's training."""
    frequency = 1.0 / theta ** (torch.arange(0, d_head, 2, dtype=torch.float32) / d_head)
    if scaling is not None:
        frequency = scaled_frequencies(frequency, scaling)
    angles = torch.arange(n, dtype=torch.float32)[:, None] * frequency
    return torch.cat([angles.cos(), angles.sin()], -1)


class Rotary(nn.Module):
    """The rotation of each position (Su et al. 2021, "RoFormer"); `rotate_half` and `rotate_interleaved` apply it.

    Raises:
        DataError: d_head is odd, so one coordinate would have no partner.
    """

    def __init__(self, n_ctx: int, d_head: int, theta: float = 10000.0, scaling: RopeScaling | None = None):
        super().__init__()
        if d_head % 2:
            raise DataError(f"rotary positions rotate pairs of coordinates, so d_head must be even; got {d_head}")
        self.table = ComputedTable(partial(rotary_table, n_ctx, d_head, theta, scaling))

    def forward(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """The cosines and sines of positions [B, L], each float32 [B, L, 1, K / 2]."""
        cos, sin = self.table(position_ids).unsqueeze(-2).chunk(2, -1)
        return cos, sin


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
    return torch.cat([rotate_half(x_BLHK[..., :n_rotated], rotation), x_BLHK[..., n_rotated:]], -1)


def rotate_interleaved(x_BLHK: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate coordinate 2i with coordinate 2i + 1, the pairing of the paper and of Meta's own Llama files."""
    x, y = x_BLHK.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack(_rotated(x, y, rotation), -1).flatten(-2)
