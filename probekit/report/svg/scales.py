"""Axes as numbers: from values to pixels, and round ticks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class AxisSpan:
    """A range of values and the pixels that it covers.

    Attributes:
        low: the value at `start`.
        high: the value at `end`.
        start: pixel.
        end: pixel; less than `start` for an axis that points upwards.
    """

    low: float
    high: float
    start: float
    end: float


def pixel(span: AxisSpan, value: float) -> float:
    """Where a value is; one beyond the ends is at the end."""
    share = (value - span.low) / ((span.high - span.low) or 1.0)
    return span.start + min(max(share, 0.0), 1.0) * (span.end - span.start)


def cut_to(points: Sequence[tuple[float, float]], low: float, high: float) -> list[tuple[float, float]]:
    """The part of a polygon between two values of y (Sutherland and Hodgman 1974); empty if there is none."""
    shape = list(points)
    for end, sign in ((low, 1.0), (high, -1.0)):
        kept: list[tuple[float, float]] = []
        for (x0, y0), (x1, y1) in zip([*shape[-1:], *shape[:-1]], shape, strict=True):
            if (y0 - end) * (y1 - end) < 0:  # the edge crosses the end
                kept.append((x0 + (x1 - x0) * (end - y0) / (y1 - y0), end))
            if sign * (y1 - end) >= 0:
                kept.append((x1, y1))
        shape = kept
    return shape


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round values between low and high, at most `most` + 1: steps of 1, 2 or 5 times a power of ten."""
    room = high - low
    if not room > 0 or not math.isfinite(room):
        return [low]
    rough = room / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def tick_text(value: float, values: Sequence[float]) -> str:
    """A tick with as many decimals as its neighbours need."""
    if max(map(abs, values), default=0.0) >= 100_000:
        return f"{value:.3g}"
    step = min((b - a for a, b in pairwise(values)), default=0.01)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value:z,.{decimals}f}"


def padded(low: float, high: float, least: float, share: float = 0.05) -> tuple[float, float]:
    """The range at least `least` long, with a little room at both ends."""
    middle, half = (low + high) / 2, max(high - low, least) / 2
    return middle - half * (1 + 2 * share), middle + half * (1 + 2 * share)
