"""What adds up in the blocks of a wrapped model, measured in a forward with the model's own numbers.

The proof of a layout puts random numbers in place of the sublayers' outputs. This is its complement: the tensors at the
points, in any kind of batch, with the tensors that the class itself reads between its sublayers and returns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from probekit.models.adapter.layouts import Sublayers
from probekit.models.adapter.model import AdaptedModel
from probekit.models.adapter.proof import first_of, relative
from probekit.points import Place

ATTENTION, MIXER, MLP, UNPROVED = "attention", "another mixer", "an MLP alone", "neither"  # kinds of layers


@dataclass(frozen=True)
class Identity:
    """How exactly a sum held in one block.

    Attributes:
        name: the sum, in the names of points; "reads" is what the class itself reads between the sublayers.
        kind: what the layer has.
        layer: its number.
        error: max |a - b| / max |b|.
    """

    name: str
    kind: str
    layer: int
    error: float


def _kind(proved: Sublayers) -> str:
    """The kind of a layer."""
    if proved.attention:
        return ATTENTION
    return MIXER if proved.mixer else MLP if proved.mlp else UNPROVED


def identities(model: AdaptedModel, run: Callable[[], Any]) -> list[Identity]:
    """The sums in every block of one forward, which `run` does.

    Returns:
        One or two of each block; none of a block without proved sublayers.
    """
    points: dict[str, Tensor] = {}
    inner: dict[str, list[tuple[Tensor, Tensor]]] = {}  # path -> input and output of each call
    blocks = list(zip(model.layout.blocks, model.layout.sublayers, strict=True))
    watched = {f"{path}.{one}" for path, proved in blocks for one in (proved.mid, proved.last) if one}
    names = {name for name in model.points if Place.of(name)[0] in ("resid_pre", "mixer_out", "attn_out", "mlp_out")}
    names |= {name for name in model.points if Place.of(name)[0] == "resid_post"}
    base = model.hf.base_model
    handles = [base.get_submodule(path).register_forward_hook(_keep(path, inner), with_kwargs=True) for path in watched]
    try:
        with model.hooks([(sorted(names), lambda x, hook: points.update({hook.name: x}))]):
            run()
    finally:
        for handle in handles:
            handle.remove()
    found = []
    for layer, (path, proved) in enumerate(blocks):
        call = model.layout.blocks[:layer].count(path)
        at = {Place.of(name)[0]: x for name, x in points.items() if Place.of(name)[1] == layer}
        middle, last = (inner[f"{path}.{one}"][call] if one else None for one in (proved.mid, proved.last))
        for name, got, wanted in _sums(proved, at, middle, last):
            found.append(Identity(name, _kind(proved), layer, relative(got, wanted)))
    return found


_Call = tuple[Tensor, Tensor] | None


def _sums(proved: Sublayers, at: dict[str, Tensor], middle: _Call, last: _Call) -> list[tuple[str, Tensor, Tensor]]:
    """Name, sum and what it equals, of each identity of a block."""
    mixer = "mixer_out" if "mixer_out" in at else "attn_out"
    pre, post, shape = at["resid_pre"], at["resid_post"], at["resid_pre"].shape
    if middle is None:
        added = [name for name, path in ((mixer, proved.mixer), ("mlp_out", proved.mlp)) if path]
        total = sum((at[name] for name in added), pre)
        return [(" + ".join(["resid_pre", *added]) + " = resid_post", total, post)] if added else []
    read, normed = (x.reshape(shape) for x in middle)
    if last is not None:
        before, after = (x.reshape(shape) for x in last)
        return [
            (f"resid_pre + {mixer} = resid_mid", pre + at[mixer], read),
            ("norm(resid_mid) + mlp_out = what the last norm reads", normed + at["mlp_out"], before),
            ("the last norm = resid_post", after, post),
        ]
    if proved.lacks_mixer:
        return [("what the MLP's norm reads + mlp_out = resid_post", read + at["mlp_out"], post)]
    first = (f"resid_pre + {mixer} = resid_mid", pre + at[mixer], read)
    return (
        [first]
        if proved.mlp is None
        else [
            first,
            ("resid_mid + mlp_out = resid_post", pre + at[mixer] + at["mlp_out"], post),
        ]
    )


def _keep(path: str, inner: dict[str, list[tuple[Tensor, Tensor]]]) -> Callable[..., None]:
    def hook(_: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        x = args[0] if args else kwargs["hidden_states"]
        inner.setdefault(path, []).append((x.clone(), first_of(output).clone()))

    return hook
