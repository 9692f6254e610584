"""Prove on random texts that a wrapped model's points are what their names say, before any is offered.

- The stream: `resid_post.i` equals `resid_pre.{i+1}`, and transformers' own `hidden_states` are among them.
- The sublayers: a module's output is what the mixer or the MLP adds only if replacing it by random numbers r, and the
  other by s, turns the block's output into `resid_pre + a r + b s`; in post-norm blocks into
  `ln2(ln1(resid_pre + r) + s)`. Small weights cannot pass by chance, because r and s are as large as the stream. The
  scales a and b are measured: 1 in most classes, a field of the config in Granite.
- `resid_mid` is a point where some module reads `resid_pre + a r`.

Each is proved on a short text and on one that is longer than windows, chunks of a kernel and convolutions are.
`identities.py` then measures the same sums with the model's own numbers, in every kind of batch.

Axes: L tokens of a text, D d_model.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from probekit.errors import DataError
from probekit.models.adapter.config import AdapterConfig, active_stream, config_value
from probekit.models.adapter.layouts import (
    KNOWN,
    RECURRENT,
    ModuleLayout,
    Sublayers,
    attention_of,
    by_depth,
    candidates,
    find_blocks,
    find_embedding,
    follows_mlp,
)
from probekit.points import Place

FLOAT32_BOUND = 1e-5  # relative to the largest value
NARROW = 8  # machine epsilons of bfloat16 and float16
N_TOKENS = (7, 40)  # of the texts
NARROWED = 3  # tokens of a sliding window while it is narrowed
SMALLEST_SCALE = 1e-3  # of a sublayer's output
MAX_PAIRS = 400  # of modules that are tried in one block


def bound_of(dtype: torch.dtype) -> float:
    """The largest relative difference that counts as equal."""
    return FLOAT32_BOUND if dtype in (torch.float32, torch.float64) else NARROW * torch.finfo(dtype).eps


def relative(got: Tensor, wanted: Tensor) -> float:
    """Max |a - b| / max |b|; infinite for other shapes, and for NaN or infinity."""
    if got.shape != wanted.shape:
        return float("inf")
    wanted = wanted.double().to(got.device)
    found = float((got.double() - wanted).abs().max() / wanted.abs().max().clamp_min(1e-30))
    return found if wanted.isfinite().all() and got.isfinite().all() else float("inf")


def random_ids(cfg: AdapterConfig, n: int, seed: int, special: Sequence[int] = ()) -> list[int]:
    """Token ids that are drawn from `seed`, without special ones: some classes treat padding as absent."""
    ids = torch.tensor([i for i in range(min(cfg.d_vocab, 5000)) if i not in special] or [0])
    return ids[torch.randint(len(ids), (n,), generator=torch.Generator().manual_seed(seed))].tolist()


def special_ids(config: Any) -> list[int]:
    """The special ids that a config names."""
    named = [getattr(config, f"{name}_token_id", None) for name in ("pad", "bos", "eos", "mask", "unk", "sep", "cls")]
    return [i for one in named for i in (one if isinstance(one, list) else [one]) if isinstance(i, int)]


def first_of(output: Any) -> Tensor:
    """The tensor that a module returns, or the first of several."""
    return output[0] if isinstance(output, tuple | list) else output


def stream_argument(args: tuple, kwargs: Mapping[str, Any]) -> Tensor:
    """The stream among the arguments of a block: the first, or `hidden_states`."""
    return args[0] if args else kwargs["hidden_states"]


def residual_stream(x: Tensor, active: int | None) -> Tensor:
    """The residual stream [B, L, D] of what blocks pass on, which may be several of them."""
    return x if active is None or x.dim() != 4 else x[active]


def with_stream(x: Tensor, active: int | None, resid_BLD: Tensor) -> Tensor:
    """What blocks pass on, with another residual stream."""
    if active is None:
        return resid_BLD
    x = x.clone()
    x[active] = resid_BLD
    return x


@dataclass
class Seen:
    """One forward of the base model, seen from outside.

    Attributes:
        calls: the arguments of each block's forward.
        resid_pre: the stream before each block, [1, L, D].
        resid_post: the stream after each block.
        outside: path, input and output of the modules that run after the last block.
        last: the base model's result.
        hidden_states: transformers' list of streams; None if the class gives none.
    """

    calls: list[tuple[tuple, dict[str, Any]]] = field(default_factory=list)
    resid_pre: list[Tensor] = field(default_factory=list)
    resid_post: list[Tensor] = field(default_factory=list)
    outside: list[tuple[str, Tensor, Tensor]] = field(default_factory=list)
    last: Tensor = field(default_factory=lambda: torch.empty(0))
    hidden_states: tuple[Tensor, ...] | None = None


def accepted(module: nn.Module, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the arguments that a module's forward names."""
    import inspect

    names = inspect.signature(module.forward).parameters
    return {name: value for name, value in given.items() if name in names}


@torch.no_grad()
def look(
    base: nn.Module, blocks: Sequence[str], ids: list[int], device: torch.device, more: Mapping[str, Any] | None = None
) -> Seen:
    """Run a text, and `more` arguments, through the base model and keep what its blocks read and return."""
    seen, active = Seen(), active_stream(base.config)

    def before(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        seen.calls.append((args, kwargs))
        seen.resid_pre.append(residual_stream(stream_argument(args, kwargs), active).clone())

    def after(_: nn.Module, args: tuple, output: Any) -> None:
        seen.resid_post.append(residual_stream(first_of(output), active).clone())

    def outer(path: str) -> Callable[..., None]:
        def keep(_: nn.Module, args: tuple, output: Any) -> None:
            if len(seen.resid_post) == len(blocks) and args and isinstance(output, Tensor):
                seen.outside.append((path, args[0].clone(), output.clone()))

        return keep

    handles = []
    for path in dict.fromkeys(blocks):
        block = base.get_submodule(path)
        handles += [block.register_forward_pre_hook(before, with_kwargs=True), block.register_forward_hook(after)]
    for path, module in base.named_modules():
        if path and not any(path == block or path.startswith(f"{block}.") for block in blocks):
            handles.append(module.register_forward_hook(outer(path)))
    options = accepted(base, {"use_cache": False, "output_hidden_states": True})
    try:
        out = base(torch.tensor([ids], device=device), **options, **(more or {}), return_dict=True)
    finally:
        for handle in handles:
            handle.remove()
    hidden = getattr(out, "hidden_states", None)
    seen.last, seen.hidden_states = out[0], hidden and tuple(residual_stream(one, active) for one in hidden)
    return seen


@contextmanager
def narrowed(config: Any) -> Iterator[int | None]:
    """Within the context, the config's sliding window is a few tokens, so that short texts show it; None without one.

    A class that keeps its window elsewhere is not narrowed.
    """
    before = config_value(config, "sliding_window")
    if not isinstance(before, int) or isinstance(before, bool):
        yield None
        return
    config.sliding_window = NARROWED
    try:
        yield NARROWED
    finally:
        config.sliding_window = before


def prove_layout(base: Any, cfg: AdapterConfig, device: torch.device, dtype: torch.dtype) -> ModuleLayout:
    """The layout of a base model with every point that two random texts prove.

    Raises:
        DataError: the blocks are not found, or the residual stream is not what its name says.
    """
    blocks, bound = find_blocks(base, cfg.model_type, cfg.n_layers), bound_of(dtype)
    special = special_ids(base.config)
    texts = [random_ids(cfg, min(n, cfg.n_ctx), seed, special) for seed, n in enumerate(N_TOKENS)]
    runs = [look(base, blocks, texts[0], device)]
    with narrowed(base.config):
        runs.append(look(base, blocks, texts[1], device))
    norms = {_prove_stream(seen, cfg, type(base).__name__, bound) for seen in runs}
    sublayers: list[Sublayers] = []
    unpaired: set[tuple] = set()
    multiplier = float(config_value(base.config, "residual_multiplier") or 1)
    for layer, path in enumerate(blocks):
        block = base.get_submodule(path)
        likely = dict.fromkeys((*_known(cfg, block), *sublayers[::-1]))  # blocks mostly have one layout
        proof = _BlockProof(block, runs, layer, bound, multiplier, active_stream(base.config))
        sublayers.append(proof.sublayers(list(likely), unpaired))
    return ModuleLayout(find_embedding(base), blocks, tuple(sublayers), norms.pop() if len(norms) == 1 else None)


def layout_unproved(base: Any, cfg: AdapterConfig) -> ModuleLayout:
    """The layout of a model without weights: what the table says of its type; nothing is run."""
    blocks = find_blocks(base, cfg.model_type, cfg.n_layers)
    modules = [base.get_submodule(path) for path in blocks]
    return ModuleLayout(
        find_embedding(base),
        blocks,
        tuple(next(_known(cfg, block), Sublayers(attention_of(block) is not None)) for block in modules),
        None,
    )


def _known(cfg: AdapterConfig, block: nn.Module) -> Iterator[Sublayers]:
    """What the table says, where the block has such modules."""
    known = KNOWN.get(cfg.model_type)
    paths = dict(block.named_modules())
    if known is not None and known.mixer in paths and known.mlp in paths:
        yield Sublayers(attention_of(block) is not None, known.mixer, known.mlp)


def _prove_stream(seen: Seen, cfg: AdapterConfig, name: str, bound: float) -> str | None:
    """Raise unless the blocks pass the stream on unchanged; the path of the final norm, if there is one."""
    if not len(seen.resid_pre) == len(seen.resid_post) == cfg.n_layers:
        raise DataError(
            f"{name} ran {len(seen.resid_post)} blocks where {cfg.n_layers} were expected; it cannot be wrapped"
        )
    shape = (1, seen.last.shape[1], cfg.d_model)
    for layer, x in enumerate((*seen.resid_pre, *seen.resid_post)):
        if tuple(x.shape) != shape:
            raise DataError(
                f"{name} fails its proof: block {layer % cfg.n_layers} passes on {list(x.shape)} where a stream of "
                f"{list(shape)} was expected; it cannot be wrapped"
            )
    for layer in range(cfg.n_layers - 1):
        if (error := relative(seen.resid_post[layer], seen.resid_pre[layer + 1])) > bound:
            raise DataError(
                f"{name} fails its proof: {Place('resid_post', layer)} and "
                f"{Place('resid_pre', layer + 1)} differ by {error:.1e} "
                f"(bound {bound:.1e}); the model changes the stream between its blocks"
            )
    norm = next((path for path, x, y in seen.outside[::-1] if _is_norm(seen, x, y, bound)), None)
    _prove_hidden_states(seen, name, bound)
    return norm


def _is_norm(seen: Seen, x: Tensor, y: Tensor, bound: float) -> bool:
    return relative(x, seen.resid_post[-1]) <= bound and relative(y, seen.last) <= bound


def _prove_hidden_states(seen: Seen, name: str, bound: float) -> None:
    """Raise unless transformers' hidden states are streams, in their order; some classes leave out an end."""
    streams = [*seen.resid_pre, seen.resid_post[-1], seen.last]
    at = 0
    for i, hidden in enumerate(seen.hidden_states or ()):
        match = next((k for k in range(at, len(streams)) if relative(hidden, streams[k]) <= bound), None)
        if match is None:
            raise DataError(
                f"{name} fails its proof: its hidden_states[{i}] is not the stream before or after a block; "
                "its points would not be what their names say"
            )
        at = match


@dataclass
class _BlockProof:
    """What is proved of one block.

    Attributes:
        block: the module.
        runs: of the texts.
        layer: its number.
        bound: the largest relative difference that counts as equal.
        multiplier: of the sublayers' outputs, as the config has it.
        active: as `active_stream`.
    """

    block: nn.Module
    runs: Sequence[Seen]
    layer: int
    bound: float
    multiplier: float
    active: int | None

    def sublayers(self, likely: list[Sublayers], unpaired: set[tuple]) -> Sublayers:
        """The sublayers; those that are likely are tried first.

        Args:
            likely: what was proved of other blocks, or is known.
            unpaired: structures of blocks in which no two modules are the sublayers; they are searched once.
        """
        attention = attention_of(self.block)
        present = {path for path, _ in self.block.named_modules()}
        fits = [one for one in likely if one.attention == bool(attention) and {one.mixer, one.mlp} - {None} <= present]
        for one in fits:
            if (found := self._proved(one)) is not None and not found.lacks_mixer:
                return found
        structure = (type(self.block), *self._outputs)
        pairs = candidates(self._outputs, attention) if structure not in unpaired else ()
        for mixer, mlp in islice(pairs, MAX_PAIRS):
            if (found := self._proved(Sublayers(bool(attention), mixer, mlp))) is not None:
                return found
        unpaired.add(structure)
        for one in self._alone(attention):
            if (found := self._proved(one)) is not None:
                return found
        return Sublayers(bool(attention))

    def _alone(self, attention: str | None) -> Iterator[Sublayers]:
        """One sublayer: the only one, or the one of two that is a module."""
        modules = dict(self.block.named_modules())
        for path in by_depth(self._outputs):
            if attention is not None and RECURRENT.search(type(modules[path]).__name__):
                yield Sublayers(False, path)  # Zamba's attention has no output of its own
            elif not follows_mlp(path, self._outputs):
                yield Sublayers(bool(attention), path)
        for path in by_depth(self._outputs):
            yield Sublayers(bool(attention), None, path)

    def _proved(self, one: Sublayers) -> Sublayers | None:
        """The sublayers as all runs prove them; None if they are not the block's."""
        if one.mixer is one.mlp is None:
            return None
        first = self._proved_in(self.runs[0], one)
        again = [self._proved_in(seen, one) for seen in self.runs[1:]] if first is not None else []
        for other in again:
            if first is None or other is None or (first.mid, first.last) != (other.mid, other.last):
                return None
            scales = (first.mixer_scale, other.mixer_scale), (first.mlp_scale, other.mlp_scale)
            if any(abs(a - b) > self.bound for a, b in scales):
                return None
        return first if first is not None and self._is_named_right(first) else None

    def _is_named_right(self, found: Sublayers) -> bool:
        """Whether the mixer is attention if the block has some, and one sublayer alone is what it is called."""
        if found.attention and found.mixer is not None:
            return found.mixer in self._of_attention
        if found.mixer is not None and found.mlp is not None:
            return True
        if found.mid is not None:
            return found.mixer is not None or follows_mlp(found.mlp or "", self._outputs)
        return not found.attention and self._mixes_tokens == (found.mixer is not None)

    @cached_property
    @torch.no_grad()
    def _of_attention(self) -> set[str]:
        """The modules within the attention, and those that read its output alone, such as a norm of it."""
        attention = attention_of(self.block)
        resid, ran = self.runs[0].resid_pre[self.layer], []
        with _hooked([(module, _reading(path, resid, ran)) for path, module in self.block.named_modules() if path]):
            self._call(self.runs[0])
        paths = {path for path in self._outputs if f"{path}.".startswith(f"{attention}.")}
        outputs = [y for path, _, y in ran if path in paths]
        for path, x, y in ran:
            if any(torch.equal(x, output) for output in outputs):
                paths.add(path)
                outputs.append(y)
        return paths

    @torch.no_grad()
    def _proved_in(self, seen: Seen, one: Sublayers) -> Sublayers | None:
        """The same in one run: random numbers in place of the outputs arrive in the stream, and nothing else does."""
        resid = seen.resid_pre[self.layer]
        generator = torch.Generator().manual_seed(self.layer)
        size = resid.float().std().item() or 1.0
        r, s = ((torch.randn(resid.shape, generator=generator) * size).to(resid) for _ in range(2))
        given = [(path, x) for path, x in ((one.mixer, r), (one.mlp, s)) if path is not None]
        read, ran = [], []
        hooks = [(self.block.get_submodule(path), _replace(x, ran)) for path, x in given]
        hooks += [(module, _reading(path, resid, read)) for path, module in self.block.named_modules() if path]
        with _hooked(hooks):
            out = self._call(seen)
        if len(ran) != len(given):  # one that runs twice has two outputs
            return None
        if one.mixer is None:
            return self._proved_mlp(one, out, resid, s, read)
        if (scales := self._scales(out, resid, [x for _, x in given])) is not None:
            middle = resid + scales[0] * r
            mid = next((path for path, x, _ in read if relative(x, middle) <= self.bound), None) if one.mlp else None
            return replace(one, mid=mid, last=None, mixer_scale=scales[0], mlp_scale=[*scales, 1.0][1])
        if one.mlp is None:
            return self._proved_mixer(seen, one, out, r, read)
        for mid, x, y in read:
            for last, before, after in read if relative(x, resid + r) <= self.bound else ():
                if relative(before, y + s) <= self.bound and relative(out, after) <= self.bound:
                    return replace(one, mid=mid, last=last, mixer_scale=1.0, mlp_scale=1.0)
        return None

    def _proved_mixer(self, seen: Seen, one: Sublayers, out: Tensor, r: Tensor, read: "_Read") -> Sublayers | None:
        """The mixer alone, before an MLP of several modules: all that follows depends on the stream between them."""
        resid = seen.resid_pre[self.layer]
        for mid, x, _ in read:
            if (scales := self._scales(x, resid, [r])) is not None:
                moved = resid.flip(1)  # another stream, with a mixer's output that leads to the same sum
                hook = _replace(r - (moved - resid) / scales[0], [])
                with _hooked([(self.block.get_submodule(one.mixer or ""), hook)]):
                    same = relative(self._call(seen, moved), out) <= self.bound
                return replace(one, mid=mid, last=None, mixer_scale=scales[0], mlp_scale=1.0) if same else None
        return None

    def _proved_mlp(self, one: Sublayers, out: Tensor, resid: Tensor, s: Tensor, read: "_Read") -> Sublayers | None:
        """The MLP alone: it adds to what the block reads, or to what one of its modules does."""
        for mid, x in [(None, resid), *((path, x) for path, x, _ in read)]:
            if (scales := self._scales(out, x, [s])) is not None:
                return replace(one, mid=mid, last=None, mixer_scale=1.0, mlp_scale=scales[0])
        return None

    def _scales(self, out: Tensor, stream: Tensor, added: list[Tensor]) -> list[float] | None:
        """The numbers a for which out = stream + the sum of a x over what is added; None if there are none."""
        rows = torch.stack([x.flatten().double() for x in added], 1)
        wanted = (out - stream).flatten().double().to(rows.device)
        if out.shape != stream.shape or not wanted.isfinite().all():
            return None
        found = torch.linalg.lstsq(rows.cpu(), wanted[:, None].cpu()).solution[:, 0].tolist()
        scales = [next((a for a in (1.0, self.multiplier) if abs(a - x) <= self.bound), x) for x in found]
        total = stream.double() + sum(a * x.double() for a, x in zip(scales, added, strict=True))
        return scales if min(map(abs, scales)) > SMALLEST_SCALE and relative(out, total) <= self.bound else None

    @cached_property
    @torch.no_grad()
    def _mixes_tokens(self) -> bool:
        """Whether another first token changes what a block without attention adds at later ones."""
        seen = self.runs[0]
        resid = seen.resid_pre[self.layer]
        other = resid.clone()
        other[:, 0] = -resid[:, 0].flip(-1)
        added, changed = (self._call(seen, x)[:, 1:] - x[:, 1:] for x in (resid, other))
        return resid.shape[1] > 1 and relative(changed, added) > self.bound

    @cached_property
    @torch.no_grad()
    def _outputs(self) -> list[str]:
        """Modules of the block that return a tensor of the stream's shape, in the order in which they end."""
        found: dict[str, None] = {}
        resid = self.runs[0].resid_pre[self.layer]

        def keep(path: str) -> Callable[..., None]:
            def hook(_: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
                x = first_of(output)
                if isinstance(x, Tensor) and x.numel() == resid.numel() and x.shape[-1] == resid.shape[-1]:
                    found[path] = None

            return hook

        with _hooked([(module, keep(path)) for path, module in self.block.named_modules() if path]):
            self._call(self.runs[0])
        return list(found)

    def _call(self, seen: Seen, resid: Tensor | None = None) -> Tensor:
        """The block once more, on the stream of the run, or on another."""
        args, kwargs = seen.calls[self.layer]
        resid = (seen.resid_pre[self.layer] if resid is None else resid).clone()
        given = with_stream(stream_argument(args, kwargs), self.active, resid)
        out = self.block(given, *args[1:], **kwargs) if args else self.block(**{**kwargs, "hidden_states": given})
        return residual_stream(first_of(out), self.active)


_Read = list[tuple[str, Tensor, Tensor]]  # path, input and output of the modules that read a stream


def _reading(path: str, resid: Tensor, read: _Read) -> Callable[..., None]:
    """A hook that keeps what a module reads and returns, if both have the shape of the stream."""

    def hook(_: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        x, y = args[0] if args else kwargs.get("hidden_states"), first_of(output)
        if isinstance(x, Tensor) and isinstance(y, Tensor) and x.numel() == y.numel() == resid.numel():
            read.append((path, x.reshape(resid.shape), y.reshape(resid.shape)))  # OPT flattens batch and length

    return hook


def _replace(value: Tensor, ran: list[int]) -> Callable[..., Any]:
    """A hook that returns a value in place of the module's output, and notes that it ran."""

    def hook(_: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> Any:
        ran.append(1)
        old = first_of(output)
        new = value.to(old.dtype).reshape(old.shape).clone()  # some blocks add to it in place
        return type(output)((new, *output[1:])) if isinstance(output, tuple | list) else new

    return hook


@contextmanager
def _hooked(hooks: list[tuple[nn.Module, Callable[..., Any]]]) -> Iterator[None]:
    handles = [module.register_forward_hook(hook, with_kwargs=True) for module, hook in hooks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
