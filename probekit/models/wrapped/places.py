"""The modules that points name: `{"resid_pre": "blocks.{layer}"}` is the input of every block.

Of classes that are known by their parts, TransformerLens's models and nanoGPT's GPT, nobody needs to name them.
"""

from collections.abc import Mapping
from typing import Any

from torch import nn

from probekit.errors import UsageError
from probekit.models.wrapped.outside import At
from probekit.points import POINTS, Place, base_name
from probekit.text import listed

Points = Mapping[str, str]
"""Point -> path of a module: {"resid_pre.0": "blocks.0"}; {layer} in the path, and none in the point, is each layer."""

INPUTS = ("resid_pre", "resid_mid")  # points that are the input of their module


def known_points(module: Any) -> dict[str, str]:
    """The points of a class that is known by its parts: one of TransformerLens, or nanoGPT's GPT.

    Raises:
        UsageError: another class.
    """
    hooked = getattr(module, "hook_dict", None)
    if isinstance(hooked, Mapping):
        paths = {id(part): path for path, part in module.named_modules()}
        n_layers = int(module.cfg.n_layers)
        full = [name.format(layer=i) for name in POINTS.values() for i in range(n_layers if "{layer}" in name else 1)]
        there = {name: paths[id(hooked[name])] for name in full if name in hooked and id(hooked[name]) in paths}
        # these hooks are before the gain and the bias, and points are after them: the output of the norm
        return {name: path.removesuffix(".hook_normalized") for name, path in there.items()}
    parts = dict(module.named_modules())
    if {"transformer.wte", "transformer.h.0.ln_2", "transformer.h.0.attn", "transformer.ln_f"} <= parts.keys():
        block = "transformer.h.{layer}"
        return {
            "embed": "transformer.wte",
            **dict.fromkeys(("resid_pre", "resid_post"), block),
            "attn_out": f"{block}.attn",
            "resid_mid": f"{block}.ln_2",
            "mlp_out": f"{block}.mlp",
            "ln_final": "transformer.ln_f",
        }
    raise UsageError(
        f"the points of {type(module).__name__} are not known; give them: "
        'pk.wrap(module, points={"resid_pre": "blocks.{layer}", "resid_post": "blocks.{layer}"})'
    )


def module_places(module: nn.Module, points: Any) -> dict[str, At]:
    """Full name of each point -> where it is, in the order of `POINTS` and of the layers.

    Raises:
        UsageError: an unknown point, or a path without a module.
    """
    if not isinstance(points, Mapping) or not all(isinstance(x, str) for item in points.items() for x in item):
        raise UsageError(f'points are {{"resid_pre.0": "blocks.0"}}, names of points and paths; got {points!a:.100}')
    parts, found = dict(module.named_modules()), dict[str, At]()
    for spec, path in points.items():
        place = Place.of(spec)
        template = POINTS[place.point]
        if "{layer}" in path and place.layer is None and "{layer}" in template:
            layers = [i for i in range(len(parts)) if path.replace("{layer}", str(i)) in parts]
        elif ("{layer}" in template) == (place.layer is not None):
            layers = [place.layer]
        else:
            how = f"give a layer ({place.point}.0), or {{layer}} in the path" if "{layer}" in template else "has none"
            raise UsageError(f"the layer of point {spec!a:.80}: {how}")
        paths = [path if layer is None else path.replace("{layer}", str(layer)) for layer in layers]
        if not paths or not all(one in parts for one in paths):
            near = [name for name in parts if name.count(".") < 2 and name][:8]
            raise UsageError(f"{spec}: no module at {path!a:.80} in {type(module).__name__}; it has {listed(near)}")
        is_input = base_name(place.point) in INPUTS
        for layer, one in zip(layers, paths, strict=True):
            found[template.format(layer=layer)] = At(one, parts[one], is_input)
    order = list(POINTS.values())
    return dict(sorted(found.items(), key=lambda item: _order(item[0], order)))


def _order(full: str, order: list[str]) -> tuple[int, int, int]:
    """Points outside the blocks first or last, as in `POINTS`; those of a block by layer."""
    place = Place.of(full)
    at = order.index(POINTS[place.point])
    if place.layer is None:
        return (0 if at < order.index(POINTS["resid_pre"]) else 2, at, 0)
    return (1, place.layer, at)
