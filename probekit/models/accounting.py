"""Counts parameters, values in memory and forward FLOPs of a model by component, from its sizes alone; without torch.

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

In a mixture of experts, A of E experts compute a token: the router takes 2 L D E, and each product of the MLP
2 L D F A, where F is the width of one expert. The parameters are those of all E, and D E of the router. A shared
expert of width S, which computes every token, adds 2 L D S to each product, and 2 L D to the router if it has a gate.
A parallel block (attention and MLP read the same stream) computes as much as a sequential one.

A gate of the heads' outputs adds 2 L D H K to QKV. Where values are keys before their norm, QKV has one product fewer;
where keys and values are those of an earlier block, two. A block's own embedding of a token, of width P, takes 6 L D P:
its projection from the stream's first state, its gate, and its way back.

Where keys and values are made of a latent of width C (multi-head latent attention), QKV is 2 L D (C + R) for it and the
part R of the keys that all heads share, 2 L C H (K - R + W) for the rest of the keys and for values of width W, and for
queries 2 L D Q + 2 L Q H K with a latent of width Q of their own. The weighted sum is then 2 L^2 H W, and the output
projection 2 L H W D.

A block with gated DeltaNet has no attention. With J key heads of width K and N value heads of width V, its inputs take
2 L D (2 J K + 2 N V + 2 N), its output 2 L N V D, and the recurrence, for each chunk of C = min(64, L) tokens,

    overlaps of keys and of queries with keys   4 C^2 K      for each key head
    inverse of the system of the chunk          C^3          for each value head, as are
    memory read twice and rewritten once        6 C K V
    the chunk's own tokens                      4 C^2 V

Its cache holds N K V values and the last inputs of its convolution, however long the text.

Norms are counted per element: LayerNorm 7 (mean, centre, square, sum, divide, gain, shift), without a shift 6, without
a gain 5, RMSNorm 4 (square, sum, divide, gain). Norms of queries and keys see (H + G) K elements a token, and have 2 K
gains if each head is normalised alone, (H + G) K if all heads together. Embeddings are counted per added vector
(position, segment); a look-up costs nothing. Biases, activation functions, rotations, softmax, the choice of experts,
caps of scores, the convolution, decays and norms inside DeltaNet, and the sums of the residual stream are left out:
they are O(LD), O(LF), O(LE), O(LCN) and O(L^2 H). A sliding window saves nothing here: its mask hides scores that are
computed.

Axes: B batch, L query position, M key position, D d_model, H heads, G kv heads, K d_head, W that of values if it is
another, F d_mlp, E experts, V vocab.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from probekit.errors import UsageError
from probekit.machine.dtypes import BYTES, dtype_name
from probekit.models.shapes import DeltaShape, ModelShape, StackShape, equal_blocks, equal_stacks
from probekit.points import POINTS, base_name
from probekit.tables import text_table
from probekit.text import counted, metric

COMPONENTS: tuple[str, ...] = (
    "embeddings",
    "QKV",
    "scores",
    "weighted sum",
    "recurrence",
    "output projection",
    "router",
    "MLP gate",
    "MLP up",
    "MLP down",
    "own embeddings",
    "norms",
    "head",
)
_SHORT = {"weighted sum": "sum", "output projection": "output", "MLP gate": "gate", "MLP up": "up", "MLP down": "down"}
MATMULS = tuple(name for name in COMPONENTS if name not in ("embeddings", "norms"))


def block_parameters(stack: StackShape) -> dict[str, int]:
    """Parameters by part of one block of a stack whose blocks are all alike (`equal_blocks`).

    QKV has D (H + 2G) K weights, the output projection H K D, each product of an MLP D F, for each expert one; each of
    these has as many biases as outputs. A router has D E, and E biases if any; sinks are H. A norm has D gains, and D
    shifts unless it has none; norms of queries and keys have 2 K gains, or (H + G) K. Cross-attention is a second
    attention. DeltaNet has its inputs and output, a weight of each channel for each token that the convolution sees,
    two numbers a head, and a norm's V gains.
    """
    D, F, queries, both = stack.d_model, stack.d_mlp, stack.n_heads * stack.d_head, key_values(stack)
    n_mlps = stack.n_experts or 1
    up = n_mlps * (D + stack.mlp_bias) * F
    heads_normed = 1 if stack.keys == "lent" else 2
    gains = len(stack.norms) * D + {"": 0, "K": heads_normed * stack.d_head, "HK": queries + both // 2}[stack.qk_norm]
    gains += stack.q_rank + stack.kv_rank
    parts = {"QKV": sum((each.d_in + each.has_bias) * each.d_out for each in qkv_products(stack))}
    parts |= {"output projection": (output_width(stack) + stack.out_bias) * D}
    if (delta := stack.delta) is not None:
        parts |= {"convolution": delta.conv_width * delta.n_channels, "decay": 2 * delta.n_value_heads}
        gains += delta.d_value_head
    if stack.cross:
        parts |= {f"cross {part}": n for part, n in parts.items()}
    if stack.sinks:
        parts |= {"sinks": stack.n_heads}
    if stack.n_experts:
        parts |= {"router": (D + stack.router_bias) * stack.n_experts + D * stack.shared_gate}
    if stack.d_shared_mlp:
        parts |= {"shared expert": (3 if stack.gated else 2) * D * stack.d_shared_mlp}
    if stack.d_dense_beside:
        parts |= {"dense MLP": 3 * D * stack.d_dense_beside}
    if stack.gated:
        parts |= {"MLP gate": up}
    if F:
        parts |= {"MLP up": up, "MLP down": n_mlps * (F + stack.mlp_bias) * D}
    if stack.d_per_layer:
        parts |= {"own embeddings": 3 * D * stack.d_per_layer}
    return parts | {"norms": gains * (stack.norm_gain + stack.norm_shift) + stack.n_scales}


class Product(NamedTuple):
    """A product with weights: its widths, and whether it has biases."""

    d_in: int
    d_out: int
    has_bias: bool


def qkv_products(stack: StackShape) -> list[Product]:
    """The products that make queries, then those that make keys and values; of two, the first alone has biases."""
    if stack.delta is not None:
        return key_value_products(stack)
    D, queries = stack.d_model, stack.n_heads * stack.d_head
    if stack.q_rank:
        first = [Product(D, stack.q_rank, stack.qkv_bias), Product(stack.q_rank, queries, False)]
    else:
        first = [Product(D, queries * (1 + stack.output_gate), stack.qkv_bias and not stack.kv_rank)]
    return [*first, *key_value_products(stack)]


def key_value_products(stack: StackShape) -> list[Product]:
    """The products whose results later tokens need too: those of keys and values, or all inputs of DeltaNet."""
    D, C, both = stack.d_model, stack.kv_rank, key_values(stack)
    if (delta := stack.delta) is not None:  # queries, keys, values, gates of values, and two numbers for each head
        return [Product(D, delta.n_channels + delta.n_value_heads * (delta.d_value_head + 2), False)]
    if C:
        return [Product(D, C + stack.d_rope, stack.qkv_bias), Product(C, both - stack.n_heads * stack.d_rope, False)]
    n = {"own": both, "keys": both // 2, "lent": 0}[stack.keys]
    return [Product(D, n, stack.qkv_bias)]


def key_values(stack: StackShape) -> int:
    """Values in the keys and values of one token: G (K + W)."""
    return stack.n_kv_heads * (stack.d_head + (stack.d_value or stack.d_head))


def output_width(stack: StackShape) -> int:
    """Values in the heads' outputs of one token: H W, or N V with DeltaNet."""
    if (delta := stack.delta) is not None:
        return delta.n_value_heads * delta.d_value_head
    return stack.n_heads * (stack.d_value or stack.d_head)


def parameters(shape: ModelShape) -> int:
    """Parameters of the model, outside the blocks and in them."""
    blocks = sum(part.n_layers * sum(block_parameters(part).values()) for part in equal_stacks(shape))
    return sum(shape.outside.values()) + blocks


def idle_parameters(shape: ModelShape) -> int:
    """Parameters of the experts that do not compute a given token."""
    idle = 0
    for part in equal_stacks(shape):
        if part.n_experts:
            experts = sum(n for name, n in block_parameters(part).items() if name.startswith("MLP"))
            idle += part.n_layers * (part.n_experts - part.n_active_experts) * experts // part.n_experts
    return idle


def attention_flops(stack: StackShape, queries: int, keys: int) -> dict[str, int]:
    """FLOPs of one attention's scores, 2 L M H K, and of its weighted sum, 2 L M H W; 0 without attention."""
    pairs = 0 if stack.delta else 2 * queries * keys
    return {"scores": pairs * stack.n_heads * stack.d_head, "weighted sum": pairs * output_width(stack)}


def recurrence_flops(delta: DeltaShape, context: int) -> int:
    """FLOPs of the delta rule in one block, of a text of `context` tokens; the last chunk is filled up."""
    C, K, V = min(delta.chunk, context), delta.d_key_head, delta.d_value_head
    of_value_head = C**3 + 6 * C * K * V + 4 * C * C * V
    return math.ceil(context / C) * (delta.n_key_heads * 4 * C * C * K + delta.n_value_heads * of_value_head)


def token_flops(stack: StackShape) -> dict[str, int]:
    """FLOPs of one token in one block by component, without scores, weighted sum and cross-attention.

    2 D (H + 2G) K + 2 H K D, and 2 D F for each product of the MLP of each expert that computes the token; the
    recurrence of DeltaNet in whole chunks. All blocks of the stack are alike (`equal_blocks`).
    """
    D, queries = stack.d_model, stack.n_heads * stack.d_head
    keys = 0 if stack.keys == "lent" else key_values(stack) // 2
    product = 2 * D * (stack.d_mlp * (stack.n_active_experts or 1) + stack.d_shared_mlp + stack.d_dense_beside)
    normalised = len(stack.norms) * D + (queries + keys if stack.qk_norm else 0) + stack.q_rank + stack.kv_rank
    delta = stack.delta
    return {
        "QKV": sum(2 * each.d_in * each.d_out for each in qkv_products(stack)),
        "recurrence": 0 if delta is None else recurrence_flops(delta, delta.chunk) // delta.chunk,
        "output projection": 2 * output_width(stack) * D,
        "router": 2 * D * (stack.n_experts + stack.shared_gate),
        "MLP gate": product if stack.gated else 0,
        "MLP up": product,
        "MLP down": product,
        "own embeddings": 6 * D * stack.d_per_layer,
        "norms": normalised * norm_flops(stack),
    }


def norm_flops(stack: StackShape) -> int:
    """FLOPs of a norm per element: LayerNorm 7, without a shift 6, without a gain 5, RMSNorm 4."""
    return (5 if stack.norm_shift or stack.norm_centred else 3) + stack.norm_gain + stack.norm_shift


def block_flops(stack: StackShape, context: int) -> dict[str, int]:
    """FLOPs of one text of `context` tokens in one block by component; a cross-attention's source is equally long."""
    flops = {name: context * n for name, n in token_flops(stack).items()}
    flops |= attention_flops(stack, context, context)
    if stack.delta is not None:
        flops["recurrence"] = recurrence_flops(stack.delta, context)
    if stack.cross:  # queries from the target, keys and values from the source
        for name in ("QKV", "output projection", "scores", "weighted sum"):
            flops[name] *= 2
    return flops


def forward_flops(shape: ModelShape, context: int, batch: int = 1) -> dict[str, int]:
    """FLOPs of a forward of [batch, context] tokens to the logits by component; closed forms at the top of this file.

    An encoder-decoder reads a source and a target of `context` tokens each.
    """
    D = shape.d_model
    tokens = batch * context
    flops = dict.fromkeys(COMPONENTS, 0)
    for part in equal_stacks(shape):
        for name, n in block_flops(part, context).items():
            flops[name] += batch * part.n_layers * n
    flops["embeddings"] = tokens * shape.embedding_sums * D * len(shape.stacks)
    flops["norms"] += tokens * shape.outer_norms * norm_flops(shape.stacks[-1]) * D
    flops["head"] = 2 * tokens * shape.head_products
    return flops


def cache_values(shape: ModelShape, context: int, batch: int = 1) -> int:
    """Values in a cache of `context` tokens: B L G (K + W) a layer, and as many for the source with cross-attention.

    Of a layer with DeltaNet, its memories and the last inputs of its convolution.
    """
    if not shape.cached:
        return 0
    return sum(part.n_layers * batch * _cached_by(part, context) for part in equal_blocks(shape.stacks[-1]))


def _cached_by(stack: StackShape, context: int) -> int:
    """Values that a block keeps of a text; none if its keys and values are another's."""
    if stack.keys == "lent":
        return 0
    if (delta := stack.delta) is None:
        return context * key_values(stack) * (2 if stack.cross else 1)
    memory = delta.n_value_heads * delta.d_key_head * delta.d_value_head
    return memory + (delta.conv_width - 1) * delta.n_channels


def working_values(shape: ModelShape, context: int, batch: int = 1) -> int:
    """About the largest number of values that a forward holds at once, in a block or at the logits.

    B L times the larger of `block_width` and 2 D + V (stream, norm's output, logits; 2 V where a bias is added). Scores
    that are capped are in memory, before and after: 2 B H L^2. Embeddings of the layers' own add 4 P for each layer.
    """
    head = 2 * shape.d_model + shape.logits
    widths = (block_width(part, context) for part in equal_stacks(shape))
    own = 4 * sum(part.n_layers * part.d_per_layer for part in equal_stacks(shape))  # of all layers, made beforehand
    return batch * context * (own + max(head, *widths))


def block_width(stack: StackShape, context: int) -> int:
    """About the largest number of values that a block holds for one token of `context`.

    Attention: 3 D + H K + G (K + W) + 2 H W, for the stream, the norm's output and the result; queries, keys, values,
    and the heads' output twice (as computed, and concatenated); rotation adds (H + G) K, and so do norms of queries and
    keys. A gate of the output adds 2 H K. DeltaNet: 2 D, 4 of each channel around the convolution, and of each value
    head 3 K, 5 V and 3 C (keys and queries, values and what is read, products of the chunk's tokens with each other).
    MLP: 5 D + F, for the stream before and after the attention, the attention's output, the norm's output and the
    result; 5 D + 3 F with a gate; with experts F of each that computes the token, and 2 E, and D for the sum of these
    while the shared expert computes. Scores and pattern stay
    inside the fused kernel unless they are capped.
    """
    H, G = stack.n_heads, stack.n_kv_heads
    again = (H + G) * (stack.rotary + bool(stack.qk_norm))
    attention = 3 * stack.d_model + (H + again + 2 * H * stack.output_gate) * stack.d_head
    attention += key_values(stack) + 2 * output_width(stack)
    attention += 2 * H * context if stack.capped_scores else 0
    if (delta := stack.delta) is not None:
        of_head = 3 * delta.d_key_head + 5 * delta.d_value_head + 3 * min(delta.chunk, context)
        attention = 2 * stack.d_model + 4 * delta.n_channels + delta.n_value_heads * of_head
    products = 3 if stack.gated else 1
    experts = products * (stack.d_mlp * (stack.n_active_experts or 1) + stack.d_dense_beside)
    shared = (products * stack.d_shared_mlp + stack.d_model) if stack.d_shared_mlp else 0
    return max(attention, 5 * stack.d_model + max(experts, shared) + 2 * stack.n_experts)


# The account of a model: all of these figures, the sizes of every point, and tables of them.


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
    def active_parameters(self) -> int:
        """Parameters that compute a token; fewer than all in a mixture of experts."""
        return self.parameters - idle_parameters(self.shape)

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

    @property
    def flops(self) -> dict[str, int]:
        """FLOPs of a forward of the batch, by component."""
        return forward_flops(self.shape, self.context, self.batch)

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
    return Account(name, shape, context, batch, dtype_name(dtype))


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
        axes = {**axes, "H": part.n_heads, "G": part.n_kv_heads, "K": part.d_head, "E": part.n_experts}
        axes |= {"F": part.d_dense_beside or part.d_mlp}
        axes |= {"HK": part.n_heads * part.d_head, "GK": part.n_kv_heads * part.d_head}
        axes |= {"W": part.d_value or part.d_head, "CQ": part.q_rank, "CK": part.kv_rank}
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
    attention = {"q": "B L H K", "k": "B M G K", "v": "B M G W"}
    pairs = {"attn_scores": "B H L M", "attn_pattern": "B H L M", "z": "B L H W", "result": "B L H D"}
    points = {"resid_pre": "B L D"}
    if stack.delta is None:
        points |= {**attention, **pairs, **_qk_norm_points(stack), "attn_out": "B L D"}
        points |= {"q_latent_scale": "B L 1", "q_latent": "B L CQ"} if stack.q_rank else {}
        points |= {"kv_latent_scale": "B M 1", "kv_latent": "B M CK"} if stack.kv_rank else {}
        points |= {"rot_q": "B L H K", "rot_k": "B M G K"} if stack.rotary else {}
        if stack.keys == "lent":
            points = {name: x for name, x in points.items() if "G" not in x.split()}
        points |= {"attn_gate": "B L H K"} if stack.output_gate else {}
    points |= {"mixer_out": "B L D"} if stack.hybrid else {}
    points |= {} if stack.parallel or not stack.d_mlp else {"resid_mid": "B L D"}
    if stack.cross:
        points |= {f"cross_{name}": axes for name, axes in (attention | pairs).items()}
        points |= {"cross_attn_out": "B L D", "resid_mid_cross": "B L D"}
    if stack.n_experts:
        points |= {"router_logits": "B L E", "expert_weights": "B L E"}
    if stack.d_dense_beside or (stack.d_mlp and not stack.n_experts):
        inside = ("mlp_pre", "mlp_pre_linear", "mlp_post") if stack.gated else ("mlp_pre", "mlp_post")
        points |= dict.fromkeys(inside, "B L F")
    for norm in stack.norms:
        points |= {f"{norm}_scale": "B L 1", f"{norm}_normalized": "B L D"}
    points |= {"per_layer_out": "B L D"} if stack.d_per_layer else {}
    points |= {"mlp_out": "B L D"} if stack.d_mlp else {}
    return points | {"resid_post": "B L D"}


def _qk_norm_points(stack: StackShape) -> dict[str, str]:
    """Points of the norms of queries and keys, with their axes."""
    if stack.qk_norm == "K":
        return {"q_norm_scale": "B L H 1", "q_norm": "B L H K", "k_norm_scale": "B M G 1", "k_norm": "B M G K"}
    if stack.qk_norm == "HK":
        return {"q_norm_scale": "B L 1", "q_norm": "B L HK", "k_norm_scale": "B M 1", "k_norm": "B M GK"}
    return {}


def _points_after(shape: ModelShape) -> dict[str, str]:
    """Points after the last block, with their axes."""
    scales = {f"{norm}_scale": "B L 1" for norm in shape.last_norms if shape.outer_norms}
    return scales | dict.fromkeys(shape.last_norms, "B L D")


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
    """Such as "12 decoder blocks", "24 blocks with 64 experts" or "36 DeltaNet blocks"."""
    blocks = counted(stack.n_layers, f"{'DeltaNet' if stack.delta else stack.name} block".strip())
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
