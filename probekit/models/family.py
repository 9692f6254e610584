"""A model family: its config and model, its names in Hugging Face files, its sizes, and its points in transformers.

Each family's file ends with one `Family`, called FAMILY; `families/__init__.py` lists those files.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from probekit.models.base import LanguageModel
from probekit.models.shapes import ModelShape

LOGITS = "logits"  # the model's output, listed among the names of points


class HfTensor(NamedTuple):
    """Where a Hugging Face file holds a weight.

    Attributes:
        name: the tensor.
        transposed: whether it is stored as [in, out] (their Conv1D).
        rows: which rows, where a tensor holds several weights, one below the other or by turns (their fused
            projections); None for all rows. Rows are those of [out, in].
        entry: which entry along the first axis, where a tensor holds one weight of each expert; None for no such axis.
        layout: einops' pattern from the file to our weight, where the heads have an axis of their own there, called h:
            "h d k -> (h k) d"; "" for the same axes.
        n_heads: the size of that axis; 0 without a layout.
    """

    name: str
    transposed: bool = False
    rows: slice | None = None
    entry: int | None = None
    layout: str = ""
    n_heads: int = 0


class HfPoint(NamedTuple):
    """Where a module of transformers computes one of our points.

    Attributes:
        module: path of the module, with {layer} for the layer; or one path for each layer.
        take: (arguments of its forward, returned value) -> the tensor [1, ...].
    """

    module: str | tuple[str, ...]
    take: Callable[[tuple, Any], Tensor]

    def path(self, layer: int | None) -> str:
        """The path of the module in a layer; None for a point outside the layers."""
        return self.module.format(layer=layer) if isinstance(self.module, str) else self.module[layer or 0]


class HfModel(NamedTuple):
    """The two classes of transformers for a family, by name, and where they compute our points.

    Points that transformers does not compute are left out: scales of norms, scores, heads' results, rotated queries.

    Attributes:
        config: name of the config class.
        model: name of the model class.
        points: short name -> where it is computed.
        options: more arguments for either class.
        first_position: the position id of a text's first token; 0 leaves positions to the model.
    """

    config: str
    model: str
    points: Mapping[str, HfPoint]
    options: Mapping[str, Any] = MappingProxyType({})
    first_position: int = 0


@dataclass(frozen=True)
class Family:
    """A family of models.

    Attributes:
        model_types: the values of `model_type` in config.json that mean this family.
        config: the config class, with `from_hf` and `to_hf`.
        model: the model class, made from a config, with `init_weights`.
        shape: config -> the sizes to count with.
        modules: config -> our modules and single weights by their names in a Hugging Face file, with {} for the numbers
            of layer and expert. Several of our weights in one tensor lie in it one below the other. A name without {}
            for the expert is that of a tensor with those of all experts, [n_experts, ...].
        fused: those whose names differ where the experts of a layer share tensors, as `transformers` 5 keeps them in
            memory; published files have a tensor for each expert.
        hf_prefix: prefix of the names in the file of a model with a head; the file of a bare model lacks it.
        transposed: our modules whose weights are stored as [in, out].
        by_turns: our modules whose rows alternate in one tensor, in place of lying one below the other.
        layouts: our weights whose heads have an axis of their own in a file -> einops' pattern from there to ours.
        twin: (config, `hf_names`) -> the classes of transformers, and where they compute our points; None if it has
            none.
        copies: config -> names of copies that a file may hold, besides that of a tied head -> the name of the original;
            None if the model does not use the tensor.
        hf_buffers: a regular expression for names in a file that are not weights.
        hf_renamed: another name of a weight, in old files or in `transformers` itself -> its name in `hf_names`.
        hf_parts: (config, names in a file) -> the config of what the file holds.
        loads: what people call the models that it loads, for tables: "Llama, Mistral, Qwen2".
        refused: what it refuses, for the page of models: "longrope".
        hub_examples: names of published models that it loads.
        how_to: where the Hub has no such models as safetensors, a link in docs/ to how a folder is made.
    """

    model_types: tuple[str, ...]
    config: Any
    model: type[LanguageModel]
    shape: Callable[[Any], ModelShape]
    modules: Callable[[Any], Mapping[str, str]]
    hf_prefix: str
    transposed: Collection[str] = ()
    by_turns: Collection[str] = ()
    layouts: Mapping[str, str] = field(default_factory=dict)
    fused: Mapping[str, str] = field(default_factory=dict)
    twin: Callable[[Any, Mapping[str, HfTensor]], HfModel | None] = lambda cfg, names: None
    copies: Callable[[Any], Mapping[str, str | None]] = lambda cfg: {}
    hf_buffers: str = "(?!)"
    hf_renamed: Callable[[str], str] = lambda name: name
    hf_parts: Callable[[Any, Collection[str]], Any] = lambda cfg, names: cfg
    loads: str = ""
    refused: str = ""
    hub_examples: tuple[str, ...] = ()
    how_to: str = ""

    def hf_names(self, cfg: Any, given: Collection[str] = ()) -> dict[str, HfTensor]:
        """Our name of every weight of the model with this config -> where a Hugging Face file holds it.

        Args:
            cfg: the config.
            given: names of the file's tensors, which say whether its experts share them; without, it is as published.
        """
        modules = {**self.modules(cfg), **(self.fused if any(map(_FUSED.search, given)) else {})}
        with torch.device("meta"):
            weights = self.model(cfg).state_dict()
        names: dict[str, HfTensor] = {}
        sharing: dict[tuple[str, int | None], list[str]] = {}
        alternating: set[str] = set()
        for ours in weights:
            pattern, numbers = _NUMBER.sub("{}", ours), _NUMBER.findall(ours)
            module, _, part = pattern.rpartition(".")
            theirs = modules.get(pattern) or f"{modules[module]}.{part}"
            entry = int(numbers[-1]) if len(numbers) > theirs.count("{}") else None
            transposed = part == "weight" and module in self.transposed
            names[ours] = HfTensor(theirs.format(*numbers), transposed, entry=entry)
            if pattern in self.layouts:
                names[ours] = names[ours]._replace(layout=self.layouts[pattern], n_heads=cfg.n_heads)
            sharing.setdefault((names[ours].name, entry), []).append(ours)
            if module in self.by_turns:
                alternating.add(ours)
        for several in sharing.values():
            end = 0
            for i, ours in enumerate(several) if len(several) > 1 else ():
                start, end = end, end + len(weights[ours])
                rows = slice(i, None, len(several)) if ours in alternating else slice(start, end)
                names[ours] = names[ours]._replace(rows=rows)
        return names

    def hf_ties(self, cfg: Any) -> dict[str, str | None]:
        """Names of copies that a file may hold -> the name of the original; None if the model does not use it."""
        modules = self.modules(cfg)
        ties: dict[str, str | None] = {}
        if "unembed" in modules and cfg.tie_embeddings:
            ties[f"{modules['unembed']}.weight"] = f"{modules['embed']}.weight"
        return ties | dict(self.copies(cfg))

    def hf_model(self, cfg: Any) -> HfModel | None:
        """The classes of transformers for this config, and where they compute our points; None if it has none."""
        return self.twin(cfg, self.hf_names(cfg))


_FUSED = re.compile(r"\.experts\.(gate_up_proj|down_proj)$")  # of all experts of a layer
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")  # of a layer or an expert, in a name


def parts_by_names(**starts: str | tuple[str, ...]) -> Callable[[Any, Collection[str]], Any]:
    """The `hf_parts` of a family whose files may lack parts: flag of the config -> how names of its weights start."""
    return lambda cfg, names: replace(
        cfg, **{part: any(name.startswith(start) for name in names) for part, start in starts.items()}
    )


def with_head_bias(cfg: Any, names: Collection[str]) -> Any:
    """The config for a file with these names: the head has a bias if config.json says so, or the file has one."""
    return replace(cfg, head_bias=cfg.head_bias or "lm_head.bias" in names)


def module_input(args: tuple, _: Any) -> Tensor:
    """The first argument of the module."""
    return args[0]


def module_output(_: tuple, output: Any) -> Tensor:
    """The output of the module, or the first of several."""
    return output[0] if isinstance(output, tuple) else output


def second_output(_: tuple, output: Any) -> Tensor:
    """The second output: transformers' attention modules return the pattern there."""
    return output[1]


def equal_part(i: int, n: int) -> Callable[[tuple, Any], Tensor]:
    """What takes the i-th of n equal parts of a module's output."""
    return lambda _, output: output.chunk(n, -1)[i]


def weight_points(names: Mapping[str, HfTensor], inputs: Mapping[str, str], headless: str = "") -> dict[str, HfPoint]:
    """Where transformers computes our points, from where a file holds the weights around them.

    A norm computes its `_normalized`, and one after a sublayer the sublayer's output; the projections compute q, k, v,
    mlp_pre and attn_out; the module that holds those of the queries returns the pattern.

    Args:
        names: those of `Family.hf_names`.
        inputs: point -> our module of the block whose input it is: where the stream passes a norm.
        headless: a prefix of the names that the class of the model lacks.
    """
    points: dict[str, HfPoint] = {}
    is_gated = any(name.endswith(".mlp.gate.weight") for name in names)
    for ours, place in names.items():
        found = re.fullmatch(r"(encoder\.|decoder\.|)(blocks\.\d+\.|)(cross_|)(.*)\.weight", ours)
        if found is None:
            continue
        stack, block, cross, module = found.groups()
        path = place.name.removesuffix(".weight").removeprefix(headless)
        if block:
            path = _NUMBER.sub("{layer}", path, count=1)
            layer = path.partition("{layer}")[0] + "{layer}"
            points.setdefault(f"{stack}resid_pre", HfPoint(layer, module_input))
            points.setdefault(f"{stack}resid_post", HfPoint(layer, module_output))
        take = module_output if place.rows is None else _rows_of_output(place.rows)
        takes = dict.fromkeys(_points_of(module, is_gated), take)
        if module in ("attn.q", "attn.qkv"):
            points[f"{stack}{cross}attn_pattern"] = HfPoint(path.rpartition(".")[0], second_output)
        if module in _INPUTS:
            takes[_INPUTS[module]] = module_input
        takes |= {point: module_input for point, of in inputs.items() if block and of == module}
        points |= {f"{stack}{cross}{point}": HfPoint(path, each) for point, each in takes.items()}
    return points


def _rows_of_output(rows: slice) -> Callable[[tuple, Any], Tensor]:
    return lambda _, output: output[..., rows]


_INPUTS = {"attn.out": "z", "mlp.down": "mlp_post"}  # our module -> the point that is its input
_OUTPUTS = {  # our module -> the points that are its output
    **{each: (each,) for each in ("embed", "pos_embed", "token_type_embed", "ln_embed", "ln_final")},
    "head.ln": ("head_ln",),
    "attn.q_latent": ("q_latent",),
    "attn.kv_latent": ("kv_latent",),
    "attn.q": ("q",),
    "attn.k": ("k",),
    "attn.v": ("v",),
    "attn.q_norm": ("q_norm",),
    "attn.k_norm": ("k_norm",),
    "attn.out": ("attn_out",),
    "ln1_post": ("ln1_post_normalized", "attn_out"),
    "ln2_post": ("ln2_post_normalized", "mlp_out"),
    "mlp.gate": ("mlp_pre",),
    "mlp.down": ("mlp_out",),
}


def _points_of(module: str, is_gated: bool) -> tuple[str, ...]:
    if module == "mlp.up":
        return ("mlp_pre_linear" if is_gated else "mlp_pre",)
    if re.fullmatch(r"ln\d", module):
        return (f"{module}_normalized",)
    return _OUTPUTS.get(module, ())


def decoder_twin(name: str, points: Mapping[str, HfPoint]) -> HfModel:
    """The classes of transformers for a decoder whose head is lm_head; `name` begins those of both."""
    logits = {LOGITS: HfPoint("lm_head", module_output)}
    return HfModel(f"{name}Config", f"{name}ForCausalLM", {**points, **logits})


def points_inside(path: str, points: Mapping[str, tuple[str, Callable[[tuple, Any], Tensor]]]) -> dict[str, HfPoint]:
    """Points whose modules are inside the module at `path`; "" is that module itself."""
    return {point: HfPoint(f"{path}.{module}".rstrip("."), take) for point, (module, take) in points.items()}
