"""The options of a curve, checked against the activations: label set, probe and its grid of C, point and places.

Axes: N examples.
"""

import copy
import inspect
import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from probekit.activations.activations import Activations, SideBySide
from probekit.errors import UsageError
from probekit.options import CurveOptions
from probekit.points import PAIR_POINTS, Place, parse_layers, place_name
from probekit.probes import Probe
from probekit.probes.find import find_probe, probe_name
from probekit.tasks.base import Task
from probekit.tasks.splits import CARVED as CARVED_SHARE
from probekit.tasks.splits import carve_missing

DEFAULT_C = tuple(10.0**k for k in range(-4, 5))
CARVED = "validation_carved"  # key of a task's info, as `Task.with_validation` writes it


@dataclass(frozen=True, eq=False)
class Request:
    """One curve: what is fitted to which labels, and where.

    Attributes:
        acts: one row for each example; with position "all", tokens are examples.
        label: name of the label set.
        labels: its int64 [N], or float64 [N] or [N, K] for a regression.
        n_classes: 0 for a regression.
        probe: unfitted; copied for each fit.
        strengths: values of C to choose from, rising; [None] for a probe without C.
        point: short name.
        places: in the order of the curve.
    """

    acts: Activations
    label: str
    labels: np.ndarray
    n_classes: int
    probe: Probe
    strengths: list[float | None]
    point: str
    places: list[Place]


def check_request(acts: Activations, options: CurveOptions, carve: bool = True) -> Request:
    """The request that the options make of these activations.

    Args:
        acts: activations of one task.
        options: of the curve.
        carve: whether a task without validation rows gets some of its training rows (folds need none).

    Raises:
        UsageError: no activations, an unknown probe, point or label, a layer that is not there, a C for a probe
            without one.
    """
    acts = one_position(_checked(acts), options.position)
    label = acts.task.label_set(options.label)
    n_classes = len(acts.label_names[label])
    probe = find_probe(options.probe, n_classes, label)
    labels = np.asarray(acts.labels[label])
    if labels.ndim == 2 and not probe.several_outputs:
        raise UsageError(
            f"the probe {probe_name(probe)} predicts one number, and {label!a} holds {labels.shape[1]} for each "
            "example; take ridge (--probe ridge)"
        )
    strengths = probe_strengths(probe, options.C)
    point, places = places_of(acts, options.point, options.layers)
    if options.concatenate:
        acts = SideBySide(acts, [places])
        point, places = acts.points[0], list(acts)
    if carve:
        acts = with_validation(acts, label, options.seed)
    return Request(acts, label, labels, n_classes, probe, strengths, point, places)


def _checked(acts: Any, what: str = "") -> Activations:
    if not isinstance(acts, Activations):
        kind = type(acts).__name__
        raise UsageError(
            f"{what}{what and ' '}expected activations, as extract and load_activations return them; got {kind}"
        )
    return acts


def probe_strengths(probe: Any, C: Any) -> list[float | None]:
    """The values of C to choose from, rising.

    They are `C`; if that is None, the probe's own C where it is not the default, or else `DEFAULT_C`.

    Raises:
        UsageError: a C for a probe without one, or infinity for one that needs a penalty.
    """
    if not probe.has_C:
        if C is not None:
            raise UsageError(f"the probe {probe_name(probe)} has no C; leave it out")
        return [None]
    if C is not None:
        if math.inf in C and not probe.without_penalty:
            raise UsageError(
                f"the probe {probe_name(probe)} needs a finite C (--C), got inf; only ridge may go without a penalty"
            )
        return [*C]
    default = inspect.signature(type(probe)).parameters["C"].default
    return [*DEFAULT_C] if default == probe.C else [probe.C]


def with_validation(acts: Activations, label: str, seed: int) -> Activations:
    """The activations themselves or, if they have no validation rows, a view with a tenth of train as validation.

    These are the rows that `load_task` would carve. The view's `task.info["validation_carved"]` says how.
    """
    task, n_train = acts.task, int((acts.splits == "train").sum())
    if (task.splits == "validation").any() or not n_train:
        return acts
    splits = carve_missing(task.labels[label], task.splits.tolist(), task.split_keys().tolist(), ["validation"], seed)
    warnings.warn(
        f"{task.name!a} has no validation split: {int((splits == 'validation').sum()):,} of its {n_train:,} training "
        f"rows choose the layer and C (seed {seed})",
        stacklevel=5,  # the caller of train_probes or transfer
    )
    view = copy.copy(acts)
    view.task = replace(task, splits=splits, info={**task.info, CARVED: {"fraction": CARVED_SHARE, "seed": seed}})
    return view


def one_position(acts: Activations, position: str | int | None) -> Activations:
    """One row for each example; with position "all", tokens are examples.

    Raises:
        UsageError: several positions and none is named.
    """
    kept = acts.layout.positions
    if position is not None:
        return acts.at(position)
    if len(kept) > 1 or acts.layout.is_ragged:
        choice = "last, first, mean, a token's index, or all" if acts.layout.is_ragged else ", ".join(kept)
        raise UsageError(f"a probe reads one position of each text; say which, position= (--position): {choice}")
    return acts.at(kept[0]) if acts.task.token_labels else acts  # `at` finds the labels of the tokens that were read


def places_of(acts: Activations, point: str | None, layers: str | int | Iterable[int]) -> tuple[str, list[Place]]:
    """The point's short name, and its places at these layers.

    Raises:
        UsageError: a point or layer that was not extracted.
    """
    first = next((name for name in acts.points if name not in PAIR_POINTS), acts.points[0])
    short, layer = acts.point_of(first if point is None else point)
    if layer is not None:
        raise UsageError(f"give the point without its layer, and the layer as layers=: point={short!r}, layers={layer}")
    curve = acts.curve(short)
    if isinstance(layers, str) and layers.strip() == "all":
        return short, curve
    extracted = [layer for name, layer in curve if name == short and layer is not None]
    if not extracted:
        raise UsageError(f"{short} belongs to no layer; use layers='all'")
    wanted = parse_layers(layers, acts.n_layers)
    if missing := [layer for layer in wanted if layer not in extracted]:
        known = ", ".join(str(layer) for layer in extracted)
        raise UsageError(f"layer {missing[0]} of {short} was not extracted; there are {known}")
    return short, [(short, layer) for layer in wanted]


def random_init_activations(
    other: Activations, task: Task, request: Request, position: str | int | None
) -> Activations:
    """The activations of a model with random weights, one row for each example, checked.

    Args:
        other: of the model with random weights.
        task: of the trained model's activations, before a validation split is carved.
        request: the curve.
        position: as for `one_position`.

    Raises:
        UsageError: other examples, or a place that is not there.
    """
    _checked(other, "random_init=")
    if other.task.fingerprint() != task.fingerprint():
        raise UsageError(
            "random_init= holds other examples, or other labels or splits; make it from the same task "
            "(activations.random_init_of)"
        )
    other = one_position(other, position)
    joined = request.acts if isinstance(request.acts, SideBySide) else None
    wanted = request.places if joined is None else joined.joined
    if missing := [place for place in wanted if place not in other]:
        raise UsageError(f"random_init= has no activations of {place_name(missing[0])}; make it with the same points")
    return other if joined is None else joined.same_of(other)
