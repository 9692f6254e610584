"""The head of a class of transformers, on any outputs of its base model.

Axes: B batch, L position, D d_model, V vocab.
"""

from typing import Any

import torch
from torch import Tensor

from probekit.errors import UsageError


def head_logits(model: Any, output_BLD: Tensor) -> Tensor:
    """Logits [B, L, V] of outputs of the base model, by the class's own code, scales and soft caps included.

    The class runs on one token, and the output of its base model is replaced on its way to the head. A class that calls
    parts of its base model, such as OPT's, gets the replacement as the input of its last product.

    Raises:
        UsageError: the class does something else between its base model and that product.
    """
    token = torch.zeros(1, 1, dtype=torch.long)
    base, last = model.hf.base_model, model.hf.get_output_embeddings()
    seen: dict[str, Tensor] = {}

    def after_base(_: Any, args: Any, output: Any) -> Any:
        seen["base"] = output_BLD
        if isinstance(output, tuple):
            return (output_BLD, *output[1:])
        output[next(iter(output))] = output_BLD
        return output

    def before_last(_: Any, args: Any) -> Any:
        seen["last"] = args[0]
        return None if "base" in seen else (output_BLD, *args[1:])

    hooks = [base.register_forward_hook(after_base)]
    hooks += [] if last is None else [last.register_forward_pre_hook(before_last)]
    try:
        logits_BLV = model(token)
    finally:
        for hook in hooks:
            hook.remove()
    if "base" not in seen and not ("last" in seen and torch.equal(seen["last"], model(token, return_logits=False))):
        raise UsageError(f"the head of {model.cfg.model_class} cannot be run by itself; take a model of another class")
    return logits_BLV
