"""The fields of config.json for a class of transformers: sizes and numbers that would hang or hide their cause."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from probekit.errors import DataError
from probekit.models.config_fields import LARGEST, check_dimension, check_positive_number

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


def checked_fields(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The fields as transformers itself reads them from the file.

    Raises:
        DataError: a size that is not a whole number in its range, an epsilon below 0, a number that is
            NaN; fields nested too deeply.
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
