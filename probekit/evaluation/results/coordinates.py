"""What tells a curve from the others of one call. Keys, tables, pictures, the page and files name curves by it."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from probekit.results.names import naming_coordinates


class HasMeta(Protocol):
    """Results of any kind."""

    @property
    def meta(self) -> dict[str, Any]:
        """What they record."""
        ...


def coordinates(meta: Mapping[str, Any]) -> dict[str, str]:
    """Label set, point, the value of the column that all rows have (where there is one) and probe, by their names."""
    within = meta.get("within")
    value = {} if within is None else {"within": str(within["value"])}
    return {"label": str(meta["label"]), "point": str(meta["point"]), **value, "probe": str(meta["probe"])}


def shown_coordinates(several: Sequence[HasMeta]) -> tuple[str, ...]:
    """The coordinates that name several curves: see `naming_coordinates`."""
    return naming_coordinates([coordinates(each.meta) for each in several])


def curve_keys(several: Sequence[HasMeta]) -> list[tuple[str, ...]]:
    """The shown coordinates of each: (label, point), and where needed the value of a column and the probe."""
    names = shown_coordinates(several)
    return [tuple(coordinates(each.meta).get(name, "") for name in names) for each in several]


def coordinate_titles(several: Sequence[HasMeta]) -> list[str]:
    """The shown coordinates as the header of a table: a column's own name for its values."""
    column = next((each.meta["within"]["column"] for each in several if each.meta.get("within")), "")
    return [str(column) if name == "within" else name for name in shown_coordinates(several)]


def within_text(meta: Mapping[str, Any]) -> str:
    """The rows of a curve, "frequency over 4 to 20"; empty for all rows."""
    within = meta.get("within")
    return "" if within is None else f"{within['column']} {within['value']}"
