"""Time `extract` against `transformers`, against the device's fastest matrix product, and with copies to the host.

`extract` and `transformers` read the same random token ids, in the model's type, and return the output of every layer
at the last token. Both are warmed up, then run in turn, and compared round by round. FLOPs are counted from the model's
shape. The peak is the best rate of some large matrix products on this device.

`transformers` runs in its best settings: fused attention, batches of texts of like length. Padding is on the right,
where a causal model does not see it, so that no mask keeps it from its fastest kernel. The base class runs, without the
head and without a cache of keys and values, and hooks keep the last token of each layer.

Axes: B texts of a batch, L tokens, N texts, D width.
"""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from probekit.activations import plan_extraction
from probekit.activations.estimate import plan_flops
from probekit.activations.extract import extract_task
from probekit.activations.plan.plan import ExtractionPlan
from probekit.activations.run.device_copy import HostCopies, on_host
from probekit.activations.run.loop import run_shards
from probekit.errors import UsageError
from probekit.models.adapter.model import AdaptedModel, quiet
from probekit.models.base import LanguageModel
from probekit.models.kernels import linear
from probekit.options import ExtractArguments, ExtractOptions
from probekit.options.check import check_whole
from probekit.tasks import Task
from probekit.text import listed, metric, printable
from probekit.verification.references import NotRun, Unavailable, transformers_model

ROUNDS = 7
SECONDS = 1.0  # of a round, about
FEWEST, MOST = 32, 1 << 17  # texts
SHORTEST, LONGEST = 16, 256  # tokens of a text, as sentences and paragraphs have; drawn evenly on a log scale
BATCH_TOKENS = {"cpu": (512, 2048, 4096)}  # sizes of transformers' batches, of which the fastest is taken
BATCH_TOKENS_ELSEWHERE = (8192, 16384, 65536)
SQUARES = {"cpu": (1024, 2048)}  # sizes of the matrix products whose best rate is the peak
SQUARES_ELSEWHERE = (4096, 8192, 16384)
SECONDS_OF_PRODUCTS = 0.5  # for each size
COPIED_BYTES = 600e6  # of activations whose copy is timed: about ten shards
Result = TypeVar("Result")


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


def measure_speed(
    model: LanguageModel, seed: int = 0, rounds: int = ROUNDS, seconds: float = SECONDS, compare: bool = True
) -> SpeedTest:
    """Time `extract`, and `transformers` on the same texts and device.

    Args:
        model: from `load_model`; it runs where it is.
        seed: of the random token ids.
        rounds: of the comparison, at least 2.
        seconds: about, of each round of `extract`.
        compare: whether `transformers` runs too; it needs the model's memory once more.

    Raises:
        UsageError: fewer than 2 rounds, no time, or a model on the meta device.
    """
    check_whole("rounds", rounds, 2)
    if model.device.type == "meta" or seconds <= 0:
        raise UsageError(f"expected a device that computes and more than 0 seconds; got {model.device} and {seconds} s")
    texts = _as_long_as(model, seed, seconds)
    runners, missing = _runners(model, texts, compare)
    results = [one.run() for one in runners]  # the last warm-up
    difference = None
    if len(results) == 2:
        pairs = [(a.double().cpu(), b.double().cpu()) for a, b in zip(*results, strict=True)]
        difference = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
    del results
    seconds_of = in_turn({one.name: one.run for one in runners}, rounds, model.device)
    tokens = sum(map(len, texts))
    ours, *theirs = (
        Contestant(
            one.name,
            one.settings,
            tuple(seconds_of[one.name]),
            tokens / statistics.median(seconds_of[one.name]),
            peak_bytes(one.run, model.device),
        )
        for one in runners
    )
    return SpeedTest(
        device=device_name(model.device),
        dtype=str(model.dtype).removeprefix("torch."),
        texts=len(texts),
        tokens=tokens,
        flops=plan_flops(_plan(model, texts, "last")),
        ours=ours,
        theirs=theirs[0] if theirs else None,
        missing=missing,
        ratio=ratio_of(theirs[0].seconds, ours.seconds) if theirs else None,
        difference=difference,
        peaks=peak_rates(model.device, model.dtype),
        overlap=copy_overlap(model, texts, rounds) if model.device.type == "cuda" else None,
        unsaid=() if model.device.type == "cuda" else ("peak memory", "the overlap of copies to the host"),
    )


def drawn_texts(n: int, longest: int, d_vocab: int, seed: int = 0) -> list[list[int]]:
    """Random token ids: n texts, their lengths even on a log scale; the first texts are the same for every n."""
    rng = np.random.default_rng(seed)
    low = min(SHORTEST, longest)
    lengths = np.exp(rng.uniform(math.log(low), math.log(longest + 1), MOST)).astype(int)[:n]
    return [rng.integers(d_vocab // 50, d_vocab, length).tolist() for length in lengths.clip(low, longest)]


def ratio_of(theirs: Sequence[float], ours: Sequence[float]) -> Ratio:
    """How many times as fast we are, from the seconds of paired rounds."""
    from scipy import stats

    logs = np.log(np.array(theirs) / np.array(ours))
    middle, error = float(logs.mean()), float(logs.std(ddof=1) / math.sqrt(len(logs)))
    wide = float(stats.t.ppf(0.975, len(logs) - 1)) * error
    return Ratio(math.exp(middle), math.exp(middle - wide), math.exp(middle + wide))


def peak_rates(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    """Type -> FLOPs per second of the fastest square product; on a GPU that of bfloat16 as well."""
    types = [dtype] if device.type == "cpu" else list(dict.fromkeys([dtype, torch.bfloat16]))
    return {str(one).removeprefix("torch."): _fastest_product(device, one) for one in types}


@torch.inference_mode()
def _fastest_product(device: torch.device, dtype: torch.dtype) -> float:
    best = 0.0
    for n in SQUARES.get(device.type, SQUARES_ELSEWHERE):
        x, w = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
        for product in (F.linear, linear):  # torch's own, and the kernel that this project takes
            timed(lambda product=product, x=x, w=w: product(x, w, None), device)
            until = time.perf_counter() + SECONDS_OF_PRODUCTS
            while time.perf_counter() < until:
                found, _ = timed(lambda product=product, x=x, w=w: product(x, w, None), device)
                best = max(best, 2 * n**3 / found)
    return best


def copy_overlap(model: LanguageModel, texts: list[list[int]], rounds: int = ROUNDS) -> CopyOverlap:
    """How much of the copy of every token's activations to the host is hidden; the model is on a GPU."""
    each = sum(map(len, texts)) / len(texts) * model.cfg.d_model * model.n_layers * model.dtype.itemsize
    plan = _plan(model, texts[: max(1, int(COPIED_BYTES / each))], "all")
    with closing(run_shards(plan, False)) as shards:
        shapes = [[x.shape for x in values.values()] for _, _, values in shards]
    n_bytes = sum(shape.numel() for of_shard in shapes for shape in of_shard) * model.dtype.itemsize

    def copied_alone() -> None:
        copies = HostCopies(model.device)
        for of_shard in shapes:
            _, arrive = copies.start([torch.empty(shape, dtype=model.dtype, device=model.device) for shape in of_shard])
            arrive()

    runs: dict[str, Callable[[], Any]] = {
        "computed": lambda: deque(run_shards(plan, False), 0),
        "copied": copied_alone,
        "both": lambda: deque(on_host(run_shards(plan, False)), 0),
    }
    for run in runs.values():
        run()
    seconds = in_turn(runs, rounds, model.device)
    computed, copied, both = (statistics.median(seconds[name]) for name in runs)
    hidden = min(1.0, max(0.0, 1 - (both - computed) / copied))
    return CopyOverlap(hidden, n_bytes, n_bytes / copied)


def timed(run: Callable[[], Result], device: torch.device) -> tuple[float, Result]:
    """The seconds until the device has done what a function asks of it, and the function's result."""
    wait_for(device)
    start = time.perf_counter()
    result = run()
    wait_for(device)
    return time.perf_counter() - start, result


def in_turn(runs: Mapping[str, Callable[[], Any]], rounds: int, device: torch.device) -> dict[str, list[float]]:
    """Name -> the seconds of each round; every other round runs in the opposite order."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        for name in list(runs)[:: 1 if number % 2 == 0 else -1]:
            seconds[name].append(timed(runs[name], device)[0])
    return seconds


def wait_for(device: torch.device) -> None:
    """Return when the device has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def device_name(device: torch.device) -> str:
    """What the device calls itself, and its name in torch."""
    return f"{torch.cuda.get_device_name(device)} ({device})" if device.type == "cuda" else str(device)


def peak_bytes(run: Callable[[], Any], device: torch.device) -> int | None:
    """Device memory that a run takes over what is allocated before it; None where that cannot be told."""
    if device.type != "cuda":
        return None
    wait_for(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    wait_for(device)
    return max(0, torch.cuda.max_memory_allocated(device) - before)


class SortedBatches:
    """`transformers` on token ids: the output of every layer at the last token, [N, D] each.

    Args:
        model: whose weights it gets.
        batch_tokens: tokens of a batch at most, padding included.

    Raises:
        Unavailable: transformers has no class for the model, the model is one, or it has two stacks.
        NotRun: its class cannot load the weights.
    """

    def __init__(self, model: LanguageModel, batch_tokens: int):
        if isinstance(model, AdaptedModel):
            raise Unavailable("the model is transformers' own")
        if hasattr(model, "encode"):
            raise Unavailable("an encoder-decoder has two stacks")
        self.batch_tokens = batch_tokens
        self._hf, hf_model, version = transformers_model(model)
        self._first, self._causal = hf_model.first_position, model.causal
        self._paths = [hf_model.points["resid_post"].path(layer) for layer in range(model.n_layers)]
        self._take = hf_model.points["resid_post"].take
        self.name = f"{hf_model.model} of {version}"

    @property
    def settings(self) -> str:
        """How it runs, in words."""
        attention = self._hf.config._attn_implementation
        return f"{attention} attention, no head, batches sorted by length, {self.batch_tokens:,} tokens each"

    @torch.inference_mode()
    def run(self, texts: list[list[int]]) -> list[Tensor]:
        """The output of every layer at each text's last token, in the order of the texts."""
        kept: list[list[Tensor]] = [[] for _ in self._paths]
        last = torch.empty(0)  # of the running batch: each text's last token

        def keep(layer: int) -> Callable[..., None]:
            def hook(_: Any, args: tuple, output: Any = None) -> None:
                x = self._take(args, output)
                kept[layer].append(x[torch.arange(len(x), device=x.device), last])

            return hook

        modules = [self._hf.get_submodule(path) for path in self._paths]
        handles = [module.register_forward_hook(keep(layer)) for layer, module in enumerate(modules)]
        device, order = next(self._hf.parameters()).device, []
        try:
            for rows in self._batches(np.array([len(text) for text in texts])):
                order.append(rows)
                given, last = self._padded([texts[row] for row in rows], device)
                with quiet():
                    self._hf.base_model(**given, use_cache=False)
        finally:
            for handle in handles:
                handle.remove()
        back = torch.from_numpy(np.argsort(np.concatenate(order))).to(device)
        return [torch.cat(of_layer)[back] for of_layer in kept]

    def _batches(self, lengths: np.ndarray) -> Iterator[np.ndarray]:
        """Texts sorted by length, as many at once as fit when padded to the longest."""
        order = np.argsort(-lengths, kind="stable")
        start = 0
        while start < len(order):
            n = max(1, self.batch_tokens // int(lengths[order[start]]))
            yield order[start : start + n]
            start += n

    def _padded(self, texts: list[list[int]], device: torch.device) -> tuple[dict[str, Tensor], Tensor]:
        lengths = torch.tensor([len(text) for text in texts])
        width = int(lengths.max())
        ids = torch.tensor([text + text[-1:] * (width - len(text)) for text in texts])
        given = {"input_ids": ids.to(device)}
        if not self._causal and int(lengths.min()) < width:
            given["attention_mask"] = (torch.arange(width) < lengths[:, None]).long().to(device)
        if self._first:
            positions = torch.arange(self._first, self._first + width)
            given["position_ids"] = positions.expand(len(texts), width).to(device)
        return given, (lengths - 1).to(device)


@dataclass(frozen=True)
class _Runner:
    """One side of the comparison, ready to run."""

    name: str
    settings: str
    run: Callable[[], list[Tensor]]


def _ours(model: LanguageModel, texts: list[list[int]]) -> _Runner:
    """`extract` into memory."""
    plan = _plan(model, texts, "last")
    asked = ExtractArguments(**_how(model, "last"), progress=False)
    settings = f"packed, {plan.batch_tokens:,} tokens a batch in blocks of {plan.block_nodes:,}"
    return _Runner("probekit", settings, lambda: list(extract_task(model, _task(model, texts), asked).values()))


def _theirs(model: LanguageModel, texts: list[list[int]]) -> _Runner:
    """`transformers` with the batch size that is fastest; errors as in `SortedBatches`."""
    sizes = BATCH_TOKENS.get(model.device.type, BATCH_TOKENS_ELSEWHERE)
    peer, some = SortedBatches(model, sizes[0]), texts[: max(FEWEST, len(texts) // 8)]
    peer.run(some)
    seconds = {}
    for size in sizes:
        peer.batch_tokens = size
        try:
            seconds[size] = min(timed(lambda: peer.run(some), model.device)[0] for _ in range(2))
        except torch.OutOfMemoryError:
            break
    if not seconds:
        raise NotRun("out of memory")
    peer.batch_tokens = min(seconds, key=lambda size: seconds[size])
    return _Runner(peer.name, peer.settings, lambda: peer.run(texts))


def _runners(model: LanguageModel, texts: list[list[int]], compare: bool) -> tuple[list[_Runner], str]:
    """The two sides, ours first; and why transformers is not among them."""
    ours = _ours(model, texts)
    try:
        return ([ours, _theirs(model, texts)], "") if compare else ([ours], "left out")
    except (Unavailable, NotRun) as reason:
        return [ours], str(reason)
    except torch.OutOfMemoryError:
        return [ours], "no memory is left for a second model"


def _as_long_as(model: LanguageModel, seed: int, seconds: float) -> list[list[int]]:
    """As many texts as `extract` reads in this time, about."""
    longest, d_vocab = min(LONGEST, int(model.cfg.n_ctx)), int(model.cfg.d_vocab)
    n = FEWEST
    _ours(model, drawn_texts(n, longest, d_vocab, seed)).run()  # the first run is slower
    while True:
        texts = drawn_texts(n, longest, d_vocab, seed)
        found, _ = timed(_ours(model, texts).run, model.device)
        if found > seconds / 2 or n == MOST:
            return texts
        n = min(MOST, max(2 * n, int(n * min(16.0, seconds / found))))


def _task(model: LanguageModel, texts: list[list[int]]) -> Task:
    return Task("speed", texts, targets=[text[-1:] for text in texts] if hasattr(model, "encode") else None)


def _how(model: LanguageModel, position: str) -> dict[str, Any]:
    points = "encoder.resid_post" if hasattr(model, "encode") else "resid_post"
    layers = list(range(model.n_layers_of(points)))
    return {"points": points, "layers": layers, "position": position, "dtype": str(model.dtype).removeprefix("torch.")}


def _plan(model: LanguageModel, texts: list[list[int]], position: str) -> ExtractionPlan:
    return plan_extraction(model, _task(model, texts), ExtractOptions(**_how(model, position)))


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
    for one in [found.ours] if found.theirs is None else [found.ours, found.theirs]:
        memory = "" if one.peak_bytes is None else f"; peak {metric(one.peak_bytes)}B over the model"
        lines.append(f"{printable(one.name)}: {one.tokens_per_second:,.0f} tokens/s{memory} ({one.settings})")
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


def _short(dtype: str) -> str:
    return {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}[dtype]
