"""The reference of a wrapped model: the same class of transformers, made again without points, in float64.

The stream is read from its `hidden_states` where it gives them for every block, sublayers from the modules that the
layout names; one unbatched text at a time through the eager attention, with token ids alone, and positions where the
class would count them from the ids (`AdaptedModel.first_positions`).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from probekit.errors import DataError
from probekit.models.adapter.load import made_again
from probekit.models.adapter.model import AdaptedModel
from probekit.models.adapter.proof import accepted, first_of, look
from probekit.models.adapter.quiet import quiet
from probekit.models.family import LOGITS
from probekit.points import split_point
from probekit.text import printable
from probekit.verification.references import Reference, TextIds, in_float64, room_for

MASKED = 9e3  # in size: classes mask with -10,000, or with the smallest number of a type
NO_CACHE = {"use_cache": False}  # Jamba's fails where no layer is attention
BATCHES = {
    "packed": "packed blocks with shared prefixes",
    "padded": "texts of similar lengths, padded on the right: the class does not take packed texts",
    "one length": "texts of one length: the class takes neither packed nor padded texts",
}


class ScoreSizes(TorchFunctionMode):
    """Within the context, the largest attention score that enters a softmax is kept in `largest`.

    Scores are the arguments with 4 axes [B, H, L, M]; those of routers have 2 or 3. Masked ones, which are infinite or
    about the type's smallest number, do not count.
    """

    largest = 0.0

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        """Call the function, and look at what a softmax is given."""
        if getattr(func, "__name__", "") == "softmax":
            x = args[0] if args else (kwargs or {})["input"]
            if x.dim() == 4:
                size = x.abs()
                self.largest = max(self.largest, float(size.masked_fill(size > MASKED, 0).max()))
        return func(*args, **(kwargs or {}))


def adapter_reference(model: AdaptedModel) -> tuple[Reference, str]:
    """The class of transformers in float64, and a line that says where its weights come from.

    A class that does not run in float64, such as XGLM, runs in float32.

    Raises:
        DataError: quantised weights cannot be widened to float64.
    """
    from transformers import __version__

    source, scores = model.hf_source, ScoreSizes()
    hf, precision = _exact(model)
    device = next(hf.parameters()).device

    def run(text: TextIds, names: Sequence[str]) -> dict[str, Tensor]:
        with quiet(), scores:
            return _activations(hf, model, text[0], names, device)

    points = frozenset(split_point(name)[0] for name in model.points) | ({LOGITS} if model.has_logits else set())
    bits = f" ({model.cfg.quantize})" if model.cfg.quantize else ""
    weights = "with random weights of the same seed" if source.folder is None else f"read from the model's folder{bits}"
    oracle = f"{model.cfg.model_class} of {__version__}{precision}, {weights}"
    return Reference("transformers", points, run, lambda: scores.largest), oracle


def _exact(model: AdaptedModel) -> tuple[Any, str]:
    """The class of transformers in float64, or else in float32, which the words then say; errors as above."""
    room = room_for(model)
    try:
        hf: Any = in_float64(made_again(model.hf_source), room)
        with quiet():
            hf.base_model(torch.tensor([[0, 0]], device=next(hf.parameters()).device))
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        if not model.cfg.quantize:
            return made_again(model.hf_source).float().to(room), " in float32, as it does not run in float64"
        reason = printable(" ".join(str(error).split()) or type(error).__name__)[:200]  # GPTQ cannot be widened
        raise DataError(f"{model.cfg.model_class} cannot be run in float64, so nothing is compared: {reason}") from None
    return hf, ""


def _activations(
    hf: Any, model: AdaptedModel, ids: list[int], names: Sequence[str], device: torch.device
) -> dict[str, Tensor]:
    base, layout = hf.base_model, model.layout
    added: dict[str, list[Tensor]] = {}
    watched = {f"{path}.{one.attn_out}" for path, one in zip(layout.blocks, layout.sublayers, strict=True)}
    watched |= {f"{path}.{one.mlp_out}" for path, one in zip(layout.blocks, layout.sublayers, strict=True)}
    handles = [_keep(base, path, added) for path in (*watched, layout.embed) if not path.endswith(".None")]
    positions = model.first_positions(len(ids))
    try:
        seen = look(base, layout.blocks, ids, device, positions)
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
            LOGITS: lambda: hf(torch.tensor([ids], device=device), **positions, **accepted(hf, NO_CACHE)).logits,
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
