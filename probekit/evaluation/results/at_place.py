"""The result of one place of a curve, by name."""

from probekit.errors import UsageError
from probekit.evaluation.results.data import LayerResult, ProbeData
from probekit.points import PointSpec, place_name, spans_of


def result_at(data: ProbeData, place: PointSpec | int) -> LayerResult:
    """The result at "resid_pre.5", ("resid_pre", 5), or layer 5 of the curve's point.

    Raises:
        UsageError: the curve has no such place.
    """
    known = {(layer.point, layer.layer): layer for layer in data.layers}
    named = {layer.place: layer for layer in data.layers}
    text = str(place)
    found = named.get(text) or (known.get(place) if isinstance(place, tuple) else None)
    if found is None and text.isdecimal():
        found = known.get((data.meta["point"], int(text)))
    if found is None and isinstance(place, str):  # of an encoder, whose name may be left out
        found = named.get(f"encoder.{place}")
    if found is None:
        shown = place_name(place) if isinstance(place, tuple) and len(place) == 2 else text
        raise UsageError(f"the results have no place {shown!a:.80}; there are {spans_of(known)}")
    return found
