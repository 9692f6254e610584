"""Load the installed transformers' own class for a config, and wrap it. Remote code and pickles are never loaded.

A product with weights in 8 or 4 bits widens them to the type of the model, and rounds nothing else. bitsandbytes' own
8-bit product (LLM.int8, Dettmers et al. 2022) rounds the stream too, except in columns where a token of the batch
exceeds 6: one token's outlier changed its neighbours by 6e-4. Its 4-bit product has another kernel for a single token.
So both are replaced: a token's activations depend on its own text alone, as in other models.
"""

import copy
import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import nn

from probekit.errors import DataError, ProbekitError, UsageError
from probekit.models import kernels
from probekit.models.adapter.batching import is_causal, prove_batching
from probekit.models.adapter.config import AdapterConfig, field_of, read_sizes
from probekit.models.adapter.layouts import find_blocks
from probekit.models.adapter.model import AdaptedModel, device_of, quiet
from probekit.models.adapter.proof import layout_unproved, prove_layout
from probekit.models.config_fields import Unimplemented
from probekit.models.model_types import check_packages
from probekit.models.packaging import RENAMED, all_left_out, later_layers, of_further_heads, text_name, text_tensors
from probekit.models.quantized import FewBits, few_bits_of, in_full
from probekit.models.spread import widen
from probekit.models.weights import READABLE, TensorInFile, listed_weights, read_weight, stored_tensors, unfitting
from probekit.text import listed, printable

OTHER_INPUTS = ("vision_config", "audio_config", "image_size", "num_mel_bins", "feature_size", "num_channels")
# tensors that a file may hold and the class does not use: buffers of old versions
BUFFERS = ("inv_freq", "masked_bias", "attn.bias", "attention.bias", "position_ids", "pooler.dense.weight")
BUFFERS += ("pooler.dense.bias",)
# Text models without a class with a head; the complete ones multiply the last norm's output by lm_head.weight.
HEADLESS = ("glm4v_text", "glm_ocr_text", "hunyuan_vl_text")
QUANTIZED = ("Linear8bitLt", "Linear4bit")  # bitsandbytes' modules


@dataclass(frozen=True)
class HfSource:
    """What makes a model of transformers again: its class, config, and its weights' folder or seed.

    Attributes:
        model_class: the class.
        config: of transformers.
        folder: of the weights; None for random ones.
        seed: of the random weights.
        dtype: of the weights.
        options: more arguments of `from_pretrained`.
        made: the model itself, where it was made elsewhere.
        layout: of weights in few bits that are widened here, before the class gets them.
    """

    model_class: Any
    config: Any
    folder: Path | None
    seed: int
    dtype: torch.dtype
    options: Mapping[str, Any]
    made: Any = None
    layout: FewBits | None = None


def load_adapted(
    folder: Path,
    hf: Mapping[str, Any],
    *,
    device: torch.device,
    dtype: torch.dtype,
    seed: int | None = None,
    device_map: str | None = None,
    quantize: str | None = None,
    outside: tuple[str, ...] = (),
) -> AdaptedModel:
    """The model of a folder, or with random weights, as the installed transformers computes it.

    Args:
        folder: has config.json and the weights.
        hf: the fields of config.json, as `checked_fields` gives them.
        device: of the weights; on "meta" the model has no weights, and points that are not proved.
        dtype: of the weights.
        seed: of random weights; None loads the folder's.
        device_map: "auto" spreads the layers over all devices, by accelerate.
        quantize: "8bit" or "4bit", by bitsandbytes.
        outside: what the folder's files hold besides the text model that `hf` describes.

    Raises:
        UsageError: a package that an option needs is not installed; a model that does not fit the devices; weights that
            are quantized already.
        DataError: no class of text models for this config; weights that are missing, misshapen or pickled; a model that
            fails its proof.
    """
    check_packages(quantize, device_map)
    if quantize is not None and hf.get("quantization_config") is not None:
        raise UsageError("the weights are quantized already (quantization_config in config.json); leave out --quantize")
    with quiet():
        layout = _layout(hf)
        if layout is not None:
            hf = {name: value for name, value in hf.items() if name != "quantization_config"}
        config, classes = _classes(hf)
        options: dict[str, Any] = {} if device_map is None else {"device_map": device_map}
        options |= {"key_mapping": RENAMED} if outside else {}
        if quantize is not None:
            options["quantization_config"] = bits_config(quantize)
        home = None if seed is not None else folder
        source = HfSource(classes[0], config, home, seed or 0, dtype, options, layout=layout)
        if device.type == "meta":
            return _outline(source)
        model = _loaded(source, classes)
        if not widen_for_products(model) and quantize is not None:
            raise DataError(f"{type(model).__name__} has no weights that bitsandbytes quantizes; leave out --quantize")
        _check_placed(model)
        if seed is not None or (device_map is None and quantize is None):
            model = model.to(device)
        wrapped = prove_wrapped(model.eval(), replace(source, model_class=type(model)), quantize)
        names = stored_tensors(folder) if seed is None else ()
        wrapped.left_out = all_left_out(outside, names, wrapped.cfg.n_layers)
        return wrapped


def _check_placed(hf: Any) -> None:
    """Raise if layers are on the disk; a model that accelerate put on one device is as any other."""
    placed = set((getattr(hf, "hf_device_map", None) or {}).values())
    if "disk" in placed:
        raise UsageError(
            "the model does not fit the memory of the devices and the host, and is not run from the disk; "
            "take --dtype bf16, --quantize 8bit or 4bit, or a larger machine"
        )
    if len(placed) == 1 and not quantization_of(hf):
        del hf.hf_device_map


def prove_wrapped(hf: Any, source: HfSource, quantize: str | None = None) -> AdaptedModel:
    """A model of transformers with the points and batches that are proved.

    Raises:
        DataError: it fails its proof.
    """
    name = type(hf).__name__
    sizes = read_sizes(hf.config, name)
    rows = sizes.n_ctx - _rows_of_padding(hf.base_model)
    cfg = replace(sizes, n_ctx=rows, quantize=quantize or quantization_of(hf))
    try:
        with in_float32(hf):
            model = _proved(hf, cfg, source)
    except ProbekitError:
        raise
    except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError, NotImplementedError) as error:
        how = f"with weights in {cfg.quantize}" if cfg.quantize else "on token ids alone"
        raise DataError(f"{name} cannot be run {how}: {error_line(error)}; it cannot be wrapped") from None
    model.cfg = replace(cfg, batching=model.batching, attention=str(hf.config._attn_implementation))
    model.stays = bool(cfg.quantize or getattr(hf, "hf_device_map", None))
    return model.eval()


def _proved(hf: Any, cfg: AdapterConfig, source: HfSource) -> AdaptedModel:
    """The wrapper, with its points, and then its batches, proved; errors are those of the class, or DataError."""
    model = AdaptedModel(hf, cfg, prove_layout(hf.base_model, cfg, device_of(hf), next(hf.parameters()).dtype))
    # quantized and spread models have products of their own, and a user's own model keeps its code
    if not cfg.quantize and not getattr(hf, "hf_device_map", None) and source.made is None:
        _use_kernels(hf)
    model.hf_source = source
    model.longest_row = cfg.n_ctx  # tables by place in the row end there
    model.causal = is_causal(model)
    model.batching, model.form = prove_batching(model)
    return model


@contextmanager
def in_float32(hf: nn.Module) -> Iterator[None]:
    """Within the context a model of narrow weights computes in float32, so that its proof is as sharp as any other's.

    Weights that are quantized, or on several devices, stay as they are.
    """
    stays = getattr(hf, "hf_device_map", None) or getattr(hf, "quantization_method", None)
    if stays or not any(weight.dtype in (torch.bfloat16, torch.float16) for weight in hf.parameters()):
        yield
        return
    undo = widen(hf, torch.float32)
    try:
        yield
    finally:
        undo()


def _rows_of_padding(base: nn.Module) -> int:
    """How many rows the position table has before that of a text's first token: those for padding, as in RoBERTa."""
    for name, module in base.named_modules():
        if name.endswith("position_embeddings"):
            padding = getattr(module, "padding_idx", None)
            return padding + 1 if isinstance(padding, int) else 0
    return 0


def _use_kernels(hf: Any) -> None:
    """Compute products with weights through `kernels.linear`, which is up to twice as fast on a CPU."""
    for module in hf.modules():
        if type(module) is nn.Linear:
            module.forward = partial(_product, module)


def _product(module: nn.Linear, input: torch.Tensor) -> torch.Tensor:
    return kernels.linear(input, module.weight, module.bias)


def bits_config(quantize: str) -> Any:
    """Transformers' options for "8bit" or "4bit": an integer or a 4-bit normal float for each weight."""
    from transformers import BitsAndBytesConfig

    bits = {"load_in_8bit": quantize == "8bit", "load_in_4bit": quantize == "4bit"}
    return BitsAndBytesConfig(**bits, bnb_4bit_quant_type="nf4")


def widen_for_products(hf: nn.Module) -> bool:
    """Replace bitsandbytes' products; whether there were any."""
    modules: list[Any] = [module for module in hf.modules() if type(module).__name__ in QUANTIZED]
    for module in modules:
        name = "_old_forward" if hasattr(module, "_old_forward") else "forward"  # accelerate wraps the latter
        setattr(module, name, partial(_wide_product, module))
    return bool(modules)


def quantization_of(hf: Any) -> str | None:
    """What quantized the weights of a model of transformers ("bitsandbytes", "gptq"); None for weights in full."""
    method = getattr(hf, "quantization_method", None)
    return None if method is None else str(getattr(method, "value", method))


def _wide_product(module: Any, x: torch.Tensor) -> torch.Tensor:
    from transformers.integrations.bitsandbytes import dequantize_bnb_weight

    wide = dequantize_bnb_weight(module.weight, getattr(module, "state", None))
    bias = None if module.bias is None else module.bias.to(x.dtype)
    return nn.functional.linear(x, wide.to(x.dtype), bias)


def made_again(source: HfSource) -> Any:
    """The model of transformers that a source describes, without points, with eager attention; in eval mode.

    It is on one device, and weights that transformers keeps in few bits are widened, by transformers itself.
    """
    config = copy.deepcopy(source.config)
    config._attn_implementation = config._experts_implementation = "eager"  # others lack float64
    options = {name: value for name, value in source.options.items() if name != "device_map"}
    with quiet():
        hf = _loaded(replace(source, config=config, options=options), [source.model_class])
        if source.made is not None:
            hf.load_state_dict(source.made.state_dict())
        return (hf.dequantize(dtype=source.dtype) if quantization_of(hf) else hf).eval()


def _outline(source: HfSource) -> AdaptedModel:
    with torch.device("meta"):
        hf = _made(source)
    cfg = read_sizes(source.config, type(hf).__name__)
    return AdaptedModel(hf, cfg, layout_unproved(hf.base_model, cfg))


def _classes(hf: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """The config and the classes that may hold the weights, that with a head first.

    Raises:
        DataError: the config reads more than text, or transformers refuses it.
    """
    import transformers
    from transformers.models.auto import modeling_auto

    kind, mappings = str(hf["model_type"]), vars(modeling_auto)
    _refuse_other_inputs(hf, kind)
    masked = mappings["MODEL_FOR_MASKED_LM_MAPPING_NAMES"].get(kind)
    causal = mappings["MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"].get(kind)
    asked = [str(one) for one in hf.get("architectures") or ()]
    heads = [causal, masked] if causal in asked or hf.get("is_decoder") else [masked, causal]
    bare = mappings["MODEL_MAPPING_NAMES"].get(kind)
    names = [name for name in (*heads, bare) if isinstance(name, str)]
    classes = [getattr(transformers, name) for name in dict.fromkeys(names)]
    return _config(kind, hf), [_with_head(classes[0]), *classes] if kind in HEADLESS else classes


@cache
def _with_head(text_class: Any) -> Any:
    """A class of a text model and the head that transformers has in the complete class alone."""

    class TextModelWithHead(text_class.__bases__[0]):
        base_model_prefix = "model"
        _tied_weights_keys: ClassVar = {"lm_head.weight": "model.embed_tokens.weight"}

        def __init__(self, config: Any):
            super().__init__(config)
            self.model = text_class(config)
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
            self.post_init()

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output = self.model(*args, **kwargs)
            output.logits = self.lm_head(output[0])
            return output

    cast(Any, TextModelWithHead.forward).__signature__ = inspect.signature(text_class.forward)
    TextModelWithHead.__name__ = f"{text_class.__name__}WithHead"
    return TextModelWithHead


def default_fields(model_type: str) -> dict[str, Any]:
    """The fields of a config.json that transformers takes for a model type where it says none."""
    import transformers
    from transformers.models.auto import configuration_auto

    name = vars(configuration_auto)["CONFIG_MAPPING_NAMES"].get(model_type)
    return getattr(transformers, name)().to_dict() if isinstance(name, str) else {}


def _config(kind: str, hf: Mapping[str, Any]) -> Any:
    import transformers
    from transformers.models.auto import configuration_auto

    classes: Any = configuration_auto
    _check_quantization(hf)
    try:
        config = getattr(transformers, classes.CONFIG_MAPPING_NAMES[kind]).from_dict(dict(hf))
    except Exception as error:  # whatever its checks raise is the reason
        raise DataError(f"transformers refuses the config.json of {kind!a:.60}: {error_line(error)}") from None
    _refuse_other_inputs(vars(config), kind)
    read_sizes(config, kind)  # before a class is built that would not fit the memory
    if config.is_encoder_decoder:
        raise DataError(
            f"model_type {kind!a:.60} is an encoder-decoder, which --via transformers does not take; "
            "take a decoder or an encoder of text"
        )
    return config


def _layout(hf: Mapping[str, Any]) -> FewBits | None:
    """The layout of weights in few bits that this project widens: transformers has other packages or a GPU do it."""
    try:
        return few_bits_of(hf)
    except Unimplemented:
        return None


def _check_quantization(hf: Mapping[str, Any]) -> None:
    """Raise for a method that transformers does not know, whose weights it would read as numbers."""
    from transformers.quantizers import auto

    given = hf.get("quantization_config")
    if not isinstance(given, Mapping | None):
        raise DataError(f"quantization_config must be an object; got {given!a:.60}")
    if given is None or given.get("load_in_4bit") or given.get("load_in_8bit"):
        return
    method = given.get("quant_method")
    if not isinstance(method, str) or method not in vars(auto)["AUTO_QUANTIZATION_CONFIG_MAPPING"]:
        raise DataError(f"quantization_config: transformers does not know weights quantized by {method!a:.40}")


def _refuse_other_inputs(hf: Mapping[str, Any], kind: str) -> None:
    if other := [name for name in OTHER_INPUTS if hf.get(name) is not None]:
        raise DataError(
            f"model_type {kind!a:.60} reads more than text (config.json has {other[0]}), which --via transformers does "
            "not take; take its text model"
        )


def _loaded(source: HfSource, classes: list[Any]) -> Any:
    """The model of the first class whose weights are all there."""
    if source.folder is None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(source.seed)
            return _made(source)
    stored = stored_tensors(source.folder)
    if "key_mapping" in source.options:
        stored = text_tensors(stored)
    if source.layout is not None:
        stored = in_full(stored, source.layout)
    odd = [f"{key} ({x.dtype})" for key, x in stored.items() if x.dtype not in READABLE and not key.endswith(BUFFERS)]
    if odd and getattr(source.config, "quantization_config", None) is None:
        raise DataError(
            f"{str(source.folder)!a} holds numbers of a type that is not {listed(READABLE)}: {listed_weights(odd)}"
        )
    unfit: dict[str, dict[str, list[str]]] = {}
    for model_class in classes:
        model, found = _from_folder(replace(source, model_class=model_class), stored)
        if not any(found.values()):
            return model
        unfit[model_class.__name__] = found
    which, found = min(unfit.items(), key=lambda item: sum(map(len, item[1].values())))
    raise unfitting(source.folder, which, found)


def _made(source: HfSource) -> Any:
    """The model with random weights, or on the meta device."""
    try:
        return _with_base(source.model_class._from_config(source.config, dtype=source.dtype))
    except Exception as error:  # whatever it raises is the reason
        name = source.model_class.__name__
        raise DataError(f"{name} of transformers cannot be made from this config.json: {_why(error, source)}") from None


def _from_folder(source: HfSource, stored: Mapping[str, TensorInFile]) -> tuple[Any, dict[str, list[str]]]:
    """The model, and what is missing or misshapen among the weights for it."""
    assert source.folder is not None
    given: dict[str, Any] = {"pretrained_model_name_or_path": source.folder}
    if source.layout is not None:
        wide = {name: torch.empty(x.shape, dtype=source.dtype).copy_(read_weight(x)) for name, x in stored.items()}
        given = {"pretrained_model_name_or_path": None, "state_dict": wide}
    try:
        model, info = source.model_class.from_pretrained(
            **given,
            config=source.config,
            dtype=source.dtype,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **source.options,
        )
    except Exception as error:  # whatever it raises is the reason
        raise DataError(f"transformers cannot load {str(source.folder)!a}: {_why(error, source)}") from None
    shapes = {name: list(weight.shape) for name, weight in model.state_dict().items()}
    misshapen = info["mismatched_keys"]
    found = {
        "missing": [f"{name} {shapes.get(name, '')}".rstrip() for name in info["missing_keys"]],
        "misshapen": [f"{name} (expected {list(own)}, found {list(held)})" for name, held, own in misshapen],
        "not converted": [str(one) for one in info.get("error_msgs") or ()],
    }
    unexpected = info["unexpected_keys"]
    if "key_mapping" in source.options:  # those of the towers are meant to be left out
        unexpected = [text_name(name) for name in unexpected if text_name(name) in stored]
    if any(found.values()):
        return model, found | {"unexpected": list(unexpected)}
    _check_unexpected(_with_base(model), unexpected, stored, source.folder)
    return model, found


def _with_base(hf: Any) -> Any:
    """The model, whose `base_model` lacks the head: Llama 4's names one that it does not have, and would be itself."""
    if hf.base_model is hf and hf.get_output_embeddings() is not None and isinstance(hf.model, nn.Module):
        hf.base_model_prefix = "model"
    return hf


def _check_unexpected(model: Any, names: Iterable[str], stored: Collection[str], folder: Path) -> None:
    """Raise for weights within the blocks, or of the head, that the class does not use.

    A class may keep quiet about a layer of the number that published files have for a multi-token prediction head.
    """
    if "lm_head.bias" in names and model.get_output_embeddings() is not None:
        raise DataError(
            f"{str(folder)!a} holds lm_head.bias, which {type(model).__name__} does not add; load it without --via "
            "transformers"
        )
    n_layers = read_sizes(model.config, type(model).__name__).n_layers
    stem = find_blocks(model.base_model, model.config.model_type, n_layers)[0].rpartition(".")[0]
    further = of_further_heads({*names, *stored}, n_layers)  # the class names tensors as it converts them
    unused = [name for name in dict.fromkeys([*names, *later_layers(stored, n_layers)]) if name not in further]
    inside = [name for name in unused if f"{stem}." in f".{name}" and not name.endswith(BUFFERS)]
    if inside:
        raise DataError(
            f"{str(folder)!a} holds weights that {type(model).__name__} does not use: "
            f"{listed_weights(inside)}; its config.json, with {n_layers} layers, describes another model"
        )


def _why(error: Exception, source: HfSource) -> str:
    """The error in a line; for a name that a table of transformers does not have, the field that gives it."""
    name = error.args[0] if isinstance(error, KeyError) and error.args else None
    field = field_of(name, source.config.to_dict())
    return error_line(error) if field is None else f"it knows no {field} {name!a:.60}; correct that field"


def error_line(error: Exception) -> str:
    """An error of transformers in one line of at most 200 characters."""
    return printable(" ".join(str(error).split()) or type(error).__name__)[:200]
