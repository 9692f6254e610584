"""The config of a wrapped model: the sizes that every family has, read from the names that transformers uses."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from probekit.errors import DataError
from probekit.models.adapter.fields import NAMES, check_hf_size
from probekit.models.base import Batching
from probekit.models.shapes import ModelShape, StackShape, decoder_shape
from probekit.text import listed

NO_LIMIT = 1 << 20  # of texts for a model without positions, such as Mamba


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
    batching: Batching = "one length"
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


IGNORED = ("transformers_version", "architectures", "dtype", "torch_dtype", "_name_or_path", "quantization_config")


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
        value = getattr(config, name, None)
        if isinstance(value, list) and value and all(isinstance(one, int) for one in value):
            value = max(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _plain(value: Any) -> Any:
    """A value as JSON gives it back."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(one) for one in value]
    is_json = isinstance(value, str | int | bool | None) or (isinstance(value, float) and math.isfinite(value))
    return value if is_json else str(value)
