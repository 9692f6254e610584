"""A model family: its config and model, its names in Hugging Face files, its sizes, and its points in transformers.

Each family's file ends with one `Family`, called FAMILY; `families/__init__.py` lists those files.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor

from probekit.models.base import LanguageModel
from probekit.models.shapes import ModelShape

LOGITS = "logits"  # the model's output, listed among the names of points


class HfTensor(NamedTuple):
    """Where a Hugging Face file holds a weight.

    Attributes:
        name: the tensor.
        transposed: whether it is stored as [in, out] (their Conv1D).
        rows: the first row and the one after the last, where a tensor holds several weights, one below the other (their
            fused projections); None for all rows. Rows are those of [out, in].
    """

    name: str
    transposed: bool = False
    rows: tuple[int, int] | None = None


def fused(name: str, rows: Mapping[str, int]) -> dict[str, HfTensor]:
    """Where a tensor holds several weights, one below the other.

    Args:
        name: the tensor.
        rows: our name of each weight -> how many rows it has, from the top.
    """
    ends = accumulate(rows.values())
    return {ours: HfTensor(name, rows=(end - n, end)) for (ours, n), end in zip(rows.items(), ends, strict=True)}


class HfPoint(NamedTuple):
    """Where a module of transformers computes one of our points.

    Attributes:
        module: path of the module, with {layer} for the layer.
        take: (arguments of its forward, returned value) -> the tensor [1, ...].
    """

    module: str
    take: Callable[[tuple, Any], Tensor]


class HfModel(NamedTuple):
    """The two classes of transformers for a family, by name, and where they compute our points.

    Points that transformers does not compute are left out: scales of norms, scores, heads' results, rotated queries.

    Attributes:
        config: name of the config class.
        model: name of the model class.
        points: short name -> where it is computed.
        options: more arguments for either class.
        slots: state dict -> its tensors, or views of them, by their names in a file.
        first_position: the position id of a text's first token; 0 leaves positions to the model.
        renamed: regular expressions for the beginning of names in a folder, where the class of the model has others.
    """

    config: str
    model: str
    points: Mapping[str, HfPoint]
    options: Mapping[str, Any] = MappingProxyType({})
    slots: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = lambda state: state
    first_position: int = 0
    renamed: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Family:
    """A family of models.

    Attributes:
        model_types: the values of `model_type` in config.json that mean this family.
        config: the config class, with `from_hf` and `to_hf`.
        model: the model class, made from a config, with `init_weights`.
        shape: config -> the sizes to count with.
        hf_names: config -> our name of every weight -> its name in a Hugging Face file.
        hf_prefix: prefix of the names in the file of a model with a head; the file of a bare model lacks it.
        hf_model: config -> the classes of transformers, and where they compute our points; None if it has none.
        hf_ties: config -> names of copies that a file may hold -> the name of the original; None if the model
            does not use the tensor.
        hf_buffers: a regular expression for names in a file that are not weights.
        hf_renamed: another name of a weight, in old files or in `transformers` itself -> its name in `hf_names`.
        hf_parts: (config, names in a file) -> the config of what the file holds.
        loads: what people call the models that it loads, for tables: "Llama, Mistral, Qwen2".
        refused: what it refuses, for the page of models: "longrope".
        hub_examples: names of published models that it loads.
    """

    model_types: tuple[str, ...]
    config: Any
    model: type[LanguageModel]
    shape: Callable[[Any], ModelShape]
    hf_names: Callable[[Any], Mapping[str, HfTensor]]
    hf_prefix: str
    hf_model: Callable[[Any], HfModel | None]
    hf_ties: Callable[[Any], Mapping[str, str | None]] = lambda cfg: {}
    hf_buffers: str = "(?!)"
    hf_renamed: Callable[[str], str] = lambda name: name
    hf_parts: Callable[[Any, Collection[str]], Any] = lambda cfg, names: cfg
    loads: str = ""
    refused: str = ""
    hub_examples: tuple[str, ...] = ()


def head_names(cfg: Any) -> dict[str, HfTensor]:
    """The weights of a head called `lm_head`: its own matrix unless that is tied, and its bias if it has one."""
    weight = {} if cfg.tie_embeddings else {"unembed.weight": HfTensor("lm_head.weight")}
    return weight | ({"unembed_bias": HfTensor("lm_head.bias")} if cfg.head_bias else {})


def with_head_bias(cfg: Any, names: Collection[str]) -> Any:
    """The config for a file with these names: the head has a bias if config.json says so, or the file has one."""
    return replace(cfg, head_bias=cfg.head_bias or "lm_head.bias" in names)


def module_input(args: tuple, _: Any) -> Tensor:
    """The first argument of the module."""
    return args[0]


def module_output(_: tuple, output: Any) -> Tensor:
    """The output of the module, or the first of several."""
    return output[0] if isinstance(output, tuple) else output


def output_part(weight: HfTensor) -> Callable[[tuple, Any], Tensor]:
    """What takes the part of a fused module's output that one of its weights computes."""
    return lambda args, output: output[..., slice(*(weight.rows or (None,)))]


def second_output(_: tuple, output: Any) -> Tensor:
    """The second output: transformers' attention modules return the pattern there."""
    return output[1]


def points_inside(path: str, points: Mapping[str, tuple[str, Callable[[tuple, Any], Tensor]]]) -> dict[str, HfPoint]:
    """Points whose modules are inside the module at `path`; "" is that module itself."""
    return {point: HfPoint(f"{path}.{module}".rstrip("."), take) for point, (module, take) in points.items()}
