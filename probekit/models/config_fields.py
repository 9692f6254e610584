"""Config fields: their names in config.json, their ranges and their defaults, each said once. Nothing here needs torch.

A family's config is a frozen dataclass whose fields are made by `size`, `real`, `flag`, `one_of`, `token_id`,
`token_ids` and `unchecked`: `d_model: int = size(4096, hf="hidden_size")`. From these follow the checks
(`check_fields`), what is read from a config.json (`read_fields`) and written to one (`written_fields`), and the names
in errors (`named`): "d_model (hidden_size)".
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import Field, field, fields, is_dataclass
from typing import Any

from probekit.errors import DataError, nearest

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"  # values of layer_types

# Far above any model. A file with a larger size is damaged, and would hang before its weights were checked.
LARGEST_NUMBER = 1e15  # of an epsilon, a base of angles; the largest base in use is 1e9
LARGEST_ID = (1 << 31) - 1
LARGEST = {
    "d_model": 1 << 17,
    "n_heads": 1 << 12,
    "n_kv_heads": 1 << 12,
    "d_head": 1 << 14,
    "d_mlp": 1 << 20,
    "d_dense_mlp": 1 << 20,
    "n_layers": 1000,
    "n_ctx": 1 << 21,
    "first_position": 1 << 21,
    "sliding_window": 1 << 21,
    "d_vocab": 1 << 23,
    "n_experts": 1 << 12,
    "n_active_experts": 1 << 12,
    "n_shared_experts": 1 << 12,
    "n_groups": 1 << 12,
    "n_active_groups": 1 << 12,
    "d_shared_mlp": 1 << 20,
    "d_expert": 1 << 20,
    "d_per_layer": 1 << 17,
    "n_global_kv_heads": 1 << 12,
    "d_global_head": 1 << 14,
    "q_rank": 1 << 16,
    "kv_rank": 1 << 16,
    "d_nope": 1 << 14,
    "d_rope": 1 << 14,
    "d_value": 1 << 14,
    "n_key_heads": 1 << 12,
    "n_value_heads": 1 << 12,
    "d_key_head": 1 << 14,
    "d_value_head": 1 << 14,
    "conv_width": 1 << 8,
    "n_segments": 1 << 12,
    "n_decoder_heads": 1 << 12,
    "d_decoder_mlp": 1 << 20,
    "n_decoder_layers": 1000,
}

# The only value of a decoder: with another, transformers lets every token see all others.
CAUSAL: dict[str, Any] = {"is_causal": True}
# Fields that transformers reads in the config of any model.
_OF_EVERY_MODEL: dict[str, Any] = {"quantization_config": None, "per_layer_config": None}


class Unimplemented(DataError):
    """A config.json that a model may have, but with arithmetic that its family does not implement."""


HfName = str | Mapping[str, str] | None  # in config.json; by model_type where types differ; None for no such field


def _made(default: Any, check: Callable[[Any, str, str], None] | None, hf: HfName, **metadata: Any) -> Any:
    return field(default=default, metadata={"hf": hf, "check": check, **metadata})


def size(default: int | None, hf: HfName = None, formula: str = "", optional: bool = False) -> Any:
    """A field that is a whole number in 1..LARGEST[its name].

    Args:
        default: the field's.
        hf: its name in config.json.
        formula: for errors, what it is in config.json where no single field holds it.
        optional: whether None is allowed.
    """
    return _made(
        default, lambda value, name, own: check_dimension(own, value, name), hf, formula=formula, null=optional
    )


def real(
    default: float | None, hf: HfName = None, formula: str = "", optional: bool = False, later: bool = False
) -> Any:
    """A field that is a positive number; arguments as in `size`, and `later` as in `unchecked`."""
    check = lambda value, name, _: check_positive_number(value, name)  # noqa: E731
    return _made(default, check, hf, formula=formula, null=optional, later=later)


def flag(default: bool, hf: HfName = None, later: bool = False) -> Any:
    """A field that is true or false."""
    return _made(default, lambda value, name, _: check_flag(value, name), hf, later=later)


def one_of(default: str | None, choices: Collection[str], hf: HfName = None, optional: bool = False) -> Any:
    """A field that is one of the choices; `optional` as in `size`."""
    return _made(default, lambda value, name, _: check_choice(value, choices, name), hf, null=optional)


def token_id(default: int | None, hf: HfName = None) -> Any:
    """A field that is a token's id or None."""
    return _made(default, lambda value, name, _: check_id(value, name), hf)


def token_ids(default: int | None, hf: HfName = None) -> Any:
    """A field that is a token's id, a tuple of them, or None; a list in config.json, of which an empty one is None."""

    def check(value: Any, name: str, _: str) -> None:
        for each in value if isinstance(value, tuple) else (value,):
            check_id(each, name)

    return _made(default, check, hf, several=True)


def unchecked(default: Any, hf: HfName = None, later: bool = False) -> Any:
    """A field that the config checks itself.

    Args:
        default: the field's.
        hf: its name in config.json.
        later: whether it came after stores had been written: see `deciding_fields`.
    """
    return _made(default, None, hf, later=later)


def hf_name(each: Field, model_type: str | None = None) -> str | None:
    """The name of a field in config.json; None if it has none."""
    name: HfName = each.metadata.get("hf")
    return name.get(model_type or "") if isinstance(name, Mapping) else name


def named(config: Any, own: str) -> str:
    """A field's name for errors, followed by config.json's where they differ: "n_layers (num_hidden_layers)".

    Args:
        config: a config, or its class.
        own: the name of the field.
    """
    each = next((each for each in fields(config) if each.name == own), None)
    if each is None:
        return own
    theirs = hf_name(each, getattr(config, "model_type", None)) or each.metadata.get("formula")
    return own if theirs in (own, None, "") else f"{own} ({theirs})"


def check_fields(cfg: Any) -> None:
    """Check every field of a config by itself; the model type first, which decides the names of others.

    Raises:
        DataError: a value out of range; the message gives the field, the valid values and the value.
    """
    for each in sorted(fields(cfg), key=lambda each: each.name != "model_type"):
        check, value = each.metadata.get("check"), getattr(cfg, each.name)
        if check is not None and not (value is None and each.metadata.get("null")):
            check(value, named(cfg, each.name), each.name)


def read_fields(
    config: Any, hf: Mapping[str, Any], required: Collection[str], model_type: str | None = None
) -> dict[str, Any]:
    """The fields of a config that a config.json gives by name.

    Args:
        config: the class of the config.
        hf: the fields of config.json.
        required: sizes that it must give.
        model_type: decides names that differ by type.

    Raises:
        DataError: one of these sizes is missing or out of range.
    """
    given: dict[str, Any] = {}
    for each in fields(config):
        name = hf_name(each, model_type)
        if name is not None and name in hf:
            value = hf[name]
            given[each.name] = (tuple(value) or None) if each.metadata.get("several") and type(value) is list else value
        if each.name in required:
            wanted = each.name if name in (each.name, None) else f"{each.name} ({name})"
            check_dimension(each.name, given.get(each.name), wanted)
    return given


def written_fields(cfg: Any) -> dict[str, Any]:
    """The fields of config.json that hold fields of ours, by name; tuples as lists.

    A later field is left out while it has its default: transformers does not know those of them that are probekit's
    own, such as `head_dim` of GPT-2.
    """
    written = {}
    for each in fields(cfg):
        name, value = hf_name(each, getattr(cfg, "model_type", None)), getattr(cfg, each.name)
        if name is not None and not (each.metadata.get("later") and value == each.default):
            written[name] = list(value) if isinstance(value, tuple) else value
    return written


def deciding_fields(cfg: Any) -> dict[str, Any]:
    """The fields of a config that decide what its model computes: part of the identity of a store or of a world.

    A later field is left out while it has its default, so that older stores keep their identity.
    """
    return dict(_deciding(cfg))


def _deciding(cfg: Any) -> Iterator[tuple[str, Any]]:
    for each in fields(cfg):
        value = getattr(cfg, each.name)
        if not (each.metadata.get("later") and value == each.default):
            yield each.name, dict(_deciding(value)) if is_dataclass(value) else value


class SharedWidth:
    """A config whose heads share d_model evenly, unless `head_dim`, a later field, is another width."""

    d_model: int
    n_heads: int
    head_dim: int | None

    @property
    def d_head(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.n_heads if self.head_dim is None else self.head_dim

    def settle_head_dim(self) -> None:
        """Make `head_dim` None where the heads share d_model evenly.

        Raises:
            DataError: they cannot, or it is no width.
        """
        if self.head_dim is None:
            check_multiple(self, "d_model", "n_heads")
        else:
            check_dimension("d_head", self.head_dim, "head_dim")
            if self.n_heads * self.head_dim == self.d_model:
                object.__setattr__(self, "head_dim", None)


def grouped_heads(config: Any, hf: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`n_kv_heads` and `d_head`: by default all heads, and each head's share of d_model.

    Args:
        config: the class of the config, for errors.
        hf: the fields of config.json.
        given: those that `read_fields` found.

    Raises:
        DataError: the heads cannot share d_model evenly, and no width is given.
    """
    n_heads, n_kv_heads, d_head = given["n_heads"], hf.get("num_key_value_heads"), hf.get("head_dim")
    if d_head is None:
        _check_multiple(given["d_model"], named(config, "d_model"), n_heads, named(config, "n_heads"))
        d_head = given["d_model"] // n_heads
    return {"n_kv_heads": n_heads if n_kv_heads is None else n_kv_heads, "d_head": d_head}


def check_implemented(hf: Mapping[str, Any], required: Mapping[str, Any], model_type: str) -> None:
    """Refuse fields of config.json that change the arithmetic, unless they have the one value that is implemented.

    Args:
        hf: the fields of config.json.
        required: field -> that value. Fields that are refused for every model type are added.
        model_type: for the error.
    """
    for name, value in (_OF_EVERY_MODEL | dict(required)).items():
        if hf.get(name, value) != value:
            raise Unimplemented(
                f"{name} = {hf[name]!a:.60} is not implemented for model_type {model_type}; only {value!r} is"
            )


def check_dimension(own: str, value: Any, name: str) -> None:
    """Refuse all but a whole number in 1..LARGEST[own]; `name` is the field's name in the error."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST[own]:
        raise DataError(f"{name} must be a whole number in 1..{LARGEST[own]}; got {value!a:.60}")


def check_count(value: Any, name: str, least: int = 0) -> None:
    """Refuse all but a whole number from `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise DataError(f"{name} must be a whole number from {least}; got {value!a:.60}")


def check_positive_number(value: Any, name: str) -> None:
    """Refuse all but a number above 0 that float32 and a 64-bit integer can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < LARGEST_NUMBER:
        raise DataError(f"{name} must be a positive number below {LARGEST_NUMBER:g}; got {value!a:.60}")


def check_flag(value: Any, name: str) -> None:
    """Refuse all but true and false."""
    if not isinstance(value, bool):
        raise DataError(f"{name} must be true or false; got {value!a:.60}")


def check_choice(value: Any, choices: Collection[str], name: str) -> None:
    """Refuse all but one of the choices; the error names the nearest."""
    if not isinstance(value, str) or value not in choices:
        raise DataError(f"unknown {name} {value!a:.60}; {nearest(str(value), choices)}")


def check_id(value: Any, name: str) -> None:
    """Refuse all but a token's id or None."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or abs(value) > LARGEST_ID):
        raise DataError(f"{name} must be a whole number of at most 31 bits, or null; got {value!a:.60}")


def check_layer_types(value: Any, n_layers: int) -> None:
    """Refuse all but a list with a type for each layer; what the types are is the family's own check."""
    if not isinstance(value, list | tuple) or len(value) != n_layers:
        given = f"a list of {len(value):,}" if isinstance(value, list | tuple) else f"{value!a:.60}"
        raise DataError(
            f"layer_types must be a list with one type for each of {n_layers} layers (num_hidden_layers); got {given}"
        )


def given_layer_types(hf: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The layer_types of a config.json, one for each of its layers; None if it gives none."""
    if hf.get("layer_types") is None:
        return None
    check_layer_types(hf["layer_types"], hf["num_hidden_layers"])
    return tuple(hf["layer_types"])


def settle_windows(cfg: Any) -> None:
    """Make a config's `layer_types` a tuple.

    Raises:
        DataError: a layer has neither full attention nor a window, or layers have a window that has no size.
    """
    types = cfg.layer_types
    if not isinstance(types, list | tuple) or len(types) != cfg.n_layers or not {*map(str, types)} <= {FULL, SLIDING}:
        raise DataError(
            f"layer_types must be {FULL} or {SLIDING} for each of the {cfg.n_layers} layers; got {types!a:.200}"
        )
    object.__setattr__(cfg, "layer_types", tuple(types))
    if SLIDING in types:
        check_dimension("sliding_window", cfg.sliding_window, "sliding_window")


def check_only_layer_types(hf: Mapping[str, Any], types: list[str]) -> None:
    """Refuse layer_types in a config.json other than these, which follow from its other fields."""
    if hf.get("layer_types") not in (None, types):
        check_layer_types(hf["layer_types"], len(types))
        raise Unimplemented(f"layer_types {hf['layer_types']!a:.200} are not implemented; only {types!a:.200} are")


def check_multiple(cfg: Any, own: str, divisor: str) -> None:
    """Refuse a config in which one field does not divide another."""
    _check_multiple(getattr(cfg, own), named(cfg, own), getattr(cfg, divisor), named(cfg, divisor))


def _check_multiple(value: int, name: str, divisor: int, divisor_name: str) -> None:
    if value % divisor:
        raise DataError(f"{name} {value} must be a multiple of {divisor_name} {divisor}; correct one of them")


def check_pairs(cfg: Any) -> None:
    """Refuse heads of an odd width: rotary positions rotate pairs of coordinates."""
    if cfg.d_head % 2:
        raise DataError(f"{named(cfg, 'd_head')} must be even, as rotary positions rotate pairs; got {cfg.d_head}")
