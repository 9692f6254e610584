"""Parameters, memory and forward FLOPs of a model by component, from its sizes alone.

A product of [a, b] with [b, c] is 2abc FLOPs: a multiplication and an addition each. For L tokens of one text, a block
with H heads of width K = D / H, as many key/value heads, and an MLP of two products needs

    QKV                6 L D^2
    scores             2 L^2 D      the full square: kernels without a causal shortcut compute masked scores too,
    weighted sum       2 L^2 D      and `torch.utils.flop_counter` counts them
    output projection  2 L D^2
    MLP                4 L D F
    together           8 L D^2 + 4 L^2 D + 4 L D F

and the head 2 L D V. In general QKV is 2 L D (H + 2G) K, scores and weighted sum 2 L^2 H K each, the output projection
2 L H K D; a gated MLP (SwiGLU) has three products, 6 L D F. Cross-attention to S source tokens adds
2 L D H K + 4 S D G K to QKV, 2 L S H K each to scores and weighted sum, and 2 L H K D to the output projection. A head
for masked tokens has one more product, 2 L D^2; a pooler is not part of the forward and not counted.

Norms are counted per element: LayerNorm 7 (mean, centre, square, sum, divide, gain, shift), RMSNorm 4 (square, sum,
divide, gain). Embeddings are counted per added vector (position, segment); a look-up costs nothing. Biases, activation
functions, rotations, softmax and the sums of the residual stream are left out: they are O(LD), O(LF) and O(L^2 H).

Axes: B batch, L query position, M key position, D d_model, H heads, G kv heads, K d_head, F d_mlp, V vocab.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from probekit.dtypes import BYTES, dtype_name
from probekit.errors import UsageError
from probekit.models.shapes import ModelShape, StackShape

COMPONENTS: tuple[str, ...] = (
    "embeddings",
    "QKV",
    "scores",
    "weighted sum",
    "output projection",
    "MLP gate",
    "MLP up",
    "MLP down",
    "norms",
    "head",
)
MATMULS = ("QKV", "scores", "weighted sum", "output projection", "MLP gate", "MLP up", "MLP down", "head")
NORM_FLOPS = {True: 7, False: 4}  # per element; True for a norm with a shift


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
    """

    name: str
    shape: ModelShape
    context: int
    batch: int
    dtype: str

    @property
    def parameters(self) -> int:
        """Parameters of the model; a tied head is counted once."""
        return parameters(self.shape)

    @property
    def flops(self) -> dict[str, int]:
        """FLOPs of a forward of the batch, by component."""
        return forward_flops(self.shape, self.context, self.batch)

    @property
    def shares(self) -> dict[str, float]:
        """Each component's share of the FLOPs; they sum to 1."""
        flops = self.flops
        total = sum(flops.values())
        return {name: n / total for name, n in flops.items()}

    @property
    def weights_bytes(self) -> int:
        """Bytes of all parameters."""
        return self.parameters * BYTES[self.dtype]

    @property
    def cache_bytes(self) -> int:
        """Bytes of the keys and values of the complete context; 0 for a model that does not generate."""
        return cache_values(self.shape, self.context, self.batch) * BYTES[self.dtype]

    @property
    def working_bytes(self) -> int:
        """About the peak memory of a forward that keeps no activations, without the weights."""
        return working_values(self.shape, self.context, self.batch) * BYTES[self.dtype]

    @property
    def activations(self) -> list[PointSize]:
        """Every point's size, if it were kept in every layer."""
        return point_sizes(self.shape, self.context, self.batch, self.dtype)

    def as_dict(self) -> dict[str, Any]:
        """Everything, JSON-able; sizes in bytes."""
        flops, shares, kept = self.flops, self.shares, self.activations
        parts = [(stack, block_parameters(stack)) for stack in self.shape.stacks]
        blocks = [{"stack": s.name, "layers": s.n_layers, "each": sum(x.values()), "parts": x} for s, x in parts]
        return {
            "model": self.name,
            "family": self.shape.family,
            "n_ctx": self.shape.n_ctx,
            "context": self.context,
            "batch": self.batch,
            "dtype": self.dtype,
            "parameters": {"total": self.parameters, "blocks": blocks, "outside": dict(self.shape.outside)},
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
    for what, value in (("context", context), ("batch", batch)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"{what} is a positive whole number of {_UNITS[what]}; got {value!a}")
    return Account(name, shape, context, batch, dtype_name(dtype))


_UNITS = {"context": "tokens", "batch": "texts"}


def block_parameters(stack: StackShape) -> dict[str, int]:
    """Parameters of one block by part.

    QKV has D (H + 2G) K weights, the output projection H K D, each product of the MLP D F; each product has as many
    biases as outputs. A norm has D gains, and D shifts unless it is RMSNorm. Cross-attention is a second attention.
    """
    D, F, queries, both = stack.d_model, stack.d_mlp, stack.n_heads * stack.d_head, stack.n_kv_heads * stack.d_head * 2
    qkv = (D + stack.qkv_bias) * (queries + both)
    out = (queries + stack.out_bias) * D
    up = (D + stack.mlp_bias) * F
    parts = {"QKV": qkv, "output projection": out}
    if stack.cross:
        parts |= {"cross QKV": qkv, "cross output projection": out}
    if stack.gated:
        parts |= {"MLP gate": up}
    parts |= {"MLP up": up, "MLP down": (F + stack.mlp_bias) * D}
    return parts | {"norms": stack.n_norms * D * (1 + stack.norm_shift)}


def parameters(shape: ModelShape) -> int:
    """Parameters of the model, outside the blocks and in them."""
    return sum(shape.outside.values()) + sum(s.n_layers * sum(block_parameters(s).values()) for s in shape.stacks)


def attention_flops(stack: StackShape, queries: int, keys: int) -> int:
    """FLOPs of one attention's scores, 2 L M H K; its weighted sum takes as many."""
    return 2 * queries * keys * stack.n_heads * stack.d_head


def token_flops(stack: StackShape) -> dict[str, int]:
    """FLOPs of one token in one block by component, without scores, weighted sum and cross-attention.

    2 D (H + 2G) K + 2 H K D, and 2 D F for each product of the MLP; norms 7 D or 4 D each.
    """
    D, F, queries, both = stack.d_model, stack.d_mlp, stack.n_heads * stack.d_head, stack.n_kv_heads * stack.d_head * 2
    return {
        "QKV": 2 * D * (queries + both),
        "output projection": 2 * queries * D,
        "MLP gate": 2 * D * F if stack.gated else 0,
        "MLP up": 2 * D * F,
        "MLP down": 2 * D * F,
        "norms": stack.n_norms * NORM_FLOPS[stack.norm_shift] * D,
    }


def block_flops(stack: StackShape, context: int) -> dict[str, int]:
    """FLOPs of one text of `context` tokens in one block by component; a cross-attention's source is equally long."""
    flops = {name: context * n for name, n in token_flops(stack).items()}
    scores = attention_flops(stack, context, context)
    if stack.cross:  # queries from the target, keys and values from the source
        flops["QKV"] *= 2
        flops["output projection"] *= 2
        scores *= 2
    return flops | {"scores": scores, "weighted sum": scores}


def forward_flops(shape: ModelShape, context: int, batch: int = 1) -> dict[str, int]:
    """FLOPs of a forward of [batch, context] tokens to the logits by component; closed forms at the top of this file.

    An encoder-decoder reads a source and a target of `context` tokens each.
    """
    D = shape.d_model
    tokens = batch * context
    flops = dict.fromkeys(COMPONENTS, 0)
    for stack in shape.stacks:
        for name, n in block_flops(stack, context).items():
            flops[name] += batch * stack.n_layers * n
    flops["embeddings"] = tokens * shape.embedding_sums * D * len(shape.stacks)
    flops["norms"] += tokens * shape.outer_norms * NORM_FLOPS[shape.stacks[-1].norm_shift] * D
    flops["head"] = 2 * tokens * shape.head_products
    return flops


def cache_values(shape: ModelShape, context: int, batch: int = 1) -> int:
    """Values in a cache of `context` tokens: 2 B L G K per layer, and as many for the source with cross-attention."""
    if not shape.cached:
        return 0
    stack = shape.stacks[-1]
    each = 2 * batch * context * stack.n_kv_heads * stack.d_head
    return stack.n_layers * each * (2 if stack.cross else 1)


def working_values(shape: ModelShape, context: int, batch: int = 1) -> int:
    """About the largest number of values that a forward holds at once, in a block or at the logits.

    B L times the larger of `block_width` and 2 D + V (stream, norm's output, logits; 2 V where a bias is added).
    """
    head = 2 * shape.d_model + shape.logits
    return batch * context * max(head, *map(block_width, shape.stacks))


def block_width(stack: StackShape) -> int:
    """About the largest number of values that a block holds for one token.

    Attention: 3 D + (3H + 2G) K, for the stream, the norm's output and the result; queries, keys, values, and the
    heads' output twice (as computed, and concatenated); rotation adds (H + G) K. MLP: 5 D + F, for the stream before
    and after the attention, the attention's output, the norm's output and the result; 5 D + 3 F with a gate. Scores and
    pattern stay inside the fused kernel.
    """
    H, G = stack.n_heads, stack.n_kv_heads
    attention = 3 * stack.d_model + (3 * H + 2 * G + (H + G if stack.rotary else 0)) * stack.d_head
    return max(attention, 5 * stack.d_model + (3 if stack.gated else 1) * stack.d_mlp)


def point_sizes(shape: ModelShape, context: int, batch: int, dtype: str) -> list[PointSize]:
    """Every point's size for [batch, context] tokens, stack by stack."""
    sizes = []
    for stack in shape.stacks:
        prefix = f"{stack.name}." if stack.name else ""
        axes = {"B": batch, "L": context, "M": context, "1": 1, "D": stack.d_model, "F": stack.d_mlp}
        axes |= {"H": stack.n_heads, "G": stack.n_kv_heads, "K": stack.d_head}
        for points, layers in ((_points_before(shape), 1), (_block_points(stack), stack.n_layers)):
            sizes += [_point_size(prefix + point, names, layers, axes, dtype) for point, names in points.items()]
    axes = {"B": batch, "L": context, "1": 1, "D": shape.d_model}
    return sizes + [_point_size(point, names, 1, axes, dtype) for point, names in _points_after(shape).items()]


def _point_size(point: str, names: str, layers: int, axes: Mapping[str, int], dtype: str) -> PointSize:
    shape = tuple(axes[axis] for axis in names.split())
    bytes_of_value = 4 if point.endswith("_scale") else BYTES[dtype]  # norms compute their scale in float32
    return PointSize(point, shape, layers, math.prod(shape) * bytes_of_value)


def _norm_points(name: str) -> dict[str, str]:
    return {f"{name}_scale": "B L 1", f"{name}_normalized": "B L D"}


def _points_before(shape: ModelShape) -> dict[str, str]:
    """Points before the blocks of a stack, with their axes."""
    points = {"embed": "B L D"}
    if shape.embedding_sums:  # positions are added to the embedding
        points |= {"pos_embed": "B L D"}
    if "segment embedding" in shape.outside:
        points |= {"token_type_embed": "B L D", "ln_embed_scale": "B L 1", "ln_embed": "B L D"}
    return points


def _block_points(stack: StackShape) -> dict[str, str]:
    """Points of a block, with their axes."""
    attention = {"q": "B L H K", "k": "B M G K", "v": "B M G K"}
    pairs = {"attn_scores": "B H L M", "attn_pattern": "B H L M", "z": "B L H K", "result": "B L H D"}
    points = {"resid_pre": "B L D", **_norm_points("ln1"), **attention}
    if stack.rotary:
        points |= {"rot_q": "B L H K", "rot_k": "B M G K"}
    points |= {**pairs, "attn_out": "B L D", "resid_mid": "B L D", **_norm_points("ln2")}
    if stack.cross:
        points |= {f"cross_{name}": axes for name, axes in (attention | pairs).items()}
        points |= {"cross_attn_out": "B L D", "resid_mid_cross": "B L D", **_norm_points("ln3")}
    points |= {"mlp_pre": "B L F"}
    if stack.gated:
        points |= {"mlp_pre_linear": "B L F"}
    return points | {"mlp_post": "B L F", "mlp_out": "B L D", "resid_post": "B L D"}


def _points_after(shape: ModelShape) -> dict[str, str]:
    """Points after the last block, with their axes."""
    return {f"{shape.last_norm}_scale": "B L 1", shape.last_norm: "B L D"} if shape.last_norm else {}
