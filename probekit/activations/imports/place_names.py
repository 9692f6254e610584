"""What the name of a file, or of a tensor in one, says of the place where its activations were read.

a point and a layer    resid_pre.3   resid_post_11   resid_mid-3   layer_3_resid_pre   blocks.3.hook_resid_pre
a point without one    embed   ln_final   hook_embed
a layer alone          layer_3   3   blocks.3   model.layers.3   transformer.h.3: whoever saved it must say the point
Hugging Face's list    hidden_states_3: the input of block 3; the last, of as many as there are blocks, is the
output of the final norm, which is the point ln_final, and not the output of the last block
"""

import re

from probekit.errors import DataError, UsageError
from probekit.points import POINTS, Place, UnknownPoint, check_layer, place_name, split_point

HIDDEN = "hidden_states"
FORMS = (
    "resid_pre.3, resid_post_11, layer_3_resid_pre, blocks.3.hook_resid_pre, embed; "
    "hidden_states_3; or, with --point, layer_3, 3, model.layers.3"
)
_HIDDEN = re.compile(r"hidden_states?[._-]?(\d{1,4})")
_BARE = re.compile(r"(?:(?:model|transformer)\.)*(?:(?:layers?|blocks?|block|h|l)[._-]?)?(\d{1,4})", re.IGNORECASE)
_AFTER = re.compile(r"(.+?)[._-](?:layer[._-]?)?(\d{1,4})")
_BEFORE = re.compile(r"(?:layer|block)s?[._-]?(\d{1,4})[._-](.+)")


def place_of(name: str, where: str, point: str | None, n_layers: int | None) -> tuple[str, int | None]:
    """The place that a name says, with `point` for the name of a layer alone; no layer is None.

    Args:
        name: of a file without its ending, or of a tensor.
        where: the same, as errors call it.
        point: a short name, or "hidden_states".
        n_layers: blocks of the model, where that is known.

    Raises:
        DataError: the name is none of the forms above.
        UsageError: what it says is not enough: --point or --n-layers is missing.
    """
    if match := _HIDDEN.fullmatch(name):
        return hidden_place(int(match[1]), where, n_layers)
    if match := _BARE.fullmatch(name):
        if point is None:
            raise UsageError(
                f"{where} names a layer and no point; say what it holds with --point, such as resid_post for the "
                f"output of block {int(match[1])} and resid_pre for its input, or hidden_states for Hugging Face's list"
            )
        return hidden_place(int(match[1]), where, n_layers) if point == HIDDEN else (point, int(match[1]))
    place = _named(name)
    if place is None:
        raise DataError(f"{where} has a name that says no place; rename it to one of these forms: {FORMS}")
    return place


def is_bare(name: str) -> bool:
    """Whether a name says a layer alone."""
    return _BARE.fullmatch(name) is not None


def hidden_place(index: int, where: str, n_layers: int | None) -> Place:
    """The place of one of Hugging Face's hidden_states.

    Raises:
        UsageError: the number of blocks is not known.
        DataError: there are not so many.
    """
    if n_layers is None:
        raise UsageError(
            f"{where} is one of Hugging Face's hidden_states, the last of which stands after the final norm; "
            "give the number of blocks of the model with --n-layers, so that it is not taken for another"
        )
    if index > n_layers:
        raise DataError(f"{where} is hidden state {index}; a model of {n_layers} blocks has 0..{n_layers}")
    return ("ln_final", None) if index == n_layers else ("resid_pre", index)


def check_place(place: tuple[str, int | None], where: str, n_layers: int | None) -> Place:
    """The place itself, if it can be.

    Raises:
        DataError: a layer too many, or none where there must be one.
    """
    point, layer = place
    if "{layer}" in POINTS[point] and layer is None:
        raise DataError(f"{where} says the point {point} and no layer; rename it to {point}.3 or so")
    if "{layer}" not in POINTS[point] and layer is not None:
        raise DataError(f"{where} says layer {layer} of {point}, which belongs to no layer; rename it to {point}")
    if layer is not None and n_layers is not None:
        try:
            check_layer(layer, n_layers)
        except UsageError as error:
            raise DataError(f"{where} is {place_name(place)}, and {error}; check --n-layers") from None
    return place


def _named(name: str) -> tuple[str, int | None] | None:
    """The place of a name that holds a point, or None."""
    tries: list[tuple[str, int | None]] = []
    if match := _BEFORE.fullmatch(name):
        tries.append((match[2], int(match[1])))
    if match := _AFTER.fullmatch(name):
        tries.append((match[1], int(match[2])))
    for spec in (name, *tries):
        try:
            return split_point(spec)
        except UnknownPoint:
            continue
    return None
