"""Rotations in Hugging Face's config.json: `rope_parameters` today; `rope_theta` and `rope_scaling` in old files."""

import math
from collections.abc import Mapping
from typing import Any

from probekit.errors import DataError
from probekit.models.config_fields import FULL, SLIDING, Unimplemented, check_flag, check_positive_number
from probekit.models.positional import RopeScaling

_ORIGINAL, _SHARE = "original_max_position_embeddings", "partial_rotary_factor"

_STRETCH = {  # field of rope_parameters -> field of RopeScaling
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    _ORIGINAL: "original_n_ctx",
}
_YARN = {
    "factor": "factor",
    "beta_slow": "low_freq_factor",
    "beta_fast": "high_freq_factor",
    _ORIGINAL: "original_n_ctx",
    "attention_factor": "attention_factor",
}
_LONGROPE = {
    "short_factor": "short_factors",
    "long_factor": "long_factors",
    _ORIGINAL: "original_n_ctx",
    "attention_factor": "attention_factor",
}
_NAMES = {"linear": _STRETCH, "llama3": _STRETCH, "yarn": _YARN, "longrope": _LONGROPE}
KINDS = ("linear", "llama3", "yarn")  # of scaling that most families implement
_PLAIN = {"rope_theta", "rope_type", "type", _SHARE}  # these stretch nothing
_KNOWN = {
    "default": {*_STRETCH},  # in some files, without effect
    "linear": {*_STRETCH},
    "llama3": {*_STRETCH},
    "yarn": {*_YARN, "mscale", "mscale_all_dim", "truncate"},
    "longrope": {*_LONGROPE, "factor"},
}


def rope_from_hf(
    hf: Mapping[str, Any],
    theta: tuple[str | None, float] = ("rope_theta", 10000.0),
    share: tuple[str, float] | None = None,
    kinds: tuple[str, ...] = KINDS,
    own: str = "rope_theta",
) -> dict[str, Any]:
    """The fields `rope_theta` and `rope_scaling` of a config, from a Hugging Face config.json.

    Args:
        hf: the fields of config.json.
        theta: the field outside of rope_parameters with the base of the rotations, or None, and the default base.
        share: the same of how much of each head is rotated, returned as `partial_rotary_factor`; None: all of it.
        kinds: of scaling that the family implements.
        own: the name of the base in the config, if it is not `rope_theta`.

    Raises:
        DataError: a rule that is not implemented, or fields that contradict each other.
    """
    hf = _without_share(hf, only_null=True)
    rope = _rope_fields(hf)
    base = _number("rope_theta", own, *theta, rope, hf)
    found = {own: base}
    if share is not None:
        found[_SHARE] = _number(_SHARE, share[0], *share, rope, hf)
    for where in (hf, rope) if share is None else ():
        if where.get(_SHARE, 1) != 1:
            raise Unimplemented(f"{_SHARE} {where[_SHARE]!a:.60} is not implemented; only 1 is")
    kind = rope.get("rope_type", rope.get("type"))
    if kind is None and (fields := sorted(str(key) for key in rope.keys() - _PLAIN)):
        raise DataError(f"rope scaling with {fields[0]!a:.60} and no rope_type; give linear, llama3 or default")
    kind = "default" if kind is None else "longrope" if kind == "su" else kind
    if kind not in ("default", *kinds):
        implemented = f"{', '.join(('default', *kinds[:-1]))} and {kinds[-1]} are" if kinds else "default is"
        raise Unimplemented(f"rope scaling {kind!a:.60} is not implemented; only {implemented}")
    if unknown := sorted(str(key) for key in rope.keys() - _PLAIN - _KNOWN[kind]):
        raise Unimplemented(f"rope scaling {kind!a:.60} with {unknown[0]!a:.60} is not implemented")
    return found | {"rope_scaling": None if kind == "default" else _scaling(kind, rope, hf, base)}


def mscale_from_hf(hf: Mapping[str, Any]) -> float | None:
    """YaRN's `mscale_all_dim`, by which some families scale attention scores; None for none."""
    return _rope_fields(hf).get("mscale_all_dim") or None


def rope_by_type_from_hf(
    hf: Mapping[str, Any],
    full: tuple[str | None, float],
    local: tuple[str | None, float],
    kinds: tuple[str, ...] = KINDS,
) -> dict[str, Any]:
    """The fields `rope_theta` and `rope_scaling` of layers of full attention, and `local_rope_theta` of the others.

    transformers 5 writes both into rope_parameters. Earlier versions wrote a field of each base, and `rope_scaling`
    for layers of full attention alone. Layers with a window are not stretched.

    Args:
        hf: the fields of config.json.
        full: `theta` of `rope_from_hf` for layers of full attention.
        local: that of layers with a window.
        kinds: of scaling that the family implements in layers of full attention.

    Raises:
        DataError: as `rope_from_hf`; or rope_parameters that are not given by layer type.
    """
    by_type, old = hf.get("rope_parameters") or {}, hf.get("rope_scaling")
    if not isinstance(by_type, Mapping) or not by_type.keys() <= {FULL, SLIDING}:
        raise DataError(f"rope_parameters must be an object with {FULL} and {SLIDING}; got {by_type!a:.120}")
    if isinstance(old, Mapping) and "type" in old and "rope_type" not in old:
        # transformers 5 reads no `type` in these families and stretches nothing; earlier versions did
        raise DataError(
            f"rope_scaling with type {old['type']!a:.60} is read differently by different versions of "
            "transformers; name it rope_type"
        )
    theirs = {name: hf[name] for name in local[:1] if isinstance(name, str) and name in hf}
    windowed = rope_from_hf(theirs | {"rope_parameters": by_type.get(SLIDING)}, local, kinds=(), own="local_rope_theta")
    stretched = rope_from_hf({**hf, "rope_parameters": by_type.get(FULL)}, full, kinds=kinds)
    return windowed | stretched


def _number(
    name: str, own: str, outside: str | None, default: float, rope: Mapping[str, Any], hf: Mapping[str, Any]
) -> Any:
    """A number that rope_parameters hold today, and other files outside of them; they must agree."""
    value = rope.get(name, default if outside is None else hf.get(outside, default))
    check_positive_number(value, own if outside in (own, None) else f"{own} ({outside})")  # NaN differs from itself
    for field in (outside, name) if outside else ():  # today's name outside has no effect in transformers
        if hf.get(field, value) != value:
            where = f"{name} in rope_parameters" if name in rope else outside
            raise DataError(f"{field} is {hf[field]!a:.60}, but {where} is {value!a:.60}; leave one out")
    return value


def _without_share(fields: Any, only_null: bool = False) -> Any:
    """The fields without that of how much of each head is rotated, or without its null, which is as good as none."""
    if not isinstance(fields, Mapping):
        return fields
    return {name: value for name, value in fields.items() if name != _SHARE or (only_null and value is not None)}


def _rope_fields(hf: Mapping[str, Any]) -> Mapping[str, Any]:
    new, old = (_without_share(hf.get(name), only_null=True) for name in ("rope_parameters", "rope_scaling"))
    # transformers reads rope_scaling alone where there are both
    if new and old and new not in (old, _without_share(old)):
        raise DataError("config.json has both rope_parameters and rope_scaling, and they differ; leave one out")
    rope = old or new or {}
    if not isinstance(rope, Mapping):
        raise DataError(f"rope_parameters and rope_scaling must be objects or null; got {rope!a:.60}")
    for where in (hf, rope):  # also where no scaling reads it
        if where.get(_ORIGINAL) is not None:
            check_positive_number(where[_ORIGINAL], _ORIGINAL)
    return rope


def _scaling(kind: str, rope: Mapping[str, Any], hf: Mapping[str, Any], theta: Any) -> RopeScaling:
    if kind == "yarn":
        return _yarn(rope, hf, theta)
    if kind == "longrope":
        return _longrope(rope, hf)
    given: dict[str, Any] = {ours: rope[name] for name, ours in _STRETCH.items() if name in rope}
    if kind == "llama3":
        given["original_n_ctx"] = _original_n_ctx(rope, hf)
    return RopeScaling(kind, given.pop("factor", None), **given)


def _original_n_ctx(rope: Mapping[str, Any], hf: Mapping[str, Any]) -> Any:
    """The context of the first training; files have it inside of rope_parameters, or outside, or leave it out."""
    inside, outside = rope.get(_ORIGINAL), hf.get(_ORIGINAL)
    if None not in (inside, outside) and inside != outside:
        raise DataError(f"{_ORIGINAL} is {outside!a:.60}, but {inside!a:.60} in rope_parameters; leave one out")
    original = outside if inside is None else inside
    return hf["max_position_embeddings"] if original is None else original


def _yarn(rope: Mapping[str, Any], hf: Mapping[str, Any], theta: Any) -> RopeScaling:
    """Without an attention_factor, it is 0.1 log(factor) + 1, or what two scales of that logarithm make of it."""
    original, factor = _original_n_ctx(rope, hf), rope.get("factor")
    check_positive_number(original, f"rope scaling yarn: {_ORIGINAL}")
    factor = hf["max_position_embeddings"] / original if factor is None else factor
    over, under = rope.get("mscale"), rope.get("mscale_all_dim")
    over, under = (over, under) if over and under else (1, 0)
    for name, value in {"factor": factor, "mscale": over, "mscale_all_dim": under or 1}.items():
        check_positive_number(value, f"rope scaling yarn: {name}")
    if theta <= 1:
        raise DataError(f"rope_theta must be above 1 for rope scaling yarn; got {theta}")
    check_flag(rope.get("truncate", True), "rope scaling yarn: truncate")
    grown = 0.1 * math.log(max(factor, 1))
    attention = rope.get("attention_factor")
    attention = (over * grown + 1) / (under * grown + 1) if attention is None else attention
    slow, fast = rope.get("beta_slow") or 1, rope.get("beta_fast") or 32
    return RopeScaling("yarn", factor, slow, fast, original, attention, truncate=rope.get("truncate", True))


def _longrope(rope: Mapping[str, Any], hf: Mapping[str, Any]) -> RopeScaling:
    """Without an attention_factor, it is sqrt(1 + log(factor) / log(original context)), where the factor is above 1."""
    original, longest = _original_n_ctx(rope, hf), hf["max_position_embeddings"]
    check_positive_number(original, f"rope scaling longrope: {_ORIGINAL}")
    factor = longest / original if rope.get("factor") is None else rope["factor"]
    check_positive_number(factor, "rope scaling longrope: factor")
    attention = rope.get("attention_factor")
    if attention is None:
        attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 < original else 1.0
    short, long = rope.get("short_factor"), rope.get("long_factor")
    if not isinstance(short, list) or not isinstance(long, list):
        raise DataError("rope scaling longrope: short_factor and long_factor must be lists of numbers; correct them")
    return RopeScaling("longrope", longest / original, 0, 0, original, attention, tuple(short), tuple(long))


def rope_to_hf(theta: float, scaling: RopeScaling | None) -> dict[str, Any]:
    """The rope_parameters of a Hugging Face config.json."""
    if scaling is None:
        return {"rope_theta": theta, "rope_type": "default"}
    values = {name: getattr(scaling, ours) for name, ours in _NAMES[scaling.kind].items()}
    fields = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items() if value}
    return {"rope_theta": theta, "rope_type": scaling.kind} | fields | ({} if scaling.truncate else {"truncate": False})
