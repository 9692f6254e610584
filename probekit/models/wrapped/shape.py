"""The sizes of a module and the axes of its points, as one forward shows them.

Axes: B batch, L query position, M key position, D d_model, H heads, G key/value heads, K d_head, F d_mlp, V vocab.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from probekit.errors import DataError
from probekit.models.adapter.config import AdapterConfig
from probekit.models.adapter.proof import first_of, random_ids
from probekit.models.wrapped.extent import Extent
from probekit.models.wrapped.outside import At, called, registered, running_module
from probekit.points import Place, base_name

STREAM = ("resid_pre", "attn_out", "mixer_out", "resid_mid", "mlp_out", "resid_post")  # as wide as one another
AXES = {
    **dict.fromkeys(("q", "rot_q", "q_norm", "z"), "B L H K"),
    **dict.fromkeys(("k", "rot_k", "k_norm", "v"), "B L G K"),
    **dict.fromkeys(("attn_scores", "attn_pattern"), "B H L M"),
    **dict.fromkeys(("mlp_pre", "mlp_pre_linear", "mlp_post"), "B L F"),
    "result": "B L H D",
}
LENGTHS = ((7, 5), (40, 23))  # tokens of the texts of the proof: windows and chunks show in long ones


def random_texts(cfg: Any) -> list[list[list[int]]]:
    """Pairs of random texts, the first of each pair the longer."""
    lengths = [[min(n, cfg.n_ctx) for n in pair] for pair in LENGTHS]
    return [[random_ids(cfg, n, 2 * i + j) for j, n in enumerate(pair)] for i, pair in enumerate(lengths)]


@torch.no_grad()
def observed_shape(
    module: nn.Module, where: Mapping[str, At], size: Extent, strict: bool
) -> tuple[AdapterConfig, dict[str, At], dict[str, str]]:
    """The config, the points that the forward reaches, and their axes.

    Args:
        module: the module.
        where: its points.
        size: its vocabulary and context.
        strict: whether every point must be reached; points of known classes depend on their options.

    Raises:
        DataError: a point that is not reached once, or without a row for each token; no `resid_pre` in every layer.
    """
    ids = random_texts(size)[0][0]
    seen: dict[str, list[Any]] = {full: [] for full in where}
    order: list[str] = []

    def keeper(full: str, is_input: bool) -> Callable[..., None]:
        def keep(x: Any) -> None:
            order.append(full)
            seen[full].append(x)

        def before(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            keep(args[0] if args else next((x for x in kwargs.values() if isinstance(x, Tensor)), None))

        return before if is_input else lambda _, args, output: keep(first_of(output))

    handles = []
    for full, at in where.items():
        handles.append(registered(at, keeper(full, at.is_input)))
    try:
        with running_module(module):
            output = called(module, torch.tensor([ids], device=next(module.parameters()).device))
    finally:
        for handle in handles:
            handle.remove()
    axes: dict[str, str] = {}
    sizes: dict[str, int] = {"output": output.shape[-1]}
    stream = next((x[0] for full, x in seen.items() if full.endswith("hook_resid_pre") and x), None)
    if isinstance(stream, Tensor):
        sizes["D"] = stream.shape[-1]
    for full, given in seen.items():
        short = base_name(Place.of(full).point)
        wanted = AXES.get(short, "B L D")
        fits = len(given) == 1 and isinstance(given[0], Tensor) and _fits(given[0], wanted, len(ids))
        fits = fits and (short != "attn_pattern" or _is_pattern(given[0]))
        fits = fits and (short not in STREAM or given[0].shape[-1] == sizes.get("D", given[0].shape[-1]))
        if not fits and strict:
            what = f"{list(given[0].shape)}" if len(given) == 1 and isinstance(given[0], Tensor) else "no tensor"
            times = f"is reached {len(given)} times in a forward (blocks are called once each, as block(x))"
            how = times if len(given) != 1 else f"is {what}"
            raise DataError(
                f"{Place.of(full)} at {where[full].path!a:.80} {how}; expected one tensor [{wanted.replace(' ', ', ')}]"
                f" of {len(ids)} tokens; name another module"
            )
        if fits:
            axes[full] = _named(given[0], wanted, sizes)
    n_layers = len([full for full in axes if full.endswith("hook_resid_pre")])
    if not n_layers or any(f"blocks.{i}.hook_resid_pre" not in axes for i in range(n_layers)):
        raise DataError(
            f"{type(module).__name__} has no resid_pre in every layer from 0 on; give the input of each block: "
            '{"resid_pre": "blocks.{layer}"}'
        )
    if f"blocks.{n_layers - 1}.hook_resid_post" not in axes:
        raise DataError(
            f"{type(module).__name__} has no resid_post in layer {n_layers - 1}, where the stream ends; give the "
            'output of each block: {"resid_post": "blocks.{layer}"}'
        )
    _check_order([full for full in order if full in axes], n_layers)
    heads = sizes.get("H", 0)
    cfg = AdapterConfig(
        model_type=type(module).__name__,
        model_class=type(module).__name__,
        d_model=sizes["D"],
        n_layers=n_layers,
        n_heads=heads,
        d_head=sizes.get("K", sizes["D"] // heads if heads else 0),
        d_mlp=sizes.get("F", 4 * sizes["D"]),
        n_ctx=size.n_ctx,
        d_vocab=size.d_vocab,
        batching="one length",
        fields={"points": {full: where[full].path for full in axes}, "sizes": sizes},
    )
    return cfg, {full: where[full] for full in axes}, axes


def _check_order(order: list[str], n_layers: int) -> None:
    """Raise unless the layers run in their order, and the final norm after the last."""
    ends = [f"blocks.{i}.hook_resid_pre" for i in range(n_layers)] + [f"blocks.{n_layers - 1}.hook_resid_post"]
    ends += [name for name in ("ln_final.hook_normalized",) if name in order]
    ran = sorted(ends, key=order.index)
    if ran != ends:
        first = next(ours for ours, theirs in zip(ends, ran, strict=True) if ours != theirs)
        raise DataError(
            f"{Place.of(first)} is not reached in its turn; name the modules in the order in which they run"
        )


def _fits(x: Tensor, axes: str, n_tokens: int) -> bool:
    """Whether a tensor has these axes, or in place of heads their joint width."""
    names = axes.split()
    if names[1] == "L":
        return x.dim() in (3, len(names)) and x.shape[:2] == (1, n_tokens) and x.is_floating_point()
    return x.dim() == 4 and x.shape[0] == 1 and x.shape[2:] == (n_tokens, n_tokens) and x.is_floating_point()


def _is_pattern(x: Tensor) -> bool:
    """Whether these are shares of attention: sinks may take a part."""
    return bool((x >= 0).all()) and float(x.sum(-1).max()) <= 1 + 1e-3


def _named(x: Tensor, axes: str, sizes: dict[str, int]) -> str:
    """The axes of a tensor: letters for the sizes that all points share, numbers for others."""
    names = axes.split() if x.dim() == len(axes.split()) else ["B", "L", "D"]
    named = []
    for name, n in zip(names, x.shape, strict=True):
        if name not in ("B", "L", "M"):
            name = name if sizes.setdefault(name, n) == n else str(n)
        named.append(name)
    return " ".join(named)
