"""The sizes of every point's activations, from the shape of a model.

Axes: B batch, L query position, M key position, D d_model, H heads, G kv heads, K d_head, F d_mlp, E experts.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from probekit.machine.dtypes import BYTES
from probekit.models.shapes import ModelShape, StackShape, equal_blocks
from probekit.points import POINTS, base_name


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


def _norm_points(name: str) -> dict[str, str]:
    return {f"{name}_scale": "B L 1", f"{name}_normalized": "B L D"}


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
        points |= _norm_points(norm)
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
