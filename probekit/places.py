"""Which places activations have, and which of them the options of a curve name; nothing here needs torch.

A store's manifest names its places, so a wrong point, layer or position is refused before anything else is read.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from probekit.errors import UsageError
from probekit.points import (
    FOLLOWED_BY_OUTPUT,
    PAIR_POINTS,
    Place,
    PointSpec,
    UnknownPoint,
    as_extracted,
    parse_layers,
    spans_of,
)
from probekit.selections import ALL, Selection
from probekit.text import listed


class NamedPlaces:
    """Places with what the record of their activations says of the model.

    Attributes:
        meta: JSON-able: points, n_layers, output and more.
    """

    def __init__(self, places: Iterable[Place], meta: dict[str, Any]):
        self._places = [Place(*place) for place in places]
        self.meta = meta

    def point_of(self, key: PointSpec) -> Place:
        """The short name of a point, and its layer where the key names one; places side by side have their own name."""
        own = (key, None) if isinstance(key, str) else key
        if own in self._places:
            return Place(*own)
        short, layer = Place.of(key)
        return Place(self.in_stack(short), layer)

    @property
    def points(self) -> list[str]:
        """The short names of the requested points, in that order."""
        return list(self.meta["points"])

    @property
    def n_layers(self) -> int:
        """The number of blocks of the model, including any that were not extracted."""
        return int(self.meta["n_layers"])

    @property
    def output(self) -> str:
        """The point of the last block's output, which ends the residual curve."""
        return str(self.meta.get("output", "resid_post"))

    def in_stack(self, short: str) -> str:
        """The short name here: `"resid_pre"` is `"encoder.resid_pre"` in the activations of an encoder."""
        return as_extracted(short, self._places)

    def curve(self, point: str) -> list[Place]:
        """The places of one point in layer order; for a residual point, then the output of the last block.

        Raises:
            UnknownPoint: the point was not extracted.
        """
        short, _ = self.point_of(point)
        places = sorted((p for p in self._places if p[0] == short), key=lambda p: p[1] or 0)
        if not places:
            raise UnknownPoint(f"no activations of {short} here; there are {spans_of(self._places)}")
        output = Place(self.output, self.n_layers - 1)
        return [*places, output] if short in FOLLOWED_BY_OUTPUT and output in self._places else places


def check_kept(kept: Sequence[Selection], position: Selection | None) -> None:
    """Check that a probe can read one position of those that were kept.

    Raises:
        UsageError: several were kept and none is named, or one that was not kept is.
    """
    is_ragged = len(kept) == 1 and kept[0].several
    if position is None and (is_ragged or len(kept) > 1):
        choice = "last, first, mean, a token's index, last@assistant, ... or all" if is_ragged else listed(kept)
        raise UsageError(
            f"a probe reads one position of each text; name it with --position (in Python, position=): {choice}"
        )
    if position not in (None, ALL) and not is_ragged and position not in kept:
        known = f"take {listed(kept)}" if len(kept) > 1 else f"the only one is {kept[0]!a}: leave it out"
        raise UsageError(f"position {position!a} was not extracted; {known}, or extract again")


def check_several_kept(kept: Sequence[Selection], position: Selection | None) -> None:
    """Check that a probe over a sequence can read several tokens of each text.

    Raises:
        UsageError: one token of each text was kept, or each of several positions; a position that names one token.
    """
    if len(kept) != 1 or not kept[0].several:
        raise UsageError(
            f"a probe over a sequence reads several tokens of each text, and these activations are of {listed(kept)}; "
            "extract again with position all (--position all)"
        )
    if position is not None and position not in kept and not position.several:
        raise UsageError(
            f"a probe over a sequence reads several tokens of each text, and position {position} is one; leave "
            "position (--position) out, or name several, such as -5: or all@assistant"
        )


def has_layers(acts: NamedPlaces, point: str) -> bool:
    """Whether a point was extracted at layers, rather than once for the model."""
    return any(layer is not None for name, layer in acts.curve(point) if name == point)


def places_of(acts: NamedPlaces, point: str | None, layers: str | int | Iterable[int]) -> tuple[str, list[Place]]:
    """The point's short name, and its places at these layers.

    Raises:
        UsageError: a point or layer that was not extracted.
    """
    short = short_name(acts, point)
    curve = acts.curve(short)
    if isinstance(layers, str) and layers.strip() == "all":
        return short, curve
    extracted = [layer for name, layer in curve if name == short and layer is not None]
    if not extracted:
        raise UsageError(f"{short} belongs to no layer; leave --layer (in Python, layers=) out")
    if str(layers).strip() in ("out", "output", str(acts.n_layers)) and curve[-1][0] != short:
        output, last = curve[-1]
        raise UsageError(
            f"{short} has no layer {layers!a}; for the output of the last block alone give --point {output} "
            f"--layer {last} (in Python, point={output!r}, layers={last})"
        )
    wanted = parse_layers(layers, acts.n_layers)
    if missing := [layer for layer in wanted if layer not in extracted]:
        known = listed(extracted)
        raise UsageError(f"layer {missing[0]} of {short} was not extracted; there are {known}")
    return short, [Place(short, layer) for layer in wanted]


def short_name(acts: NamedPlaces, point: str | None) -> str:
    """The short name of a point, by default the first that a probe can read."""
    first = next((name for name in acts.points if name not in PAIR_POINTS), acts.points[0])
    short, layer = acts.point_of(first if point is None else point)
    if layer is not None:
        raise UsageError(
            f"point and layer are given separately; give --point {short} --layer {layer} (in Python, point={short!r}, "
            f"layers={layer})"
        )
    return short
