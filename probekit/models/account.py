"""The account of a model: its parameters, memory and forward FLOPs, the sizes of every point, and these as tables.

Nothing here needs torch. `accounting.py` has the arithmetic.

Axes: B batch, L query position, M key position, D d_model, H heads, G kv heads, K d_head, F d_mlp, E experts.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from probekit.errors import UsageError
from probekit.machine.dtypes import BYTES, dtype_name
from probekit.models.accounting import (
    COMPONENTS,
    MATMULS,
    block_parameters,
    cache_values,
    forward_flops,
    idle_parameters,
    parameters,
    working_values,
)
from probekit.models.shapes import ModelShape, StackShape, equal_blocks, equal_stacks
from probekit.points import POINTS, base_name
from probekit.tables import text_table
from probekit.text import counted, metric

_SHORT = {"weighted sum": "sum", "output projection": "output", "MLP gate": "gate", "MLP up": "up", "MLP down": "down"}


@dataclass(frozen=True)
class PointSize:
    """The size of a point's activations.

    Attributes:
        point: short name.
        shape: size of each axis.
        layers: how many layers have the point.
        bytes_each: bytes per layer.
    """

    point: str
    shape: tuple[int, ...]
    layers: int
    bytes_each: int

    @property
    def bytes(self) -> int:
        """Bytes in all layers."""
        return self.layers * self.bytes_each


@dataclass(frozen=True)
class Account:
    """One model at one context, batch and type.

    Attributes:
        name: the model's.
        shape: its sizes.
        context: L; in an encoder-decoder also S.
        batch: B.
        dtype: the type of weights and activations.
        parameters: of the model; a tied head is counted once.
        active_parameters: those that compute a token; fewer than all in a mixture of experts.
        flops: FLOPs of a forward of the batch, by component.
        weights_bytes: bytes of all parameters.
        cache_bytes: bytes of the keys and values of the complete context; 0 for a model that does not generate.
        working_bytes: about the peak memory of a forward that keeps no activations, without the weights.
        activations: every point's size, if it were kept in every layer.
    """

    name: str
    shape: ModelShape
    context: int
    batch: int
    dtype: str
    parameters: int
    active_parameters: int
    flops: dict[str, int]
    weights_bytes: int
    cache_bytes: int
    working_bytes: int
    activations: list[PointSize]

    @property
    def shares(self) -> dict[str, float]:
        """Each component's share of the FLOPs; they sum to 1."""
        total = sum(self.flops.values())
        return {name: n / total for name, n in self.flops.items()}

    def as_dict(self) -> dict[str, Any]:
        """Everything, JSON-able; sizes in bytes."""
        flops, shares, kept = self.flops, self.shares, self.activations
        parts = [(stack, block_parameters(stack)) for stack in equal_stacks(self.shape)]
        blocks = [{"stack": s.name, "layers": s.n_layers, "each": sum(x.values()), "parts": x} for s, x in parts]
        return {
            "model": self.name,
            "family": self.shape.family,
            "n_ctx": self.shape.n_ctx,
            "context": self.context,
            "batch": self.batch,
            "dtype": self.dtype,
            "parameters": {
                "total": self.parameters,
                "active": self.active_parameters,
                "blocks": blocks,
                "outside": dict(self.shape.outside),
            },
            "memory": {
                "weights": self.weights_bytes,
                "kv_cache": self.cache_bytes,
                "forward": self.working_bytes,
                "all_points": sum(size.bytes for size in kept),
                "points": [
                    {"point": x.point, "shape": x.shape, "layers": x.layers, "each": x.bytes_each, "bytes": x.bytes}
                    for x in kept
                ],
            },
            "flops": {
                "total": sum(flops.values()),
                "matmuls": sum(flops[name] for name in MATMULS),
                "components": {name: {"flops": flops[name], "share": shares[name]} for name in COMPONENTS},
            },
        }


def account(
    name: str, shape: ModelShape, context: int | None = None, batch: int = 1, dtype: str = "float32"
) -> Account:
    """The account of a model.

    Args:
        name: the model's.
        shape: its sizes, from `families.shape_of` or `named_shape`.
        context: tokens per text; None means the longest that the model supports. More are allowed.
        batch: texts.
        dtype: "float32", "bfloat16" or "float16".

    Raises:
        UsageError: a context or batch below 1, or an unknown type.
    """
    context = shape.n_ctx if context is None else context
    for what, value, unit in (("context", context, "tokens"), ("batch", batch, "texts")):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"{what} is a positive whole number of {unit}; got {value!a}")
    dtype = dtype_name(dtype)
    n = parameters(shape)
    return Account(
        name,
        shape,
        context,
        batch,
        dtype,
        parameters=n,
        active_parameters=n - idle_parameters(shape),
        flops=forward_flops(shape, context, batch),
        weights_bytes=n * BYTES[dtype],
        cache_bytes=cache_values(shape, context, batch) * BYTES[dtype],
        working_bytes=working_values(shape, context, batch) * BYTES[dtype],
        activations=point_sizes(shape, context, batch, dtype),
    )


def point_sizes(shape: ModelShape, context: int, batch: int, dtype: str) -> list[PointSize]:
    """Every point's size for [batch, context] tokens, stack by stack, in the order of a forward."""
    sizes = []
    for stack in shape.stacks:
        prefix = f"{stack.name}." if stack.name else ""
        axes = {"B": batch, "L": context, "M": context, "1": 1, "D": stack.d_model}
        sizes += [
            _point_size(prefix + point, names, 1, axes, dtype) for point, names in _points_before(shape, stack).items()
        ]
        sizes += _block_sizes(stack, prefix, axes, dtype)
    axes = {"B": batch, "L": context, "1": 1, "D": shape.d_model}
    return sizes + [_point_size(point, names, 1, axes, dtype) for point, names in _points_after(shape).items()]


def _block_sizes(stack: StackShape, prefix: str, axes: Mapping[str, int], dtype: str) -> list[PointSize]:
    """The sizes of the points in a stack's blocks; of each point, as many as there are shapes."""
    layers: dict[PointSize, int] = {}
    for part in equal_blocks(stack):
        axes = {**axes, "H": part.n_heads, "G": part.n_kv_heads, "K": part.d_head, "F": part.d_mlp, "E": part.n_experts}
        axes |= {"HK": part.n_heads * part.d_head, "GK": part.n_kv_heads * part.d_head}
        for point, names in _block_points(part).items():
            size = _point_size(prefix + point, names, 0, axes, dtype)
            layers[size] = layers.get(size, 0) + part.n_layers
    sizes = [replace(size, layers=n) for size, n in layers.items()]
    order = [base_name(point) for point in POINTS]
    return sorted(sizes, key=lambda size: order.index(base_name(size.point)))


def _point_size(point: str, names: str, layers: int, axes: Mapping[str, int], dtype: str) -> PointSize:
    shape = tuple(axes[axis] for axis in names.split())
    in_float32 = point.endswith("_scale") or point in ("router_logits", "expert_weights")  # by norms and routers
    bytes_of_value = 4 if in_float32 else BYTES[dtype]
    return PointSize(point, shape, layers, math.prod(shape) * bytes_of_value)


def _points_before(shape: ModelShape, stack: StackShape) -> dict[str, str]:
    """Points before the blocks of a stack, with their axes."""
    points = {"embed": "B L D"}
    if shape.embedding_sums and not stack.rotary:  # positions are added to the embedding
        points |= {"pos_embed": "B L D"}
    if "segment embedding" in shape.outside:
        points |= {"token_type_embed": "B L D"}
    if "embedding norm" in shape.outside:
        points |= {"ln_embed_scale": "B L 1", "ln_embed": "B L D"}
    return points


def _block_points(stack: StackShape) -> dict[str, str]:
    """Points of a block, with their axes."""
    attention = {"q": "B L H K", "k": "B M G K", "v": "B M G K"}
    pairs = {"attn_scores": "B H L M", "attn_pattern": "B H L M", "z": "B L H K", "result": "B L H D"}
    points = {"resid_pre": "B L D", **attention, **pairs, **_qk_norm_points(stack)}
    if stack.rotary:
        points |= {"rot_q": "B L H K", "rot_k": "B M G K"}
    points |= {"attn_out": "B L D"} if stack.parallel else {"attn_out": "B L D", "resid_mid": "B L D"}
    if stack.cross:
        points |= {f"cross_{name}": axes for name, axes in (attention | pairs).items()}
        points |= {"cross_attn_out": "B L D", "resid_mid_cross": "B L D"}
    if stack.n_experts:
        points |= {"router_logits": "B L E", "expert_weights": "B L E"}
    else:
        inside = ("mlp_pre", "mlp_pre_linear", "mlp_post") if stack.gated else ("mlp_pre", "mlp_post")
        points |= dict.fromkeys(inside, "B L F")
    for norm in stack.norms:
        points |= {f"{norm}_scale": "B L 1", f"{norm}_normalized": "B L D"}
    return points | {"mlp_out": "B L D", "resid_post": "B L D"}


def _qk_norm_points(stack: StackShape) -> dict[str, str]:
    """Points of the norms of queries and keys, with their axes."""
    if stack.qk_norm == "K":
        return {"q_norm_scale": "B L H 1", "q_norm": "B L H K", "k_norm_scale": "B M G 1", "k_norm": "B M G K"}
    if stack.qk_norm == "HK":
        return {"q_norm_scale": "B L 1", "q_norm": "B L HK", "k_norm_scale": "B M 1", "k_norm": "B M GK"}
    return {}


def _points_after(shape: ModelShape) -> dict[str, str]:
    """Points after the last block, with their axes."""
    return {point: axes for norm in shape.last_norms for point, axes in ((f"{norm}_scale", "B L 1"), (norm, "B L D"))}


def compared(accounts: list[Account]) -> str:
    """One row for each model and context: sizes, FLOPs, and the share of each component in them."""
    shown = [name for name in accounts[0].flops if any(each.flops[name] for each in accounts)]
    rows = [["model", "parameters", "weights", "context", "KV cache", "FLOPs", *(_SHORT.get(x, x) for x in shown)]]
    last = ""
    for each in accounts:
        is_new, last = each.name != last, each.name
        sizes = [each.name, f"{each.parameters:,}", _bytes(each.weights_bytes)] if is_new else [""] * 3
        row = [*sizes, f"{each.context:,}", _bytes(each.cache_bytes), metric(sum(each.flops.values()))]
        rows.append([*row, *(_percent(each.shares[name]) for name in shown)])
    return text_table(rows)


def describe_account(account: Account) -> str:
    """Parameters, memory and FLOPs as aligned lines."""
    return "\n\n".join([_parameters(account), _memory(account), _flops(account)])


def _parameters(account: Account) -> str:
    total = account.parameters
    rows = [["parameters", f"{total:,}", ""]]
    if account.active_parameters < total:
        rows.append(_counted("computing a token", account.active_parameters, total))
    outside = account.shape.outside
    before = [name for name in outside if "embedding" in name]
    rows += [_counted(name, outside[name], total) for name in before]
    for stack in equal_stacks(account.shape):
        parts = block_parameters(stack)
        each = sum(parts.values())
        rows.append(_counted(f"{_blocks(stack)} of {each:,}", stack.n_layers * each, total))
        rows += [_counted(f"  {part}", stack.n_layers * n, total) for part, n in parts.items()]
    rows += [_counted(name, n, total) for name, n in outside.items() if name not in before]
    if outside.get("head") == 0:
        rows[-1 if list(outside)[-1] == "head" else -2][0] += " (the token embedding)"
    return text_table(rows)


def _blocks(stack: StackShape) -> str:
    """Such as "12 decoder blocks" or "24 blocks with 64 experts"."""
    blocks = counted(stack.n_layers, f"{stack.name} block".strip())
    return f"{blocks} with {stack.n_experts} experts" if stack.n_experts else blocks


def _counted(name: str, n: int, total: int) -> list[str]:
    return [f"  {name}", f"{n:,}", _percent(n / total)]


def _memory(account: Account) -> str:
    kept = account.activations
    texts = "1 text" if account.batch == 1 else f"{account.batch:,} texts"
    rows = [[f"memory: {account.dtype}, {texts} of {account.context:,} tokens", "", ""]]
    rows.append(["  weights", _bytes(account.weights_bytes), ""])
    if account.shape.cached:
        rows.append(["  keys and values of all layers (KV cache)", _bytes(account.cache_bytes), ""])
    rows.append(["  a forward that keeps nothing, about", _bytes(account.working_bytes), ""])
    rows.append(["  every point in every layer", _bytes(sum(size.bytes for size in kept)), ""])
    points = [["  point", "a layer", "layers", "all"]]
    points += [[f"  {x.point}", _bytes(x.bytes_each), str(x.layers), _bytes(x.bytes)] for x in kept]
    return f"{text_table(rows)}\n\n{text_table([['activations, if kept', '', '', ''], *points])}"


def _flops(account: Account) -> str:
    flops, shares = account.flops, account.shares
    total = sum(flops.values())
    rows = [[f"FLOPs of a forward: {metric(total)}FLOPs", f"{total:,}", ""]]
    rows += [[f"  {name}", f"{n:,}", _percent(shares[name])] for name, n in flops.items() if n]
    return text_table(rows)


def _percent(share: float) -> str:
    return "<0.1%" if 0 < share < 0.0005 else f"{share:.1%}"


def _bytes(n: int) -> str:
    return f"{metric(n)}B"
