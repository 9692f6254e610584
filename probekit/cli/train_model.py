"""`probekit train-model`: train the tiny model of a synthetic world."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from probekit.cli import console, stores
from probekit.cli.derive import command
from probekit.cli.fields import Given, Output, argument
from probekit.errors import ResumeMismatch, UsageError
from probekit.options import TrainingSettings
from probekit.options.option import option
from probekit.options.picture import PictureOptions
from probekit.text import counted
from probekit.worlds import MODELS

if TYPE_CHECKING:
    from probekit.worlds.train import Trained


@dataclass(frozen=True, kw_only=True)
class TrainModelJob(Output):
    """The world, and the folder for its model."""

    name: str | None = argument(
        f"{', '.join(MODELS[:-1])} or {MODELS[-1]}; or its task: counting, ...",
        metavar="NAME",
        default=None,
    )
    positions: str | None = option(
        None,
        "Positions of an encoder-decoder: learned, sinusoidal or interleaved.  [default: the world's]",
        notes='"sinusoidal" has all sines first, as Marian; "interleaved" is the order of Vaswani et al. (2017).',
        metavar="KIND",
    )
    out: Path | None = option(None, "Where the model goes.  [default: models/NAME]", metavar="DIR")


@command("name steps batch_size learning_rate warm_up_steps seed positions out title no_title width format")
def train_model(
    job: TrainModelJob,
    given: Annotated[dict[str, Any], Given(TrainingSettings, "the world's")],
    options: PictureOptions,
) -> None:
    """Train and test the model of a synthetic world.

    It is tested on held-out examples. Writes the model as a folder that --model takes, its loss curve, and a
    checkpoint. To resume an interrupted training, give the same command again.

    \b
    Examples:
        probekit train-model counting-gpt
        probekit train-model --config configs/counting.yaml
    """
    if job.name is None:
        raise UsageError("no model is named; give a name, such as counting-gpt, or --config configs/counting.yaml")
    from probekit.worlds import world
    from probekit.worlds.definition import with_config, with_settings

    one = with_settings(world(job.name), given)  # checked before torch is imported
    if job.positions is not None:
        one = with_config(one, positions=job.positions)
    folder = job.out or Path("models") / one.name
    stores.check_out(folder)
    from probekit.plots import save_loss_plot
    from probekit.worlds.train import shortfall, train_world, training_shown

    _check_out(folder)
    with training_shown(one, folder, console.bars(job.quiet)) as progress:
        trained = train_world(one, folder, progress, checkpoints=folder)
    if not job.quiet and (short := shortfall(trained)):
        console.note(f"{short}; more --steps or another --learning-rate may help")
    picture = save_loss_plot(trained.result.losses, one.name, folder, **vars(options))
    body = _facts(trained, folder, picture) | {"world": one.task, "settings": vars(one.settings)}
    console.answer(job, lambda: body, _summary(trained, folder, picture), brief=folder)


def _check_out(folder: Path) -> None:
    """Refuse a folder with a model but no checkpoint: it was not trained there."""
    from probekit.models.training import CHECKPOINT

    if (folder / "config.json").exists() and not (folder / CHECKPOINT).exists():
        raise ResumeMismatch(
            f"{str(folder)!a} holds a model that train-model did not make; give another folder (--out), or remove "
            "that one"
        )


def _facts(trained: "Trained", folder: Path, picture: Path) -> dict[str, Any]:
    return {
        "model": trained.model.name,
        "folder": str(folder),
        "picture": str(picture),
        "loss_nats": trained.result.mean_loss(),
        "resumed_from": trained.result.resumed_from,
        "held_out": trained.figures,
    }


def _summary(trained: "Trained", folder: Path, picture: Path) -> str:
    shares = {name: share for name, share in trained.figures.items() if name != "n"}
    steps = counted(len(trained.result.losses), "step")
    held_out = ", ".join(f"{name} {share:.2%}" for name, share in shares.items())
    return "\n".join(
        [
            f"{trained.model.name}: {steps}, loss {trained.result.mean_loss():.4f} nats",
            f"On {trained.figures['n']:.0f} held-out examples: {held_out}",
            f"Model: {folder}",
            f"Loss:  {picture}",
        ]
    )
