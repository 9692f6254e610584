"""Write a run to wandb, tensorboard or trackio; each is imported here alone, and none is a dependency."""

import importlib
import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from probekit.errors import StorageError
from probekit.logging_to.check import check_tracker
from probekit.logging_to.content import LAYER, LoggedRun, draw, logged_run
from probekit.text import printable

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
