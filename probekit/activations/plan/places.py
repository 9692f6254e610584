"""The places that an extraction keeps, and how far the model must run for them."""

import math
from collections.abc import Iterable

from probekit.models.base import LanguageModel
from probekit.points import FOLLOWED_BY_OUTPUT, POINTS, Place, base_name, parse_layers

_BEFORE_BLOCKS = ("embed", "pos_embed", "token_type_embed", "ln_embed_scale", "ln_embed")


def find_places(model: LanguageModel, points: list[str], layers: str | int | Iterable[int]) -> list[Place]:
    """Every point at every layer that has it; with "all" layers, a residual curve ends with the last block's output.

    Raises:
        UsageError: a layer out of range, or without any of these points; a point that none of the layers has.
    """
    n_layers = max(model.n_layers_of(point) for point in points) or model.n_layers
    wanted = parse_layers(layers, n_layers)
    every = isinstance(layers, str) and layers.strip() == "all"
    having = {point: set(model.layers_of(point)) for point in points if "{layer}" in POINTS[point]}
    _check_layers(model, having, [] if every else wanted)
    places: list[Place] = []
    for point in points:
        if point not in having:
            places.append(Place(point, None))
            continue
        places += [Place(point, layer) for layer in wanted if layer in having[point]]
        if point in FOLLOWED_BY_OUTPUT and every:
            places.append(Place(model.output_of(point), n_layers - 1))
    return list(dict.fromkeys(places))


def _check_layers(model: LanguageModel, having: dict[str, set[int]], wanted: list[int]) -> None:
    """Raise for a point that none of the wanted layers has, and for a wanted layer that has none of the points."""
    for point, layers in having.items():
        if not layers or (wanted and layers.isdisjoint(wanted)):
            model.resolve((point, wanted[0]) if wanted else point)  # raises, with the reason
    for layer in wanted if having else []:
        if not any(layer in layers for layers in having.values()):
            model.resolve((next(iter(having)), layer))


def width_of(model: LanguageModel, place: Place) -> int:
    """Width of one row at this place: the product of the axes after B and L, or the heads of a pair of tokens."""
    axes = model.points[model.resolve(place)[0]].axes.split()
    sizes = [model.size_of(axis, *place) for axis in axes]
    return math.prod(size for size in sizes if size is not None)


def stop_at_layer(places: Iterable[Place]) -> int | None:
    """The block before which the forward can stop; None if the final norm must run too."""
    stops = [_blocks_before(place) for place in places]
    return None if None in stops else max(stop for stop in stops if stop is not None)


def _blocks_before(place: Place) -> int | None:
    """How many blocks run before this place is reached; None where the final norm must run too."""
    point, layer = base_name(place[0]), place[1]
    if layer is None:
        return 0 if point in _BEFORE_BLOCKS else None
    return layer if point in ("resid_pre", "resid_pre_streams") else layer + 1


def is_reached(place: Place, stack: str, kept: Iterable[Place]) -> bool:
    """Whether a forward that keeps these places of a stack computes this place."""
    if place[0].rpartition(".")[0] not in ("", stack) or place[0].startswith("head_"):
        return False
    before, stop = _blocks_before(place), stop_at_layer(kept)
    return stop is None or (before is not None and before <= stop)


def stack_of(points: list[str]) -> str:
    """The stack that checked points belong to: "encoder", "decoder", or "" in models with one stack."""
    return max(point.rpartition(".")[0] for point in points)
