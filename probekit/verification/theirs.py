"""Where `transformers` shows our points, family by family: the module, and what of its call is the tensor.

What is not here `transformers` does not compute as such: scales of norms, scores, heads' results, rotated queries.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from probekit.models.base import LanguageModel

LOGITS = "logits"  # among the names of points: the output of the model


class Shown(NamedTuple):
    """Where a module of transformers shows one of our points.

    Attributes:
        module: path of the module; {layer} stands for the layer.
        take: (arguments of its forward, what it returned) -> the tensor [1, ...].
    """

    module: str
    take: Callable[[tuple, Any], Tensor]


class Known(NamedTuple):
    """How transformers knows a family: the names of its two classes, and where our points are."""

    config: str
    model: str
    shows: Mapping[str, Shown]


def _input(args: tuple, _: Any) -> Tensor:
    return args[0]


def _output(_: tuple, output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def _second(_: tuple, output: Any) -> Tensor:
    return output[1]


def _table(_: tuple, output: Any) -> Tensor:
    """Rows of a table of positions, which may lack the axis of the batch."""
    return output if output.dim() == 3 else output[None]


def _third(i: int) -> Callable[[tuple, Any], Tensor]:
    return lambda _, output: output.chunk(3, -1)[i]


def _inside(path: str, places: Mapping[str, tuple[str, Callable[[tuple, Any], Tensor]]]) -> dict[str, Shown]:
    """Points whose modules are inside the module at `path`."""
    return {point: Shown(f"{path}.{module}".rstrip("."), take) for point, (module, take) in places.items()}


GPT2 = (
    {
        "embed": Shown("transformer.wte", _output),
        "pos_embed": Shown("transformer.wpe", _output),
        "ln_final": Shown("transformer.ln_f", _output),
        LOGITS: Shown("lm_head", _output),
    }
    | {which: Shown("transformer.h.{layer}.attn.c_attn", _third(i)) for i, which in enumerate("qkv")}
    | _inside(
        "transformer.h.{layer}",
        {
            "resid_pre": ("ln_1", _input),
            "ln1_normalized": ("ln_1", _output),
            "attn_pattern": ("attn", _second),
            "z": ("attn.c_proj", _input),
            "attn_out": ("attn", _output),
            "resid_mid": ("ln_2", _input),
            "ln2_normalized": ("ln_2", _output),
            "mlp_pre": ("mlp.c_fc", _output),
            "mlp_post": ("mlp.c_proj", _input),
            "mlp_out": ("mlp", _output),
            "resid_post": ("", _output),
        },
    )
)
LLAMA = {
    "embed": Shown("model.embed_tokens", _output),
    "ln_final": Shown("model.norm", _output),
    LOGITS: Shown("lm_head", _output),
} | _inside(
    "model.layers.{layer}",
    {
        "resid_pre": ("input_layernorm", _input),
        "ln1_normalized": ("input_layernorm", _output),
        "q": ("self_attn.q_proj", _output),
        "k": ("self_attn.k_proj", _output),
        "v": ("self_attn.v_proj", _output),
        "attn_pattern": ("self_attn", _second),
        "z": ("self_attn.o_proj", _input),
        "attn_out": ("self_attn", _output),
        "resid_mid": ("post_attention_layernorm", _input),
        "ln2_normalized": ("post_attention_layernorm", _output),
        "mlp_pre": ("mlp.gate_proj", _output),
        "mlp_pre_linear": ("mlp.up_proj", _output),
        "mlp_post": ("mlp.down_proj", _input),
        "mlp_out": ("mlp", _output),
        "resid_post": ("", _output),
    },
)
BERT_BODY = {
    "embed": Shown("embeddings.word_embeddings", _output),
    "pos_embed": Shown("embeddings.position_embeddings", _output),
    "token_type_embed": Shown("embeddings.token_type_embeddings", _output),
    "ln_embed": Shown("embeddings.LayerNorm", _output),
} | _inside(
    "encoder.layer.{layer}",
    {
        "resid_pre": ("", _input),
        "q": ("attention.self.query", _output),
        "k": ("attention.self.key", _output),
        "v": ("attention.self.value", _output),
        "attn_pattern": ("attention.self", _second),
        "z": ("attention.output.dense", _input),
        "attn_out": ("attention.output.dense", _output),
        "resid_mid": ("attention.output.LayerNorm", _input),
        "ln1_normalized": ("attention.output.LayerNorm", _output),
        "mlp_pre": ("intermediate.dense", _output),
        "mlp_post": ("output.dense", _input),
        "mlp_out": ("output.dense", _output),
        "resid_post": ("output.LayerNorm", _input),
        "ln2_normalized": ("output.LayerNorm", _output),
    },
)
BERT_HEAD = {
    "head_ln": Shown("cls.predictions.transform.LayerNorm", _output),
    LOGITS: Shown("cls.predictions", _output),
}
BERT = {point: Shown(f"bert.{module}", take) for point, (module, take) in BERT_BODY.items()} | BERT_HEAD
_MARIAN_BLOCK = {
    "q": ("self_attn.q_proj", _output),
    "k": ("self_attn.k_proj", _output),
    "v": ("self_attn.v_proj", _output),
    "attn_pattern": ("self_attn", _second),
    "z": ("self_attn.out_proj", _input),
    "attn_out": ("self_attn", _output),
    "resid_pre": ("", _input),
    "resid_mid": ("self_attn_layer_norm", _input),
    "ln1_normalized": ("self_attn_layer_norm", _output),
    "mlp_pre": ("fc1", _output),
    "mlp_post": ("fc2", _input),
    "mlp_out": ("fc2", _output),
    "resid_post": ("final_layer_norm", _input),
}
_MARIAN_CROSS = {
    "cross_q": ("encoder_attn.q_proj", _output),
    "cross_k": ("encoder_attn.k_proj", _output),
    "cross_v": ("encoder_attn.v_proj", _output),
    "cross_attn_pattern": ("encoder_attn", _second),
    "cross_z": ("encoder_attn.out_proj", _input),
    "cross_attn_out": ("encoder_attn", _output),
    "resid_mid_cross": ("encoder_attn_layer_norm", _input),
    "ln2_normalized": ("encoder_attn_layer_norm", _output),
    "ln3_normalized": ("final_layer_norm", _output),
}


def _stack(stack: str, block: Mapping[str, tuple[str, Callable[[tuple, Any], Tensor]]]) -> dict[str, Shown]:
    shown = _inside(f"model.{stack}.layers.{{layer}}", block) | _inside(
        f"model.{stack}", {"pos_embed": ("embed_positions", _table)}
    )
    return {f"{stack}.{point}": where for point, where in shown.items()}


MARIAN = (
    _stack("encoder", _MARIAN_BLOCK | {"ln2_normalized": ("final_layer_norm", _output)})
    | _stack("decoder", _MARIAN_BLOCK | _MARIAN_CROSS)
    | {LOGITS: Shown("", lambda _, output: output.logits)}
)
KNOWN = {  # by model_type; the classes are named, so never remote code
    "gpt2": Known("GPT2Config", "GPT2LMHeadModel", GPT2),
    "llama": Known("LlamaConfig", "LlamaForCausalLM", LLAMA),
    "mistral": Known("MistralConfig", "MistralForCausalLM", LLAMA),
    "qwen2": Known("Qwen2Config", "Qwen2ForCausalLM", LLAMA),
    "bert": Known("BertConfig", "BertForPreTraining", BERT),
    "marian": Known("MarianConfig", "MarianMTModel", MARIAN),
}


def known(model: LanguageModel) -> Known | None:
    """How transformers knows this model; None where it does not."""
    found = KNOWN.get(model.cfg.to_hf().get("model_type"))
    if found is not None and not getattr(model.cfg, "mlm_head", True):
        return Known(found.config, "BertModel", BERT_BODY)
    return found
