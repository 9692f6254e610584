"""`probekit points`: what can be read inside a model, by name and shape."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from probekit.cli import console
from probekit.cli.derive import command
from probekit.cli.extract import MODEL
from probekit.cli.fields import JsonOutput, required
from probekit.options import ModelOptions
from probekit.options.load import Via
from probekit.options.option import like
from probekit.points import POINTS, Place
from probekit.tables import text_table

if TYPE_CHECKING:
    from probekit.models.base import LanguageModel

_LEGEND = "B batch, L query position, M key position; the other axes are shown by their sizes"
_UNPROVED = (
    "attn_out, mixer_out, resid_mid, mlp_out and ln_final are proved when the weights are loaded: those that fail are "
    "left out, and those of a class whose layout is not in probekit's table are added then (probekit selftest has all)."
)


@dataclass(frozen=True, kw_only=True)
class PointsJob(JsonOutput):
    """The model."""

    model: str = required(MODEL, "NAME|FOLDER")
    revision: str | None = like(ModelOptions, "revision")
    via: Via | None = like(ModelOptions, "via")


@command()
def points(job: PointsJob) -> None:
    """List a model's named points with their shapes.

    Needs only its config.json. Where weights are there, their names and shapes are checked for probekit's families.

    \b
    Example:
        probekit points --model gpt2
    """
    from probekit.models.load import check_model, outline

    check_model(job.model, ModelOptions(revision=job.revision, via=job.via))

    model = outline(job.model, job.revision, job.via)
    rows = point_rows(model)
    if job.json:
        console.result_json({"model": model.name, "n_layers": model.n_layers, "points": rows})
        return
    cells = [[row["short"], row["full"], f"[{', '.join(map(str, row['shape']))}]"] for row in rows]
    console.result(text_table(cells, left=3))
    console.note(f"{model.n_layers} layers. {_LEGEND}.")
    if "transformers" in model.packages:
        console.note(_UNPROVED)


def point_rows(model: "LanguageModel") -> list[dict[str, Any]]:
    """Short name, full name and shape of every point; one row for layers of one shape, with their range in the name."""
    having: dict[tuple[Any, ...], list[Any]] = {}
    for full, point in model.points.items():
        short, layer = Place.of(full)
        shape = [model.size_of(axis, short, layer) or axis for axis in point.axes.split()]
        having.setdefault((short, *shape), []).append(layer)
    rows = [
        {
            "short": short,
            "full": POINTS[short].format(layer=None if layers == [None] else _braces(layers)),
            "shape": shape,
        }
        for (short, *shape), layers in having.items()
    ]
    return sorted(rows, key=lambda row: list(POINTS).index(row["short"]))


def _braces(layers: list[int]) -> str:
    """[0, 1, 2] -> "{0..2}"; [1, 3, 5] -> "{1,3,5}"."""
    is_run = len(layers) == layers[-1] - layers[0] + 1
    return f"{{{layers[0]}..{layers[-1]}}}" if is_run else f"{{{','.join(map(str, layers))}}}"
