"""Prove on random texts that a wrapped model's points are what their names say, before any is offered.

- The stream: `resid_post.i` equals `resid_pre.{i+1}`, and transformers' own `hidden_states` are among them.
- The sublayers: a module's output is `attn_out` or `mlp_out` only if replacing it by random numbers r, and the other by
  s, turns the block's output into `resid_pre + r + s`; in post-norm blocks into `ln2(ln1(resid_pre + r) + s)`. Small
  weights cannot pass by chance, because r and s are as large as the stream.
- `resid_mid` is a point where some module reads `resid_pre + r`.

Axes: L tokens of a text, D d_model.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from probekit.errors import DataError
from probekit.models.adapter.config import AdapterConfig
from probekit.models.adapter.layouts import (
    KNOWN,
    ModuleLayout,
    Sublayers,
    attention_of,
    candidates,
    find_blocks,
    find_embedding,
    is_mlp,
)
from probekit.points import Place

FLOAT32_BOUND = 1e-5  # relative to the largest value
NARROW = 8  # machine epsilons of bfloat16 and float16
N_TOKENS = 7
MAX_PAIRS = 400  # of modules that are tried in one block


def bound_of(dtype: torch.dtype) -> float:
    """The largest relative difference that counts as equal."""
    return FLOAT32_BOUND if dtype in (torch.float32, torch.float64) else NARROW * torch.finfo(dtype).eps


def relative(got: Tensor, wanted: Tensor) -> float:
    """Max |a - b| / max |b|; infinite for other shapes and for NaN."""
    if got.shape != wanted.shape:
        return float("inf")
    difference = (got.double() - wanted.double().to(got.device)).abs().max().nan_to_num(torch.inf)
    return float(difference / wanted.double().abs().max().clamp_min(1e-30))


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
    seen = Seen()

    def before(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        seen.calls.append((args, kwargs))
        seen.resid_pre.append(stream_argument(args, kwargs).clone())

    def after(_: nn.Module, args: tuple, output: Any) -> None:
        seen.resid_post.append(first_of(output).clone())

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
    seen.last, seen.hidden_states = out[0], getattr(out, "hidden_states", None)
    return seen


def prove_layout(base: Any, cfg: AdapterConfig, device: torch.device, dtype: torch.dtype) -> ModuleLayout:
    """The layout of a base model with every point that two random texts prove.

    Raises:
        DataError: the blocks are not found, or the residual stream is not what its name says.
    """
    blocks, bound = find_blocks(base, cfg.model_type, cfg.n_layers), bound_of(dtype)
    special = special_ids(base.config)
    texts = [random_ids(cfg, min(n, cfg.n_ctx), seed, special) for seed, n in enumerate((N_TOKENS, N_TOKENS - 2))]
    runs = [look(base, blocks, ids, device) for ids in texts]
    norms = {_prove_stream(seen, cfg, type(base).__name__, bound) for seen in runs}
    sublayers: list[Sublayers] = []
    for layer, path in enumerate(blocks):
        block = base.get_submodule(path)
        likely = dict.fromkeys((*_known(cfg, block), *sublayers[::-1]))  # blocks mostly have one layout
        sublayers.append(_prove_block(block, runs, layer, bound, list(likely), base.config))
    return ModuleLayout(find_embedding(base), blocks, tuple(sublayers), norms.pop() if len(norms) == 1 else None)


def layout_unproved(base: Any, cfg: AdapterConfig) -> ModuleLayout:
    """The layout of a model without weights: what the table says of its type; nothing is run."""
    blocks = find_blocks(base, cfg.model_type, cfg.n_layers)
    return ModuleLayout(
        find_embedding(base),
        blocks,
        tuple(next(iter(_known(cfg, base.get_submodule(path))), Sublayers()) for path in blocks),
        None,
    )


def _known(cfg: AdapterConfig, block: nn.Module) -> Iterator[Sublayers]:
    """What the table says, where the block has such modules."""
    known = KNOWN.get(cfg.model_type)
    if known is not None and known.attn_out and known.mlp_out:
        paths = dict(block.named_modules())
        if known.attn_out in paths and known.mlp_out in paths and attention_of(block) is not None:
            yield Sublayers(known.attn_out, known.mlp_out)


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


def _prove_block(
    block: nn.Module, runs: list[Seen], layer: int, bound: float, likely: list[Sublayers], config: Any
) -> Sublayers:
    """The sublayers of one block; those that are likely are tried first."""
    attention = attention_of(block)
    tries: Iterator[Sublayers] = iter([one for one in likely if _fits(one, block, attention)])
    for one in tries:
        if (found := _proved(block, runs, layer, bound, one)) is not None:
            return found
    scales = dict.fromkeys((1.0, float(getattr(config, "residual_multiplier", None) or 1.0)))
    paths = _outputs(block, runs[0], layer)
    for n, (first, second) in enumerate(candidates(list(paths), attention)):
        if n == MAX_PAIRS:
            break
        for scale in scales:
            if not attention and not is_mlp(second):
                continue
            trial = Sublayers(first, second, scale=scale)
            if (found := _proved(block, runs, layer, bound, trial)) is not None:
                return found if attention else Sublayers(None, second, scale=scale)
    return Sublayers()


def _fits(one: Sublayers, block: nn.Module, attention: str | None) -> bool:
    """Whether a block has modules at these paths, and attention if one of them is called so."""
    paths = {path for path, _ in block.named_modules()}
    both = one.attn_out is not None and one.mlp_out is not None
    return both and attention is not None and {one.attn_out, one.mlp_out} <= paths


@torch.no_grad()
def _outputs(block: nn.Module, seen: Seen, layer: int) -> dict[str, Tensor]:
    """Modules of a block that return a tensor of the stream's shape, in the order in which they end."""
    found: dict[str, Tensor] = {}
    size, width = seen.resid_pre[layer].numel(), seen.resid_pre[layer].shape[-1]

    def keep(path: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple, output: Any) -> None:
            x = first_of(output)
            if isinstance(x, Tensor) and x.numel() == size and x.shape[-1] == width:
                found[path] = x.clone()

        return hook

    with _hooked([(module, keep(path)) for path, module in block.named_modules() if path]):
        _call(block, seen, layer)
    return found


def _proved(block: nn.Module, runs: list[Seen], layer: int, bound: float, one: Sublayers) -> Sublayers | None:
    """The sublayers with `has_mid` as all runs prove it; None if they are not the block's."""
    found = [_prove_edits(block, seen, layer, bound, one) for seen in runs[: 1 + (one.attn_out is not None)]]
    if None in found or len(set(found)) != 1:
        return None
    return Sublayers(one.attn_out, one.mlp_out, bool(found[0]), one.scale)


@torch.no_grad()
def _prove_edits(block: nn.Module, seen: Seen, layer: int, bound: float, one: Sublayers) -> bool | None:
    """With random numbers for both outputs, None unless the block's output follows; else whether there is a middle."""
    assert one.attn_out is not None
    assert one.mlp_out is not None
    resid = seen.resid_pre[layer]
    generator = torch.Generator().manual_seed(layer)
    size = resid.float().std().item() or 1.0
    r, s = ((torch.randn(resid.shape, generator=generator) * size).to(resid) for _ in range(2))
    read: list[tuple[Tensor, Any]] = []

    def keep(_: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        x = args[0] if args else kwargs.get("hidden_states")
        y = first_of(output)
        if isinstance(x, Tensor) and isinstance(y, Tensor) and x.numel() == y.numel() == resid.numel():
            read.append((x.reshape(resid.shape), y.reshape(resid.shape)))  # OPT flattens batch and length

    hooks: list[Any] = [(block.get_submodule(one.attn_out), _replace(r / one.scale))]
    hooks += [(block.get_submodule(one.mlp_out), _replace(s / one.scale))]
    readers = [module.register_forward_hook(keep, with_kwargs=True) for path, module in block.named_modules() if path]
    try:
        with _hooked(hooks):
            out = _call(block, seen, layer)
    finally:
        for reader in readers:
            reader.remove()
    middle = [y for x, y in read if relative(x, resid + r) <= bound]
    if relative(out, resid + r + s) <= bound:
        return bool(middle)
    after = [y for y in middle for x, z in read if relative(x, y + s) <= bound and relative(out, z) <= bound]
    return True if after else None


def _replace(value: Tensor) -> Callable[..., Any]:
    def hook(_: nn.Module, args: tuple, output: Any) -> Any:
        old = first_of(output)
        new = value.to(old.dtype).reshape(old.shape).clone()  # some blocks add to it in place
        return type(output)((new, *output[1:])) if isinstance(output, tuple | list) else new

    return hook


@contextmanager
def _hooked(hooks: list[tuple[nn.Module, Callable[..., Any]]]) -> Iterator[None]:
    handles = [module.register_forward_hook(hook) for module, hook in hooks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _call(block: nn.Module, seen: Seen, layer: int) -> Tensor:
    """The block once more, on the stream of the run."""
    args, kwargs = seen.calls[layer]
    resid = seen.resid_pre[layer].clone()
    if args:
        return first_of(block(resid, *args[1:], **kwargs))
    return first_of(block(**{**kwargs, "hidden_states": resid}))
