"""`probekit points`: what can be read inside a model, by name and shape."""

from typing import TYPE_CHECKING, Any

from probekit.cli import console, options
from probekit.text import printable

if TYPE_CHECKING:
    from probekit.models.base import LanguageModel

_LEGEND = "B batch, L query position, M key position; the other axes stand with their sizes"


def points(
    model: options.Model,
    revision: options.Revision = None,
    json_: options.Json = False,
    config: options.Config = None,
    set_: options.Set = None,
) -> None:
    """List a model's named points with their shapes; reads its config.json, not its weights.

    \b
    Example:
        probekit points --model gpt2
    """
    from probekit.models import outline

    found = outline(model, revision)
    rows = point_rows(found)
    if json_:
        console.result_json({"model": found.name, "n_layers": found.n_layers, "points": rows})
        return
    console.result(table([[row["short"], row["full"], f"[{', '.join(map(str, row['shape']))}]"] for row in rows]))
    console.note(f"{found.n_layers} layers. {_LEGEND}.")


def point_rows(model: "LanguageModel") -> list[dict[str, Any]]:
    """Short name, full name and shape of every point; those of the layers once, with the layers' range in the name."""
    from probekit.points import POINTS, split_point

    rows: dict[str, dict[str, Any]] = {}
    for full, point in model.points.items():
        short, layer = split_point(full)
        if short not in rows:
            layers = f"{{0..{model.n_layers_of(short) - 1}}}"
            rows[short] = {
                "short": short,
                "full": full if layer is None else POINTS[short].format(layer=layers),
                "shape": [model.size_of(axis, short) or axis for axis in point.axes.split()],
            }
    return sorted(rows.values(), key=lambda row: list(POINTS).index(row["short"]))


def table(rows: list[list[str]]) -> str:
    """Rows as lines with aligned columns."""
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in shown)
