"""The points of classes that are known by their parts: TransformerLens's models, and nanoGPT's GPT."""

from collections.abc import Mapping
from typing import Any

from probekit.errors import UsageError
from probekit.points import POINTS


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
