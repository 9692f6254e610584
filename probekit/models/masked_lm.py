"""What the encoders share: the loop over their blocks, the head that predicts masked tokens, and files of either.

Axes: B batch, L position, D d_model, V vocab.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from probekit.errors import UsageError
from probekit.hooks import HookPoint
from probekit.models.base import LanguageModel, stopped
from probekit.models.config_fields import Unimplemented
from probekit.models.family import LOGITS, HfModel, HfPoint, HfTensor, module_output, weight_points
from probekit.models.layers import Embedding, LayerNorm, Linear, Mask, PostNormBlock, linear
from probekit.models.shapes import ModelShape, stack_shape
from probekit.text import listed


class MLMHead(nn.Module):
    """The product of ln(act(x W + b)) with each token's embedding, plus a bias for each token unless `d_vocab` is 0."""

    def __init__(self, dense: Linear, activation: str, ln: nn.Module, d_vocab: int):
        super().__init__()
        self.activation = activation
        self.dense = dense
        self.ln: Any = ln
        self.bias = nn.Parameter(torch.empty(d_vocab)) if d_vocab else None

    def forward(self, x_BLD: Tensor, embedding_VD: Tensor) -> Tensor:
        return linear(self.transform(x_BLD), embedding_VD, self.bias)

    def transform(self, x_BLD: Tensor) -> Tensor:
        """ln(act(x W + b)), [B, L, D]."""
        return self.ln(self.dense.activated(x_BLD, self.activation))

    @property
    def hooked(self) -> bool:
        """True if a hook is attached to a point of the head."""
        return self.ln.hook_scale.hooked or self.ln.hook_normalized.hooked


class MaskedLM(LanguageModel):
    """An encoder, with or without a head for masked tokens: a checkpoint below the head has none.

    Its weights are unset until `init_weights` or a checkpoint fills them.

    Attributes:
        embed: the token embedding, which is also the head's matrix unless there is `unembed`.
        head: None without a head.
        unembed: the head's own matrix, or None.
    """

    causal = False
    embed: Embedding
    hook_embed: HookPoint
    blocks: nn.ModuleList
    head: Any
    unembed: Embedding | None

    def __init__(self, cfg: Any):
        super().__init__()
        self.cfg = cfg
        self.embed = Embedding(cfg.d_vocab, cfg.d_model)

    def forward(
        self,
        tokens: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        stop_at_layer: int | None = None,
        return_logits: bool = True,
    ) -> Tensor:
        """The masked-token head's logits [B, L, V] of tokens [B, L].

        Args:
            tokens: int ids [B, L].
            position_ids: [B, L]; by default counted from the mask, so padding on either side changes nothing.
            attention_mask: [B, L], true at real tokens; or [B, L, M], true where L may attend to M (used unchanged,
                except for a sliding window). None: no padding. With position_ids and a mask [B, L, M], L may exceed
                the context: several texts in one row.
            stop_at_layer: run the blocks before this one and return its input, `resid_pre`, [B, L, D]; n_layers gives
                the last block's output.
            return_logits: False skips the head and returns the encoder's output, [B, L, D].

        Raises:
            UsageError: an invalid shape, id, length or layer; or the checkpoint has no head to give logits.
        """
        return self.encoded(self.entered, tokens, position_ids, attention_mask, stop_at_layer, return_logits)

    def encoded(
        self,
        enter: Callable[[Tensor, Tensor], Tensor],
        tokens: Tensor,
        position_ids: Tensor | None,
        attention_mask: Tensor | None,
        stop_at_layer: int | None,
        return_logits: bool,
    ) -> Tensor:
        """The forward, in which `enter` gives the input of the first block, of tokens and positions."""
        tokens = self.check_tokens(tokens, position_ids, attention_mask)
        stop = self.check_stop(stop_at_layer, self.cfg.n_layers)
        mask, position_ids = self.mask_and_positions(tokens, attention_mask, position_ids)
        reads = self.reads(tokens, position_ids, mask, stop)
        seen = self.seen_by_layer(mask, position_ids)
        start, resid_BLD = self.started(enter(tokens, position_ids))
        for i, block in enumerate(self.blocks[start:stop], start):
            resid_BLD = block(resid_BLD, *seen[i], reads[i])
        if stop_at_layer is not None:
            return stopped(self.blocks, resid_BLD, stop)
        output_BLD = self.left(resid_BLD)
        if return_logits:
            return self.logits(output_BLD)
        if self.head is not None and self.head.hooked:  # its points fire all the same
            self.head.transform(output_BLD)
        return output_BLD

    def entered(self, tokens: Tensor, position_ids: Tensor) -> Tensor:
        """The input of the first block, [B, L, D]."""
        raise NotImplementedError

    def seen_by_layer(self, mask: Mask, position_ids: Tensor) -> list[tuple]:
        """What each block takes besides the stream: the mask."""
        return [(mask,)] * self.cfg.n_layers

    def left(self, resid_BLD: Tensor) -> Tensor:
        """The encoder's output, from that of the last block; a post-norm block has its norm."""
        return resid_BLD

    def logits(self, output_BLD: Tensor) -> Tensor:
        """The masked-token head's logits [B, L, V] of the model's output without it.

        Raises:
            UsageError: the checkpoint has no such head.
        """
        if self.head is None:
            raise UsageError(f"the checkpoint of {self.name} has no head for masked tokens; set return_logits=False")
        return self.head(output_BLD, (self.unembed or self.embed).weight)

    @property
    def has_logits(self) -> bool:
        """False for a checkpoint without the head for masked tokens."""
        return self.head is not None


class SegmentedLM(MaskedLM):
    """An encoder of post-norm blocks over tokens, positions and segments; a config of it says whether it has a pooler.

    Attributes:
        pooler: a layer on the first token's output, or None.
    """

    output_point = "ln2_normalized"
    pooler: Linear | None

    def __init__(self, cfg: Any, n_positions: int, head_activation: str):
        super().__init__(cfg)
        self.pos_embed = Embedding(n_positions, cfg.d_model)
        self.token_type_embed = Embedding(cfg.n_segments, cfg.d_model)
        self.hook_embed = HookPoint("B L D")
        self.hook_pos_embed = HookPoint("B L D")
        self.hook_token_type_embed = HookPoint("B L D")
        self.ln_embed = LayerNorm(cfg.d_model, cfg.ln_eps)
        block = cfg.d_model, cfg.n_heads, cfg.d_mlp, cfg.activation, cfg.ln_eps, cfg.d_head
        self.blocks = nn.ModuleList(PostNormBlock(*block) for _ in range(cfg.n_layers))
        self.head = None
        if cfg.mlm_head:
            dense, ln = Linear(cfg.d_model, cfg.d_model), LayerNorm(cfg.d_model, cfg.ln_eps)
            self.head = MLMHead(dense, head_activation, ln, cfg.d_vocab)
        self.unembed = Embedding(cfg.d_vocab, cfg.d_model) if cfg.mlm_head and not cfg.tie_embeddings else None
        self.pooler = Linear(cfg.d_model, cfg.d_model) if cfg.pooler else None

    def forward(
        self,
        tokens: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        stop_at_layer: int | None = None,
        return_logits: bool = True,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """The masked-token head's logits [B, L, V] of tokens [B, L]; see `MaskedLM.forward`.

        Args:
            tokens: int ids [B, L].
            position_ids: [B, L], counted from 0.
            attention_mask: [B, L] or [B, L, M].
            stop_at_layer: run the blocks before this one and return its input.
            return_logits: False skips the head.
            token_type_ids: the segment of each token, int [B, L]; None means segment 0 everywhere.

        Raises:
            UsageError: as in `MaskedLM.forward`; or a segment that the model does not have.
        """
        enter = partial(self.entered, segments=token_type_ids)
        return self.encoded(enter, tokens, position_ids, attention_mask, stop_at_layer, return_logits)

    def entered(self, tokens: Tensor, position_ids: Tensor, segments: Tensor | None = None) -> Tensor:
        """The input of the first block, [B, L, D]."""
        segments = self.check_segments(tokens, segments)
        embed, pos_embed = self.hook_embed(self.embed(tokens)), self.hook_pos_embed(self.pos_embed(position_ids))
        return self.ln_embed(embed + pos_embed + self.hook_token_type_embed(self.token_type_embed(segments)))

    def check_segments(self, tokens: Tensor, segments: Tensor | None) -> Tensor:
        """The segment of each token, [B, L]; segment 0 if none are given.

        Raises:
            UsageError: another shape or type, or a segment that the model does not have.
        """
        if segments is None:
            return torch.zeros_like(tokens)
        if not isinstance(segments, Tensor) or segments.shape != tokens.shape or segments.is_floating_point():
            got = (
                f"{segments.dtype} {list(segments.shape)}" if isinstance(segments, Tensor) else type(segments).__name__
            )
            raise UsageError(f"token_type_ids are int64 {list(tokens.shape)}, like the tokens; got {got}")
        if segments.device.type == "cpu" and not 0 <= int(segments.min()) <= int(segments.max()) < self.cfg.n_segments:
            raise UsageError(
                f"token_type_ids lie in 0..{self.cfg.n_segments - 1}; got {int(segments.min())}..{int(segments.max())}"
            )
        return segments.to(tokens.device).long()


# Files of encoders.


def parts_named(
    hf: Mapping[str, Any], architectures: Mapping[str, tuple[bool, ...]], default: str, below: str
) -> tuple[bool, ...]:
    """Which parts the class named in config.json has.

    Args:
        hf: the fields of config.json.
        architectures: class -> which parts it has.
        default: the class if config.json names none.
        below: the model below the head of such a class, for the error: "model.bert".

    Raises:
        Unimplemented: another class, such as one with a head for classification.
    """
    named = hf.get("architectures") or [default]
    for name, parts in architectures.items():
        if named == [name]:
            return parts
    bare = next(iter(architectures))
    raise Unimplemented(
        f"architectures = {named!a:.80} is not implemented, only {listed(architectures)}; save the model "
        f"below the head as {bare} ({below}.save_pretrained)"
    )


def hf_renamed(name: str) -> str:
    """An old file's name -> today's; old norms have gamma and beta, as in TensorFlow."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def encoder_twin(
    name: str,
    cfg: Any,
    points: Mapping[str, HfPoint],
    logits: str,
    head_class: str = "ForMaskedLM",
    first_position: int = 0,
) -> HfModel | None:
    """The classes of transformers for an encoder, and where they compute our points.

    None if the heads' widths do not add up to d_model: transformers has no such heads.

    Args:
        name: how the names of the classes begin.
        cfg: its config.
        points: those below the head.
        logits: the path of the module that gives the logits.
        head_class: how the name of the class with the head ends.
        first_position: the position id of a text's first token.
    """
    if cfg.head_dim is not None:
        return None
    head = {LOGITS: HfPoint(logits, module_output)} if cfg.mlm_head else {}
    kind = head_class if cfg.mlm_head else "Model"
    return HfModel(f"{name}Config", name + kind, {**points, **head}, first_position=first_position)


def post_norm_points(cfg: Any, names: Mapping[str, HfTensor], prefix: str) -> dict[str, HfPoint]:
    """`weight_points` of post-norm blocks; a class without a head lacks the prefix."""
    return weight_points(names, {"resid_mid": "ln1", "resid_post": "ln2"}, "" if cfg.mlm_head else prefix)


def post_norm_shape(
    family: str, cfg: Any, tables: Mapping[str, int], heads: Mapping[str, int] = MappingProxyType({})
) -> ModelShape:
    """The sizes of an encoder of post-norm blocks, with or without a head for masked tokens.

    Args:
        family: model_type in its config.json.
        cfg: its config.
        tables: parameters of what is added to the token embedding.
        heads: parameters of its other heads.
    """
    D, V = cfg.d_model, cfg.d_vocab
    outside = {"token embedding": V * D, **tables, "embedding norm": 2 * D}
    if cfg.mlm_head:
        outside |= {"head": D * D + D + 2 * D + V + (0 if cfg.tie_embeddings else V * D)}
    return ModelShape(
        family,
        (stack_shape(cfg),),
        V,
        cfg.n_ctx,
        {**outside, **heads},
        embedding_sums=len(tables),
        outer_norms=2 if cfg.mlm_head else 1,
        head_products=D * D + V * D if cfg.mlm_head else 0,
        logits=V if cfg.mlm_head else 0,
        last_norms=("head_ln",) if cfg.mlm_head else (),
        cached=False,
    )


def pooler_shape(cfg: Any) -> dict[str, int]:
    """The parameters of a pooler, a layer on the first token's output."""
    return {"pooler": cfg.d_model * (cfg.d_model + 1)}
