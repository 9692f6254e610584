"""The sizes of a model, in one form for every family; nothing here needs torch.

A model is one or two stacks of equal blocks, with embedding tables before them and a head after. Each family's file
gives the `ModelShape` of its config; `accounting.py` counts with it.

Axes: B batch, L query position, M key position, D d_model, H heads, G kv heads, K d_head, F d_mlp, V vocab.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal


@dataclass(frozen=True)
class DeltaShape:
    """The sizes of gated DeltaNet, which layers of some models have in place of attention.

    Attributes:
        n_key_heads: J; each serves neighbouring heads of values.
        n_value_heads: N, each with a memory of d_key_head x d_value_head.
        d_key_head: width of a query or key.
        d_value_head: width of a value.
        conv_width: how many tokens the convolution of queries, keys and values sees.
        chunk: how many tokens are computed at once.
    """

    n_key_heads: int
    n_value_heads: int
    d_key_head: int
    d_value_head: int
    conv_width: int
    chunk: int

    @property
    def n_channels(self) -> int:
        """Of the convolution: all queries, keys and values."""
        return 2 * self.n_key_heads * self.d_key_head + self.n_value_heads * self.d_value_head


@dataclass(frozen=True)
class StackShape:
    """A stack of equal blocks, each with self-attention and an MLP, and a norm for either.

    Attributes:
        n_layers: how many blocks.
        d_model: D.
        n_heads: H.
        n_kv_heads: G; fewer than H in grouped-query attention.
        d_head: K.
        d_mlp: F; 0 for blocks that are attention alone, and have no `resid_mid`.
        name: "" if there is one stack; else "encoder" or "decoder".
        gated: whether the MLP has a third product, a gate (SwiGLU).
        d_value: width of each value; 0 for that of queries and keys.
        q_rank: width of the latent that queries are made of; 0 for the stream itself.
        kv_rank: width of the latent that keys and values are made of; 0 for the stream itself.
        d_rope: width of the part of the keys that all heads share, and that is no part of the latent.
        rotary: whether queries and keys are rotated by position.
        qkv_bias: whether queries, keys and values have biases.
        out_bias: whether the attention's output projection has a bias.
        mlp_bias: whether the MLP's products have biases.
        norm_gain: whether norms have a gain.
        norm_shift: whether norms have a shift as well as a gain (LayerNorm; RMSNorm has none).
        norm_centred: whether norms without a shift subtract the mean all the same (LayerNorm without bias).
        cross: whether there is cross-attention to the encoder's output.
        norms: the norms of a block by name, in the order of its forward.
        n_left_out: how many of the first blocks lack the first of these norms.
        qk_norm: the width that one norm of the queries sees, and one of the keys: a head's ("K"), or all heads' ("HK").
        parallel: whether attention and MLP read the same stream, so that there is no `resid_mid`.
        n_experts: E, for each block with a mixture of experts; d_mlp is then the width of one expert.
        n_active_experts: how many experts compute a token.
        n_dense_layers: how many blocks have an MLP of width d_dense_mlp and no experts.
        d_dense_mlp: its width.
        router_bias: whether the router has biases.
        d_shared_mlp: the width of an expert beside the others that computes every token; 0 for none.
        shared_gate: whether the router also gates that expert.
        sinks: whether each head has one more logit in its softmax.
        capped_scores: whether scores are capped before the softmax, so that the kernel cannot keep them to itself.
        output_gate: whether the projection of the queries gives each head a gate of its output as well.
        delta: the DeltaNet that blocks have in place of attention.
        keys: whether keys and values have products of their own ("own"), values are keys before their norm ("keys"), or
            both are those of an earlier block ("lent").
        d_dense_beside: the width of an MLP with points beside the experts; 0 for none.
        d_per_layer: the width of the block's own embedding of a token, let in by a gate; 0 for none.
        n_scales: weights of norms that have no points, and factors.
        hybrid: whether only some blocks of the model have attention, so that every block has the point `mixer_out`.
        kinds: the blocks of each kind, where they differ in other ways than above; the stack's sizes are then the sum
            of n_layers and the sizes of blocks with attention.
    """

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_mlp: int
    name: str = ""
    gated: bool = False
    d_value: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    d_rope: int = 0
    rotary: bool = False
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    norm_gain: bool = True
    norm_shift: bool = True
    norm_centred: bool = False
    cross: bool = False
    norms: tuple[str, ...] = ("ln1", "ln2")
    n_left_out: int = 0
    qk_norm: Literal["", "K", "HK"] = ""
    parallel: bool = False
    n_experts: int = 0
    n_active_experts: int = 0
    n_dense_layers: int = 0
    d_dense_mlp: int = 0
    router_bias: bool = False
    d_shared_mlp: int = 0
    shared_gate: bool = False
    sinks: bool = False
    capped_scores: bool = False
    output_gate: bool = False
    delta: DeltaShape | None = None
    keys: Literal["own", "keys", "lent"] = "own"
    d_dense_beside: int = 0
    d_per_layer: int = 0
    n_scales: int = 0
    hybrid: bool = False
    kinds: tuple["StackShape", ...] = ()


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model.

    Attributes:
        family: model_type in its config.json.
        stacks: one, or encoder and decoder.
        d_vocab: V.
        n_ctx: the longest input that the model supports.
        outside: parameters outside the blocks by part: embeddings, norms, head; 0 for a head tied to the embedding.
        embedding_sums: vectors [D] added to a token's embedding, or multiplied with it.
        outer_norms: norms outside the blocks that a forward computes for each token.
        head_products: weights that each (target) token's output is multiplied with to give logits.
        logits: values stored per token for the logits: V, or 2 V where adding a bias makes a copy; 0 without a head.
        last_norms: names of the points of the norms after the last block; without a scale if there are no outer norms.
        cached: whether generation keeps keys and values of earlier tokens.
    """

    family: str
    stacks: tuple[StackShape, ...]
    d_vocab: int
    n_ctx: int
    outside: Mapping[str, int]
    embedding_sums: int
    outer_norms: int
    head_products: int
    logits: int
    last_norms: tuple[str, ...] = ()
    cached: bool = True

    @property
    def d_model(self) -> int:
        """D."""
        return self.stacks[-1].d_model


def equal_blocks(stack: StackShape) -> tuple[StackShape, ...]:
    """The stack as stacks of blocks that are all alike: its kinds, or those without a first norm, the rest, the dense.

    Which layers they are makes no difference to what is counted.
    """
    if stack.kinds:
        return stack.kinds
    short, dense = stack.n_left_out, stack.n_dense_layers
    alike = replace(stack, n_layers=stack.n_layers - short - dense, n_left_out=0, n_dense_layers=0, d_dense_mlp=0)
    no_experts = {"n_experts": 0, "n_active_experts": 0, "router_bias": False, "d_shared_mlp": 0, "shared_gate": False}
    parts = (
        replace(alike, n_layers=short, norms=stack.norms[1:]),
        alike,
        replace(alike, n_layers=dense, d_mlp=stack.d_dense_mlp, **no_experts),
    )
    return tuple(part for part in parts if part.n_layers)


def equal_stacks(shape: ModelShape) -> list[StackShape]:
    """`equal_blocks` of each stack."""
    return [part for stack in shape.stacks for part in equal_blocks(stack)]


def stack_shape(cfg: Any, **changes: Any) -> StackShape:
    """The stack that a config's sizes describe (n_kv_heads, where it has any), with other fields as given."""
    fields = ("n_layers", "d_model", "n_heads", "d_head", "d_mlp")
    heads = {"n_kv_heads": getattr(cfg, "n_kv_heads", cfg.n_heads)}
    return StackShape(**heads | {field: getattr(cfg, field) for field in fields} | changes)


def decoder_shape(
    family: str, stack: StackShape, d_vocab: int, n_ctx: int, tied: bool, head_bias: bool = False
) -> ModelShape:
    """The shape of a decoder with a final norm; a position table [n_ctx, D] is added unless positions are rotations.

    Args:
        family: model_type in its config.json.
        stack: its blocks.
        d_vocab: V.
        n_ctx: the longest input that the model supports.
        tied: whether the head is the token embedding.
        head_bias: whether the head has a bias.
    """
    table = d_vocab * stack.d_model
    outside = {
        "token embedding": table,
        "position embedding": n_ctx * stack.d_model,
        "final norm": (stack.norm_gain + stack.norm_shift) * stack.d_model,
        "head": (0 if tied else table) + (d_vocab if head_bias else 0),
    }
    if stack.rotary:
        del outside["position embedding"]
    return ModelShape(
        family,
        (stack,),
        d_vocab,
        n_ctx,
        outside,
        embedding_sums=0 if stack.rotary else 1,
        outer_norms=1,
        head_products=table,
        logits=2 * d_vocab if head_bias else d_vocab,
        last_norms=("ln_final",),
    )
