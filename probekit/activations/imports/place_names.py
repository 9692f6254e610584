"""The place that the name of a file, or of a tensor in it, gives.

a point and a layer    resid_pre.3   resid_post_11   resid_mid-3   layer_3_resid_pre   blocks.3.hook_resid_pre
a point without layer  embed   ln_final   hook_embed
a layer only           layer_3   3   blocks.3   model.layers.3   transformer.h.3: the point is given by an option
Hugging Face's list    hidden_states_3: the input of block 3; in a model of n blocks, hidden_states_n is the output of
the final norm, which is the point ln_final, not the output of the last block
"""

import re

from probekit.errors import DataError, UsageError
from probekit.points import HIDDEN, MAX_LAYERS, POINTS, Place, UnknownPoint, check_layer

FORMS = (
    "resid_pre.3, resid_post_11, layer_3_resid_pre, blocks.3.hook_resid_pre, embed; "
    "hidden_states_3; or, with --point, layer_3, 3, model.layers.3"
)
_HIDDEN = re.compile(r"hidden_states?[._-]?(\d{1,4})")
_BARE = re.compile(r"(?:(?:model|transformer)\.)*(?:(?:layers?|blocks?|block|h|l)[._-]?)?(\d{1,4})", re.IGNORECASE)
_AFTER = re.compile(r"(.+?)[._-](?:layer[._-]?)?(\d{1,4})")
_BEFORE = re.compile(r"(?:layer|block)s?[._-]?(\d{1,4})[._-](.+)")


def place_of(name: str, where: str, point: str | None, n_layers: int | None) -> Place:
    """The place that a name gives; `point` completes names that give only a layer.

    Args:
        name: of a file without its ending, or of a tensor.
        where: the same, for messages.
        point: a short name, or "hidden_states".
        n_layers: number of the model's blocks, where it is known.

    Raises:
        DataError: the name has none of the forms above.
        UsageError: --point or --n-layers is needed and missing.
    """
    if match := _HIDDEN.fullmatch(name):
        return hidden_place(int(match[1]), where, n_layers)
    if match := _BARE.fullmatch(name):
        if point is None:
            raise UsageError(
                f"{where} names a layer and no point; name it with --point: resid_post for the output of block "
                f"{int(match[1])}, resid_pre for its input, or hidden_states for Hugging Face's list"
            )
        return hidden_place(int(match[1]), where, n_layers) if point == HIDDEN else Place(point, int(match[1]))
    place = _named(name)
    if place is None:
        raise DataError(f"the name of {where} gives no place; rename it to one of these forms: {FORMS}")
    return place


def is_bare(name: str) -> bool:
    """True if a name gives a layer and no point."""
    return _BARE.fullmatch(name) is not None


def hidden_place(index: int, where: str, n_layers: int | None) -> Place:
    """The place of one of Hugging Face's hidden_states.

    Raises:
        UsageError: the number of blocks is not known.
        DataError: the model has fewer blocks.
    """
    if n_layers is None:
        raise UsageError(
            f"{where} is one of Hugging Face's hidden_states, the last of which is the output of the final norm; "
            "give the number of the model's blocks with --n-layers, to tell the last one from the others"
        )
    if index > n_layers:
        raise DataError(
            f"{where} is hidden state {index}, and a model of {n_layers} blocks has 0..{n_layers}; check --n-layers"
        )
    return Place("ln_final", None) if index == n_layers else Place("resid_pre", index)


def check_place(place: Place, where: str, n_layers: int | None) -> Place:
    """The place, if it exists.

    Raises:
        DataError: a layer where there is none, out of range, or missing.
    """
    point, layer = place
    if "{layer}" in POINTS[point] and layer is None:
        raise DataError(f"{where} gives the point {point} and no layer; rename it, for example to {point}.3")
    if "{layer}" not in POINTS[point] and layer is not None:
        raise DataError(f"{where} gives layer {layer} of {point}, which has no layers; rename it to {point}")
    if layer is not None and layer >= MAX_LAYERS:
        raise DataError(f"{where} gives layer {layer}, and models have at most {MAX_LAYERS:,} layers; rename it")
    if layer is not None and n_layers is not None:
        try:
            check_layer(layer, n_layers)
        except UsageError as error:
            raise DataError(f"{where} is {place}, and {error}; check --n-layers") from None
    return place


def _named(name: str) -> Place | None:
    """The place of a name with a point, or None."""
    tries: list[tuple[str, int | None]] = []
    if match := _BEFORE.fullmatch(name):
        tries.append((match[2], int(match[1])))
    if match := _AFTER.fullmatch(name):
        tries.append((match[1], int(match[2])))
    for spec in (name, *tries):
        try:
            return Place.of(spec)
        except UnknownPoint:
            continue
    return None
