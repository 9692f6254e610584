"""Where a class of transformers has its embedding, blocks, sublayers and final norm.

Paths are those of `named_modules()`: of the embedding, blocks and final norm within the base model, of sublayers within
a block. Blocks are found by structure, and the table names what structure does not show. `proof.py` has the last word.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from probekit.errors import DataError


@dataclass(frozen=True)
class Sublayers:
    """What was proved of one block, with paths of its modules.

    Attributes:
        attention: whether the block has attention; otherwise another sublayer mixes its tokens, or none.
        mixer: the module whose output attention, or what has its place, adds to the stream; None if there is none.
        mlp: the same of the MLP.
        mid: what reads the stream before the MLP; None in parallel blocks and in those with one sublayer.
        last: the norm that ends a post-norm block, in which `mid` is the norm before.
        mixer_scale: what the mixer's output is multiplied with before it is added.
        mlp_scale: the same of the MLP's.
    """

    attention: bool = False
    mixer: str | None = None
    mlp: str | None = None
    mid: str | None = None
    last: str | None = None
    mixer_scale: float = 1.0
    mlp_scale: float = 1.0

    @property
    def has_mid(self) -> bool:
        """Whether there is a stream between the two sublayers that can be read and replaced."""
        return self.mixer is not None and self.mid is not None

    @property
    def lacks_mixer(self) -> bool:
        """Whether the MLP adds to something else than the block reads, and what it is was not proved."""
        return self.mixer is None and self.mid is not None


@dataclass(frozen=True)
class ModuleLayout:
    """Where the points of a model are.

    Attributes:
        embed: path of the token embedding.
        blocks: path of the block of each layer; layers that share a block have the same path.
        sublayers: of each block.
        ln_final: path of the norm after the last block; None without one.
    """

    embed: str
    blocks: tuple[str, ...]
    sublayers: tuple[Sublayers, ...]
    ln_final: str | None

    @property
    def all_attend(self) -> bool:
        """Whether every block has attention."""
        return all(one.attention for one in self.sublayers)


@dataclass(frozen=True)
class Known:
    """What is known of a model_type: its sublayers' modules, as in `Sublayers`, and its list of blocks."""

    mixer: str
    mlp: str
    blocks: str | None = None


_SELF_ATTN = Known("self_attn", "mlp")
_GPT2_LIKE = Known("attn", "mlp")
_BERT_LIKE = Known("attention.output.dense", "output.dense")
_SANDWICH = Known("post_attention_layernorm", "post_feedforward_layernorm")  # norms of the sublayers' outputs

KNOWN = {
    "bloom": Known("self_attention.dense", "mlp.dense_4h_to_h"),  # both modules add the stream themselves
    "mpt": Known("attn", "ffn.down_proj"),
    "falcon": Known("self_attention", "mlp"),
    "opt": Known("self_attn", "fc2"),
    "xglm": Known("self_attn", "fc2"),
    "biogpt": Known("self_attn", "fc2"),
    "fnet": Known("fourier.self", "output.dense"),
    "albert": Known("albert_layers.0.attention.dense", "albert_layers.0.ffn_output", "encoder.albert_layer_groups"),
    **dict.fromkeys(("gptj", "codegen", "gpt_neo", "gpt_bigcode"), _GPT2_LIKE),
    **dict.fromkeys(("starcoder2", "cohere", "cohere2", "stablelm", "phi", "olmo", "persimmon"), _SELF_ATTN),
    **dict.fromkeys(("nemotron", "glm", "smollm3", "granite", "helium", "gemma", "seed_oss"), _SELF_ATTN),
    **dict.fromkeys(("gemma2", "gemma3_text", "vaultgemma", "olmo2", "olmo3"), _SANDWICH),
    **dict.fromkeys(("electra", "deberta", "deberta-v2", "camembert", "xlm-roberta", "ernie"), _BERT_LIKE),
}
# A module with one of these in its class's name mixes tokens by a recurrence or a convolution and is never called
# attention, whatever the attribute's name is: "linear attention" has neither scores nor a pattern.
RECURRENT = re.compile(
    "Linear(?:Attention|Attn)|Lightning|Delta|Mamba|RecurrentBlock|Rwkv|SSM|xLSTM|Conv1d|ShortConv|ConvLayer|Separable|Fourier|Rglru|KDA"
)
_ATTENTION = re.compile("Attention|Attn")
_BLOCKS = ("layers", "layer", "h", "blocks", "block")  # what classes call their list of blocks
_MLP = re.compile(r"(^|\.|_)(mlp|ffn?|ffw|feed_forward|feedforward|moe|fc2|block_sparse_moe)(_block)?$")


def find_blocks(base: nn.Module, model_type: str, n_layers: int) -> tuple[str, ...]:
    """The path of each block.

    Raises:
        DataError: the class has no list of blocks with this length, or several.
    """
    known = KNOWN.get(model_type)
    if known is not None and known.blocks is not None:
        n_shared = len(base.get_submodule(known.blocks))  # pyright: ignore[reportArgumentType]
        return tuple(f"{known.blocks}.{int(i / (n_layers / n_shared))}" for i in range(n_layers))
    lists = [
        name for name, module in base.named_modules() if isinstance(module, nn.ModuleList) and len(module) == n_layers
    ]
    outer = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists if other != name)]
    if len(outer) > 1:  # a list of something else may be as long by chance
        outer = [name for name in outer if name.rpartition(".")[2] in _BLOCKS] or outer
    if len(outer) != 1:
        found = f"{len(outer)} lists" if outer else "no list"
        raise DataError(
            f"{type(base).__name__} has {found} of {n_layers} blocks, and its layout is not known; "
            "take a model of another type, or add its list of blocks to KNOWN in probekit/models/adapter/layouts.py"
        )
    return tuple(f"{outer[0]}.{i}" for i in range(n_layers))


def find_embedding(base: Any) -> str:
    """The path of the token embedding.

    Raises:
        DataError: the class names none.
    """
    table = base.get_input_embeddings()
    for name, module in base.named_modules():
        if module is table:
            return name
    raise DataError(
        f"{type(base).__name__} has no token embedding that get_input_embeddings names; it cannot be wrapped"
    )


def attention_of(block: nn.Module) -> str | None:
    """The path of a block's attention; None if it has none."""
    for name, module in block.named_modules():
        kind = type(module).__name__
        if name and _ATTENTION.search(kind) and not RECURRENT.search(kind):
            return name
    return None


def has_recurrence(base: nn.Module) -> bool:
    """Whether some module carries a state along the text, as in Mamba: then texts cannot share a row."""
    return any(RECURRENT.search(type(module).__name__) for module in base.modules())


def candidates(paths: list[str], attention: str | None) -> Iterator[tuple[str, str]]:
    """Pairs of modules that may be what a block's mixer and its MLP add, the outermost first.

    Args:
        paths: modules of a block that return a tensor of the stream's shape, in the order in which they ran.
        attention: path of the attention; None where another sublayer has its place, such as a Mamba.
    """
    order = {path: i for i, path in enumerate(paths)}
    inside = [path for path in paths if attention and (path == attention or path.startswith(f"{attention}."))]
    outside = [path for path in paths if path not in inside]
    for first in by_depth(inside) + (outside if inside else by_depth(outside)):
        for second in sorted(outside, key=lambda path: (not _MLP.search(path), path.count("."), -order[path])):
            named = attention or follows_mlp(second, paths[order[first] + 1 :])
            if second != first and named and (first in inside or order[first] < order[second]):
                yield first, second


def by_depth(paths: list[str]) -> list[str]:
    """The outermost modules first."""
    return sorted(paths, key=lambda path: path.count("."))


def follows_mlp(path: str, paths: list[str]) -> bool:
    """Whether a module has the usual name of an MLP, or one before it has: norms of outputs have others."""
    return path in paths and any(_MLP.search(one) for one in paths[: paths.index(path) + 1])
