"""The same activations by `transformers` in its best settings: fused attention, batches of texts of like length.

Padding is on the right, where a causal model does not see it, so that no mask keeps it from its fastest kernel. The
base class runs, without the head and without a cache of keys and values, and hooks keep the last token of each layer.

Axes: B texts of a batch, L tokens, N texts, D width.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probekit.models.adapter.model import AdaptedModel
from probekit.models.adapter.quiet import quiet
from probekit.models.base import LanguageModel
from probekit.verification.references import Unavailable, transformers_model


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
        self._paths = [hf_model.points["resid_post"].module.format(layer=layer) for layer in range(model.n_layers)]
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
