"""The config of a wrapped model, and the checks of config.json before transformers sees it. Nothing here needs torch.

Sizes are read from the names that transformers uses. Some values of config.json would hang a class, or hide the cause
of its error: those are refused by field.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from probekit.errors import DataError
from probekit.models.config_fields import LARGEST, check_dimension, check_positive_number
from probekit.models.shapes import ModelShape, StackShape, decoder_shape
from probekit.text import listed

if TYPE_CHECKING:
    from probekit.models.base import Batching

# names that configs of transformers use for one size, in the order in which they are looked up
NAMES = {
    "d_model": ("hidden_size", "d_model", "n_embd"),
    "n_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "n_heads": ("num_attention_heads", "n_head", "n_heads"),
    "d_head": ("head_dim",),
    "d_mlp": ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "d_inner", "dim_feedforward"),
    "n_ctx": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx"),
    "d_vocab": ("vocab_size",),
}
_CHECKED = NAMES | {"n_kv_heads": ("num_key_value_heads",)}
_LONGEST = 1 << 24  # of a context, which rotary models state without using it: Llama 4 has 10 million
_FLOAT = "__float__"  # transformers 5 writes Infinity as {"__float__": "Infinity"}
_EPSILON = re.compile("eps(ilon)?$")
NO_LIMIT = 1 << 20  # of texts for a model without positions, such as Mamba
TYPES = ("float32", "float16", "bfloat16", "float64", "float8_e4m3fn", "float8_e5m2")  # that files of weights name
IGNORED = ("transformers_version", "architectures", "dtype", "torch_dtype", "_name_or_path", "quantization_config")


@dataclass(frozen=True)
class AdapterConfig:
    """What the rest of the project needs to know of a wrapped model.

    Attributes:
        model_type: in config.json.
        model_class: the class of transformers.
        fields: config.json's fields as transformers read them, without those that do not decide the activations.
        attention: transformers' name of the attention kernel.
        batching: as `LanguageModel.batching`, as it was proved.
        quantize: "8bit", "4bit" or None.
    """

    model_type: str
    model_class: str
    d_model: int
    n_layers: int
    n_heads: int
    d_head: int
    d_mlp: int
    n_ctx: int
    d_vocab: int
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    attention: str = "eager"
    batching: "Batching" = "one length"
    quantize: str | None = None
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def packs(self) -> bool:
        """Whether several texts can be in one row."""
        return self.batching == "packed"

    @property
    def shape(self) -> ModelShape:
        """The sizes to estimate times with; nothing is counted exactly."""
        heads = max(1, self.n_heads)
        stack = StackShape(
            self.n_layers, self.d_model, heads, heads, self.d_head or self.d_model // heads, self.d_mlp, rotary=True
        )
        return decoder_shape(self.model_type, stack, self.d_vocab, self.n_ctx, tied=True)


def read_sizes(config: Any, model_class: str) -> AdapterConfig:
    """The config of a wrapped model before its attention and batching are known.

    Raises:
        DataError: a width, a number of layers or a vocabulary is missing, or is no size.
    """
    found: dict[str, Any] = {size: _first(config, names) for size, names in NAMES.items()}
    if missing := [size for size in ("d_model", "n_layers", "d_vocab") if not found[size]]:
        raise DataError(
            f"the config of {model_class} has no {missing[0]} under any of the names that are known "
            f"({listed(NAMES[missing[0]])}); this model cannot be wrapped"
        )
    for size in ("d_model", "n_layers", "d_vocab"):
        check_hf_size(size, found[size], size)
    heads = found["n_heads"] or 0
    found["d_head"] = found["d_head"] or (found["d_model"] // heads if heads else 0)
    return AdapterConfig(
        model_type=config.model_type,
        model_class=model_class,
        **{
            **found,
            "n_heads": heads,
            "d_mlp": found["d_mlp"] or 4 * found["d_model"],
            "n_ctx": found["n_ctx"] if (found["n_ctx"] or 0) > 0 else NO_LIMIT,  # XLNet says -1
        },
        bos_token_id=getattr(config, "bos_token_id", None),
        eos_token_id=getattr(config, "eos_token_id", None),
        fields=_plain({key: value for key, value in config.to_diff_dict().items() if key not in IGNORED}),
    )


def _first(config: Any, names: tuple[str, ...]) -> int | None:
    """The first of these fields that is a whole number; several numbers, one for each layer, count as the largest."""
    for name in names:
        value = config_value(config, name)
        if isinstance(value, list) and value and all(isinstance(one, int) for one in value):
            value = max(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def config_value(config: Any, name: str) -> Any:
    """A field of a config of transformers: None if there is none, a list if layers have values of their own."""
    try:
        return getattr(config, name, None)
    except RuntimeError:  # transformers' own, where layers differ
        layers = range(config.num_hidden_layers)
        return [getattr(config.per_layer_config[layer], name, None) for layer in layers]


def active_stream(config: Any) -> int | None:
    """Which of the streams [S, B, L, D] that blocks pass on side by side their sublayers read; None for one stream.

    Gemma 3n has several (AltUp, Baykal et al. 2023); the others are predicted from it in every block.
    """
    value = config_value(config, "altup_active_idx")
    return value if isinstance(value, int) else None


def n_streams(config: Any) -> int:
    """How many streams blocks pass on side by side."""
    return 1 if active_stream(config) is None else int(config_value(config, "altup_num_inputs") or 1)


def _plain(value: Any) -> Any:
    """A value as JSON gives it back."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(one) for one in value]
    is_json = isinstance(value, str | int | bool | None) or (isinstance(value, float) and math.isfinite(value))
    return value if is_json else str(value)


def checked_fields(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The fields as transformers itself reads them from the file.

    Raises:
        DataError: a size that is not a whole number in its range, an epsilon below 0, a number that is
            NaN; a type of numbers that is not known; fields nested too deeply.
    """
    try:
        fields = {name: _decoded(value) for name, value in hf.items()}
        numbers = list(_numbers(fields))
    except RecursionError:
        raise DataError("the fields of config.json are nested too deeply; download it again") from None
    for size, names in _CHECKED.items():
        for name in names:
            for value in _each(fields.get(name)):
                check_hf_size(size, value, name)
    for name in ("dtype", "torch_dtype"):
        value = fields.get(name)
        if not isinstance(value, Mapping | None) and str(value).removeprefix("torch.") not in TYPES:
            raise DataError(f"{name} must be one of {listed(TYPES)}; got {value!a:.60}; correct or remove it")
    for name, value in numbers:
        if isinstance(value, float) and math.isnan(value):
            raise DataError(f"{name} must be a number; got nan")
        if _EPSILON.search(name) and value != 0:
            check_positive_number(value, name)
    return fields


def check_hf_size(size: str, value: Any, named: str) -> None:
    """Refuse all but a whole number from 1 to the largest that any model has; `size` is a key of `NAMES`."""
    if size == "n_ctx" and type(value) is int and LARGEST["n_ctx"] < value <= _LONGEST:
        return
    check_dimension(size, value, named)


def field_of(value: Any, fields: Mapping[str, Any]) -> str | None:
    """The first field with this text as its value, also within others; None if there is none."""
    for name, one in fields.items():
        if isinstance(one, str) and one == value:
            return name
        if isinstance(one, Mapping) and (inner := field_of(value, one)):
            return inner
    return None


def _each(value: Any) -> list[Any]:
    """The sizes in a field: none for null, several where each layer has its own."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _decoded(value: Any) -> Any:
    """A value with the floats that JSON does not have."""
    if isinstance(value, Mapping):
        if value.keys() == {_FLOAT} and value[_FLOAT] in ("Infinity", "-Infinity", "NaN"):
            return float(value[_FLOAT])
        return {name: _decoded(one) for name, one in value.items()}
    return [_decoded(one) for one in value] if isinstance(value, list) else value


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number in a field, with the field's name."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _numbers(one, str(key))
    elif isinstance(value, list):
        for one in value:
            yield from _numbers(one, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value
