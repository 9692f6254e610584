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
from probekit.models.config_fields import later

_ORIGINAL = "original_max_position_embeddings"


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
    between. "yarn" interpolates along the index of the frequency (Peng et al. 2023). "longrope" divides each frequency
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
    attention_factor: float = later(1.0)
    short_factors: tuple[float, ...] = later(())
    long_factors: tuple[float, ...] = later(())

    def __post_init__(self):
        if not isinstance(self.kind, str) or self.kind not in _SCALING_FIELDS:
            raise DataError(
                f"rope scaling {self.kind!a:.60} is not implemented; only default, {', '.join(_SCALING_FIELDS)} are"
            )
        for field in _SCALING_FIELDS[self.kind]:
            check_positive_number(getattr(self, field), f"rope scaling {self.kind}: {field}")
        for factor in (*self.short_factors, *self.long_factors):
            check_positive_number(factor, f"rope scaling {self.kind}: each short_factor and long_factor")
        if self.high_freq_factor and self.low_freq_factor >= self.high_freq_factor:
            raise DataError(
                f"rope scaling {self.kind}: low_freq_factor {self.low_freq_factor} must be below "
                f"high_freq_factor {self.high_freq_factor}"
            )


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

    first = float(max(math.floor(index(scaling.high_freq_factor)), 0))
    last = min(math.ceil(index(scaling.low_freq_factor)), 2 * n - 1)
    width = last - first or 0.001  # as in the authors' code
    return 1 - ((torch.arange(n, dtype=torch.float32) - first) / width).clamp(0, 1)


def rotary_table(n: int, d_head: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """Cosines, then sines, of position * frequency, [N, K]; in float32 throughout, as in Llama's training."""
    angles = torch.arange(n, dtype=torch.float32)[:, None] * frequencies(d_head, theta, scaling)
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
        self.table = ComputedTable(partial(rotary_table, n_ctx, d_head, theta, scaling))

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
        raise DataError(
            f"rope scaling longrope is not implemented for a context of {n_ctx:,} tokens; only up to "
            f"{_ORIGINAL} {scaling.original_n_ctx:,} is"
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


# Rotations in Hugging Face's config.json: rope_parameters today; rope_theta and rope_scaling in old files.

_STRETCH = {  # field of rope_parameters -> field of RopeScaling
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    _ORIGINAL: "original_n_ctx",
}
_YARN = {
    "factor": "factor",
    "beta_slow": "low_freq_factor",
    "beta_fast": "high_freq_factor",
    _ORIGINAL: "original_n_ctx",
    "attention_factor": "attention_factor",
}
_LONGROPE = {
    "short_factor": "short_factors",
    "long_factor": "long_factors",
    _ORIGINAL: "original_n_ctx",
    "attention_factor": "attention_factor",
}
_NAMES = {"linear": _STRETCH, "llama3": _STRETCH, "yarn": _YARN, "longrope": _LONGROPE}
_PLAIN = {"rope_theta", "rope_type", "type", "partial_rotary_factor"}  # these stretch nothing
_KNOWN = {
    "default": {*_STRETCH},  # in some files, without effect
    "linear": {*_STRETCH},
    "llama3": {*_STRETCH},
    "yarn": {*_YARN, "mscale", "mscale_all_dim", "truncate"},
    "longrope": {*_LONGROPE, "factor"},
}


def rope_from_hf(
    hf: Mapping[str, Any], default_theta: float = 10000.0, kinds: tuple[str, ...] = ("linear", "llama3", "yarn")
) -> dict[str, Any]:
    """The fields `rope_theta` and `rope_scaling` of a config, from a Hugging Face config.json.

    Args:
        hf: the fields of config.json.
        default_theta: where the file gives none.
        kinds: of scaling that the family implements.

    Raises:
        DataError: a rule that is not implemented, or fields that contradict each other.
    """
    rope = _rope_fields(hf)
    theta = rope.get("rope_theta", hf.get("rope_theta", default_theta))
    if "rope_theta" in hf and hf["rope_theta"] != theta:
        raise DataError(f"rope_theta is {hf['rope_theta']!a:.60}, but {theta!a:.60} in rope_parameters; leave one out")
    for where in (hf, rope):
        if where.get("partial_rotary_factor") not in (None, 1):
            raise DataError(
                f"partial_rotary_factor {where['partial_rotary_factor']!a:.60} is not implemented; only 1 is"
            )
    kind = rope.get("rope_type", rope.get("type"))
    if kind is None and (fields := sorted(str(key) for key in rope.keys() - _PLAIN)):
        raise DataError(f"rope scaling with {fields[0]!a:.60} and no rope_type; give linear, llama3 or default")
    kind = "default" if kind is None else "longrope" if kind == "su" else kind
    if kind not in ("default", *kinds):
        implemented = f"{', '.join(('default', *kinds[:-1]))} and {kinds[-1]} are" if kinds else "default is"
        raise DataError(f"rope scaling {kind!a:.60} is not implemented; only {implemented}")
    if unknown := sorted(str(key) for key in rope.keys() - _PLAIN - _KNOWN[kind]):
        raise DataError(f"rope scaling {kind!a:.60} with {unknown[0]!a:.60} is not implemented")
    return {"rope_theta": theta, "rope_scaling": None if kind == "default" else _scaling(kind, rope, hf, theta)}


def _rope_fields(hf: Mapping[str, Any]) -> Mapping[str, Any]:
    new, old = hf.get("rope_parameters"), hf.get("rope_scaling")
    if new and old and new != old:
        raise DataError("config.json has both rope_parameters and rope_scaling, and they differ; leave one out")
    rope = new or old or {}
    if not isinstance(rope, Mapping):
        raise DataError(f"rope_parameters and rope_scaling must be objects or null; got {rope!a:.60}")
    return rope


def _scaling(kind: str, rope: Mapping[str, Any], hf: Mapping[str, Any], theta: Any) -> RopeScaling:
    if kind == "yarn":
        return _yarn(rope, hf, theta)
    if kind == "longrope":
        return _longrope(rope, hf)
    given: dict[str, Any] = {ours: rope[name] for name, ours in _STRETCH.items() if name in rope}
    if kind == "llama3":
        given["original_n_ctx"] = _original_n_ctx(rope, hf)
    return RopeScaling(kind, given.pop("factor", None), **given)


def _original_n_ctx(rope: Mapping[str, Any], hf: Mapping[str, Any]) -> Any:
    """The context of the first training; files have it inside of rope_parameters, or outside, or leave it out."""
    inside, outside = rope.get(_ORIGINAL), hf.get(_ORIGINAL)
    if None not in (inside, outside) and inside != outside:
        raise DataError(f"{_ORIGINAL} is {outside!a:.60}, but {inside!a:.60} in rope_parameters; leave one out")
    original = outside if inside is None else inside
    return hf["max_position_embeddings"] if original is None else original


def _yarn(rope: Mapping[str, Any], hf: Mapping[str, Any], theta: Any) -> RopeScaling:
    """Without an attention_factor, it is 0.1 log(factor) + 1, or what two scales of that logarithm make of it."""
    original, factor = _original_n_ctx(rope, hf), rope.get("factor")
    check_positive_number(original, f"rope scaling yarn: {_ORIGINAL}")
    factor = hf["max_position_embeddings"] / original if factor is None else factor
    over, under = rope.get("mscale"), rope.get("mscale_all_dim")
    over, under = (over, under) if over and under else (1, 0)
    for name, value in {"rope_theta": theta, "factor": factor, "mscale": over, "mscale_all_dim": under or 1}.items():
        check_positive_number(value, f"rope scaling yarn: {name}")
    if theta <= 1:
        raise DataError(f"rope_theta must be above 1 for rope scaling yarn; got {theta}")
    if rope.get("truncate") not in (None, True):
        raise DataError(f"rope scaling yarn with truncate = {rope['truncate']!a:.60} is not implemented; only true is")
    grown = 0.1 * math.log(max(factor, 1))
    attention = rope.get("attention_factor")
    attention = (over * grown + 1) / (under * grown + 1) if attention is None else attention
    slow, fast = rope.get("beta_slow") or 1, rope.get("beta_fast") or 32
    return RopeScaling("yarn", factor, slow, fast, original, attention)


def _longrope(rope: Mapping[str, Any], hf: Mapping[str, Any]) -> RopeScaling:
    """Without an attention_factor, it is sqrt(1 + log(factor) / log(original context)), where the factor is above 1."""
    original, longest = _original_n_ctx(rope, hf), hf["max_position_embeddings"]
    check_positive_number(original, f"rope scaling longrope: {_ORIGINAL}")
    factor = longest / original if rope.get("factor") is None else rope["factor"]
    check_positive_number(factor, "rope scaling longrope: factor")
    attention = rope.get("attention_factor")
    if attention is None:
        attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 < original else 1.0
    short, long = rope.get("short_factor"), rope.get("long_factor")
    if not isinstance(short, list) or not isinstance(long, list):
        raise DataError("rope scaling longrope: short_factor and long_factor must be lists of numbers; correct them")
    return RopeScaling("longrope", longest / original, 0, 0, original, attention, tuple(short), tuple(long))


def rope_to_hf(theta: float, scaling: RopeScaling | None) -> dict[str, Any]:
    """The rope_parameters of a Hugging Face config.json."""
    if scaling is None:
        return {"rope_theta": theta, "rope_type": "default"}
    values = {name: getattr(scaling, ours) for name, ours in _NAMES[scaling.kind].items()}
    fields = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items() if value}
    return {"rope_theta": theta, "rope_type": scaling.kind} | fields
