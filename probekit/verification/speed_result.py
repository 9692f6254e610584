"""What was measured of the speed of an extraction: the numbers, and how they are shown."""

from dataclasses import asdict, dataclass, field
from typing import Any

from probekit.text import listed, metric, printable


@dataclass(frozen=True)
class Ratio:
    """A ratio of paired rounds: their geometric mean and its 95% interval (Student's t on the logarithms)."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f}x [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Contestant:
    """One way to read the activations.

    Attributes:
        name: "probekit" or the class of transformers and its version.
        settings: how it ran.
        seconds: of each round.
        tokens_per_second: tokens of the texts over the median of the rounds.
        peak_bytes: of device memory over the loaded model, in a run; None on a CPU.
    """

    name: str
    settings: str
    seconds: tuple[float, ...]
    tokens_per_second: float
    peak_bytes: int | None


@dataclass(frozen=True)
class CopyOverlap:
    """How much of the copy of shards to the host is hidden behind the computing of the next ones.

    Attributes:
        hidden: the share, 0 to 1: one minus the time that the copies add over the time that they take alone.
        n_bytes: that were copied.
        bytes_per_second: of the copies alone.
    """

    hidden: float
    n_bytes: int
    bytes_per_second: float


@dataclass(frozen=True)
class SpeedTest:
    """The result of `measure_speed`.

    Attributes:
        device: by its name.
        dtype: in which everything was computed.
        texts: how many.
        tokens: of all texts.
        flops: of one extraction, counted from the model's shape: every node that is computed.
        ours: `extract`, of every layer's output at the last token, into memory of the device.
        theirs: `transformers`, the same activations; None where it cannot be run.
        missing: why there is no `theirs`.
        ratio: our tokens per second over theirs.
        difference: the largest difference of the two results over the largest value, over all layers.
        peaks: type -> FLOPs per second of the fastest matrix product that was found on the device just now.
        overlap: of the copies to the host; None on a device that needs none, or has no streams.
        unsaid: what this device cannot tell.
    """

    device: str
    dtype: str
    texts: int
    tokens: int
    flops: int
    ours: Contestant
    theirs: Contestant | None
    missing: str
    ratio: Ratio | None
    difference: float | None
    peaks: dict[str, float]
    overlap: CopyOverlap | None
    unsaid: tuple[str, ...] = field(default=())

    @property
    def flops_per_second(self) -> float:
        """Of `extract`: counted FLOPs over the median of the rounds."""
        return self.flops * self.ours.tokens_per_second / self.tokens

    @property
    def shares(self) -> dict[str, float]:
        """Type -> share of its peak that `extract` reached."""
        return {dtype: self.flops_per_second / peak for dtype, peak in self.peaks.items()}


def speed_verdict(found: SpeedTest) -> str:
    """One line: the ratio, the share of the peak, and the share of the copy that is hidden."""
    parts = [f"{found.ours.tokens_per_second:,.0f} tokens/s"]
    if found.ratio is not None:
        parts.append(f"{found.ratio} those of transformers")
    parts += [f"{share:.0%} of the {_short(dtype)} peak" for dtype, share in found.shares.items()]
    if found.overlap is not None:
        parts.append(f"{found.overlap.hidden:.0%} of the copy to the host hidden")
    return f"speed: {', '.join(parts)} ({found.dtype} on {printable(found.device)})"


def describe_speed(found: SpeedTest) -> str:
    """The measurements as lines, and the verdict."""
    what = f"{found.texts:,} texts of random tokens, {found.tokens:,} tokens"
    lines = [f"speed on {printable(found.device)}, {found.dtype}: {what}, the output of every layer at the last token"]
    lines += [_line(one) for one in (found.ours, found.theirs) if one is not None]
    if found.theirs is None:
        lines.append(f"transformers: not timed: {printable(found.missing)}")
    if found.ratio is not None:
        lines.append(
            f"ratio: {found.ratio}, the geometric mean of {len(found.ours.seconds)} paired rounds with its 95% interval"
        )
        lines.append(f"largest difference of the two results: {found.difference:.1e} of the largest value")
    lines.append(f"computed: {metric(found.flops)}FLOPs, {metric(found.flops_per_second)}FLOPs/s")
    lines += [
        f"peak in {_short(dtype)}, measured by a large matrix product: {metric(peak)}FLOPs/s, "
        f"of which extract reached {found.shares[dtype]:.0%}"
        for dtype, peak in found.peaks.items()
    ]
    if (copied := found.overlap) is not None:
        lines.append(
            f"copy to the host: {metric(copied.n_bytes)}B at {metric(copied.bytes_per_second)}B/s alone; "
            f"{copied.hidden:.0%} of it hidden behind the computing"
        )
    if found.unsaid:
        lines.append(f"not measured here: {listed(found.unsaid)} (only on a CUDA GPU)")
    return "\n".join([*lines, speed_verdict(found)])


def speed_as_dict(found: SpeedTest) -> dict[str, Any]:
    """All fields, the rates that follow from them, and the verdict, as JSON-able values."""
    more = {"flops_per_second": found.flops_per_second, "shares": found.shares, "verdict": speed_verdict(found)}
    return {**asdict(found), **more}


def _line(one: Contestant) -> str:
    memory = "" if one.peak_bytes is None else f"; peak {metric(one.peak_bytes)}B over the model"
    return f"{printable(one.name)}: {one.tokens_per_second:,.0f} tokens/s{memory} ({one.settings})"


def _short(dtype: str) -> str:
    return {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}[dtype]
