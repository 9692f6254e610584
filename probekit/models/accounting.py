"""Counts parameters, values in memory and forward FLOPs of a model by component, from its sizes alone.

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
2 L D F A, where F is the width of one expert. The parameters are those of all E, and D E of the router. A parallel
block (attention and MLP read the same stream) computes as much as a sequential one.

Norms are counted per element: LayerNorm 7 (mean, centre, square, sum, divide, gain, shift), without a shift 6, RMSNorm
4 (square, sum, divide, gain). Norms of queries and keys see (H + G) K elements a token, and have 2 K gains if each head
is normalised alone, (H + G) K if all heads together. Embeddings are counted per added vector (position, segment); a
look-up costs nothing. Biases, activation functions, rotations, softmax, the choice of experts, caps of scores and the
sums of the residual stream are left out: they are O(LD), O(LF), O(LE) and O(L^2 H). A sliding window saves nothing
here: its mask hides scores that are computed.

Axes: B batch, L query position, M key position, D d_model, H heads, G kv heads, K d_head, F d_mlp, E experts, V vocab.
"""

from probekit.models.shapes import ModelShape, StackShape, equal_stacks

COMPONENTS: tuple[str, ...] = (
    "embeddings",
    "QKV",
    "scores",
    "weighted sum",
    "output projection",
    "router",
    "MLP gate",
    "MLP up",
    "MLP down",
    "norms",
    "head",
)
MATMULS = tuple(name for name in COMPONENTS if name not in ("embeddings", "norms"))


def block_parameters(stack: StackShape) -> dict[str, int]:
    """Parameters by part of one block of a stack whose blocks are all alike (`equal_blocks`).

    QKV has D (H + 2G) K weights, the output projection H K D, each product of an MLP D F, for each expert one; each of
    these has as many biases as outputs. A router has D E. A norm has D gains, and D shifts unless it has none; norms of
    queries and keys have 2 K gains, or (H + G) K. Cross-attention is a second attention.
    """
    D, F, queries, both = stack.d_model, stack.d_mlp, stack.n_heads * stack.d_head, stack.n_kv_heads * stack.d_head * 2
    qkv = (D + stack.qkv_bias) * (queries + both)
    out = (queries + stack.out_bias) * D
    n_mlps = stack.n_experts or 1
    up = n_mlps * (D + stack.mlp_bias) * F
    parts = {"QKV": qkv, "output projection": out}
    if stack.cross:
        parts |= {"cross QKV": qkv, "cross output projection": out}
    if stack.n_experts:
        parts |= {"router": D * stack.n_experts}
    if stack.gated:
        parts |= {"MLP gate": up}
    parts |= {"MLP up": up, "MLP down": n_mlps * (F + stack.mlp_bias) * D}
    gains = len(stack.norms) * D + {"": 0, "K": 2 * stack.d_head, "HK": queries + both // 2}[stack.qk_norm]
    return parts | {"norms": gains * (1 + stack.norm_shift)}


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


def attention_flops(stack: StackShape, queries: int, keys: int) -> int:
    """FLOPs of one attention's scores, 2 L M H K; its weighted sum takes as many."""
    return 2 * queries * keys * stack.n_heads * stack.d_head


def token_flops(stack: StackShape) -> dict[str, int]:
    """FLOPs of one token in one block by component, without scores, weighted sum and cross-attention.

    2 D (H + 2G) K + 2 H K D, and 2 D F for each product of the MLP of each expert that computes the token. All blocks
    of the stack are alike (`equal_blocks`).
    """
    D, queries, both = stack.d_model, stack.n_heads * stack.d_head, stack.n_kv_heads * stack.d_head * 2
    product = 2 * D * stack.d_mlp * (stack.n_active_experts or 1)
    normalised = len(stack.norms) * D + (queries + both // 2 if stack.qk_norm else 0)
    return {
        "QKV": 2 * D * (queries + both),
        "output projection": 2 * queries * D,
        "router": 2 * D * stack.n_experts,
        "MLP gate": product if stack.gated else 0,
        "MLP up": product,
        "MLP down": product,
        "norms": normalised * norm_flops(stack),
    }


def norm_flops(stack: StackShape) -> int:
    """FLOPs of a norm per element: LayerNorm 7, without a shift 6, RMSNorm 4."""
    return 7 if stack.norm_shift else 6 if stack.norm_centred else 4


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
    for part in equal_stacks(shape):
        for name, n in block_flops(part, context).items():
            flops[name] += batch * part.n_layers * n
    flops["embeddings"] = tokens * shape.embedding_sums * D * len(shape.stacks)
    flops["norms"] += tokens * shape.outer_norms * norm_flops(shape.stacks[-1]) * D
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

    B L times the larger of `block_width` and 2 D + V (stream, norm's output, logits; 2 V where a bias is added). Scores
    that are capped are in memory, before and after: 2 B H L^2.
    """
    head = 2 * shape.d_model + shape.logits
    widths = (block_width(part, context) for part in equal_stacks(shape))
    return batch * context * max(head, *widths)


def block_width(stack: StackShape, context: int) -> int:
    """About the largest number of values that a block holds for one token of `context`.

    Attention: 3 D + (3H + 2G) K, for the stream, the norm's output and the result; queries, keys, values, and the
    heads' output twice (as computed, and concatenated); rotation adds (H + G) K, and so do norms of queries and keys.
    MLP: 5 D + F, for the stream before and after the attention, the attention's output, the norm's output and the
    result; 5 D + 3 F with a gate; with experts F of each that computes the token, and 2 E. Scores and pattern stay
    inside the fused kernel unless they are capped.
    """
    H, G = stack.n_heads, stack.n_kv_heads
    again = (H + G) * (stack.rotary + bool(stack.qk_norm))
    attention = 3 * stack.d_model + (3 * H + 2 * G + again) * stack.d_head
    attention += 2 * H * context if stack.capped_scores else 0
    inner = (3 if stack.gated else 1) * stack.d_mlp * (stack.n_active_experts or 1)
    return max(attention, 5 * stack.d_model + inner + 2 * stack.n_experts)
