"""What was asked for, checked against what is there: label set, probe and grid, point and places."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from probekit.activations.activations import Activations
from probekit.errors import UsageError, nearest
from probekit.options import CurveOptions
from probekit.points import PAIR_POINTS, Place, parse_layers, place_name, split_point
from probekit.probes import PROBES, REGRESSORS

DEFAULT_C = tuple(10.0**k for k in range(-4, 5))


@dataclass(frozen=True, eq=False)
class Asked:
    """A curve to be drawn.

    Attributes:
        acts: one row for each example.
        label: the label set.
        labels: its int64 [N], or float64 [N] of a regression.
        n_classes: 0 for a regression.
        probe: the name of the probe.
        kind: its class.
        grid: strengths to choose from, rising; [None] for a probe without one.
        point: short name.
        places: in the order of the curve.
    """

    acts: Activations
    label: str
    labels: np.ndarray
    n_classes: int
    probe: str
    kind: Any
    grid: list[float | None]
    point: str
    places: list[Place]


def asked_of(acts: Activations, options: CurveOptions) -> Asked:
    """The options, checked against the activations.

    Raises:
        UsageError: an unknown probe, point or label, a layer that is not there, a C for a probe without one.
    """
    label = acts.target if options.label is None else options.label
    if label not in acts.labels:
        raise UsageError(f"no label set {label!a}; {ascii(nearest(str(label), acts.labels))[1:-1]}")
    n_classes = len(acts.label_names[label])
    probe = options.probe if options.probe is not None else "logistic" if n_classes else "ridge"
    kind = kind_of(probe, n_classes, label)
    grid = grid_of(probe, kind, options.C)
    acts = one_position(acts, options.position)
    point, places = places_of(acts, options.point, options.layers)
    return Asked(acts, label, np.asarray(acts.labels[label]), n_classes, probe, kind, grid, point, places)


def kind_of(probe: str, n_classes: int, label: str) -> Any:
    """The class of the probe that goes by this name, for classes or (0) for numbers."""
    if probe not in PROBES and probe not in REGRESSORS:
        raise UsageError(f"unknown probe {probe!a}; {nearest(str(probe), PROBES | REGRESSORS)}")
    if n_classes == 0 and probe not in REGRESSORS:
        raise UsageError(
            f"the probe {probe} tells classes apart, and {label!a} is a number for each example; "
            f"for those take {', '.join(REGRESSORS)}, or make classes of the numbers"
        )
    if n_classes and probe not in PROBES:
        raise UsageError(f"the probe {probe} is for numbers, and {label!a} has classes; take {', '.join(PROBES)}")
    return PROBES[probe] if n_classes else REGRESSORS[probe]


def grid_of(probe: str, kind: Any, C: Any) -> list[float | None]:
    """The strengths to choose from, rising, each once."""
    if "C" not in kind().get_params():
        if C is not None:
            raise UsageError(f"the probe {probe} has no C; leave it out")
        return [None]
    return [*(DEFAULT_C if C is None else C)]


def one_position(acts: Activations, position: str | int | None) -> Activations:
    """One row for each example."""
    kept = acts.layout.positions
    if position is not None:
        return acts.at(position)
    if len(kept) > 1 or acts.layout.is_ragged:
        choice = "last, first, mean or a token's index" if acts.layout.is_ragged else ", ".join(kept)
        raise UsageError(f"a probe reads one position of each text; say which, position= (--position): {choice}")
    return acts


def places_of(acts: Activations, point: str | None, layers: str | int | Iterable[int]) -> tuple[str, list[Place]]:
    """The point's short name, and its places at these layers."""
    first = next((name for name in acts.points if name not in PAIR_POINTS), acts.points[0])
    short, layer = split_point(first if point is None else point)
    if layer is not None:
        raise UsageError(f"a point without its layer, and the layer beside it: point={short!r}, layers={layer}")
    curve = acts.curve(short)
    if isinstance(layers, str) and layers.strip() == "all":
        return short, curve
    there = [layer for name, layer in curve if name == short and layer is not None]
    if not there:
        raise UsageError(f"{short} belongs to no layer; use layers='all'")
    wanted = parse_layers(layers, acts.n_layers)
    if missing := [layer for layer in wanted if layer not in there]:
        known = ", ".join(str(layer) for layer in there)
        raise UsageError(f"layer {missing[0]} of {short} was not extracted; there are {known}")
    return short, [(short, layer) for layer in wanted]


def same_examples(asked: Asked, other: Activations, position: str | int | None) -> Activations:
    """Another model's activations of the very same examples and places.

    Raises:
        UsageError: other examples, or a place that is not there.
    """
    other = one_position(other, position)
    if other.task.fingerprint() != asked.acts.task.fingerprint():
        raise UsageError(
            "random_init= holds other examples, or others' labels or splits; make it of the same task "
            "(activations.random_init_of)"
        )
    if missing := [place for place in asked.places if place not in other]:
        raise UsageError(f"random_init= has no activations of {place_name(missing[0])}; make it with the same points")
    return other
