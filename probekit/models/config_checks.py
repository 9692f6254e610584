"""Checks of config fields, shared by all families; each error gives the field, the valid values and the value."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from probekit.errors import DataError, nearest

# Far above any model. A file with a larger size is damaged, and would hang before its weights were checked.
LARGEST_NUMBER = 1e15  # of an epsilon, a base of angles; the largest base in use is 1e9
LARGEST_ID = (1 << 31) - 1
LARGEST = {
    "d_model": 1 << 17,
    "n_heads": 1 << 12,
    "n_kv_heads": 1 << 12,
    "d_head": 1 << 14,
    "d_mlp": 1 << 20,
    "n_layers": 1000,
    "n_ctx": 1 << 21,
    "d_vocab": 1 << 23,
    "n_experts": 1 << 12,
    "n_segments": 1 << 12,
    "n_decoder_heads": 1 << 12,
    "d_decoder_mlp": 1 << 20,
    "n_decoder_layers": 1000,
}


# The only value of a decoder: with another, transformers lets every token see all others.
CAUSAL: dict[str, Any] = {"is_causal": True}
# Fields that transformers reads in the config of any model.
_OF_EVERY_MODEL: dict[str, Any] = {"quantization_config": None, "per_layer_config": None}


def hf_field(ours: Mapping[str, str], field: str) -> str:
    """Our field's name followed by config.json's, where they differ: "n_layers (num_hidden_layers)".

    Args:
        ours: field of config.json -> our field.
        field: our field.
    """
    hf_name = next((hf_name for hf_name, name in ours.items() if name == field), field)
    return field if hf_name == field else f"{field} ({hf_name})"


def check_implemented(hf: Mapping[str, Any], required: Mapping[str, Any], model_type: str) -> None:
    """Refuse fields of config.json that change the arithmetic, unless they have the one value that is implemented.

    Args:
        hf: the fields of config.json.
        required: field -> that value. Fields that are refused for every model type are added.
        model_type: for the error.
    """
    for field, value in (_OF_EVERY_MODEL | dict(required)).items():
        if hf.get(field, value) != value:
            raise DataError(
                f"{field} = {hf[field]!a:.60} is not implemented for model_type {model_type}; only {value!r} is"
            )


def check_dimension(field: str, value: Any, named: str) -> None:
    """Refuse all but a whole number in 1..LARGEST[field]; `named` is the field's name in the error."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST[field]:
        raise DataError(f"{named} must be a whole number in 1..{LARGEST[field]}; got {value!a:.60}")


def check_positive_number(value: Any, named: str) -> None:
    """Refuse all but a number above 0 that float32 and a 64-bit integer can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < LARGEST_NUMBER:
        raise DataError(f"{named} must be a positive number below {LARGEST_NUMBER:g}; got {value!a:.60}")


def check_flag(value: Any, named: str) -> None:
    """Refuse all but true and false."""
    if not isinstance(value, bool):
        raise DataError(f"{named} must be true or false; got {value!a:.60}")


def check_choice(value: Any, choices: Collection[str], named: str) -> None:
    """Refuse all but one of the choices; the error names the nearest."""
    if not isinstance(value, str) or value not in choices:
        raise DataError(f"unknown {named} {value!a:.60}; {nearest(str(value), choices)}")


def check_id(value: Any, named: str) -> None:
    """Refuse all but a token's id or None."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or abs(value) > LARGEST_ID):
        raise DataError(f"{named} must be a whole number of at most 31 bits, or null; got {value!a:.60}")


def check_ids(value: Any, named: str) -> None:
    """Refuse all but a token's id, a tuple of them, or None."""
    for each in value if isinstance(value, tuple) else (value,):
        check_id(each, named)


def check_layer_types(value: Any, n_layers: int) -> None:
    """Refuse all but a list with a type for each layer; what the types are is the family's own check."""
    if not isinstance(value, list | tuple) or len(value) != n_layers:
        given = f"a list of {len(value):,}" if isinstance(value, list | tuple) else f"{value!a:.60}"
        raise DataError(
            f"layer_types must be a list with one type for each of {n_layers} layers (num_hidden_layers); got {given}"
        )


def own_head_dim(cfg: Any, named: Callable[[str], str]) -> int | None:
    """The `head_dim` of a config, None where the heads share d_model evenly; see `head_width`.

    Raises:
        DataError: neither is the case.
    """
    if cfg.head_dim is None:
        check_multiple(cfg.d_model, named("d_model"), cfg.n_heads, named("n_heads"))
        return None
    check_dimension("d_head", cfg.head_dim, "head_dim")
    return None if cfg.n_heads * cfg.head_dim == cfg.d_model else cfg.head_dim


def head_width(cfg: Any) -> int:
    """Width of one attention head: `head_dim`, or else its share of d_model, as in every published model."""
    return cfg.d_model // cfg.n_heads if cfg.head_dim is None else cfg.head_dim


def check_multiple(value: int, named: str, divisor: int, divisor_named: str) -> None:
    """Refuse a number that the divisor does not divide."""
    if value % divisor:
        raise DataError(f"{named} {value} must be a multiple of {divisor_named} {divisor}; correct one of them")
