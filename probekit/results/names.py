"""The name of one of several curves: LABEL/POINT, with the value of a column and the probe where these are needed."""

from collections.abc import Mapping, Sequence
from typing import Any

from probekit.errors import UsageError
from probekit.text import listed


def naming_coordinates(several: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The coordinates that name several curves: the probe only where the others do not tell them apart."""
    names = tuple(name for name in ("label", "point", "within") if any(name in one for one in several))
    keys = {tuple(one.get(name) for name in names) for one in several}
    return names if len(keys) == len(several) else (*names, "probe")


def curve_of_name(several: Sequence[Mapping[str, Any]], name: str | None) -> tuple[int, str | None]:
    """The number of the curve that LABEL/POINT[.LAYER][/VALUE][/PROBE] names, and the place in it, if one is named.

    Args:
        several: the coordinates of each curve: "label", "point", "within" (where there is one) and "probe"; "places",
            where they are known, to name a place of another point, such as the output.
        name: what was given.

    Raises:
        UsageError: none, or more than one, has the name.
    """
    found: list[tuple[int, str | None]] = []
    for number, one in enumerate(several):
        ends = [f"/{one[key]}" for key in ("within", "probe") if key in one]
        for end in ("", *ends, "".join(ends)):
            start = f"{one['label']}/"
            middle = (name or "").removeprefix(start).removesuffix(end)
            if name != start + middle + end:
                continue
            layer = middle.removeprefix(f"{one['point']}.")
            if middle == one["point"]:
                found.append((number, None))
            elif middle in one["places"] if "places" in one else layer != middle and layer.isdecimal():
                found.append((number, middle))
    found = list(dict.fromkeys(found))
    if len(found) == 1:
        return found[0]
    keys = naming_coordinates(several)
    names = ["/".join(str(one[key]) for key in keys if key in one) for one in several]
    more = "".join({"within": "/VALUE", "probe": "/PROBE"}[key] for key in keys[2:])
    given = "and no place was given" if name is None else f"got {name!a}"
    given += ", which several of them have" if len(found) > 1 else ""
    raise UsageError(
        f"these results hold several curves, {given}; write RESULTS:LABEL/POINT{more} or "
        f"RESULTS:LABEL/POINT.LAYER{more}, with {listed([ascii(one)[1:-1] for one in names], most=6)}"
    )
