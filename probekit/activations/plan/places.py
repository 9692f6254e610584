"""Which places an extraction keeps: points and layers as they are asked for, and how far the model has to run for them.

Axes: B batch, L position.
"""

import math
from collections.abc import Iterable

from probekit.errors import UsageError
from probekit.models.base import LanguageModel
from probekit.points import FOLLOWED_BY_OUTPUT, POINTS, Place, base_name, parse_layers, split_point

# points of cross-attention with a row for each token of the source
OF_SOURCES = ("decoder.cross_attn_scores", "decoder.cross_attn_pattern", "decoder.cross_k", "decoder.cross_v")
_BEFORE_BLOCKS = ("embed", "pos_embed", "token_type_embed", "ln_embed_scale", "ln_embed")


def points_of(points: str | Iterable[str]) -> list[str]:
    """Short names, each once.

    Raises:
        UsageError: no such point, none at all, or one with a layer.
    """
    names = []
    for spec in [part.strip() for part in points.split(",")] if isinstance(points, str) else points:
        short, layer = split_point(spec)
        if layer is not None:
            raise UsageError(f"points are given without a layer, {short!r}, and the layers apart; got {spec!r}")
        names.append(short)
    if not names:
        raise UsageError("no points given; give one or more, such as resid_pre")
    return list(dict.fromkeys(names))


def places_of(model: LanguageModel, points: list[str], layers: str | int | Iterable[int]) -> list[Place]:
    """Every point at every layer; behind a residual curve of "all" layers stands the last block's output.

    Raises:
        UsageError: a layer out of range.
    """
    n_layers = max(model.n_layers_of(point) for point in points) or model.n_layers
    wanted = parse_layers(layers, n_layers)
    places: list[Place] = []
    for point in points:
        if "{layer}" not in POINTS[point]:
            places.append((point, None))
            continue
        places += [(point, layer) for layer in wanted]
        if point in FOLLOWED_BY_OUTPUT and isinstance(layers, str) and layers.strip() == "all":
            places.append((model.output_of(point), n_layers - 1))
    return list(dict.fromkeys(places))


def width_of(model: LanguageModel, place: Place) -> int:
    """Width of one row at this place: the product of the axes after B and L, or the heads of a pair of tokens."""
    axes = model.points[model.resolve(place)[0]].axes.split()
    sizes = [model.size_of(axis, place[0]) for axis in axes]
    return math.prod(size for size in sizes if size is not None)


def needed_blocks(place: Place) -> int | None:
    """How many blocks run before this place is reached; None where the final norm must run too."""
    point, layer = base_name(place[0]), place[1]
    if layer is None:
        return 0 if point in _BEFORE_BLOCKS else None
    return layer if point == "resid_pre" else layer + 1


def stack_of(model: LanguageModel, points: list[str]) -> str:
    """The stack that these points belong to.

    Raises:
        UsageError: points of both, or of cross-attention from targets to sources, whose rows no layout has.
    """
    stacks = {point.rpartition(".")[0] for point in points}
    if len(stacks) > 1:
        raise UsageError("the encoder reads inputs and the decoder targets: extract the points of each by themselves")
    for point in points:
        if point in OF_SOURCES:
            raise UsageError(f"{point} has a row for each token of the source; model.run_with_cache(...) shows it")
    return stacks.pop()
