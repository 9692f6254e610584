"""The reference of a wrapped model: the same class of transformers, made again without points, in float64.

The stream is read from its `hidden_states` where it gives them for every block, sublayers from the modules that the
layout names; one unbatched text at a time, with token ids alone, through the eager attention.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from probekit.errors import DataError
from probekit.models.adapter.load import made_again
from probekit.models.adapter.model import AdaptedModel
from probekit.models.adapter.proof import first_of, look
from probekit.models.adapter.quiet import quiet
from probekit.models.family import LOGITS
from probekit.points import split_point
from probekit.text import printable
from probekit.verification.references import Reference, TextIds, in_float64, room_for

BATCHES = {
    "packed": "packed blocks with shared prefixes",
    "padded": "texts of similar lengths, padded on the right: the class does not take packed texts",
    "one length": "texts of one length: the class takes neither packed nor padded texts",
}


def adapter_reference(model: AdaptedModel) -> tuple[Reference, str]:
    """The class of transformers in float64, and a line that says where its weights come from.

    Raises:
        DataError: it cannot compute in float64.
    """
    from transformers import __version__

    source = model.hf_source
    try:
        hf: Any = in_float64(made_again(source), room_for(model))
        device = next(hf.parameters()).device
        look(hf.base_model, model.layout.blocks, [0], device)
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:  # GPTQ cannot be widened
        reason = printable(" ".join(str(error).split()) or type(error).__name__)[:200]
        raise DataError(
            f"{model.cfg.model_class} cannot be run in float64, so nothing is compared: {reason}"
        ) from error

    def run(text: TextIds, names: Sequence[str]) -> dict[str, Tensor]:
        with quiet():
            return _activations(hf, model, text[0], names, device)

    points = frozenset(split_point(name)[0] for name in model.points) | ({LOGITS} if model.has_logits else set())
    bits = f" ({model.cfg.quantize})" if model.cfg.quantize else ""
    weights = "with random weights of the same seed" if source.folder is None else f"read from the model's folder{bits}"
    return Reference("transformers", points, run), f"{model.cfg.model_class} of {__version__}, {weights}"


def _activations(
    hf: Any, model: AdaptedModel, ids: list[int], names: Sequence[str], device: torch.device
) -> dict[str, Tensor]:
    base, layout = hf.base_model, model.layout
    added: dict[str, list[Tensor]] = {}
    watched = {f"{path}.{one.attn_out}" for path, one in zip(layout.blocks, layout.sublayers, strict=True)}
    watched |= {f"{path}.{one.mlp_out}" for path, one in zip(layout.blocks, layout.sublayers, strict=True)}
    handles = [_keep(base, path, added) for path in (*watched, layout.embed) if not path.endswith(".None")]
    try:
        seen = look(base, layout.blocks, ids, device)
    finally:
        for handle in handles:
            handle.remove()
    shape = seen.resid_pre[0].shape
    pre, hidden = seen.resid_pre, list(seen.hidden_states or [])
    if len(hidden) == len(pre) + 1 and torch.equal(hidden[0], pre[0]):  # Mamba's list begins after the first block
        pre = hidden[:-1]
    found: dict[str, Tensor] = {}
    for name in names:
        point, of_layer = (LOGITS, None) if name == LOGITS else split_point(name)
        layer = of_layer or 0  # only points of a layer use it
        found[name] = {
            LOGITS: lambda: hf(torch.tensor([ids], device=device)).logits,
            "embed": lambda: added[layout.embed][0],
            "ln_final": lambda: seen.last,
            "resid_pre": lambda layer=layer: pre[layer],
            "resid_post": lambda layer=layer: seen.resid_post[layer],
            "attn_out": lambda layer=layer: _sublayer(model, added, layer, "attn_out").reshape(shape),
            "mlp_out": lambda layer=layer: _sublayer(model, added, layer, "mlp_out").reshape(shape),
            "resid_mid": lambda layer=layer: pre[layer] + _sublayer(model, added, layer, "attn_out").reshape(shape),
        }[point]()[0]
    return found


def _keep(base: nn.Module, path: str, kept: dict[str, list[Tensor]]) -> Any:
    """Keep what a module returns in each of its calls; the handle removes the hook."""

    def hook(_: nn.Module, args: tuple, output: Any) -> None:
        kept.setdefault(path, []).append(first_of(output).clone())

    return base.get_submodule(path).register_forward_hook(hook)


def _sublayer(model: AdaptedModel, added: dict[str, list[Tensor]], layer: int, point: str) -> Tensor:
    """What a sublayer adds to the stream in a layer: a module that several layers share ran once for each."""
    block, proved = model.layout.blocks[layer], model.layout.sublayers[layer]
    call = model.layout.blocks[:layer].count(block)
    return added[f"{block}.{getattr(proved, point)}"][call] * proved.scale
