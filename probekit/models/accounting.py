"""Parameters, memory and forward FLOPs of a model, each by component, from its shape alone.

A product of [a, b] with [b, c] is 2abc FLOPs: a multiplication and an addition each. For L tokens of one text, a
block with H heads of K = D / H, as many for keys and values, and an MLP of two products takes

    QKV                6 L D^2
    scores             2 L^2 D      the full square: what is masked is counted, as kernels without a causal shortcut
    weighted sum       2 L^2 D      compute it, windows too (and as `torch.utils.flop_counter` counts it)
    output projection  2 L D^2
    MLP                4 L D F
    together           8 L D^2 + 4 L^2 D + 4 L D F

and the head 2 L D V. In general QKV is 2 L D (H + 2G) K, scores and weighted sum 2 L^2 H K each, the output projection
2 L H K D; a gated MLP (SwiGLU) has three products, 6 L D F. A decoder with cross-attention to S source tokens adds
2 L D H K + 4 S D G K to QKV, 2 L S H K to scores and to weighted sum each, and 2 L H K D to the output projection.
BERT's head has a product more, 2 L D^2; its pooler is not in the forward and not counted.

Norms are counted by element: LayerNorm 7 (mean, centre, square, sum, divide, gain, shift), RMSNorm 4 (square, sum,
divide, gain); embeddings by vector that is added (position, segment), a look-up being none. Biases, activation
functions, rotations, softmax and the sums of the residual stream are left out: they are O(LD), O(LF) and O(L^2 H).

Axes: B batch, L query position, M key position, D d_model, H heads, G kv heads, K d_head, F d_mlp, V vocab.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from probekit.errors import UsageError, nearest
from probekit.models.shapes import Shape, Stack

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
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
NORM_FLOPS = {True: 7, False: 4}  # an element, by whether the norm has a shift


@dataclass(frozen=True)
class PointSize:
    """What a point holds in every layer.

    Attributes:
        point: short name.
        shape: size of each axis.
        layers: in how many layers there is one.
        bytes_each: of one layer.
    """

    point: str
    shape: tuple[int, ...]
    layers: int
    bytes_each: int

    @property
    def bytes(self) -> int:
        """Of all layers."""
        return self.layers * self.bytes_each


@dataclass(frozen=True)
class Account:
    """One model at one context, batch and type.

    Attributes:
        name: the model's.
        shape: what was counted.
        context: L, and S of an encoder-decoder's source.
        batch: B.
        dtype: of weights and activations.
    """

    name: str
    shape: Shape
    context: int
    batch: int
    dtype: str

    @property
    def parameters(self) -> int:
        """Of the whole model; a head that is the embedding is counted once."""
        return parameters(self.shape)

    @property
    def flops(self) -> dict[str, int]:
        """Of a forward of the batch, by component."""
        return forward_flops(self.shape, self.context, self.batch)

    @property
    def shares(self) -> dict[str, float]:
        """Of each component in the FLOPs; they add up to 1."""
        flops = self.flops
        total = sum(flops.values())
        return {name: n / total for name, n in flops.items()}

    @property
    def weights_bytes(self) -> int:
        """Of all parameters."""
        return self.parameters * BYTES[self.dtype]

    @property
    def cache_bytes(self) -> int:
        """Of the keys and values of the whole context; 0 for a model that does not generate."""
        return cache_values(self.shape, self.context, self.batch) * BYTES[self.dtype]

    @property
    def working_bytes(self) -> int:
        """About what a forward that keeps nothing needs beside the weights, at its widest moment."""
        return working_values(self.shape, self.context, self.batch) * BYTES[self.dtype]

    @property
    def activations(self) -> list[PointSize]:
        """Every point and its size, if it were kept in every layer."""
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


def account(name: str, shape: Shape, context: int | None = None, batch: int = 1, dtype: str = "float32") -> Account:
    """The account of a model.

    Args:
        name: the model's.
        shape: from `shape_of` or `named_shape`.
        context: tokens of each text; None is the model's own context. It may be longer than that.
        batch: texts.
        dtype: "float32", "bfloat16" or "float16".

    Raises:
        UsageError: a context or batch below 1, or an unknown type.
    """
    context = shape.n_ctx if context is None else context
    for what, value in (("context", context), ("batch", batch)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"{what} is a positive whole number of {_UNITS[what]}; got {value!a}")
    if dtype not in BYTES:
        raise UsageError(f"unknown dtype {dtype!a}; {nearest(str(dtype), BYTES)}")
    return Account(name, shape, context, batch, dtype)


_UNITS = {"context": "tokens", "batch": "texts"}


def block_parameters(stack: Stack) -> dict[str, int]:
    """Parameters of one block by part.

    QKV is D (H + 2G) K weights, the output projection H K D, each product of the MLP D F; biases are as many as a
    product has outputs. A norm has D gains, and D shifts unless it is RMSNorm. Cross-attention is attention once more.
    """
    D, F, queries, both = stack.d_model, stack.d_mlp, stack.n_heads * stack.d_head, stack.n_kv_heads * stack.d_head * 2
    qkv = (D + stack.qkv_bias) * (queries + both)
    out = (queries + stack.out_bias) * D
    into = (D + stack.mlp_bias) * F
    parts = {"QKV": qkv, "output projection": out}
    if stack.cross:
        parts |= {"cross QKV": qkv, "cross output projection": out}
    if stack.gated:
        parts |= {"MLP gate": into}
    parts |= {"MLP up": into, "MLP down": (F + stack.mlp_bias) * D}
    return parts | {"norms": stack.n_norms * D * (1 + stack.norm_shift)}


def parameters(shape: Shape) -> int:
    """Parameters of the whole model: those outside the blocks, and the blocks'."""
    return sum(shape.outside.values()) + sum(s.n_layers * sum(block_parameters(s).values()) for s in shape.stacks)


def attention_flops(stack: Stack, queries: int, keys: int) -> int:
    """Scores, and as many for the weighted sum, of one attention: 2 L M H K."""
    return 2 * queries * keys * stack.n_heads * stack.d_head


def token_flops(stack: Stack) -> dict[str, int]:
    """FLOPs of one token in one block, its reading of other tokens and any cross-attention left out: by component.

    2 D (H + 2G) K + 2 H K D + 2 D F for each product of the MLP; norms 7 D or 4 D each.
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


def block_flops(stack: Stack, context: int) -> dict[str, int]:
    """FLOPs of one text of `context` tokens in one block, by component; the source of cross-attention is as long."""
    flops = {name: context * n for name, n in token_flops(stack).items()}
    scores = attention_flops(stack, context, context)
    if stack.cross:  # queries from the target, keys and values from the source
        flops["QKV"] *= 2
        flops["output projection"] *= 2
        scores *= 2
    return flops | {"scores": scores, "weighted sum": scores}


def forward_flops(shape: Shape, context: int, batch: int = 1) -> dict[str, int]:
    """FLOPs of a forward of [batch, context] tokens to the logits, by component (closed forms: top of this file).

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


def cache_values(shape: Shape, context: int, batch: int = 1) -> int:
    """Keys and values of `context` tokens: 2 B L G K a layer, and as many of the source with cross-attention."""
    if not shape.cached:
        return 0
    stack = shape.stacks[-1]
    each = 2 * batch * context * stack.n_kv_heads * stack.d_head
    return stack.n_layers * each * (2 if stack.cross else 1)


def working_values(shape: Shape, context: int, batch: int = 1) -> int:
    """About the values that stand side by side at the widest moment of a forward: in a block, or at the logits.

    B L times the most of `block_width` and of 2 D + V (stream, norm's output, logits; 2 V with a bias added to them).
    """
    head = 2 * shape.d_model + shape.logits
    return batch * context * max(head, *map(block_width, shape.stacks))


def block_width(stack: Stack) -> int:
    """About the values of one token that stand side by side at the widest moment of a block.

    In the attention 3 D + (3H + 2G) K: stream, norm's output and result; queries, keys, values, and the heads' output
    twice (as it comes, and side by side); (H + G) K more where they are rotated. In the MLP 5 D + F: the stream before
    and after the attention, what that added, norm's output and result; 5 D + 3 F with a gate. Scores and pattern stay
    within the fused kernel.
    """
    H, G = stack.n_heads, stack.n_kv_heads
    attention = 3 * stack.d_model + (3 * H + 2 * G + (H + G if stack.rotary else 0)) * stack.d_head
    return max(attention, 5 * stack.d_model + (3 if stack.gated else 1) * stack.d_mlp)


def point_sizes(shape: Shape, context: int, batch: int, dtype: str) -> list[PointSize]:
    """Every point of the model, stack by stack, with what it holds of [batch, context] tokens."""
    sizes = []
    for stack in shape.stacks:
        prefix = f"{stack.name}." if stack.name else ""
        axes = {"B": batch, "L": context, "M": context, "1": 1, "D": stack.d_model, "F": stack.d_mlp}
        axes |= {"H": stack.n_heads, "G": stack.n_kv_heads, "K": stack.d_head}
        for points, layers in ((_points_before(shape), 1), (_block_points(stack), stack.n_layers)):
            sizes += [_point_size(prefix + point, kind, layers, axes, dtype) for point, kind in points.items()]
    axes = {"B": batch, "L": context, "1": 1, "D": shape.d_model}
    return sizes + [_point_size(point, kind, 1, axes, dtype) for point, kind in _points_behind(shape).items()]


def _point_size(point: str, kind: str, layers: int, axes: Mapping[str, int], dtype: str) -> PointSize:
    shape = tuple(axes[axis] for axis in kind.split())
    bytes_of_value = 4 if point.endswith("_scale") else BYTES[dtype]  # norms compute in float32
    return PointSize(point, shape, layers, math.prod(shape) * bytes_of_value)


def _norm_points(name: str) -> dict[str, str]:
    return {f"{name}_scale": "B L 1", f"{name}_normalized": "B L D"}


def _points_before(shape: Shape) -> dict[str, str]:
    """Points before the blocks of a stack, with their axes."""
    points = {"embed": "B L D"}
    if not shape.stacks[0].rotary:
        points |= {"pos_embed": "B L D"}
    if "segment embedding" in shape.outside:
        points |= {"token_type_embed": "B L D", "ln_embed_scale": "B L 1", "ln_embed": "B L D"}
    return points


def _block_points(stack: Stack) -> dict[str, str]:
    """Points of a block, with their axes; in post-norm families the norms stand behind the sums."""
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


def _points_behind(shape: Shape) -> dict[str, str]:
    """Points behind the last block, with their axes."""
    if "final norm" in shape.outside:
        return {"ln_final_scale": "B L 1", "ln_final": "B L D"}
    has_mlm_head = shape.family == "bert" and shape.head_products
    return {"head_ln_scale": "B L 1", "head_ln": "B L D"} if has_mlm_head else {}
