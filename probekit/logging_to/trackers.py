"""Write a run to wandb, tensorboard or trackio: the curve step by step, single numbers, settings and the picture.

Each tracker is imported here alone, and none is a dependency.
"""

import importlib
import json
import math
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probekit.errors import StorageError
from probekit.evaluation.by_position.data import PositionData
from probekit.evaluation.results.data import ProbeData
from probekit.logging_to.check import check_tracker
from probekit.text import printable

LAYER = "layer"  # the axis of the curves
_EXTRAS = ("low", "high", "p_value", "p_corrected")
_KINDS = {"probe": "", "procedure": "procedure/", "lead": "lead over ", "lead over pooled": "lead over pooled "}


@dataclass(frozen=True)
class LoggedRun:
    """The content of one run.

    Attributes:
        name: of the run.
        settings: the record of the results, JSON-able.
        steps: for each place of the curve, its number and the values there, such as "test/accuracy".
        numbers: that belong to no place: baselines, the lead, the score to quote.
    """

    name: str
    settings: dict[str, Any]
    steps: list[tuple[int, dict[str, float]]]
    numbers: dict[str, float]


def logged_run(results: Any) -> LoggedRun:
    """The content of `ProbeResults`, `ProbeCurves` or `PositionResults`.

    The step of a place is its place in its curve, so that layer 0 is step 0 and the output follows the last layer.
    """
    steps: dict[int, dict[str, float]] = {}
    numbers: dict[str, float] = {}
    for row, prefix, step in _rows(results):
        into = numbers if step is None else steps.setdefault(step, {})
        into |= _values(row, prefix)
    is_one = isinstance(results, (ProbeData, PositionData))
    first = results if is_one else next(iter(results.values()))
    about = [printable(first.meta[key]) for key in ("model", "task", "label", "probe")]
    settings = first.meta if is_one else {"curves": [curve.meta for curve in dict(results).values()]}
    if is_one and results.quoted is not None:
        numbers[f"estimate/{results.headline}"] = float(results.quoted.value)
    return LoggedRun(" ".join(about), json.loads(json.dumps(settings, default=str)), sorted(steps.items()), numbers)


def _rows(results: Any) -> list[tuple[dict[str, Any], str, int | None]]:
    """The rows of the tidy table with the prefix of their curve and their step."""
    curves: dict[str, Any] = {"": results} if isinstance(results, ProbeData | PositionData) else _named(results)
    found = []
    for prefix, curve in curves.items():
        rows = curve.to_frame().to_dict("records")
        places: dict[str, dict[Any, int]] = {}
        for row in rows:
            is_at = isinstance(curve, PositionData) and row["kind"] != "procedure"
            own = f"{prefix}{row['by']} {printable(row['at'])}/" if is_at else prefix
            place, known = row["place"], places.setdefault(own, {})
            if isinstance(place, str) and row.get("kind") != "procedure":
                known.setdefault(place, len(known))
            found.append((row, own, known.get(place) if isinstance(place, str) else None))
    return found


def _named(curves: Any) -> dict[str, Any]:
    """The curves by the prefix of their values; a slash in a name would make a group of its own."""
    return {f"{'/'.join(printable(part).replace('/', '|') for part in key)}/": one for key, one in curves.items()}


def _values(row: dict[str, Any], prefix: str) -> dict[str, float]:
    kind, name = row.get("kind", "probe"), printable(row.get("name", ""))
    group = _KINDS.get(kind, f"{kind}/") + (f"{name}/" if kind in ("baseline", "lead", "lead over pooled") else "")
    key = f"{prefix}{group}{row['split']}/{row['metric']}"
    values = {key: row["value"], **{f"{key}_{end}": row.get(end, math.nan) for end in _EXTRAS}}
    return {name: float(value) for name, value in values.items() if value is not None and value == value}


def draw(results: Any, folder: Path) -> Path:
    """Write the picture of the results into the folder; returns the PNG's path."""
    from probekit.plots import save_curves_plot, save_grids_plot, save_plot, save_positions_plot

    if isinstance(results, ProbeData):
        return save_plot(results, folder)
    if isinstance(results, PositionData):
        return save_positions_plot(results, folder)
    several = list(results.values())
    return (save_grids_plot if isinstance(several[0], PositionData) else save_curves_plot)(several, folder)


PROJECT = "probekit"
TENSORBOARD = Path("tensorboard")  # not under ./runs, which is where tensorboard would look: stores are there
_LONGEST = 80  # characters of a folder's name


def log_results(results: Any, name: str) -> None:
    """Log the curve's numbers, picture and settings as one run; see `logged_run`.

    Args:
        results: `ProbeResults`, `ProbeCurves` or `PositionResults`.
        name: of the tracker.

    Raises:
        UsageError: it is not installed.
        StorageError: it could not be imported, or did not take the run.
    """
    check_tracker(name)
    run = logged_run(results)
    with tempfile.TemporaryDirectory() as folder:
        picture = draw(results, Path(folder))
        try:
            _WRITERS[name](run, picture)
        except Exception as error:  # of another package: of any class
            why = f"{type(error).__name__}: {printable(' '.join(str(error).split()))[:200]}"
            raise StorageError(f"{name} did not take the run ({why}); the results are complete without it") from None


def _wandb(run: LoggedRun, picture: Path) -> None:
    """A run of its own, or the one that is active in this process, which stays open."""
    wandb: Any = importlib.import_module("wandb")
    active = wandb.run
    own = active or wandb.init(project=PROJECT, name=run.name, config=run.settings)
    if active is not None:
        own.config.update({PROJECT: run.settings}, allow_val_change=True)
    for key in dict.fromkeys(key for _, values in run.steps for key in values):
        own.define_metric(key, step_metric=LAYER)  # layers, whatever the run's own steps are
    for step, values in run.steps:
        own.log({LAYER: step, **values})
    own.summary.update(run.numbers)
    own.log({picture.stem: wandb.Image(str(picture))})
    if active is None:
        own.finish()


def _trackio(run: LoggedRun, picture: Path) -> None:
    trackio: Any = importlib.import_module("trackio")
    trackio.init(project=PROJECT, name=run.name, config=run.settings)
    for step, values in run.steps:
        trackio.log({LAYER: step, **values}, step=step)
    last = {**run.numbers, picture.stem: trackio.Image(str(picture))}
    trackio.log(last, step=len(run.steps))
    trackio.finish()


def _tensorboard(run: LoggedRun, picture: Path) -> None:
    """Scalars by layer, single numbers at step 0, the picture, and the settings as a text."""
    from matplotlib.image import imread

    writer: Any = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(_free_folder(run.name)))
    with writer:
        for step, values in run.steps:
            for key, value in values.items():
                writer.add_scalar(key, value, step)
        for key, value in run.numbers.items():
            writer.add_scalar(key, value, 0)
        pixels = (255 * imread(picture)[:, :, :3]).round().astype("uint8")
        writer.add_image(picture.stem, pixels, dataformats="HWC")
        lines = json.dumps(run.settings, indent=1).splitlines()
        writer.add_text("settings", "\n".join(f"    {line}" for line in lines))  # Markdown: code, whatever it holds


def _free_folder(name: str) -> Path:
    """A folder for the run that no other one has; tensorboard would join their curves."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:_LONGEST] or "run"
    number = 1
    while (folder := TENSORBOARD / (plain if number == 1 else f"{plain}-{number}")).exists():
        number += 1
    return folder


_WRITERS: dict[str, Callable[[LoggedRun, Path], None]] = {
    "wandb": _wandb,
    "tensorboard": _tensorboard,
    "trackio": _trackio,
}
