"""Read, replace and cache the activations at a model's named points (`points.py` has the names).

Axes: B batch, L query position, M key position, D d_model, H heads, K d_head, F d_mlp, V vocab.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor, nn

from probekit.errors import UsageError, nearest
from probekit.points import POINTS, Place, PointSpec, UnknownPoint, base_name, in_stack, resolve_point, spans_of
from probekit.text import counted

PointsSpec = PointSpec | Callable[[str], bool] | Iterable[PointSpec]
ONLY_ATTENTION = "each of its layers has attention; take attn_out"  # why there is no mixer_out
OF_AN_AUTOENCODER = (
    "latents are those of an autoencoder, which reads activations (acts.encode(sae)); give the results of train-probe "
    "rather than a fitted probe of them"
)
HookFn = Callable[[Tensor, "HookPoint"], Tensor | None]
Hooks = Iterable[tuple[PointsSpec, HookFn]] | tuple[PointsSpec, HookFn]


class HookPoint(nn.Module):
    """The identity, under a name; hook functions see the tensor that passes and may replace it.

    A replacement is rounded to the type of the tensor that passed, so a hook may compute in float64.

    Args:
        axes: one letter per axis of the tensor, such as "B L D" (legend at the top of the file).
    """

    def __init__(self, axes: str):
        super().__init__()
        self.axes = axes
        self.name = ""  # the full name, set by HookedModule.points
        self._fns: dict[object, HookFn] = {}

    @property
    def hooked(self) -> bool:
        """True if a hook is attached; a tensor that no hook reads need not be computed."""
        return bool(self._fns)

    def add(self, fn: HookFn) -> Callable[[], None]:
        """Add a hook function; the returned function removes it."""
        key = object()
        self._fns[key] = fn

        def remove() -> None:
            self._fns.pop(key, None)

        return remove

    def forward(self, x: Tensor) -> Tensor:
        for fn in tuple(self._fns.values()):
            new = fn(x, self)
            if new is not None:
                if not isinstance(new, Tensor):
                    raise UsageError(f"a hook at {self.name} must return a tensor or None; got {type(new).__name__}")
                if new.shape != x.shape:
                    shapes = f"{list(x.shape)} ({self.axes}); got {list(new.shape)}"
                    raise UsageError(f"a hook at {self.name} must return the shape {shapes}")
                x = new.to(x.dtype)
        return x

    def extra_repr(self) -> str:
        return self.axes


class HookedModule(nn.Module):
    """A module whose `HookPoint`s can be hooked by name.

    Attributes:
        stack: the stack of blocks that a name without a stack refers to: "" or "encoder.".
        absent: short name of a point that this model cannot have -> why, and which to take instead.
    """

    stack: str = ""
    absent: Mapping[str, str] = MappingProxyType({})

    @cached_property
    def points(self) -> dict[str, HookPoint]:
        """Every point by its full name, in the order in which the modules were created."""
        points = {name: module for name, module in self.named_modules() if isinstance(module, HookPoint)}
        for name, point in points.items():
            point.name = name
        return points

    @property
    def n_layers(self) -> int:
        """How many blocks there are, in the stack that a name without a stack refers to."""
        return self.n_layers_of("resid_pre")

    def in_stack(self, short: str) -> str:
        """The short name in this model: `"resid_pre"` is `"encoder.resid_pre"` in an encoder-decoder."""
        return in_stack(short, self.stack)

    def n_layers_of(self, short: str) -> int:
        """How many blocks the stack of a point has; 0 for a point outside the layers or not in this model."""
        stem, in_layer, _ = POINTS[self.in_stack(short)].partition("{layer}")
        here = {name.removeprefix(stem).split(".")[0] for name in self.points if name.startswith(stem)}
        return len(here) if in_layer else 0

    def layers_of(self, short: str) -> list[int]:
        """The layers that have a point; in some models not all do."""
        template = POINTS[self.in_stack(short)]
        return [i for i in range(self.n_layers_of(short)) if template.format(layer=i) in self.points]

    def resolve(self, points: PointsSpec) -> list[str]:
        """The full names of one point, of several, or of all for which a function of the name is true.

        A short name without a layer means every layer that has the point.

        Raises:
            UsageError: this model has no such point; the message says why, or names the nearest.
        """
        if callable(points):
            return [name for name in self.points if points(name)]
        specs = [points] if isinstance(points, str) or _is_pair(points) else points
        if not isinstance(specs, Iterable):
            raise UnknownPoint(
                f'a point is "resid_pre.5", ("resid_pre", 5) or a name of model.points; got {specs!a:.60}'
            )
        return list(dict.fromkeys(name for spec in specs for name in self._resolve_one(cast(PointSpec, spec))))

    def _resolve_one(self, spec: PointSpec) -> list[str]:
        if isinstance(spec, str) and spec in self.points:
            return [spec]
        short, layer = Place.of(spec)
        short = self.in_stack(short)
        in_layer = "{layer}" in POINTS[short]
        if in_layer == (layer is not None) and (name := POINTS[short].format(layer=layer)) in self.points:
            return [name]
        layers = self.layers_of(short)
        if layer is None and layers:
            return [POINTS[short].format(layer=i) for i in layers]
        if layers or not in_layer:
            resolve_point((short, layer), self.n_layers_of(short))  # raises if the layer is what is wrong
        raise UnknownPoint(self._why_absent(short, layer if layers else None))

    def _why_absent(self, short: str, layer: int | None) -> str:
        """Why there is no such point here, as far as the model knows, and which there are."""
        text = f"this model has no point {Place(short, layer)}"
        reasons = {"mixer_out": ONLY_ATTENTION, "latents": OF_AN_AUTOENCODER, **self.absent}
        text += f": {why}" if (why := reasons.get(base_name(short))) else ""
        if others := self.layers_of(short):
            return f"{text}; there are {spans_of(Place(short, i) for i in others)}"
        here = list(dict.fromkeys(Place.of(name)[0] for name in self.points))
        base = base_name(short)  # of a point that only other families have
        return text if why else f"{text}; {nearest(base if base in here else short, here)}"

    @contextmanager
    def hooks(self, fwd_hooks: Hooks) -> Iterator["HookedModule"]:
        """Within the context each `fn(tensor, hook)` sees its point and may return a replacement.

        Contexts nest: functions at one point run in the order in which they were added. They are removed on exit, after
        an exception as well.

        Args:
            fwd_hooks: (point, function) pairs, or one pair.

        Raises:
            UsageError: something else, or an unknown point.
        """
        removers: list[Callable[[], None]] = []
        try:
            for points, fn in _pairs(fwd_hooks):
                removers += [self.points[name].add(fn) for name in self.resolve(points)]
            yield self
        finally:
            for remove in removers:
                remove()

    def run_with_hooks(self, *args: Any, fwd_hooks: Hooks, **kwargs: Any) -> Any:
        """`forward(*args, **kwargs)` with the hooks attached for this one call; `fwd_hooks` as in `hooks`."""
        with self.hooks(fwd_hooks):
            return self(*args, **kwargs)

    def run_with_cache(
        self,
        *args: Any,
        points: PointsSpec | None = None,
        positions: int | slice | Sequence[int] | None = None,
        device: torch.device | str | None = None,
        **kwargs: Any,
    ) -> tuple[Any, "ActivationCache"]:
        """`forward(*args, **kwargs)` and the activations at the points: (output, ActivationCache).

        Args:
            *args: the arguments of `forward`, tokens first.
            points: which to keep; None keeps every point that fires, including attention scores and patterns.
            positions: which query positions to keep; an int drops the axis. None keeps all. Keys and values of
                cross-attention belong to the source, not to a query: they are kept whole.
            device: where the cache is held; None leaves every tensor on the device that computed it.
            **kwargs: more arguments of `forward`, such as attention_mask and stop_at_layer.

        Raises:
            UsageError: an unknown point, a position out of range, or a named point that the forward did not reach.
        """
        kept: dict[str, Tensor] = {}

        def keep(x: Tensor, hook: HookPoint) -> None:
            kept[hook.name] = (x if positions is None else _at_positions(x, hook, positions)).to(device)

        names = list(self.points) if points is None else self.resolve(points)
        output = self.run_with_hooks(*args, fwd_hooks=[(names, keep)], **kwargs)
        if points is not None and (silent := [name for name in names if name not in kept]):
            raise UsageError(
                f"the forward stopped before {silent[0]} (stop_at_layer, return_logits); let it run so far, or leave "
                "the point out"
            )
        return output, ActivationCache({name: kept[name] for name in names if name in kept}, self.stack)


def _pairs(fwd_hooks: Any) -> list[tuple[PointsSpec, HookFn]]:
    """The (point, function) pairs, one of which needs no list."""
    if isinstance(fwd_hooks, tuple) and len(fwd_hooks) == 2 and callable(fwd_hooks[1]):
        return [fwd_hooks]
    is_list = isinstance(fwd_hooks, Iterable) and not isinstance(fwd_hooks, str | Mapping)
    given: list[Any] = list(fwd_hooks) if is_list else [fwd_hooks]
    for one in given:
        if not (isinstance(one, tuple | list) and len(one) == 2 and callable(one[1])):
            raise UsageError(
                f"hooks are a list of (point, function), got {one!a:.80}; "
                'write [("resid_pre.2", lambda x, hook: x * 0)]'
            )
    return given


def _is_pair(points: object) -> bool:
    return isinstance(points, tuple) and len(points) == 2 and (points[1] is None or hasattr(points[1], "__index__"))


def _at_positions(x: Tensor, hook: HookPoint, positions: int | slice | Sequence[int]) -> Tensor:
    axes = hook.axes.split()
    if "L" not in axes:
        return x
    axis = axes.index("L")
    length = x.shape[axis]
    chosen = [positions] if isinstance(positions, int) else positions
    if isinstance(chosen, slice):
        chosen = range(length)[chosen]
    if bad := [p for p in chosen if not -length <= p < length]:
        raise UsageError(f"{hook.name} has {length} positions, {-length}..{length - 1}; got {bad[0]}")
    x = x.index_select(axis, torch.tensor([p % length for p in chosen], device=x.device, dtype=torch.long))
    return x.squeeze(axis) if isinstance(positions, int) else x


class ActivationCache(Mapping[str, Tensor]):
    """The activations of one forward: full name -> tensor, in the order of the model's points.

    Short keys work too: `cache["resid_pre", 5]`, `cache["resid_pre.5"]`, `cache["blocks.5.hook_resid_pre"]`. A name
    without a stack means the same stack as in the model: the encoder of an encoder-decoder.

    Args:
        tensors: full name -> tensor.
        stack: the stack that a name without one refers to: "" or "encoder.".
    """

    def __init__(self, tensors: dict[str, Tensor], stack: str = ""):
        self._tensors = tensors
        self._stack = stack

    def __getitem__(self, key: PointSpec) -> Tensor:
        name = key if isinstance(key, str) and key in self._tensors else self._full_name(key)
        if name not in self._tensors:
            raise UnknownPoint(f"{name} is not in this cache; {nearest(name, self._tensors)}")
        return self._tensors[name]

    def _full_name(self, key: PointSpec) -> str:
        short, layer = Place.of(key)
        short = in_stack(short, self._stack)
        if layer is None and "{layer}" in POINTS[short]:
            raise UnknownPoint(f"{short} exists in every layer; write cache[{short!r}, 0] or cache.stack({short!r})")
        return POINTS[short].format(layer=layer)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def stack(self, point: str) -> Tensor:
        """The point in every cached layer, in layer order: [layer, ...].

        Raises:
            UnknownPoint: no layer of it is in this cache.
        """
        short = in_stack(Place.of(point)[0], self._stack)
        found = sorted(
            (layer, name) for name in self for s, layer in [Place.of(name)] if s == short and layer is not None
        )
        if not found:
            raise UnknownPoint(f"no layer of {short} is in this cache; {nearest(short, self._tensors)}")
        device = self._tensors[found[0][1]].device  # the layers of a model may be on several
        return torch.stack([self._tensors[name].to(device) for _, name in found])

    def to(self, device: torch.device | str) -> "ActivationCache":
        """A cache with every tensor on `device`."""
        return ActivationCache({name: x.to(device) for name, x in self._tensors.items()}, self._stack)

    def __repr__(self) -> str:
        size = sum(x.numel() * x.element_size() for x in self._tensors.values()) / 1e6
        lines = [f"  {name}  {list(x.shape)}" for name, x in self._tensors.items()]
        return "\n".join([f"ActivationCache: {counted(len(self), 'point')}, {size:.1f} MB", *lines])
