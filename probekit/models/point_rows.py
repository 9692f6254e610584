"""The points of a model as rows of a table."""

from typing import Any

from probekit.models.base import LanguageModel
from probekit.points import POINTS, Place


def point_rows(model: LanguageModel) -> list[dict[str, Any]]:
    """Short name, full name and shape of every point; one row for all layers, with their range in the full name."""
    rows: dict[str, dict[str, Any]] = {}
    for full, point in model.points.items():
        short, layer = Place.of(full)
        if short not in rows:
            rows[short] = {
                "short": short,
                "full": full if layer is None else POINTS[short].format(layer=_braces(model.layers_of(short))),
                "shape": [model.size_of(axis, short) or axis for axis in point.axes.split()],
            }
    return sorted(rows.values(), key=lambda row: list(POINTS).index(row["short"]))


def _braces(layers: list[int]) -> str:
    """[0, 1, 2] -> "{0..2}"; [1, 3, 5] -> "{1,3,5}"."""
    is_run = len(layers) == layers[-1] - layers[0] + 1
    return f"{{{layers[0]}..{layers[-1]}}}" if is_run else f"{{{','.join(map(str, layers))}}}"
