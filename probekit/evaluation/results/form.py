"""The form of results in JSON, from the types of the dataclasses that they become."""

from dataclasses import MISSING, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from probekit.durable import matches


def has_form(entry: Any, kind: type) -> bool:
    """True if a value out of JSON has the fields of a dataclass, with the types that they have there."""
    return matches(entry, _form(kind))


@cache
def _form(kind: type) -> dict[str, Any]:
    hints, form = get_type_hints(kind), {}
    for one in fields(kind):
        hint, left_out = hints[one.name], one.default is not MISSING or one.default_factory is not MISSING
        inner = [part for part in get_args(hint) if part is not NoneType] if isinstance(hint, UnionType) else [hint]
        if hint is not Any:
            form[one.name + "?" * (left_out or len(inner) < len(get_args(hint)))] = _schema(inner[0])
    return form


def _schema(hint: Any) -> Any:
    """A type as `matches` takes it; JSON has lists for tuples, and writes some floats as whole numbers."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is dict:
        return {str: _schema(parts[1])}
    if origin is list:
        return [_schema(parts[0])]
    if origin is tuple:
        return tuple(map(_schema, parts))
    if origin is Literal:
        return type(parts[0])
    return int | float | NoneType if NoneType in parts else int | float if hint is float else hint
