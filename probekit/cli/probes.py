"""Probes with parameters, from `--set train-probe.probe.k=4` or a mapping in a `--config` file."""

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from probekit.errors import UsageError
from probekit.text import listed

if TYPE_CHECKING:
    from probekit.activations import Activations
    from probekit.options import CurveOptions

_WORDS = {int: "a whole number", float: "a number", bool: "true or false"}


def check_parameters(options: "CurveOptions", activations: "Activations") -> Any:
    """`options.probe`, with the types of the parameters checked: {"name": ..., ...}, or the name if there are none.

    Raises:
        UsageError: an unknown probe or parameter, or a parameter of the wrong type.
    """
    if not isinstance(options.probe, dict):
        return options.probe
    given = dict(options.probe)
    name = given.pop("name", None) or ("logistic" if _classes(options, activations) else "ridge")
    known = _known(_class_of(name, options, activations))
    if getattr(options, "aggregate", None) is not None:  # the name and the aggregate are options of their own
        known = {key: default for key, default in known.items() if key not in ("probe", "aggregate")}
    return {"name": name, **{key: _checked(name, key, value, known) for key, value in given.items()}}


def make_probe(probe: Any, options: "CurveOptions", activations: "Activations") -> Any:
    """A probe for `train_probes`: an instance if `probe` has parameters, else the name as it is."""
    if not isinstance(probe, dict):
        return probe
    parameters = {key: value for key, value in probe.items() if key != "name"}
    if (aggregate := getattr(options, "aggregate", None)) is not None:
        parameters |= {"probe": probe["name"], "aggregate": aggregate}
    return _class_of(probe["name"], options, activations)(**parameters)


def check_linear(options: "CurveOptions", activations: "Activations") -> None:
    """Raise a UsageError unless the probe has one direction for each class, which a projection shows."""
    name = options.probe.get("name") if isinstance(options.probe, dict) else options.probe
    name = name or ("logistic" if _classes(options, activations) else "ridge")
    if getattr(options, "of_sequences", False) or not getattr(_class_of(name, options, activations), "linear", False):
        raise UsageError(f"--projection needs a linear probe of one row for each text, not {name}; name one: logistic")


def _classes(options: "CurveOptions", activations: "Activations") -> int:
    """The number of classes of the label; 0 if its labels are numbers, or there is no such label."""
    return len(activations.label_names.get(options.label or activations.target, ()))


def _class_of(name: str, options: "CurveOptions", activations: "Activations") -> Any:
    from probekit.probes import find_probe

    aggregate = getattr(options, "aggregate", None)
    return type(find_probe(name, _classes(options, activations), options.label or activations.target, aggregate))


def _known(probe: Any) -> Mapping[str, Any]:
    """The parameters of a probe's constructor, with their defaults."""
    return {name: one.default for name, one in inspect.signature(probe).parameters.items()}


def _checked(probe: str, key: str, value: Any, known: Mapping[str, Any]) -> Any:
    if key not in known:
        there = f"it has {listed(known)}" if known else "it has none, leave it out"
        raise UsageError(f"probe {probe} has no parameter {key!a}; {there}")
    kind = type(known[key])
    try:
        return _number(value) if kind not in _WORDS else _converted(kind, value)
    except ValueError:
        raise UsageError(f"probe {probe}: {key} takes {_WORDS[kind]}, got {value!a:.60}") from None


def _converted(kind: type, value: Any) -> Any:
    """A typed text, or a value of YAML, as this type. Raises ValueError."""
    if isinstance(value, str):
        value = _number(value) if kind is not bool else {"true": True, "false": False}.get(value.lower(), value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise ValueError(value)
    return value


def _number(value: Any) -> Any:
    """A text that is a number as that number; anything else as it is."""
    for kind in (int, float):
        try:
            return kind(value) if isinstance(value, str) else value
        except ValueError:
            continue
    return value
