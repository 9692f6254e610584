"""The wrapper of a module: its points are hooks on the modules inside.

Axes: B batch, L position, D d_model, V vocab.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from probekit.errors import UsageError
from probekit.hooks import HookPoint
from probekit.models.adapter.config import AdapterConfig
from probekit.models.adapter.model import RowReader
from probekit.models.adapter.proof import first_of
from probekit.models.base import LanguageModel, check_evaluating, check_mask
from probekit.models.layers import at_read
from probekit.models.wrapped.outside import At, called, registered
from probekit.points import Place


class _Stopped(Exception):
    """Ends a forward early; the stream so far, [B, L, D]."""

    def __init__(self, resid_BLD: Tensor):
        super().__init__()
        self.resid_BLD = resid_BLD


class WrappedModule(LanguageModel):
    """The module with its points; `wrap` makes it.

    Attributes:
        module: the module.
    """

    is_ours = False
    starts = False
    batching = "one length"

    def __init__(self, module: nn.Module, cfg: AdapterConfig, where: Mapping[str, At], axes: Mapping[str, str]):
        super().__init__()
        self.cfg = cfg
        self.module = module
        self._sizes: dict[str, int] = dict(cfg.fields["sizes"])
        self._stop: str | None = None
        self.head_is_last = True  # whether the logits depend on the output of the last point alone
        self._instead: tuple[str, Tensor] | None = None  # of the output of a point: where the head begins
        self._where, self._axes = dict(where), dict(axes)
        self._handles: list[Any] = []
        for full, at in where.items():
            point = HookPoint(axes[full])
            _put(self, full, point)
            hook = self._hook(full, point, at.is_input)
            self._handles.append(registered(at, hook))

    def forward(
        self,
        tokens: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        stop_at_layer: int | None = None,
        return_logits: bool = True,
    ) -> Tensor:
        """What the module returns first for tokens [B, L], its logits [B, L, V].

        Args:
            tokens: int ids [B, L].
            position_ids: the module counts positions itself.
            attention_mask: [B, L], true at real tokens, padded on the right.
            stop_at_layer: run the blocks before this one and return its input, [B, L, D]; n_layers gives the last
                block's output.
            return_logits: False returns the final norm's output, or that of the last block if it has no point.

        Raises:
            UsageError: an invalid shape, id, length or layer; positions, or padding that changes the activations; a
                module in training mode.
        """
        tokens = self.check_tokens(tokens, position_ids, attention_mask)
        self._check_padding(tokens, position_ids, attention_mask)
        check_evaluating(self.module, self.name)
        stop = self.check_stop(stop_at_layer, self.cfg.n_layers)
        stop_at = self._before_head() if stop_at_layer is None and not return_logits else None
        stop_at = stop_at if stop_at_layer is None else self._end(stop)
        before, self._stop = self._stop, stop_at
        try:
            output = called(self.module, tokens)
        except _Stopped as stopped:
            return at_read(stopped.resid_BLD, self._read)
        finally:
            self._stop = before
        return output

    def __repr__(self) -> str:
        cfg, points = self.cfg, ", ".join(dict.fromkeys(Place.of(name).point for name in self.points))
        return f"{self.name}: {cfg.n_layers} layers of {cfg.d_model}, {cfg.d_vocab} token ids; points {points}"

    def _before_head(self) -> str:
        return "ln_final.hook_normalized" if "ln_final.hook_normalized" in self.points else self._end(self.cfg.n_layers)

    def _end(self, layer: int) -> str:
        """Where a forward stops before this block, or after the last."""
        n_layers = self.cfg.n_layers
        return f"blocks.{layer}.hook_resid_pre" if layer < n_layers else f"blocks.{n_layers - 1}.hook_resid_post"

    def _check_padding(self, tokens: Tensor, position_ids: Tensor | None, mask: Tensor | None) -> None:
        if mask is None and position_ids is None:
            return
        if mask is None or tuple(mask.shape) != tuple(tokens.shape):
            raise UsageError(
                f"{self.cfg.model_class} takes one text in a row, and counts positions itself; give a mask "
                f"{list(tokens.shape)}, true at real tokens"
            )
        mask = check_mask(mask)
        if (mask[:, 1:] & ~mask[:, :-1]).any() or not mask[:, 0].all():
            raise UsageError(f"{self.cfg.model_class} takes padding on the right alone; move the texts to the left")
        if self.batching == "one length" and not mask.all():
            raise UsageError(f"padding changes the activations of {self.cfg.model_class}; give texts of one length")

    def _hook(self, full: str, point: HookPoint, is_input: bool) -> Callable[..., Any]:
        def passed(x: Tensor) -> Tensor | None:
            """Another tensor for x, if a hook reads it; blocks may add to theirs in place, so hooks see a copy."""
            if self._instead is not None:
                return self._instead[1] if self._instead[0] == full else None
            changed = point(x.clone()).clone() if point.hooked else None
            if self._stop == full:
                raise _Stopped(x if changed is None else changed)
            return changed

        def before(_: nn.Module, args: tuple, kwargs: dict[str, Any]) -> Any:
            if args:
                changed = passed(args[0])
                return None if changed is None else ((changed, *args[1:]), kwargs)
            key = next(key for key, value in kwargs.items() if isinstance(value, Tensor))
            changed = passed(kwargs[key])
            return None if changed is None else (args, {**kwargs, key: changed})

        def after(_: nn.Module, args: tuple, output: Any) -> Any:
            changed = passed(first_of(output))
            if changed is None:
                return None
            if not isinstance(output, tuple | list):
                return changed
            rest = (changed, *output[1:])
            return type(output)(*rest) if hasattr(output, "_fields") else type(output)(rest)

        return before if is_input else after

    @torch.no_grad()
    def next_logits(self, ids: list[int], start: int, cache: Any) -> tuple[Tensor, dict[str, Any]]:
        """The logits [V] after the tokens; `cache` is not used."""
        return self(torch.tensor([ids]))[0, -1], {}

    def reader(self, prompts: list[list[int]], use_cache: bool, among: tuple[Sequence[int], int, Any]) -> RowReader:
        """What generation reads logits from: each prompt by itself, computed anew for every token."""
        return RowReader(self, prompts, False, among)

    @property
    def has_logits(self) -> bool:
        """Whether the module returns a number for each token id."""
        return self._sizes["output"] == self.cfg.d_vocab

    def logits(self, output_BLD: Tensor) -> Tensor:
        """Logits [B, L, V] of what the forward returns with return_logits=False, by the module's own code.

        The module runs once more, on any tokens, and its output there is replaced.

        Raises:
            UsageError: something else goes into the logits.
        """
        if not self.head_is_last:
            raise UsageError(
                f"the logits of {self.cfg.model_class} depend on more than the output of its last point, so its head "
                "cannot be run by itself"
            )
        self._instead = (self._before_head(), output_BLD)
        try:
            return called(self.module, torch.zeros(output_BLD.shape[:2], dtype=torch.long, device=self.device))
        finally:
            self._instead = None

    def final_norm(self) -> Callable[[Tensor], Tensor]:
        """The module's own norm after the last block; without a point `ln_final` it is part of `logits`."""
        at = self._where.get("ln_final.hook_normalized")
        return nn.Identity() if at is None else at.module

    def made_anew(self) -> Self:
        """A copy of the module, wrapped as this one is."""
        for handle in self._handles:
            handle.remove()
        try:
            module = copy.deepcopy(self.module)
        finally:
            self._handles = [
                registered(at, self._hook(full, self.points[full], at.is_input)) for full, at in self._where.items()
            ]
        where = {full: at._replace(module=module.get_submodule(at.path)) for full, at in self._where.items()}
        twin = type(self)(module, self.cfg, where, self._axes)
        twin.causal, twin.batching, twin.name = self.causal, self.batching, self.name
        twin.tokenizer, twin.head_is_last = self.tokenizer, self.head_is_last
        return twin

    def size_of(self, axis: str, short: str, layer: int | None = None) -> int | None:
        """The size of an axis of this point, as it was observed."""
        return int(axis) if axis.isdecimal() else self._sizes.get(axis)

    def init_weights(self, seed: int = 0) -> Self:
        """Refused: the module's own code draws its weights."""
        raise UsageError("the weights of a wrapped module are drawn by its own code; make it again with another seed")


def _put(root: nn.Module, full: str, point: HookPoint) -> None:
    """The point at its full name, within empty modules."""
    *stem, last = full.split(".")
    for part in stem:
        if part not in dict(root.named_children()):
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    root.add_module(last, point)
